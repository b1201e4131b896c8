"""Tokens per second of generation with answers of long-tailed lengths: the engine's slots against `model.generate` in static batches.

    python benchmarks/generation.py [batch=16] [prompts=96] [group=4] [mean=32] [most=256] [repeats=3]

A small Llama of one token per character (policies/checkpoints/fresh_lm.py) on one thread. `prompts` samples, `group` of each prompt side by side, with lengths drawn from a
log-normal (sigma 1) of the given mean, cut at `most`: both sides know nothing of them beforehand. The engine has `batch` slots; `generate` takes
the same samples in the same order, `batch` at a time, each until its longest is done. Both are greedy with the end token off, so that the
lengths are the ones drawn and the tokens can be compared. Tokens that were asked for count, nothing else; seconds are the process's CPU time, so
that other load does not count. The two take turns; the ratio is the median of the turns', beside the one that the lengths alone allow (steps of all static batches over steps of full slots).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # read as the libraries are loaded

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from arguments import given

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from policies.checkpoints.fresh_lm import character_tokenizer, create_checkpoint
from policies.generation.base import Stopping
from policies.generation.engine import Engine


def lengths_of(count: int, mean: float, most: int) -> list[int]:
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - 0.5, 1.0, count)
    return [int(length) for length in drawn.clip(1, most)]


def by_engine(model, prompts: list[list[int]], lengths: list[int], batch: int) -> list[list[int]]:
    engine = Engine(model, batch, Stopping(()))
    for sample, (prompt, length) in enumerate(zip(prompts, lengths)):
        engine.submit(sample, prompt, None, length)
    found = {}
    while engine.busy:
        found |= {finished.id: finished.tokens for finished in engine.step()}
    return [found[sample] for sample in range(len(prompts))]


def by_generate(model, prompts: list[list[int]], lengths: list[int], batch: int) -> list[list[int]]:
    found = []
    for start in range(0, len(prompts), batch):
        part, wanted = prompts[start : start + batch], lengths[start : start + batch]
        width = max(map(len, part))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part])
        rows = model.generate(ids, attention_mask=mask, max_new_tokens=max(wanted), do_sample=False, eos_token_id=None, pad_token_id=0)
        found += [row[width : width + length].tolist() for row, length in zip(rows, wanted)]
    return found


def seconds(run, *arguments) -> tuple[float, list[list[int]]]:
    start = time.process_time()
    found = run(*arguments)
    return time.process_time() - start, found


def main() -> None:
    asked = {"batch": 16, "prompts": 96, "group": 4, "mean": 32, "most": 256, "repeats": 3} | {key: int(value) for key, value in given(sys.argv[1:], __doc__).items()}
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(create_checkpoint(Path(folder, "lm"))).eval()
    tokenizer, batch = character_tokenizer(), asked["batch"]
    prompts = [tokenizer(f"{12 + 37 * (sample // asked['group'])}+39=?\n")["input_ids"] for sample in range(asked["prompts"])]
    lengths = lengths_of(asked["prompts"], asked["mean"], asked["most"])
    total = sum(lengths)
    for run in (by_engine, by_generate):
        run(model, prompts[:batch], [4] * batch, batch)  # what is done once only is not timed
    turns = []
    for _ in range(asked["repeats"]):
        (ours, tokens), (theirs, wanted) = (seconds(run, model, prompts, lengths, batch) for run in (by_engine, by_generate))
        turns.append((ours, theirs, sum(a == b for a, b in zip(tokens, wanted))))
        print(f"engine {ours:.1f} s, generate {theirs:.1f} s", file=sys.stderr, flush=True)
    static = sum(max(lengths[start : start + batch]) for start in range(0, len(lengths), batch))
    print(json.dumps({
        "tokens": total, "engine_tokens_per_s": round(total / statistics.median(turn[0] for turn in turns), 1),
        "generate_tokens_per_s": round(total / statistics.median(turn[1] for turn in turns), 1),
        "ratio": round(statistics.median(turn[1] / turn[0] for turn in turns), 2), "by_turn": [round(turn[1] / turn[0], 2) for turn in turns],
        "lengths_alone_allow": round(static / max(total / batch, max(lengths)), 2), "equal_answers": f"{turns[0][2]} of {len(prompts)}",
    }))  # fmt: skip


if __name__ == "__main__":
    main()
