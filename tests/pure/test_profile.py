"""Profiles: interpolation by hand, the json format, and what is refused in it."""

from __future__ import annotations

import json

import pytest

from scheduler import profile as profiles
from scheduler.profile import Point, Profile, ProfileError, Round, StageProfile
from scheduler.resources import ClusterError, named, of_plain


def stage(*points: tuple[int, int, float], **more: object) -> StageProfile:
    return StageProfile("cores", tuple(Point(*point) for point in points), **more)


def test_between_measured_sizes_seconds_lie_on_the_line() -> None:
    assert stage((2, 1, 1.0), (6, 1, 3.0)).seconds(4, 1) == pytest.approx(2.0)


def test_beyond_the_largest_size_the_last_line_goes_on() -> None:
    assert stage((1, 1, 1.0), (2, 1, 1.5), (4, 1, 3.5)).seconds(6, 1) == pytest.approx(5.5)


def test_more_items_never_take_less_time_even_where_that_was_measured() -> None:
    assert stage((1, 1, 2.0), (2, 1, 1.0), (4, 1, 3.0)).seconds(2, 1) == 2.0


def test_a_single_measured_size_is_constant_below_and_in_proportion_above() -> None:
    assert [stage((4, 1, 2.0)).seconds(n, 1) for n in (1, 4, 8)] == [2.0, 2.0, 4.0]


def test_below_the_smallest_size_nothing_is_free() -> None:
    # The line through (4, 0.1) and (8, 0.3) is negative at 1; in proportion it is 0.025.
    assert stage((4, 1, 0.1), (8, 1, 0.3)).seconds(1, 1) == pytest.approx(0.025)


def test_on_more_units_than_were_measured_each_takes_its_share() -> None:
    # 8 items on 4 units: 2 each, as 2 on the one that was measured.
    assert stage((1, 1, 1.0), (8, 1, 8.0)).seconds(8, 4) == pytest.approx(2.0)


def test_an_uneven_share_takes_as_long_as_its_largest() -> None:
    assert stage((1, 1, 1.0), (8, 1, 8.0)).seconds(9, 4) == pytest.approx(3.0)


def test_measured_units_are_taken_as_measured() -> None:
    assert stage((8, 1, 8.0), (8, 2, 5.0)).seconds(8, 2) == 5.0


def test_units_beyond_the_most_it_can_use_gain_nothing() -> None:
    assert stage((1, 1, 1.0), (4, 1, 4.0), most_units=1).seconds(4, 8) == 4.0


def test_what_lies_beyond_the_measured_sizes_is_marked() -> None:
    measured = stage((2, 1, 1.0), (6, 1, 3.0))
    assert [measured.extrapolated(n, 1) for n in (1, 2, 6, 7)] == [True, False, False, True]


def test_a_profile_comes_back_from_its_file(tmp_path) -> None:
    made = Profile({"sim": stage((1, 1, 0.5), begin_s=0.1, streams=False)}, Round(4, 2, (3, 5)), {"sim->learn": 100}, "here")
    made.save(tmp_path / "profile.json")
    assert profiles.load(tmp_path / "profile.json") == made


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "not a profile"), ("[]", "wanted an object"), ({"stages": {}}, "no round"), ({"stages": {"sim": {"on": "cores"}}, "round": {"items": 1}}, "stages.sim: found no points"),
        ({"stages": {"sim": {"on": "gpu", "points": [{"items": 1, "units": 1, "seconds": 1}]}}, "round": {"items": 1}}, "on='gpu'"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 0, "units": 1, "seconds": 1}]}}, "round": {"items": 1}}, r"points\[0\].*items=0"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 1, "units": 1, "secs": 1}]}}, "round": {"items": 1}}, "unknown secs"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 1, "units": 1, "seconds": "fast"}]}}, "round": {"items": 1}}, r"stages.sim.points\[0\]"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 1, "units": 1, "seconds": 1}], "spread": -1}}, "round": {"items": 1}}, "spread=-1"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 1, "units": 1, "seconds": 1e308}]}}, "round": {"items": 1}}, "seconds=1e"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 4.0, "units": 1, "seconds": 1}]}}, "round": {"items": 1}}, "items=4.0"),
        ({"stages": {"sim": {"on": "cores", "points": [{"items": 1, "units": 1, "seconds": 1}], "most_units": 0}}, "round": {"items": 1}}, "most_units=0"),
        ({"stages": {}, "round": {"items": 1, "slots": 1000000000}}, "slots=1000000000"),
        ({"stages": {}, "round": {"items": 0}}, "items=0"), ({"stages": {}, "round": {"items": 1, "turns": [0]}}, "turns"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_profile_is_refused_with_the_place(content, said: str, tmp_path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ProfileError, match=said):
        profiles.load(path)


def test_a_named_cluster_has_its_nodes_devices_and_network() -> None:
    found = named("32x8xh100")
    assert (len(found.nodes), len(found.accelerators), found.cores, found.accelerator_memory) == (32, 256, 32 * 96, 80 * 10**9)
    assert found.bandwidth is not None and named("8xh100").bandwidth is None


@pytest.mark.parametrize("name", ["8xv100", "0xh100", "h100", "8x", "lots"])
def test_a_cluster_that_does_not_exist_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(ClusterError, match="32x8xh100"):
        named(name)


@pytest.mark.parametrize("found", [{}, {"nodes": []}, {"nodes": [{"name": "a"}]}, {"nodes": [{"name": "a", "cores": 0, "memory": 1}]}, [1], {"nodes": [{"name": "a", "cores": 2.5, "memory": 1}]},
    {"nodes": [{"name": "a", "cores": 2, "memory": 1}], "bandwidth": 0}, {"nodes": [{"name": "a", "cores": 2, "memory": 1, "accelerators": [{"name": "g", "memory": "80GB"}]}]},
    {"nodes": [{"name": "a", "cores": 2, "memory": 1, "accelerators": [{"name": "g", "memory": 1}, {"name": "g", "memory": 1}]}]}])
def test_a_cluster_file_that_describes_none_is_refused(found) -> None:
    with pytest.raises(ClusterError, match="nodes"):
        of_plain(found)
