"""The page: run the flow round by round, log, checkpoint, stop cleanly. Evaluation is one round of a flow without a learner.

A checkpoint holds the state between two rounds, so a run that was cut and resumed gives what an unbroken one would have given.
"""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Protocol, Sequence

from embodied import graphs
from embodied.episodes import EvaluationLedger, Played
from embodied.runs.answers import Answers, answers
from embodied.runs.folder import RunFolder, write_json
from embodied.runs.metrics import EpisodeLog, MetricsLog
from embodied.runs.progress import Progress
from embodied.runs.success import Rate, rate, rate_of
from embodied.stages.sim import Attempt
from scheduler.backends.base import Backend, Item, StageLost
from scheduler.planning.schedule import Plan
from scheduler.running.execute import RoundResult, Stopped, execute
from scheduler.running.flow import Flow
from scheduler.timeline import Timeline


SAID = 500  # characters of a prompt and of an answer that the log keeps, the last ones


@dataclass
class Logs:
    run: RunFolder
    metrics: MetricsLog
    episodes: EpisodeLog
    suite: str
    progress: Progress


@dataclass(frozen=True)
class Evaluated:
    rate: Rate  # success at any step
    at_end: Rate  # success at the last step
    steps: int  # env steps of all episodes
    timeline: Timeline
    answers: Answers | None  # where each start is met several times


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
    backend: Backend
    planner: Any  # scheduling.Planner
    weights: dict[int, Sequence[Any]]  # the versions that sampling may use, where it has weights of its own

    def use(self, chosen: Plan) -> None: ...

    def recover(self, lost: StageLost, done: int) -> int:
        """Builds anew what was lost; returns the round to go on from, `done` or an earlier one."""


def train(training: Training, logs: Logs, first: int, iterations: int, every: int, keep: int, restarts: int, per_round: int) -> None:
    """Rounds `first` to `iterations` - 1, planned again between two of them when the prediction has drifted. Raises Stopped after writing a checkpoint.

    restarts: times that a lost process is built anew; one more loss ends the run. per_round: episodes of a round, for the progress line.
    """
    done = saved = first
    logs.progress.begin(first)
    with Interrupt() as interrupt:
        while done < iterations:
            ended = itertools.count(1)
            try:
                for result in execute(
                    training.flow, training.backend, done, iterations, lambda: interrupt.requested, training.weights,
                    lambda item: logs.progress.within("playing:", (next(ended) - 1) % per_round + 1, per_round) if item.about else None,
                ):  # fmt: skip
                    done, training.weights = result.number + 1, result.weights
                    log_round(result, logs, training.planner)
                    if done % every == 0 or done == iterations:
                        training.backend.ask("learn", "save", logs.run.checkpoints, done, keep)
                        saved = done
                    if training.planner.drifted and done < iterations and not training.flow.lag:
                        training.use(training.planner.replan())
                        break  # nothing is in flight; go on with the flow laid out anew
            except StageLost as lost:
                if interrupt.requested:
                    raise
                again, restarts = mended(lost, restarts, logs.progress, lambda lost: training.recover(lost, done))
                done = min(done, again)
                saved = min(saved, done)
                logs.metrics.cut(done)
                logs.episodes.cut(done)
            except Stopped as stopped:
                if stopped.round > saved:
                    training.backend.ask("learn", "save", logs.run.checkpoints, stopped.round, keep)
                raise


def mended(lost: StageLost, restarts: int, progress: Progress, recover: Callable[[StageLost], Any]) -> tuple[Any, int]:
    """(what `recover` gave, restarts left), also where more is lost while it is at it. Raises StageLost when no restart is left."""
    while True:
        if restarts == 0:
            raise lost
        restarts -= 1
        progress.note(f"{lost}\nbuilding it anew; {restarts} more such losses are mended, the next one ends the run")
        try:
            return recover(lost), restarts
        except StageLost as another:
            lost = another


@dataclass(frozen=True)
class Exam:
    """How an evaluation is done."""

    backend: Backend
    plan: Plan
    weights: Sequence[Any] | None  # to be judged, where sampling has weights of its own
    recover: Callable[[StageLost], Sequence[Any] | None]  # builds anew what was lost; the weights to be judged, as above
    phase: str
    iteration: int  # updates done
    suite: str
    greedy: bool
    restarts: int  # times that a lost process is built anew


