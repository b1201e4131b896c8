"""What runs beside the env instances: some slots of a VectorEnv, here or in a process of their own.

Pictures and vectors are written into memory that both sides map; texts, rewards and small info travel by pipe.
A worker ends when its parent does, however that ended: the pipe's end stops the Python side, and on Linux a signal from
the kernel stops one that is stuck in native code. Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import math
import mmap
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Callable, Mapping

import gymnasium
import numpy as np

from envs.chunk import step_chunk
from envs.spec import IMAGE_PREFIX, EnvSpec, from_spaces

ALIGNMENT = 64  # bytes; a cache line, so that two slots never share one

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


@dataclass(frozen=True)
class Reply:
    """One finished operation, less its arrays: they are in the slot's shared memory."""

    slot: int
    kind: str  # "reset" | "step" | "close"
    texts: dict[str, str]  # the observation's strings
    rewards: np.ndarray  # float32 [n]
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    seconds: float
    trace: str | None = None  # the env's own traceback where it raised; then the rest is empty


def describe(env: gymnasium.Env) -> EnvSpec:
    """The env's own `env_spec`, through Gymnasium's wrappers if need be, else one made from its spaces."""
    spec = getattr(env, "env_spec", None)
    if spec is None and isinstance(env, gymnasium.Wrapper) and env.has_wrapper_attr("env_spec"):
        spec = env.get_wrapper_attr("env_spec")
    if spec is None:
        registered = env.spec
        name = registered.id if registered is not None else type(env.unwrapped).__name__
        spec = from_spaces(name, env.observation_space, env.action_space, registered.max_episode_steps if registered is not None else None)
    return spec


def fields(spec: EnvSpec) -> dict[str, tuple[tuple[int, ...], type]]:
    """The arrays of one observation: key -> (shape, dtype)."""
    found: dict[str, tuple[tuple[int, ...], type]] = {
        IMAGE_PREFIX + camera: ((height, width, 3), np.uint8) for camera, (height, width) in spec.images.items()
    }
    if spec.state:
        found["state"] = ((spec.state,), np.float32)
    if spec.privileged:
        found["privileged"] = ((spec.privileged,), np.float32)
    return found


def slot_bytes(spec: EnvSpec) -> int:
    """Bytes of shared memory that one slot takes."""
    return sum(_padded(shape, dtype) for shape, dtype in fields(spec).values())


def slot_arrays(spec: EnvSpec, buffer: Any, slot: int) -> dict[str, np.ndarray]:
    """Views into `buffer` for one slot's observation."""
    arrays, offset = {}, slot * slot_bytes(spec)
    for key, (shape, dtype) in fields(spec).items():
        arrays[key] = np.ndarray(shape, dtype, buffer, offset)
        offset += _padded(shape, dtype)
    return arrays


def _padded(shape: tuple[int, ...], dtype: type) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT


