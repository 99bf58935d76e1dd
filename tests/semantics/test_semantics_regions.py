"""Regions that shards need, against brute force over indices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from intervals import Interval, intervals
from simdev.nouns.semantics import Axis, Region, input_regions, semantics_of
from simdev.nouns.semantics.description import EMPTY, Index, axes_of, clipped_interval, interval_of


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


def ends(values: Iterable[int]) -> Interval | None:
    taken = set(values)
    return (min(taken), max(taken) + 1) if taken else None


def box_of(**parts: Interval) -> dict[str, Interval]:
    return dict(parts)


def attrs_of(both: tuple[Window, Window], kernel: bool = False) -> dict[str, Any]:
    attrs = {name: [getattr(w, name) for w in both] for name in ("stride", "padding", "dilation")}
    return attrs | ({"kernel_size": [w.kernel for w in both]} if kernel else {})


def region_of(parts: list[Interval | None]) -> Region | None:
    known = [part for part in parts if part is not None]
    return tuple(known) if len(known) == len(parts) else None


@settings(max_examples=300, deadline=None)
@given(windows(), windows())
def test_a_convolution_reads_what_brute_force_finds(h: Window, w: Window) -> None:
    x, weight, y = (2, 3, h.size, w.size), (4, 3, h.kernel, w.kernel), (2, 4, h.made, w.made)
    semantics = semantics_of("conv2d", attrs_of((h, w)), [x, weight], [y])
    regions = input_regions(semantics, box_of(p=h.part, q=w.part))
    assert regions == (
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
    regions = input_regions(
        semantics_of("conv2d_backward_input", attrs, [y, weight], [x]), box_of(h=h.read, w=w.read)
    )
    assert regions[0] == region_of([(0, 2), (0, 4), reaching(h), reaching(w)])
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
    regions = input_regions(semantics_of(kind, attrs, [x], [y]), box_of(p=h.part, q=w.part))
    assert regions[0] == region_of([(0, 2), (0, 3), touched(h), touched(w)])
    operands = [y, x, y] if kind == "max_pool2d" else [y, x]
    backward = input_regions(
        semantics_of(f"{kind}_backward", attrs, operands, [x]), box_of(h=h.read, w=w.read)
    )
    wanted = region_of([(0, 2), (0, 3), reaching(h), reaching(w)])
    # Of x, whose shape is asked for alone, a part reads what it makes the gradient of.
    own = region_of([(0, 2), (0, 3), h.read, w.read])
    assert backward == ((wanted, own, wanted) if kind == "max_pool2d" else (wanted, own))


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
    regions = input_regions(
        semantics_of("conv1d", attrs, [x, weight], [y]), {"p": window.part, "r": taps}
    )
    positions = (window.position(p, r) for p in range(*window.part) for r in range(*taps))
    wanted = ends(i for i in positions if 0 <= i < window.size)
    assert regions[0] == region_of([(0, 1), (0, 1), wanted])


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
    taken = [value for point in points if (value := values(index, point)) is not None]
    start, stop = interval_of(index, box)
    assert all(start <= value < stop for value in taken)
    inside = ends(value for value in taken if 0 <= value < size)
    low, high = clipped_interval(index, size, box)
    if inside is not None:
        assert low <= inside[0]
        assert high >= inside[1]
    if all(isinstance(part, Axis) for part, _ in index.terms):
        assert (low, high) == (inside or EMPTY)
