"""tools/vulkan.sh never fails, and leaves apt as it found it where it cannot bring a newer Mesa."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "vulkan.sh"
pytestmark = pytest.mark.skipif(bool([*Path("/usr/share/vulkan/icd.d").glob("nvidia*"), *Path("/etc/vulkan/icd.d").glob("nvidia*")]), reason="a GPU's own Vulkan driver is here: the script does nothing")


def run(folder: Path, update: str = "exit 0", mirror: str = "http://mirror/", root: bool = True) -> tuple[str, list[str], list[str]]:
    """(what it says, the calls of apt-get, the lists left) on a Debian 12 whose Mesa is too old. update: what `apt-get update` does."""
    tools, lists = folder / "bin", folder / "lists"
    tools.mkdir()
    lists.mkdir()
    programs = {
        "apt-get": f'echo "$1" >> {folder}/calls; case $1 in update) {update};; indextargets) echo "{mirror}";; esac',
        "apt-cache": 'echo "  Candidate: 22.3.6-1+deb12u1"', "dpkg-query": "exit 1", "id": f"echo {0 if root else 1000}",
        "dpkg": '[ "${2%%.*}" -ge 24 ]',
    }  # fmt: skip
    for name, body in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run([SCRIPT], env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "APT_LISTS": str(lists)}, capture_output=True, text=True)
    assert done.returncode == 0
    calls = (folder / "calls").read_text().split() if (folder / "calls").exists() else []
    return done.stdout, calls, [path.name for path in lists.iterdir()]


def test_package_lists_that_cannot_be_read_end_it(tmp_path):
    said, calls, left = run(tmp_path, update="exit 100")
    assert "could not be read" in said and calls == ["update"] and left == []


def test_without_a_known_mirror_no_list_is_written(tmp_path):
    said, calls, left = run(tmp_path, mirror="")
    assert "wanted >= 24.3" in said and "install" not in calls and left == []


def test_a_mirror_without_backports_is_not_kept(tmp_path):
    said, calls, left = run(tmp_path)
    assert "found no backports" in said and "install" not in calls and left == []


def test_who_is_not_root_is_told_the_one_command(tmp_path):
    said, calls, left = run(tmp_path, root=False)
    assert "sudo tools/vulkan.sh" in said and calls == [] and left == []
