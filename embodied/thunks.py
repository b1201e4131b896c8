"""Constructors that travel across process borders: an import path and its arguments. Imports nothing heavy."""

from __future__ import annotations

import functools
import inspect
import pkgutil
from typing import Any, Callable


def construct(target: str, **arguments: Any) -> Any:
    """Import `target` ("package.module.Class" or "...Class.method") and call it."""
    return pkgutil.resolve_name(target)(**arguments)


def thunk(target: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    """A picklable zero-argument constructor."""
    return functools.partial(construct, target, **arguments)


def parameters(target: str) -> set[str]:
    """The names that the constructor at `target` takes."""
    return set(inspect.signature(pkgutil.resolve_name(target)).parameters)
