"""Put-on-plate on the simulator: what an episode builds and says, when it is a success, what disturbs it, and one's own assets in place of the stand-ins."""

import importlib.util

import numpy as np
import pytest
import torch

from envs.maniskill import ManiSkillEnv, PutOnPlateEnv, tasks, vulkan
from envs.maniskill.put_on_plate.splits import SPLITS, drawn
from tests.contract.plate_folder import plate_folder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mani_skill") is None, reason="no mani_skill here: pip install 'm2flow[maniskill]'")
STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)  # the hand stays where it is, open


@pytest.fixture(scope="module")
def env():
    made = PutOnPlateEnv(split="train", cameras=(), privileged=True)
    yield made
    made.close()


def inner(env):
    return env._simulator._env


def seen(observation) -> dict[str, list[float]]:
    return {name: observation["privileged"][start:stop].tolist() for name, (start, stop) in tasks.privileged_layout().items()}


def put(env, offset) -> None:
    """Moves the object that is meant to the plate's middle and `offset` metres on."""
    from mani_skill.utils.structs.pose import Pose

    task = inner(env)
    raw = task.chosen_object.pose.raw_pose.clone()
    raw[0, :3] = task.chosen_plate.pose.p[0] + torch.tensor(offset)
    task._objects[task._episodes[0].object].set_pose(Pose.create(raw))


def succeeds_within(env, steps: int) -> bool:
    for _ in range(steps):
        *_, terminated, _, info = env.step(STILL)
        if terminated:
            break
    return info["success"]


def test_an_episode_gives_its_own_text_and_keeps_the_declared_spaces(env):
    spec = env.env_spec
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation) and info["success"] is False
    assert (spec.state, spec.horizon, spec.language, spec.privileged) == (45, 80, True, 30)
    told = {env.reset(seed=seed)[0]["instruction"] for seed in range(6)}
    assert len(told) > 3 and told <= set(spec.instructions)


def test_the_protocol_names_the_split_the_stand_ins_the_budget_and_what_success_is(env):
    protocol = env.env_spec.protocol
    assert (protocol["split"], protocol["objects"], protocol["budget"]) == ("train", "stand-ins (primitives)", 80)
    assert protocol["split_in_literature"] == "PutOnPlateInScene25Main-v3, train" and "0.03 N" in protocol["success_is"]


@pytest.mark.slow
def test_the_table_says_of_the_task_what_the_simulator_says():
    from envs.maniskill.simulator import measured

    said, found = tasks.with_panda(tasks.OWN["PutOnPlateStandIn-v1"], "panda", "pd_ee_delta_pose"), measured("PutOnPlateStandIn-v1", "pd_ee_delta_pose", "panda")
    assert (found.budget, found.state, found.robot_state, found.action, found.speaks) == (said.budget, said.state, said.robot_state, said.action, said.speaks)


def test_a_given_instruction_takes_the_place_of_each_episodes_own():
    made = PutOnPlateEnv(split="semantics/object", cameras=(), instruction="do it")
    assert [made.reset(seed=seed)[0]["instruction"] for seed in (0, 1)] == ["do it", "do it"]
    made.close()


def test_object_and_plate_lie_where_the_seed_says_and_all_others_far_away(env):
    observation, _ = env.reset(seed=5)
    found, episode = seen(observation), drawn(SPLITS["train"], 5)
    assert found["object"][:2] == pytest.approx(episode.object_at) and found["second"][:2] == pytest.approx(episode.plate_at)
    away = [body.pose.p[0] for number, body in inner(env)._objects.items() if number != episode.object]
    assert len(away) == 15 and min(float(place[0]) for place in away) > 5


def test_an_episode_is_the_same_to_the_bit_whatever_ran_before_it(env):
    actions = np.random.default_rng(3).uniform(-1, 1, (12, 7)).astype(np.float32)

    def episode(seed):
        first, _ = env.reset(seed=seed)
        return first, env.step_chunk(actions)[0]

    once = episode(9)
    episode(10)
    assert all(np.array_equal(a["state"], b["state"]) and a["instruction"] == b["instruction"] for a, b in zip(once, episode(9)))


@pytest.mark.parametrize("name", ["semantics/multi_object", pytest.param("semantics/multi_plate", marks=pytest.mark.slow)])
def test_a_second_thing_lies_at_its_place(name):
    made = PutOnPlateEnv(split=name, cameras=(), privileged=True)
    made.reset(seed=1)
    task, episode = inner(made), drawn(SPLITS[name], 1)
    second = (task._objects if SPLITS[name].second == "object" else task._plates)[episode.second]
    assert second.pose.p[0, :2].tolist() == pytest.approx(episode.third_at)
    made.close()


def test_an_object_that_comes_to_rest_on_the_plate_is_a_success(env):
    env.reset(seed=0)
    put(env, (0.0, 0.0, 0.035))
    assert succeeds_within(env, 10)


def test_an_object_beside_the_plate_is_no_success(env):
    env.reset(seed=0)
    put(env, (0.0, 0.105, 0.02))
    assert not succeeds_within(env, 10)


