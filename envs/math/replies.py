"""What an env may say to an answer that is not right. `env.respond` names one of these, or a function of your own, by import path.

The protocol: `respond(problem, answers) -> str | None`. `answers` are those given so far, the last one wrong; the text is put after it
as it is, and the policy answers again; None ends the episode.
"""

from __future__ import annotations

from typing import Sequence

from envs.math.base import Problem


def try_again(problem: Problem, answers: Sequence[str]) -> str | None:
    """Says that the answer is wrong, not what would be right."""
    return "\nThat is not right. Try again.\n"
