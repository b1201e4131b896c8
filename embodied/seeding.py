"""Counter-based random numbers: each one is a pure function of (run seed, stream, episode, step), never of who draws it or when."""

from __future__ import annotations

import hashlib

import numpy as np


def _key(run_seed: int, stream: str) -> np.ndarray:
    digest = hashlib.blake2b(f"{run_seed}/{stream}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype=np.uint64)


def generator(run_seed: int, stream: str, episode: int = 0, step: int = 0) -> np.random.Generator:
    """A Philox generator whose key is (seed, stream) and whose counter starts at (episode, step)."""
    return np.random.Generator(np.random.Philox(key=_key(run_seed, stream), counter=[0, 0, episode, step]))


def uniforms(run_seed: int, stream: str, episode: int, step: int, count: int) -> np.ndarray:
    """[count] float64 strictly inside (0, 1): one per token."""
    return generator(run_seed, stream, episode, step).random(count) * (1 - 2**-52) + 2**-53


def integer(run_seed: int, stream: str, episode: int = 0, step: int = 0) -> int:
    """A seed below 2**31 for what takes one (an env, torch)."""
    return int(generator(run_seed, stream, episode, step).integers(2**31))
