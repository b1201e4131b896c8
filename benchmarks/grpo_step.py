"""Seconds of one whole GRPO step on the CPU, 16 prompts x 8 answers generated, graded and learned from: this platform against TRL's GRPOTrainer.

    python benchmarks/grpo_step.py [mixes=packaged,tailed,medium] [rounds=3] [steps=3] [threads=2] [trl_threads=2] [trl_batch=128] [trl_continuous=false]

Wants TRL (`pip install trl`; a folder of its own does: `pip install --target DIR trl` and PYTHONPATH=DIR). Mixes: `packaged`, the packaged model on sums,
answers of at most 64 tokens as it gives them; `tailed`, random weights of the same size with two of 98 tokens ending an answer, so that lengths are
geometric (mean 49) and cut at 256; `medium`, the same of 384 x 6 layers. Both sides have the same weights in float32, the same 16 prompts in every step,
temperature 1, no reference model, group-scaled rewards, token-mean loss, one AdamW update of one epoch, and `envs.answers.grade` as the reward; what random
weights write is right about 3 times in 10 by golds that are digits, so that hardly a group is left out of our update (TRL's takes in all, groups of equal rewards too).

Ours is the training program's own loop (ledger, act and learn through the executor, answers graded in a worker process, metrics written) without its checkpoints. TRL: `trl_batch` answers to a
forward and backward, generation of all 128 at once by `generate`, or by transformers' continuous batching. Each of `rounds` starts one process per side in turn
(so that other load meets both) and leaves out its first step. Seconds are wall clock, and beside it the process's CPU time, which other load moves less; threads=1 trl_threads=1
keeps the waiting of threads for each other out of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any, Callable

from arguments import given

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PROMPTS, GROUP, PROMPT_LENGTH, LR = 16, 8, 32, 1e-6  # a rate so small that the lengths stay what they are
MIXES = {"packaged": (None, 64), "tailed": ({}, 256), "medium": ({"hidden": 384, "layers": 6, "heads": 6, "mlp": 1536}, 256)}  # sizes (None: the packaged weights), most tokens
ENDS = [1, 97]  # token ids that end an answer of random weights
DIGITS = list("0123456789")  # golds for what random weights write


class Steps:
    """The rows of one side: what each step took since the one before."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.begin()

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self, said: dict[str, float]) -> None:
        """said: seconds by stage, and what else the step says of itself."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.rows.append({"wall": wall - self._wall, "cpu": cpu - self._cpu} | said)
        self._wall, self._cpu = wall, cpu


def made(mix: str, folder: Path) -> tuple[Path, Path]:
    """(weights, problems) of a mix, below `folder`."""
    from envs.math.arithmetic import Arithmetic
    from policies.checkpoints.fresh_lm import create_checkpoint

    sizes, _ = MIXES[mix]
    weights, problems = ROOT / "assets" / "causal_lm_small", folder / "problems.jsonl"
    sums = Arithmetic("train", 0, None, 0.0, 2, ["add"])
    chosen = [sums[index] for index in range(PROMPTS)]
    problems.write_text("".join(json.dumps({"prompt": each.prompt, "solutions": [each.answer] if sizes is None else DIGITS}) + "\n" for each in chosen))
    if sizes is not None:
        weights = create_checkpoint(folder / "lm", sizes=sizes)
        said = weights / "generation_config.json"
        said.write_text(json.dumps(json.loads(said.read_text()) | {"eos_token_id": ENDS}))
    return weights, problems


def ours(weights: Path, problems: Path, most: int, steps: int, seed: int, threads: int, output: Path) -> list[dict[str, float]]:
    from embodied import loop
    from embodied.runs.progress import Progress
    from embodied.wiring import programs
    from embodied.wiring.deployment import joined
    from embodied.wiring.training import Training
    from scheduler.running.execute import execute

    config, _ = programs.run_config([
        "env=math", f"env.problems={problems}", "env.held_out=0", "policy=causal_lm", f"policy.checkpoint={weights}", f"policy.prompt_length={PROMPT_LENGTH}", f"policy.max_tokens={most}",
        "algorithm=grpo", f"algorithm.group_size={GROUP}", f"groups={PROMPTS}", f"sim.slots={PROMPTS * GROUP}", "sim.workers=1", f"algorithm.learner.lr={LR}", "algorithm.learner.warmup_updates=0", f"iterations={steps}",
        "evaluation.before=false", "evaluation.after=false", f"scheduler.learn_threads={threads}", "device=cpu", f"seed={seed}", f"output={output}",
    ])  # fmt: skip
    with ExitStack() as stack:
        run = stack.enter_context(programs.run_folder(config, None))
        parts = stack.enter_context(programs.Parts(config, stack.enter_context(joined(config)), run))
        progress = stack.enter_context(Progress(steps))
        training = Training(config, parts, run, progress)
        logs = stack.enter_context(programs.logs(config, run, parts, 0, progress, training.lay_out(progress)))
        clock, lengths = Steps(), []
        for result in execute(training.flow, training.backend, 0, steps, weights=training.weights, on_item=lambda item: lengths.append(int(item.payload.mask.sum()))):
            loop.log_round(result, logs, training.planner)
            clock.end(result.timeline.busy() | {"mean": statistics.mean(lengths), "longest": max(lengths), "taught": GROUP * result.report["estimate/groups_kept"]})
            lengths.clear()
    return clock.rows


def theirs(weights: Path, problems: Path, most: int, steps: int, seed: int, batch: int, continuous: bool, output: Path) -> list[dict[str, float]]:
    import torch
    from datasets import Dataset
    from pyarrow import Table
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from envs.answers import grade

    spent = {"generate": 0.0, "score": 0.0}

    def timed(name: str, run: Callable) -> Callable:
        def inner(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return run(*arguments, **named)
            finally:
                spent[name] += time.perf_counter() - begun

        return inner

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
            if "completions/mean_length" in logs:  # of a step, which ends with it; the last log is the run's
                clock.end(spent | {"mean": logs["completions/mean_length"], "longest": logs["completions/max_length"], "taught": PROMPTS * GROUP * (1 - logs["frac_reward_zero_std"])})
                clock.rows[-1]["update"] = clock.rows[-1]["wall"] - sum(spent.values())
                spent.update(dict.fromkeys(spent, 0.0))

    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    prompts = Dataset(Table.from_pylist(rows), fingerprint="grpo_step")  # a fingerprint of datasets' own fails with some releases of pyarrow
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    model.generate, model.generate_batch = (timed("generate", way) for way in (model.generate, model.generate_batch))
    config = GRPOConfig(
        output_dir=str(output), seed=seed, use_cpu=True, bf16=False, report_to="none", save_strategy="no", eval_strategy="no", disable_tqdm=True, logging_steps=1, dataloader_pin_memory=False,
        per_device_train_batch_size=batch, gradient_accumulation_steps=PROMPTS * GROUP // batch, num_generations=GROUP, max_completion_length=most, max_steps=steps, num_iterations=1,
        temperature=1.0, top_k=0, beta=0.0, loss_type="dapo", scale_rewards="group", gradient_checkpointing=False, shuffle_dataset=False,
        learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, adam_beta2=0.95, max_grad_norm=1.0, use_transformers_continuous_batching=continuous,
    )  # fmt: skip
    clock = Steps()

    def reward(completions: list[str], solutions: list[list[str]], **_: Any) -> list[float]:
        return [max(grade(answer, gold) for gold in golds) for answer, golds in zip(completions, solutions)]

    scored = timed("score", reward)
    scored.__name__ = "grade"
    GRPOTrainer(model, reward_funcs=scored, args=config, train_dataset=prompts, processing_class=AutoTokenizer.from_pretrained(weights), callbacks=[Watch()]).train()
    return clock.rows


def child(asked: dict[str, str]) -> None:
    """One process of one side: its rows as the last line of stdout. All else that is printed goes to stderr."""
    import torch

    threads, steps, most = int(asked["threads"]), int(asked["steps"]), int(asked["most"])
    torch.set_num_threads(threads)
    where = Path(asked["weights"]), Path(asked["problems"]), most, steps, int(asked["seed"])
    with tempfile.TemporaryDirectory() as output, redirect_stdout(sys.stderr):
        rows = ours(*where, threads, Path(output)) if asked["side"] == "ours" else theirs(*where, int(asked["batch"]), asked["continuous"] == "true", Path(output))
    print(json.dumps(rows))


def measured(side: str, threads: str, **asked: Any) -> list[dict[str, float]]:
    """The rows of one process, its first step left out. Ends the program where it fails."""
    told = [f"{key}={value}" for key, value in {"side": side, "threads": threads, **asked}.items()]
    run = subprocess.run([sys.executable, __file__, *told], env=os.environ | {"OMP_NUM_THREADS": threads}, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{side} failed:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout.splitlines()[-1])[1:]


def compared(mix: str, asked: dict[str, str]) -> dict[str, Any]:
    """Both sides in turn -> medians of each, and their ratios."""
    sides: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    with tempfile.TemporaryDirectory() as folder:
        weights, problems = made(mix, Path(folder))
        shared = {"weights": weights, "problems": problems, "most": MIXES[mix][1], "steps": int(asked["steps"]) + 1}
        for seed in range(int(asked["rounds"])):
            sides["ours"] += measured("ours", asked["threads"], **shared, seed=seed)
            sides["trl"] += measured("trl", asked["trl_threads"], **shared, seed=seed, batch=asked["trl_batch"], continuous=asked["trl_continuous"])
            print(f"{mix}: " + ", ".join(f"{side} {' '.join(format(row['wall'], '.2f') for row in rows)} s" for side, rows in sides.items()), file=sys.stderr, flush=True)
    found: dict[str, Any] = {side: {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]} | {"steps": len(rows)} for side, rows in sides.items()}
    return {"mix": mix, "ratio": round(found["trl"]["wall"] / found["ours"]["wall"], 2), "ratio_cpu": round(found["trl"]["cpu"] / found["ours"]["cpu"], 2), **found}


def main(arguments: list[str]) -> None:
    asked = {"mixes": ",".join(MIXES), "rounds": "3", "steps": "3", "threads": "2", "trl_threads": "2", "trl_batch": "128", "trl_continuous": "false"} | given(arguments, __doc__)
    if "side" in asked:
        return child(asked)
    if any(importlib.util.find_spec(name) is None for name in ("trl", "datasets")):
        sys.exit("found no TRL, wanted it for the other side: pip install trl (or into a folder of its own: pip install --target DIR trl, then PYTHONPATH=DIR)")
    unknown = set(asked["mixes"].split(",")) - set(MIXES)
    if unknown:
        sys.exit(f"mixes={asked['mixes']}: found {', '.join(sorted(unknown))}, wanted some of {', '.join(MIXES)}")
    for mix in asked["mixes"].split(","):
        print(json.dumps(compared(mix, asked)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
