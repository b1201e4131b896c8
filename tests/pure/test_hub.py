"""OpenVLA as a transformers model: the reference's numbers, and folders that go through it and come out the same."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

import policies.checkpoints.hub  # noqa: F401  registers the classes
from policies.checkpoints.fresh import create_checkpoint
from policies.checkpoints.loading import CheckpointError
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT
from policies.parts import decoder

TINY = Path(__file__).parents[1] / "fixtures" / "openvla_tiny"
STATISTICS = {"toy": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}}}
SMALL = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48}


def read(folder, **settings):
    return AutoModelForImageTextToText.from_pretrained(folder, **settings)


def tensors_of(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) if file.name != "expected.safetensors" for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def expected():
    return load_file(TINY / "expected.safetensors")


@pytest.fixture(scope="module")
def model():
    return read(TINY, dtype=torch.float32)


def prompt_and_tokens(expected):
    return torch.cat([expected["prompt_ids"], expected["openvla_greedy_tokens_full_vocab"]], dim=1)


@torch.no_grad()
def test_the_logits_of_each_step_equal_the_reference(model, expected):
    logits = model(input_ids=prompt_and_tokens(expected), pixel_values=expected["pixel_values"][:1]).logits
    assert logits.shape == (1, 27, 32064)
    torch.testing.assert_close(logits[:, 19:26, 31744:32000], expected["openvla_step_logits"], atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_the_next_labels(model, expected):
    ids = prompt_and_tokens(expected)
    labels = torch.where(torch.arange(27) < 20, -100, ids)
    found = model(input_ids=ids, pixel_values=expected["pixel_values"][:1], labels=labels)
    chosen = found.logits[0, 19:26].log_softmax(-1).gather(1, ids[0, 20:, None])
    torch.testing.assert_close(found.loss, -chosen.mean())


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_moves_the_logits_with_their_tokens(model, expected, side):
    ids, pixels = expected["prompt_ids"], expected["pixel_values"][:1]
    room = (3, 0) if side == "left" else (0, 3)
    padded, mask = torch.nn.functional.pad(ids, room, value=7), torch.nn.functional.pad(torch.ones_like(ids), room)
    found = model(input_ids=padded, pixel_values=pixels, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(found, model(input_ids=ids, pixel_values=pixels).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("given", [20, 19], ids=["with the space that ends a prompt", "without it"])
def test_the_predicted_action_is_the_references(model, expected, given):
    found = model.predict_action(expected["prompt_ids"][:, :given], expected["pixel_values"][:1], "libero_spatial")
    np.testing.assert_allclose(found, expected["openvla_action"], atol=1e-12)


def test_a_predicted_action_of_statistics_that_are_not_there_lists_what_is(model, expected):
    with pytest.raises(KeyError, match="libero_spatial_no_noops"):
        model.predict_action(expected["prompt_ids"], expected["pixel_values"][:1], "bridge")


def test_the_code_that_a_folder_names_is_not_run(tmp_path):
    for file in TINY.glob("*.json"):
        shutil.copy(file, tmp_path)
    shutil.copy(TINY / "model.safetensors", tmp_path)
    assert "configuration_prismatic" in (tmp_path / "config.json").read_text()
    for name in ("configuration_prismatic.py", "modeling_prismatic.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert AutoConfig.from_pretrained(tmp_path).text_config.hidden_size == 32
    assert isinstance(read(tmp_path), policies.checkpoints.hub.OpenVLAForActionPrediction)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("dtype", ["auto", torch.float32])
def test_the_rotary_frequencies_survive_the_meta_device(dtype):
    # 10000^(-2i/16) for heads of 16 channels
    found = read(TINY, dtype=dtype).language_model.model.rotary_emb.inv_freq
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, 10000.0 ** (-torch.arange(0, 16, 2) / 16))


def test_a_first_load_finds_the_librarys_attention_sound():
    decoder.require_bidirectional.cache_clear()
    assert read(TINY).dtype == torch.bfloat16


@pytest.mark.parametrize("size", ["5GB", "1MB"], ids=["one file", "shards"])
def test_a_saved_folder_has_the_names_shapes_dtypes_and_bits_that_were_read(tmp_path, size):
    read(TINY).save_pretrained(tmp_path, max_shard_size=size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (size == "1MB")
    found, wanted = tensors_of(tmp_path), load_file(TINY / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(found[name].dtype == torch.bfloat16 and torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_saved_config_keeps_every_key_that_was_read(tmp_path):
    read(TINY).save_pretrained(tmp_path)
    found, wanted = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, TINY))
    assert {key: found.get(key) for key in wanted} == wanted
    assert str(TINY) not in (tmp_path / "config.json").read_text()


def test_weights_read_in_float32_are_declared_float32_when_saved(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float32"
    assert read(tmp_path).dtype == torch.float32


def test_a_saved_folder_loads_as_a_policy_and_again_as_a_model(tmp_path, expected):
    read(TINY).save_pretrained(tmp_path, max_shard_size="1MB")
    policy, again = OpenVLA.from_pretrained(tmp_path), read(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        logits = policy.action_logits(expected["pixel_values"][:1], expected["prompt_ids"], expected["openvla_greedy_tokens_full_vocab"])
    torch.testing.assert_close(logits, expected["openvla_step_logits"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(again.predict_action(expected["prompt_ids"], expected["pixel_values"][:1]), expected["openvla_action"], atol=1e-12)


def test_a_fresh_folder_with_a_value_head_loads_as_a_model_and_keeps_its_tokenizer(tmp_path):
    create_checkpoint(tmp_path / "start", ["push the plate"], STATISTICS, sizes=SMALL)
    OpenVLAOFT.from_pretrained(tmp_path / "start", value_head=True).save_pretrained(tmp_path / "trained")
    loaded, info = read(tmp_path / "trained", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    loaded.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "start" / "tokenizer.json").read_bytes()


def test_a_change_of_the_config_is_saved(model, tmp_path):
    model.config.num_actions_chunk = 5
    model.save_pretrained(tmp_path)
    del model.config.num_actions_chunk
    assert AutoConfig.from_pretrained(tmp_path).num_actions_chunk == 5


def test_a_folder_without_a_tensor_is_refused_and_not_filled_with_random_numbers(tmp_path):
    shutil.copy(TINY / "config.json", tmp_path)
    save_file({name: tensor for name, tensor in load_file(TINY / "model.safetensors").items() if name != "projector.fc1.bias"}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing projector.fc1.bias"):
        read(tmp_path)


def copy_of_tiny(folder, **tensors):
    for file in TINY.glob("*.json"):
        shutil.copy(file, folder)
    save_file(load_file(TINY / "model.safetensors") | tensors, folder / "model.safetensors")
    return folder


def test_a_misshapen_tensor_is_refused_with_both_shapes(tmp_path):
    with pytest.raises(CheckpointError, match=r"misshapen projector.fc3.bias: found \(5,\), wanted \(32,\)"):
        read(copy_of_tiny(tmp_path, **{"projector.fc3.bias": torch.zeros(5)}))


def test_a_config_of_fewer_layers_than_the_weights_is_refused(tmp_path):
    copy_of_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"text_config": config["text_config"] | {"num_hidden_layers": 1}}))
    with pytest.raises(CheckpointError, match="9 tensors do not fit.*\n.*extra language_model.model.layers.1."):
        read(tmp_path)


def test_quantised_weights_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="projector.fc3.bias is I8"):
        read(copy_of_tiny(tmp_path, **{"projector.fc3.bias": torch.zeros(32, dtype=torch.int8)}))


@pytest.mark.parametrize("places", [[], {"a": 5}])
def test_an_index_that_names_no_files_is_refused(tmp_path, places):
    (copy_of_tiny(tmp_path) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match="wanted {tensor: name of a file beside it}"):
        read(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="found no folder .*nowhere"):
        policies.checkpoints.hub.OpenVLAForActionPrediction.from_pretrained(tmp_path / "nowhere")


@pytest.mark.parametrize("sizes", [("1MB", "5GB"), ("5GB", "1MB"), ("1MB", "2MB")], ids=["shards, then one file", "one file, then shards", "other shards"])
def test_a_folder_that_is_saved_over_holds_the_last_weights_alone(tmp_path, sizes):
    copy_of_tiny(tmp_path)
    for size in sizes:
        model = read(tmp_path)
        with torch.no_grad():
            model.projector.fc1.bias.add_(1)
        model.save_pretrained(tmp_path, max_shard_size=size)
    assert torch.equal(read(tmp_path).projector.fc1.bias, model.projector.fc1.bias)
    index = tmp_path / "model.safetensors.index.json"
    named = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    assert {file.name for file in tmp_path.glob("*.safetensors")} == named


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with every component: L1 head, state, FiLM and a spread."""
    statistics = {"toy": STATISTICS["toy"] | {"proprio": {"q01": [-1.0] * 3, "q99": [1.0] * 3}}}
    return create_checkpoint(tmp_path_factory.mktemp("l1"), ["push the plate"], statistics, sizes={**SMALL, "head": "l1", "state": True, "film": True})


