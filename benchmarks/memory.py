"""The memory estimate beside the measured peak: training updates of random OpenVLA-OFT policies of 50 to 500 million parameters on one CPU core.

    python benchmarks/memory.py [only=50M]

Each row is a fresh process: two updates by the learner's own code (GRPO with its KL term, AdamW, float32), the second with the optimizer's state
there. Measured: the process's highest resident memory during the updates (VmHWM, reset before them) minus the resident memory before the policy was
loaded, after a small policy has gone through the same, so that the libraries' own memory is on neither side. glibc is told to give memory back at
once (mmap above 64 kB, trim at 0): else its free lists would count as used. Takes up to 10 GB and a few minutes; exits 1 when a ratio is off by more than 15 %.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from embodied.learning import batching
from embodied.learning.accumulate import Accumulator
from embodied.learning.algorithms.grpo import GRPO
from embodied.learning.data import Batch
from embodied.learning.memory import estimate
from embodied.learning.optimizers import build_optimizer
from policies.openvla_oft import OpenVLAOFT
from policies.checkpoints.fresh import create_checkpoint

from arguments import given

OFF = 0.15  # share by which an estimate may miss
INSTRUCTION = "pick up the black bowl between the plate and the ramekin and place it on the plate"
STATISTICS = {"random": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}}}
SIZES = {
    "small": {},
    "50M": dict(image=128, patch=16, vision_width=384, vision_depth=6, vision_heads=6, hidden=512, layers=6, heads=8, mlp=1408),
    "150M": dict(image=128, patch=16, vision_width=512, vision_depth=8, vision_heads=8, hidden=896, layers=8, heads=14, mlp=2432),
    "500M": dict(image=128, patch=16, vision_width=768, vision_depth=12, vision_heads=12, hidden=1408, layers=12, heads=22, mlp=3840),
}
ROWS = {"50M": [(4, None), (16, None), (16, 4)], "150M": [(2, None), (8, None), (8, 2)], "500M": [(1, None), (4, None), (4, 1)]}  # (rows of an update, of a micro-batch)
RANK = 32
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}


def rows_for(policy: Any, count: int) -> Batch:
    """Random rows, and a reference for the KL term."""
    inputs = {
        "pixels": torch.zeros(count, 1, policy.images.size[0], policy.images.size[1], 3, dtype=torch.uint8),
        "prompt_ids": torch.ones(count, policy.prompts.length, dtype=torch.int64), "prompt_mask": torch.ones(count, policy.prompts.length, dtype=torch.bool),
    }  # fmt: skip
    batch = batching.labelled(inputs, torch.zeros(count, policy.tokens, dtype=torch.int64), torch.ones(count, policy.tokens))
    return replace(batch, reference=torch.full((count, policy.tokens, 256), -5.5))


def resident(line: str) -> int:
    """Bytes of this process by its status file: VmRSS now, VmHWM at most."""
    found = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(line))
    return 1024 * int(found.split()[1])


def train(folder: str, update: estimate.Update) -> tuple[int, estimate.Estimate]:
    """(bytes at the peak of two updates beyond those before the policy was there, the estimate)."""
    gc.collect()
    before = resident("VmRSS")
    policy, algorithm = OpenVLAOFT.from_pretrained(folder), GRPO(kl_coef=0.01)
    found = estimate.learning(policy, algorithm, rows_for, update)
    if update.rank is not None:
        estimate.adapt(policy, update.rank)
    rows = rows_for(policy, update.rows)
    optimizer = build_optimizer(policy, **update.optimizer)
    sums = Accumulator(policy, algorithm, optimizer, update.microbatch, update.grad_clip)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is VmRSS again
    for _ in range(2):
        sums.begin()
        sums.add(rows)
        sums.step(1e-5, "the benchmark")
    return resident("VmHWM") - before, found


def one(small: str, folder: str, count: int, microbatch: int | None, rank: int | None) -> dict[str, Any]:
    """A row of the table, in this process."""
    torch.set_num_threads(1)
    update = estimate.Update(count, microbatch, {"optimizer": "adamw"}, grad_clip=1.0, rank=rank)
    train(small, update)
    measured, found = train(folder, update)
    return {"measured": measured, "total": found.total, "unknown": found.unknown} | {name: getattr(found, name) for name in ("parameters", "gradients", "optimizer", "activations")}


def main(arguments: list[str]) -> int:
    options = given(arguments, __doc__)
    if "row" in options:
        print(json.dumps(one(*json.loads(options["row"]))))
        return 0
    wanted = [options["only"]] if "only" in options else list(ROWS)
    print("policy  rows  micro-batch  trained   parameters  gradients  optimizer  activations   estimate   measured  ratio   (MB)")
    worst = 0.0
    for name in wanted:
        with tempfile.TemporaryDirectory() as work:
            folders = [str(create_checkpoint(Path(work, each), [INSTRUCTION], STATISTICS, sizes=SIZES[each])) for each in ("small", name)]
            for count, microbatch, rank in [*((*rows, None) for rows in ROWS[name]), (*ROWS[name][1], RANK)]:
                row = json.dumps([*folders, count, microbatch, rank])
                done = subprocess.run([sys.executable, __file__, f"row={row}"], env=os.environ | MALLOC, stdout=subprocess.PIPE, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                ratio = found["total"] / found["measured"]
                worst = max(worst, abs(ratio - 1))
                columns = [f"{found[key] / 1e6:{width}.0f}" for key, width in (("parameters", 12), ("gradients", 9), ("optimizer", 9), ("activations", 11), ("total", 9), ("measured", 9))]
                print(f"{name:6}  {count:4}  {microbatch or count:11}  {f'rank {rank}' if rank else 'all':7} {'  '.join(columns)}  {ratio:5.2f}  {found['unknown'] or ''}", flush=True)
    print(f"the worst is {100 * worst:.1f} % off; {100 * OFF:.0f} % may be")
    return int(worst > OFF)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
