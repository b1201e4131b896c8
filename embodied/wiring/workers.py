"""Config -> the stages that run it. The same functions build them in this process and in the processes of a cluster, so both give the same bits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Sequence

import torch
from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError
from embodied.episodes import TrainingLedger
from embodied.learning.optimizers import build_optimizer, learning_rate
from embodied.learning.memory.residence import OptimizerResidence, Residence
from embodied.learning.sharding import ALONE, Sharding, recompute_activations
from embodied.stages.act import ActStage
from embodied.stages.learn import LearnerSettings, LearnStage
from embodied.stages.read import ReadStage, demonstration_rows
from embodied.stages.ref import RefStage
from embodied.stages.sim import SimStage
from embodied.stages.streaming import StreamingActStage
from embodied.wiring import build
from embodied.wiring.ranks import Ranks
from envs.spec import EnvSpec
from policies.base import PolicySpec

SMALL = 20e6  # parameters of a language model: below, one thread generates faster than several, which wait for each other at every operation
LIMITS = ("epochs", "minibatch", "microbatch", "grad_clip")


@dataclass(frozen=True)
class Facts:
    """What is known of a run before its stages are built; travels to their processes."""

    env: EnvSpec
    policy: PolicySpec
    tasks: tuple[int, ...]
    states: tuple[int, ...] | None  # initial states that training starts from; None where a seed draws them
    threads: int  # of the learner
    weights: str | None = None  # a policy folder that replaces the config's
    learns: bool = True  # whether there is an algorithm

    def horizon(self, config: DictConfig) -> int | None:
        """Primitive steps after which a training episode is cut."""
        return None if self.env.horizon is None else max(1, round(self.env.horizon * config.horizon_share))

    def ledger(self, config: DictConfig, group_size: int) -> TrainingLedger:
        return TrainingLedger(config.seed, self.tasks, self.states, config.groups, group_size)


def elsewhere(config: dict, names: tuple[str, ...], facts: Facts, share: tuple[int, int] = (0, 1), slots: int = 0, workers: int = 0, sharding: Sharding | None = None) -> dict[str, Any]:
    """The named stages built from plain values, in a process that has nothing yet. slots, workers: this process's part of the simulators.
    sharding: its place among those that learn together, None where it is to start them."""
    torch.set_num_threads(1)  # some initialisers (QR) give other last bits on more threads
    whole = OmegaConf.create(config)
    algorithm, learner = build.algorithm(whole) if facts.learns else (None, {})
    if algorithm is not None:
        algorithm.action_dims = facts.policy.action_dims
    policy = build.policy(whole, bool(algorithm and algorithm.needs_values), facts.weights and Path(facts.weights)) if set(names) - {"sim"} else None
    env = None
    if "sim" in names:
        env = build.started_env(whole, build.env_thunk(whole, facts.policy), facts.env, slots, workers)
    return stages(whole, names, facts, algorithm, learner, policy, env, share, sharding)


def stages(config: DictConfig, names: Sequence[str], facts: Facts, algorithm: Any, learner: dict[str, Any], policy: Any, env: Any, share: tuple[int, int] = (0, 1), sharding: Sharding | None = None) -> dict[str, Any]:
    """The named stages around a policy and an env that are there. Where act and learn are both among them they share the policy, unless sampling
    may lie behind or learning has several processes of its own."""
    spec, found = facts.policy, {}
    spread = config.sharding.processes > 1 and sharding is None  # over processes that this one starts
    shared = config.staleness == 0 and {"act", "learn"} <= set(names) and not spread
    if "sim" in names:
        ledger = (lambda number: ()) if algorithm is None or algorithm.imitates else facts.ledger(config, algorithm.group_size).round
        found["sim"] = SimStage(env, ledger, share[1], spec.chunk, share=share)
    if "ref" in names:
        frozen = copy.deepcopy(policy).requires_grad_(False) if len(set(names) - {"sim"}) > 1 else policy.requires_grad_(False)
        found["ref"] = RefStage(frozen, algorithm, facts.threads, _residence(frozen))
    home = _residence(policy)
    if "act" in names:
        own = policy if shared or spread or "learn" not in names else copy.deepcopy(policy)
        make = StreamingActStage if spec.streams else ActStage
        threads = facts.threads if spec.streams and sum(p.numel() for p in policy.parameters()) > SMALL else 1
        found["act"] = make(own, spec.chunk * spec.action_dims, config.seed, rows=config.scheduler.act_rows, threads=threads, residence=home if own is policy else _residence(own), lag=config.staleness)
    if "read" in names:
        rows = demonstration_rows(policy, build.demonstrations(config, facts.env), spec.chunk)
        print(f"{rows.rows} demonstration steps", flush=True)
        found["read"] = ReadStage(rows, learner["rows_per_iteration"], config.seed)
    if "learn" in names:
        found["learn"] = _spread(config, facts) if spread else _learner(config, facts, algorithm, learner, policy, home, None if shared else config.staleness, sharding or ALONE)
    return found


def _spread(config: DictConfig, facts: Facts) -> Ranks:
    """The learner's processes, each on cores or an accelerator of its own. Raises ConfigError when there are not as many accelerators."""
    count, device = config.sharding.processes, build.device(config)
    if device.startswith("cuda") and (config.cluster.kind == "ray" or torch.cuda.device_count() < count):
        raise ConfigError(f"sharding.processes={count}: found {torch.cuda.device_count()} accelerators with cluster={config.cluster.kind}, wanted cluster=local and one for each process; use as many as there are, or device=cpu")
    if config.sharding.offload and not device.startswith("cuda"):
        raise ConfigError(f"sharding.offload=true: found device={device}, wanted accelerators to keep free; everything is in host memory as it is, leave it false")
    threads = max(1, facts.threads // count)
    print(f"starting a learner of {count} processes, {threads} threads each", flush=True)
    make = partial(_member, OmegaConf.to_container(config), replace(facts, threads=threads), device)
    return Ranks(make, count, threads, config.sim.timeout, config.sim.start_timeout)


def _member(config: dict, facts: Facts, device: str, rank: int, store: str) -> LearnStage:
    """In a process of the learner: its stage, once all have found each other."""
    import torch.distributed as dist

    its = config["sharding"]
    on_cpu = not device.startswith("cuda")
    config["device"] = "cpu" if on_cpu else f"cuda:{rank}"
    if not on_cpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if on_cpu else "cpu:gloo,cuda:nccl", store=dist.FileStore(store, its["processes"]), rank=rank, world_size=its["processes"])
    sharding = Sharding(rank, its["processes"], config["device"], its["precision"], its["offload"])
    return elsewhere(config, ("learn",), facts, sharding=sharding)["learn"]


