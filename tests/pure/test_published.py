"""Benchmark files as they are published, and files of other kinds than JSONL: what is read of them and what is said of one that is wrong."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import pytest

from embodied.config import compose, yaml_of
from envs.answers import grade
from envs.math import MathEnv
from envs.math.problems import load
from envs.math.published import BENCHMARKS, lettered

GPQA = {"Question": "Which one?\n", "Correct Answer": "this", "Incorrect Answer 1": "that", "Incorrect Answer 2": "those", "Incorrect Answer 3": "none "}


def texts(path: Path, **knobs) -> list[tuple[str, str]]:
    return [(problem.prompt, problem.answer) for problem in load(str(path), "evaluate", whole=True, **knobs)]


def write_csv(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Kinds of files


def test_a_list_in_a_json_file_is_read_and_so_are_lines_in_one(tmp_path):
    rows = [{"problem": "1+1?", "answer": 2}, {"problem": "Half?", "answer": 0.50}]
    (tmp_path / "list.json").write_text("\n" + json.dumps(rows, indent=1))
    write_jsonl(tmp_path / "lines.json", rows)
    assert texts(tmp_path / "list.json") == texts(tmp_path / "lines.json") == [("1+1?", "2"), ("Half?", "0.5")]


def test_a_csv_is_read_by_the_names_in_its_first_row(tmp_path):
    path = write_csv(tmp_path / "a.csv", [{"question": 'Two\nlines, "quoted"?', "answer": "7"}, {"question": "b", "answer": "8"}])
    assert texts(path) == [('Two\nlines, "quoted"?', "7"), ("b", "8")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'[{"prompt": "a", "answer": 1}, null]', "entry 2: found null, wanted an object"),
        ("a.json", b'[{"prompt": ', "found no JSON .*, wanted a list of objects, or one a line"),
        ("a.csv", b"prompt,answer\na,1\nb,2,3\n", "row 2: found 1 fields more than the 2 names in the first row"),
        ("a.csv", b"prompt,answer\na,\n", 'row 1: found answer="", which holds no answer'),
        ("a.csv", b"prompt,answer\n\xff,1\n", "found no CSV in UTF-8"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused_by_place(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        load(str(tmp_path / name))


def test_what_is_packaged_is_read_and_graded_by_its_last_line():
    problems = load("packaged:gsm_100.jsonl", "evaluate", whole=True)
    assert problems.size == 100 and problems[0].prompt.startswith("Toula went to the bakery")
    assert [problems.score(problems[0], text) for text in ("\\boxed{694}", "\\boxed{693}")] == [1.0, 0.0]
    assert all(problems.score(problem, problem.answer) == 1.0 for problem in problems)


def test_what_is_not_packaged_is_refused(tmp_path):
    with pytest.raises(ValueError, match="found problems='packaged:gsm.jsonl', wanted arithmetic, .*no such file in .*assets"):
        load("packaged:gsm.jsonl")


# Benchmarks


@pytest.mark.parametrize(
    ("published", "row", "problem"),
    [
        ("aime24", {"ID": "2024-I-1", "Problem": "Find $x$.", "Solution": "So \\boxed{5}.", "Answer": 204}, ("Find $x$.", "204")),
        ("aime24", {"id": 60, "problem": "Find $x$.", "solution": "s", "answer": "204", "url": "", "year": "2024"}, ("Find $x$.", "204")),
        ("aime25", {"problem": "Find $y$.", "answer": "70", "id": "0"}, ("Find $y$.", "70")),
        ("aime25", {"question": "Find $y$.", "answer": "70"}, ("Find $y$.", "70")),
    ],
)
def test_a_row_of_a_published_set_becomes_a_problem(tmp_path, published, row, problem):
    assert texts(write_jsonl(tmp_path / "a.jsonl", [row]), published=published) == [problem]


def test_a_question_of_four_options_is_answered_by_a_letter(tmp_path):
    ((prompt, gold),) = texts(write_csv(tmp_path / "gpqa_diamond.csv", [GPQA | {"Subdomain": "Physics"}]), published="gpqa_diamond")
    question, blank, *options = prompt.splitlines()
    assert (question, blank) == ("Which one?", "") and sorted(option[3:] for option in options) == ["none", "that", "this", "those"]
    assert [option[:3] for option in options] == ["A) ", "B) ", "C) ", "D) "] and f"{gold}) this" in options
    assert grade(f"so \\boxed{{{gold}}}", gold) == 1.0 and grade("\\boxed{E}", gold) == 0.0


def test_the_order_of_the_options_is_the_questions_own():
    golds = [lettered(GPQA | {"Question": f"Which of {number}?"})["answer"] for number in range(400)]
    assert golds == [lettered(GPQA | {"Question": f"Which of {number}?"})["answer"] for number in range(400)]
    assert all(golds.count(letter) == pytest.approx(100, abs=35) for letter in "ABCD")  # four standard deviations


def test_a_row_without_an_option_is_named(tmp_path):
    path = write_csv(tmp_path / "a.csv", [GPQA, GPQA | {"Incorrect Answer 2": " "}])
    with pytest.raises(ValueError, match="row 2: found the fields Question, .*wanted a text in each of Incorrect Answer 2 too"):
        load(str(path), published="gpqa_diamond")


@pytest.mark.parametrize(("published", "count", "dataset"), [("aime24", 30, "Maxwell-Jia/AIME_2024"), ("aime25", 30, "math-ai/aime25"), ("gpqa_diamond", 198, "gpqa_diamond.csv")])
def test_without_its_file_a_benchmark_says_which_one_is_wanted(published, count, dataset):
    with pytest.raises(ValueError, match=f"found problems=null, wanted env.problems=FILE: the {count} problems .*{dataset}"):
        MathEnv(None, published=published)


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ValueError, match="found published='aime', wanted one of aime24, aime25, gpqa_diamond, or null"):
        MathEnv(None, published="aime")


def test_a_benchmark_of_another_size_is_judged_and_the_protocol_says_so(tmp_path):
    rows = [{"problem": f"Find {number}.", "answer": number} for number in range(30)]
    whole, part = (MathEnv(str(write_jsonl(tmp_path / f"{count}.jsonl", rows[:count])), published="aime25", only_evaluated=True) for count in (30, 28))
    assert whole.env_spec.protocol["benchmark"] == "AIME 2025" and part.env_spec.held_out_states == 28
    assert part.env_spec.protocol["benchmark"] == "AIME 2025, but 28 problems instead of 30"


def test_the_protocol_names_the_bytes_of_the_file(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1+1?", "answer": 2}, {"prompt": "1+2?", "answer": 3}])
    said = MathEnv(str(path), only_evaluated=True).env_spec.protocol
    assert (said["problems"], said["count"], said["sha256"]) == (str(path), 2, hashlib.sha256(path.read_bytes()).hexdigest()[:12])
    assert (said["split"], said["held_out"]) == ("evaluate", 1.0)


@pytest.mark.parametrize("name", [*BENCHMARKS, "gsm_100"])
def test_each_yaml_makes_an_env_of_its_file(tmp_path, name):
    rows = [GPQA] if name == "gpqa_diamond" else [{"problem": "Find $x$.", "answer": 5}]
    knobs = {key: value for key, value in yaml_of("env", name).items() if not key.startswith("_")}
    knobs["problems"] = knobs["problems"] or str(write_jsonl(tmp_path / "a.jsonl", rows))
    prompt = MathEnv(**knobs | {"only_evaluated": True}).reset(seed=0)[0]["prompt"]
    assert prompt.endswith("within \\boxed{}.") and "reason step by step" in prompt


def test_a_benchmark_asks_for_its_protocol_where_the_policy_has_all_of_it_and_the_command_line_wins():
    asked = compose(["env=aime24", "policy=causal_lm", "policy.max_tokens=64"])
    assert (asked.policy.temperature, asked.policy.top_p, asked.policy.max_tokens, asked.evaluation.samples) == (0.6, 0.95, 64, 32)
    assert compose(["env=aime24", "policy=openvla_oft"]).policy == compose(["env=libero", "policy=openvla_oft"]).policy
