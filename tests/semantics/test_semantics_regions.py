"""Regions that shards need, against brute force over indices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev.semantics import (
    Axis,
    Region,
    input_regions,
    semantics_of,
    sliced_strides,
    stored_region,
)
from simdev.semantics.index import EMPTY, Index, axes_of, clipped_interval, interval_of

Interval = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """One spatial dimension of a convolution or pool, and a part of its output (and of its
    input).
    """

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    part: Interval
    read: Interval

    @property
    def made(self) -> int:
        return (
            self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        ) // self.stride + 1

    def position(self, p: int, r: int) -> int:
        return p * self.stride - self.padding + r * self.dilation


@st.composite
def windows(draw: st.DrawFn, dilated: bool = True, most_padding: int = 4) -> Window:
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 3)) if dilated else 1
    padding = draw(st.integers(0, most_padding))
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    size = draw(st.integers(least, least + 20))
    bare = Window(size, kernel, stride, padding, dilation, (0, 0), (0, 0))
    return Window(
        size, kernel, stride, padding, dilation, draw(intervals(bare.made)), draw(intervals(size))
    )


@st.composite
def intervals(draw: st.DrawFn, size: int) -> Interval:
    start = draw(st.integers(0, size - 1))
    return start, draw(st.integers(start + 1, size))


def ends(values: Iterable[int]) -> Interval | None:
    found = set(values)
    return (min(found), max(found) + 1) if found else None


def box_of(**parts: Interval) -> dict[str, Interval]:
    return dict(parts)


def attrs_of(both: tuple[Window, Window], kernel: bool = False) -> dict[str, Any]:
    found = {name: [getattr(w, name) for w in both] for name in ("stride", "padding", "dilation")}
    return found | ({"kernel_size": [w.kernel for w in both]} if kernel else {})


def region_of(parts: list[Interval | None]) -> Region | None:
    known = [part for part in parts if part is not None]
    return tuple(known) if len(known) == len(parts) else None


@settings(max_examples=300, deadline=None)
@given(windows(), windows())
def test_a_convolution_reads_what_brute_force_finds(h: Window, w: Window) -> None:
    x, weight, y = (2, 3, h.size, w.size), (4, 3, h.kernel, w.kernel), (2, 4, h.made, w.made)
    semantics = semantics_of("conv2d", attrs_of((h, w)), [x, weight], [y])
    found = input_regions(semantics, box_of(p=h.part, q=w.part))
    assert found == (
        region_of([(0, 2), (0, 3), touched(h), touched(w)]),
        tuple((0, extent) for extent in weight),
    )


def touched(window: Window) -> Interval | None:
    positions = (window.position(p, r) for p in range(*window.part) for r in range(window.kernel))
    return ends(i for i in positions if 0 <= i < window.size)


@settings(max_examples=300, deadline=None)
@given(windows(), windows())
def test_the_gradient_of_a_convolution_reads_what_brute_force_finds(h: Window, w: Window) -> None:
    x, weight, y = (2, 3, h.size, w.size), (4, 3, h.kernel, w.kernel), (2, 4, h.made, w.made)
    attrs = attrs_of((h, w))
    found = input_regions(
        semantics_of("conv2d_backward_input", attrs, [y, weight], [x]), box_of(h=h.read, w=w.read)
    )
    assert found[0] == region_of([(0, 2), (0, 4), reaching(h), reaching(w)])
    part = input_regions(
        semantics_of("conv2d_backward_weight", attrs, [y, x], [weight]), box_of(p=h.part, q=w.part)
    )
    assert part == (
        ((0, 2), (0, 4), h.part, w.part),
        region_of([(0, 2), (0, 3), touched(h), touched(w)]),
    )


def reaching(window: Window) -> Interval | None:
    """Outputs that a part of the input feeds."""
    pairs = ((p, r) for p in range(window.made) for r in range(window.kernel))
    return ends(p for p, r in pairs if window.read[0] <= window.position(p, r) < window.read[1])


@settings(max_examples=200, deadline=None)
@given(
    windows(most_padding=2), windows(most_padding=2), st.sampled_from(["max_pool2d", "avg_pool2d"])
)
def test_pools_read_what_brute_force_finds(h: Window, w: Window, kind: str) -> None:
    x, y = (2, 3, h.size, w.size), (2, 3, h.made, w.made)
    attrs = attrs_of((h, w), kernel=True)
    found = input_regions(semantics_of(kind, attrs, [x], [y]), box_of(p=h.part, q=w.part))
    assert found[0] == region_of([(0, 2), (0, 3), touched(h), touched(w)])
    operands = [y, x, y] if kind == "max_pool2d" else [y, x]
    backward = input_regions(
        semantics_of(f"{kind}_backward", attrs, operands, [x]), box_of(h=h.read, w=w.read)
    )
    wanted = region_of([(0, 2), (0, 3), reaching(h), reaching(w)])
    assert backward == ((wanted, None, wanted) if kind == "max_pool2d" else (wanted, None))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_adaptive_pools_read_what_brute_force_finds(
    size: int, made: int, data: st.DataObject
) -> None:
    part, read = data.draw(intervals(made)), data.draw(intervals(size))
    window = [range(o * size // made, -(-(o + 1) * size // made)) for o in range(made)]
    x, y = (2, 3, size), (2, 3, made)
    semantics = semantics_of("adaptive_avg_pool1d", {"output_size": [made]}, [x], [y])
    assert input_regions(semantics, {"p": part})[0] == (
        (0, 2),
        (0, 3),
        ends(i for o in range(*part) for i in window[o]),
    )
    backward = semantics_of("adaptive_avg_pool1d_backward", {}, [y, x], [x])
    wanted = ends(o for o in range(made) for i in window[o] if read[0] <= i < read[1])
    assert input_regions(backward, {"h": read})[0] == ((0, 2), (0, 3), wanted)


@settings(max_examples=200, deadline=None)
@given(windows(), st.data())
def test_a_part_of_a_kernel_reads_what_brute_force_finds(
    window: Window, data: st.DataObject
) -> None:
    taps = data.draw(intervals(window.kernel))
    x, weight, y = (1, 1, window.size), (1, 1, window.kernel), (1, 1, window.made)
    attrs = {"stride": [window.stride], "padding": [window.padding], "dilation": [window.dilation]}
    found = input_regions(
        semantics_of("conv1d", attrs, [x, weight], [y]), {"p": window.part, "r": taps}
    )
    positions = (window.position(p, r) for p in range(*window.part) for r in range(*taps))
    wanted = ends(i for i in positions if 0 <= i < window.size)
    assert found[0] == region_of([(0, 1), (0, 1), wanted])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_groups_read_their_own_channels(data: st.DataObject) -> None:
    groups, inside, outside = (data.draw(st.integers(1, 4)) for _ in range(3))
    k = data.draw(intervals(groups * outside))
    x, weight, y = (1, groups * inside, 5), (groups * outside, inside, 3), (1, groups * outside, 3)
    semantics = semantics_of("conv1d", {"groups": groups}, [x, weight], [y])
    wanted = ends(channel // outside * inside + c for channel in range(*k) for c in range(inside))
    assert input_regions(semantics, {"k": k})[0] == ((0, 1), wanted, (0, 5))


# The interval arithmetic itself


@st.composite
def expressions(draw: st.DrawFn) -> Index:
    index = Index((), draw(st.integers(-5, 5)))
    for name in draw(st.permutations("abc"))[: draw(st.integers(1, 3))]:
        index = index + Axis(name, draw(st.integers(1, 6))) * draw(st.integers(-3, 3))
    form = draw(st.sampled_from(["affine", "floor", "rest", "exact", "nested"]))
    divisor = draw(st.integers(1, 4))
    if form == "floor":
        return index // divisor
    if form == "rest":
        return index % divisor
    if form == "nested":
        return (index // divisor) * 3 - Axis("d", 3)
    return index.exact_div(divisor) if form == "exact" else index


def values(index: Index, point: dict[str, int]) -> int | None:
    total = index.offset
    for part, factor in index.terms:
        if isinstance(part, Axis):
            total += factor * point[part.name]
            continue
        inner = values(part.inner, point)
        if inner is None or (part.kind == "exact" and inner % part.divisor):
            return None
        total += factor * (inner % part.divisor if part.kind == "rest" else inner // part.divisor)
    return total


@settings(max_examples=400, deadline=None)
@given(expressions(), st.integers(1, 12), st.data())
def test_intervals_hold_all_values_and_of_affine_ones_no_more(
    index: Index, size: int, data: st.DataObject
) -> None:
    axes = {axis.name: axis for axis in axes_of(index)}
    box = {name: data.draw(intervals(axis.size)) for name, axis in axes.items()}
    points: list[dict[str, int]] = [{}]
    for name, part in box.items():
        points = [{**point, name: i} for point in points for i in range(*part)]
    found = [value for point in points if (value := values(index, point)) is not None]
    start, stop = interval_of(index, box)
    assert all(start <= value < stop for value in found)
    inside = ends(value for value in found if 0 <= value < size)
    low, high = clipped_interval(index, size, box)
    if inside is not None:
        assert low <= inside[0]
        assert high >= inside[1]
    if all(isinstance(part, Axis) for part, _ in index.terms):
        assert (low, high) == (inside or EMPTY)


# Views


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
    for flat in range(prod_of(seen)):
        if all(a <= i < b for i, (a, b) in zip(unravel(flat, seen), region, strict=True)):
            assert all(a <= i < b for i, (a, b) in zip(unravel(flat, stored), held, strict=True))


def random_view(draw: np.random.Generator) -> tuple[tuple[int, ...], np.ndarray]:
    """A stored shape, and a view of the numbers of its elements: reshaped, cut, repeated,
    exchanged, selected.
    """
    factors = draw.integers(1, 5, draw.integers(1, 5)).tolist()
    stored, shape = (merged(factors, set(draw.integers(1, 5, 2).tolist())) for _ in range(2))
    view = np.arange(prod_of(stored)).reshape(shape)
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
        if view.shape == stored or not exchanged(view.shape, strides):
            continue
        count += 1
        starts = [int(draw.integers(0, extent)) for extent in view.shape]
        region = tuple(
            (a, int(draw.integers(a + 1, n + 1))) for a, n in zip(starts, view.shape, strict=True)
        )
        held = stored_region(region, view.shape, stored, strides)
        for flat in np.unique(view[tuple(slice(*interval) for interval in region)]).tolist():
            assert all(a <= i < b for i, (a, b) in zip(unravel(flat, stored), held, strict=True))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_region_of_a_part_holds_every_element(data: st.DataObject) -> None:
    """Dimensions are parted, cut with steps, selected from, and merged where that is a view."""
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))
    stored = merged(factors, data.draw(st.sets(st.integers(1, 4))))
    whole = np.arange(prod_of(stored)).reshape(factors)
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
        assert all(a <= i < b for i, (a, b) in zip(unravel(flat, stored), held, strict=True))


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


def exchanged(shape: tuple[int, ...], strides: list[int]) -> bool:
    wide = [step for step, extent in zip(strides, shape, strict=True) if extent > 1 and step]
    return wide != sorted(wide, reverse=True)


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
    return tuple(prod_of(tuple(factors[a:b])) for a, b in pairwise(bounds))


def prod_of(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def unravel(flat: int, shape: tuple[int, ...]) -> list[int]:
    found = []
    for extent in reversed(shape):
        flat, rest = divmod(flat, extent)
        found.append(rest)
    return found[::-1]


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
    plain = all(wanted[d] == prod_of(tuple(part[d + 1 :])) for d in wide)
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