def _learner(config: DictConfig, facts: Facts, algorithm: Any, learner: dict[str, Any], policy: Any, home: Any, lag: int | None, sharding: Sharding) -> LearnStage:
    settings = {key: value for key, value in learner.items() if key != "rows_per_iteration"}
    rate = partial(learning_rate, lr=settings["lr"], warmup_updates=settings.pop("warmup_updates"), schedule=settings.pop("schedule"))
    limits = {name: settings.pop(name) for name in LIMITS} | {"critic_warmup": settings.pop("critic_warmup", 0)}
    if config.sharding.activation_checkpointing:
        recompute_activations(policy)
    if sharding.count > 1:
        sharding.apply(policy)
    optimizer = build_optimizer(policy, **settings)
    if limits["critic_warmup"] and not optimizer.values:
        raise ConfigError(f"algorithm.learner.critic_warmup: found {limits['critic_warmup']}, but policy={config.choices['policy']} has no parameter that is named as a value head's (value_head in it, or critic at its start); set it to 0")
    residences = [home, OptimizerResidence(optimizer, home.device)] if sharding.count == 1 else []
    return LearnStage(policy, algorithm, optimizer, LearnerSettings(**limits, rate=rate, rounds=max(1, config.iterations)), config.seed, facts.threads, lag, residences, sharding)


def _residence(policy: Any) -> Residence | None:
    """Of a policy with weights; a scripted expert has none."""
    parameters = getattr(policy, "parameters", None)
    first = next(iter(parameters()), None) if parameters is not None else None
    return None if first is None else Residence(policy, first.device)
