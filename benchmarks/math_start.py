"""The start of the math job: a small language model that can add step by step, and mostly blurts out a number instead.

    python benchmarks/math_start.py [seed=0] [output=outputs/math_start]

From random weights it imitates worked sums (`envs/math/arithmetic.py`), then a mix of which 25 % are worked and the rest are a random number without any
working; all of problems that training may meet. Reinforcement has something to find in it: answers that are right now and then, and a way to be
right more often. Writes the demonstrations, the two runs and OUTPUT/policy, in bfloat16, which is what assets/causal_lm_small holds.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from arguments import given
from envs.math.arithmetic import worked
from envs.math.problems import load

DEMONSTRATIONS = 20000
BLURTED = 0.75  # share of the second run's demonstrations
LARGEST = 198  # 99 + 99
IMITATE = (
    "env=math", "policy=causal_lm", "policy.prompt_length=32", "policy.max_tokens=64", "algorithm=bc", "evaluation.after=false", "algorithm.learner.optimizer=adamw",
    "algorithm.learner.minibatch=64", "algorithm.learner.rows_per_iteration=640", "algorithm.learner.warmup_updates=10", "algorithm.learner.weight_decay=0",
    "algorithm.learner.betas=[0.9,0.95]",
)  # fmt: skip
WORKED_RUN = ("policy.checkpoint=fresh", "algorithm.learner.lr=1e-3", "algorithm.learner.schedule=constant", "iterations=32")
MIXED_RUN = ("algorithm.learner.lr=5e-4", "iterations=16")


def demonstrate(file: Path, blurted: float, seed: int) -> None:
    """Writes the demonstrations: so large a share blurted, the others worked."""
    problems, generator = load("arithmetic", "train", seed=seed), random.Random(seed)
    with file.open("w") as lines:
        for problem in map(problems.__getitem__, range(DEMONSTRATIONS)):
            answer = f"#### {generator.randint(0, LARGEST)}" if generator.random() < blurted else worked(problem)
            lines.write(json.dumps({"prompt": problem.prompt, "answer": answer}) + "\n")


def imitate(data: Path, output: Path, seed: int, *arguments: str) -> Path:
    """The policy folder that a run of its own ends with. Ends the program where it failed."""
    code = subprocess.run([sys.executable, "-m", "embodied.train", *IMITATE, *arguments, f"data={data}", f"seed={seed}", f"output={output}"]).returncode
    if code:
        sys.exit(code)
    return max(output.glob("*/*/checkpoints/step_*"), key=lambda path: path.stat().st_mtime) / "policy"


def pack(start: Path, folder: Path) -> None:
    """The policy folder in half the bytes; it is as often right."""
    AutoModelForCausalLM.from_pretrained(start, dtype=torch.bfloat16, local_files_only=True).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(start / name, folder / name)


def main(arguments: list[str]) -> int:
    own = given(arguments, __doc__)
    output, seed = Path(own.get("output", "outputs/math_start")), int(own.get("seed", 0))
    if output.exists():
        sys.exit(f"{output} is there already; name another folder: output=FOLDER")
    output.mkdir(parents=True)
    demonstrate(output / "worked.jsonl", 0.0, seed)
    demonstrate(output / "mixed.jsonl", BLURTED, seed + 1)
    adder = imitate(output / "worked.jsonl", output / "worked", seed, *WORKED_RUN)
    start = imitate(output / "mixed.jsonl", output / "mixed", seed, *MIXED_RUN, f"policy.checkpoint={adder}")
    pack(start, output / "policy")
    print(f"the start: {output / 'policy'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
