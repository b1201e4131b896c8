"""Fingerprints: whether weights are those that something was made for, told in a second also of fifteen gigabytes.

Of what is large, evenly spaced pieces are read, and all of what is small: other random numbers, other training or other shapes are noticed,
a change of a few numbers of a large tensor may not be. Weights have the same fingerprint in one file or in several, wherever they lie; in another dtype they
are other weights. Nothing here judges a file: give it whole ones.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import BinaryIO, Callable, Iterable

PIECE = 4096  # bytes read at one place
OF_TENSOR, OF_FILE = 8, 4096  # places
BYTES = 16  # of a fingerprint


def of_weights(files: Iterable[Path], counts: Callable[[str], bool] = lambda name: True) -> str:
    """Of all tensors in whole safetensors files whose names count: names, dtypes, shapes and numbers."""
    found = {}
    for file in files:
        with file.open("rb") as opened:
            tensors, start = header(opened)
            for name in sorted(tensors, key=lambda name: tensors[name]["data_offsets"]):
                if counts(name):
                    first, end = tensors[name]["data_offsets"]
                    digest = hashlib.blake2b(json.dumps([name, tensors[name]["dtype"], tensors[name]["shape"]]).encode(), digest_size=BYTES)
                    _add(digest, opened, start + first, end - first, OF_TENSOR)
                    found[name] = digest.digest()
    return hashlib.blake2b(b"".join(found[name] for name in sorted(found)), digest_size=BYTES).hexdigest()


def header(opened: BinaryIO) -> tuple[dict[str, dict], int]:
    """Of an open safetensors file: {name: {"dtype", "shape", "data_offsets"}}, and where its data begin. Raises ValueError or struct.error for another file.

    Layout: the safetensors format, version 0.4.
    """
    length = struct.unpack("<Q", opened.read(8))[0]
    tensors = json.loads(opened.read(length))
    tensors.pop("__metadata__", None)
    return tensors, 8 + length


def of_file(file: Path) -> str:
    """Of a file's size and bytes."""
    size = file.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=BYTES)
    with file.open("rb") as opened:
        _add(digest, opened, 0, size, OF_FILE)
    return digest.hexdigest()


def of_json(content: object) -> str:
    """Of what a json file says, however it is written down."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=BYTES).hexdigest()


def _add(digest: "hashlib.blake2b", opened: BinaryIO, start: int, size: int, places: int) -> None:
    """`places` pieces of the `size` bytes from `start`, the first and the last among them; all of no more than that."""
    whole = size <= places * PIECE
    for place in range(1 if whole else places):
        opened.seek(start + place * (size - PIECE) // (places - 1))
        digest.update(opened.read(size if whole else PIECE))
