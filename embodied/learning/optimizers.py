"""The optimiser of a policy, and its learning rate as a pure function of the update's number and the share of the run done.

State is restorable bit for bit: `state_dict` holds everything but the rate, which follows from where the run is.
"""

from __future__ import annotations

import math
from typing import Any, Iterable, Iterator

import torch
from torch import nn

from embodied.learning.muon import Muon

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "cosine")
FLOOR = 0.03  # share of the peak rate that the cosine ends at
MUON_REST_BETAS = (0.9, 0.98)  # AdamW for what Muon does not take, where no betas are given
NOT_HIDDEN = ("embed", "head", "norm")  # parts of names of 2-D weights that are no hidden matrices


def learning_rate(update: int, share: float = 0.0, *, lr: float, warmup_updates: int = 0, schedule: str = "constant") -> float:
    """The rate of update number `update` (0 is the first), `share` of the run done (0 to 1): a linear rise over the warm-up, then
    constant, or a cosine in the share from lr down to FLOOR * lr. The first update of a warm-up of n has lr / n, the n-th lr.

    The share counts rounds, not updates: a round of reinforcement has as many updates as its groups teach. Raises ValueError for an unknown schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"learner.schedule: found {schedule!r}, wanted one of {', '.join(SCHEDULES)}")
    if update < warmup_updates:
        lr = lr * (update + 1) / warmup_updates
    if schedule == "constant":
        return lr
    return lr * (FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, share))))


class Optimizer:
    """One or two torch optimisers as one: step, zero_grad, state_dict, load_state_dict, set_rate."""

    def __init__(self, parts: dict[str, torch.optim.Optimizer], values: Iterable[nn.Parameter] = ()):
        """values: those of the parameters that are the value head's."""
        self.parts, self.values = parts, set(values)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for part in self.parts.values() for group in part.param_groups for p in group["params"]]

    def copies(self) -> Iterator[tuple[int, nn.Parameter]]:
        """(tensors of its size that the state holds of a parameter, the parameter): Muon a momentum, AdamW two moments."""
        for name, part in self.parts.items():
            yield from ((1 if name == "muon" else 2, p) for group in part.param_groups for p in group["params"])

    def set_rate(self, lr: float, value_lr: float | None = None) -> None:
        """lr for all groups, or value_lr for the value head's; a group's own factor (the value head's) is applied to it."""
        for part in self.parts.values():
            for group in part.param_groups:
                own = lr if value_lr is None or group["params"][0] not in self.values else value_lr
                group["lr"] = own * group["factor"]

    def hold(self) -> None:
        """Drops the gradients of all but the value head's parameters: the next step leaves those, their moments and their decay as they are."""
        for parameter in self.parameters:
            if parameter not in self.values:
                parameter.grad = None

    def step(self) -> None:
        for part in self.parts.values():
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError when the state is of another kind of optimiser."""
        if set(state) != set(self.parts):
            raise ValueError(f"found optimiser state of {sorted(state)}, wanted {sorted(self.parts)}; resume with the learner.optimizer the checkpoint was made with")
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def hidden_matrices(named: Iterable[tuple[str, nn.Parameter]]) -> set[str]:
    """Names of the 2-D weights that Muon may take where a policy says nothing: all but embeddings, heads and norms."""
    return {name for name, p in named if p.dim() == 2 and not any(part in name for part in NOT_HIDDEN)}


def build_optimizer(
    policy: nn.Module,
    *,
    optimizer: str = "adamw",
    lr: float = 3e-4,
    value_lr: float | None = None,
    weight_decay: float = 0.0,
    betas: tuple[float, float] | None = None,
    momentum: float = 0.95,
) -> Optimizer:
    """The optimiser of a policy's trainable parameters.

    "adamw": all of them, betas default (0.9, 0.999). "muon": Muon on the hidden matrices (`policy.hidden_matrices()` where the policy has it, a set of
    parameter names), AdamW with default betas (0.9, 0.98) on the rest. Weight decay is on matrices only (biases, norms and 1-D scales never decay).
    value_lr: the peak rate of parameters whose name holds "value_head" or starts with "critic"; None = lr.
    Raises ValueError for an unknown kind, and for a policy without trainable parameters.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"learner.optimizer: found {optimizer!r}, wanted one of {', '.join(OPTIMIZERS)}")
    named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("found no trainable parameter in the policy, wanted some; a scripted policy cannot be trained")
    matrices: set[str] = set()
    if optimizer == "muon":
        own = getattr(policy, "hidden_matrices", None)
        matrices = set(own()) if own else hidden_matrices(named)
    values = {p for name, p in named if _of_value(name)}
    factor = 1.0 if value_lr is None else value_lr / lr
    parts: dict[str, torch.optim.Optimizer] = {}
    taken = [(name, p) for name, p in named if name in matrices]
    rest = [(name, p) for name, p in named if name not in matrices]
    if taken:
        parts["muon"] = Muon(_groups(taken, values, lr, weight_decay, factor), lr=lr, momentum=momentum)
    if rest:
        default = MUON_REST_BETAS if taken else (0.9, 0.999)
        parts["adamw"] = torch.optim.AdamW(_groups(rest, values, lr, weight_decay, factor), lr=lr, betas=tuple(betas or default))
    return Optimizer(parts, values)


def _of_value(name: str) -> bool:
    return "value_head" in name or name.startswith("critic")


def _groups(named: list[tuple[str, nn.Parameter]], values: set[nn.Parameter], lr: float, weight_decay: float, value_factor: float) -> list[dict[str, Any]]:
    """Parameter groups by (decays or not, the value head's or not), in a fixed order; empty ones are left out."""
    sorted_out: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for _, p in named:
        sorted_out.setdefault((p.dim() >= 2, p in values), []).append(p)
    groups = []
    for (decays, is_value), parameters in sorted(sorted_out.items(), key=lambda item: item[0]):
        factor = value_factor if is_value else 1.0
        groups.append({"params": parameters, "lr": lr * factor, "factor": factor, "weight_decay": weight_decay if decays else 0.0})
    return groups
