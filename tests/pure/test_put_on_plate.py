"""The put-on-plate protocol without a simulator: what each split may draw, what stands in for what, how assets are read, how pictures are mixed."""

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from envs.maniskill.put_on_plate import assets, catalogue, pictures, splits
from envs.maniskill.put_on_plate.env import texts_of
from tests.contract.plate_folder import box_mesh, plate_folder


@lru_cache
def episodes(name: str, count: int = 200) -> list[splits.Episode]:
    return [splits.drawn(splits.SPLITS[name], seed) for seed in range(count)]


def distance(first, second) -> float:
    return float(np.hypot(first[0] - second[0], first[1] - second[1]))


def test_training_draws_every_one_of_16_objects_and_16_tables_one_plate_and_one_text():
    found = episodes("train")
    assert {e.object for e in found} == {e.table for e in found} == set(range(16))
    assert {(e.plate, e.text, e.second, e.texture) for e in found} == {(0, 0, None, None)}


# split -> which field it changes, and all that the field may be there (start, stop)
UNSEEN = {
    "vision/table": ("table", 16, 21), "semantics/object": ("object", 16, 25), "semantics/plate": ("plate", 1, 17), "semantics/instruction": ("text", 1, 17),
    "vision/texture03": ("texture", 1, 17), "vision/texture05": ("texture", 1, 17), "vision/whole03": ("texture", 1, 17), "vision/whole05": ("texture", 1, 17),
}  # fmt: skip


@pytest.mark.parametrize(("name", "field", "start", "stop"), [(name, *values) for name, values in UNSEEN.items()])
def test_a_split_draws_all_of_its_unseen_ones_and_leaves_the_rest_of_the_episode_as_in_training(name, field, start, stop):
    found, trained = episodes(name), episodes("train")
    assert {getattr(e, field) for e in found} == set(range(start, stop))
    assert [replace(e, **{field: getattr(t, field)}) for e, t in zip(found, trained)] == trained


def test_the_test_split_has_unseen_objects_on_unseen_tables():
    found = episodes("test")
    assert {e.object for e in found} == set(range(16, 25)) and {e.table for e in found} == set(range(16, 21))


@pytest.mark.parametrize(
    ("name", "of", "meant", "others"),
    [
        ("semantics/multi_object_seen", "object", range(16), range(16)),
        ("semantics/multi_object", "object", range(16, 25), range(16, 25)),
        ("semantics/multi_plate_seen", "plate", range(1), range(1, 17)),
        ("semantics/multi_plate", "plate", range(1, 17), range(1, 17)),
    ],
)
def test_a_second_thing_is_another_one_of_its_kind_and_lies_clear_of_both(name, of, meant, others):
    found = episodes(name)
    assert {getattr(e, of) for e in found} == set(meant) and {e.second for e in found} == set(others)
    assert all(e.second != getattr(e, of) for e in found)
    least = (splits.OBJECT_TO_OBJECT, splits.OBJECT_TO_PLATE) if of == "object" else (splits.OBJECT_TO_PLATE, splits.PLATE_TO_PLATE)
    assert all(distance(e.third_at, e.object_at) > least[0] and distance(e.third_at, e.plate_at) > least[1] for e in found)


def test_unseen_places_and_turns_are_none_of_training():
    trained, strange = episodes("train", 500), episodes("execution/position")
    places = [{spot for e in found for spot in (e.object_at, e.plate_at)} for found in (trained, strange)]
    assert (len(places[0]), len(places[1]), places[0] & places[1]) == (36, 28, set())
    assert not {e.yaw for e in trained} & {e.yaw for e in strange}


def test_the_square_of_training_and_the_ring_around_it_measure_what_they_say():
    inner, ring = splits.square(False), splits.square(True)
    assert inner.min(0).tolist() == pytest.approx([-0.15, -0.1]) and inner.max(0).tolist() == pytest.approx([0.05, 0.1])
    assert ring.min(0).tolist() == pytest.approx([-0.19, -0.14]) and ring.max(0).tolist() == pytest.approx([0.09, 0.14])


