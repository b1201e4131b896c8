"""What an env says of itself, so that a policy can be checked against it before anything starts.

An env carries an `EnvSpec` as its attribute `env_spec`. `env=gym` gives what `gymnasium.make`
builds one from its spaces, by `from_spaces`; any other env has to declare it. The observation is a flat dict: `images/<camera>` uint8 [H, W, 3], `state` float32 [S],
`instruction` str (of a text env `prompt`, and `reply` where it answers back), `privileged` float32 [P] (poses for a scripted expert, only on request). Of a batched simulator, pictures and state are tensors on its device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium
import numpy as np

IMAGE_PREFIX = "images/"


@dataclass(frozen=True)
class ActionSpec:
    """One primitive action. `kind` is "discrete" (an int in [0, choices)), "continuous" (float32 [dims]) or "text" (a str: one whole answer)."""

    kind: str
    dims: int = 1  # A: numbers per primitive action
    choices: int | None = None  # discrete only
    low: tuple[float, ...] | None = None  # continuous only, one bound per dim
    high: tuple[float, ...] | None = None
    gripper: str | None = None  # "open_-1_close_+1", "open_1_close_0", or None where no dim is a gripper (else it is the last)


@dataclass(frozen=True)
class EnvSpec:
    """Shapes and conventions of one env instance. Lengths in primitive steps."""

    name: str
    action: ActionSpec
    images: dict[str, tuple[int, int]] = field(default_factory=dict)  # camera -> (height, width) in pixels
    state: int = 0  # S, 0 when there is no state vector
    language: bool = False  # True when observations hold `instruction`
    privileged: int = 0  # P, 0 when not requested
    horizon: int | None = None  # step budget of an episode; None when the env never truncates
    tasks: tuple[int, ...] = (0,)  # the task indices that reset(options={"task": i}) accepts
    init_states: int | None = None  # fixed initial states per task; None when a seed draws them
    holds_out: bool = False  # reset(options={"held_out": True}) starts from what is kept for evaluation and never played otherwise
    held_out_states: int | None = None  # as init_states, of what is held out
    plays_on: bool = False  # reset(options={"play_on": True}) goes on past success, to the end of the budget
    privileged_layout: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (start, stop) in `privileged`
    instructions: tuple[str, ...] = field(default=(), repr=False)  # all that envs of this kind may give, of other tasks and suites too; () where unknown
    protocol: dict = field(default_factory=dict)  # printed and stored beside every score: versions, budget, renderer
    batched: bool = False  # all slots are one simulator: made by the env's own vector(slots)


def from_spaces(name: str, observation: gymnasium.Space, action: gymnasium.Space, horizon: int | None) -> EnvSpec:
    """The spec of a plain Gymnasium env with a Box observation (flattened to `state`) and a Box or Discrete action.

    Raises TypeError naming the space where it is neither.
    """
    if not isinstance(observation, gymnasium.spaces.Box):
        raise TypeError(f"{name}: found observation space {observation}, wanted a Box; wrap the env so that it gives one")
    if isinstance(action, gymnasium.spaces.Discrete):
        spec = ActionSpec("discrete", 1, choices=int(action.n))
    elif isinstance(action, gymnasium.spaces.Box) and len(action.shape) == 1:
        spec = ActionSpec("continuous", int(action.shape[0]), low=tuple(map(float, action.low)), high=tuple(map(float, action.high)))
    else:
        raise TypeError(f"{name}: found action space {action}, wanted Discrete or a one-dimensional Box; wrap the env so that it gives one")
    return EnvSpec(name, spec, state=int(np.prod(observation.shape)), horizon=horizon)
