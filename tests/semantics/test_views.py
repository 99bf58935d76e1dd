"""Regions of stored tensors behind views, against brute force over elements."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervals import intervals
from simdev.nouns.semantics import sliced_strides, stored_region


def test_a_reshaped_operand_is_found_in_the_stored_tensor() -> None:
    assert stored_region(((0, 320), (0, 512)), (1280, 512), (20, 64, 512)) == (
        (0, 5),
        (0, 64),
        (0, 512),
    )
    assert stored_region(((2, 3), (0, 64), (0, 4)), (20, 64, 4), (1280, 4)) == ((128, 192), (0, 4))
    assert stored_region(((0, 8), (0, 6)), (8, 6), (8, 1, 6)) == ((0, 8), (0, 1), (0, 6))
    assert stored_region(((1, 2), (0, 3)), (4, 6), (4, 6)) == ((1, 2), (0, 3))


def test_slices_and_expanded_operands_take_what_is_known() -> None:
    assert stored_region(((0, 32), (0, 512)), (64, 512), (64, 2048)) == ((0, 32), (0, 2048))
    wide = stored_region(((0, 4), (0, 8), (0, 8)), (16, 8, 8), (16, 1, 1))
    assert wide == ((0, 4), (0, 1), (0, 1))
    assert stored_region(((0, 2), (0, 10)), (8, 10), (4, 8, 10)) == ((0, 4), (0, 8), (0, 10))


def test_exchanged_dimensions_are_taken_whole() -> None:
    assert stored_region(((0, 2), (0, 6)), (4, 6), (6, 4)) == ((0, 6), (0, 4))
    assert stored_region(((0, 2), (0, 4)), (4, 4), (4, 4), strides=[1, 4]) == ((0, 4), (0, 4))
    assert stored_region(((0, 2), (0, 4)), (4, 4), (4, 4), strides=[4, 1]) == ((0, 2), (0, 4))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_region_through_a_reshape_holds_every_element(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))
    seen, stored = (merged(factors, data.draw(st.sets(st.integers(1, 4)))) for _ in range(2))
    region = tuple(data.draw(intervals(extent)) for extent in seen)
    held = stored_region(region, seen, stored)
    for flat in range(prod(seen)):
        if all(a <= i < b for i, (a, b) in zip(np.unravel_index(flat, seen), region, strict=True)):
            assert all(
                a <= i < b for i, (a, b) in zip(np.unravel_index(flat, stored), held, strict=True)
            )


def random_view(draw: np.random.Generator) -> tuple[tuple[int, ...], np.ndarray]:
    """A stored shape, and a view of the numbers of its elements: reshaped, cut, repeated,
    exchanged, selected.
    """
    factors = draw.integers(1, 5, draw.integers(1, 5)).tolist()
    stored, shape = (merged(factors, set(draw.integers(1, 5, 2).tolist())) for _ in range(2))
    view = np.arange(prod(stored)).reshape(shape)
    if draw.random() < 0.5:
        view = view[tuple(slice(draw.integers(0, extent), None) for extent in shape)]
    if draw.random() < 0.3:
        view = np.broadcast_to(view[..., None], (*view.shape, 3))
    view = view.transpose(draw.permutation(view.ndim))
    return stored, view[0] if draw.random() < 0.3 and view.ndim > 1 else view


@pytest.mark.parametrize("seed", range(8))
def test_a_region_through_exchanged_dimensions_holds_every_element(seed: int) -> None:
    draw, count = np.random.default_rng(seed), 0
    while count < 100:
        stored, view = random_view(draw)
        strides = [step // view.itemsize for step in view.strides]
        pairs = zip(strides, view.shape, strict=True)
        wide = [step for step, extent in pairs if extent > 1 and step]
        if view.shape == stored or wide == sorted(wide, reverse=True):
            continue
        count += 1
        starts = [int(draw.integers(0, extent)) for extent in view.shape]
        region = tuple(
            (a, int(draw.integers(a + 1, n + 1))) for a, n in zip(starts, view.shape, strict=True)
        )
        held = stored_region(region, view.shape, stored, strides)
        for flat in np.unique(view[tuple(slice(*interval) for interval in region)]).tolist():
            assert all(
                a <= i < b for i, (a, b) in zip(np.unravel_index(flat, stored), held, strict=True)
            )


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_region_of_a_part_holds_every_element(data: st.DataObject) -> None:
    """Dimensions are parted, cut with steps, selected from, and merged where that is a view."""
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))
    stored = merged(factors, data.draw(st.sets(st.integers(1, 4))))
    whole = np.arange(prod(stored)).reshape(factors)
    view = whole[
        tuple(slice(*data.draw(intervals(n)), data.draw(st.integers(1, 2))) for n in factors)
    ]
    other = view.reshape(merged(view.shape, data.draw(st.sets(st.integers(1, 4)))))
    view = other if np.shares_memory(whole, other) else view
    view = view.squeeze(
        tuple(d for d, n in enumerate(view.shape) if n == 1 and data.draw(st.booleans()))
    )
    if not view.ndim or view.shape == stored:
        return
    strides = [step // view.itemsize for step in view.strides]
    region = tuple(data.draw(intervals(extent)) for extent in view.shape)
    held = stored_region(region, view.shape, stored, strides)
    for flat in np.unique(view[tuple(slice(*interval) for interval in region)]).tolist():
        assert all(
            a <= i < b for i, (a, b) in zip(np.unravel_index(flat, stored), held, strict=True)
        )


def test_a_part_is_followed_along_what_it_has_all_of() -> None:
    joint, third = (12, 96), (192 * 3, 96, 1)
    assert stored_region(((1, 2), (0, 6), (0, 32)), (2, 6, 32), joint, third) == ((6, 12), (0, 96))
    heads = (576, 8, 96, 1)
    assert stored_region(((1, 2), (0, 4), (0, 6), (0, 8)), (2, 4, 6, 8), joint, heads) == (
        (6, 12),
        (0, 96),
    )
    first = (64, 1)  # the first of eight rows of each of four samples
    assert stored_region(((1, 3), (0, 8)), (4, 8), (32, 8), first) == ((8, 24), (0, 8))
    assert stored_region(((2, 4), (1, 5)), (8, 10), (4, 8, 10), (10, 1)) == ((0, 4), (2, 4), (1, 5))
    assert stored_region(((8, 16), (0, 5)), (32, 5), (4, 8, 10), (10, 1)) == (
        (1, 2),
        (0, 8),
        (0, 10),
    )


def test_heads_of_attention_are_found_in_the_product_that_made_them() -> None:
    """[b, h, t, d] of [b * t, h * d] = [2 * 6, 4 * 8]; half the batch, one head, and a part of
    joint projections.
    """
    seen, strides = (2, 4, 6, 8), (192, 8, 32, 1)
    assert stored_region(((1, 2), (0, 4), (0, 6), (0, 8)), seen, (12, 32), strides) == (
        (6, 12),
        (0, 32),
    )
    assert stored_region(((0, 2), (1, 2), (0, 6), (0, 8)), seen, (12, 32), strides) == (
        (0, 12),
        (8, 16),
    )
    joint = (576, 8, 96, 1)  # one third of rows of 96
    assert stored_region(((1, 2), (0, 4), (0, 6), (0, 8)), seen, (2, 6, 96), joint) == (
        (1, 2),
        (0, 6),
        (0, 96),
    )
    own = (4, 6, 16)  # as its op stored it: with the batch in the middle
    assert stored_region(((1, 2), (0, 6), (0, 16)), own, own, (16, 64, 1)) == (
        (1, 2),
        (0, 6),
        (0, 16),
    )
    assert stored_region(((1, 2), (0, 6)), (4, 6), (4, 6), ("a", "b")) == ((1, 2), (0, 6))


def merged(factors: list[int], cuts: set[int]) -> tuple[int, ...]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(factors)), len(factors)]
    return tuple(prod(factors[a:b]) for a, b in pairwise(bounds))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_part_of_a_layout_is_that_of_a_tensor_of_its_own(data: st.DataObject) -> None:
    """Numpy's strides of an array with its dimensions exchanged, some of them repeated, and of a
    part of it.
    """
    shape = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    part = [data.draw(st.integers(1, extent)) for extent in shape]
    repeated = data.draw(st.sets(st.integers(0, len(shape) - 1), max_size=1))

    def strides(extents: list[int]) -> tuple[int, ...]:
        stored = [1 if d in repeated else extents[d] for d in order]
        seen = np.empty(stored, np.int8).transpose(np.argsort(order))
        return np.broadcast_to(seen, extents).strides

    found = sliced_strides(strides(shape), tuple(shape), tuple(part))
    wanted = strides(part)
    wide = [d for d, extent in enumerate(part) if extent > 1]
    plain = all(wanted[d] == prod(tuple(part[d + 1 :])) for d in wide)
    assert (found is None) == plain
    assert found is None or [found[d] for d in wide] == [wanted[d] for d in wide]


def test_what_lies_between_rows_stays_in_proportion() -> None:
    # every second pair of rows
    assert sliced_strides((64, 16, 1), (4, 2, 16), (2, 2, 16)) == (64, 16, 1)
    assert sliced_strides((64, 16, 1), (4, 2, 16), (4, 2, 8)) == (32, 8, 1)
    assert sliced_strides((16, 1), (4, 8), (4, 8)) == (16, 1)
    assert sliced_strides((8, 1), (4, 8), (2, 8)) is None
    # they tell nothing
    assert sliced_strides(None, (4,), (2,)) is sliced_strides((1, 1), (4,), (2,)) is None
    assert sliced_strides(("a",), (4,), (2,)) is None
    assert stored_region(((0, 1),), (4,), (4,), (1, 1)) == ((0, 1),)
