"""Logs that a crash does not spoil, the progress line, and videos."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

from embodied.runs.metrics import EPISODE_FIELDS, EpisodeLog, MetricsLog, read_episodes
from embodied.runs.progress import Progress, duration, line
from embodied.runs.success import rate
from embodied.runs.video import write_mp4


def rows(path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def episode(number: int, iteration: int = 1, phase: str = "train", **more) -> dict:
    row = dict.fromkeys(EPISODE_FIELDS, 0) | {"phase": phase, "iteration": iteration, "episode": number, "success": False, "errored": False}
    return row | more


def test_a_metrics_file_cut_and_resumed_equals_an_unbroken_one(tmp_path):
    for name, pieces in {"unbroken": [(None, range(1, 7))], "cut": [(None, range(1, 6)), (3, range(4, 7))]}.items():
        (tmp_path / name).mkdir()
        for resume_at, steps in pieces:
            log = MetricsLog(tmp_path / name, tensorboard=False, resume_at=resume_at)
            for step in steps:
                log.write(step, {"loss": 1 / step})
            log.close()
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "unbroken/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("at", [59, 60, 61])
def test_taken_up_at_an_edge_the_log_goes_on_with_the_very_next_step(tmp_path, at):
    log = MetricsLog(tmp_path, tensorboard=False)
    for step in range(1, 62):
        log.write(step, {})
    log.close()
    log = MetricsLog(tmp_path, tensorboard=False, resume_at=at)
    log.write(at + 1, {})
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == list(range(1, at + 2))


def test_a_last_line_that_a_crash_cut_short_is_dropped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    MetricsLog(tmp_path, tensorboard=False, resume_at=2).write(2, {})
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_log_that_is_there_is_not_written_over_by_accident(tmp_path):
    MetricsLog(tmp_path, tensorboard=False).write(1, {})
    with pytest.raises(FileExistsError, match="resume_at"):
        MetricsLog(tmp_path, tensorboard=False)


def test_steps_rise(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(0, {})
    log.write(1, {})
    with pytest.raises(ValueError, match="step 1 after one for step 1"):
        log.write(1, {})


def test_every_line_is_strict_json_and_names_what_is_not_finite(tmp_path):
    MetricsLog(tmp_path, tensorboard=False).write(1, {"loss": float("nan"), "time": {"sim": np.float32(0.5)}, "norm": torch.tensor(float("inf"))})
    text = (tmp_path / "metrics.jsonl").read_text()

    def refuse(constant: str):
        raise AssertionError(f"{constant} is no json")

    assert json.loads(text, parse_constant=refuse) == {"step": 1, "loss": "NaN", "time": {"sim": 0.5}, "norm": "Infinity", "not_finite": ["loss", "norm"]}


def test_tensorboard_holds_the_same_numbers_under_their_paths_and_forgets_what_was_cut(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.write(step, {"time": {"sim": step / 2}, "note": "text stays in the json"})
    log.close()
    log = MetricsLog(tmp_path, resume_at=1)
    log.write(2, {"time": {"sim": 9.0}})
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("time/sim")] == [(1, 0.5), (2, 9.0)]


def test_an_episode_counts_once_however_often_it_is_reported(tmp_path):
    log = EpisodeLog(tmp_path)
    assert [log.write(episode(7)), log.write(episode(7)), log.write(episode(7, phase="after")), log.write(episode(7, iteration=2))] == [True, False, True, True]
    assert len(log.rows()) == 3 and len(log.rows("after")) == 1


def test_an_episode_that_errored_and_was_run_again_counts_as_its_last_run(tmp_path):
    log = EpisodeLog(tmp_path)
    log.write(episode(7, errored=True))
    assert log.write(episode(7, success=True))
    assert [(row["errored"], row["success"]) for row in log.rows()] == [(False, True)]


def test_an_episode_file_cut_and_resumed_equals_an_unbroken_one(tmp_path):
    def order(stop: int | None = None, start: int = 0):
        everything = [episode(number, iteration) for iteration in (1, 2, 3) for number in range(4)] + [episode(number, 3, "after") for number in range(4)]
        return everything[start:stop]

    (tmp_path / "unbroken").mkdir(), (tmp_path / "cut").mkdir()
    log = EpisodeLog(tmp_path / "unbroken")
    for row in order():
        log.write(row)
    log.close()
    log = EpisodeLog(tmp_path / "cut")
    for row in order(stop=10):  # dies within iteration 3, its last checkpoint is of iteration 2
        log.write(row)
    log.close()
    log = EpisodeLog(tmp_path / "cut", resume_at=2)
    for row in order(start=8)[:6]:  # dies within the evaluation after, the checkpoint is of iteration 3
        log.write(row)
    log.close()
    log = EpisodeLog(tmp_path / "cut", resume_at=3)
    for row in order(start=12):
        log.write(row)
    log.close()
    assert (tmp_path / "cut/episodes.jsonl").read_bytes() == (tmp_path / "unbroken/episodes.jsonl").read_bytes()
    assert read_episodes(tmp_path / "cut/episodes.jsonl") == order()


def test_an_episode_row_that_lacks_a_field_or_has_a_wrong_phase_is_refused_by_name(tmp_path):
    log = EpisodeLog(tmp_path)
    row = episode(1)
    del row["seed"], row["return"]
    with pytest.raises(ValueError, match="without seed, return"):
        log.write(row)
    with pytest.raises(ValueError, match="'test'.*before, train, after"):
        log.write(episode(1, phase="test"))


def test_the_progress_line_says_what_is_asked_of_it():
    text = line(3, 40, rate(79, 150), 411.6, {"sim": 3.14, "act": 1.0, "learn": 2.2}, "sim", 370)
    assert text == "3/40  success 0.53 [0.45, 0.60] n=150  412 env steps/s  sim 3.1s act 1.0s learn 2.2s  bottleneck sim  6m 10s left"
    assert line(1, 2, rate(0, 0), None, {}, None, None) == "1/2"
    assert [duration(s) for s in (45.2, 370, 7500)] == ["45s", "6m 10s", "2h 05m"]


def test_where_there_is_no_terminal_each_update_is_one_line_and_time_left_is_of_this_process():
    now = [0.0]
    out = io.StringIO()
    with Progress(10, stream=out, clock=lambda: now[0]) as progress:
        now[0] = 100.0
        progress.begin(4)
        now[0] = 110.0
        progress.update(5, seconds={"sim": 1.0, "learn": 2.0})  # 10 s for 1 iteration, 5 to go
        now[0] = 130.0
        progress.update(6)  # 30 s for 2, 4 to go
    assert out.getvalue().splitlines() == ["5/10  sim 1.0s learn 2.0s  bottleneck learn  50s left", "6/10  1m 00s left"]


def test_within_an_iteration_a_line_stays_at_every_tenth_and_not_more_often_than_the_pause():
    now, out = [0.0], io.StringIO()
    with Progress(1, stream=out, clock=lambda: now[0], pause=10.0) as progress:
        for done in range(1, 21):
            now[0] += 2.5
            progress.within("playing:", done, 20)  # tenths at 2, 4, 6, ... = 5, 10, 15, ... seconds
    assert out.getvalue().splitlines() == [f"playing: {done}/20 episodes" for done in (4, 8, 12, 16)]


def test_a_video_has_every_frame_and_its_own_size(tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    frames = np.zeros((12, 48, 65, 3), np.uint8)
    frames[6:] = 255
    path = write_mp4(tmp_path / "videos" / "episode.mp4", frames, fps=10)
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    means = [np.frombuffer(frame, np.uint8).mean() for frame in reader]
    assert tuple(about["size"]) == (66, 48) and len(means) == 12
    assert max(means[:6]) < 10 and min(means[6:]) > 245


@pytest.mark.parametrize("frames, said", [([], "no frames"), (np.zeros((2, 4, 4, 3), np.float32), "float32"), ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)], "frame 1")])
def test_frames_that_make_no_video_are_refused_and_leave_nothing_behind(tmp_path, frames, said):
    with pytest.raises(ValueError, match=said):
        write_mp4(tmp_path / "a.mp4", frames)
    assert list(tmp_path.iterdir()) == []
