"""Whether the numbers of this device are the reference's, how long a policy takes to leave it and come back, and whether learning learns on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.gpu import models
from benchmarks.gpu.bench import Bench, memory, say
from embodied.learning import batching
from embodied.learning.accumulate import Accumulator
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.data import Trajectory
from embodied.learning.memory.residence import OptimizerResidence, Residence, footprint
from embodied.learning.optimizers import build_optimizer
from policies.base import ActionChunk
from policies.openvla import OpenVLA
from policies.openvla_oft import OpenVLAOFT
from policies.parts.images import bicubic, normalise

ROOT = Path(__file__).resolve().parents[2]
REFERENCE, SMALL = ROOT / "tests" / "fixtures" / "openvla_tiny", ROOT / "assets" / "openvla_oft_small"
FLOAT32_WITHIN = {"cpu": 1e-4, "cuda": 2e-3}  # absolute, with TF32 off
BFLOAT16_WITHIN = 0.05  # of the largest number wanted: 8 bits are kept, and the errors of all layers add up
GROUPS, GROUP, RATE = 4, 8, 1e-4  # of the loop: initial states, rows from each, learning rate
INSTRUCTION = "pick up the black bowl on the stove and place it on the plate"


def parity(bench: Bench) -> dict[str, Any]:
    """The parity table: what the reference implementation gave, beside what this device gives. bfloat16's tokens are reported, not judged."""
    expected = {name: tensor.to(bench.device) for name, tensor in load_file(REFERENCE / "expected.safetensors").items()}
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        tables = {dtype: dict(_table(bench, dtype, expected)) for dtype in ("float32", "bfloat16")}
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    failed = [f"{dtype} {name}: {row}" for dtype, table in tables.items() for name, row in table.items() if row["ok"] is False]
    return {**tables, "memory": memory(), "failed": failed}


@torch.no_grad()
def _table(bench: Bench, dtype: str, expected: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, Any]]]:
    oft, openvla = (kind.from_pretrained(REFERENCE, dtype=dtype, device=bench.device) for kind in (OpenVLAOFT, OpenVLA))
    pixels, prompt = expected["pixel_values"][:1], expected["prompt_ids"]
    picture = torch.from_numpy(bicubic(expected["image_center_cropped_224"][:1].cpu().numpy(), oft.images.size)).to(bench.device)[:, None]
    features, logits = oft.vision_backbone(pixels.to(getattr(torch, dtype))), oft.action_logits(pixels, prompt)
    numbers = {
        "pixel_values": normalise(picture, oft.images.means, oft.images.stds), "vision_features": features, "projected": oft.projector(features),
        "oft_hidden": oft._slot_states(pixels, prompt, None), "oft_discrete_logits": logits,
        "openvla_step_logits": openvla.action_logits(pixels, prompt, expected["openvla_greedy_tokens_full_vocab"]),
    }  # fmt: skip
    for name, found in numbers.items():
        wanted = expected[name][:1]
        within = FLOAT32_WITHIN[bench.device] if dtype == "float32" else BFLOAT16_WITHIN * float(wanted.abs().max())
        worst = float((found.float() - wanted).abs().max())
        yield name, {"worst": worst, "within": within, "ok": worst <= within}
    inputs = {"pixels": picture, "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt, dtype=torch.bool)}
    for name, found in {"oft_discrete_tokens": logits.argmax(-1), "openvla_greedy_tokens": openvla._sample(inputs, None)[0]}.items():
        agree = float((oft.first_action + found == expected[name]).float().mean())
        yield name, {"agree": agree, "ok": agree == 1.0 if dtype == "float32" else None}


def switch(bench: Bench, size: str) -> dict[str, Any]:
    """Seconds and GB/s of a policy with adapters and its optimizer's state to the host and back, twice: the first time makes the pinned memory."""
    policy = models.build(size, bench.device)
    models.adapt(policy, 32)
    optimizer = build_optimizer(policy, lr=RATE)
    sums = Accumulator(policy, GRPO(), optimizer, 1, 1.0)
    sums.add(models.batch(policy, 2))
    sums.step(RATE, "the update before the switch")
    weights, state = footprint(policy), footprint(policy, optimizer) - footprint(policy)
    held = {"policy": (Residence(policy, bench.device), weights), "optimizer": (OptimizerResidence(optimizer, bench.device), state)}
    for residence, _ in held.values():
        residence.take()
    turns = [{name: {"bytes": size_, **_there_and_back(bench, residence, size_)} for name, (residence, size_) in held.items()} for _ in range(2)]
    say(f"    switch, {size}: {turns[-1]['policy']}")
    return {"moves": bench.device != "cpu", "first": turns[0], "second": turns[1], "memory": memory()}


def _there_and_back(bench: Bench, residence: Residence | OptimizerResidence, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, move in (("offload", residence.release), ("onload", residence.take)):
        bench.synchronise()
        begun = time.perf_counter()
        move()
        bench.synchronise()
        seconds = time.perf_counter() - begun
        found |= {f"{name}_s": seconds, f"{name}_GB_per_s": None if bench.device == "cpu" else size / seconds / 1e9}
    return found


def loop(bench: Bench) -> dict[str, Any]:
    """Act, judge and learn with the packaged checkpoint in float32: the further an action goes along its first axis, the better.

    Fails where a return or a weight is not finite, where the weights stay as they were, and where ten updates have not raised the return.
    """
    policy = OpenVLAOFT.from_pretrained(SMALL, device=bench.device, instructions=True)
    algorithm, optimizer = GRPO(group_size=GROUP), build_optimizer(policy, lr=RATE)
    sums, before = Accumulator(policy, algorithm, optimizer, None, 1.0), policy.language_model.lm_head.weight.detach().clone()
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (1 if bench.tiny else GROUPS, *policy.images.size, 3), dtype=np.uint8).repeat(GROUP, axis=0)
    returns: list[float] = []
    for update in range(2 if bench.tiny else 10):
        chunk = policy.act({f"images/{models.CAMERA}": pictures, "instruction": [INSTRUCTION] * len(pictures)}, random.random((len(pictures), policy.tokens)))
        rewards = torch.from_numpy(chunk.actions[:, :, 0].mean(1))
        trajectories = [_one_chunk(chunk, row, rewards) for row in range(len(pictures))]
        estimate = algorithm.advantages(trajectories, torch.zeros(len(trajectories)))
        sums.begin()
        sums.add(batching.rows(trajectories, estimate, algorithm.aggregation))
        sums.step(RATE, f"update {update}")
        returns.append(float(rewards.mean()))
    after = policy.language_model.lm_head.weight.detach()
    failed = [] if np.isfinite(returns).all() and torch.isfinite(after).all() else ["found returns or weights that are not finite"]
    failed += ["found the same weights after learning as before it"] if torch.equal(before, after) else []
    failed += [f"found a return of {returns[-1]:.3f} after {returns[0]:.3f}, wanted more"] if not bench.tiny and returns[-1] <= returns[0] else []
    return {"rows_per_update": len(pictures), "returns": returns, "memory": memory(), "failed": failed}


def _one_chunk(chunk: ActionChunk, row: int, rewards: torch.Tensor) -> Trajectory:
    """An episode of a single inference."""
    its = slice(row, row + 1)
    return Trajectory(
        episode=row, group=row // GROUP, inputs={name: tensor[its] for name, tensor in chunk.inputs.items()}, choices=chunk.choices[its],
        logprobs=chunk.logprobs[its], mask=chunk.mask[its], rewards=rewards[its], values=None, terminated=True, truncated=False,
        final_observation=None, success=False, steps=chunk.actions.shape[1],
    )  # fmt: skip
