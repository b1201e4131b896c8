"""The page: run the flow round by round, log, checkpoint, stop cleanly. Evaluation is one round of a flow without a learner.

A checkpoint holds the state between two rounds, so a run that was cut and resumed gives what an unbroken one would have given.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from embodied import graphs
from embodied.episodes import EvaluationLedger
from embodied.learning.data import Trajectory
from embodied.runs import checkpoint
from embodied.runs.folder import RunFolder, write_json
from embodied.runs.metrics import EpisodeLog, MetricsLog
from embodied.runs.progress import Progress
from embodied.runs.success import Rate, rate
from embodied.stages.act import ActStage
from embodied.stages.learn import LearnStage
from embodied.stages.sim import Attempt, SimStage
from scheduler.backends.local_backend import LocalBackend
from scheduler.planning.schedule import Plan
from scheduler.running.execute import RoundResult, Stopped, execute
from scheduler.running.flow import Flow
from scheduler.timeline import Timeline


@dataclass
class Logs:
    run: RunFolder
    metrics: MetricsLog
    episodes: EpisodeLog
    suite: str
    progress: Progress


@dataclass(frozen=True)
class Evaluated:
    rate: Rate
    steps: int  # env steps of all episodes
    timeline: Timeline


class Interrupt:
    """While inside, the first Ctrl-C (or SIGTERM) asks the executor to stop between calls; the second raises KeyboardInterrupt.

    A request that came too late to stop anything is a KeyboardInterrupt at the end, so that the program does not go on with the next phase.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.requested and kind is None:
            raise KeyboardInterrupt

    def _ask(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after the call that runs (Ctrl-C again: at once)", flush=True)


class Training(Protocol):
    """What is trained, and how it is laid out."""

    flow: Flow
    backend: LocalBackend
    learn: LearnStage
    planner: Any  # scheduling.Planner

    def use(self, chosen: Plan) -> None: ...


def train(training: Training, logs: Logs, first: int, iterations: int, every: int, keep: int) -> None:
    """Rounds `first` to `iterations` - 1, planned again between two of them when the prediction has drifted. Raises Stopped after writing a checkpoint."""
    done = saved = first
    logs.progress.begin(first)
    with Interrupt() as interrupt:
        try:
            while done < iterations:
                for result in execute(training.flow, training.backend, done, iterations, stop=lambda: interrupt.requested):
                    done = result.number + 1
                    log_round(result, logs, training.planner)
                    if done % every == 0 or done == iterations:
                        save(logs.run, training.learn, done, keep)
                        saved = done
                    if training.planner.drifted and done < iterations and not training.flow.lag:
                        training.use(training.planner.replan())
                        break  # nothing is in flight; go on with the flow laid out anew
        except Stopped as stopped:
            if stopped.round > saved:
                save(logs.run, training.learn, stopped.round, keep)
            raise


def evaluate(env: Any, policy: Any, plan: Plan, ledger: EvaluationLedger, *, seed: int, greedy: bool, rows: int, log: Callable[[dict], Any],
             progress: Progress, phase: str, suite: str, iteration: int = 0, on_episode: Callable[[Attempt], None] | None = None) -> Evaluated:  # fmt: skip
    """Every episode of the ledger once; each is given to `log` as a row, in ledger order, as soon as it and those before it have ended."""
    episodes, ended = ledger.round(0), []
    place, waiting, logged = {episode.id: episode.order for episode in episodes}, {}, 0

    def finish(trajectory: Trajectory) -> dict[str, Any]:
        nonlocal logged
        row = waiting[place[trajectory.episode]] = episode_row(trajectory, phase, iteration, suite)
        ended.append(row)
        while logged in waiting:
            log(waiting.pop(logged))
            logged += 1
        progress.within(f"evaluating {phase}:", len(ended), len(episodes))
        return row

    tokens = policy.spec.chunk * policy.spec.action_dims
    sim = SimStage(env, lambda number: episodes, plan.slot_groups, policy.spec.chunk, on_episode=on_episode, finish=finish)
    act = ActStage(policy, tokens, seed, "evaluate", greedy, rows, plan.threads["act"])
    flow = plan.flow(graphs.evaluation())
    with Interrupt() as interrupt:
        (result,) = execute(flow, LocalBackend({"sim": sim, "act": act}), 0, 1, stop=lambda: interrupt.requested)
    return Evaluated(rate(sum(row["success"] for row in ended), len(ended)), sum(row["steps"] for row in ended), result.timeline)


def log_round(result: RoundResult, logs: Logs, planner: Any) -> None:
    """One row of metrics, the rows of the round's episodes, the timeline of the round, the progress line."""
    done, seconds, wall = result.number + 1, result.timeline.busy(), result.timeline.wall
    trajectories = [item.payload for item in result.items if isinstance(item.payload, Trajectory)]
    row: dict[str, Any] = {"learn": result.report, **planner.compare(result, [trajectory.length for trajectory in trajectories])}
    success = steps_per_s = mean_return = None
    if trajectories:
        for trajectory in trajectories:
            logs.episodes.write(episode_row(trajectory, "train", done, logs.suite))
        steps = sum(trajectory.steps for trajectory in trajectories)
        success = rate(sum(t.success for t in trajectories), len(trajectories))
        steps_per_s = steps / wall
        mean_return = sum(float(t.rewards.sum()) for t in trajectories) / len(trajectories)
        row |= {"success": success.as_dict(), "episode_steps": steps / len(trajectories), "env_steps": steps, "env_steps_per_s": steps_per_s}
    logs.metrics.write(done, row)
    write_json(logs.run.timeline_json, result.timeline.perfetto())
    logs.progress.update(done, success, steps_per_s, seconds, result.timeline.bottleneck(), row.get("plan", {}).get("error"), mean_return)


def episode_row(trajectory: Trajectory, phase: str, iteration: int, suite: str) -> dict[str, Any]:
    meta = trajectory.meta
    return {
        "phase": phase, "iteration": iteration, "episode": trajectory.episode, "suite": suite, "task": meta["task"], "init_state": meta["init_state"],
        "seed": meta["seed"], "success": trajectory.success, "steps": trajectory.steps, "return": float(trajectory.rewards.sum()),
        "terminated": trajectory.terminated, "truncated": trajectory.truncated, "errored": False,
    }  # fmt: skip


def save(run: RunFolder, learn: LearnStage, iterations: int, keep: int) -> None:
    """step_<iterations>: the policy, the optimizer to the bit, and how far the run has come."""
    tensors, rest = checkpoint.flatten_optimizer(learn.optimizer.state_dict())
    state = {"iterations": iterations, "updates": learn.updates, "optimizer": rest}
    checkpoint.save(run.checkpoints, iterations, {"policy": learn.policy.state_dict(), "optimizer": tensors}, state, learn.policy.save_pretrained, keep)


def restore(path: Any, learn: LearnStage) -> int:
    """Puts a checkpoint's policy and optimizer in place; returns the iterations done."""
    tensors, state = checkpoint.load(path)
    learn.policy.load_state_dict(tensors["policy"])
    learn.optimizer.load_state_dict(checkpoint.unflatten_optimizer(tensors["optimizer"], state["optimizer"]))
    learn.updates = int(state["updates"])
    return int(state["iterations"])
