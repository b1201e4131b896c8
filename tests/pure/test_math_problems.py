"""Sources of math problems: what they give, that training and evaluation share none, and what is said of a file that is no set of problems."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from envs.answers import grade
from envs.math.arithmetic import worked
from envs.math.base import Problem, held_out
from envs.math.problems import load, shared
from envs.math.reasoning import extracted


def sum_of(text: str, answer: str) -> Problem:
    return Problem(f"{text}=?\n", answer, "arithmetic", 0)


# Arithmetic


@pytest.mark.parametrize(
    "text, answer, steps",
    [
        ("12+39", "51", "2+9+0=11;1+3+1=5;#### 51"),
        ("5+9", "14", "5+9+0=14;#### 14"),
        ("99+1", "100", "9+1+0=10;9+0+1=10;#### 100"),
        ("52-39", "13", "12-9-0=3;5-3-1=1;#### 13"),
        ("100-1", "99", "10-1-0=9;10-0-1=9;1-0-1=0;#### 99"),
        ("12*39", "468", "12*9=108;12*30=360;108+360=468;#### 468"),
        ("7*8", "56", "7*8=56;#### 56"),
    ],
)
def test_the_worked_steps_are_those_done_by_hand(text, answer, steps):
    assert worked(sum_of(text, answer)) == steps


def test_every_worked_step_is_true_and_ends_in_the_answer():
    problems = load("arithmetic", digits=3, operations=("add", "subtract", "multiply"))
    for index in range(300):
        problem = problems[index]
        *steps, last = worked(problem).split(";")
        assert last == f"#### {problem.answer}"
        for step in steps:
            left, _, right = step.partition("=")
            assert eval(left, {}) == int(right), (problem, step)  # digits and signs of our own


def test_a_problem_that_is_no_arithmetic_has_no_worked_steps():
    with pytest.raises(ValueError, match="only those have worked steps"):
        worked(Problem("How many?", "3", "a.jsonl", 0))


def test_the_answers_of_arithmetic_are_right():
    problems = load("arithmetic", digits=4, operations=("add", "subtract", "multiply"), seed=3)
    signs = set()
    for index in range(200):
        problem = problems[index]
        text = problem.prompt.removesuffix("=?\n")
        signs |= set(text) & set("+-*")
        assert str(eval(text, {})) == problem.answer and not problem.answer.startswith("-")
    assert signs == {"+", "-", "*"}


def test_an_arithmetic_item_depends_on_the_seed_and_its_index_alone():
    one, again, other = (load("arithmetic", seed=seed) for seed in (5, 5, 6))
    backwards = [again[index] for index in reversed(range(50))][::-1]
    assert [one[index] for index in range(50)] == backwards
    assert [other[index].prompt for index in range(50)] != [problem.prompt for problem in backwards]


def test_digits_bound_the_operands():
    problems = load("arithmetic", digits=1)
    operands = {int(part) for index in range(300) for part in problems[index].prompt.removesuffix("=?\n").split("+")}
    assert operands == set(range(10))


def operands(problem: Problem) -> tuple[str, ...]:
    return tuple(sorted(problem.prompt.removesuffix("=?\n").split("+")))


def test_training_never_meets_a_sum_of_evaluation_in_either_order_whatever_the_seeds():
    training, evaluation = load("arithmetic", "train", seed=0), load("arithmetic", "evaluate", seed=1)
    asked = {operands(evaluation[index]) for index in range(300)}
    met = {operands(training[index]) for index in range(3000)}
    assert len(asked) > 100 and len(met) > 1000 and not asked & met


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply"])
def test_even_one_digit_has_problems_on_both_sides(operation):
    for split in ("train", "evaluate"):
        assert load("arithmetic", split, digits=1, operations=[operation])[0].answer


def test_no_share_held_out_leaves_evaluation_empty():
    assert load("arithmetic", "evaluate", held_out=0).size == 0 and load("arithmetic", "train", held_out=0).size is None


def test_a_size_bounds_a_source_without_end():
    problems = load("arithmetic", size=3)
    assert [problem.prompt for problem in problems] == [load("arithmetic")[index].prompt for index in range(3)]
    with pytest.raises(IndexError, match="found problem 3, wanted 0 to 2"):
        problems[3]


def test_the_share_that_is_held_out_is_as_large_as_asked():
    assert sum(held_out(f"problem {number}", 0.25) for number in range(4000)) == pytest.approx(1000, abs=110)  # four standard deviations


@pytest.mark.parametrize(
    "knobs, says",
    [
        ({"split": "test"}, "found split='test', wanted one of train, evaluate"),
        ({"held_out": 1.5}, "found held_out=1.5"),
        ({"size": 0}, "found size=0"),
        ({"digits": 0}, "found digits=0, wanted 1 to 30"),
        ({"operations": []}, "found operations=\\[\\]"),
        ({"operations": "add"}, "found operations=add, wanted a list"),
        ({"operations": ["divide"]}, "wanted a list of one or more of add, subtract, multiply"),
        ({"problems": "aritmetic"}, "found problems='aritmetic', wanted arithmetic, reasoning_gym:TASK"),
        ({"problems": 5}, "found problems=5, wanted arithmetic"),
    ],
)
def test_a_knob_that_cannot_be_is_refused(knobs, says):
    with pytest.raises(ValueError, match=says):
        load(**{"problems": "arithmetic"} | knobs)


# Files


def jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records), encoding="utf-8")
    return path


def many(count: int, first: int = 0) -> list[dict]:
    return [{"prompt": f"What is {number}?", "answer": str(number)} for number in range(first, first + count)]


def texts(problems) -> list[str]:
    return [problem.prompt for problem in problems]


def test_a_jsonl_line_becomes_a_problem(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "1+1?", "answer": 2}, "", {"question": "Half?", "solutions": ["\\boxed{\\frac{1}{2}}", "0.5"]}, {"problem": "Π?", "answer": "so it is\n#### 3"})
    assert list(load(str(path), held_out=0)) == [
        Problem("1+1?", "2", str(path), 0),
        Problem("Half?", "\\boxed{\\frac{1}{2}}", str(path), 1, ("0.5",)),
        Problem("Π?", "so it is\n#### 3", str(path), 2),
    ]


def test_numbers_are_kept_as_the_file_writes_them(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", '{"prompt": "a", "answer": 0.10}', '{"prompt": "b", "answer": ' + "9" * 5000 + "}")
    assert [problem.answer for problem in load(str(path), held_out=0)] == ["0.10", "9" * 5000]


def test_any_of_several_solutions_is_right(tmp_path):
    problems = load(str(jsonl(tmp_path / "a.jsonl", {"prompt": "x^2=4?", "solutions": ["2", "-2"]})), held_out=0)
    assert [problems.score(problems[0], text) for text in ("so \\boxed{2}", "#### -2", "\\boxed{4}", "")] == [1.0, 1.0, 0.0, 0.0]


def test_fields_of_ones_own_are_read(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "not this", "text": "this", "answer": "1", "gold": "2"})
    assert [(p.prompt, p.answer) for p in load(str(path), held_out=0, prompt_field="text", answer_field="gold")] == [("this", "2")]


def test_the_lines_of_a_file_are_shared_out_between_the_splits_wherever_they_stand(tmp_path):
    forward, backward = jsonl(tmp_path / "a.jsonl", *many(200)), jsonl(tmp_path / "b.jsonl", *reversed(many(200)))
    train, evaluation = (texts(load(str(forward), split)) for split in ("train", "evaluate"))
    assert sorted(train + evaluation) == sorted(record["prompt"] for record in many(200))
    assert 5 < len(evaluation) < 40
    assert texts(load(str(backward), "evaluate", seed=9)) == evaluation[::-1]


def test_a_prompt_that_stands_twice_is_on_one_side(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", *many(100), *({**record, "prompt": f" {record['prompt'].replace(' ', '  ')}\n"} for record in many(100)))
    train, evaluation = ({" ".join(text.split()) for text in texts(load(str(path), split))} for split in ("train", "evaluate"))
    assert evaluation and not train & evaluation


def test_a_size_takes_a_sample_that_the_seed_chooses(tmp_path):
    path = str(jsonl(tmp_path / "a.jsonl", *many(200)))
    one, other = (texts(load(path, size=20, seed=seed)) for seed in (0, 1))
    assert len(one) == len(other) == 20 and one != other
    assert one == texts(load(path, size=20, seed=0)) and set(one) <= set(texts(load(path)))


@pytest.mark.parametrize(
    "line, says",
    [
        ('{"prompt": "a", "answer": }', "line 2: found no JSON (Expecting value at character 27)"),
        ('"hello"', 'line 2: found "hello", wanted an object'),
        ("[" * 100_000, "line 2: found JSON that is nested too deeply"),
        ('{"text": "a", "answer": 1}', 'line 2: found the fields text, answer, wanted "prompt" or "question" or "problem"'),
        ('{"prompt": "a"}', 'line 2: found the fields prompt, wanted "answer" or "solutions" or "solution"'),
        ('{"prompt": " ", "answer": 1}', 'line 2: found prompt=" ", wanted a text that is not empty'),
        ('{"prompt": [{"role": "user"}], "answer": 1}', 'line 2: found prompt=[{"role": "user"}], wanted a text'),
        ('{"prompt": "a", "answer": null}', "line 2: found answer=null, wanted a text or a number"),
        ('{"prompt": "a", "answer": NaN}', "line 2: found answer=null, wanted a text or a number"),
        ('{"prompt": "a", "answer": true}', "line 2: found answer=true"),
        ('{"prompt": "a", "solutions": []}', "line 2: found solutions=[], wanted at least one answer"),
        ('{"prompt": "a", "answer": "\\\\boxed{12"}', "which holds no answer; wanted the bare answer"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong_with_it(tmp_path, line, says):
    path = jsonl(tmp_path / "a.jsonl", *many(1), line)
    with pytest.raises(ValueError) as raised:
        load(str(path))
    assert f"problems={path}: found 1 bad of 2 rows" in str(raised.value) and says in str(raised.value)


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": 1}\n{"prompt": "\xff", "answer": 1}\n')
    with pytest.raises(ValueError, match="line 2: found bytes that are not UTF-8"):
        load(str(path))


def test_of_many_bad_lines_the_first_are_shown(tmp_path):
    with pytest.raises(ValueError, match=r"found 8 bad of 9 rows(.|\n)*line 6(.|\n)*and 3 more$"):
        load(str(jsonl(tmp_path / "a.jsonl", *many(1), *["{"] * 8)))


def test_a_file_that_changes_is_read_again(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", *many(1))
    load(str(path), held_out=0)
    jsonl(path, *many(3))
    assert load(str(path), held_out=0).size == 3


# Folders


def test_a_folders_own_parts_are_the_splits_less_what_training_shares_with_evaluation(tmp_path):
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "train-00000-of-00002.jsonl", *many(3))
    jsonl(tmp_path / "data" / "train-00001-of-00002.jsonl", *many(3, 3))
    jsonl(tmp_path / "data" / "test-00000-of-00001.jsonl", *many(2, 5))
    assert texts(load(str(tmp_path))) == [f"What is {number}?" for number in range(5)]
    assert texts(load(str(tmp_path), "evaluate")) == ["What is 5?", "What is 6?"]


def test_a_folder_without_parts_is_divided_as_a_file_is(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    jsonl(folder / "trainees.jsonl", *many(100))
    whole = jsonl(tmp_path / "a.jsonl", *many(100))
    assert texts(load(str(folder), "evaluate")) == texts(load(str(whole), "evaluate")) != []


def test_a_bad_row_of_a_folder_is_named_with_its_file(tmp_path):
    jsonl(tmp_path / "train.jsonl", *many(1), "{")
    with pytest.raises(ValueError, match="train.jsonl, line 2: found no JSON"):
        load(str(tmp_path))


def test_a_folder_that_is_no_dataset_is_refused_with_what_it_holds(tmp_path):
    (tmp_path / "gsm8k.py").write_text("raise SystemExit('this was run')")
    with pytest.raises(ValueError, match="found a folder with gsm8k.py; wanted what datasets' save_to_disk writes.*a script is not run"):
        load(str(tmp_path))


def test_a_broken_description_of_a_saved_dataset_is_named(tmp_path):
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="state.json: found no list '_data_files'"):
        load(str(tmp_path))


def test_a_parquet_file_without_pyarrow_says_how_to_go_on(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow, or save the problems as JSONL"):
        load(str(tmp_path))


class Table:
    """A stand-in for a pyarrow Table: rows as json in the file."""

    def __init__(self, rows):
        self.rows, self.column_names = rows, list(rows[0])

    def select(self, names):
        return Table([{name: row[name] for name in names} for row in self.rows])

    def to_pylist(self):
        return self.rows


class Opened:
    def __init__(self, found):
        self.found = found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read_all(self):
        return Table(json.loads(Path(self.found.found).read_text()))


@pytest.fixture
def arrow(monkeypatch):
    """pyarrow, as far as it is used here; a file is json."""
    fake, ipc, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.ipc"), types.ModuleType("pyarrow.parquet")
    fake.memory_map, fake.ipc, fake.parquet, ipc.open_stream = Opened, ipc, parquet, Opened
    parquet.read_table = lambda path: Table(json.loads(Path(path).read_text()))
    for module in (fake, ipc, parquet):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def saved(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True)
    (folder / "data-00000-of-00001.arrow").write_text(json.dumps(rows))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))


def test_a_dataset_that_save_to_disk_wrote_is_read_by_its_parts(tmp_path, arrow):
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    saved(tmp_path / "train", [{"question": "1+1?", "answer": "2", "image": [0]}])
    saved(tmp_path / "test", [{"question": "1+2?", "answer": 3, "image": [0]}])
    assert [(p.prompt, p.answer) for split in ("train", "evaluate") for p in load(str(tmp_path), split)] == [("1+1?", "2"), ("1+2?", "3")]


def test_parquet_files_are_read_and_a_bad_row_is_named(tmp_path, arrow):
    (tmp_path / "train-0.parquet").write_text(json.dumps([{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": None}]))
    with pytest.raises(ValueError, match="train-0.parquet, row 2: found answer=null"):
        load(str(tmp_path))


def test_a_file_that_pyarrow_cannot_read_is_named(tmp_path, arrow):
    (tmp_path / "train.parquet").write_text("PAR1")
    with pytest.raises(ValueError, match="train.parquet: found a file that pyarrow cannot read"):
        load(str(tmp_path))


# reasoning-gym


class Task:
    """Shaped as reasoning-gym's datasets: item i is a function of seed + i, and its scorer has the traps that theirs have."""

    def __init__(self, name: str, size: int, seed: int):
        self.name, self.size, self.seed = name, size, seed

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self.size:
            raise IndexError(index)
        number = (self.seed + index) % 1000
        if self.name == "words":
            return {"question": f"Write {number} stars.", "answer": None, "metadata": {"stars": number % 4 + 1}}
        return {"question": f"What is {number} + 1?", "answer": str(number + 1), "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict) -> float:
        if answer == "zzz":
            raise ValueError("cannot read zzz")
        if self.name == "words":
            return 1.0 if answer == "*" * entry["metadata"]["stars"] else 0.01
        return 1.0 if entry["answer"] in str(answer) else 0.01


@pytest.fixture
def library(monkeypatch):
    fake = types.ModuleType("reasoning_gym")
    fake.factory = types.SimpleNamespace(DATASETS={"chain_sum": (), "words": ()})

    def create_dataset(name: str, **knobs) -> Task:
        if name not in fake.factory.DATASETS:
            raise ValueError(f"Dataset '{name}' not registered")
        return Task(name, **knobs)

    fake.create_dataset = create_dataset
    monkeypatch.setitem(sys.modules, "reasoning_gym", fake)


def test_a_task_of_reasoning_gym_gives_problems_that_its_index_and_the_seed_fix(library):
    one, other = load("reasoning_gym:chain_sum", seed=1), load("reasoning_gym:chain_sum", seed=1, size=30)
    assert list(other) == [one[index] for index in range(30)]
    assert len({problem.prompt for problem in other}) > 20


def test_its_splits_share_no_question(library):
    train, evaluation = ({p.prompt for p in load("reasoning_gym:chain_sum", split, size=500)} for split in ("train", "evaluate"))
    assert len(train) > 300 and len(evaluation) > 50 and not train & evaluation


@pytest.mark.parametrize("response, right", [("{gold}", 1), ("so \\boxed{{{gold}}}", 1), ("#### {gold}", 1), ("<answer>7</answer> no: <answer>{gold}</answer>", 1),
                                             ("<answer>{gold}</answer> no: <answer>7777</answer>", 0), ("<answer>{gold}", 0), ("{gold}000 it is", 0), ("zzz", 0), ("", 0)])  # fmt: skip
def test_a_number_is_right_when_it_is_the_answer_not_when_it_stands_in_one(library, response, right):
    problems = load("reasoning_gym:chain_sum")
    assert problems.score(problems[0], response.format(gold=problems[0].answer)) == right


def test_where_a_task_only_verifies_its_scorer_decides_and_part_of_a_point_is_none(library):
    problems = load("reasoning_gym:words")
    problem = problems[0]
    assert problem.answer == ""
    stars = int(problem.prompt.split()[1]) % 4 + 1
    scores = [problems.score(problem, f"<answer>{text}</answer>") for text in ("*" * stars, "*" * (stars + 1), "zzz")]
    assert scores == [1.0, 0.0, 0.0]


def test_an_answer_tag_keeps_what_stands_in_it_as_it_was_written():
    assert extracted("I see. <answer> 1 2\n3 4 </answer> Done, in 5 steps.") == "1 2\n3 4"


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"found no library reasoning-gym.*pip install 'reasoning-gym>=0.1.25'"):
        load("reasoning_gym:chain_sum")