def test_object_and_plate_never_touch_at_the_start_and_a_moved_object_goes_far():
    found = episodes("execution/moved")
    assert min(distance(e.object_at, e.plate_at) for e in found) > 0.12 < min(distance(e.third_at, e.plate_at) for e in found)
    assert min(distance(e.third_at, e.object_at) for e in found) > 0.15


def test_another_robot_pose_bends_some_joint_and_never_shoulder_and_elbow_together():
    found = episodes("execution/robot_pose")
    assert all(any(e.joints) and abs(e.joints[1] + e.joints[3]) <= 0.25 for e in found) and len({e.joints for e in found}) > 190
    assert {e.joints for e in episodes("train")} == {(0.0,) * 7}


@pytest.mark.parametrize("name", splits.SPLITS)
def test_an_episode_is_its_seeds_and_its_bodies_are_among_those_that_the_split_needs(name):
    found, split = episodes(name, 40), splits.SPLITS[name]
    assert found == [splits.drawn(split, seed) for seed in range(40)] and len(set(found)) == 40
    for e in found:
        used = {"object": {e.object}, "plate": {e.plate}, "table": {e.table}}
        if split.second:
            used[split.second].add(e.second)
        assert all(numbers <= set(split.needs[kind]) for kind, numbers in used.items())


def test_a_wrong_split_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="found 'vision/tables'; did you mean vision/table\\?, wanted one of train, test"):
        splits.split_of("vision/tables")


def test_the_stand_ins_are_25_objects_17_plates_and_21_tables_each_with_a_name_or_colour_of_its_own():
    found = catalogue.stand_ins()
    assert (len(found.objects), len(found.plates), len(found.tables)) == (25, 17, 21)
    assert len({thing.name for thing in found.objects}) == 25 and len({plate.name for plate in found.plates}) == 17 and len({table.colour for table in found.tables}) == 21
    seen, unseen = ([{word for thing in things for word in thing.name.split()}] for things in (found.objects[:16], found.objects[16:]))
    assert not seen[0] & unseen[0]  # neither a colour nor a shape is shared


def test_every_stand_in_fits_between_the_fingers_and_on_every_plate():
    found = catalogue.stand_ins()
    assert max(side for thing in found.objects for side in thing.half[:2]) <= 0.025 and min(thing.half[2] for thing in found.objects) >= 0.016
    assert min(plate.half[0] for plate in found.plates) >= 0.055 and max(plate.half[0] for plate in found.plates) + 0.034 + 0.01 < splits.OBJECT_TO_PLATE


def test_the_texts_of_all_splits_are_counted_once():
    # one phrasing for 25 objects on the plate and 16 objects on 16 others, 16 more for 16 objects on the plate
    assert len(texts_of(catalogue.stand_ins())) == 25 + 16 * 16 + 16 * 16
    assert len(splits.TEXTS) == 17 and splits.TEXTS[0] == "put {object} on {plate}"


def test_assets_are_read_with_their_names_their_scale_and_their_order(tmp_path):
    found = assets.from_folder(plate_folder(tmp_path))
    assert (len(found.objects), len(found.plates), len(found.tables), found.source) == (25, 17, 21, str(tmp_path))
    thing = found.objects[3]
    assert (thing.name, thing.half, thing.rest, thing.mesh.scale, thing.mesh.density) == ("more_carrot number 3", (0.02, 0.02, 0.02), 0.02, 0.5, 500)
    assert (found.tables[2].picture.name, found.tables[2].texture.name, found.tables[2].mix) == ("02.png", "t02.png", 0.5)