def test_heads_and_film_are_said_to_be_unused_and_are_taken_along(whole, tmp_path, capsys):
    model = read(whole)
    said = capsys.readouterr().out
    model.save_pretrained(tmp_path)
    names = ["action_head--0_checkpoint.pt", "proprio_projector--0_checkpoint.pt", "vision_backbone--0_checkpoint.pt", "log_std.safetensors"]
    assert all(name in said and (tmp_path / name).read_bytes() == (whole / name).read_bytes() for name in names)
    found, wanted = (OpenVLAOFT.from_pretrained(folder).state_dict() for folder in (tmp_path, whole))
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_model_saved_in_its_own_folder_keeps_the_components(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "own")
    read(tmp_path / "own").save_pretrained(tmp_path / "own")
    assert OpenVLAOFT.from_pretrained(tmp_path / "own").vision_backbone.film


def test_components_that_are_gone_are_named_before_anything_is_written(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "own")
    model = read(tmp_path / "own")
    (tmp_path / "own" / "action_head--0_checkpoint.pt").unlink()
    with pytest.raises(CheckpointError, match="found no .*action_head--0_checkpoint.pt any more"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_components_of_another_model_are_named_where_a_model_is_saved_beside_them(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "own")
    read(TINY).save_pretrained(tmp_path / "own")
    assert "action_head--0_checkpoint.pt, proprio_projector--0_checkpoint.pt, vision_backbone--0_checkpoint.pt were there before" in capsys.readouterr().out


def test_a_folder_of_adapters_alone_names_what_reads_it(tmp_path):
    OpenVLAOFT.from_pretrained(TINY, lora={"rank": 2}).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="model.safetensors.*PeftModel"):
        read(tmp_path)
