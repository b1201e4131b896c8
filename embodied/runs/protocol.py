"""What a score must be read with, as plain values: what was asked, of whom, how it was worded and sampled. Printed and stored beside every score."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

WIDTH = 100  # columns of a printed line
DIGEST = 12  # hex digits of a hash: enough to tell two protocols apart


def protocol(env: Mapping[str, Any], policy: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """One dict of three, the later before the earlier where both say the same thing. env, policy: what each says of itself, with what words a prompt
    under `template`: the hash of both stands there in the end, where either has any."""
    words = [said.get("template") for said in (env, policy)]
    template = {} if words == [None, None] else {"template": hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:DIGEST]}
    return {**env, **policy, **template, **run}


def block(said: Mapping[str, Any]) -> str:
    """`protocol:` and `key=value, ...` below it, in lines that are broken between two of them."""
    lines = [""]
    for key, value in said.items():
        item = f"{key}={value}"
        if lines[-1] and len(lines[-1]) + len(item) + 4 > WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{item}"
    return "\n  ".join(["protocol:", *lines])


def remarks(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each thing that was remarked on episodes: on how many, and whether none of them succeeded."""
    rows = list(rows)
    counts = Counter(row["remark"] for row in rows if row.get("remark"))
    lines = []
    for remark, count in counts.items():
        failed = not any(row["success"] for row in rows if row.get("remark") == remark)
        lines.append(f"{count} of {len(rows)} episodes: {remark}{', counted as failed' if failed else ''}")
    return lines
