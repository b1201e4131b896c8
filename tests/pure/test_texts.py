"""Demonstrations in words: what is recorded is read back, and a line that is none is refused by its number."""

import json

import pytest

from envs.record import DemonstrationError, DemonstrationWriter
from envs.texts import FILE, TextWriter, read
from envs.toy import ToyEnv


def pairs(path):
    return [(pair.prompt, pair.answer) for pair in read(path)]


def file_of(folder, *lines):
    path = folder / "some.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_answers_are_read_back_letter_for_letter_in_their_order(tmp_path):
    writer = TextWriter(tmp_path / "demos")
    writer.write([("1+1=?\n", ' "zwei"\n#### 2'), ("1+1=?\n zwei\nTry again.\n", "二")], success=True)
    writer.write([("2+2=?\n", "#### 4")], success=True)
    assert pairs(tmp_path / "demos") == [("1+1=?\n", ' "zwei"\n#### 2'), ("1+1=?\n zwei\nTry again.\n", "二"), ("2+2=?\n", "#### 4")]


def test_failed_episodes_are_left_out_unless_wanted(tmp_path):
    writer = TextWriter(tmp_path / "some")
    assert [writer.write([("a", "b")], success=False), writer.write([("c", "d")], success=True)] == [False, True]
    assert (writer.left_out, pairs(tmp_path / "some")) == (1, [("c", "d")])
    TextWriter(tmp_path / "all", only_successes=False).write([("a", "b")], success=False)
    assert pairs(tmp_path / "all") == [("a", "b")]


def test_a_recording_that_was_interrupted_at_any_time_reads(tmp_path):
    writer = TextWriter(tmp_path)
    assert pairs(tmp_path) == []
    writer.write([("a", "b")], success=True)  # nothing closes the writer
    assert pairs(tmp_path) == [("a", "b")]


def test_a_folder_that_holds_demonstrations_is_not_added_to(tmp_path):
    TextWriter(tmp_path / "texts").write([("a", "b")], success=True)
    DemonstrationWriter(tmp_path / "actions", ToyEnv().env_spec, "expert")
    for name in ("texts", "actions"):
        with pytest.raises(FileExistsError, match="another folder"):
            TextWriter(tmp_path / name)


def test_an_empty_recording_may_be_begun_again(tmp_path):
    TextWriter(tmp_path)
    TextWriter(tmp_path).write([("a", "b")], success=True)
    assert pairs(tmp_path) == [("a", "b")]


def test_the_names_that_problems_have_are_read_and_what_was_written_goes_before_what_is_right(tmp_path):
    path = file_of(tmp_path, {"question": "1+1=?", "solution": "2"}, "", {"problem": "p", "solutions": ["a", "b"]}, {"prompt": "q", "answer": 7, "response": "#### 7"})
    assert pairs(path) == [("1+1=?", "2"), ("p", "a"), ("p", "b"), ("q", "#### 7")]


def test_every_pair_says_where_it_stands(tmp_path):
    path = file_of(tmp_path, {"prompt": "a", "answer": "b"}, "", {"prompt": "c", "answer": "d"})
    assert [pair.place for pair in read(path)] == [f"{path}, line 1", f"{path}, line 3"]


@pytest.mark.parametrize(
    "line, says",
    [
        ('{"prompt": "a", "ans', "no JSON"),
        ('["a", "b"]', "wanted an object"),
        ('{"prompt": "a"}', "wanted response or answer"),
        ('{"prompt": "a", "answer": " "}', "wanted a text that is not empty"),
        ('{"prompt": ["a"], "answer": "b"}', "found the prompt"),
        ('{"prompt": "a", "answer": []}', "found the answer"),
        (r'{"prompt": "a", "answer": "\ud800"}', "surrogate"),
    ],
)
def test_a_line_that_is_no_demonstration_is_named_by_its_number(tmp_path, line, says):
    path = file_of(tmp_path, {"prompt": "a", "answer": "b"}, line)
    with pytest.raises(DemonstrationError, match=f"some.jsonl: found 1 bad lines(.|\n)*line 2: (.*){says}"):
        read(path)


def test_actions_where_texts_are_wanted_are_refused_by_what_they_are(tmp_path):
    DemonstrationWriter(tmp_path, ToyEnv().env_spec, "expert")
    with pytest.raises(DemonstrationError, match="demonstrations of actions"):
        read(tmp_path)


def test_a_file_that_is_not_there_says_how_to_record_one(tmp_path):
    with pytest.raises(DemonstrationError, match=f"no such file, wanted {FILE}(.*)record=DIR"):
        read(tmp_path / "nowhere")
