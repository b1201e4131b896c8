"""`python -m embodied.export checkpoint=RUN_OR_FOLDER out=DIR`: adapters added to their base's weights, in a plain checkpoint folder.

checkpoint: a run (its newest whole checkpoint), a step_N folder or a policy folder. out: a folder that is not there yet, or is empty, outside of any run's checkpoint.
policy=openvla|openvla_oft|causal_lm|... says how the folder is read, where no run says it (openvla_oft). dtype=float32|bfloat16 is what is written
(float32). base=FOLDER says where the adapters' base lies, if not where they say.

The sum is made in float32, and checked before anything is written: on random inputs the network without adapters gives the logits that
it gave with them, to 1e-3. A folder without adapters is written as it was read. Heads of reinforcement learning alone (value_head) stay behind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Sequence

import torch
from omegaconf import DictConfig, OmegaConf

from embodied.config import ConfigError, compose, nearest, value_of
from embodied.runs import checkpoint
from embodied.wiring import build, programs
from policies.checkpoints import lora

KEYS = ("checkpoint", "out", "policy", "dtype", "base")
DTYPES = ("float32", "bfloat16")
TOLERANCE = 1e-3  # of a logit


def main(arguments: Sequence[str] | None = None) -> int:
    return programs.guarded(export, arguments, __doc__)


@torch.no_grad()
def export(arguments: Sequence[str]) -> None:
    asked = _asked(arguments)
    out = Path(asked["out"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out}: found something there, wanted a folder that is not there yet, or is empty; name another")
    sealed = checkpoint.sealed(out)
    if sealed is not None:
        raise ConfigError(f"out={out}: found it inside the checkpoint {sealed}, wanted a folder outside: a checkpoint's files stay as they were written; name another")
    config, folder = _source(asked)
    policy = build.policy(config, weights=folder)
    if not hasattr(policy, "probe"):
        raise ConfigError(f"policy={config.choices['policy']}: it can have no adapters, and its folder {folder} is plain as it is")
    adapted = lora.carrier(policy)
    if adapted is not None:
        difference = merged(policy)
        print(f"added the adapters of rank {adapted.lora.rank} to {adapted.lora_base}; logits differ by {difference:.1e} at most from those with adapters (allowed: {TOLERANCE:g})")
    if asked["dtype"] != "float32":
        print(f"rounded to {asked['dtype']}: logits differ by {rounded(policy, getattr(torch, asked['dtype'])):.1e} at most")
    policy.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in policy.parameters()):,} parameters in {asked['dtype']}{'' if adapted is not None else ', as they were: there were no adapters'}")


def merged(policy: Any) -> float:
    """Merges a policy's adapters; -> the largest change of a logit. Raises ConfigError when it is more than TOLERANCE, or no number."""
    before = policy.probe()
    lora.merge(policy)
    difference = _difference(before, policy.probe())
    if not difference <= TOLERANCE:
        raise ConfigError(f"logits with the adapters and with them added to the weights differ by {difference:.1e}, wanted at most {TOLERANCE:g}; nothing is written: weights or adapters are too large for float32 to add them up")
    return difference


def rounded(policy: Any, dtype: torch.dtype) -> float:
    """Holds a policy's weights in another dtype; -> the largest change of a logit that comes of the weights alone, computed in float32."""
    before = policy.probe()
    for parameter in policy.parameters():
        parameter.copy_(parameter.to(dtype))
    difference = _difference(before, policy.probe())
    policy.to(dtype)
    return difference


def _asked(arguments: Sequence[str]) -> dict[str, Any]:
    names = [argument.partition("=")[0] for argument in arguments]
    unknown = [name for name in names if name not in KEYS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: there is no such key; {nearest(unknown[0], KEYS)}")
    asked = {key: value_of(arguments, key) for key in KEYS}
    missing = [key for key in ("checkpoint", "out") if asked[key] is None]
    if missing:
        raise ConfigError(f"found no {' and no '.join(missing)}, wanted checkpoint=RUN_OR_FOLDER out=DIR")
    asked["dtype"] = asked["dtype"] or DTYPES[0]
    if asked["dtype"] not in DTYPES:
        raise ConfigError(f"dtype={asked['dtype']}: wanted one of {', '.join(DTYPES)}")
    return asked


def _source(asked: dict[str, Any]) -> tuple[DictConfig, Path]:
    """A config whose policy block reads the folder in float32, and the folder; the block is the run's, where the folder is of one."""
    config = compose([f"policy={asked['policy'] or 'openvla_oft'}", f"checkpoint={asked['checkpoint']}", "device=cpu"])
    folder = programs.weights(config)
    saved = next((parent / "config.yaml" for parent in (folder, *folder.parents[:3]) if (parent / "config.yaml").is_file()), None)
    if saved is not None and asked["policy"] is None:
        run = OmegaConf.load(saved)
        config.policy, config.choices = run.policy, {**config.choices, "policy": run.choices.policy}
    changes = {"dtype": "float32", "value_head": False, "instructions": False, "base": asked["base"], "lora": None}
    for key, value in changes.items():
        if key in config.policy:
            config.policy[key] = value
    return config, folder


def _difference(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().max())


if __name__ == "__main__":
    sys.exit(main())
