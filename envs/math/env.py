"""Math problems as a text env: the observation is the text so far, an action is one whole answer.

Guarantees: the gold is never in an observation; the next prompt is the last one with the answer and the env's reply after it, letter for
letter, so what the policy did not write is always prompt, and never learned from; an episode is fixed by its reset and its answers.
"""

from __future__ import annotations

import pkgutil
from typing import Any, Callable, Sequence

import gymnasium
from gymnasium import spaces

from envs.math.base import Problem, whole
from envs.math.problems import shared
from envs.spec import ActionSpec, EnvSpec

OPTIONS = ("task", "init_state", "held_out")
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class AnyText(spaces.Text):
    """Every text, of whatever script and length; samples are short and printable."""

    def __init__(self) -> None:
        super().__init__(64, min_length=0, charset=PRINTABLE)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class MathEnv(gymnasium.Env):
    """One problem an episode; the right answer earns 1.0 and ends it.

    problems to published: as in `envs.math.problems.load`; split is what a plain reset plays. only_evaluated: nothing is to be trained on here, so
    it plays the evaluation split, which is the whole of a file that is not divided otherwise; None is False, and for `embodied.evaluate` to settle. template: what the policy is shown, with
    `{problem}` in it. turns: answers that an episode takes at most. respond: import path of what the env says to a wrong answer that is not
    the last, see `envs.math.replies`; None from it ends the episode.
    Observation: `prompt` str; with more than one turn also `reply` str, the end of the prompt that the env has just said, "" at first.
    Raises ValueError for problems that cannot be had, an empty split, or any knob that makes no sense.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        problems: str | None = "arithmetic",
        split: str = "train",
        seed: int = 0,
        size: int | None = None,
        held_out: float | None = None,
        digits: int = 2,
        operations: Sequence[str] = ("add",),
        prompt_field: str | None = None,
        answer_field: str | None = None,
        template: str = "{problem}",
        turns: int = 1,
        respond: str = "envs.math.replies.try_again",
        only_evaluated: bool | None = None,
        published: str | None = None,
    ):
        if not isinstance(turns, int) or turns < 1 or not isinstance(template, str) or "{problem}" not in template:
            raise ValueError(f"found turns={turns!r}, template={template!r}; wanted at least 1 turn, and {{problem}} in the template")
        split = "evaluate" if only_evaluated else split
        asked = (seed, size, held_out, digits, operations, prompt_field, answer_field, published, bool(only_evaluated))
        self._problems, self._kept = shared(problems, split, *asked), shared(problems, "evaluate", *asked)
        if self._problems.size == 0:
            raise ValueError(f"problems={problems}: found none in the {split} split with held_out={self._problems.about['held_out']}; change env.held_out")
        self._template, self._turns = template, turns
        self._respond = _respond(respond) if turns > 1 else None
        self.env_spec = EnvSpec(
            published or "math", ActionSpec("text"), horizon=turns, init_states=self._problems.size, holds_out=self._kept.size != 0, held_out_states=self._kept.size,
            protocol={"problems": problems, **self._problems.about, "split": split, "problems_seed": seed, "turns": turns, "template": template},
        )  # fmt: skip
        self.action_space = AnyText()
        self.observation_space = spaces.Dict({key: AnyText() for key in ("prompt", *(["reply"] if turns > 1 else []))})
        self._over = True

    def first_prompts(self, most: int) -> list[str]:
        """What an episode may begin with, of both splits, so many of each at most; [] where problems have no end."""
        splits = (self._problems, self._kept)
        if any(problems.size is None for problems in splits):
            return []
        return list(dict.fromkeys(self._worded(problems[place]) for problems in splits for place in range(min(problems.size, most))))

    def kept_back(self) -> frozenset[str]:
        """Prompts of what is held out, with the template and without; empty where it has no end, or nothing is held out."""
        kept = [self._kept[place] for place in range(self._kept.size or 0)]
        return frozenset(text for problem in kept for text in (problem.prompt, self._worded(problem)))

    def _worded(self, problem: Problem) -> str:
        return self._template.replace("{problem}", problem.prompt)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """options: task (0), init_state (the problem's place in its split; without it the seed draws one), held_out (True: of the evaluation split)."""
        super().reset(seed=seed)
        options = options or {}
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown or options.get("task", 0) != 0:
            raise ValueError(f"found reset options {dict(options)}, wanted none but {', '.join(OPTIONS)}, with task 0")
        problems = self._kept if options.get("held_out") else self._problems
        if problems.size == 0:
            raise ValueError(f"found held_out=True, but {problems.source} holds no problem out; raise env.held_out")
        place = options.get("init_state")
        if place is not None and not (problems.size is not None and 0 <= place < problems.size):
            raise ValueError(f"found init_state {place}, wanted {'none: a seed draws it' if problems.size is None else f'0 to {problems.size - 1}'}")
        if place is None:
            place = int(self.np_random.integers(2**31 if problems.size is None else problems.size))
        self._playing, self._problem = problems, problems[place]
        self._prompt, self._reply, self._answers = self._worded(self._problem), "", []
        self._over = False
        return self._observation(), self._info(False)

    def step(self, action: str) -> tuple[dict, float, bool, bool, dict]:
        """action: the answer, any text. `info`: success, success_at_end, problem (its source and index), turn; and gold, once the episode is over."""
        if not isinstance(action, str):
            raise ValueError(f"found an action of type {type(action).__name__}, wanted a text: one whole answer")
        if self._over:
            raise RuntimeError("found an answer outside an episode (it is over, or none was begun), wanted reset() first")
        answer = str(action)
        self._answers.append(answer)
        reward = float(self._playing.score(self._problem, answer))
        last = reward > 0 or len(self._answers) == self._turns
        reply = None if last else self._respond(self._problem, tuple(self._answers))
        if reply is not None and not isinstance(reply, str):
            raise ValueError(f"found {reply!r} from respond, wanted a text to go on with, or None to end the episode")
        if reply is not None and not whole(reply):
            raise ValueError(f"found half a surrogate pair in {reply!r} from respond, wanted whole characters: no tokenizer reads it")
        self._over = reply is None
        self._reply = reply or ""
        self._prompt += answer + self._reply
        info = self._info(reward > 0) | ({"gold": self._problem.answer} if self._over else {})
        return self._observation(), reward, self._over, False, info

    def _observation(self) -> dict[str, str]:
        return {"prompt": self._prompt} | ({"reply": self._reply} if self._turns > 1 else {})

    def _info(self, success: bool) -> dict[str, Any]:
        name = f"{self._problem.source} {self._problem.index}"
        return {"success": success, "success_at_end": success, "problem": name, "turn": len(self._answers)}


def _respond(path: str) -> Callable[..., str | None]:
    """What `path` names. Raises ValueError where that is nothing that can be called."""
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"found respond={path!r}, which cannot be imported ({error}); wanted the import path of a function such as envs.math.replies.try_again") from error
    if not callable(found):
        raise ValueError(f"found respond={path!r}, a {type(found).__name__}; wanted the import path of a function respond(problem, answers) -> str | None")
    return found
