"""What the ManiSkill adapter knows without a simulator: its table, its texts, and that env, expert, doctor and pins say the same."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from embodied import doctor
from envs.maniskill import ManiSkillEnv, env, tasks, vulkan
from policies.experts import maniskill as expert

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(monkeypatch):
    """Versions as if ManiSkill were there: a task of the table is described without it."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.0.1")


def test_env_and_expert_number_the_poses_and_the_tasks_alike():
    assert tasks.privileged_layout() == expert.LAYOUT
    numbered = [solver.__name__.replace("_", "") for solver in expert.SOLVERS]
    assert numbered == [id.removesuffix("-v1").lower() for id in tasks.EXPERT_TASKS]


def test_every_task_of_the_table_has_a_text_a_budget_and_sizes():
    for id, task in tasks.TASKS.items():
        assert task.instruction and task.budget >= 50 and task.state > 25 <= task.robot_state, id


def test_the_spec_of_a_task_of_the_table_needs_no_simulator(installed):
    spec = ManiSkillEnv("StackCube-v1", cameras=(), privileged=True).env_spec
    assert (spec.state, spec.horizon, spec.action.dims, spec.action.gripper) == (48, 50, 7, "open_-1_close_+1")
    assert (spec.privileged, spec.init_states, spec.language) == (30, None, True)
    assert spec.protocol["mani_skill"] == "3.0.1" and spec.protocol["fixed_horizon"] is False


def test_constructing_imports_no_simulator():
    program = (
        "import importlib.metadata, sys; importlib.metadata.version = lambda name: '3.0.1'\n"
        "from envs.maniskill import ManiSkillEnv; ManiSkillEnv('PushCube-v1', cameras=()).close(); print('sapien' in sys.modules, 'mani_skill' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_pictures_bring_the_robots_own_state_and_the_wrist_its_robot(installed, monkeypatch):
    monkeypatch.setattr(vulkan, "require", lambda: None)
    spec = ManiSkillEnv("PickCube-v1", cameras=("agentview", "wrist"), resolution=64).env_spec
    assert (spec.state, spec.images) == (29, {"agentview": (64, 64), "wrist": (64, 64)})
    assert spec.protocol["robot"] == "panda_wristcam"


def test_a_policy_on_the_state_gets_the_same_state_before_and_after_it_is_known(installed):
    config = yaml.safe_load((ROOT / "configs" / "env" / "maniskill.yaml").read_text())
    arguments = {key: value for key, value in config.items() if not key.startswith("_")}
    assert ManiSkillEnv(**arguments).env_spec.state == ManiSkillEnv(**arguments | {"cameras": []}).env_spec.state == 42


def test_without_mani_skill_the_command_that_installs_it_is_named(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(ImportError, match=r"pip install 'm2flow\[maniskill\]'"):
        ManiSkillEnv()


def test_without_a_vulkan_device_cameras_are_refused_and_state_is_not(installed, monkeypatch):
    monkeypatch.setattr(vulkan, "found", lambda: False)
    with pytest.raises(RuntimeError, match="mesa-vulkan-drivers.*env.cameras="):
        ManiSkillEnv("PushCube-v1", cameras=("base_camera",))
    assert ManiSkillEnv("PushCube-v1", cameras=()).env_spec.images == {}


def test_a_task_without_a_text_wants_one_only_where_there_are_pictures():
    mute = tasks.Task(None, 50, 30, 25)
    with pytest.raises(ValueError, match="env.instruction="):
        tasks.instruction_of("PegInsertionSide-v1", mute, None, shown=True)
    assert tasks.instruction_of("PegInsertionSide-v1", mute, None, shown=False) == ""
    assert tasks.instruction_of("PegInsertionSide-v1", mute, "insert the peg", shown=True) == "insert the peg"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "shaped"}, "wanted one of sparse, normalized_dense, dense"),
        ({"state": "poses"}, "wanted one of auto, full, robot"),
        ({"horizon": 0}, "found horizon 0, wanted at least 1"),
        ({"cameras": ("front",)}, "found 'front', wanted any of base_camera"),
        ({"id": "RollBall-v1", "privileged": True}, "no scripted expert knows this task.*PickCube-v1"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_choices(installed, settings, message):
    with pytest.raises(ValueError, match=message):
        ManiSkillEnv(**{"id": "PickCube-v1", "cameras": ()} | settings)


def test_doctor_and_env_are_for_the_pinned_version():
    assert doctor.MANISKILL == env.TESTED
    assert f"mani-skill=={env.TESTED}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert f'"mani_skill=={env.TESTED}"' in (ROOT / "pyproject.toml").read_text()


def scene(number: int, **parts) -> np.ndarray:
    """A privileged vector: hand over the origin pointing down, fingers open, all bodies unturned at the origin unless given."""
    values = {"task": [number], "tcp": [0, 0, 0.2], "tcp_quat": [0, 1, 0, 0], "opening": [0.08], "object_quat": [1, 0, 0, 0]} | parts
    found = np.zeros(30)
    for name, value in values.items():
        found[slice(*expert.LAYOUT[name])] = value
    return found


def test_the_expert_asks_for_its_gain_times_the_distance_and_opens_with_minus_one():
    action = expert.action_of(scene(0, tcp=[0, 0, 0.05], object=[0, 0, 0.02]))
    assert action.tolist() == pytest.approx([0, 0, -0.03 * expert.GAIN, 0, 0, 0, -1])


def test_the_expert_closes_on_a_cube_between_its_fingers_and_carries_it_to_the_goal():
    at = {"tcp": [0, 0, 0.02], "object": [0, 0, 0.02], "goal": [0, 0, 0.07]}
    assert expert.action_of(scene(0, **at)).tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 1])
    assert expert.action_of(scene(0, **at, opening=[0.04])).tolist() == pytest.approx([0, 0, 0.05 * expert.GAIN, 0, 0, 0, 1])


def test_the_expert_lets_go_of_a_cube_that_lies_where_it_shall():
    action = expert.action_of(scene(2, tcp=[0, 0, 0.06], object=[0, 0, 0.06], goal=[0, 0, 0.02], opening=[0.04]))
    assert action.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, -1])


def test_the_expert_turns_to_the_nearest_side_of_a_cube():
    turned = np.radians(80)  # ten degrees past a side: the hand turns back by ten, which is plus, as the action's sign is against the yaw's
    quat = [np.cos(turned / 2), 0, 0, np.sin(turned / 2)]
    assert expert.action_of(scene(0, object=[0, 0, 0.02], object_quat=quat))[5] == pytest.approx(min(1.0, np.radians(10) * 10))


def test_only_the_executed_motion_is_disturbed_and_only_in_the_chosen_share():
    seen = {"privileged": np.stack([scene(0, object=[0, 0, 0.02])] * 4), "episode": np.arange(4)}
    noise = np.full((4, 7), 0.9)
    chunk = expert.ManiSkillExpert(disturbance=0.1, disturbed_share=1.0).act(seen, noise)
    assert np.allclose(chunk.actions[:, 0, :2] - chunk.labels[:, 0, :2], 0.1 * 1.2815516)  # the normal's 90 % point
    assert np.array_equal(chunk.actions[:, 0, 3:], chunk.labels[:, 0, 3:])
    assert np.array_equal(expert.ManiSkillExpert(disturbance=0.1, disturbed_share=0.0).act(seen, noise).actions, chunk.labels)


def test_a_task_that_the_expert_does_not_know_is_refused():
    with pytest.raises(ValueError, match="found task number 7, wanted 0 to 6"):
        expert.action_of(scene(7))
