"""A scripted expert for LIBERO's pick-and-place tasks: it reads poses from `privileged` and gives OSC_POSE deltas, never a rotation.

Each episode goes through phases (above, descend, close, lift, move, lower, release) and starts again when it lost the object.
Actions are a function of the episode's own observations and noise only, whatever other rows stand beside it; asking twice
for the same (episode, step) gives the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Mapping

import numpy as np

from policies.base import ActionChunk
from policies.experts.hand import HandExpert, answer

# The env's privileged vector, by name: (start, stop).
LAYOUT = {
    "suite": (0, 1), "task": (1, 2), "eef": (2, 5), "fingers": (5, 8), "opening": (8, 9),
    "object": (9, 12), "object_quat": (12, 16), "target": (16, 19), "target_quat": (19, 23),
}  # fmt: skip
GAIN = 20.0  # action units per metre of distance
PERSISTENCE = 0.8  # of the disturbance from one step to the next
REMEMBERED = 4096  # episodes; more than ever run at once
OPEN, CLOSED = -1.0, 1.0


@dataclass(frozen=True)
class Recipe:
    """How one task is done; metres."""

    rim: float = 0.0  # grasp this far from the object's origin along the fingers' axis, towards +y; 0 = at its middle
    grip: float = 0.0  # height of the grasp above the object's origin
    hover: float = 0.08  # height above the grasp from which to descend
    carry: float = 0.10  # how far to lift
    drop: float = 0.03  # height above the resting place at which to let go
    close: int = 8  # steps


BOWL = Recipe(rim=-0.05, grip=0.02)
FAR_RIM = replace(BOWL, rim=0.05)
PACKET = Recipe(carry=0.22, drop=0.10)
SPATIAL, OBJECT = 0, 1  # as the env numbers its suites
RECIPES = {
    (SPATIAL, 1): replace(FAR_RIM, hover=0.15, carry=0.20),
    (SPATIAL, 6): FAR_RIM,
    (SPATIAL, 7): FAR_RIM,
    (OBJECT, 4): replace(PACKET, hover=0.15),  # a bottle that topples when brushed
}
DEFAULTS = {SPATIAL: BOWL, OBJECT: PACKET}


@dataclass(frozen=True)
class Progress:
    phase: str = "above"
    since: int = 0  # steps in this phase
    anchor: np.ndarray | None = None  # [3] where to hold, or the height to carry at
    held: np.ndarray | None = None  # [3] from the object to the hand
    rest: float = 0.0  # height of the object when it was gripped
    drift: np.ndarray | None = None  # [3] disturbance of the last step


class LiberoExpert(HandExpert):
    """A disturbance varies slowly: it is a push that lasts."""

    def __init__(self, chunk: int = 1, disturbance: float = 0.0, disturbed_share: float = 0.5):
        super().__init__(chunk, disturbance, disturbed_share)
        self._memory: OrderedDict[int, tuple[int, Progress, Progress]] = OrderedDict()  # episode -> step, before, after

    def act(self, observation: Mapping[str, np.ndarray], noise: np.ndarray | None = None) -> ActionChunk:
        """observation: `privileged` [b, P], `episode` and `step` int64 [b]; noise: [b, 7] in (0, 1), None = no disturbance."""
        seen = np.asarray(observation["privileged"], dtype=np.float64)
        clean = np.zeros((len(seen), 1, 7), np.float32)
        pushed = np.zeros_like(clean)
        for row, (episode, step) in enumerate(zip(observation["episode"], observation["step"])):
            before = self._recall(int(episode), int(step))
            scene = {name: seen[row, start:stop] for name, (start, stop) in LAYOUT.items()}
            progress, action = advance(before, scene, recipe_of(scene))
            executed = action
            if self._is_pushed(episode, noise):
                progress = replace(progress, drift=self._push(before.drift, noise[row, :3]))
                executed = action.copy()
                executed[:3] = np.clip(action[:3] + progress.drift, -1.0, 1.0)
            clean[row, 0], pushed[row, 0] = action, executed
            self._remember(int(episode), int(step), before, progress)
        return answer(clean, pushed)

    def _push(self, last: np.ndarray | None, uniforms: np.ndarray) -> np.ndarray:
        fresh = self._normal(uniforms)
        return fresh if last is None else PERSISTENCE * last + np.sqrt(1 - PERSISTENCE**2) * fresh

    def _recall(self, episode: int, step: int) -> Progress:
        if step == 0:
            return Progress()
        last, before, after = self._memory.get(episode, (None, None, None))
        if last is None or step not in (last, last + 1):
            raise ValueError(f"found step {step} of episode {episode} after step {last}, wanted every step in order from 0")
        return before if step == last else after

    def _remember(self, episode: int, step: int, before: Progress, after: Progress) -> None:
        self._memory[episode] = (step, before, after)
        self._memory.move_to_end(episode)
        if len(self._memory) > REMEMBERED:
            self._memory.popitem(last=False)


def recipe_of(scene: Mapping[str, np.ndarray]) -> Recipe:
    """Raises ValueError for a suite that the expert has not learnt."""
    suite, task = int(scene["suite"][0]), int(scene["task"][0])
    if suite not in DEFAULTS:
        raise ValueError(f"found suite number {suite}, wanted libero_spatial or libero_object: the scripted expert knows no other")
    return RECIPES.get((suite, task), DEFAULTS[suite])


def advance(progress: Progress, scene: Mapping[str, np.ndarray], recipe: Recipe) -> tuple[Progress, np.ndarray]:
    """One step: (what to remember, action [7] float64)."""
    hand, thing, place = scene["eef"], scene["object"], scene["target"]
    progress = _next_phase(progress, hand, thing, place, grasp_point(scene, recipe), recipe)
    goal = _goal(progress, thing, place, grasp_point(scene, recipe), recipe)
    action = np.zeros(7)
    action[:3] = np.clip((goal - hand) * GAIN, -1.0, 1.0)
    action[6] = CLOSED if progress.phase in ("close", "lift", "move", "lower") else OPEN
    return replace(progress, since=progress.since + 1), action


def grasp_point(scene: Mapping[str, np.ndarray], recipe: Recipe) -> np.ndarray:
    """[3] where the grip site shall be when the fingers close."""
    axis = scene["fingers"] * np.array([1.0, 1.0, 0.0])
    axis = axis / np.linalg.norm(axis) * (1.0 if axis[1] >= 0 else -1.0)
    return scene["object"] + recipe.rim * axis + np.array([0.0, 0.0, recipe.grip])


def _goal(progress: Progress, thing: np.ndarray, place: np.ndarray, grasp: np.ndarray, recipe: Recipe) -> np.ndarray:
    if progress.phase == "above":
        return grasp + np.array([0.0, 0.0, recipe.hover])
    if progress.phase == "descend":
        return grasp
    if progress.phase in ("close", "lift", "release"):
        return progress.anchor
    xy = place[:2] + progress.held[:2]
    height = progress.anchor[2] if progress.phase == "move" else place[2] + progress.held[2] + recipe.drop
    return np.array([xy[0], xy[1], height])


def _next_phase(now: Progress, hand, thing, place, grasp, recipe: Recipe) -> Progress:
    """The phase of this step, from the poses it starts with."""
    gap = _goal(now, thing, place, grasp, recipe) - hand
    flat, up = float(np.linalg.norm(gap[:2])), abs(float(gap[2]))
    if now.phase == "above" and flat < 0.012 and up < 0.03:
        return replace(now, phase="descend", since=0)
    if now.phase == "descend" and ((flat < 0.01 and up < 0.008) or now.since >= 30):
        return replace(now, phase="close", since=0, anchor=hand.copy(), rest=float(thing[2]))
    if now.phase == "close" and now.since >= recipe.close:
        return replace(now, phase="lift", since=0, anchor=hand + np.array([0.0, 0.0, recipe.carry]))
    if now.phase == "lift" and (gap[2] < 0.03 or now.since >= 30):
        if thing[2] - now.rest < 0.3 * recipe.carry:
            return replace(now, phase="above", since=0)
        return replace(now, phase="move", since=0, held=hand - thing)
    if now.phase == "move" and (flat < 0.012 or now.since >= 60):
        return replace(now, phase="lower", since=0)
    if now.phase == "lower" and (up < 0.01 or now.since >= 25):
        return replace(now, phase="release", since=0, anchor=hand.copy())
    if now.phase == "release" and now.since >= 20:
        return replace(now, phase="above", since=0)
    return now
