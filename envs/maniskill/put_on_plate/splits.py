"""The splits of put-on-plate as data, and the draw of an episode from its seed: nothing here needs a simulator.

Guarantees: an episode is a function of (split, seed) alone. Every choice has a random stream of its own, so that two splits which choose among
the same things choose the same for a seed, and a policy can be compared on them episode by episode.
Source of the splits: Liu et al. 2025, "What Can RL Bring to VLA Generalization?" (RL4VLA), and RLinf, which took them over.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

BUDGET = 80  # primitive steps
SEEN_OBJECTS, UNSEEN_OBJECTS = range(16), range(16, 25)
SEEN_PLATES, UNSEEN_PLATES = range(1), range(1, 17)
SEEN_TABLES, UNSEEN_TABLES, ALL_TABLES = range(16), range(16, 21), range(21)
SEEN_TEXTS, UNSEEN_TEXTS = range(1), range(1, 17)
TEXTURES = range(1, 17)

# {object} and {plate} are their names. The first is the literature's; the others stand in for its 16 unseen ones.
TEXTS = (
    "put {object} on {plate}",
    "place the {object} upon the {plate}", "lift the {object} and leave it on the {plate}", "the {object} goes on the {plate}",
    "could the {object} go on the {plate}?", "bring the {object} over to the {plate}", "I want the {object} on top of the {plate}",
    "grab the {object}, then drop it on the {plate}", "move the {object} so that the {plate} holds it", "the {plate} needs the {object} on it",
    "use the {plate} as the spot for the {object}", "get the {object} off the table and onto the {plate}", "find the {object} and set it on the {plate}",
    "let the {object} rest on the {plate}", "onto the {plate} with the {object}, please", "would you put the {object} on the {plate}",
    "transfer the {object} to the {plate}",
)  # fmt: skip

CENTRE, HALF_EDGE = np.array([-0.05, 0.0]), 0.1  # metres: where things are put, before the robot
OBJECT_TO_PLATE, OBJECT_TO_OBJECT, PLATE_TO_PLATE, MOVED_BY = 0.12, 0.1, 0.17, 0.15  # metres between their middles, at least
# The third place's distances from object and plate, by what it is for.
THIRD = {"object": (OBJECT_TO_OBJECT, OBJECT_TO_PLATE), "plate": (OBJECT_TO_PLATE, PLATE_TO_PLATE), "moved": (MOVED_BY, OBJECT_TO_PLATE)}
MOVED_AFTER = 5  # steps
YAWS = tuple(np.radians([0.0, 45.0, 90.0, 135.0]).tolist())
UNSEEN_YAWS = tuple(np.radians([-22.5, -67.5, -112.5, -157.5]).tolist())
BENDS, TURNS = (-0.15, -0.08, 0.0, 0.08, 0.15), (-0.6, -0.3, 0.0, 0.3, 0.6)  # radians added to joints 1 to 6, and to the last one
SHOULDER, ELBOW, BENT_AT_MOST = 1, 3, 0.25  # their sum is bounded, which keeps the hand off the table


@dataclass(frozen=True)
class Split:
    name: str
    literature: str  # the env and set of objects that this is in RL4VLA and RLinf, without "PutOnPlateInScene25"
    changes: str  # what is not as in training
    objects: range = SEEN_OBJECTS
    plates: range = SEEN_PLATES
    tables: range = SEEN_TABLES
    texts: range = SEEN_TEXTS
    second: str | None = None  # "object" or "plate": one more lies there
    seconds: range = range(0)  # which may; never the one that is meant
    texture: float = 0.0  # share of a strange picture in what the cameras see
    whole: bool = False  # the picture lies over all that is seen, else over the robot and the things alone
    strange_place: bool = False  # things lie around the square that training puts them in, turned otherwise
    strange_pose: bool = False  # the robot starts with other joint angles
    moved: bool = False  # the object jumps to another place after MOVED_AFTER steps

    @property
    def needs(self) -> dict[str, tuple[int, ...]]:
        """The numbers of all objects, plates and tables that an episode may use."""
        more = {self.second: self.seconds}
        return {
            "object": tuple(sorted({*self.objects, *more.get("object", ())})),
            "plate": tuple(sorted({*self.plates, *more.get("plate", ())})),
            "table": tuple(self.tables),
        }


SPLITS = {
    split.name: split
    for split in (
        Split("train", "Main-v3, train", "nothing"),
        Split("test", "Main-v3, test", "9 unseen objects, 5 unseen tables", objects=UNSEEN_OBJECTS, tables=UNSEEN_TABLES),
        Split("vision/table", "VisionImage-v1, test", "5 unseen tables", tables=UNSEEN_TABLES),
        Split("vision/texture03", "VisionTexture03-v1, test", "a texture at 0.3 over robot and things", texture=0.3),
        Split("vision/texture05", "VisionTexture05-v1, test", "a texture at 0.5 over robot and things", texture=0.5),
        Split("vision/whole03", "VisionWhole03-v1, test", "a texture at 0.3 over the whole picture", texture=0.3, whole=True),
        Split("vision/whole05", "VisionWhole05-v1, test", "a texture at 0.5 over the whole picture", texture=0.5, whole=True),
        Split("semantics/object", "Carrot-v1, test", "9 unseen objects", objects=UNSEEN_OBJECTS),
        Split("semantics/plate", "Plate-v1, test", "16 unseen receptacles", plates=UNSEEN_PLATES),
        Split("semantics/instruction", "Instruct-v1, test", "16 unseen phrasings", texts=UNSEEN_TEXTS),
        Split("semantics/multi_object_seen", "MultiCarrot-v1, train", "a second object, both seen", second="object", seconds=SEEN_OBJECTS),
        Split("semantics/multi_object", "MultiCarrot-v1, test", "a second object, both unseen", objects=UNSEEN_OBJECTS, second="object", seconds=UNSEEN_OBJECTS),
        Split("semantics/multi_plate_seen", "MultiPlate-v1, train", "a second receptacle, an unseen one", tables=ALL_TABLES, second="plate", seconds=UNSEEN_PLATES),
        Split("semantics/multi_plate", "MultiPlate-v1, test", "a second receptacle, both unseen", plates=UNSEEN_PLATES, tables=ALL_TABLES, second="plate", seconds=UNSEEN_PLATES),
        Split("execution/position", "Position-v1, test", "places around the square of training, other turns", strange_place=True),
        Split("execution/robot_pose", "EEPose-v1, test", "other joint angles at the start", strange_pose=True),
        Split("execution/moved", "PositionChangeTo-v1, test", f"the object is elsewhere after {MOVED_AFTER} steps", moved=True),
    )
}


@dataclass(frozen=True)
class Episode:
    """Places are (x, y) in metres in the world frame, turns in radians; numbers are those of the catalogue."""

    object: int
    plate: int
    table: int
    text: int
    second: int | None
    texture: int | None
    object_at: tuple[float, float]
    plate_at: tuple[float, float]
    third_at: tuple[float, float] | None  # where the second thing lies, or where the object is moved to
    yaw: float
    joints: tuple[float, ...]  # radians [7] added to the robot's joints


def split_of(name: str) -> Split:
    """Raises ValueError naming the nearest and all splits."""
    if name not in SPLITS:
        near = difflib.get_close_matches(name, SPLITS, n=1, cutoff=0.4)
        raise ValueError(f"env.split: found {name!r}{f'; did you mean {near[0]}?' if near else ''}, wanted one of {', '.join(SPLITS)}")
    return SPLITS[name]


def drawn(split: Split, seed: int) -> Episode:
    """The episode of a seed (at least 0)."""

    def one_of(stream: int, choices):
        return choices[int(np.random.default_rng((seed, stream)).integers(len(choices)))]

    object_, plate = one_of(0, split.objects), one_of(1, split.plates)
    others = [number for number in split.seconds if number != {"object": object_, "plate": plate}.get(split.second)]
    object_at, plate_at, third_at = _places(split, np.random.default_rng((seed, 2)))
    return Episode(
        object_, plate, one_of(3, split.tables), one_of(4, split.texts),
        one_of(5, others) if split.second else None, one_of(6, TEXTURES) if split.texture else None, object_at, plate_at, third_at,
        one_of(7, UNSEEN_YAWS if split.strange_place else YAWS), _joints(np.random.default_rng((seed, 8))) if split.strange_pose else (0.0,) * 7,
    )  # fmt: skip


@lru_cache
def square(strange: bool) -> np.ndarray:
    """[n, 2] metres: 6 x 6 places in a square, or the 28 places of the ring around it (strange)."""
    steps = np.arange(-1, 7) if strange else np.arange(6)
    grid = np.stack(np.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
    if strange:
        grid = grid[((grid == -1) | (grid == 6)).any(1)]
    return CENTRE + HALF_EDGE * (grid * 0.4 - 1.0)


def _places(split: Split, stream: np.random.Generator) -> tuple:
    """Object, plate and third place, None where there is no third thing: all pairs are as likely, and then all third places that are left to them."""
    third = THIRD.get("moved" if split.moved else split.second)
    grid, pairs = square(split.strange_place), _pairs(split.strange_place, third)
    chosen = pairs[stream.integers(len(pairs))].tolist()
    if third is not None:
        chosen.append(int(stream.choice(_left(grid, *chosen, third).nonzero()[0])))
    places = [(float(x), float(y)) for x, y in grid[chosen]]
    return (*places, None)[:3]


@lru_cache
def _pairs(strange: bool, third: tuple[float, float] | None) -> np.ndarray:
    """[n, 2] int: numbers of the places for object and plate that are far enough apart and leave one for a third thing."""
    grid = square(strange)
    apart = np.argwhere(np.linalg.norm(grid[:, None] - grid, axis=-1) > OBJECT_TO_PLATE)
    return apart if third is None else np.array([pair for pair in apart if _left(grid, *pair, third).any()])


def _left(grid: np.ndarray, first: int, second: int, least: tuple[float, float]) -> np.ndarray:
    """[n] bool: the places that are far enough from both."""
    return (np.linalg.norm(grid - grid[first], axis=1) > least[0]) & (np.linalg.norm(grid - grid[second], axis=1) > least[1])


def _joints(stream: np.random.Generator) -> tuple[float, ...]:
    while True:
        bends = [*stream.choice(BENDS, size=6).tolist(), float(stream.choice(TURNS))]
        if any(bends) and abs(bends[SHOULDER] + bends[ELBOW]) <= BENT_AT_MOST:
            return tuple(bends)
