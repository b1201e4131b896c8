"""Host memory that loading a checkpoint takes, beside what the model and one shard take: it must not need more than both.

    python benchmarks/load_memory.py [layers=20] [shard_mb=200] [folder=DIR]

Writes a random OpenVLA (bfloat16, about 1.2 GB in shards), loads it in a fresh process each as policy and as transformers' AutoModel, in bfloat16 and in
float32, and prints the peak of resident memory over what it was before (VmHWM), and of it what no file stands behind (RssAnon, sampled): pages
of a mapped file count as resident, but a system that needs memory takes them back. Exits 1 where a peak is over the limit.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards

from policies.checkpoints import loading
from policies.checkpoints.fresh import create_checkpoint
from policies.openvla import OpenVLA

from arguments import given

SIZES = {"image": 56, "patch": 14, "vision_width": 256, "vision_depth": 4, "hidden": 1536, "layers": 1, "heads": 16, "mlp": 4096}
STATISTICS = {"toy": {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 7}}}
LOADERS = ("policy", "model")
DTYPES = {"bfloat16": 2, "float32": 4}  # bytes per parameter
SLACK = 24 * 2**20  # bytes: headers, names, the allocator's own; of one size whatever the model's
MB = 1e6


def write(folder: Path, layers: int, shard: int) -> int:
    """The random checkpoint, one shard in memory at a time; returns its parameters' number."""
    create_checkpoint(folder, ["push"], STATISTICS, sizes=SIZES)
    config = json.loads((folder / loading.CONFIG).read_text())
    config["text_config"]["num_hidden_layers"] = layers
    config["torch_dtype"] = "bfloat16"
    (folder / loading.CONFIG).write_text(json.dumps(config))
    (folder / loading.WEIGHTS).unlink()
    shapes = shapes_of(config)
    split = split_torch_state_dict_into_shards(shapes, max_shard_size=shard)
    for file, names in split.filename_to_tensors.items():
        loading.write_tensors(folder / file, {name: torch.randn(shapes[name].shape).mul_(0.02).bfloat16() for name in names})
    (folder / loading.INDEX).write_text(json.dumps({"metadata": split.metadata, "weight_map": split.tensor_to_filename}))
    return sum(tensor.numel() for tensor in shapes.values())


def shapes_of(config: dict) -> dict[str, torch.Tensor]:
    """{name: tensor without memory} of the model that a config describes."""
    from policies.parts.network import Network

    with torch.device("meta"):
        network = Network()
        network.build(config)
    return dict(network.to(torch.bfloat16).named_parameters())


def measure(folder: str, loader: str, dtype: str) -> None:
    """Loads, and prints the peaks over the start in bytes as json."""
    load = loader_of(loader)
    torch.empty(1).bfloat16()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    start, anonymous, stop = status("VmRSS"), [status("RssAnon")], threading.Event()

    def sample() -> None:
        while not stop.is_set():
            anonymous.append(status("RssAnon"))
            time.sleep(0.002)

    sampler = threading.Thread(target=sample)
    sampler.start()
    begun = time.perf_counter()
    loaded = load(folder, dtype)
    seconds = time.perf_counter() - begun
    stop.set()
    sampler.join()
    assert next(loaded.parameters()).dtype == getattr(torch, dtype)
    print(json.dumps({"peak": status("VmHWM") - start, "anonymous": max(anonymous) - anonymous[0], "held": status("VmRSS") - start, "seconds": seconds}))


def loader_of(name: str):
    """The function that loads (folder, dtype), everything it needs imported and tried out on nothing."""
    from policies.parts.decoder import require_bidirectional

    require_bidirectional()
    if name == "policy":
        return lambda folder, dtype: OpenVLA.from_pretrained(folder, dtype=dtype)
    import policies.checkpoints.hub  # noqa: F401  registers the classes
    from transformers import AutoModelForImageTextToText

    return lambda folder, dtype: AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype))


def status(key: str) -> int:
    """Bytes, of this process."""
    return int(re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def main(arguments: list[str]) -> int:
    asked = given(arguments, __doc__)
    if "measure" in asked:
        measure(asked["folder"], asked["measure"], asked["dtype"])
        return 0
    over = False
    with tempfile.TemporaryDirectory(dir=asked.get("folder")) as place:
        parameters = write(Path(place), int(asked.get("layers", 20)), int(asked.get("shard_mb", 200)) * 10**6)
        shard = max(file.stat().st_size for file in Path(place).glob("model-*.safetensors"))
        print(f"{parameters / 1e6:.0f} M parameters, bfloat16 on disk, largest shard {shard / MB:.0f} MB; peaks over the start of the process in MB")
        print("loaded as  dtype     model  limit   peak  of it anonymous  held after  seconds")
        for loader in LOADERS:
            for dtype, size in DTYPES.items():
                child = subprocess.run([sys.executable, __file__, f"measure={loader}", f"dtype={dtype}", f"folder={place}"], capture_output=True, text=True, check=True)
                found, limit = json.loads(child.stdout.splitlines()[-1]), parameters * size + shard + SLACK
                over |= found["peak"] > limit
                print(f"{loader:9}  {dtype:8} {parameters * size / MB:6.0f} {limit / MB:6.0f} {found['peak'] / MB:6.0f} {found['anonymous'] / MB:16.0f} {found['held'] / MB:11.0f} {found['seconds']:8.1f}{'  OVER' if found['peak'] > limit else ''}", flush=True)
    return int(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
