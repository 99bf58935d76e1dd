"""Ops that are cut axis by axis have the parts that they have shard by shard."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from op_examples import semantics_of_example
from simdev.lowering.partition.cuts import Cut, cells_of, cut_of, drafts_of, regions_read
from simdev.lowering.partition.geometry import Part, Reading, parts
from simdev.lowering.partition.layout import Copy, grid_of
from simdev.nouns.graph import Op
from simdev.nouns.semantics import kinds, semantics_of, splits
from simdev.nouns.semantics.registry import Semantics


def degrees_of(semantics: Semantics, most: int) -> list[tuple[tuple[str, int], ...]]:
    """One axis cut in several ways, and more of them, up to so many."""
    divisors = {
        split.axis: [d for d in (2, 3, 4) if split.size % d == 0] for split in splits(semantics)
    }
    return [
        tuple(zip(names, counts, strict=True))
        for some in range(1, most + 1)
        for names in combinations(divisors, some)
        for counts in product(*(divisors[name][: 3 - min(some, 2)] for name in names))
    ]


def require_equal(reading: Reading, cut: Cut, every: tuple[Part, ...]) -> None:
    """The parts, and what holds each region."""
    devices = [7 * number % len(every) for number in range(len(every))]
    drafts = drafts_of(cut, Op("op", "op"), 0, devices)
    assert [draft.box for draft in drafts] == [part.box for part in every]
    for part, run in zip(every, cut.same, strict=True):
        # Kernels are compared by identity: what they cost is known by them.
        assert part.kernel is cut.runs[run].kernel
        assert part.share == cut.runs[run].share
    for operand in range(len(cut.reads)):
        regions, numbers = regions_read(cut, operand)
        read = [regions[number] for number in numbers] or [None] * len(every)
        assert read == [part.needs[operand] for part in every]
    for k, made in enumerate(reading.made):
        held = [
            (part.makes[k] or (), part.addends[k], part.copies[k], Copy(draft, k, draft.device))
            for part, draft in zip(every, drafts, strict=True)
        ]
        grid = grid_of(held, "sum")
        assert all(draft.regions[k] == (k, row[0]) for draft, row in zip(drafts, held, strict=True))
        assert tuple(dim.intervals for dim in cut.makes[k]) == grid.dims, made
        assert cells_of(cut, k, drafts) == grid.cells
        assert cut.addends(k) == grid.addends


def require_known(semantics: Semantics, most: int) -> int:
    """How many ways to cut an op are told axis by axis, of those that there are."""
    strides = (None,) * len(semantics.inputs)
    reading, known = Reading(semantics, semantics.inputs, strides, semantics.outputs), 0
    for degrees in degrees_of(semantics, most):
        cut = cut_of(reading, degrees)
        if cut is not None:
            require_equal(reading, cut, parts(reading, degrees))
            known += 1
    return known


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_cuts_of_every_kind(kind: str) -> None:
    require_known(semantics_of_example(kind), 2)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["conv2d", "conv2d_backward_input", "conv2d_backward_weight"])
def test_cuts_of_windows(kind: str, stride: int) -> None:
    x, weight, y = (4, 6, 24, 24), (8, 6, 3, 3), (4, 8, 24 // stride, 24 // stride)
    attrs = {"stride": [stride] * 2, "padding": [1, 1]}
    operands, outputs = {
        "conv2d": ([x, weight], [y]),
        "conv2d_backward_input": ([y, weight], [x]),
        "conv2d_backward_weight": ([y, x], [weight]),
    }[kind]
    assert require_known(semantics_of(kind, attrs, operands, outputs), 3) >= 20
