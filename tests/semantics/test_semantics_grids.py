"""Shards of a grid, dimension by dimension, are those of its boxes one by one."""

from __future__ import annotations

from itertools import combinations

import pytest

from op_examples import semantics_of_example
from simdev.nouns.semantics import Shards, boxes, kinds, semantics_of, shard_of, shards_of, splits
from simdev.nouns.semantics.registry import Semantics


def require_equal(semantics: Semantics, degrees: dict[str, int]) -> None:
    grid = boxes(semantics, degrees, even=False)
    shards = [shard_of(semantics, box) for box in grid]
    one_by_one = [tuple(getattr(shard, name) for name in Shards._fields) for shard in shards]
    assert list(zip(*shards_of(semantics, grid), strict=True)) == one_by_one, degrees


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_grids_of_every_kind(kind: str) -> None:
    """One axis cut in two, and the first two with parts that are not equal."""
    semantics = semantics_of_example(kind)
    every = splits(semantics)
    for split in every:
        require_equal(semantics, {split.axis: 2})
    require_equal(semantics, {split.axis: min(split.size, 3) for split in every[:2]})


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(
    "kind", ["conv2d", "conv2d_backward_input", "conv2d_backward_weight", "max_pool2d"]
)
def test_grids_of_windows(kind: str, stride: int, dilation: int) -> None:
    """Halos, padding and gaps: parts at the edges are others than those inside."""
    x, weight, made = (4, 6, 17, 16), (8, 6, 3, 3), (17 + 2 - 2 * dilation - 1) // stride + 1
    y = (4, 8, made, (16 + 2 - 2 * dilation - 1) // stride + 1)
    attrs = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [dilation] * 2}
    operands, outputs = {
        "conv2d": ([x, weight], [y]),
        "conv2d_backward_input": ([y, weight], [x]),
        "conv2d_backward_weight": ([y, x], [weight]),
        "max_pool2d": ([x], [(4, 6, *y[2:])]),
    }[kind]
    attrs |= {"kernel_size": [3, 3]} if kind == "max_pool2d" else {}
    semantics = semantics_of(kind, attrs, operands, outputs)
    every = splits(semantics)
    assert len(every) >= 3
    for some in combinations(every, min(3, len(every))):
        require_equal(
            semantics,
            {split.axis: min(d, split.size) for d, split in zip((2, 3, 4), some, strict=False)},
        )
