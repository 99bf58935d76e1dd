"""A graph as Placeto's network reads it: features, neighbours, and who stands before whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...nouns.taskgraph import Floats, Ints
from ...search.features import Nodes, ancestors_of

RELATIONS = 3  # ancestors, descendants, the others


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """G groups and D devices as tensors.

    - ``fixed`` [G, D + 1]: run time on each device (the paper has one for all: its devices are
      alike) and output bytes, each over its maximum.
    - ``allowed`` [G, D]: where a group may stand.
    - ``members`` and ``begins``: parents of each group, then children of each group (counted from
      G), as bags: those of bag i are members[begins[i]:begins[i + 1]]; 2G bags. ``bag_weight``
      [2G, 1]: 1, or 1 over how many a bag has; 0 where it is empty.
    - ``related`` [3, G, G]: for each group its ancestors, its descendants, and all that is neither,
      but for itself; 1, or rows that add up to 1.
    - ``order`` [G]: the groups in topological order.
    """

    fixed: Tensor
    allowed: Tensor
    members: Tensor
    begins: Tensor
    bag_weight: Tensor
    related: Tensor
    order: Ints

    def __len__(self) -> int:
        return len(self.order)


def structure_of(nodes: Nodes, mean: bool) -> Structure:
    """The structure of a graph; ``mean``: neighbours and relatives are averaged, not added up."""
    count = len(nodes)
    fixed = np.column_stack([_shares(nodes.seconds), _shares(nodes.output_bytes)])
    bags = np.concatenate([nodes.target, nodes.source + count])
    members = np.concatenate([nodes.source, nodes.target + count])
    sequence = np.argsort(bags, kind="stable")
    sizes = np.bincount(bags, minlength=2 * count)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    before = ancestors_of(nodes)
    others = ~(before | before.T | np.eye(count, dtype=np.bool_))
    related = np.stack([before, before.T, others]).astype(np.float32)
    weight = (sizes > 0) / np.maximum(sizes if mean else 1, 1)
    if mean:
        related /= np.maximum(related.sum(axis=2, keepdims=True), 1.0)
    return Structure(
        torch.from_numpy(fixed.astype(np.float32)),
        torch.from_numpy(nodes.able.copy()),
        torch.from_numpy(members[sequence].astype(np.int64)),
        torch.from_numpy(begins.astype(np.int64)),
        torch.from_numpy(weight.astype(np.float32))[:, None],
        torch.from_numpy(related),
        np.argsort(nodes.order).astype(np.int64),
    )


def _shares(values: Floats) -> Floats:
    """Values over their maximum, where that is not 0."""
    return values / (values.max(initial=0.0) or 1.0)