class Slots:
    """The env objects of some slots. `run` turns whatever an env raises into a Reply that carries the traceback."""

    def __init__(self, make_env: Callable[[], gymnasium.Env], slots: list[int]):
        self._envs = {slot: make_env() for slot in slots}
        specs = [describe(env) for env in self._envs.values()]
        for spec in specs[1:]:
            if spec != specs[0]:
                raise ValueError(f"make_env gave envs that differ: {specs[0]} and {spec}; it must build the same env each time")
        self.spec: EnvSpec = specs[0]
        self._running = dict.fromkeys(slots, False)
        self._arrays: dict[int, dict[str, np.ndarray]] = {}

    def attach(self, buffer: Any) -> None:
        self._arrays = {slot: slot_arrays(self.spec, buffer, slot) for slot in self._envs}

    def run(self, kind: str, slot: int, *arguments: Any) -> Reply:
        begun = time.perf_counter()
        try:
            texts, rewards, terminated, truncated, info = (self._reset if kind == "reset" else self._step)(slot, *arguments)
        except Exception:  # whatever it is belongs to the env's author: it is handed on whole
            self._running[slot] = False
            return Reply(slot, kind, {}, np.zeros(0, np.float32), False, False, {}, time.perf_counter() - begun, traceback.format_exc())
        return Reply(slot, kind, texts, rewards, terminated, truncated, info, time.perf_counter() - begun)

    def close(self) -> list[tuple[int, str]]:
        """Closes every env; returns (slot, traceback) of those that raised."""
        raised = []
        for slot, env in self._envs.items():
            try:
                env.close()
            except Exception:  # the other envs still have to be closed
                raised.append((slot, traceback.format_exc()))
        self._envs, self._arrays = {}, {}
        return raised

    def _reset(self, slot: int, seed: int | None, options: dict | None) -> tuple:
        observation, info = self._envs[slot].reset(seed=seed, options=options)
        self._running[slot] = True
        return self._write(slot, observation), np.zeros(0, np.float32), False, False, plain(info)

    def _step(self, slot: int, actions: np.ndarray) -> tuple:
        if not self._running[slot]:
            raise RuntimeError(f"slot {slot} was asked to step with no episode running (none begun, or it has ended); reset it first")
        observation, rewards, terminated, truncated, info = step_chunk(self._envs[slot], actions)
        self._running[slot] = not (terminated or truncated)
        return self._write(slot, observation), rewards, terminated, truncated, plain(info)

    def _write(self, slot: int, observation: Any) -> dict[str, str]:
        if not isinstance(observation, Mapping):
            observation = {"state": np.asarray(observation, np.float32).reshape(-1)}
        arrays, texts = self._arrays[slot], {}
        missing = arrays.keys() - observation.keys()
        if missing:
            raise ValueError(f"the observation lacks {sorted(missing)}, which env_spec declares; found {sorted(observation)}")
        for key, value in observation.items():
            if isinstance(value, str):
                texts[key] = value
            elif key not in arrays:
                raise ValueError(f"the observation holds {key!r}, which env_spec does not declare (it has {sorted(arrays)}); declare it or leave it out")
            elif np.shape(value) != arrays[key].shape:
                raise ValueError(f"observation {key!r} has shape {np.shape(value)}, env_spec says {arrays[key].shape}")
            else:
                arrays[key][...] = value
        return texts


def plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """The bools, ints, floats and strings of an info dict (NumPy scalars turned into Python's); the rest is left out."""
    values = {key: value.item() if isinstance(value, np.generic) else value for key, value in info.items()}
    return {key: value for key, value in values.items() if isinstance(value, (bool, int, float, str))}


def main(pipe: int, memory: int, trace: int, lifeline: int) -> None:
    """A worker process; the arguments are inherited file descriptors. Speaks first with ("ready", spec) or ("failed", traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace)  # the parent asks where a hung worker is
    _end_with(lifeline)
    die_with_parent()
    connection = Connection(pipe)
    asked: queue.SimpleQueue = queue.SimpleQueue()
    try:
        make_env, mine, total = connection.recv()
        # Reading on a thread of its own keeps the pipe empty, so a parent that asks never waits for an env.
        threading.Thread(target=_receive, args=(connection, asked), daemon=True).start()
        slots = Slots(make_env, mine)
        size = total * slot_bytes(slots.spec)
        os.ftruncate(memory, size)  # every worker says the same size
        slots.attach(mmap.mmap(memory, size) if size else b"")
    except Exception:  # an import, an asset, a driver: the parent prints it
        connection.send(("failed", traceback.format_exc()))
        return
    connection.send(("ready", slots.spec))
    while (operation := asked.get()) is not None:
        connection.send(slots.run(*operation))
    connection.send(("closed", slots.close()))


def die_with_parent() -> None:
    """The kernel's own care, for a worker that is stopped, or hangs with the interpreter's lock, when its parent is killed: Linux only."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # another system: the lifeline does


def _receive(connection: Connection, asked: queue.SimpleQueue) -> None:
    while True:
        try:
            operation = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if operation is None:  # what was asked before and has not begun is not wanted any more
            while not asked.empty():
                asked.get_nowait()
        asked.put(operation)


def _end_with(lifeline: int) -> None:
    """Has the kernel end this process when the parent's end of `lifeline` closes, even while native code holds the interpreter."""
    if sys.platform == "linux":  # elsewhere SIGIO is ignored by default; the pipe's end has to do
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
