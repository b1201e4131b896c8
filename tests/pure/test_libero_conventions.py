"""LIBERO's conventions as pure functions, and what is refused before any simulator is built."""

import math

import numpy as np
import pytest

import envs.libero.env as libero_env
from envs.libero import LiberoEnv, gl, suites
from envs.libero.observation import axis_angle, privileged_layout, upright
from policies.experts.hand import disturbed
from policies.experts.libero import LAYOUT, LiberoExpert


def test_a_quaternion_is_not_replaced_by_its_antipode():
    quat = np.array([0.6, 0.0, 0.0, -0.8])
    # 2 acos(-0.8) = 4.996 rad about +x; the antipode would give 1.287 about -x.
    np.testing.assert_allclose(axis_angle(quat), [2 * math.acos(-0.8), 0, 0])
    assert quat.tolist() == [0.6, 0.0, 0.0, -0.8]


def test_a_quaternion_with_w_above_one_is_no_rotation_and_not_nan():
    assert axis_angle(np.array([1e-9, 0.0, 0.0, 1.0 + 1e-9])).tolist() == [0.0, 0.0, 0.0]


def test_an_image_is_turned_by_180_degrees_and_not_mirrored():
    red, green, blue, white = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]
    corners = np.array([[red, green], [blue, white]], np.uint8)
    assert upright(corners).tolist() == [[white, blue], [green, red]]


@pytest.mark.parametrize(
    ("environ", "devices", "rank", "wanted"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, [True], 0, 0),  # a container that shows one accelerator
        ({"CUDA_VISIBLE_DEVICES": "3"}, [True, False], 0, 0),  # with the software rasteriser beside it
        ({"CUDA_VISIBLE_DEVICES": "3"}, [True] * 8, 0, 3),  # a machine where EGL shows all
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, [True, True], 1, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [True, True], 1, 1),
        ({"LOCAL_RANK": "1"}, [True, True], None, 1),
        ({}, [False], 5, 0),  # only the software rasteriser
        ({"CUDA_VISIBLE_DEVICES": "3", "MUJOCO_EGL_DEVICE_ID": "2"}, [True] * 4, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "3", "MUJOCO_GL": "osmesa"}, [True], 0, None),
    ],
)
def test_the_egl_device_is_a_position_among_the_visible_accelerators(environ, devices, rank, wanted):
    assert gl.egl_device_id(environ, devices, rank) == wanted


def test_without_opengl_the_message_names_the_packages(monkeypatch):
    monkeypatch.setattr(gl, "choose_backend", lambda: None)
    with pytest.raises(RuntimeError, match="apt-get install -y libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri"):
        LiberoEnv()


def test_without_cameras_no_opengl_is_asked_for(monkeypatch):
    monkeypatch.setattr(gl, "choose_backend", lambda: None)
    assert LiberoEnv(cameras=()).env_spec.protocol["gl"] == "none"


def test_mujoco_gl_is_respected_where_set_and_refused_where_unknown():
    assert gl.choose_backend({"MUJOCO_GL": "osmesa"}) == "osmesa"
    assert gl.choose_backend({"MUJOCO_GL": "disable"}) is None
    with pytest.raises(ValueError, match="wanted egl, osmesa, glfw or disable"):
        gl.choose_backend({"MUJOCO_GL": "vulkan"})


def test_an_untested_mujoco_is_named_in_a_warning_and_in_the_protocol(monkeypatch):
    monkeypatch.setattr(libero_env, "version", lambda package: "3.4.0" if package == "mujoco" else "1")
    with pytest.warns(UserWarning, match="found mujoco 3.4.0, wanted 3.3.2"):
        env = LiberoEnv(cameras=())
    assert env.env_spec.protocol["mujoco"] == "3.4.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "libero_spacial"}, "wanted one of libero_spatial, libero_object, libero_goal, libero_10, libero_90"),
        ({"tasks": (10,)}, "found task 10, wanted 0 to 9"),
        ({"tasks": ()}, "found no tasks"),
        ({"cameras": ("front",)}, "found camera 'front', wanted any of agentview, wrist"),
        ({"render": "quick"}, "found render 'quick', wanted one of exact, fast"),
        ({"horizon": 0}, "found horizon 0, wanted at least 1"),
    ],
)
def test_a_bad_argument_is_answered_with_the_choices(arguments, message):
    with pytest.raises(ValueError, match=message):
        LiberoEnv(**{"cameras": (), **arguments})


def test_each_suite_has_its_published_budget_and_fifty_initial_states():
    budgets = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
    for suite, budget in budgets.items():
        spec = LiberoEnv(suite=suite, cameras=()).env_spec
        assert (spec.horizon, spec.protocol["suite_budget"], spec.init_states) == (budget, budget, 50)
    assert LiberoEnv(suite="libero_goal_swap", cameras=()).env_spec.horizon == 300


def test_initial_states_are_read_without_unpickling_anything(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a pickle was loaded")

    monkeypatch.setattr("pickle.load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    assert suites.load_task("libero_spatial", 0).init_states.shape == (50, 92)


def test_the_instruction_is_the_protocols_wording_and_not_the_scene_files():
    assert suites.load_task("libero_spatial", 3).instruction == "pick up the black bowl on the cookie box and place it on the plate"
    assert suites.load_task("libero_object_lan", 0).instruction == "grab alphabet soup and put it into basket"


def test_the_expert_reads_the_privileged_vector_as_the_env_lays_it_out():
    spec = LiberoEnv(cameras=(), privileged=True).env_spec
    assert LAYOUT == privileged_layout() == spec.privileged_layout
    assert spec.privileged == 23


def _scene(rows: int) -> dict:
    seen = np.zeros((rows, 23), np.float32)
    seen[:, 2:5] = [-0.1, -0.05, 1.01]  # within reach of the first waypoint, so that no action is at its bound
    seen[:, 5:8] = [0, 1, 0]
    seen[:, 9:12] = [-0.1, 0.0, 0.9]
    return {"privileged": seen, "episode": np.arange(rows), "step": np.zeros(rows, np.int64)}


def test_a_disturbed_episode_is_pushed_and_labelled_with_the_clean_action():
    expert = LiberoExpert(disturbance=0.3, disturbed_share=0.5)
    chunk = expert.act(_scene(100), np.random.default_rng(0).random((100, 7)))
    pushed = (chunk.actions != chunk.labels).any(axis=(1, 2))
    assert pushed.tolist() == [disturbed(episode, 0.5) for episode in range(100)]
    assert 35 <= pushed.sum() <= 65
    assert (chunk.actions[..., 3:] == chunk.labels[..., 3:]).all()
    assert (chunk.labels == LiberoExpert().act(_scene(100), None).labels).all()


def test_an_expert_asked_twice_for_a_step_answers_the_same_and_refuses_a_gap():
    expert, noise = LiberoExpert(disturbance=0.3, disturbed_share=1.0), np.random.default_rng(0).random((1, 7))
    scene = _scene(1)
    expert.act(scene, noise)
    scene["step"] = np.array([1])
    first, second = expert.act(scene, noise), expert.act(scene, noise)
    assert (first.actions == second.actions).all()
    scene["step"] = np.array([3])
    with pytest.raises(ValueError, match="found step 3 of episode 0 after step 1"):
        expert.act(scene, noise)
