"""What a run began from: fingerprints of its policy's folder, kept in the run's folder and compared whenever the run goes on.

The frozen weights under adapters and the reference of a KL term are read from that folder anew at every resume: from another one, the run would go
on as a run of something else. A folder that has moved is the same. A run that kept none, being older, keeps them from its next resume on.
"""

from __future__ import annotations

import json
from pathlib import Path

from embodied.runs.folder import write_json
from policies.checkpoints import loading

START = "start.json"  # {"folder": where it lay, "parts": {what: fingerprint}}


class OtherStart(ValueError):
    """A run's start is not there, or is no longer what the run began from."""


def kept(run: Path) -> bool:
    """Whether the run says what it began from."""
    return (run / START).is_file()


def keep(run: Path, folder: Path | None, base: str | None = None) -> None:
    """Writes down what lies in `folder`, or compares it with what was written down. None, or a path that is no folder: nothing, unless it was one before.

    base: policy.base, the weights under a folder of adapters. Raises OtherStart naming each part that differs.
    """
    there = folder is not None and folder.is_dir()
    if not kept(run):
        if there:
            write_json(run / START, {"folder": str(folder.absolute()), "parts": loading.parts_of(folder, base)})
        return
    saved = json.loads((run / START).read_text())
    if not there:
        raise OtherStart(f"policy.checkpoint={folder}: found no folder there, wanted the one that {run} began from ({saved['folder']}); where it has moved to, resume={run} policy.checkpoint=FOLDER")
    found, wanted = loading.parts_of(folder, base), saved["parts"]
    other = [part for part in sorted(found.keys() | wanted.keys()) if found.get(part) != wanted.get(part)]
    if other:
        raise OtherStart(
            f"policy.checkpoint={folder}: found other contents than {run} began from: {', '.join(other)}; a run keeps its start, for what is frozen and for its KL reference. "
            f"Put the folder back as it was, or name a copy that is (resume={run} policy.checkpoint=FOLDER), or start a run of its own"
        )
