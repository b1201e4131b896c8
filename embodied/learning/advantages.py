"""From rewards to advantages: pure functions on tensors, float32 in and out.

A trajectory's end is told by `bootstrap`: V(final observation) where the step budget cut it, 0 where the env ended it.
Nothing here divides by a number that can be 0: where there is nothing to normalise, the numbers are only centred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import torch

EPSILON = 1e-6  # added to every standard deviation that is divided by


def gae(rewards: torch.Tensor, values: torch.Tensor, bootstrap: float, gamma: float | torch.Tensor, lam: float) -> torch.Tensor:
    """Generalised advantage estimates of one trajectory, one per decision (Schulman et al. 2016, eq. 16).

    rewards [T], values [T] = V before each decision, bootstrap = V after the last one (0 when the env ended the episode). gamma: one for
    all, or [T] float64: the discount between a decision and the next.
    delta_t = r_t + gamma_t * V_{t+1} - V_t and A_t = delta_t + gamma_t * lam * A_{t+1}. Returns [T] float32, computed in float64.
    """
    advantages, following, ahead = [], float(bootstrap), 0.0
    discounts = gamma.tolist() if isinstance(gamma, torch.Tensor) else [gamma] * len(rewards)
    for reward, value, gamma in zip(reversed(rewards.tolist()), reversed(values.tolist()), reversed(discounts)):
        ahead = reward + gamma * following - value + gamma * lam * ahead
        advantages.append(ahead)
        following = value
    return torch.tensor(advantages[::-1], dtype=torch.float32)


def rewards_to_go(rewards: torch.Tensor, gamma: float, bootstrap: float = 0.0) -> torch.Tensor:
    """[T] -> [T] float32: sum over k >= t of gamma^(k-t) * r_k, plus the discounted bootstrap."""
    zeros = torch.zeros_like(rewards)
    return gae(rewards, zeros, bootstrap, gamma, 1.0)


@dataclass(frozen=True)
class Decisions:
    """What the K values of each chunk judge, [T, K] each; flattened, they stand in the order of time."""

    rewards: torch.Tensor  # float32, what each brought at once
    discounts: torch.Tensor  # float64, between it and the next
    tokens: torch.Tensor  # int64, its executed tokens
    taken: torch.Tensor  # bool: False for one that was never come to, which has no place in time

    def gae(self, values: torch.Tensor, bootstrap: float, lam: float) -> torch.Tensor:
        """values [T, K] -> advantages [T, K] float32 over the decisions taken, 0 for the others."""
        result = torch.zeros(self.taken.shape)
        result[self.taken] = gae(self.rewards[self.taken], values[self.taken], bootstrap, self.discounts[self.taken], lam)
        return result


def decisions(count: int, rewards: torch.Tensor, step_rewards: torch.Tensor | None, mask: torch.Tensor, gamma: float) -> Decisions:
    """The decisions of one trajectory that K = count values per chunk judge: 1 (whole chunks), C (primitive actions) or L (tokens).

    rewards [T] of chunks, step_rewards [T, C] of primitive steps, mask [T, L] bool. gamma discounts from one decision to the next, but within
    an action the tokens are steps without time: 1 between them, and the action's reward comes with its last token (as where text is
    learned token by token: Ouyang et al. 2022, appendix C). So a value means the same however many tokens spell an action.
    Raises ValueError where the numbers of values, actions and tokens do not fit.
    """
    steps, length = mask.shape
    if count == 1:
        whole = (steps, 1)
        return Decisions(rewards.view(whole), torch.full(whole, gamma, dtype=torch.float64), mask.sum(-1, keepdim=True), torch.ones(whole, dtype=torch.bool))
    actions = None if step_rewards is None else step_rewards.shape[1]
    if actions is None or length % actions or count not in (actions, length):
        found = "no rewards of primitive steps" if actions is None else f"{actions} actions of {length} tokens"
        raise ValueError(f"found {count} values per chunk and {found}, wanted 1 value, one per action or one per token; set policy.value_level=chunk")
    tokens = mask.view(steps, count, length // count).sum(-1)
    taken = (tokens > 0).view(steps, actions, count // actions)
    last = taken & (taken.flip(-1).cumsum(-1).flip(-1) == 1)  # of each action
    spent = torch.where(last, step_rewards.unsqueeze(-1), 0.0).view(steps, count)
    discounts = torch.where(last, gamma, torch.ones((), dtype=torch.float64)).view(steps, count)
    return Decisions(spent, discounts, tokens, tokens > 0)


@dataclass(frozen=True)
class Groups:
    """Which trajectories take part, judged by whole groups."""

    members: dict[int, list[int]]  # group id -> positions in the list of trajectories, both in order of appearance
    keep: list[bool]  # per trajectory
    equal: int  # groups dropped because all returns are the same
    filtered: int  # groups dropped because their mean return lies outside [lower, upper]

    @property
    def kept(self) -> list[list[int]]:
        return [positions for positions in self.members.values() if self.keep[positions[0]]]


def judge_groups(groups: Sequence[int], returns: torch.Tensor, lower: float | None, upper: float | None) -> Groups:
    """Drop the groups that teach nothing: equal returns (a group of one among them), or a mean outside [lower, upper].

    groups [N] ids, returns [N] float32. A None bound does not bind; the bounds themselves are kept.
    """
    members: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    keep, equal, filtered = [True] * len(groups), 0, 0
    for positions in members.values():
        scores = returns[positions].double()
        mean = scores.mean().item()
        same = bool((scores == scores[0]).all())
        outside = (lower is not None and mean < lower) or (upper is not None and mean > upper)
        equal, filtered = equal + same, filtered + (outside and not same)
        if same or outside:
            for position in positions:
                keep[position] = False
    return Groups(members, keep, equal, filtered)


def group_relative(returns: torch.Tensor, groups: Groups, scale: str) -> torch.Tensor:
    """(return - mean of its group) / std, [N] float32; 0 for dropped trajectories.

    std is the population's (divided by the number, not by number - 1) plus EPSILON: of the group (`scale="group"`), of all kept,
    centred returns (`"batch"`: dropped groups do not enter), or 1 (`"none"`).
    """
    result = torch.zeros(len(returns), dtype=torch.float64)
    exact = returns.double()
    for positions in groups.kept:
        centred = exact[positions] - exact[positions].mean()
        result[positions] = centred / (centred.std(correction=0) + EPSILON) if scale == "group" else centred
    kept = torch.tensor(groups.keep, dtype=torch.bool)
    if scale == "batch" and kept.any():
        result = result / (result[kept].square().mean().sqrt() + EPSILON)
    return result.float()


def leave_one_out(returns: torch.Tensor, groups: Groups) -> torch.Tensor:
    """return - mean of the *others* of its group, [N] float32; 0 for dropped trajectories."""
    result = torch.zeros(len(returns), dtype=torch.float64)
    exact = returns.double()
    for positions in groups.kept:
        scores, others = exact[positions], len(positions) - 1
        result[positions] = scores - (scores.sum() - scores) / others
    return result.float()


def normalise(advantages: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Centre and scale over the whole batch; an entry counts as often as its weight says, so masked ones do not.

    advantages: per trajectory [T] float32 (or [T, K] flattened); weights: as many, for instance its number of executed tokens.
    With no weight at all the advantages come back as they are.
    """
    if not advantages:
        return []
    joined, weight = torch.cat(list(advantages)).double(), torch.cat([w.double() for w in weights])
    total = weight.sum().item()
    if total == 0:
        return list(advantages)
    mean = (weight * joined).sum().item() / total
    std = math.sqrt((weight * (joined - mean).square()).sum().item() / total)
    return [((each.double() - mean) / (std + EPSILON)).float() for each in advantages]
