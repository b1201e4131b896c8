"""What makes ManiSkill quicker here changes no bit: controllers, poses and grasps without tensors, and shader packs without their table of reflections."""

import importlib.util

import numpy as np
import pytest
import torch

from envs.maniskill import ManiSkillEnv, tasks, vulkan

if importlib.util.find_spec("mani_skill") is None:
    pytest.skip("no mani_skill here: pip install 'm2flow[maniskill]'", allow_module_level=True)

from envs.maniskill import simulator  # noqa: E402  before what imports mani_skill itself
from envs.maniskill import shaders, stepping  # noqa: E402
from mani_skill.utils.geometry import rotation_conversions  # noqa: E402
from mani_skill.utils.structs import Pose  # noqa: E402

STEPS = 50
SLOW = [id for id in tasks.TASKS if id != "PushCube-v1"]
PAIRS = [("PushCube-v1", "pd_ee_delta_pose"), *((id, "pd_ee_delta_pose") for id in SLOW), *(("PickCube-v1", mode) for mode in ("pd_ee_delta_pos", "pd_joint_delta_pos"))]


def scene(id: str, mode: str = "pd_ee_delta_pose", **settings) -> simulator.Scene:
    given = dict(robot="panda", reward="normalized_dense", cameras=(), resolution=128, shader="default", full_state=True, show_goal=True)
    return simulator.Scene(id, mode, **{**given, **settings})


def stock(id: str, mode: str, actions: np.ndarray) -> list:
    """[(state, reward, success)] of ManiSkill's own env."""
    env = simulator._built(scene(id, mode))
    env._obs_mode = "state"
    observation, info = env.reset(seed=[3])
    seen = [(observation[0].numpy(), 0.0, bool(info["success"]))]
    for action in actions:
        observation, reward, _, _, info = env.step(action)
        seen.append((observation[0].numpy(), float(reward), bool(info["success"])))
    env.close()
    return seen


def ours(id: str, mode: str, actions: np.ndarray) -> list:
    made = simulator.Simulator(scene(id, mode))
    made.reset(3)
    assert "set_action" in vars(made._env.agent)  # it is hastened
    seen = [(made.state(), 0.0, made._said("success"))]
    for action in actions:
        reward, success, _ = made.step(action)
        seen.append((made.state(), reward, success))
    made.close()
    return seen


def check_same(id: str, mode: str, actions: np.ndarray, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Pose, "create", stepping._pose_of)
        expected = stock(id, mode, actions)
    found = ours(id, mode, actions)
    assert [rest for _, *rest in found] == [rest for _, *rest in expected]
    assert [state.tobytes() for state, *_ in found] == [state.tobytes() for state, *_ in expected]


@pytest.mark.parametrize(("id", "mode"), [PAIRS[0], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS[1:])])
def test_states_rewards_and_successes_are_maniskills_own(id, mode, monkeypatch):
    actions = np.random.default_rng(1).uniform(-1.3, 1.3, (STEPS, tasks.PANDA_CONTROL[mode])).astype(np.float32)
    actions[:4] = 0.0
    actions[4:12] *= 0.2  # rotations that are not shortened
    check_same(id, mode, actions, monkeypatch)


@pytest.mark.slow
def test_so_they_are_where_something_is_grasped(monkeypatch):
    from policies.experts.maniskill import ManiSkillExpert

    env, expert, actions = ManiSkillEnv("PickCube-v1", cameras=(), privileged=True, fixed_horizon=True), ManiSkillExpert(), []
    observation, _ = env.reset(seed=3)
    for step in range(STEPS):
        actions.append(expert.act({"privileged": observation["privileged"][None], "episode": np.array([0]), "step": np.array([step])}).actions[0, 0])
        observation, *_, info = env.step(actions[-1])
    env.close()
    assert info["success_once"]
    check_same("PickCube-v1", "pd_ee_delta_pose", np.array(actions) * np.float32([1, 1, 1, 1, 1, 1, -1]), monkeypatch)


def test_a_controller_that_is_set_up_in_another_way_is_left_as_it_is():
    made = simulator.Simulator(scene("PushCube-v1", "pd_ee_target_delta_pose"))
    made.reset(0)
    assert not {"set_action", "before_simulation_step"} & vars(made._env.agent).keys()
    made.close()


@pytest.fixture
def turns():
    """[256, 4] float32 unit quaternions, w >= 0, of every kind: in each quarter another part is the largest."""
    drawn = np.random.default_rng(5).normal(size=(256, 4))
    for part in range(4):
        drawn[64 * part : 64 * (part + 1), part] *= 4
    return rotation_conversions.standardize_quaternion(torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).float())