def test_an_object_that_is_held_above_the_plate_is_no_success_until_it_lies_there(env):
    env.reset(seed=0)
    held = inner(env)._objects[inner(env)._episodes[0].object]
    put(env, (0.0, 0.0, 0.045))
    held.set_disable_gravity(True)
    above = succeeds_within(env, 5)
    held.set_disable_gravity(False)
    assert (above, succeeds_within(env, 10)) == (False, True)


# Seed 0 is the green brick, half its height 0.0171, on the round plate: half its side 0.066, half its height 0.008.
@pytest.mark.parametrize(
    ("offset", "newtons", "success"),
    [
        ((0.0755, 0, 0.02), 1.0, True), ((0.0765, 0, 0.02), 1.0, False),  # 0.066 + 0.01 in the plane
        ((0, 0, 0.0745), 1.0, True), ((0, 0, 0.0756), 1.0, False),  # 0.008 + 0.0171 + 0.05 in height
        ((0, 0, -0.001), 1.0, False), ((0, 0, 0.02), 0.04, True), ((0, 0, 0.02), 0.02, False),
    ],
)  # fmt: skip
def test_the_bounds_of_success_are_the_literatures(env, monkeypatch, offset, newtons, success):
    env.reset(seed=0)
    put(env, offset)
    task = inner(env)
    monkeypatch.setattr(task.scene, "get_pairwise_contact_forces", lambda *bodies: torch.tensor([[0.0, 0.0, newtons]]))
    assert task.get_language_instruction() == ["put green brick on plate"] and task.evaluate()["success"].tolist() == [success]


def test_a_moved_object_jumps_after_five_steps_and_not_before():
    made = PutOnPlateEnv(split="execution/moved", cameras=(), privileged=True)
    made.reset(seed=2)
    episode, places = drawn(SPLITS["execution/moved"], 2), []
    for _ in range(6):
        places.append(seen(made.step(STILL)[0])["object"][:2])
    made.close()
    assert all(place == pytest.approx(episode.object_at, abs=1e-3) for place in places[:4]) and all(place == pytest.approx(episode.third_at, abs=1e-3) for place in places[4:])


def test_another_robot_pose_is_that_of_training_with_the_joints_bent(env):
    joints = slice(0, 9)  # of the state
    usual = env.reset(seed=4)[0]["state"][joints]
    made = PutOnPlateEnv(split="execution/robot_pose", cameras=())
    bent = made.reset(seed=4)[0]["state"][joints]
    made.close()
    assert (bent - usual).tolist() == pytest.approx([*drawn(SPLITS["execution/robot_pose"], 4).joints, 0, 0], abs=1e-6)


def test_ones_own_assets_take_the_place_of_the_stand_ins(tmp_path):
    made = PutOnPlateEnv(split="test", assets=str(plate_folder(tmp_path)), cameras=(), privileged=True)
    observation, _ = made.reset(seed=0)
    episode = drawn(SPLITS["test"], 0)
    assert observation["instruction"] == f"put more_carrot number {episode.object} on more_plate number 0" and made.env_spec.protocol["objects"] == str(tmp_path)
    assert seen(observation)["object"] == pytest.approx([*episode.object_at, 0.02]) and seen(observation)["goal"][2] == pytest.approx(0.03)  # 1 cm of plate, half of 4 cm
    put(made, (0.0, 0.0, 0.03))
    assert succeeds_within(made, 10)
    made.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PutOnPlateEnv(split="semantic/object"), "did you mean semantics/object\\?, wanted one of train"),
        (lambda: PutOnPlateEnv(assets="/nowhere"), "found no folder /nowhere"),
        (lambda: ManiSkillEnv("PickCube-v1", cameras=(), robot="panda", control_mode="pd_joint_pos", arguments={"colour": "red"}), "colour"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def shown(split: str, **settings) -> np.ndarray:
    made = PutOnPlateEnv(split=split, cameras=("base_camera",), resolution=64, **settings)
    picture = made.reset(seed=0)[0]["images/base_camera"].astype(int)
    made.close()
    return picture


@pytest.mark.slow
def test_a_split_of_vision_changes_what_it_says_of_the_picture():
    if not vulkan.found():
        pytest.skip(f"no Vulkan device: {vulkan.MEND}")
    train = shown("train")
    differ = {name: (np.abs(shown(name) - train).max(-1) > 0).mean() for name in ("vision/table", "vision/texture05", "vision/whole05")}
    assert differ["vision/table"] > 0.5 and 0.03 < differ["vision/texture05"] < 0.4 and differ["vision/whole05"] > 0.9


@pytest.mark.slow
def test_ones_own_table_is_seen_behind_robot_and_things(tmp_path):
    if not vulkan.found():
        pytest.skip(f"no Vulkan device: {vulkan.MEND}")
    picture = shown("train", assets=str(plate_folder(tmp_path)))
    table = 10 * drawn(SPLITS["train"], 0).table
    assert 0.5 < (picture == table).all(-1).mean() < 0.97
