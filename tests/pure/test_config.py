"""The command line: what is mistyped is refused with the nearest name, and what is saved is what ran."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from embodied.config import ConfigError, choices_of, compose, refuse_unused, reopened
from embodied.wiring.build import started_env
from embodied.wiring.fit import settle_batched
from envs.spec import ActionSpec, EnvSpec


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("polcy=x", "policy"),
        ("algo.lrr=1", "algorithm"),
        ("+algo.lrr=1", "algorithm"),
        ("algorithm.learner.lrr=1", "'lr'"),
        ("+algorithm.learner.lrr=1", "'lr'"),
        ("env=libreo", "'libero'"),
        ("env.sute=libero_object", "'suite'"),
        ("sim.slot=3", "'slots'"),
    ],
)
def test_an_unknown_key_or_choice_is_refused_with_the_nearest_name(argument: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        compose([argument])


@pytest.mark.parametrize(
    "argument",
    ["algorithm.learner.lr=abc", "sim.slots=-1", "sim.slots=two", "iterations=1.5", "sim.timeout=0", "env.resolution=[1]", "seed", "~seed"],
)
def test_a_value_of_the_wrong_kind_or_size_is_refused_by_its_key(argument: str) -> None:
    with pytest.raises(ConfigError, match=argument.split("=")[0].lstrip("~")):
        compose([argument])


def test_a_whole_number_is_a_number() -> None:
    assert compose(["algorithm.learner.lr=1"]).algorithm.learner.lr == 1


def test_the_command_line_wins_over_what_a_choice_wants_of_the_run() -> None:
    assert compose(["env=gym"]).sim.workers == 0
    assert compose(["env=gym", "sim.workers=2"]).sim.workers == 2


def test_an_env_that_is_one_simulator_has_no_workers_unless_they_are_asked_for() -> None:
    assert compose(["env=maniskill", "env.backend=cuda"]).sim.workers == 0
    assert compose(["env=maniskill", "env.backend=cuda", "sim.workers=2", "sim.slots=2"]).sim.workers == 2
    assert compose(["env=maniskill"]).sim.workers == compose(["env=maniskill", "env.backend=cpu"]).sim.workers > 0


@pytest.mark.parametrize(("arguments", "message"), [(["sim.workers=1"], "found sim.workers=1, wanted 0"), (["sim.workers=0", "scheduler.groups=2"], "found scheduler.groups=2, wanted 1")])
def test_one_simulator_is_not_shared_out(arguments: list[str], message: str) -> None:
    config = compose(["env=toy", *arguments])
    with pytest.raises(ConfigError, match=f"env=toy: {message}.*steps them all at once"):
        settle_batched(config, EnvSpec("t", ActionSpec("discrete", 1, choices=2), state=1, batched=True))


def test_one_simulator_has_one_slot_group_and_others_what_they_were_given() -> None:
    for batched, groups in ((True, 1), (False, None)):
        config = compose(["env=toy", "sim.workers=0"])
        settle_batched(config, EnvSpec("t", ActionSpec("discrete", 1, choices=2), state=1, batched=batched))
        assert config.scheduler.groups == groups


def test_one_simulator_is_what_the_env_makes_of_its_slots() -> None:
    class Env:
        def vector(self, slots: int) -> tuple[str, int]:
            return "one simulator", slots

    spec = EnvSpec("t", ActionSpec("discrete", 1, choices=2), state=1, batched=True)
    assert started_env(compose(["env=toy"]), Env, spec, 5, 0) == ("one simulator", 5)


def test_a_free_block_of_arguments_takes_any_name() -> None:
    assert compose(["env=gym", "env.kwargs.sutton_barto_reward=true"]).env.kwargs.sutton_barto_reward is True


def test_the_expert_is_the_one_that_the_env_brings() -> None:
    assert "toy" in compose(["env=toy", "policy=expert"]).policy._target_
    with pytest.raises(ConfigError, match="env=gym brings none"):
        compose(["env=gym", "policy=expert"])


def test_more_workers_than_slots_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(ConfigError, match="sim.workers=2"):
        compose(["sim.workers=3", "sim.slots=2"])


@pytest.mark.parametrize("env", choices_of("env"))
@pytest.mark.parametrize("algorithm", choices_of("algorithm"))
def test_every_choice_composes_and_comes_back_from_its_file_as_it_was(env: str, algorithm: str, tmp_path) -> None:
    config = compose([f"env={env}", f"algorithm={algorithm}"])
    OmegaConf.save(config, tmp_path / "config.yaml")
    assert OmegaConf.to_container(reopened(tmp_path / "config.yaml", [])) == OmegaConf.to_container(config)


@pytest.mark.parametrize("argument", ["env=gym", "algorithm.kl_coef=1", "seed=5"])
def test_a_resumed_run_stays_what_it_is(argument: str, tmp_path) -> None:
    OmegaConf.save(compose(["env=toy"]), tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match=argument.split("=")[0]):
        reopened(tmp_path / "config.yaml", [argument])


def test_a_resumed_run_may_go_on_for_longer(tmp_path) -> None:
    OmegaConf.save(compose(["env=toy"]), tmp_path / "config.yaml")
    assert reopened(tmp_path / "config.yaml", ["iterations=99"]).iterations == 99


def test_a_choice_may_be_a_file_of_ones_own(tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text("_target_: my_package.MyEnv\nspeed: 1.0\n")
    assert compose([f"env={tmp_path}/mine.yaml", "env.speed=2"]).env.speed == 2


def test_what_a_program_would_not_look_at_is_refused() -> None:
    with pytest.raises(ConfigError, match="videos=3"):
        refuse_unused(compose(["videos=3"]), "train", {"videos": "evaluate makes them"})
