"""Learners of several processes, built from plain values in each, and what they learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.algorithms.ppo import PPO
from embodied.learning.collect import ChunkRecord, assemble
from embodied.learning.data import Trajectory
from embodied.learning.optimizers import build_optimizer
from embodied.learning.sharding import ALONE, Sharding, recompute_activations
from embodied.stages.learn import LearnerSettings, LearnStage
from envs.spec import ActionSpec, EnvSpec
from policies.checkpoints.fresh import create_checkpoint
from policies.mlp import MLP
from policies.openvla_oft import OpenVLAOFT

SPEC = EnvSpec("t", ActionSpec("discrete", 1, choices=3), state=2)
SIZES = {"image": 32, "patch": 16, "vision_width": 16, "hidden": 32, "layers": 2, "mlp": 48}
STATISTICS = {"toy": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}}}
ROUNDS = 3


def small_vla(folder: Path) -> str:
    return str(create_checkpoint(folder, ["push the plate"], STATISTICS, sizes=SIZES))


def policy_of(kind: str, folder: str | None):
    if kind == "mlp":
        return MLP(SPEC, hidden=(7,), seed=1)
    return OpenVLAOFT.from_pretrained(folder, **({"dtype": "bfloat16", "lora": {"rank": 2}} if kind == "lora" else {}))


def learner(kind: str, folder: str | None, sharding: Sharding = ALONE) -> LearnStage:
    """mlp: PPO with stale rows, minibatches and micro-batches that do not divide. vla: GRPO over transformer blocks that are run twice, by Muon, an update a round.
    lora: the same with adapters in float32 on weights in bfloat16, by AdamW."""
    policy = policy_of(kind, folder)
    lag, algorithm = (1, PPO()) if kind == "mlp" else (0, GRPO(group_size=2))
    cut = {"epochs": 2, "minibatch": 5} if kind == "mlp" else {"epochs": 1, "minibatch": 11}
    limits = {**cut, "microbatch": 2, "grad_clip": 1.0, "rate": lambda update, share: 3e-3, "rounds": ROUNDS}
    if kind != "mlp":
        recompute_activations(policy)
    if sharding.count > 1:
        sharding.apply(policy)
    optimizer = build_optimizer(policy, lr=3e-3, optimizer="muon" if kind == "vla" else "adamw")
    return LearnStage(policy, algorithm, optimizer, LearnerSettings(**limits), seed=0, lag=lag, sharding=sharding)


def member(kind: str, folder: str | None, count: int, rank: int, store: str) -> LearnStage:
    """What each process of `embodied.wiring.ranks.Ranks` builds."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
    return learner(kind, folder, Sharding(rank, count, "cpu"))


def trajectories(kind: str, folder: str | None) -> list[Trajectory]:
    """Four episodes of 2, 3, 3 and 3 chunks in two groups, of which one alone succeeds: 11 rows for 2 or 4 processes."""
    policy, steps = policy_of(kind, folder), (2, 3, 3, 3)
    return [_episode(kind, policy, number, chunks) for number, chunks in enumerate(steps)]


def _episode(kind: str, policy, number: int, chunks: int) -> Trajectory:
    records = []
    for step in range(chunks):
        random = np.random.default_rng([number, step])
        chunk = policy.act(_seen(kind, random), random.random((1, policy.spec.chunk * policy.spec.action_dims)))
        value = None if chunk.values is None else float(chunk.values[0])
        records.append(ChunkRecord(chunk.inputs, chunk.choices[0], chunk.logprobs[0], chunk.mask[0], [float(number % 2)] * policy.spec.chunk, value))
    final = _seen(kind, np.random.default_rng(number))
    return assemble(records, episode=number, group=number // 2, chunk=policy.spec.chunk, terminated=False, truncated=True, final_observation=final, success=number % 2 == 1)


def _seen(kind: str, random: np.random.Generator) -> dict:
    if kind == "mlp":
        return {"state": random.random((1, 2), dtype=np.float32)}
    return {"images/agentview": random.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8), "instruction": ["push the plate"]}