def evaluate(exam: Exam, ledger: EvaluationLedger, episodes: EpisodeLog, progress: Progress, on_episode: Callable[[Attempt], None] | None = None) -> Evaluated:
    """Every episode of the ledger once; each has its row in the log, in ledger order, as soon as it and those before it have ended. Rows of the same phase that were there before are replaced."""
    backend, number, weights, restarts = exam.backend, exam.iteration, exam.weights, 0 if on_episode is not None else exam.restarts
    flow = replace(exam.plan.flow(graphs.evaluation()), taught="act", lag=0)
    while True:
        episodes.forget(exam.phase)
        rows = Rows(exam, ledger.total, episodes.write, progress)
        try:
            backend.arrange(exam.plan.slot_groups)
            backend.ask("act", "assign", "evaluate", exam.greedy)
            backend.ask("sim", "assign", ledger.round, exam.plan.slot_groups, None, False, on_episode)
            with Interrupt() as interrupt:
                (result,) = execute(flow, backend, number, number + 1, lambda: interrupt.requested, {} if weights is None else {number: weights}, rows.add)
            break
        except StageLost as lost:
            weights, restarts = mended(lost, restarts, progress, exam.recover)
    once, at_end = (rate_of(row | {"success": row[key]} for row in rows.ended) for key in ("success", "success_at_end"))
    return Evaluated(once, at_end, sum(row["steps"] for row in rows.ended), result.timeline, answers(rows.ended))


class Rows:
    """The rows of an evaluation, logged in ledger order."""

    def __init__(self, exam: Exam, total: int, log: Callable[[dict], Any], progress: Progress) -> None:
        self._exam, self._total, self._log, self._progress = exam, total, log, progress
        self.ended: list[dict[str, Any]] = []
        self._waiting: dict[int, dict[str, Any]] = {}
        self._logged = 0

    def add(self, item: Item) -> None:
        row = self._waiting[item.order] = episode_row(item.about, self._exam.phase, self._exam.iteration, self._exam.suite)
        self.ended.append(row)
        while self._logged in self._waiting:
            self._log(self._waiting.pop(self._logged))
            self._logged += 1
        self._progress.within(f"evaluating {self._exam.phase}:", len(self.ended), self._total)


def log_round(result: RoundResult, logs: Logs, planner: Any) -> None:
    """One row of metrics, the rows of the round's episodes, the timeline of the round, the progress line."""
    done, seconds, wall = result.number + 1, result.timeline.busy(), result.took
    played = [item.about for item in result.items if item.about is not None]
    row: dict[str, Any] = {"learn": result.report, **planner.compare(result, [each.chunks for each in played])}
    success = steps_per_s = mean_return = None
    if played:
        for each in played:
            logs.episodes.write(episode_row(each, "train", done, logs.suite))
        steps = sum(each.steps for each in played)
        success = rate(sum(each.success for each in played), len(played))
        steps_per_s = steps / wall
        mean_return = sum(each.total for each in played) / len(played)
        row |= {"success": success.as_dict(), "episode_steps": steps / len(played), "env_steps": steps, "env_steps_per_s": steps_per_s}
        remarks = Counter(each.remark for each in played if each.remark)
        if remarks:
            row["remarks"] = dict(remarks)
            logs.progress.note(f"iteration {done}: " + "; ".join(f"{count} of {len(played)} episodes: {remark}" for remark, count in remarks.items()))
    if result.report and not result.report["updates"]:
        logs.progress.note(f"iteration {done}: no update, because no row had anything to teach ({result.report['rows']} rows)")
    logs.metrics.write(done, row)
    write_json(logs.run.timeline_json, result.timeline.perfetto())
    logs.progress.update(done, success, steps_per_s, seconds, result.timeline.bottleneck(), row.get("plan", {}).get("error"), mean_return)


def episode_row(played: Played, phase: str, iteration: int, suite: str) -> dict[str, Any]:
    episode = played.episode
    return {
        "phase": phase, "iteration": iteration, "episode": episode.id, "group": episode.group, "suite": suite, "task": episode.task, "init_state": episode.init_state,
        "seed": episode.seed, "success": played.success, "success_at_end": played.success_at_end, "steps": played.steps, "return": played.total,
        "terminated": played.terminated, "truncated": played.truncated, "errored": False, **({"remark": played.remark} if played.remark else {}), **({} if played.said is None else dict(zip(("prompt", "answer", "gold"), (text[-SAID:] for text in played.said)))),
    }  # fmt: skip
