"""From trajectories to rows, and rows to minibatches: nothing lost, nothing doubled, the order given from outside.

One row is one chunk. Rows stand in the order of the trajectories given (the ledger's), so a batch does not depend on which episode finished first.
A last minibatch may be smaller: the learner divides sums by counts once, so no row weighs more for it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch

from embodied.learning.data import Batch, Trajectory

AGGREGATIONS = ("token_mean", "sequence_mean")
PADDED = ("_ids", "_mask")  # names of inputs whose dim 1 is text: padded on the right with 0


def token_weights(mask: torch.Tensor, aggregation: str) -> torch.Tensor:
    """[T, L] bool of one trajectory -> [T, L] float32: 1 per executed token, or 1 / their number so that the trajectory weighs 1 in all."""
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"found aggregation={aggregation!r}, wanted one of {', '.join(AGGREGATIONS)}")
    weights = mask.float()
    return weights if aggregation == "token_mean" else weights / weights.sum().clamp(min=1.0)


def rows(trajectories: Sequence[Trajectory], estimate: Any, aggregation: str, reference: Sequence[torch.Tensor] | None = None) -> Batch:
    """Flatten the kept trajectories. `estimate` has `advantages`, `returns` (or None) and `keep`, one entry per trajectory.

    `reference`: per trajectory [T, L, V] or [T, L] log-probabilities of the frozen policy. Inputs named *_ids or *_mask of differing width are padded
    on the right with 0 to the widest, and so are choices, log-probs, mask and values of tokens (masked there). When nothing is kept, the batch has 0 rows.
    Raises ValueError for an empty list, and for other inputs whose shapes differ.
    """
    if not trajectories:
        raise ValueError("found no trajectory, wanted at least one; an iteration without episodes has nothing to learn from")
    kept = [i for i, keep in enumerate(estimate.keep) if keep]
    if not kept:
        return select(rows(trajectories[:1], replace(estimate, keep=[True]), aggregation, reference), torch.arange(0))
    chosen = [trajectories[i] for i in kept]
    width = max(t.choices.shape[1] for t in chosen)
    wide = [estimate.advantages[i].float().expand(t.choices.shape) for i, t in zip(kept, chosen)]
    values = [torch.zeros(t.length) if t.values is None else t.values.float() for t in chosen]
    returns = [torch.zeros(t.length) for t in chosen] if estimate.returns is None else [estimate.returns[i].float() for i in kept]
    return Batch(
        inputs={name: _join(name, [t.inputs[name] for t in chosen]) for name in chosen[0].inputs},
        choices=_cat([t.choices for t in chosen], width),
        logprobs=_cat([t.logprobs.float() for t in chosen], width),
        weights=_cat([token_weights(t.mask, aggregation) for t in chosen], width),
        advantages=_cat(wide, width),
        returns=_judged(returns),
        values=_judged(values),
        reference=None if reference is None else _cat([reference[i] for i in kept], width),
    )


def labelled(inputs: dict[str, torch.Tensor], choices: torch.Tensor, mask: torch.Tensor) -> Batch:
    """Rows to imitate: inputs each [n, ...], choices [n, L] labels, mask [n, L] bool. Each valid token weighs 1; what imitation does not use is 0."""
    zeros, none = torch.zeros(choices.shape), torch.zeros(choices.shape[0])
    return Batch(inputs, choices, logprobs=zeros, weights=mask.float(), advantages=zeros, returns=none, values=none)


def select(batch: Batch, index: torch.Tensor) -> Batch:
    """The rows of an int64 index [m], in its order."""
    return _each(batch, lambda tensor: tensor[index])


def to(batch: Batch, device: torch.device | str) -> Batch:
    """The same batch on a device."""
    return _each(batch, lambda tensor: tensor.to(device, non_blocking=True))


def minibatches(count: int, size: int, permutation: torch.Tensor) -> list[torch.Tensor]:
    """Cut a permutation of range(count) into indices of `size` rows; the last has what is left. No rows, no minibatch.

    Raises ValueError when size < 1 or the permutation is not one of range(count).
    """
    if size < 1:
        raise ValueError(f"found minibatch={size}, wanted at least 1 row")
    if not torch.equal(permutation.sort().values, torch.arange(count)):
        raise ValueError(f"found a permutation of {len(permutation)} numbers, wanted each of 0..{count - 1} once")
    return list(permutation.split(size)) if count else []


def by_length(batch: Batch) -> Batch:
    """The same rows, those with the fewest tokens first: side by side with their like they have the least padding."""
    return select(batch, (batch.weights > 0).sum(1).argsort(stable=True))


def microbatches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Consecutive slices of at most `size` rows (None: the whole batch), to be summed before one update. No rows, no micro-batch."""
    if size is not None and size < 1:
        raise ValueError(f"found microbatch={size}, wanted at least 1 row, or null for the whole minibatch")
    step = size or max(batch.rows, 1)
    for start in range(0, batch.rows, step):
        yield _each(batch, lambda tensor: tensor[start : start + step])


class Gather:
    """Groups put together from items that come one by one: whole ones come out, in the order in which they became whole."""

    def __init__(self, size: int) -> None:
        """size: members of a group."""
        self._size = size
        self._begun: dict[Any, list[Any]] = {}

    def add(self, items: Iterable[Any], group_of: Callable[[Any], Any]) -> list[list[Any]]:
        """The groups that these items complete, the members of each as they came."""
        whole = []
        for item in items:
            members = self._begun.setdefault(group_of(item), [])
            members.append(item)
            if len(members) == self._size:
                whole.append(self._begun.pop(group_of(item)))
        return whole

    def clear(self) -> None:
        self._begun = {}


def _each(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    tensors = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "inputs"}
    changed = {name: None if tensor is None else change(tensor) for name, tensor in tensors.items()}
    return replace(batch, inputs={name: change(tensor) for name, tensor in batch.inputs.items()}, **changed)


def _cat(tensors: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Concatenate along rows after padding dim 1 on the right with 0."""
    return torch.cat([_pad(tensor, width) for tensor in tensors])


def _judged(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Each [T] or each [T, K], of which those of tokens may differ in width."""
    return torch.cat(list(tensors)) if tensors[0].dim() == 1 else _cat(tensors, max(tensor.shape[1] for tensor in tensors))


def _pad(tensor: torch.Tensor, width: int) -> torch.Tensor:
    missing = width - tensor.shape[1]
    if missing == 0:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])], dim=1)


def _join(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) == 1:
        return torch.cat(list(tensors))
    if not name.endswith(PADDED):
        raise ValueError(f"input {name!r}: found rows of shapes {sorted(shapes)}, wanted one shape; only inputs named *_ids or *_mask are padded")
    return _cat(tensors, max(tensor.shape[1] for tensor in tensors))
