"""One command for a machine with a large GPU: does it compute the reference's numbers, and how fast does it act, learn and change over?

    python benchmarks/gpu_check.py [--tiny] [--out FILE.json] [--seconds 450] [--peak-tflops N] [--only NAME ...]

Needs torch, transformers, safetensors, peft and numpy: no simulator and no cluster. Models are random, of the published 7B layout and of one with a language
model of 0.3B, made on the device. Progress goes to stderr; the report, one JSON object, is written anew after every section, to --out or at the end to stdout.
A section that fails is in it with its error and costs none of the others. What there is no time or memory for is listed under "skipped", and what
--only leaves out under "not_asked". "passed", and exit code 0, is for a run where no section failed, at least one was measured, and none of those that
judge numbers (parity, loop) was skipped. --tiny is the same with toy sizes in less than a minute, on the CPU where there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy
import peft
import safetensors
import torch
import transformers

from benchmarks.gpu import checks, models, speed
from benchmarks.gpu.bench import Bench, peak_of, say

JUDGES = ("parity", "loop")  # a check that has skipped one of them has not checked
SETUP = 20.0  # seconds: a section that begins with less left would not measure anything


def machine(bench: Bench) -> dict[str, Any]:
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft, safetensors, numpy)}
    found: dict[str, Any] = {"device": bench.device, "python": platform.python_version(), "cpu_threads": torch.get_num_threads(), **versions}
    if bench.device == "cuda":
        device = torch.cuda.get_device_properties(0)
        found |= {"name": device.name, "memory_bytes": device.total_memory, "capability": f"{device.major}.{device.minor}", "cuda": torch.version.cuda}
    return found | {"peak_flops_per_s": bench.peak}


def sections(tiny: bool) -> dict[str, tuple[float, Callable[[Bench], dict[str, Any]]]]:
    """name -> (bytes of the device it needs at least, what to do), the most wanted first."""
    found: dict[str, tuple[float, Callable[[Bench], dict[str, Any]]]] = {"parity": (0.0, checks.parity), "loop": (0.0, checks.loop)}
    sizes = ("tiny",) if tiny else ("7b", "1b")
    for name, run in (("act", speed.act), ("learn", speed.learn), ("switch", checks.switch), ("act compiled", partial(speed.act, compiled=True))):
        found |= {f"{name} {size}": (1.2 * models.BYTES[size], partial(run, size=size)) for size in sizes}
    return found


def section(bench: Bench, needs: float, run: Callable[[Bench], dict[str, Any]]) -> dict[str, Any]:
    """What `run` found, or why it found nothing; with its seconds."""
    if bench.left < SETUP * (not bench.tiny):
        return {"skipped": f"{bench.left:.0f} s left"}
    if bench.device == "cuda":
        gc.collect()  # the last section's model
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        free, _ = torch.cuda.mem_get_info()
        if free < needs:
            return {"skipped": f"found {free / 1e9:.1f} GB free on the device, wanted {needs / 1e9:.1f} GB"}
    begun = time.monotonic()
    try:
        found = run(bench)
    except Exception as error:  # whatever it is, the other sections are still wanted
        say(traceback.format_exc())
        found = {"error": f"{type(error).__name__}: {error}"}
    return {**found, "seconds": time.monotonic() - begun}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="toy sizes, also on the CPU")
    parser.add_argument("--out", type=Path, help="the JSON file to write; without it, stdout")
    parser.add_argument("--seconds", type=above_zero, default=450.0, help="after which nothing more is begun")
    parser.add_argument("--peak-tflops", type=above_zero, help="dense bfloat16 peak of the device, where its name is not known here")
    parser.add_argument("--only", nargs="+", help="sections to run")
    given = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("found no CUDA device, wanted one; --tiny runs on the CPU too")
    todo = sections(given.tiny)
    unknown = sorted(set(given.only or ()) - set(todo))
    if unknown:
        parser.error(f"--only: found {', '.join(unknown)}, wanted some of: {', '.join(todo)}")
    if given.out:
        try:
            given.out.open("a").close()
        except OSError as error:
            parser.error(f"--out: found {given.out} ({error.strerror}), wanted a file that can be written, in a folder that is there")
    peak = given.peak_tflops * 1e12 if given.peak_tflops else peak_of(torch.cuda.get_device_name()) if device == "cuda" else None
    bench = Bench(device, given.tiny, given.seconds, time.monotonic() + given.seconds, peak)
    asked = {name: each for name, each in todo.items() if not given.only or name in given.only}
    report: dict[str, Any] = {"machine": machine(bench), "not_asked": [name for name in todo if name not in asked], "sections": {}}
    for name, (needs, run) in asked.items():
        say(f"{name}: {bench.left:.0f} s left")
        found = report["sections"][name] = section(bench, needs, run)
        say(f"    {'failed: ' + str(found.get('error') or found['failed']) if is_failure(found) else 'left out: ' + found['skipped'] if 'skipped' in found else 'done'}")
        report |= verdict(report["sections"], tuple(asked))
        if given.out:
            given.out.write_text(json.dumps(report, indent=2) + "\n")
    if not given.out:
        print(json.dumps(report, indent=2))
    if report["skipped"]:
        say(f"skipped: {'; '.join(f'{name}: {why}' for name, why in report['skipped'].items())}")
    return 0 if report["passed"] else 1


def verdict(found: dict[str, dict[str, Any]], asked: tuple[str, ...]) -> dict[str, Any]:
    """passed, and skipped {section, or section / part: why}, of the sections found so far, out of those asked for."""
    judged = all(name in found and "skipped" not in found[name] for name in JUDGES if name in asked)
    measured = any("skipped" not in each for each in found.values())
    return {"passed": judged and measured and not any(map(is_failure, found.values())), "skipped": dict(_skipped(found))}


def _skipped(found: dict[str, Any], of: str = "") -> Iterator[tuple[str, str]]:
    for name, each in found.items():
        if isinstance(each, dict) and isinstance(each.get("skipped"), str):
            yield of + name, each["skipped"]
        elif isinstance(each, dict):
            yield from _skipped(each, f"{of}{name} / ")


def above_zero(text: str) -> float:
    """Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number above 0")
    return value


def is_failure(found: dict[str, Any]) -> bool:
    return "error" in found or bool(found.get("failed"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
