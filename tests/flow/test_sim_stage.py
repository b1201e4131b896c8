"""The sim stage plays every episode of the ledger once, cuts where it is told to, and hands the last observation on."""

from __future__ import annotations

from functools import partial

import pytest

from embodied.episodes import TrainingLedger
from embodied.stages.act import ActStage
from embodied.stages.sim import SimStage
from envs.toy import ToyEnv
from envs.vector import VectorEnv
from policies.mlp import MLP
from scheduler.backends.local_backend import LocalBackend
from scheduler.running.execute import execute
from scheduler.running.flow import Flow


def play(slots: int, groups: int, episodes: int, horizon: int | None = None, chunk: int = 1, rounds: int = 1) -> list:
    """Trajectories of `rounds` rounds, in ledger order."""
    with VectorEnv(partial(ToyEnv, horizon=6, goal=6), slots, 0) as env:
        policy = MLP(env.env_spec, chunk=chunk)
        sim = SimStage(env, TrainingLedger(0, [0], range(50), episodes, 1).round, groups, chunk, horizon=horizon)
        act = ActStage(policy, chunk, 0, "train", rows=2)
        results = execute(Flow("sim", "act", groups, (), None), LocalBackend({"sim": sim, "act": act}), 0, rounds)
        return [item.payload for result in results for item in result.items]


@pytest.mark.parametrize(("slots", "groups"), [(1, 1), (4, 1), (4, 2), (4, 4), (6, 3)])
@pytest.mark.parametrize("episodes", [1, 5, 9])
def test_every_episode_is_played_once_however_many_slots_there_are(slots: int, groups: int, episodes: int) -> None:
    assert [t.episode for t in play(slots, groups, episodes, rounds=2)] == list(range(2 * episodes))


def test_a_shorter_horizon_cuts_inside_a_chunk_and_counts_as_truncation() -> None:
    trajectory = play(1, 1, 1, horizon=4, chunk=3)[0]
    assert trajectory.steps == 4 and trajectory.truncated and not trajectory.terminated
    assert trajectory.mask.sum(1).tolist() == [3, 1]
    assert trajectory.final_observation["state"][0, 0] == 4


def test_a_longer_horizon_than_the_envs_changes_nothing() -> None:
    assert [t.steps for t in play(2, 1, 3, horizon=60)] == [t.steps for t in play(2, 1, 3)]
