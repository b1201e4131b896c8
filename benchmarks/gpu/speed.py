"""How fast a random policy acts and learns: rows per second, tokens per second, the share of the device's peak, and the memory it takes.

Acting is `act` as a stage calls it, pictures normalised and choices decoded. Learning is the learner's own Accumulator with GRPO's loss and AdamW on
LoRA adapters. `mfu` counts the model's flops (models.py says which), `hfu` also those that activation checkpointing runs again.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from benchmarks.gpu import models
from benchmarks.gpu.bench import Bench, memory, say
from embodied.learning.accumulate import Accumulator
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.optimizers import build_optimizer
from embodied.learning.sharding import recompute_activations
from policies.openvla_oft import OpenVLAOFT

RANK, RATE = 32, 1e-4
FORMULA = "F = 2 x matrices' parameters x tokens + A, A = 4 x tokens^2 x width of each block that runs; acting F; learning LoRA on frozen weights 2 F + A + 3 x adapters' forward (mfu), and F more where checkpointing runs it again (hfu)"


def act(bench: Bench, size: str, compiled: bool = False) -> dict[str, Any]:
    """Rows per second by batch. compiled: by torch.compile, each layer of the language model; one that cannot be compiled is reported, not an error."""
    policy = models.build(size, bench.device)
    flops = models.forward_flops(policy)
    backend = "aot_eager" if bench.tiny else "inductor"  # the first traces, and needs no compiler
    if compiled:
        torch.compiler.reset()
        for layer in policy.language_model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False, backend=backend)
    few, all_ = ((1,), (1, 2, 4)) if bench.tiny else ((1, 8, 64), (1, 2, 4, 8, 16, 32, 64))
    try:
        rates = {str(rows): fitting(lambda: _acted(bench, policy, flops, rows), bench) for rows in (few if compiled else all_)}
    except Exception as error:
        if not compiled:
            raise
        return {"compile": backend, "could_not_compile": f"{type(error).__name__}: {str(error)[:2000]}"}
    return {"parameters": _parameters(policy), "positions": models.sequence(policy), "forward_flops_per_row": flops, "compile": backend if compiled else None, "batch": rates}


def _acted(bench: Bench, policy: OpenVLAOFT, flops: float, rows: int) -> dict[str, Any]:
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    observation, begun = models.observation(policy, rows), time.perf_counter()
    policy.act(observation, None)
    first = time.perf_counter() - begun
    seconds = bench.seconds(lambda: policy.act(observation, None))
    say(f"    act, batch {rows}: {rows / seconds:.2f} chunks/s")
    return {"first_s": first, "ms": 1e3 * seconds, "chunks_per_s": rows / seconds, "tokens_per_s": rows * models.sequence(policy) / seconds, "mfu": bench.share_of_peak(rows * flops / seconds), "memory": memory()}


def learn(bench: Bench, size: str) -> dict[str, Any]:
    """Rows per second by micro-batch, keeping all activations and those between blocks alone; an update is two micro-batches and a step."""
    policy = models.build(size, bench.device)
    forward = models.forward_flops(policy)
    models.adapt(policy, RANK)
    update = models.training_flops(policy, forward)
    optimizer = build_optimizer(policy, lr=RATE)
    found: dict[str, Any] = {"parameters": _parameters(policy), "trained": sum(p.numel() for p in optimizer.parameters), "rank": RANK, "formula": FORMULA}
    for recomputed in (False, True):
        if recomputed:
            recompute_activations(policy)
        flops = {"mfu": update, "hfu": update + recomputed * forward}
        for rows in (1, 2) if bench.tiny else (1, 4, 8, 16, 32):
            name = f"microbatch {rows}{', activations recomputed' if recomputed else ''}"
            found[name] = fitting(lambda: _learned(bench, policy, optimizer, flops, rows, name), bench)
    return found


def _learned(bench: Bench, policy: OpenVLAOFT, optimizer: Any, flops: dict[str, float], rows: int, name: str) -> dict[str, Any]:
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    sums, batch = Accumulator(policy, GRPO(), optimizer, rows, 1.0), models.batch(policy, 2 * rows)

    def update() -> None:
        sums.begin()
        sums.add(batch)
        sums.step(RATE, name)

    seconds = bench.seconds(update)
    rate = 2 * rows / seconds
    say(f"    learn, {name}: {rate:.2f} rows/s")
    shares = {kind: bench.share_of_peak(rate * each) for kind, each in flops.items()}
    return {"update_ms": 1e3 * seconds, "samples_per_s": rate, "tokens_per_s": rate * models.sequence(policy), **shares, "memory": memory()}


def fitting(run: Callable[[], dict[str, Any]], bench: Bench) -> dict[str, Any]:
    """What `run` returns; a note where the time is up, or the device's memory is."""
    if bench.over:
        return {"skipped": "no time left"}
    try:
        return run()
    except torch.OutOfMemoryError:
        pass  # what it had is given back when the error is gone
    torch.cuda.empty_cache()
    return {"skipped": "out of memory"}


def _parameters(policy: OpenVLAOFT) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())
