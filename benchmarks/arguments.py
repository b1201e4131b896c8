"""What the benchmarks' command lines have in common: key=value, and --help."""

from __future__ import annotations

import sys
from typing import Sequence


def given(arguments: Sequence[str], about: str | None) -> dict[str, str]:
    """{key: value}. Ends the program with `about` for --help, and with a message for what is no key=value."""
    if {"-h", "--help"}.intersection(arguments):
        print(about or "")
        sys.exit(0)
    odd = [argument for argument in arguments if "=" not in argument]
    if odd:
        sys.exit(f"found {', '.join(odd)}, wanted key=value; --help says which keys there are")
    return dict(argument.split("=", 1) for argument in arguments)
