"""Placements as columns: device indices by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..ground.errors import InputError
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.strategy import Order, resolve_placement
from ..nouns.taskgraph import Ints

INT64 = np.dtype(np.int64)
Placement = Mapping[str, str] | NDArray[np.integer[Any]] | Sequence[int]


def is_column(placement: Placement, ops: int) -> TypeGuard[Ints]:
    """Whether kernels can read it as it is."""
    return (
        type(placement) is np.ndarray
        and placement.dtype is INT64  # others that are equal are read as well, but not as they are
        and placement.shape == (ops,)
        and placement.flags.carray
    )


def column_of(graph: Graph, cluster: Cluster, group_of: Ints, placement: Placement) -> Ints:
    """Device indices by op, of a placement by name, by op or by group (of each op: ``group_of``).

    Raises InputError for wrong lengths, and by name for devices that are not there and groups that
    are split.
    """
    if isinstance(placement, Mapping):
        return _named_column(graph, cluster, placement)
    try:
        column = np.asarray(placement)
    except ValueError:  # rows of different lengths
        raise InputError("placement: must be one row of whole numbers") from None
    if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        raise InputError(
            f"placement: must be one row of whole numbers, got {column.dtype} of shape "
            f"{column.shape}"
        )
    ops, groups = len(graph.ops), int(group_of.max(initial=-1)) + 1
    if len(column) not in (ops, groups):
        raise InputError(f"placement: must have {ops} devices (ops) or {groups} (groups)")
    # the one kind of array that kernels are compiled for
    column = np.require(column, np.int64, ("C", "A", "W"))
    return column if len(column) == ops else column[group_of]


def _named_column(graph: Graph, cluster: Cluster, placement: Mapping[str, str]) -> Ints:
    for name, device in placement.items():
        if not isinstance(name, str) or not isinstance(device, str):
            raise InputError(f"placement[{name!r}]: must map a name to a name, got {device!r}")
    return np.array(resolve_placement(graph, cluster, placement), np.int64)


def key_of(column: Ints, order: Order) -> bytes:
    """What a cache knows a placement by."""
    return order.policy.encode() + column.tobytes()
