"""What an evaluation judges: never what training plays, all of a set that is only judged, and of one that was trained on what was held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError, compose
from embodied.episodes import EvaluationLedger, TrainingLedger
from embodied.runs.folder import RunFolder
from embodied.wiring import build, fit
from envs.math import MathEnv
from envs.spec import ActionSpec, EnvSpec


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Sixty problems; `HELD_OUT` of them are held out at a share of 0.1."""
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Problem {number}?", "answer": str(number)}) + "\n" for number in range(60)))
    return path


HELD_OUT = 7  # by the hash of their texts


def composed(*arguments: str) -> DictConfig:
    return compose(["env=math", "policy=causal_lm", *arguments])


def ledger(config: DictConfig) -> EvaluationLedger:
    return fit.judged(config, build.env_spec(config, None), False)


def evaluated(*arguments: str) -> tuple[EvaluationLedger, str | None]:
    """(what `evaluate` judges with such a command line, what it says of it)"""
    config = composed(*arguments)
    said = fit.settle_evaluated(config, arguments)
    return ledger(config), said


# Held out


def asked(env: MathEnv, episodes: list) -> set[str]:
    """What the env says of each episode's problem."""
    return {env.reset(seed=episode.seed, options=episode.options)[0]["prompt"] for episode in episodes}


@pytest.mark.parametrize("source", ["file", "arithmetic"])
def test_no_problem_that_is_judged_is_ever_trained_on(problems: Path, source: str) -> None:
    config = composed(*([f"env.problems={problems}"] if source == "file" else ["env.digits=1"]))
    spec = build.env_spec(config, None)
    tasks, states = fit.tasks_and_states(config, spec)
    training = TrainingLedger(0, tasks, states, groups=50, group_size=1)
    env = MathEnv(config.env.problems, digits=config.env.digits)
    trained, judged = (asked(env, episodes) for episodes in ([e for number in range(6) for e in training.round(number)], ledger(config).round(0)))
    assert len(trained) > 40 and len(judged) >= (HELD_OUT if source == "file" else 5) and not trained & judged


def test_an_env_that_holds_nothing_out_is_judged_on_what_it_has(problems: Path) -> None:
    found = ledger(composed(f"env.problems={problems}", "env.held_out=0", "evaluation.episodes=60"))
    assert not found.held_out and list(found.init_states) == list(range(60))


# How many


def test_as_many_starts_as_asked_for_each_sampled_so_often(problems: Path) -> None:
    found = ledger(composed(f"env.problems={problems}", "samples=4", "evaluation.episodes=6"))
    assert (found.episodes, found.samples, found.total) == (6, 4, 24)


def test_no_start_is_met_twice_where_each_is_sampled_several_times(problems: Path) -> None:
    arguments = [f"env.problems={problems}", "evaluation.episodes=25"]
    assert ledger(composed(*arguments)).episodes == 25
    assert ledger(composed(*arguments, "samples=2")).episodes == HELD_OUT