def spoiled(folder, change):
    path = folder / "more_plate" / "model_db.json"
    entries = json.loads(path.read_text())
    change(entries)
    path.write_text(json.dumps(entries))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "more_carrot" / "model_db.json").unlink(), "no file .*more_carrot/model_db.json, wanted the folder to hold"),
        (lambda folder: (folder / "more_carrot" / "more_carrot_07" / "collision.obj").unlink(), "no file .*more_carrot_07/collision.obj"),
        (lambda folder: (folder / "more_carrot" / "more_carrot_07" / "textured.obj").unlink(), "no file .*more_carrot_07/textured.obj"),
        (lambda folder: (folder / "more_table" / "imgs" / "20.png").unlink(), "no file .*imgs/20.png"),
        (lambda folder: spoiled(folder, lambda entries: entries.pop("more_plate_16")), "found 16 entries in .*more_plate/model_db.json, wanted 17"),
        (lambda folder: spoiled(folder, lambda entries: entries["more_plate_05"].pop("bbox")), "no 'bbox' of 'more_plate_05'"),
        (lambda folder: spoiled(folder, lambda entries: entries["more_plate_05"].update(bbox={"min": [1]})), "cannot read 'more_plate_05'"),
        (lambda folder: (folder / "more_table" / "model_db.json").write_text("{"), "more_table/model_db.json is not JSON"),
        (lambda folder: spoiled(folder, lambda entries: entries["more_plate_05"].update(density=-5)), "cannot read 'more_plate_05' .*density -5"),
        (lambda folder: spoiled(folder, lambda entries: entries["more_plate_05"].update(scale=[0.0])), "cannot read 'more_plate_05'"),
        (lambda folder: (folder / "more_carrot" / "more_carrot_07" / "collision.obj").write_text("garbage"), "found 0 corners .*more_carrot_07/collision.obj"),
        (lambda folder: (folder / "more_carrot" / "more_carrot_07" / "collision.obj").write_text(box_mesh((1, 1, 1)) + "f 1 2 9\n"), "faces up to number 9"),
        (lambda folder: (folder / "more_table" / "model_db.json").write_text(json.dumps({str(i): {"texture": []} for i in range(21)})), "found 'texture' \\[\\]"),
    ],
)
def test_a_folder_that_is_not_complete_is_refused_by_the_name_of_what_is_missing(tmp_path, spoil, message):
    folder = plate_folder(tmp_path)
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        assets.from_folder(folder)


def test_a_folder_that_is_not_there_is_refused_with_the_layout(tmp_path):
    with pytest.raises(ValueError, match="found no folder .*nowhere, wanted one with more_carrot, more_plate and more_table"):
        assets.from_folder(tmp_path / "nowhere")


def test_a_texture_is_mixed_into_the_things_at_its_share_and_stretched_to_their_box():
    seen = torch.full((4, 4, 3), 100, dtype=torch.uint8)
    things = torch.zeros((4, 4), dtype=torch.bool)
    things[1:3, 1:3] = True
    texture = torch.zeros((8, 8, 3), dtype=torch.uint8)
    texture[:4], texture[4:] = 200, 40  # upper and lower half
    found = pictures.textured(seen, things, texture, 0.3, whole=False)[..., 0]
    # 0.7 * 100 + 0.3 * 200 = 130 in the upper row of the box, 0.7 * 100 + 0.3 * 40 = 82 in the lower one
    assert found.tolist() == [[100] * 4, [100, 130, 130, 100], [100, 82, 82, 100], [100] * 4]


def test_a_texture_over_the_whole_picture_is_cut_out_where_the_things_are():
    seen = torch.full((4, 4, 3), 100, dtype=torch.uint8)
    things = torch.zeros((4, 4), dtype=torch.bool)
    things[2:, 1] = True  # rows 2 and 3, column 1: their middle is row 2, column 1
    texture = torch.arange(8, dtype=torch.uint8)[:, None, None].expand(8, 8, 3) * 20
    found = pictures.textured(seen, things, texture, 0.5, whole=True)[..., 0]
    assert found.tolist() == [[50 + 10 * row] * 4 for row in (2, 3, 4, 5)]


def test_a_picture_behind_the_things_leaves_the_things():
    seen, behind = torch.full((2, 2, 3), 9, dtype=torch.uint8), torch.full((2, 2, 3), 77, dtype=torch.uint8)
    assert pictures.over(seen, torch.tensor([[True, False], [False, False]]), behind)[..., 0].tolist() == [[9, 77], [77, 77]]


def test_the_patterns_are_different_and_the_same_each_time():
    assert np.array_equal(pictures.pattern(3, 32), pictures.pattern(3, 32)) and pictures.pattern(3, 32).shape == (32, 32, 3)
    assert len({pictures.pattern(number, 32).tobytes() for number in splits.TEXTURES}) == 16