def test_a_quaternion_of_a_matrix_is_torchs(turns):
    matrices = rotation_conversions.quaternion_to_matrix(turns)
    expected = [rotation_conversions.matrix_to_quaternion(matrix[None])[0].numpy() for matrix in matrices]
    assert np.array_equal([stepping.quaternion_of(matrix.numpy()) for matrix in matrices], expected)


def test_products_and_rotated_points_are_torchs(turns):
    a, b = turns[:-1], turns[1:]
    found = [stepping.standard(stepping.product(tuple(x), tuple(y))) for x, y in zip(a.numpy(), b.numpy())]
    assert np.array_equal(found, rotation_conversions.quaternion_multiply(a, b))
    found = [stepping.rotated(tuple(x), tuple(y[1:])) for x, y in zip(a.numpy(), b.numpy())]
    assert np.array_equal(found, rotation_conversions.quaternion_apply(a, b[:, 1:]))


def test_a_pose_is_made_as_maniskill_makes_it():
    pose = shaders.sapien.Pose([0.1, -0.2, 0.3], [0.5, -0.5, 0.5, 0.5])
    for given in ([pose], [pose, pose], pose):
        found, expected = Pose.create(given).raw_pose, stepping._pose_of(given).raw_pose
        assert found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize(("forces", "expected"), [((0.4, 9.0), False), ((9.0, 0.4), False), ((0.6, 0.6), "asked")])
def test_directions_are_only_looked_at_where_both_fingers_press(forces, expected):
    class Agent:
        finger1_link, finger2_link = 0, 1
        scene = type("Scene", (), {"get_pairwise_contact_forces": lambda self, finger, body: torch.tensor([[0.0, forces[finger], 0.0]])})()

    found = stepping.is_grasping(Agent, lambda body, force, angle: "asked", "cube")
    assert found == expected


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("pack", ["default", "minimal"])
def test_a_lean_pack_is_the_pack_less_what_names_the_table(pack, cache):
    def lines(folder):
        return {path.name: path.read_text().split("\n") for path in folder.iterdir()}

    found, own = lines(shaders.Path(shaders.lean(pack))), lines(shaders.FOLDER / pack)
    assert {name: len(text) for name, text in found.items()} == {name: len(text) for name, text in own.items()}
    changed = [(was, line) for name in own for was, line in zip(own[name], found[name]) if was != line]
    assert changed and all("BRDFLUT" in was and "BRDFLUT" not in line for was, line in changed)
    assert lines(shaders.FOLDER / "common") == lines(shaders.Path(shaders.lean(pack)).parent / "common")


@pytest.mark.parametrize("pack", ["rt", "/somewhere/else", ""])
def test_a_pack_without_the_table_stays_as_it_is(pack, cache):
    assert shaders.lean(pack) == pack


def test_where_nothing_can_be_written_the_pack_stays_as_it_is(cache):
    (cache / "m2flow").write_text("a file, not a folder")
    assert shaders.lean("default") == "default"


def test_a_scene_with_an_environment_map_is_built_with_whole_packs(monkeypatch):
    class Env:
        _sensors = {"base_camera": None}
        agent = None
        closed = False
        scene = type("Scene", (), {"sub_scenes": [type("Sub", (), {"render_system": type("System", (), {"cubemap": "a map"})})]})

        def close(self):
            self.closed = True

    built = []
    monkeypatch.setattr(shaders.sapien.render, "set_camera_shader_dir", "lean")
    monkeypatch.setattr(simulator, "_built", lambda scene: built.append((Env(), shaders.sapien.render.set_camera_shader_dir)) or built[-1][0])
    assert simulator.prepared(scene("PushCube-v1", cameras=("base_camera",))) is built[1][0]
    assert built[0][0].closed and [packs for _, packs in built] == ["lean", shaders._own]


@pytest.mark.slow
@pytest.mark.parametrize("shader", ["default", "minimal"])
def test_pictures_are_the_same_without_the_table(shader, cache):
    if not vulkan.found():
        pytest.skip(f"no Vulkan device: {vulkan.MEND}")
    actions = np.random.default_rng(2).uniform(-1, 1, (3, 7)).astype(np.float32)

    def pictures(id: str) -> list:
        made = simulator.Simulator(scene(id, robot="panda_wristcam", cameras=("base_camera", "hand_camera"), shader=shader))
        made.reset(0)
        seen = [made.pictures()]
        for action in actions:
            made.step(action)
            seen.append(made.pictures())
        made.close()
        return [picture.tobytes() for look in seen for picture in look.values()]

    ids = ("PickCube-v1", "StackCube-v1", "PlaceSphere-v1")
    lean = [pictures(id) for id in ids]
    shaders.use_whole()
    whole = [pictures(id) for id in ids]
    shaders.use_lean()
    assert lean == whole
