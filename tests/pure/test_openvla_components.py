"""Component files beside a checkpoint, and what a policy is given: whole ones load and are written again alike, wrong ones are refused by name."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from envs.spec import ActionSpec, EnvSpec
from embodied.wiring.fit import FitError, check_fit
from policies.checkpoints import components
from policies.checkpoints.fresh import create_checkpoint
from policies.checkpoints.loading import CheckpointError
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT, OpenVLAOFTL1

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY, HEADS = FIXTURES / "openvla_tiny", FIXTURES / "openvla_tiny_heads"
STATISTICS = {"libero_goal": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7}, "proprio": {"q01": [-1.0] * 3, "q99": [1.0] * 3}}}
SIZES = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48, "head": "l1", "state": True, "cameras": ("agentview", "wrist")}
HEAD, PROPRIO = "action_head--150000_checkpoint.pt", "proprio_projector--150000_checkpoint.pt"


@pytest.fixture
def folder(tmp_path):
    """The reference's checkpoint with its component files, as they were published."""
    for file in (*(file for file in TINY.iterdir() if file.name != "expected.safetensors"), *HEADS.iterdir()):
        shutil.copy(file, tmp_path / file.name)
    return tmp_path


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return OpenVLAOFT.from_pretrained(create_checkpoint(tmp_path_factory.mktemp("toy"), ["push the plate"], STATISTICS, sizes=SIZES))


def observation(**changed):
    picture = np.zeros((2, 32, 32, 3), np.uint8)
    return {"images/agentview": picture, "images/wrist": picture, "state": np.zeros((2, 3), np.float32), "instruction": ["push the plate"] * 2, **changed}


def plain(file):
    return torch.load(file, weights_only=True)


def rewrite(file, change):
    tensors = plain(file)
    change(tensors)
    torch.save(tensors, file)


# --- files ----------------------------------------------------------------------------------------------------------------------------------


def test_a_published_folder_is_written_again_with_the_same_files_names_shapes_and_numbers(folder, tmp_path):
    OpenVLAOFT.from_pretrained(folder).save_pretrained(tmp_path / "again")
    for name in (HEAD, PROPRIO):
        found, wanted = plain(tmp_path / "again" / name), plain(folder / name)
        assert list(found) == list(wanted) and all(torch.equal(found[key], wanted[key]) for key in wanted)
    found, wanted = (load_file(where / "model.safetensors") for where in (tmp_path / "again", folder))
    assert {key: tensor.shape for key, tensor in found.items()} == {key: tensor.shape for key, tensor in wanted.items()}


def test_the_spread_is_saved_beside_the_references_files_and_comes_back(folder, tmp_path):
    policy = OpenVLAOFT.from_pretrained(folder, initial_log_std=-2.0)
    assert (policy.log_std == -2.0).all()
    with torch.no_grad():
        policy.log_std[3] = -0.5
    policy.save_pretrained(tmp_path / "again")
    again = OpenVLAOFT.from_pretrained(tmp_path / "again", initial_log_std=-9.0)
    assert torch.equal(again.log_std, policy.log_std)


def test_a_loaded_copy_acts_to_the_same_bits(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    noise = np.random.default_rng(0).random((2, policy.tokens))
    first, second = (made.act(observation(), noise) for made in (policy, OpenVLAOFT.from_pretrained(tmp_path)))
    assert torch.equal(first.choices, second.choices) and torch.equal(first.logprobs, second.logprobs)


def test_a_spread_of_another_size_is_refused_by_name(folder):
    save_file({"log_std": torch.zeros(3)}, folder / "log_std.safetensors")
    with pytest.raises(CheckpointError, match=r"log_std.safetensors: found \[3\], wanted \[7\]"):
        OpenVLAOFT.from_pretrained(folder)


def test_adapters_of_a_policy_with_every_component_come_back_to_the_same_bits(tmp_path):
    start = create_checkpoint(tmp_path / "start", ["push the plate"], STATISTICS, sizes={**SIZES, "film": True})
    policy = OpenVLAOFT.from_pretrained(start, lora={"rank": 2})
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.01)
    policy.save_pretrained(tmp_path / "saved")
    first, second, untouched = (made.act(observation(), None).choices for made in (policy, OpenVLAOFT.from_pretrained(tmp_path / "saved"), OpenVLAOFT.from_pretrained(start)))
    assert torch.equal(first, second) and not torch.equal(first, untouched)


def test_the_same_seed_makes_the_same_component_files(tmp_path):
    first, second = (create_checkpoint(tmp_path / name, ["push the plate"], STATISTICS, sizes={**SIZES, "film": True}) for name in "ab")
    files = [file.name for file in first.glob("*_checkpoint.pt")]
    assert len(files) == 3 and all((first / name).read_bytes() == (second / name).read_bytes() for name in files)


