"""Slots of one batched simulator behind the interface of envs.vector.VectorEnv: what is asked is kept, and `wait` runs it all at once.

Guarantees: a slot gives back what `ManiSkillEnv` would for the same episode in that simulator: n rewards for the n steps that it ran, and the observation
after its own last one, on the simulator's device; it looks once per chunk, or once per step at which some slot's chunk ends. All queued steps are run
before all queued resets. The simulator can only step every slot: one that has no episode gets zero actions; one that plays but was not asked, or whose
chunk is over before the others', is moved on by them, and cannot be stepped again until it is reset.
"""

from __future__ import annotations

import time
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Protocol

import numpy as np
import torch

from envs.maniskill.episode import Episode, for_simulator, plays_on
from envs.process import EnvError
from envs.spec import EnvSpec
from envs.vector import SlotResult


class Simulator(Protocol):
    """envs.maniskill.parallel.Parallel, with N the number of slots."""

    device: torch.device

    def reset(self, seeds: dict[int, int]) -> None:
        """Slot -> seed of the episode that it begins."""

    def step(self, actions: torch.Tensor) -> np.ndarray:
        """[N, A] -> [3, N]: rewards, successes, failures."""

    def look(self) -> dict[str, Any]:
        """What an observation holds, each entry of N rows."""

    def close(self) -> None: ...


