"""`python -m embodied.plan env=... policy=... [cluster=8xh100] [profile=file.json]`: what a run would hold in memory, the schedule that it would have, and why, without running it.

The stages' times are those of the saved profile of this machine and config; where there is none they are measured first, with simulators and all.
With profile=FILE nothing is measured and no simulator is started, so it works for clusters that are not here. Writes plan.json and plan.png below output=.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the libraries below are still imported ends the program without a traceback

import sys
from contextlib import ExitStack, closing
from typing import Sequence

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from embodied.config import ConfigError, compose, refuse_unused
from embodied.runs.folder import RunFolder
from embodied.runs.gantt import write_png
from embodied.runs.progress import Progress
from embodied.wiring import build, fit, measuring, memory, programs, room, scheduling
from embodied.wiring.deployment import device_of, joined
from embodied.wiring.training import Training
from scheduler.planning.explain import bottleneck, memory_lines, plan_table, seconds, stage_table
from scheduler.planning.gantt import chart, text_gantt
from scheduler.planning.plan import plan
from scheduler.planning.rehearse import rehearse
from scheduler.planning.schedule import Plan
from scheduler.profile import Profile
from scheduler.resources import Cluster, named, of_plain, this_machine

UNUSED = {"record": "it belongs to evaluate", "videos": "they belong to evaluate", "resume": "a plan is made from a config, not from a run"}


def main(arguments: Sequence[str] | None = None) -> int:
    return programs.guarded(show, arguments, __doc__)


def show(arguments: Sequence[str]) -> None:
    own = dict(argument.split("=", 1) for argument in arguments if argument.split("=")[0] in ("cluster", "profile"))
    rest = [argument for argument in arguments if argument.split("=")[0] not in own]
    config = compose([*rest, *([f"scheduler.profile={own['profile']}"] if "profile" in own else [])])
    refuse_unused(config, "plan", UNUSED)
    graph = programs.graph_of(config, build.algorithm(config)[0])
    cluster = cluster_of(own.get("cluster", "local"))
    print(memory_page(config, cluster, own.get("cluster", "local") == "local"), end="\n\n", flush=True)
    profile = measuring.covering(measuring.known_profile(config, this_machine()) or measured(config), graph, config)
    groups = None if config.scheduler.groups is None else [config.scheduler.groups]
    here = own.get("cluster", "local") == "local" and "profile" not in own
    chosen = plan(graph, profile, cluster, config.scheduler.mode, groups, config.sim.workers if here else None)
    timeline = rehearse(graph, chosen, profile, cluster, 1 if chosen.together is None else 2)[-1].timeline
    with closing(RunFolder.create(config.output, config.choices.env, config.choices.policy, kind="plan")) as run:
        OmegaConf.save(config, run.config_yaml)
        chosen.save(run.plan_json)
        write_png(run.path / "plan.png", chart(timeline), f"{config.choices.policy} on {config.choices.env}, {own.get('cluster', 'local')}: {seconds(chosen.predicted.iteration_s)} an iteration, {chosen.mode}; {bottleneck(chosen)}")
        print(page(chosen, profile, cluster))
        runnable = f"; run it by scheduler=from_file scheduler.file={run.plan_json}" if here else ""
        print(f"\n{text_gantt(timeline)}\n\nrun: {run} (plan.json, plan.png{runnable})")


def page(chosen: Plan, profile: Profile, cluster: Cluster) -> str:
    """Everything the plan says, as text."""
    beyond = [name for name, stage in chosen.stages.items() if profile.stage(name).extrapolated(stage.granule or profile.round.slots, stage.units)]
    note = f"\nbeyond what was measured: {', '.join(beyond)}" if beyond else ""
    return "\n".join([
        f"{len(cluster.nodes)} node{'s' * (len(cluster.nodes) != 1)}, {cluster.cores} cores, {len(cluster.accelerators)} accelerators; "
        f"a round of {profile.round.items} items in {profile.round.slots} slots, as the profile was measured or says",
        "", plan_table(chosen), "", stage_table(chosen), "", bottleneck(chosen) + note, *([f"by the profile: {memory_lines(chosen)}"] if cluster.accelerators else []),
    ])  # fmt: skip


def memory_page(config: DictConfig, cluster: Cluster, here: bool) -> str:
    """What the stages will hold and need, of what there is; here: on this machine. Raises MemoryRefused when it will not fit."""
    try:
        algorithm, learner = build.algorithm(config)
        room.check_unread(config, None, {room.HOST: room.free_on_host()})  # it is built here, wherever it is to run
        policy = build.policy(config, algorithm.needs_values)
        spec = build.env_spec(config, policy.spec)
    except room.MemoryRefused:
        raise
    except ConfigError as error:
        return f"memory: not known, as the policy cannot be made here: {error}"
    algorithm.action_dims = policy.spec.action_dims
    if here:
        fit.settle_streaming(config, policy.spec)  # as train does
    there = room.there(config, cluster, device_of(config, cluster), policy) if here else room.of_cluster(cluster)
    case = memory.Case(config, policy, spec, algorithm, learner, scheduling.learn_threads(config, cluster), there, not here)
    memory.check(case)
    return memory.table(case)


def cluster_of(name: str) -> Cluster:
    """local, a named cluster, or a yaml or json file. Raises ConfigError and ClusterError."""
    if not name.endswith((".yaml", ".yml", ".json")):
        return named(name)
    try:
        return of_plain(OmegaConf.to_container(OmegaConf.load(name)))
    except (OSError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"cluster={name}: {error}") from error


def measured(config: DictConfig) -> Profile:
    """This machine's times for the config, measured and kept."""
    with ExitStack() as stack:
        parts = stack.enter_context(programs.Parts(config, stack.enter_context(joined(config))))
        progress = stack.enter_context(Progress(1))
        if parts.algorithm.imitates:
            raise ConfigError("algorithm=bc: imitation reads and learns, and there is nothing to plan; choose another algorithm")
        return Training(config, parts, None, progress).measured(progress)


if __name__ == "__main__":
    sys.exit(main())
