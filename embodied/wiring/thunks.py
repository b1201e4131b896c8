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


def parameters(target: str) -> dict[str, inspect.Parameter]:
    """What the constructor at `target` takes, by name; a class that hands **keywords on to its bases takes theirs as well."""
    found = pkgutil.resolve_name(target)
    sources = [found] if not inspect.isclass(found) else [cls.__init__ for cls in reversed(found.__mro__) if "__init__" in vars(cls) and cls is not object]
    return {name: parameter for source in sources for name, parameter in inspect.signature(source).parameters.items() if name != "self"}
