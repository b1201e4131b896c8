"""A local Hugging Face dataset folder as parts of rows: what `save_to_disk` wrote, or a repository's JSONL and Parquet files.

Only data is read: no dataset script is run and nothing is unpickled. Arrow and Parquet files need pyarrow, which is imported for them alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, Iterator

SUFFIXES = (".jsonl", ".parquet")
SPLIT = re.compile(r"(train|test|validation|valid|eval|evaluation|dev)(?![A-Za-z])", re.IGNORECASE)  # at the front of a file's name


def parts(folder: Path, jsonl_rows: Callable[[Path], Any], columns: set[str]) -> dict[str, Iterator[tuple[str, Any]]]:
    """Part ("train", "test"...; "" where unnamed) -> (where it stands, record) of each row. columns: what to read of Arrow and Parquet files.

    Files are looked for in the folder and in its `data`. Raises ValueError with what was found where that is no dataset.
    """
    if (folder / "dataset_dict.json").is_file():
        names = _described(folder / "dataset_dict.json", "splits")
        return {name: _saved(folder / Path(name).name, columns) for name in names}
    if (folder / "state.json").is_file():
        return {"": _saved(folder, columns)}
    files: dict[str, list[Path]] = {}
    for file in sorted([*folder.glob("*"), *folder.glob("data/*")]):
        if file.is_file() and file.suffix in SUFFIXES:
            named = SPLIT.match(file.name)
            files.setdefault(named.group(1).lower() if named else "", []).append(file)
    if not files:
        held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise ValueError(f"problems={folder}: found a folder with {held}; wanted what datasets' save_to_disk writes, or *.jsonl or *.parquet files in it or in its data/ (a script is not run)")
    return {name: _rows(found, folder, jsonl_rows, columns) for name, found in files.items()}


def _rows(files: list[Path], folder: Path, jsonl_rows: Callable[[Path], Any], columns: set[str]) -> Iterator[tuple[str, Any]]:
    for file in files:
        rows = jsonl_rows(file) if file.suffix == ".jsonl" else parquet_rows(file, columns)
        yield from ((f"{file.relative_to(folder)}, {place}", record) for place, record in rows)


def parquet_rows(file: Path, columns: set[str]) -> Iterator[tuple[str, Any]]:
    """(where it stands, record) of each row of one file."""
    return _table_rows(_parquet(file), columns)


def _saved(folder: Path, columns: set[str]) -> Iterator[tuple[str, Any]]:
    for entry in _described(folder / "state.json", "_data_files"):
        file = folder / Path(entry["filename"]).name
        yield from ((f"{folder.name}/{file.name}, {place}", record) for place, record in _table_rows(_arrow(file), columns))


def _described(file: Path, key: str) -> list:
    """The list under `key` of a file that save_to_disk wrote. Raises ValueError where that is not to be had."""
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: found no list {key!r} ({type(error).__name__}: {error}), wanted what datasets' save_to_disk writes; save the dataset again") from error


def _table_rows(table: Any, columns: set[str]) -> Iterator[tuple[str, Any]]:
    kept = [name for name in table.column_names if name in columns] or table.column_names  # all: a message shall name what there is
    yield from ((f"row {number}", record) for number, record in enumerate(table.select(kept).to_pylist(), 1))


def _parquet(file: Path) -> Any:
    _pyarrow(file)
    from pyarrow import parquet

    return _read(file, lambda: parquet.read_table(str(file)))


def _arrow(file: Path) -> Any:
    arrow = _pyarrow(file)

    def read() -> Any:
        with arrow.memory_map(str(file)) as mapped, arrow.ipc.open_stream(mapped) as stream:
            return stream.read_all()

    return _read(file, read)


def _pyarrow(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ValueError(f"{file}: found no library pyarrow ({error}), wanted it to read this file: pip install pyarrow, or save the problems as JSONL") from error
    return pyarrow


def _read(file: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # pyarrow has errors of its own, some no subclass of OSError or ValueError
        raise ValueError(f"{file}: found a file that pyarrow cannot read ({type(error).__name__}: {error}), wanted Arrow or Parquet; save the dataset again") from error
