"""What a run's stages take and hold, measured on the real ones; and where that is kept for the next run of the config."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from pathlib import Path
from typing import Any, Callable

from omegaconf import DictConfig, OmegaConf

from embodied import graphs
from embodied.stages.learn import streams
from scheduler import profile as profiles
from scheduler.backends.base import Backend, Call, Item
from scheduler.graph import MacroGraph
from scheduler.planning.explain import seconds as in_words
from scheduler.planning.measure import sample, trial, typical
from scheduler.planning.schedule import Plan, StagePlan
from scheduler.profile import ACCELERATORS, CORES, Point, Profile, ProfileError, Round, StageProfile
from scheduler.resources import Cluster, this_machine
from scheduler.running.execute import call

TURNS = 12  # of the loop, measured for each number of slots
STREAMED_TURNS = 2  # ... where a turn is whole answers
GUESSED_TURNS = 100  # of an episode of an env without a step budget, until one has been seen


def measure(config: DictConfig, parts: Any, graph: MacroGraph, backend: Backend, tell: Callable[[str], None]) -> Profile:
    """Some turns of the real loop with one slot and with all, an episode through each stage behind it, and one minibatch of the learner."""
    facts, size = parts.facts, parts.algorithm.group_size
    on = ACCELERATORS if str(parts.device).startswith("cuda") else CORES
    units = facts.threads if on == CORES else 1
    horizon = facts.horizon(config)
    steps = GUESSED_TURNS if horizon is None else math.ceil(horizon / facts.policy.chunk)
    total = config.groups * size
    stages, items, call_s = _loop(config, facts.ledger(config, size).round, backend, on, facts.policy.streams)
    longest = (max(items, key=lambda item: item.about.chunks),)
    if "ref" in graph.stages:
        longest, seconds, said = _timed(backend, "ref", longest)
        point = Point(size, units, seconds * steps * size / said["rows"], said["peak"])
        stages["ref"] = StageProfile(on, (point,), most_units=units, **_switch(backend, "ref", on))
    _, seconds, said = _timed(backend, "learn", longest)
    streaming = streams(parts.algorithm, parts.learner["epochs"], parts.learner["minibatch"])
    learned = size if streaming else total  # items of one call; at work it holds a micro-batch, however many they are
    point = Point(learned, units, seconds * learned * steps / said["rows"] * said["passes"], said["peak"])
    stages["learn"] = StageProfile(on, (point,), streams=streaming, most_units=units, **_switch(backend, "learn", on))
    edges = {f"{edge.source}->{edge.target}": said["row_bytes"] * steps for edge in graph.edges if edge.carries == "trajectory"}
    tell("measured: " + ", ".join(f"{name} {in_words(stage.points[-1].seconds)} for {stage.points[-1].items} {'slots' if name in ('sim', 'act') else 'episodes'}" for name, stage in stages.items()))
    return Profile(stages, Round(total, config.sim.slots, (steps,), size), edges, machine(), call_s)


def _loop(config: DictConfig, episodes: Callable[[int], Any], backend: Backend, on: str, streams: bool) -> tuple[dict[str, StageProfile], list[Item], float]:
    """sim and act, the episodes that were begun, cut where they were, and the caller's own seconds for each call. on: where act runs. streams: row by
    row, so that what is asked meanwhile is batched with it, and a call takes its rows' share of a full batch."""
    slots = config.sim.slots
    flow = Plan("collocated", slots, 1, {"sim": StagePlan(), "act": StagePlan()}).flow(graphs.evaluation())
    points: dict[str, list[Point]] = {"sim": [], "act": []}
    begin, call_s, items = 0.0, 0.0, []
    backend.ask("act", "assign", "train")
    most, workers = (n // len(backend.ask("sim", "cut")) for n in (slots, max(1, config.sim.workers)))
    for count in [most, *sorted({1, most})]:  # the first time is to warm up
        backend.arrange(1)
        backend.ask("sim", "assign", episodes, 1, None, True, None, count)
        found = sample(flow, backend, STREAMED_TURNS if streams else TURNS)
        items += [*found.items, *(item for cut in backend.ask("sim", "cut") for item in cut)]
        if not found.step:
            continue
        units = min(count, workers)
        points["sim"] = [*[p for p in points["sim"] if p.items != count], Point(count, units, typical(found.step))]
        points["act"] = [*[p for p in points["act"] if p.items != count], Point(count, 1, typical(found.answer))]
        begin, call_s = found.begin * units / count, found.call_s
    if not points["sim"]:
        raise ProfileError("found no turn to measure: every episode ended at its first chunk; set scheduler=collocated")
    if streams:
        full = points["act"][-1]
        points["act"] = [*([Point(1, 1, full.seconds / full.items)] if full.items > 1 else []), full]
    stages = {
        "sim": StageProfile(CORES, tuple(points["sim"]), begin_s=begin, most_units=config.sim.workers or 1),
        "act": StageProfile(on, tuple(points["act"]), most_units=1, **_switch(backend, "act", on)),
    }
    return stages, items, call_s


def _timed(backend: Backend, stage: str, items: tuple[Item, ...]) -> tuple[tuple[Item, ...], float, dict[str, Any]]:
    """(items as the stage hands them on, seconds, what its trial says of itself)."""
    trial(backend, stage, items)  # to warm up
    seconds, outcome = trial(backend, stage, items)
    return outcome.items or items, seconds, outcome.reply


def _switch(backend: Backend, stage: str, on: str) -> dict[str, Any]:
    """What a stage holds while it is loaded, and the seconds that bringing it in and away take (nothing on cores)."""
    held = {"resident": backend.ask(stage, "resident")[0]}
    if on == CORES:
        return held
    spent = {}
    for kind in ("load", "unload", "load"):  # the first time it is there already
        event = call(backend, Call(0, stage, kind, 0))
        spent[f"{kind}_s"] = event.end - event.start
    return held | spent


def machine() -> str:
    return f"{platform.machine()} {_cpu()}, {this_machine().cores} cores, {platform.system()}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")
    except OSError:
        return platform.processor() or "CPU"