@pytest.mark.parametrize("steps, newest", [(("9", "10", "100"), "100"), (("5000", "latest"), "latest")])
def test_the_newest_of_several_files_is_read(tmp_path, steps, newest):
    for step in steps:
        (tmp_path / f"action_head--{step}_checkpoint.pt").touch()
    assert components.find(tmp_path) == {"action_head": tmp_path / f"action_head--{newest}_checkpoint.pt"}


class Trap:
    """A pickle of it makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_that_wants_to_run_code_is_refused_by_name_and_not_run(folder, tmp_path):
    torch.save({"module.model.fc1.weight": Trap(tmp_path / "ran")}, folder / HEAD)
    with pytest.raises(CheckpointError, match=rf"{HEAD}.*could run code.*posix.mkdir"):
        OpenVLAOFT.from_pretrained(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_half_a_file_is_refused_by_name_and_as_damage(folder, legacy):
    torch.save(plain(folder / HEAD), folder / HEAD, _use_new_zipfile_serialization=not legacy)
    content = (folder / HEAD).read_bytes()
    (folder / HEAD).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=f"{HEAD} is not whole"):
        OpenVLAOFT.from_pretrained(folder)


@pytest.mark.parametrize("content", [bytes(range(256)), pickle.dumps({"a": 1}), b"hello\n", bytes(100)], ids=["random", "a pickle", "text", "zeros"])
def test_what_torch_did_not_write_is_called_that_and_not_accused(folder, content):
    (folder / HEAD).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{HEAD} is no file as torch.save writes it") as error:
        OpenVLAOFT.from_pretrained(folder)
    assert "run code" not in str(error.value)


def test_a_component_file_that_git_lfs_has_not_fetched_is_called_that(folder):
    (folder / HEAD).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 5\n")
    with pytest.raises(CheckpointError, match=f"{HEAD}: found a git-lfs pointer.*git lfs pull"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_component_file_that_is_a_folder_is_called_that(folder):
    (folder / HEAD).unlink()
    (folder / HEAD).mkdir()
    with pytest.raises(CheckpointError, match=f"{HEAD}: found a folder"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_state_dict_with_numbers_for_names_is_refused_by_name(folder):
    torch.save({0: torch.zeros(3)}, folder / HEAD)
    with pytest.raises(CheckpointError, match=f"{HEAD}.*state dict"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_quantised_component_is_refused_by_name(folder):
    rewrite(folder / HEAD, lambda tensors: tensors.update({"module.model.fc2.bias": torch.zeros(7, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=f"{HEAD}: found module.model.fc2.bias is torch.int8"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_discrete_policy_saved_over_an_l1_folder_comes_back_discrete(folder):
    OpenVLAOFT.from_pretrained(TINY).save_pretrained(folder)
    assert type(OpenVLAOFT.from_pretrained(folder)) is OpenVLAOFT


def test_a_policy_without_state_and_film_saved_over_one_with_them_comes_back_without(tmp_path):
    whole = create_checkpoint(tmp_path / "film", ["push the plate"], STATISTICS, sizes={**SIZES, "film": True})
    bare = create_checkpoint(tmp_path / "bare", ["push the plate"], STATISTICS, sizes={**SIZES, "state": False})
    OpenVLAOFT.from_pretrained(bare).save_pretrained(whole)
    again = OpenVLAOFT.from_pretrained(whole)
    assert again.proprio_projector is None and not again.vision_backbone.film


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half"])
def test_a_torn_component_file_is_refused_by_name(folder, content):
    (folder / PROPRIO).write_bytes(content)
    with pytest.raises(CheckpointError, match=PROPRIO):
        OpenVLAOFT.from_pretrained(folder)


def test_a_component_file_that_holds_no_state_dict_is_refused_by_name(folder):
    torch.save([torch.zeros(3)], folder / HEAD)
    with pytest.raises(CheckpointError, match=f"{HEAD}.*state dict"):
        OpenVLAOFT.from_pretrained(folder)


def test_missing_extra_and_misshapen_tensors_of_a_component_are_all_named_at_once(folder):
    def change(tensors):
        tensors["module.extra"] = tensors.pop("module.model.fc1.bias")
        tensors["module.model.fc2.bias"] = torch.zeros(9)

    rewrite(folder / HEAD, change)
    with pytest.raises(CheckpointError) as error:
        OpenVLAOFT.from_pretrained(folder)
    for said in (HEAD, "missing model.fc1.bias (32,)", "extra extra (32,)", "misshapen model.fc2.bias: found (9,), wanted (7,)"):
        assert said in str(error.value)


def test_a_head_that_is_asked_for_and_not_there_is_named(folder):
    (folder / HEAD).unlink()
    with pytest.raises(CheckpointError, match="action_head"):
        OpenVLAOFT.from_pretrained(folder, head="l1")
    assert not isinstance(OpenVLAOFT.from_pretrained(folder), OpenVLAOFTL1)


@pytest.mark.parametrize("kind, head", [(OpenVLAOFT, "diffusion"), (OpenVLA, "l1")])
def test_a_head_that_the_policy_does_not_know_is_refused(folder, kind, head):
    with pytest.raises(ValueError, match=f"policy.head: found '{head}'"):
        kind.from_pretrained(folder, head=head)


def test_proprioception_that_is_asked_for_and_not_there_is_named(folder):
    (folder / PROPRIO).unlink()
    assert OpenVLAOFT.from_pretrained(folder).spec.state is None
    with pytest.raises(CheckpointError, match="proprio_projector"):
        OpenVLAOFT.from_pretrained(folder, proprio=True)


def test_a_projector_of_another_size_than_the_statistics_is_refused(folder):
    rewrite(folder / PROPRIO, lambda tensors: tensors.update({"module.fc1.weight": torch.zeros(32, 6)}))
    with pytest.raises(CheckpointError, match="6 numbers, wanted 8"):
        OpenVLAOFT.from_pretrained(folder)


def test_a_projector_without_proprio_statistics_is_refused_and_never_reads_raw_numbers(folder):
    statistics = json.loads((folder / "dataset_statistics.json").read_text())
    del statistics["libero_spatial_no_noops"]["proprio"]
    (folder / "dataset_statistics.json").write_text(json.dumps(statistics))
    with pytest.raises(ValueError, match="proprio statistics"):
        OpenVLAOFT.from_pretrained(folder)


def test_an_unknown_statistics_key_is_refused_with_the_ones_there_are(folder):
    with pytest.raises(KeyError, match="libero_spatial_no_noops"):
        OpenVLAOFT.from_pretrained(folder, unnorm_key="libero_goal")


# --- what it is given -----------------------------------------------------------------------------------------------------------------------


def test_another_count_of_cameras_than_config_json_says_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_images_in_input": 2}))
    assert OpenVLAOFT.from_pretrained(folder).spec.cameras == ("agentview", "wrist")
    with pytest.raises(ValueError, match=r"policy.cameras: found \['agentview'\], wanted 2"):
        OpenVLAOFT.from_pretrained(folder, cameras=["agentview"])


@pytest.mark.parametrize("chunk", [0, -1, 2.5])
def test_a_chunk_that_is_no_whole_number_above_0_is_refused(folder, chunk):
    with pytest.raises(ValueError, match="policy.chunk"):
        OpenVLAOFT.from_pretrained(folder, chunk=chunk)


def test_a_chunk_that_contradicts_config_json_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_actions_chunk": 8}))
    with pytest.raises(ValueError, match="found 5, wanted 8"):
        OpenVLAOFT.from_pretrained(folder, chunk=5)


def test_an_env_without_a_camera_or_with_another_state_does_not_fit(policy):
    action = ActionSpec("continuous", 7, gripper="open_-1_close_+1")
    check_fit(EnvSpec("env", action, {"agentview": (32, 32), "wrist": (32, 32)}, state=3, language=True), policy.spec)
    with pytest.raises(FitError, match="looks at wrist.*\n.*reads a state of 3, the env gives 8"):
        check_fit(EnvSpec("env", action, {"agentview": (32, 32)}, state=8, language=True), policy.spec)


def test_a_camera_that_the_observation_lacks_is_named(policy):
    observed = observation()
    del observed["images/wrist"]
    with pytest.raises(ValueError, match="wanted 'images/wrist'"):
        policy.prepare(observed)


@pytest.mark.parametrize("picture", [np.zeros((2, 32, 32, 3), np.float32), np.zeros((2, 3, 32, 32), np.uint8), np.zeros((32, 32, 3), np.uint8)], ids=["float", "channels first", "no batch"])
def test_a_picture_that_is_not_uint8_rows_of_pixels_is_refused_by_name(policy, picture):
    with pytest.raises(ValueError, match=r"'images/wrist': found .* wanted uint8 \[b, H, W, 3\]"):
        policy.prepare(observation(**{"images/wrist": picture}))


def test_inputs_of_another_count_of_cameras_are_refused(policy):
    inputs = policy.prepare(observation())
    inputs["pixels"] = inputs["pixels"][:, :1]
    with pytest.raises(ValueError, match="found 1 cameras, wanted 2"):
        policy.evaluate(inputs, torch.zeros(2, policy.tokens))


def test_a_state_of_another_size_is_refused_by_name(policy):
    with pytest.raises(ValueError, match=r"'state': found shape \[2, 8\], wanted \[b, 3\]"):
        policy.prepare(observation(state=np.zeros((2, 8))))


def test_a_state_that_the_observation_lacks_is_named(policy):
    observed = observation()
    del observed["state"]
    with pytest.raises(ValueError, match="wanted 'state'"):
        policy.prepare(observed)


def test_a_network_with_a_projector_does_not_run_without_a_state(policy):
    inputs = policy.prepare(observation())
    del inputs["state"]
    with pytest.raises(ValueError, match="found no state, wanted one"):
        policy.evaluate(inputs, torch.zeros(2, policy.tokens))
