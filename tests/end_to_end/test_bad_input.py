"""What a user gets wrong ends in a message and a non-zero exit, before anything slow starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied import evaluate, train
from tests.end_to_end.runs import TOY, run


def refused(capsys, arguments: list[str], program=train) -> str:
    """The message of a program that must end with 1 and no traceback."""
    assert program.main(arguments) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ") and "Traceback" not in message
    return message


def test_a_policy_that_does_not_fit_is_refused_with_both_specs(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=gym", "policy=openvla_oft", f"output={tmp_path}"])
    assert "EnvSpec(" in message and "PolicySpec(" in message and "instruction" in message


def test_a_policy_that_reads_state_is_refused_by_an_env_without(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=gym", "env.id=Missing-v0", "policy=mlp", "algorithm=ppo", f"output={tmp_path}"])
    assert "Missing" in message


def test_states_that_the_env_does_not_have_are_refused(capsys, tmp_path: Path) -> None:
    assert "0 to 49" in refused(capsys, [*TOY, "init_states=[50]", f"output={tmp_path}"])


def test_imitation_without_data_says_how_to_record(capsys, tmp_path: Path) -> None:
    assert "record=" in refused(capsys, [*TOY, "algorithm=bc", f"output={tmp_path}"])


def test_slots_that_do_not_divide_are_refused_with_groups_that_would_do(capsys, tmp_path: Path) -> None:
    message = refused(capsys, [*TOY, "sim.slots=4", "scheduler.mode=hybrid", "scheduler.groups=3", f"output={tmp_path}"])
    assert "[1, 2, 4]" in message


def test_a_folder_without_a_checkpoint_is_refused(capsys, tmp_path: Path) -> None:
    message = refused(capsys, ["env=toy", "policy=mlp", f"checkpoint={tmp_path}", f"output={tmp_path}"], evaluate)
    assert "no whole checkpoint" in message


def test_an_env_without_an_expert_is_refused(capsys, tmp_path: Path) -> None:
    assert "env=gym" in refused(capsys, ["env=gym", "policy=expert", f"output={tmp_path}"], evaluate)


@pytest.mark.parametrize(
    "argument",
    [
        "algorithm.learner.minibatch=0", "algorithm.learner.epochs=0", "algorithm.learner.lr=-1", "algorithm.learner.warmup_updates=-5",
        "algorithm.learner.schedule=foo", "algorithm.learner={lrr: 1}", "scheduler.groups=-2", "scheduler.groups=0", "sim.timeout=nan",
        "algorithm.learner.lr=inf", "device=foo", "env.tasks=[]", "checkpoint=/nonexistent", "record=demos", "videos=3", "data=/nonexistent",
        "env._target_=nope.X", "seed=1,2", "algorithm.clip_low=-1", "algorithm.group_size=null",
        "algorithm.negative_scale=-1", "algorithm.clip_low=null", "env.horizon=null", "env.tasks=[-1]", "policy.hidden=[0]", "policy.chunk=null",
    ],
)  # fmt: skip
def test_what_cannot_be_or_would_do_nothing_is_refused_by_its_key(argument: str, capsys, tmp_path: Path) -> None:
    key = argument.split("=")[0].split(".")[-1].strip("_")
    assert key in refused(capsys, [*TOY, argument, f"output={tmp_path}"]) or key in ("target",)
    assert not list(tmp_path.glob("*/*/run.json"))


VLA = [*TOY, "env.action=continuous", "env.gripper=open_-1_close_+1", "policy=openvla_oft"]


@pytest.mark.parametrize(
    "argument",
    ["policy.dtype=float99", "policy.dtype=float16", "policy.dtype=complex64", "policy.temperature=1e-30", "policy.initial_log_std=1000", "policy.prompt_length=5000", "policy.prompt_length=-3", "policy.prompt_length=0",
     "policy.cameras=front", "policy.cameras=[front,front]", "env.cameras=[front,wrist]"],
)  # fmt: skip
def test_what_a_vla_cannot_be_is_refused_by_its_key_before_a_run_is_made(argument: str, capsys, tmp_path: Path) -> None:
    assert f"{argument.split('=')[0]}: found" in refused(capsys, [*VLA, argument, f"output={tmp_path}"])
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("argument", ["env.horizon=2.7", "env.horizon=true", "env.horizon=abc", "env.horizon=[5]", "env.action=3", "policy.seed=x"])
def test_a_value_of_another_type_than_its_owner_takes_is_refused_by_its_key(argument: str, capsys, tmp_path: Path) -> None:
    assert f"{argument.split('=')[0]}: found" in refused(capsys, [*TOY, argument, f"output={tmp_path}"])


def test_a_film_without_a_camera_is_refused_before_anything_is_played(capsys, tmp_path: Path) -> None:
    assert "found no camera on env=gym" in refused(capsys, ["env=gym", "policy=mlp", "videos=2", f"output={tmp_path}"], evaluate)
    assert not list(tmp_path.glob("*/*"))


def test_a_fixed_horizon_is_refused_by_an_env_that_ends_at_success(capsys, tmp_path: Path) -> None:
    assert "evaluation.fixed_horizon=true" in refused(capsys, ["env=toy", "policy=mlp", "evaluation.fixed_horizon=true", f"output={tmp_path}"], evaluate)


def test_demonstrations_of_another_env_are_refused_with_both_names(capsys, tmp_path: Path) -> None:
    assert evaluate.main(["env=toy", "policy=expert", f"record={tmp_path / 'demos'}", "evaluation.episodes=2", "sim.workers=0", f"output={tmp_path}"]) == 0
    capsys.readouterr()
    message = refused(capsys, ["env=gym", "policy=mlp", "algorithm=bc", f"data={tmp_path / 'demos'}", f"output={tmp_path}"])
    assert "was recorded on toy" in message and "CartPole-v1" in message


def test_a_filter_that_no_group_could_pass_is_refused(capsys, tmp_path: Path) -> None:
    assert "lower=1" in refused(capsys, [*TOY, "algorithm.lower=1", "algorithm.upper=0", f"output={tmp_path}"])


def test_a_checkpoint_whose_config_lacks_a_key_is_named_with_file_and_key(capsys, tmp_path: Path) -> None:
    folder = run(tmp_path, "iterations=1", "evaluation.after=false") / "checkpoints" / "step_1" / "policy"
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"hidden"', '"hiden"'))
    message = refused(capsys, ["env=toy", "policy=mlp", f"checkpoint={folder}", f"output={tmp_path}"], evaluate)
    assert str(config) in message and "'hidden'" in message


def test_an_env_without_a_spec_is_refused_with_the_two_ways_out(capsys, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("_target_: gymnasium.envs.classic_control.CartPoleEnv\n")
    message = refused(capsys, [f"env={tmp_path}/plain.yaml", "policy=mlp", "algorithm=ppo", f"output={tmp_path}"])
    assert "no env_spec on CartPoleEnv" in message and "env=gym env.id=" in message


def test_a_kl_term_on_a_policy_of_densities_is_refused(capsys, tmp_path: Path) -> None:
    assert "algorithm.kl_coef=0" in refused(capsys, [*TOY, "env.action=continuous", f"output={tmp_path}"])


def test_rewards_that_are_not_finite_stop_the_run_before_a_checkpoint(capsys, tmp_path: Path) -> None:
    (tmp_path / "nan_env.py").write_text(NAN_ENV)
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        arguments = ["env=gym", "env.id=nan_env:Nan-v0", "policy=mlp", "algorithm=ppo", "groups=2", "iterations=1", "evaluation.episodes=1", f"output={tmp_path}"]
        assert "finite" in refused(capsys, arguments)
    finally:
        sys.path.remove(str(tmp_path))
    assert not list(tmp_path.glob("*/*/checkpoints/step_*"))


NAN_ENV = """
import gymnasium, numpy as np
class Nan(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), False, False, {}
gymnasium.register("Nan-v0", lambda **k: Nan(), max_episode_steps=3)
"""


@pytest.mark.parametrize(("fault", "said"), [("raise", "RuntimeError: planned fault"), ("die", "SIGKILL"), ("hang", "hung")])
def test_a_worker_that_fails_is_named_with_its_task_phase_and_cause(fault: str, said: str, capsys, tmp_path: Path) -> None:
    arguments = [*TOY, f"env.fault={{kind: {fault}, phase: step, episode: 3}}", "sim.workers=2", "sim.timeout=3", "scheduler.restarts=0", f"output={tmp_path}"]
    assert train.main(arguments) == 1
    message = capsys.readouterr().err
    assert "worker 0" in message and "task 0" in message and "phase step" in message and said in message


def test_a_checkpoint_without_a_tokenizer_is_refused_with_every_missing_file(capsys, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "small"
    shutil.copytree(Path(__file__).resolve().parents[2] / "assets" / "openvla_oft_small", folder)
    (folder / "tokenizer.json").unlink()
    (folder / "preprocessor_config.json").unlink()
    message = refused(capsys, ["env=toy", "policy=openvla_oft", f"checkpoint={folder}", f"output={tmp_path}"], evaluate)
    assert "tokenizer.json" in message and "preprocessor_config.json" in message
