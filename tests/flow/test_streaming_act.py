"""Rows that are answered one by one: nobody waits for a straggler, and what comes out is what one call for all would have given."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from embodied.episodes import Episode, TrainingLedger
from embodied.stages.act import ActStage
from embodied.stages.inline import Inline
from embodied.stages.sim import Observations, SimStage
from embodied.stages.streaming import StreamingActStage
from envs.math import MathEnv
from envs.vector import VectorEnv
from policies.base import ActionChunk
from policies.causal_lm import CausalLM
from policies.checkpoints.fresh_lm import character_tokenizer
from policies.generation.texts import Texts
from scheduler.backends.base import Call, Item, Outcome, Weights
from scheduler.backends.local_backend import LocalBackend
from scheduler.running.execute import execute
from scheduler.running.flow import Flow, Link
from tests.pure.tiny_lms import tiny

GROUPS, SIZE = 3, 2


@dataclass
class Counting:
    """A policy that answers a row after as many steps as its prompt says, and writes down what it is asked and what it does."""

    log: list[Any] = field(default_factory=list)
    left: dict[Any, int] = field(default_factory=dict)

    def prepare(self, observation: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"steps": torch.tensor([int(prompt) for prompt in observation["prompt"]])}

    def answering(self) -> "Counting":
        return self

    def submit(self, ids: list, inputs: dict[str, torch.Tensor], noise: np.ndarray | None) -> None:
        self.log += [("submit", steps) for steps in inputs["steps"].tolist()]
        self.left |= dict(zip(ids, inputs["steps"].tolist()))

    def step(self) -> tuple[list, ActionChunk | None]:
        self.log.append("step")
        self.left = {id: steps - 1 for id, steps in self.left.items()}
        ended = [id for id, steps in self.left.items() if steps == 0]
        for id in ended:
            del self.left[id]
        rows = len(ended)
        zeros = torch.zeros(rows, 1)
        answers = np.full((rows, 1, 1), "1", dtype=object)
        return ended, ActionChunk(zeros.long(), zeros, zeros == 0, answers, None, {"steps": zeros}) if rows else None


def asked(number: int, *steps: int, version: int = 0, weights: Weights | None = None) -> Call:
    episodes = tuple(Episode(10 * number + row, row, 0, 0, None, 0) for row in range(len(steps)))
    return Call(number, "act", "turn", 0, number, Observations(episodes, (0,) * len(steps), {"prompt": [str(each) for each in steps]}), version, weights)


def test_a_call_ends_with_its_own_last_row_while_others_go_on() -> None:
    stage = StreamingActStage(Counting(), 1, 0)
    for call in (asked(1, 5), asked(2, 1, 3), asked(3, 1)):
        assert stage.start(call) is None
    assert [[call.number for call, _ in stage.ready(None)] for _ in range(3)] == [[3], [2], [1]]
    assert stage.ready(None) == []


def test_rows_come_back_in_the_order_that_they_were_asked_in() -> None:
    stage = StreamingActStage(Counting(), 1, 0)
    stage.start(asked(1, 3, 1, 2))
    ((_, outcome),) = stage.ready(None)
    assert len(outcome.reply.choices) == 3 and outcome.reply.actions.shape == (3, 1, 1)


def test_nothing_is_done_without_time() -> None:
    policy = Counting()
    stage = StreamingActStage(policy, 1, 0)
    stage.start(asked(1, 1))
    assert stage.ready(0.0) == [] and policy.log == []


def test_other_weights_wait_until_what_was_begun_has_ended() -> None:
    policy = Counting()
    stage = StreamingActStage(policy, 1, 0)
    for call in (asked(1, 2, version=0), asked(2, 1, version=1)):
        stage.start(call)
    assert [call.number for call, _ in stage.ready(None)] == [1]
    assert policy.log == [("submit", 2), "step", "step"]


def test_what_was_abandoned_is_not_answered() -> None:
    stage = StreamingActStage(Counting(), 1, 0)
    stage.start(asked(1, 2))
    stage.abandon()
    assert stage.ready(None) == []


class Asking(Inline):
    """A source: group g asks once, for an answer of 1 + 10 * g steps, and emits it."""

    def start(self, call: Call) -> Outcome:
        if call.payload is None:
            return Outcome(asked(call.group, 1 + 10 * call.group).payload)
        return Outcome(None, (Item(call.group, "answer"),))


class Learning(Inline):
    def __init__(self, log: list) -> None:
        self.log = log

    def start(self, call: Call) -> Outcome:
        self.log.append(call.kind)
        return Outcome()


def test_all_that_can_be_asked_is_asked_before_the_first_step_and_what_has_ended_is_learned_from_before_the_next() -> None:
    policy = Counting()
    stages = {"sim": Asking(), "act": StreamingActStage(policy, 1, 0), "learn": Learning(policy.log)}
    flow = Flow("sim", "act", 3, (Link("sim", "learn", 1, None, False),), 0, taught="act")
    assert len(list(execute(flow, LocalBackend(stages), 0, 1))) == 1
    assert policy.log == [*(("submit", 1 + 10 * group) for group in range(3)), "step", "granule", *["step"] * 10, "granule", *["step"] * 10, "granule", "update"]


@pytest.mark.parametrize("turns", [1, 2])
def test_answers_and_trajectories_are_those_of_one_call_for_all(turns: int) -> None:
    """Every group of the ledger has two episodes of one problem, so that prompts are shared too."""

    def play(kind: type, groups: int) -> list:
        policy = CausalLM(tiny("llama"), Texts(character_tokenizer()), max_tokens=8, prompt_length=64, slots=4)
        with VectorEnv(partial(MathEnv, turns=turns), GROUPS * SIZE, 0) as env:
            sim = SimStage(env, TrainingLedger(0, [0], None, GROUPS, SIZE).round, groups, 1)
            results = execute(Flow("sim", "act", groups, (), None), LocalBackend({"sim": sim, "act": kind(policy, 8, 0, rows=GROUPS * SIZE)}), 0, 2)
            return [item.payload for result in results for item in result.items]

    together, streamed = play(ActStage, 1), play(StreamingActStage, GROUPS * SIZE)
    assert [t.episode for t in streamed] == list(range(2 * GROUPS * SIZE))
    for one, other in zip(together, streamed):
        assert torch.equal(one.choices, other.choices) and torch.equal(one.mask, other.mask) and torch.equal(one.inputs["prompt_ids"], other.inputs["prompt_ids"])
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-5, rtol=0)