class ManiSkillBatch:
    """make: builds the simulator, at once. begun: a new episode's count, given whether it goes on past success. Raises EnvError where the simulator cannot be built, or raises at work."""

    def __init__(self, make: Callable[[], Simulator], slots: int, env_spec: EnvSpec, begun: Callable[[bool], Episode]):
        if slots < 1:
            raise ValueError(f"found {slots} slots, wanted at least one")
        self.slots, self.env_spec, self._begun = slots, env_spec, begun
        self._episodes: list[Episode | None] = [None] * slots
        self._moved: set[int] = set()  # slots in whose episode others' steps have been run
        self._seeds: dict[int, int] = {}  # slot -> of the reset that is asked for
        self._playing_on: set[int] = set()  # slots whose next episode goes on past success
        self._chunks: dict[int, np.ndarray] = {}  # slot -> [n, A] that it is asked to step, in the simulator's convention
        with _failing("start"):
            self._simulator: Simulator | None = make()

    def reset(self, slot: int, seed: int | None, options: dict | None = None, label: str = "") -> None:
        """Asks for the start of the episode that the seed (below 2**32) draws; returns at once. options: {"task": 0}, {"play_on": True}, both or nothing. Raises ValueError without a seed."""
        self._check_free(slot, "reset")
        play_on = plays_on(self.env_spec.name, options)
        if seed is None:
            raise ValueError(f"slot {slot}{f' ({label})' if label else ''}: found a reset without a seed, wanted one: it draws how the episode begins")
        self._seeds[slot] = int(seed)
        (self._playing_on.add if play_on else self._playing_on.discard)(slot)

    def step(self, slot: int, actions: np.ndarray) -> None:
        """Asks for a chunk, [n, A]; returns at once. Raises ValueError for a misshapen one, RuntimeError where there is no episode to go on with."""
        self._check_free(slot, "step")
        episode = self._episodes[slot]
        if episode is None or episode.over:
            raise RuntimeError(f"slot {slot} was asked to step with no episode running (none begun, or it has ended); reset it first")
        if slot in self._moved:
            raise RuntimeError(
                f"slot {slot}: found its episode moved on by the steps of other slots, wanted every slot that plays asked together and for chunks of one length; "
                "a batched simulator steps all slots at once: play in one slot group (scheduler.groups=1), or reset the slot"
            )
        self._chunks[slot] = for_simulator(actions, self.env_spec.action)[: episode.left]

    def wait(self, timeout: float | None = None) -> list[SlotResult]:
        """Runs all that was asked and returns what came of it; [] when nothing was. timeout: nothing is waited for. Raises EnvError."""
        chunks, self._chunks = self._chunks, {}
        seeds, self._seeds = self._seeds, {}
        with _failing("step"):
            results = self._step(chunks, set(seeds)) if chunks else []
        with _failing("reset"):
            return results + (self._reset(seeds) if seeds else [])

    @property
    def device(self) -> torch.device:
        return self._simulator.device

    def look(self) -> dict[str, Any]:
        """The observation of every slot as it is, with an episode or without, each entry of N rows."""
        return self._simulator.look()

    def connections(self) -> list[Any]:
        """None: what was asked runs in `wait`."""
        return []

    def settle(self) -> None:
        """Drops what was asked and has not been run."""
        self._chunks, self._seeds = {}, {}

    def mend(self) -> None:
        """Nothing is lost while this process lives."""

    def close(self) -> None:
        """Idempotent. Raises EnvError if the simulator does."""
        simulator, self._simulator = self._simulator, None
        self._episodes = [None] * self.slots
        self.settle()
        if simulator is not None:
            with _failing("close"):
                simulator.close()

    def __enter__(self) -> ManiSkillBatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_free(self, slot: int, kind: str) -> None:
        if self._simulator is None:
            raise RuntimeError("this ManiSkillBatch is closed; make another")
        if not 0 <= slot < self.slots:
            raise IndexError(f"found slot {slot}, wanted 0 to {self.slots - 1}")
        if slot in self._seeds or slot in self._chunks:
            raise RuntimeError(f"slot {slot} has an operation outstanding; wait for its result before asking for a {kind}")

    def _step(self, chunks: dict[int, np.ndarray], leaving: set[int]) -> list[SlotResult]:
        """leaving: slots that are reset afterwards, whatever becomes of their episode."""
        begun, results = time.perf_counter(), []
        self._moved |= {slot for slot, episode in enumerate(self._episodes) if episode is not None and not episode.over} - chunks.keys() - leaving
        going: dict[int, list[float]] = {slot: [] for slot in chunks}  # slot -> its rewards
        for actions in self._laid_out(chunks):
            # Of the last step's, those whose chunk was over though their episode was not.
            self._moved |= {slot for slot in chunks.keys() - going.keys() if not self._episodes[slot].over}
            rewards, successes, failures = self._simulator.step(actions).tolist()
            done = []
            for slot, earned in going.items():
                self._episodes[slot].count(successes[slot], failures[slot])
                earned.append(rewards[slot])
                if self._episodes[slot].over or len(earned) == len(chunks[slot]):
                    done.append(slot)
            if done:
                look = self._simulator.look()
                results += [self._result(slot, "step", look, going.pop(slot)) for slot in done]
            if not going:
                break
        return _timed(results, begun)

    def _reset(self, seeds: dict[int, int]) -> list[SlotResult]:
        begun = time.perf_counter()
        self._simulator.reset(seeds)
        for slot in seeds:
            self._episodes[slot] = self._begun(slot in self._playing_on)
        self._moved -= seeds.keys()
        look = self._simulator.look()
        return _timed([self._result(slot, "reset", look, []) for slot in seeds], begun)

    def _laid_out(self, chunks: dict[int, np.ndarray]) -> torch.Tensor:
        """[longest n, N, A] float32 on the device, brought there at once; zeros where nothing is asked."""
        actions = np.zeros((max(map(len, chunks.values())), self.slots, self.env_spec.action.dims), np.float32)
        for slot, chunk in chunks.items():
            actions[: len(chunk), slot] = chunk
        return torch.from_numpy(actions).to(self._simulator.device)

    def _result(self, slot: int, kind: str, look: dict[str, Any], rewards: list[float]) -> SlotResult:
        episode = self._episodes[slot]
        observation = {key: rows[slot] for key, rows in look.items()}
        return SlotResult(slot, kind, observation, np.array(rewards, np.float32), episode.terminated, episode.truncated, episode.info(), 0.0)


def _timed(results: list[SlotResult], begun: float) -> list[SlotResult]:
    """Each with its share of the seconds since `begun`, so that they add up."""
    share = (time.perf_counter() - begun) / len(results)
    return [SlotResult(**{**vars(result), "seconds": share}) for result in results]


@contextmanager
def _failing(phase: str) -> Iterator[None]:
    """Whatever the simulator raises at work becomes an EnvError with its traceback; what it refuses at the start is the user's to mend."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:  # it may fail in any way, CUDA's among them; the cause is chained
        raise EnvError(f"the batched simulator raised {error!r}", 0, None, "", phase, traceback.format_exc()) from error
