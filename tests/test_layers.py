"""The rules of the house, read off the source without running it: who may import whom, what is never written, and how big a file may be."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = ("embodied", "envs", "policies", "scheduler", "configs", "assets")
MAX_FILE, MAX_FUNCTION, MAX_IN_FOLDER = 300, 70, 12

# A heavy library -> the files (or folders, ending in "/") that may import it.
ADAPTERS = {
    "ray": ("scheduler/backends/ray_backend.py", "scheduler/backends/ray_", "scheduler/backends/ray/"),
    **dict.fromkeys(("mujoco", "robosuite", "libero", "bddl"), ("envs/libero", "policies/experts/libero")),
    **dict.fromkeys(("mani_skill", "sapien"), ("envs/maniskill", "policies/experts/maniskill")),
    **dict.fromkeys(("torchvision", "timm"), ()),  # one that does not fit torch breaks transformers; nobody needs them
    "math_verify": ("envs/",),
    "reasoning_gym": ("envs/",),
}
MAY_IMPORT_SCHEDULER = {f"embodied/{name}.py" for name in ("loop", "graphs", "train", "evaluate", "plan", "doctor", "config", "wiring/programs", "wiring/scheduling", "wiring/training", "wiring/deployment", "wiring/measuring", "wiring/ranks")}
# In scheduler/: a room may import itself and those to its right.
ROOMS = ("planning", "running", "backends", "nouns")


def sources() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for top in OURS for path in (ROOT / top).rglob("*.py"))


@functools.cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text(encoding="utf-8"), source)


@functools.cache
def imports(source: str) -> tuple[tuple[str, int, bool], ...]:
    """(absolute dotted module, line, whether it runs when the file is imported) of every import of `source`."""
    package = source.removesuffix(".py").split("/")[:-1]
    at_import = set(_outside_functions(tree(source)))
    found = []
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, node in at_import) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(f"{module}.{alias.name}", node.lineno, node in at_import) for alias in node.names]
    return tuple(found)


def _outside_functions(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_type_checking(child):
            continue
        yield child
        yield from _outside_functions(child)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def offences(prefix: str, forbidden) -> list[str]:
    """"file:line imports X" for every import under `prefix` for which `forbidden(source, module)` holds."""
    return [f"{source}:{line} imports {module}" for source in sources() if source.startswith(prefix) for module, line, _ in imports(source) if forbidden(source, module)]


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def says_none(found: list[str], rule: str) -> None:
    assert not found, rule + ":\n  " + "\n  ".join(found)


@pytest.mark.parametrize("layer", ["envs", "scheduler"])
def test_the_bottom_layers_import_no_other_package_of_ours(layer):
    others = [name for name in OURS if name != layer]
    says_none(offences(f"{layer}/", lambda _, module: within(module, *others)), f"{layer} imports nothing of ours but itself")


def test_policies_import_only_the_spec_of_envs():
    def forbidden(_, module):
        return within(module, "embodied", "scheduler", "configs", "assets") or (within(module, "envs") and not within(module, "envs.spec"))

    says_none(offences("policies/", forbidden), "policies know envs by envs.spec alone")


def test_the_learning_code_is_torch_and_standard_library_only():
    import sys

    def forbidden(_, module):
        return not within(module, "torch", "embodied.learning", "__future__") and module.split(".")[0] not in sys.stdlib_module_names

    says_none(offences("embodied/learning/", forbidden), "embodied/learning imports torch, the standard library and itself")


def test_only_the_programs_that_wire_know_the_scheduler():
    def forbidden(source, module):
        message = source.startswith("embodied/stages/") and within(module, "scheduler.backends.base")  # the types a stage is called with and answers in
        return within(module, "scheduler") and source not in MAY_IMPORT_SCHEDULER and not message

    says_none(offences("embodied/", forbidden), f"only {', '.join(sorted(MAY_IMPORT_SCHEDULER))} may import scheduler, and stages its message types in backends.base")


def test_the_scheduler_imports_downwards_only():
    def room(dotted: str) -> str:
        parts = dotted.split(".")
        return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "nouns"

    def forbidden(source, module):
        return within(module, "scheduler") and ROOMS.index(room(module)) < ROOMS.index(room(source.replace("/", ".")))

    says_none(offences("scheduler/", forbidden), "in scheduler, planning imports running, running imports backends, backends import the nouns, never upwards")


def test_the_scheduler_is_standard_library_with_numpy_only_in_planning():
    import sys

    def forbidden(source, module):
        top = module.split(".")[0]
        allowed = top in sys.stdlib_module_names or top == "scheduler" or (top == "numpy" and source.startswith("scheduler/planning/")) or (top in ("ray", "numpy") and source.startswith("scheduler/backends/"))
        return not allowed

    says_none(offences("scheduler/", forbidden), "scheduler knows nothing of torch, robots or text")


def test_heavy_libraries_are_imported_only_in_their_own_adapter():
    def forbidden(source, module):
        homes = ADAPTERS.get(module.split(".")[0])
        return homes is not None and not source.startswith(homes)

    says_none(offences("", forbidden), "a simulator or cluster library is imported in its own adapter file only")


def test_no_code_names_a_config_file():
    found = [f"{source}:{node.lineno} names {node.value!r}" for source in sources() for node in ast.walk(tree(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("configs/")]
    says_none(found, "choices are import paths in yaml; code names no config file")


def test_no_checkpoint_can_run_code():
    found = []
    for source in sources():
        for node in ast.walk(tree(source)):
            if not isinstance(node, ast.Call):
                continue
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            called = ast.unparse(node.func)
            if arguments.get("trust_remote_code", "False") != "False":
                found.append(f"{source}:{node.lineno} passes trust_remote_code={arguments['trust_remote_code']}")
            if called == "torch.load" and arguments.get("weights_only") != "True":
                found.append(f"{source}:{node.lineno} calls torch.load without weights_only=True")
            if source.startswith(("policies/", "embodied/")) and (called in ("pickle.load", "pickle.loads", "cloudpickle.load", "joblib.load") or arguments.get("allow_pickle") == "True"):
                found.append(f"{source}:{node.lineno} unpickles by {called}")
    says_none(found, "weights are read from safetensors or by torch.load(weights_only=True)")


def test_no_exception_is_caught_unnamed():
    found = [f"{source}:{node.lineno}" for source in sources() for node in ast.walk(tree(source)) if isinstance(node, ast.ExceptHandler) and node.type is None]
    says_none(found, "no bare except: name what is expected")


def test_every_file_says_at_its_top_what_it_guarantees():
    says_none([source for source in sources() if tree(source).body and not ast.get_docstring(tree(source))], "a module that holds code starts with a docstring")


def test_files_and_functions_stay_readable():
    found = []
    for source in sources():
        lines = len((ROOT / source).read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE:
            found.append(f"{source} has {lines} lines (most: {MAX_FILE})")
        for node in ast.walk(tree(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno + 1 > MAX_FUNCTION:
                found.append(f"{source}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines (most: {MAX_FUNCTION})")
    says_none(found, "split it along what it does")


def test_no_folder_becomes_a_drawer():
    counts = Counter(str(Path(source).parent) for source in sources() if not source.endswith("__init__.py"))
    says_none([f"{folder}/ holds {count} files (most: {MAX_IN_FOLDER})" for folder, count in counts.items() if count > MAX_IN_FOLDER], "a room is missing")


def test_the_top_of_embodied_imports_without_any_heavy_library():
    heavy = ("torch", "transformers", "ray", "mujoco", "hydra", "gymnasium", "numpy")
    found = [f"{source}:{line} imports {module}" for source in ("embodied/__init__.py", "embodied/runs/__init__.py") for module, line, at_import in imports(source) if at_import and within(module, *heavy)]
    says_none(found, "importing embodied costs nothing")
