"""Checkpoint folders: whole ones load, broken ones say everything that is wrong in one error."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from policies.openvla_oft import OpenVLAOFT
from policies.checkpoints import fingerprint, loading
from policies.checkpoints.loading import CheckpointError

TINY = Path(__file__).parents[1] / "fixtures" / "openvla_tiny"


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "dataset_statistics.json", "model.safetensors", "preprocessor_config.json"):
        shutil.copy(TINY / name, tmp_path / name)
    return tmp_path


def rewrite(folder, name, change):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def test_all_missing_files_are_named_at_once(folder):
    for name in ("preprocessor_config.json", "model.safetensors", "dataset_statistics.json"):
        (folder / name).unlink()
    rewrite(folder, "config.json", lambda config: config.pop("norm_stats"))
    with pytest.raises(CheckpointError) as error:
        OpenVLAOFT.from_pretrained(folder)
    for name in ("preprocessor_config.json", "model.safetensors", "dataset_statistics.json"):
        assert name in str(error.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        OpenVLAOFT.from_pretrained(tmp_path / "nowhere")


def test_missing_extra_and_misshapen_tensors_are_all_named_at_once(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["projector.fc1.bias"]
    tensors["projector.fc9.bias"] = torch.zeros(3)
    tensors["projector.fc3.bias"] = torch.zeros(5)
    tensors["vision_backbone.featurizer.cls_token"] = torch.zeros(1, 1, 4)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        OpenVLAOFT.from_pretrained(folder)
    message = str(error.value)
    assert "missing projector.fc1.bias (320,)" in message
    assert "extra projector.fc9.bias (3,)" in message
    assert "misshapen projector.fc3.bias: found (5,), wanted (32,)" in message
    assert "vision_backbone.featurizer.cls_token" in message


def test_a_sharded_folder_loads_to_the_same_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:40], "model-00002-of-00002.safetensors": names[40:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded, whole = OpenVLAOFT.from_pretrained(folder).state_dict(), OpenVLAOFT.from_pretrained(TINY).state_dict()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


def test_every_lost_shard_is_named(folder):
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", shards))}))
    with pytest.raises(CheckpointError) as error:
        OpenVLAOFT.from_pretrained(folder)
    assert all(shard in str(error.value) for shard in shards)


def test_the_configs_own_statistics_serve_when_there_is_no_file(folder):
    (folder / "dataset_statistics.json").unlink()
    assert OpenVLAOFT.from_pretrained(folder).codec.key == "libero_spatial_no_noops"


def test_a_suite_name_finds_its_statistics_and_a_wrong_one_lists_what_there_is():
    assert OpenVLAOFT.from_pretrained(TINY, unnorm_key="libero_spatial").codec.key == "libero_spatial_no_noops"
    with pytest.raises(KeyError, match="libero_spatial_no_noops"):
        OpenVLAOFT.from_pretrained(TINY, unnorm_key="libero_object")


def test_several_statistics_and_no_key_is_refused_at_loading(folder):
    rewrite(folder, "dataset_statistics.json", lambda content: content.update(other=content["libero_spatial_no_noops"]))
    with pytest.raises(KeyError, match="other"):
        OpenVLAOFT.from_pretrained(folder)


def test_towers_that_are_not_known_are_named(folder):
    def change(config):
        del config["vision_towers"]
        config["timm_model_ids"] = ["vit_huge", "vit_so400m_patch14_siglip_224"]

    rewrite(folder, "config.json", change)
    with pytest.raises(ValueError, match="vit_huge"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_folder_without_a_tokenizer_loads_and_says_so_when_an_instruction_comes():
    policy = OpenVLAOFT.from_pretrained(TINY)
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        policy.prompts(["put it down"])


def test_bfloat16_holds_the_weights_as_stored_and_the_rotary_frequencies_in_float32():
    policy = OpenVLAOFT.from_pretrained(TINY, dtype="bfloat16")
    stored = load_file(TINY / "model.safetensors")["projector.fc1.weight"]
    assert torch.equal(policy.projector.fc1.weight, stored)
    assert policy.language_model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_weights_larger_than_a_shard_are_written_in_several_with_an_index_and_load_again(tmp_path):
    policy = OpenVLAOFT.from_pretrained(TINY)
    loading.write_folder(tmp_path, policy, {}, {}, shard=2_000_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert len(files) > 1 and set(index["weight_map"].values()) == set(files) and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    again = OpenVLAOFT.from_pretrained(TINY, value_head=True)
    torch.nn.init.zeros_(again.projector.fc1.weight)
    loading.load_weights(again, loading.weight_files(tmp_path)[0], optional="value_head.")
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in policy.state_dict().items())


def test_writing_into_a_folder_leaves_no_weights_of_before(tmp_path):
    policy = OpenVLAOFT.from_pretrained(TINY)
    loading.write_folder(tmp_path, policy, {}, {}, shard=2_000_000)
    loading.write_folder(tmp_path, policy, {}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_folder_that_is_written_over_keeps_what_is_not_of_a_checkpoint_and_nothing_else(folder, tmp_path):
    L1 = {"action_head--0_checkpoint.pt", "log_std.safetensors", "vision_backbone--latest_checkpoint.pt", "lora_adapter/adapter_model.safetensors", "tokenizer.model", "model-00001-of-00002.safetensors"}
    own = {"README.md", "model_of_mine.safetensors", "lora_adapter/README.md"}
    (folder / "lora_adapter").mkdir()
    for name in L1 | own:
        (folder / name).write_text("of before")
    OpenVLAOFT.from_pretrained(TINY).save_pretrained(folder)
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert found == own | {"config.json", "dataset_statistics.json", "preprocessor_config.json", "model.safetensors"}


@pytest.mark.parametrize("content", ["[]", "5", "null"])
@pytest.mark.parametrize("name", ["config.json", "dataset_statistics.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_json_that_is_no_object_is_refused_by_name(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name} holds a .*, wanted a json object"):
        OpenVLAOFT.from_pretrained(folder)


@pytest.mark.parametrize("places", [[], {}, {"a": 5}, {"a": "../b"}])
def test_an_index_that_names_no_files_is_refused_by_name(folder, places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match="index.json has weight_map=.*, wanted"):
        OpenVLAOFT.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_git_lfs_pointer_is_called_that(folder, name):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 5\n")
    with pytest.raises(CheckpointError, match=f"{name}: found a git-lfs pointer.*git lfs pull"):
        OpenVLAOFT.from_pretrained(folder)


def test_quantised_weights_are_refused_and_not_read_as_numbers(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"projector.fc1.bias": tensors["projector.fc1.bias"].to(torch.int8)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="projector.fc1.bias is I8, wanted one of"):
        OpenVLAOFT.from_pretrained(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("num_attention_heads", 5, "not a multiple"), ("num_attention_heads", 0, "zero"), ("hidden_size", "wide", "expected int"), ("num_key_value_heads", 3, "equal groups"),
     ("num_hidden_layers", -1, "sizes above 0"), ("hidden_act", "sine", "an activation"), ("rope_theta", None, "float")],
)  # fmt: skip
def test_a_language_model_that_cannot_be_is_refused_as_the_configs(folder, key, value, said):
    rewrite(folder, "config.json", lambda config: config["text_config"].update({"num_attention_heads": 2} | {key: value}))
    with pytest.raises(ValueError, match=f"config.json: found .*{said}"):
        OpenVLAOFT.from_pretrained(folder)


def written(file, **tensors):
    save_file(tensors, file)
    return fingerprint.of_weights([file])


def test_a_fingerprint_is_of_names_shapes_dtypes_and_numbers(tmp_path):
    numbers = torch.arange(6.0)
    others = [{"b": numbers}, {"a": numbers.view(2, 3)}, {"a": numbers.double()}, {"a": numbers + (numbers == 3)}, {"a": numbers, "b": numbers + 0}]
    found = [written(tmp_path / "one", a=numbers), *(written(tmp_path / "other", **other) for other in others)]
    assert len(set(found)) == 6 and found[0] == written(tmp_path / "again", a=numbers.clone())


def test_a_fingerprint_sees_other_random_numbers_in_a_tensor_of_which_it_reads_pieces(tmp_path):
    first, second = (torch.randn(300, 300, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))  # 360 kB
    assert written(tmp_path / "first", a=first) != written(tmp_path / "second", a=second)
    half = torch.cat([first[:150], second[150:]])
    assert written(tmp_path / "half", a=half) not in (written(tmp_path / "first", a=first), written(tmp_path / "second", a=second))


def test_a_large_files_fingerprint_sees_its_first_and_its_last_byte(tmp_path):
    found = set()
    for place in (0, 2**25 - 1, None):
        content = bytearray(2**25)
        if place is not None:
            content[place] = 1
        (tmp_path / "file").write_bytes(content)
        found.add(fingerprint.of_file(tmp_path / "file"))
    assert len(found) == 3


def test_no_two_weight_files_are_open_at_once(tmp_path, monkeypatch):
    policy, opened, most = OpenVLAOFT.from_pretrained(TINY), [], []
    loading.write_folder(tmp_path, policy, {}, {}, shard=2_000_000)

    class Counted:
        def __init__(self, file, framework):
            self.inner = safe_open(file, framework)

        def __enter__(self):
            opened.append(self)
            most.append(len(opened))
            return self.inner.__enter__()

        def __exit__(self, *error):
            opened.remove(self)
            return self.inner.__exit__(*error)

    monkeypatch.setattr(loading, "safe_open", Counted)
    loading.load_weights(policy, loading.weight_files(tmp_path)[0])
    assert len(most) > 2 and max(most) == 1


def test_nothing_is_copied_from_a_folder_that_does_not_fit(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["projector.fc9.bias"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors")
    policy = OpenVLAOFT.from_pretrained(TINY)
    torch.nn.init.zeros_(policy.projector.fc1.weight)
    with pytest.raises(CheckpointError, match="fc9"):
        loading.load_weights(policy, (folder / "model.safetensors",))
    assert not policy.projector.fc1.weight.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_config_is_what_was_read_and_says_the_dtype_that_was_written(tmp_path, dtype):
    OpenVLAOFT.from_pretrained(TINY, dtype=dtype).save_pretrained(tmp_path)
    wanted = json.loads((TINY / "config.json").read_text()) | {"torch_dtype": dtype}
    assert json.loads((tmp_path / "config.json").read_text()) == wanted
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "model.safetensors").values()} == {f"torch.{dtype}"}
