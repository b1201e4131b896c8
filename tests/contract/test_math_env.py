"""Math problems as a text env: what every env must do, and what a text one does besides, in this process and in workers."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import test_env_contract as contract

from envs.chunk import step_chunk
from envs.math import MathEnv
from envs.vector import EnvError, VectorEnv

CHECKS = [
    contract.test_gymnasiums_own_check_passes,
    contract.test_the_observation_is_what_the_spec_declares,
]
CHECKS_OF_ITS_MAKER = [contract.test_an_episode_is_fixed_by_its_request_and_the_actions, contract.test_it_runs_as_a_slot]
MAKERS = {
    "math.yaml": lambda: contract.from_config("math"),
    "several turns": lambda: MathEnv(turns=3),
    "finite": lambda: MathEnv(size=5),
}


@pytest.fixture
def without_algebra(monkeypatch):
    """Sampled answers are gibberish: nothing is to be gained from starting algebra for them, which takes seconds."""
    monkeypatch.setattr("envs.answers.symbolic.equal", lambda found, sought: False)


@pytest.mark.usefixtures("without_algebra")
@pytest.mark.parametrize("make_env", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("check", CHECKS)
def test_it_is_an_env_like_any_other(make_env, check):
    check(make_env())


@pytest.mark.usefixtures("without_algebra")
@pytest.mark.parametrize("make_env", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("check", CHECKS_OF_ITS_MAKER)
def test_its_maker_is_one_like_any_other(make_env, check):
    check(make_env)


@pytest.fixture
def problems(tmp_path) -> Path:
    """Forty problems, the golds 100 to 139."""
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Problem {number}?", "answer": str(100 + number)}) + "\n" for number in range(40)))
    return path


def hints(problem, answers):
    """Test reply: says how many answers there were; silent on giving up."""
    return None if answers[-1] == "pass" else f" [{len(answers)}] "


def wrong_kind(problem, answers):
    return 5


HERE = f"{__name__}.hints"


def test_a_right_answer_earns_one_and_ends_the_episode(problems):
    env = MathEnv(str(problems), held_out=0)
    observation, info = env.reset(seed=0, options={"task": 0, "init_state": 7})
    assert observation == {"prompt": "Problem 7?"} and info["success"] is False
    observation, reward, terminated, truncated, info = env.step(" Let me see.\n#### 107")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["success"], info["success_at_end"], info["gold"], info["problem"]) == (True, True, "107", f"{problems} 7")
    assert observation == {"prompt": "Problem 7? Let me see.\n#### 107"}


@pytest.mark.parametrize("answer", ["#### 106", "\\boxed{107", "", "107 or 108", "I do not know \x00\ud800"])
def test_any_other_answer_earns_nothing_and_ends_it_too(problems, answer):
    env = MathEnv(str(problems), held_out=0)
    env.reset(seed=0, options={"init_state": 7})
    _, reward, terminated, _, info = env.step(answer)
    assert (reward, terminated, info["success"], info["gold"]) == (0.0, True, False, "107")


def test_the_gold_is_told_only_when_the_episode_is_over(problems):
    env = MathEnv(str(problems), held_out=0, turns=2)
    said = [*env.reset(seed=0, options={"init_state": 7}), *env.step("5")]
    assert "107" not in str(said)


def test_a_template_stands_around_the_problem(problems):
    env = MathEnv(str(problems), held_out=0, template="Q: {problem}\nIn \\boxed{}.\nA:")
    assert env.reset(seed=0, options={"init_state": 3})[0] == {"prompt": "Q: Problem 3?\nIn \\boxed{}.\nA:"}


# Several turns


def test_a_wrong_answer_is_replied_to_and_the_prompt_goes_on_letter_for_letter(problems):
    env = MathEnv(str(problems), held_out=0, turns=3, respond=HERE)
    assert env.reset(seed=0, options={"init_state": 7})[0] == {"prompt": "Problem 7?", "reply": ""}
    observation, reward, terminated, truncated, info = env.step("5")
    assert observation == {"prompt": "Problem 7?5 [1] ", "reply": " [1] "}
    assert (reward, terminated, truncated, info["turn"]) == (0.0, False, False, 1)
    observation, reward, terminated, truncated, info = env.step("107")
    assert observation == {"prompt": "Problem 7?5 [1] 107", "reply": ""}
    assert (reward, terminated, truncated, info["success"], info["turn"]) == (1.0, True, False, True, 2)


def test_the_last_turn_ends_the_episode_right_or_wrong(problems):
    env = MathEnv(str(problems), held_out=0, turns=2)
    env.reset(seed=0, options={"init_state": 7})
    assert env.step("5")[0]["reply"] == "\nThat is not right. Try again.\n"
    observation, reward, terminated, _, info = env.step("6")
    assert (reward, terminated, info["success"], observation["reply"]) == (0.0, True, False, "")


def test_a_reply_of_none_ends_the_episode(problems):
    env = MathEnv(str(problems), held_out=0, turns=5, respond=HERE)
    env.reset(seed=0, options={"init_state": 7})
    assert env.step("5")[2] is False and env.step("pass")[2] is True


def test_a_reply_that_is_no_text_is_refused():
    env = MathEnv(turns=2, respond=f"{__name__}.wrong_kind")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="found 5 from respond, wanted a text"):
        env.step("none")


# Which problem is played


def test_a_seed_draws_the_problem_where_there_is_no_end_of_them():
    env = MathEnv()
    prompts = [env.reset(seed=seed, options={"task": 0})[0]["prompt"] for seed in (1, 2, 1)]
    assert prompts[0] == prompts[2] != prompts[1]
    assert env.env_spec.init_states is None


def test_a_file_declares_its_problems_as_initial_states(problems):
    train, evaluation = (MathEnv(str(problems), split).env_spec for split in ("train", "evaluate"))
    assert train.init_states + evaluation.init_states == 40
    assert (train.holds_out, train.held_out_states) == (True, evaluation.init_states)
    assert (train.action.kind, train.horizon, train.tasks) == ("text", 1, (0,))


def test_what_is_held_out_is_played_when_asked_for(problems):
    training, evaluation = MathEnv(str(problems), held_out=0.3), MathEnv(str(problems), "evaluate", held_out=0.3)
    spec = training.env_spec

    def prompts(env, count, **options):
        return [env.reset(seed=0, options={"init_state": place, **options})[0]["prompt"] for place in range(count)]

    asked = prompts(training, spec.held_out_states, held_out=True)
    assert asked == prompts(evaluation, spec.held_out_states) != []
    assert not set(asked) & set(prompts(training, spec.init_states))


@pytest.mark.parametrize(
    "options, says",
    [
        ({"task": 1}, "with task 0"),
        ({"init_state": 40}, "found init_state 40, wanted 0 to 39"),
        ({"play_on": True}, "wanted none but task, init_state, held_out"),
        ({"held_out": True}, "holds no problem out; raise env.held_out"),
    ],
)
def test_a_start_that_the_env_does_not_have_is_refused(problems, options, says):
    with pytest.raises(ValueError, match=says):
        MathEnv(str(problems), held_out=0).reset(seed=0, options=options)


def test_an_initial_state_is_refused_where_a_seed_draws_the_problem():
    with pytest.raises(ValueError, match="found init_state 0, wanted none: a seed draws it"):
        MathEnv().reset(seed=0, options={"init_state": 0})


@pytest.mark.parametrize(
    "knobs, says",
    [
        ({"turns": 0}, "found turns=0"),
        ({"template": "no place"}, "wanted at least 1 turn, and {problem} in the template"),
        ({"held_out": 0, "split": "evaluate"}, "found none in the evaluate split with held_out=0; change env.held_out"),
        ({"turns": 2, "respond": "envs.math.replies.again"}, "found respond='envs.math.replies.again', which cannot be imported"),
        ({"turns": 2, "respond": "envs.math.base.TRIES"}, "a int; wanted the import path of a function"),
    ],
)
def test_a_knob_that_cannot_be_is_refused(knobs, says):
    with pytest.raises(ValueError, match=says):
        MathEnv(**knobs)


def test_an_action_that_is_no_text_is_refused():
    env = MathEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="found an action of type int, wanted a text"):
        env.step(5)


def test_an_answer_after_the_end_is_refused():
    env = MathEnv()
    env.reset(seed=0)
    env.step("0")
    with pytest.raises(RuntimeError, match="wanted reset"):
        env.step("0")


# As slots


def test_a_chunk_of_texts_is_run_one_answer_at_a_time(problems):
    env = MathEnv(str(problems), held_out=0, turns=4, respond=HERE)
    env.reset(seed=0, options={"init_state": 7})
    observation, rewards, terminated, _, info = step_chunk(env, np.array([["5"], ["107"], ["never"]], object))
    assert observation["prompt"] == "Problem 7?5 [1] 107"
    assert (rewards.tolist(), terminated, info["success"], info["success_at_end"]) == ([0.0, 1.0], True, True, True)


def test_a_text_that_is_no_chunk_is_refused_with_the_shape_that_is_wanted():
    with pytest.raises(ValueError, match=r"a text env texts \[C, 1\]"):
        step_chunk(MathEnv(), np.asarray("5"))


def play(path: Path, workers: int) -> list:
    """What four slots say when each is given a wrong answer, one with every kind of character in it, and then a right one."""
    seen = []
    with VectorEnv(functools.partial(MathEnv, str(path), held_out=0, turns=2), 4, workers) as vector:
        for slot in range(4):
            vector.reset(slot, 0, {"task": 0, "init_state": 10 + slot})
        for answers in (None, ["Ünïcode \n\t∑ 漢字 \U0001f600 \x00 end\x00"] * 4, [f"\\boxed{{{110 + slot}}}" for slot in range(4)]):
            if answers:
                for slot, answer in enumerate(answers):
                    vector.step(slot, np.array([[answer]], object))
            results = {}
            while len(results) < 4:
                results |= {result.slot: result for result in vector.wait()}
            for slot in range(4):
                found = results[slot]
                seen.append((slot, found.kind, found.observation, found.rewards.tolist(), found.terminated, found.truncated, found.info))
    return seen


def test_two_workers_say_what_none_say(problems):
    here, there = play(problems, 0), play(problems, 2)
    assert here == there
    assert here[4][2]["prompt"] == "Problem 10?Ünïcode \n\t∑ 漢字 \U0001f600 \x00 end\x00\nThat is not right. Try again.\n"
    assert [entry[3] for entry in here[8:]] == [[1.0]] * 4


def test_a_file_that_is_bad_is_named_when_the_slots_are_made(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{\n")
    with pytest.raises(EnvError, match="building the env raised") as raised:
        VectorEnv(functools.partial(MathEnv, str(tmp_path / "bad.jsonl")), 1, 0)
    assert "line 1: found no JSON" in str(raised.value)
