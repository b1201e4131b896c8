"""The README's own words: its example env is run as it stands there."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from embodied import evaluate, plan, train

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_env_trains_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = textwrap.dedent(re.search(r"(?:^    .*\n|^\n)*^    class Reach.*\n(?:^    .*\n|^\n)*", README.read_text(), re.MULTILINE)[0])
    (tmp_path / "reach.py").write_text(code)
    (tmp_path / "reach.yaml").write_text("_target_: reach.Reach\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "reach", raising=False)
    arguments = ["env=reach.yaml", "policy=mlp", "algorithm=ppo", "iterations=2", "groups=8", "evaluation.episodes=20", "sim.slots=2", "sim.workers=0", "output=runs"]
    assert train.main(arguments) == 0
    summary = json.loads(next(tmp_path.glob("runs/*/*/summary.json")).read_text())
    assert summary["success_after"]["n"] == 20


@pytest.mark.parametrize("program", [train, evaluate, plan])
def test_help_says_what_there_is_to_choose(program, capsys: pytest.CaptureFixture) -> None:
    assert program.main(["--help"]) == 0
    assert "policy=" in capsys.readouterr().out
