"""Tensors stored otherwise than their op makes them (Tofu's partition of a tensor): parts in
between that cost nothing.

Partial results are added up where the stored parts lie (Wang et al., EuroSys 2019, section 3.1:
output reduction).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from ...errors import InputError
from ...semantics import Region, parts_of
from .layout import Addends, Copy, Draft, Grid, Place, nearest
from .sums import adder

if TYPE_CHECKING:
    from ...structure import TensorOf
    from .sharding import Sharding


def stored_grid(sharding: Sharding, tensor: TensorOf, degrees: Mapping[int, int]) -> Grid:
    """The grid in which a tensor is stored, on the devices of its op. Raises InputError."""
    made = sharding.layouts[tensor]
    assert isinstance(made, Grid)
    shape = sharding.tensor(tensor).shape
    require_degrees(sharding, tensor, degrees)
    dims = tuple(parts_of(extent, degrees.get(d, 1)) for d, extent in enumerate(shape or ()))
    devices = list(dict.fromkeys(draft.device for draft in sharding.drafts[tensor[0]]))
    count = prod(map(len, dims))
    if count % len(devices) and len(devices) % count:
        name = sharding.graph.ops[tensor[0]].name
        raise InputError(
            f'tensors["{name}:{tensor[1]}"]: {count} parts on the {len(devices)} '
            f'devices of op "{name}": '
            "one number must divide the other"
        )
    cells: dict[Place, Addends] = {}
    places = list(product(*(range(len(intervals)) for intervals in dims)))
    for number, place in enumerate(places):
        region = tuple(intervals[at] for intervals, at in zip(dims, place, strict=True))
        cells[place] = [
            [_part(sharding, tensor, made, region, devices[number * len(devices) // count])]
        ]
    return Grid(dims, cells, made.reducer)


def _part(sharding: Sharding, tensor: TensorOf, made: Grid, region: Region, device: int) -> Copy:
    """What holds one stored region: its maker where that lies there already, else a part of its
    own.
    """
    pieces = list(made.overlapping(region))
    if made.addends > 1:
        copy = adder(sharding, tensor, made, range(made.addends), region, device, "stored")
    else:
        own = nearest(pieces[0][1][0], device) if len(pieces) == 1 else None
        if own is not None and own.device == device and own.draft.regions[own.base][1] == region:
            return own
        copy = Copy(
            sharding.draft(tensor, "stored", device, "identity", [region], time=0), 0, device
        )

        def fill(draft: Draft) -> None:
            draft.inputs = [
                sharding.hand_out(nearest(cell[0], device), tensor, piece) for piece, cell in pieces
            ]

        copy.draft.fill = fill
    sharding.stored.setdefault(tensor[0], []).append(copy.draft)
    return copy


def require_degrees(sharding: Sharding, tensor: TensorOf, degrees: Mapping[int, int]) -> None:
    """Raise InputError for dimensions that are not there and degrees that do not divide."""
    op = sharding.graph.ops[tensor[0]]
    shape = sharding.tensor(tensor).shape
    where, problems = f'tensors["{op.name}:{tensor[1]}"]', []
    for dimension, degree in degrees.items():
        if shape is None or not 0 <= dimension < len(shape):
            problems.append(f'{where}: op "{op.name}": the tensor has no dimension {dimension}')
        elif (
            isinstance(degree, bool)
            or not isinstance(degree, int)
            or degree < 1
            or shape[dimension] % degree
        ):
            problems.append(
                f'{where}: op "{op.name}": dimension {dimension}: degree {degree} does '
                f"not divide {shape[dimension]}"
            )
    if problems:
        raise InputError(problems)