def saved_profile(config: DictConfig, cluster: Cluster) -> Path:
    """Where the profile of this machine and config lies: below `output`, named by everything that decides a call's seconds."""
    plain = OmegaConf.to_container(config)
    decides = {key: plain[key] for key in ("env", "policy", "algorithm", "groups", "horizon_share", "sim", "device", "sharding")} | {"rows": plain["scheduler"]["act_rows"], "threads": plain["scheduler"]["learn_threads"], "staleness": plain["staleness"] > 0, "nodes": [node.cores for node in cluster.nodes], "cluster": plain["cluster"]["kind"], "machine": machine()}
    key = hashlib.blake2b(json.dumps(decides, sort_keys=True, default=str).encode(), digest_size=6).hexdigest()
    return Path(config.output) / "profiles" / f"{config.choices.env}-{config.choices.policy}-{key}.json"


def covering(profile: Profile, graph: MacroGraph, config: DictConfig) -> Profile:
    """The profile itself when it has what the graph wants. Raises ProfileError that says why a stage is in the graph."""
    if "ref" in graph.stages and "ref" not in profile.stages:
        raise ProfileError(f"the profile has no stage 'ref', wanted it beside {', '.join(sorted(profile.stages))}: algorithm.kl_coef={config.algorithm.kl_coef} takes the frozen start's log-probabilities; add the stage, or set algorithm.kl_coef=0")
    return profile


def known_profile(config: DictConfig, cluster: Cluster) -> Profile | None:
    """The one that scheduler.profile names, else the saved one of this machine and config, else None."""
    if config.scheduler.profile is not None:
        return profiles.load(Path(config.scheduler.profile))
    try:
        return profiles.load(saved_profile(config, cluster)) if saved_profile(config, cluster).is_file() else None
    except ProfileError:
        return None  # damaged: it is measured again
