"""A drawn timeline says what the spans say: which row, which cell or pixel, which share. Numbers are worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from embodied.runs.gantt import GRID, LANE, PALETTE, PAPER, write_png
from scheduler.planning.gantt import MOST_ROWS, NOTHING, Chart, chart, text_gantt, tracks
from scheduler.timeline import Span, Timeline


def ran(stage: str, start: float, end: float, group: int | None = None, kind: str = "turn") -> Span:
    return Span(stage, kind, 0, group, start, end, 1)


def rows_of(text: str) -> dict[str, tuple[str, str]]:
    """Label -> (cells, busy share) of each row of a text Gantt, in order."""
    parts = [line.split("│") for line in text.splitlines() if "│" in line]
    return {label.rstrip(): (cells, share.strip()) for label, cells, share in parts}


def cells(*spans: Span, width: int = 10) -> str:
    """The cells of the stage "sim", on an axis that "all" stretches to 0..10 seconds."""
    return rows_of(text_gantt(Timeline([ran("all", 0, 10), *spans]), width))["sim"][0]


def test_a_span_fills_the_cells_of_its_seconds_and_no_others():
    assert cells(ran("sim", 2, 5)) == "  ███     "


@pytest.mark.parametrize("origin, second", [(0.1, 1.0), (123456.0, 0.01)])
def test_a_span_that_ends_between_binary_fractions_fills_its_last_cell_only(origin, second):
    # 3 to 7 tenths are no binary fractions: what rounding adds, most late in a long run, opens no further cell.
    timeline = Timeline([ran("all", origin, origin + second), ran("sim", origin + 0.3 * second, origin + 0.7 * second)])
    assert rows_of(text_gantt(timeline, 10))["sim"][0] == "   ████   "


def test_a_cell_shows_its_share_to_the_nearest_quarter():
    # Of cell 0 a quarter, of cell 1 a half, of cell 2 three quarters; of cell 3 0.9, nearest to all of it.
    spans = [ran("sim", 0, 0.25), ran("sim", 1, 1.5), ran("sim", 2, 2.75), ran("sim", 3, 3.9)]
    assert cells(*spans) == "░▒▓█      "


def test_the_shortest_call_leaves_a_trace():
    assert cells(ran("sim", 4.5, 4.501)) == "    ░     "


def test_calls_that_overlap_count_once():
    # Cell 0: 0..0.5 and 0.25..0.5 together run for half of it, not for three quarters.
    assert cells(ran("sim", 0, 0.5), ran("sim", 0.25, 0.5))[0] == "▒"


def test_the_percentage_is_the_busy_share_of_the_whole_timeline():
    # sim: 2..4 and 6..7.5 of 0..10 = 3.5 s.
    drawn = rows_of(text_gantt(Timeline([ran("all", 0, 10), ran("sim", 2, 4), ran("sim", 6, 7.5)]), 10))
    assert {label: share for label, (_, share) in drawn.items()} == {"all": "100%", "sim": "35%"}


def test_a_timeline_that_starts_late_is_drawn_from_its_own_start():
    # 57..67 s: cell 0 is 57..58.
    drawn = rows_of(text_gantt(Timeline([ran("sim", 57, 58), ran("learn", 58, 67)]), 10))
    assert drawn["sim"] == ("█         ", "10%")


def test_stages_stand_in_the_order_in_which_they_first_start_and_groups_by_number():
    spans = [ran("learn", 9, 10), ran("act", 2, 3, 1), ran("sim", 0, 2, 10), ran("sim", 1, 2, 2), ran("act", 3, 4), ran("act", 4, 5, 0)]
    assert [row.label for row in tracks(Timeline(spans))] == ["sim group 2", "sim group 10", "act group 0", "act group 1", "learn"]


def test_calls_outside_the_groups_of_a_stage_are_in_its_first_row():
    spans = [ran("act", 3, 4), ran("act", 2, 3, 1), ran("act", 4, 5, 0)]
    assert [[(span.start, span.group) for span in row.spans] for row in tracks(Timeline(spans))] == [[(3, None), (4, 0)], [(2, 1)]]


def test_a_stage_with_as_many_groups_as_rows_folds_none():
    assert [row.part for row in tracks(Timeline([ran("sim", 0, 1, group) for group in range(MOST_ROWS)]))] == [f"group {group}" for group in range(16)]


def test_the_groups_beyond_the_most_rows_share_one_that_says_how_many():
    labels = [row.label for row in tracks(Timeline([ran("sim", 0, 1, group) for group in range(20)]))]
    assert labels == [f"sim group {group}" for group in range(15)] + ["sim 5 more groups"]


def test_a_shared_row_is_busy_while_any_of_its_groups_is():
    # Groups 15..19 run one second each, one after the other, from 0 to 5; the first fifteen run through.
    spans = [ran("sim", 0, 10, group) for group in range(15)] + [ran("sim", group - 15, group - 14, group) for group in range(15, 20)]
    assert rows_of(text_gantt(Timeline(spans), 10))["sim 5 more groups"] == ("█████     ", "50%")


def test_the_axis_marks_the_cell_in_which_a_tick_lies_and_writes_its_seconds_below():
    # 0..10 s in 20 cells, room for two steps: 0, 5 and 10, which is the right frame. Labels are centred on their marks.
    assert text_gantt(Timeline([ran("sim", 0, 10)]), 20).splitlines() == [
        "sim │████████████████████│ 100%",
        "    └┬─────────┬─────────┤ busy",
        "     0         5        10 s",
    ]


@pytest.mark.parametrize("timeline", [Timeline(), Timeline([ran("sim", 3, 3)])])
def test_a_timeline_without_time_is_a_sentence(timeline):
    assert text_gantt(timeline) == NOTHING


def test_too_few_cells_are_refused():
    with pytest.raises(ValueError, match="width of 9 cells, wanted at least 10"):
        text_gantt(Timeline([ran("sim", 0, 1)]), 9)


@pytest.mark.parametrize(
    "start, end, most, labels",
    [
        (0, 7, 10, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (0, 12, 10, ["0", "2", "4", "6", "8", "10", "12"]),  # 12 steps of 1 are too many
        (0, 40, 10, ["0", "5", "10", "15", "20", "25", "30", "35", "40"]),  # so are 20 of 2
        (0, 0.3, 10, ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"]),
        (57.3, 81, 5, ["60", "65", "70", "75", "80"]),  # 23.7 s: multiples of the step, not of the start
        (0, 1000, 1, ["0", "1000"]),
        (0, 5100, 1, ["0"]),  # the step, 10000, lies beyond the end
    ],
)
def test_ticks_are_multiples_of_one_two_or_five_times_a_power_of_ten(start, end, most, labels):
    assert [label for _, label in Chart(start, end, [], {}).ticks(most)] == labels


def test_ticks_lie_where_their_labels_say():
    assert [at for at, _ in Chart(0, 0.3, [], {}).ticks(3)] == [0.0, 0.1, 0.2, 0.3]


def test_a_stage_is_idle_while_none_of_its_groups_runs():
    # sim: 0..4 and 2..6 of 0..8, so two seconds of eight; learn: six of eight.
    drawn = chart(Timeline([ran("sim", 0, 4, 0), ran("sim", 2, 6, 1), ran("learn", 6, 8)]))
    assert drawn.idle == {"sim": 0.25, "learn": 0.75}


def picture(path, *spans: Span, **options) -> np.ndarray:
    """[H, W, 3] uint8; 800 pixels wide."""
    return np.asarray(Image.open(write_png(path / "gantt.png", chart(Timeline(list(spans))), **({"width": 800} | options))).convert("RGB"))


def first_line(image: np.ndarray, colour: tuple) -> int:
    """The y of the topmost pixel of `colour`."""
    return int(np.argwhere((image == colour).all(axis=2))[0][0])


def bar(image: np.ndarray, colour: tuple) -> np.ndarray:
    """[W, 3]: the pixels from the first to the last of `colour`, in the middle of the topmost bar of that colour (a bar is 22 pixels high)."""
    line = image[first_line(image, colour) + 11]
    columns = np.flatnonzero((line == colour).all(axis=1))
    return line[columns[0] : columns[-1] + 1]


def test_a_picture_has_the_width_asked_for(tmp_path):
    assert picture(tmp_path, ran("sim", 0, 1), width=1000).shape[1] == 1000


def test_each_further_group_takes_a_bar_and_a_gap(tmp_path):
    one, five = (len(picture(tmp_path, *[ran("sim", 0, 1, group) for group in range(groups)])) for groups in (1, 5))
    assert five - one == 4 * (22 + 4)


def test_a_pixel_has_the_colour_of_its_stage_inside_a_span_and_the_lane_outside(tmp_path):
    # 0..1 and 3..4 of four seconds: an eighth of the way lies in the first span, three eighths in neither, seven eighths in the second.
    line = bar(picture(tmp_path, ran("sim", 0, 1), ran("sim", 3, 4)), PALETTE[0])
    assert [tuple(line[len(line) * eighth // 8].tolist()) for eighth in (1, 3, 7)] == [PALETTE[0], LANE, PALETTE[0]]


def test_a_span_is_as_wide_as_its_share_of_the_time(tmp_path):
    line = bar(picture(tmp_path, ran("sim", 0, 1), ran("sim", 3, 4)), PALETTE[0])
    assert (line == PALETTE[0]).all(axis=1).mean() == pytest.approx(0.5, abs=0.01)


def test_the_second_stage_has_the_second_colour(tmp_path):
    # act runs in the second half, so a bar of its colour is half as long as that of a stage that ran throughout.
    image = picture(tmp_path, ran("sim", 0, 2), ran("act", 1, 2))
    assert len(bar(image, PALETTE[1])) / len(bar(image, PALETTE[0])) == pytest.approx(0.5, abs=0.01)


def test_around_the_drawing_the_paper_is_blank(tmp_path):
    image = picture(tmp_path, ran("sim", 0, 1), title="a run")
    assert all((edge == PAPER).all() for edge in (image[:20], image[-20:], image[:, :20], image[:, -20:]))


def test_taking_a_device_has_no_stage_colour(tmp_path):
    # The device is taken in the first of four seconds: the stage's colour is left with three.
    image = picture(tmp_path, ran("sim", 0, 1, kind="load"), ran("sim", 1, 4))
    plain = picture(tmp_path, ran("sim", 0, 4))
    assert len(bar(image, PALETTE[0])) / len(bar(plain, PALETTE[0])) == pytest.approx(0.75, abs=0.01)


def test_an_update_has_a_dark_outline_around_its_stage_colour(tmp_path):
    image = picture(tmp_path, ran("learn", 0, 1, kind="update"))
    assert image[first_line(image, PALETTE[0]) - 1, 400].max() < 60


def test_a_row_of_many_short_calls_is_tinted_by_the_time_they_took(tmp_path):
    # 20000 calls on fewer than 800 pixels, each a third of its slice. The row of "all", a bar of 22, a gap of 12: sim's bar is in its
    # middle 34 pixels below. Blue falls from the lane's 247 to the orange's 0 with the share.
    image = picture(tmp_path, ran("all", 0, 20000), *[ran("sim", number, number + 1 / 3) for number in range(20000)])
    shares = (LANE[2] - image[first_line(image, PALETTE[0]) + 11 + 34, 300:700, 2].astype(float)) / LANE[2]
    assert shares.mean() == pytest.approx(1 / 3, abs=0.1)


def test_a_lone_call_shorter_than_a_pixel_leaves_a_trace(tmp_path):
    image = picture(tmp_path, ran("all", 0, 20000), ran("sim", 10000, 10000.01))
    assert image[first_line(image, PALETTE[0]) + 11 + 34, 300:700, 2].min() < GRID[2]


def test_the_parent_folder_is_made_and_holds_the_picture_alone(tmp_path):
    written = write_png(tmp_path / "a" / "b" / "gantt.png", chart(Timeline([ran("sim", 0, 1)])))
    assert list((tmp_path / "a" / "b").iterdir()) == [written]


@pytest.mark.parametrize("timeline, width, said", [(Timeline(), 1600, "without rows"), (Timeline([ran("sim", 0, 1)]), 599, "599 pixels, wanted at least 600")])
def test_what_cannot_be_drawn_is_refused_and_leaves_nothing_behind(tmp_path, timeline, width, said):
    with pytest.raises(ValueError, match=said):
        write_png(tmp_path / "a" / "gantt.png", chart(timeline), width=width)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_picture(tmp_path, monkeypatch):
    drawn = chart(Timeline([ran("sim", 0, 1)]))
    before = write_png(tmp_path / "gantt.png", drawn).read_bytes()

    def half(_, path, *rest):
        path.write_bytes(before[:20])
        raise OSError("the disk is full")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(OSError, match="full"):
        write_png(tmp_path / "gantt.png", drawn, title="another")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"gantt.png": before}