def test_null_is_every_task_and_state_once() -> None:
    config = compose(["env=toy", "evaluation.episodes=null"])
    spec = EnvSpec("t", ActionSpec("discrete", choices=2), tasks=(0, 2), init_states=5)
    assert fit.judged(config, spec, False).episodes == 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluation.episodes=null", "env.held_out=0"], "evaluation.episodes=null: env=math here has no end of starts.*evaluation.episodes=N, or bound them with env.size=N"),
        (["samples=4", "evaluation.greedy=true"], "evaluation.samples=4: found evaluation.greedy=true, which gives the same answer every time"),
        (["samples=0"], "evaluation.samples: found 0, wanted at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ledger(composed(*arguments))


# Which problems `evaluate` judges


def test_a_file_that_is_only_evaluated_is_judged_whole(problems: Path) -> None:
    found, said = evaluated(f"env.problems={problems}", "samples=2")
    assert (found.starts, found.total, said) == ("60 of 60 held out", 120, None)


@pytest.mark.parametrize(("argument", "starts"), [("env.held_out=0.1", f"{HELD_OUT} of {HELD_OUT} held out"), ("env.held_out=0", "60 of 60"), ("env.held_out=1", "60 of 60 held out"), ("evaluation.episodes=7", "7 of 60 held out")])
def test_what_the_command_line_says_wins(problems: Path, argument: str, starts: str) -> None:
    assert evaluated(f"env.problems={problems}", argument)[0].starts == starts


def test_problems_without_end_are_judged_by_what_training_never_meets() -> None:
    found, said = evaluated()
    assert (found.starts, said) == ("200 of 521 held out", None)


def trained(tmp_path: Path, problems: str, held_out: float | None, kind: str = "train", **policy) -> Path:
    with RunFolder.create(tmp_path / "runs", "math", "causal_lm", kind=kind) as run:
        OmegaConf.save({"env": {"problems": problems, "held_out": held_out}, "policy": policy, "checkpoint": None}, run.config_yaml)
    return run.path


@pytest.mark.parametrize("inside", ["", "checkpoints/step_5", "checkpoints/step_5/policy"])
def test_what_a_run_trained_on_is_judged_by_what_it_held_out(tmp_path: Path, problems: Path, inside: str) -> None:
    run = trained(tmp_path, str(problems), None)
    found, said = evaluated(f"env.problems={problems}", f"checkpoint={run / inside}")
    assert found.starts == f"{HELD_OUT} of {HELD_OUT} held out"
    assert said == f"the weights are of {run}, which trained on {problems}: judging the {HELD_OUT} problems that it held out alone; env.held_out=1 judges all of them"


def test_weights_that_began_from_such_a_run_are_judged_so_too(tmp_path: Path, problems: Path) -> None:
    first = trained(tmp_path, str(problems), 0.5)
    second = trained(tmp_path, "arithmetic", None, checkpoint=str(first))
    found, said = evaluated(f"env.problems={problems}", f"policy.checkpoint={second}")
    assert str(first) in said and HELD_OUT < found.episodes < 50


def test_a_run_that_held_nothing_out_is_judged_on_what_it_has_seen_and_told_so(tmp_path: Path, problems: Path) -> None:
    found, said = evaluated(f"env.problems={problems}", f"checkpoint={trained(tmp_path, str(problems), 0.0)}")
    assert found.starts == "60 of 60" and said.endswith("judging all of them, which it has seen: it held none out")


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_run_that_did_not_train_on_them_is_judged_on_all(tmp_path: Path, problems: Path, kind: str) -> None:
    run = trained(tmp_path, "arithmetic" if kind == "train" else str(problems), None, kind)
    found, said = evaluated(f"env.problems={problems}", f"checkpoint={run}")
    assert (found.starts, said) == ("60 of 60 held out", None)


def test_a_file_that_has_moved_since_it_was_trained_on_is_known_by_its_name(tmp_path: Path, problems: Path) -> None:
    run = trained(tmp_path, f"/gone/{problems.name}", None)
    assert evaluated(f"env.problems={problems}", f"checkpoint={run}")[0].episodes == HELD_OUT


def test_the_held_out_share_of_the_run_bounds_drawn_problems_too(tmp_path: Path) -> None:
    config = composed(f"checkpoint={trained(tmp_path, 'arithmetic', 0.05)}")
    fit.settle_evaluated(config, [])
    assert (config.env.held_out, config.evaluation.episodes) == (0.05, 200)


def test_an_env_without_such_problems_is_left_as_it_is() -> None:
    config = compose(["env=toy", "policy=mlp"])
    before = OmegaConf.to_yaml(config)
    assert fit.settle_evaluated(config, []) is None and OmegaConf.to_yaml(config) == before


def test_of_a_chain_of_runs_the_least_share_bounds_what_is_judged(problems: Path, tmp_path: Path) -> None:
    """What the first one held out at 0.1 is held out by a share of 0.4 too, and not the other way round."""
    first = trained(tmp_path, str(problems), None)
    second = trained(tmp_path, str(problems), 0.4, checkpoint=str(first))
    assert evaluated(f"env.problems={problems}", f"policy.checkpoint={second}")[0].starts == f"{HELD_OUT} of {HELD_OUT} held out"


def test_a_file_is_known_by_its_bytes_wherever_it_lies(problems: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(problems.read_bytes())
    found, said = evaluated(f"env.problems={copy}", f"policy.checkpoint={trained(tmp_path, str(problems), None)}")
    assert found.starts == f"{HELD_OUT} of {HELD_OUT} held out" and "that it held out alone" in said


def test_what_was_imitated_has_been_seen(problems: Path, tmp_path: Path) -> None:
    run = trained(tmp_path, "arithmetic", None)
    OmegaConf.save(OmegaConf.merge(OmegaConf.load(run / "config.yaml"), {"data": str(problems)}), run / "config.yaml")
    assert "all of them, which it has seen" in evaluated(f"env.problems={problems}", f"policy.checkpoint={run}")[1]


@pytest.mark.parametrize("argument", ["env.split=evaluate", "env.only_evaluated=true"])
def test_a_training_run_does_not_play_what_is_for_evaluation(argument: str) -> None:
    config = composed(argument)
    with pytest.raises(ConfigError, match="wanted the problems that are for training"):
        fit.check_trained(config, build.env_spec(config, None))


def test_a_training_run_that_holds_nothing_out_says_so(problems: Path, capsys: pytest.CaptureFixture) -> None:
    config = composed(f"env.problems={problems}", "env.held_out=0")
    fit.check_trained(config, build.env_spec(config, None))
    assert "nothing is held out" in capsys.readouterr().out


def test_answers_to_problems_that_are_held_out_are_not_imitated(problems: Path, capsys: pytest.CaptureFixture) -> None:
    config = composed(f"env.problems={problems}", f"data={problems}", "algorithm=bc")
    rows = build.demonstrations(config, build.env_spec(config, None))
    assert len(rows) == 60 - HELD_OUT and f"{HELD_OUT} of 60 answers left out" in capsys.readouterr().out
    env = MathEnv(str(problems))
    assert not env.kept_back() & {row["prompt"][0] for row in rows}

