import json
import pickle

import numpy as np
import pytest

from envs.record import INDEX, DemonstrationError, DemonstrationWriter, read
from envs.toy import ToyEnv

SPEC = ToyEnv(action="continuous", dims=2, gripper="open_1_close_0", tasks=(0, 2)).env_spec


def episode(steps: int, task: int = 0, success: bool = True, **more) -> dict:
    generator = np.random.default_rng(steps)
    return {
        "images/front": generator.integers(0, 256, (steps, 32, 32, 3), np.uint8),
        "state": generator.random((steps, 6)),
        "actions": generator.random((steps, 2)),
        "instruction": f"task {task}",
        "task": task,
        "init_state": steps,
        "seed": None,
        "success": success,
        **more,
    }


def recorded(folder, *episodes):
    writer = DemonstrationWriter(folder, SPEC, "expert")
    for each in episodes:
        writer.write(each)
    return folder


def test_what_is_written_is_read_back_bit_for_bit(tmp_path):
    extra = {"executed": np.ones((3, 2), np.float32), "rewards": np.array([0, 0, 1], np.float32)}
    found = read(recorded(tmp_path / "demos", episode(5), episode(3, task=2, **extra), episode(4)))
    assert (len(found), found.lengths, found.instructions, found.policy) == (3, [5, 3, 4], ["task 0", "task 2"], "expert")
    assert found.env_spec == SPEC
    line = found.episodes[1]
    assert (line.task, line.init_state, line.seed, line.success) == (2, 3, None, True)
    arrays = found.load(1)
    assert set(arrays) == {"images/front", "state", "actions", "executed", "rewards"}
    assert np.array_equal(arrays["images/front"], episode(3)["images/front"])
    assert np.array_equal(arrays["actions"], episode(3)["actions"].astype(np.float32))
    assert arrays["rewards"].tolist() == [0, 0, 1]


def test_failed_episodes_are_left_out_unless_wanted(tmp_path):
    writer = DemonstrationWriter(tmp_path / "some", SPEC, "expert")
    assert [writer.write(episode(2, success=False)), writer.write(episode(3))] == [False, True]
    assert (writer.left_out, read(tmp_path / "some").lengths) == (1, [3])
    every = DemonstrationWriter(tmp_path / "all", SPEC, "expert", only_successes=False)
    every.write(episode(2, success=False))
    assert [line.success for line in read(tmp_path / "all").episodes] == [False]


def test_an_interrupted_recording_reads_up_to_its_last_whole_episode(tmp_path):
    writer = DemonstrationWriter(tmp_path, SPEC, "expert")
    assert len(read(tmp_path)) == 0
    writer.write(episode(2))
    (tmp_path / ".episode_000001.npz.part").write_bytes(b"half")  # what a kill in mid-write leaves
    (tmp_path / "episode_000001.npz").write_bytes(b"whole, but the index was not reached")
    assert read(tmp_path).lengths == [2]
    read(tmp_path).load(0)


def test_a_discrete_env_keeps_whole_numbers(tmp_path):
    writer = DemonstrationWriter(tmp_path, ToyEnv().env_spec, "expert")
    writer.write(episode(2, actions=np.array([[3], [1]])))
    actions = read(tmp_path).load(0)["actions"]
    assert (actions.dtype, actions.tolist()) == (np.int64, [[3], [1]])


def test_a_folder_that_holds_demonstrations_is_not_written_over(tmp_path):
    recorded(tmp_path, episode(2))
    with pytest.raises(FileExistsError, match="another folder"):
        DemonstrationWriter(tmp_path, SPEC, "expert")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"images/front": np.zeros((2, 32, 32, 3), np.float32)}, "images/front is float32"),
        ({"images/front": np.zeros((2, 16, 16, 3), np.uint8)}, r"wanted uint8 \[2, 32, 32, 3\]"),
        ({"actions": np.zeros((2, 3))}, r"actions is float32 \[2, 3\], wanted float32 \[2, 2\]"),
        ({"rewards": np.zeros(3)}, r"rewards is float32 \[3\], wanted float32 \[2\]"),
        ({"state": None}, r"lacks \['state'\]"),
    ],
)
def test_an_episode_that_does_not_fit_the_spec_is_refused_and_leaves_no_file(tmp_path, change, says):
    writer = DemonstrationWriter(tmp_path, SPEC, "expert")
    with pytest.raises(DemonstrationError, match=says):
        writer.write(episode(2, **change))
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle ran",))


def test_a_file_that_carries_a_pickle_is_refused_by_name_and_not_run(tmp_path):
    recorded(tmp_path, episode(2))
    whole = read(tmp_path).load(0)
    np.savez(tmp_path / "episode_000000.npz", **{**whole, "actions": np.array([Bomb()], object)})
    with pytest.raises(DemonstrationError, match="episode_000000.npz"):
        read(tmp_path).load(0)


def test_a_bare_pickle_in_place_of_an_episode_is_refused_by_name(tmp_path):
    recorded(tmp_path, episode(2))
    (tmp_path / "episode_000000.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DemonstrationError, match="episode_000000.npz"):
        read(tmp_path).load(0)


def test_a_truncated_or_flipped_file_is_refused_by_name(tmp_path):
    recorded(tmp_path, episode(2))
    path = tmp_path / "episode_000000.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DemonstrationError, match="episode_000000.npz"):
        read(tmp_path).load(0)
    path.write_bytes(whole[:200] + bytes(255 - byte for byte in whole[200:240]) + whole[240:])
    with pytest.raises(DemonstrationError, match="episode_000000.npz"):
        read(tmp_path).load(0)


def test_a_missing_file_is_named(tmp_path):
    recorded(tmp_path, episode(2))
    (tmp_path / "episode_000000.npz").unlink()
    with pytest.raises(DemonstrationError, match="episode_000000.npz is missing"):
        read(tmp_path).load(0)


@pytest.mark.parametrize(
    "index, says",
    [
        (None, f"has no {INDEX}"),
        ("{", "not whole JSON"),
        ("[]", "not an index"),
        ('{"format": 99}', "format 99, wanted 1"),
        ('{"format": 1, "episodes": [{"file": "a"}]}', "not an index"),
    ],
)
def test_a_folder_without_a_sound_index_is_refused(tmp_path, index, says):
    if index is not None:
        (tmp_path / INDEX).write_text(index)
    with pytest.raises(DemonstrationError, match=says):
        read(tmp_path)


def test_an_index_that_points_outside_its_folder_is_refused(tmp_path):
    recorded(tmp_path, episode(2))
    index = json.loads((tmp_path / INDEX).read_text())
    index["episodes"][0]["file"] = "../elsewhere.npz"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(DemonstrationError, match="outside its folder"):
        read(tmp_path)


def test_a_file_in_place_of_a_folder_is_refused_by_name(tmp_path):
    (tmp_path / "some.jsonl").write_text("{}")
    with pytest.raises(DemonstrationError, match="some.jsonl has no demonstrations.json"):
        read(tmp_path / "some.jsonl")
