"""The pass that makes a step's batch on a host: its inputs move to the loader's device, from which
transfers bring them to whoever reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..ground.errors import InputError
from ..ground.units import picoseconds
from ..nouns.graph import Graph
from ..nouns.semantics import traits_of
from ..nouns.strategy import Loader
from .prepare import Prepared


def loaded(
    prepared: Prepared, placement: Sequence[int], loader: Loader
) -> tuple[Prepared, list[int]]:
    """The prepared graph and its placement (device by op) with the inputs on the loader's device.

    Each input takes the share of the loader's time that its bytes have of the batch's. Raises
    InputError where there is no such device, or no input to load.
    """
    index, ops = prepared.cluster.index, prepared.graph.ops
    if loader.device not in index:
        raise InputError(f'loader.device: no device named "{loader.device}"')
    device = index[loader.device]
    if not prepared.cluster.devices[device].runs_ops:
        raise InputError(f'loader.device: "{loader.device}" is a switch')
    sizes = {
        i: sum(tensor.bytes for tensor in op.outputs)
        for i, op in enumerate(ops)
        if traits_of(op.kind).leaf == "input"
    }
    if not sizes:
        raise InputError("loader: the graph has no op of kind input, whose batch it could make")
    duration, whole = prepared.duration.copy(), max(sum(sizes.values()), 1)
    moved = list(placement)
    for i, size in sizes.items():
        moved[i] = device
        duration[i, device] = picoseconds(Fraction(loader.time) * size / whole)
    return prepared.lasting(duration), moved


def sent_once(
    across: Sequence[tuple[int, int]], graph: Graph, placement: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The edges to the next step (op, op that waits for it) where inputs are loaded: the next batch
    waits for the first op of each device that reads this one, since later ones read its copy there.
    """
    first: dict[tuple[int, int], int] = {}
    for op, waits in across:
        reader = placement[op], waits
        first[reader] = min(op, first.get(reader, op))

    def holds(op: int, waits: int) -> bool:
        is_input = waits < len(graph.ops) and traits_of(graph.ops[waits].kind).leaf == "input"
        return not is_input or first[placement[op], waits] == op

    return tuple(edge for edge in across if holds(*edge))