def test_an_unknown_task_is_refused_with_the_nearest(library):
    with pytest.raises(ValueError, match="Dataset 'chain_sums' not registered; did you mean chain_sum?"):
        load("reasoning_gym:chain_sums")


def test_a_source_is_imported_only_when_it_is_chosen(monkeypatch):
    for name in ("reasoning_gym", "pyarrow", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert grade(load("arithmetic")[0].answer, load("arithmetic")[0].answer) == 1.0


def test_the_envs_of_a_process_share_their_problems_until_the_file_changes(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "1+1=?", "answer": "2"}\n')
    first = shared(str(path), "train", 0, None, 0.0)
    assert shared(str(path), "train", 0, None, 0.0) is first
    path.write_text('{"prompt": "1+2=?", "answer": "3"}\n{"prompt": "1+3=?", "answer": "4"}\n')
    assert shared(str(path), "train", 0, None, 0.0).size == 2


def test_arithmetic_that_is_judged_has_no_problem_twice():
    """Of one digit there are 55 different sums."""
    judged = load("arithmetic", "evaluate", held_out=0.3, digits=1)
    asked = {tuple(sorted(judged[place].prompt.removesuffix("=?\n").split("+"))) for place in range(judged.size)}
    assert len(asked) == judged.size < 55


def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text(json.dumps({"prompt": "\ud800 1+1=?", "answer": "2"}) + "\n")
    with pytest.raises(ValueError, match="line 1.*half a surrogate pair"):
        load(str(path))

