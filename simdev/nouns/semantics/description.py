"""The description of an op: how each dimension of its operands and outputs is indexed.

An axis is an index variable that runs over [0, size). An expression is a sum of multiples of axes
and a constant. A part of it may be divided: grouped channels and reshapes use ``//`` and ``%`` by a
whole number; the gradient of a strided window uses ``exact_div``, which counts only the points
where the division leaves no remainder.

The interval of an expression follows from the intervals of its axes. Its lower end uses the lower
end of each axis with a positive factor, and the upper end of each axis with a negative factor (Wang
et al., "Supporting Very Large Models using Automatic Dataflow Graph Partitioning", EuroSys 2019,
section 4.2; there a negative factor must swap the ends).

After Tofu's TDL (section 4.1 there): index variables give an output element and the input elements
that it needs. out[b, co, x] = Sum over ci, dx of data[b, ci, x + dx] * filters[ci, co, dx] reads

    b, co, x = axes("b co x", out)
    ci, dx = axes("ci dx", (filters[0], filters[2]))
    Description(
        outputs=(Output((b, co, x), over=(ci, dx)),),
        inputs=(Access((b, ci, x + dx)), Access((ci, co, dx))),
        flops=(per(2, b, co, x, ci, dx),),
    )

Families in ``kinds`` write descriptions; ``registry``, ``regions``, ``splits`` and ``work`` read
them. Nothing else interprets an index expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, Final, Literal

Interval = tuple[int, int]
"""Start and stop, half open."""

Region = tuple[Interval, ...]
"""One interval for each dimension of a tensor."""

Box = Mapping[str, Interval]
"""Intervals of axes by name; an axis that is missing runs over its whole size."""

EMPTY: Final = (0, 0)
# window positions that are tried one by one for exact ends; beyond it the ends may be too wide
_MAX_ENUMERATED = 256


class Expression:
    """A sum: ``offset`` + the sum of ``terms``, each a factor times an axis or a divided part.

    ``+ - * // %`` with whole numbers, and ``+ -`` with other expressions, give an Index.
    """

    __slots__ = ()

    @property
    def terms(self) -> Terms:
        """The parts of the sum, each with its factor."""
        raise NotImplementedError

    @property
    def offset(self) -> int:
        """The constant of the sum."""
        return 0

    def __add__(self, other: Expression | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.offset + other)
        factors = dict(self.terms)
        for part, factor in other.terms:
            factors[part] = factors.get(part, 0) + factor
        terms = tuple([(part, factor) for part, factor in factors.items() if factor])
        return Index(terms, self.offset + other.offset)

    __radd__ = __add__

    def __sub__(self, other: Expression | int) -> Index:
        return self + other * -1

    def __rsub__(self, other: int) -> Index:
        return self * -1 + other

    def __mul__(self, factor: int) -> Index:
        terms = tuple([(part, count * factor) for part, count in self.terms]) if factor else ()
        return Index(terms, self.offset * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return self._divided(divisor, "floor")

    def __mod__(self, divisor: int) -> Index:
        return self._divided(divisor, "rest")

    def exact_div(self, divisor: int) -> Index:
        """The quotient at the points where the division leaves no remainder; other points read
        nothing.
        """
        return self * 1 if divisor == 1 else self._divided(divisor, "exact")

    def _divided(self, divisor: int, kind: Literal["floor", "rest", "exact"]) -> Index:
        return Index(((_Divided(self * 1, divisor, kind), 1),))


@dataclass(frozen=True, slots=True)
class Axis(Expression):
    """An index variable over [0, size): a sum of itself, once.

    ``split`` False: the axis cannot be cut, since a function needs the whole slice at once (the
    classes of a softmax).
    """

    name: str
    size: int
    split: bool = True

    @property
    def terms(self) -> Terms:
        """The axis itself, with factor 1."""
        return ((self, 1),)


@dataclass(frozen=True, slots=True)
class Index(Expression):
    """A sum of several terms, or of a single term that is not just an axis."""

    terms: Terms
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Divided:
    """A sum divided by a positive whole number: the quotient ("floor"), the remainder ("rest"), or
    the quotient only where there is no remainder ("exact").
    """

    inner: Index
    divisor: int
    kind: Literal["floor", "rest", "exact"]


Terms = tuple[tuple[Axis | _Divided, int], ...]


def axes_of(index: Expression) -> Iterator[Axis]:
    """The axes of an expression; an axis that occurs twice is given twice."""
    for part, _ in index.terms:
        if isinstance(part, Axis):
            yield part
        else:
            yield from axes_of(part.inner)


def interval_of(index: Expression, box: Box) -> Interval:
    """The smallest interval that holds every value of the expression on the box; EMPTY where there
    is no value.

    With divided parts the interval may be larger, never smaller.
    """
    low = high = index.offset
    for part, factor in index.terms:
        start, stop = (
            box.get(part.name, (0, part.size))
            if isinstance(part, Axis)
            else _divided_interval(part, box)
        )
        if start >= stop:
            return EMPTY
        # Intervals are half open, so the last value is stop - 1, which is multiplied.
        if factor >= 0:
            low, high = low + factor * start, high + factor * (stop - 1)
        else:
            low, high = low + factor * (stop - 1), high + factor * start
    return low, high + 1


def _divided_interval(part: _Divided, box: Box) -> Interval:
    start, stop = interval_of(part.inner, box)
    if start >= stop:
        return EMPTY
    divisor = part.divisor
    # From the first multiple of the divisor (rounded up) to the last (rounded down).
    if part.kind == "exact":
        return -(-start // divisor), (stop - 1) // divisor + 1
    first, last = start // divisor, (stop - 1) // divisor
    if part.kind == "floor":
        return first, last + 1
    # Within one period the remainders are an interval; over several any remainder is possible.
    return (start - first * divisor, stop - first * divisor) if first == last else (0, divisor)


def clipped_interval(index: Expression, size: int, box: Box) -> Interval:
    """The interval of the expression's values that lie in [0, size); EMPTY where there are none.

    Its ends are values of the expression as long as it is affine, perhaps divided exactly. Where a
    window with gaps reaches over the edge, or is divided by a stride, its positions are tried one
    by one.
    """
    start, stop = interval_of(index, box)
    if start >= 0 and stop <= size and all(isinstance(part, Axis) for part, _ in index.terms):
        return start, stop
    divisor, inner = _exactly_divided(index)
    # A sum without gaps takes every value between its ends, so clipping them is exact.
    if not _is_gapless(inner, box):
        ends = _exact_ends(inner, divisor, size, box)
        if ends is not None:
            return ends
    start, stop = max(start, 0), min(stop, size)
    return (start, stop) if start < stop else EMPTY


def span_of(index: Expression, box: Box) -> int:
    """The number of positions that a kernel walks over: the length of the interval, with positions
    outside of the tensor.

    For an exact quotient it is the largest number over all alignments of the stride: parts of equal
    size run the same kernel, however they are aligned.
    """
    divisor, inner = _exactly_divided(index)
    if divisor > 1:
        return -(-span_of(inner, box) // divisor)
    start, stop = interval_of(index, box)
    return stop - start


def _exactly_divided(index: Expression) -> tuple[int, Expression]:
    """The divisor and dividend of an exact quotient; 1 and the expression itself for others."""
    if len(index.terms) == 1 and not index.offset:
        part, factor = index.terms[0]
        if isinstance(part, _Divided) and part.kind == "exact" and factor == 1:
            return part.divisor, part.inner
    return 1, index


def _is_gapless(index: Expression, box: Box) -> bool:
    """Whether a sum of axes takes every value of its interval: each step is at most as long as the
    reach of all shorter steps.
    """
    steps = []
    for part, factor in index.terms:
        if not isinstance(part, Axis):
            return False
        start, stop = box.get(part.name, (0, part.size))
        steps.append((abs(factor), stop - start - 1))
    reach = 1
    for step, count in sorted(steps):
        if step > reach or count < 0:
            return False
        reach += step * count
    return True


def _exact_ends(inner: Expression, divisor: int, size: int, box: Box) -> Interval | None:
    """The interval of the values of a quotient in [0, size): the longest axis is solved as a
    progression, the others are enumerated. None where that would take too long.
    """
    ranges = []
    for part, factor in inner.terms:
        if not isinstance(part, Axis):
            return None
        ranges.append((factor, range(*box.get(part.name, (0, part.size)))))
    if not ranges or any(not values for _, values in ranges):
        return EMPTY if ranges else None
    # With a divisor only an axis of factor 1 meets every remainder; else the longest axis saves
    # most points.
    ranges.sort(key=lambda item: (abs(item[0]) == 1 if divisor > 1 else True, len(item[1])))
    factor, values = ranges.pop()
    if (divisor > 1 and abs(factor) != 1) or prod(
        len(others) for _, others in ranges
    ) > _MAX_ENUMERATED:
        return None
    ends = sorted((factor * values[0] + inner.offset, factor * values[-1] + inner.offset))
    first, last = size, -1
    for point in product(*([count * value for value in others] for count, others in ranges)):
        low, high = _clip(ends[0] + sum(point), ends[1] + sum(point), abs(factor), divisor, size)
        if low <= high:
            first, last = min(first, low), max(last, high)
    return (first, last + 1) if first <= last else EMPTY


def _clip(low: int, high: int, step: int, divisor: int, size: int) -> tuple[int, int]:
    """First and last value in [0, size) of low, low + step, ..., high, each divided exactly."""
    if divisor > 1:
        return max(-(-low // divisor), 0), min(high // divisor, size - 1)
    # The first value at or above 0, and the last below ``size``, are whole steps away.
    if low < 0:
        low += -(low // step) * step
    if high >= size:
        high -= -((size - 1 - high) // step) * step
    return low, high


Shape = tuple[int, ...]
Entry = Axis | Index | int | None
"""The index of one dimension: an axis, an expression, a constant, or None for all of it."""

ALL: Final = None
"""The entry of a dimension that every point needs whole."""

_CACHED = 4096

Term = tuple[int | Fraction, tuple[Axis, ...]]
"""A number of operations at each point of some axes."""


def axes(names: str, sizes: Sequence[int], split: bool = True) -> tuple[Axis, ...]:
    """One axis for each name in ``names``, split at blanks. Raises ValueError for other counts."""
    return _axes(names, tuple(sizes), split)


# Ops of equal shapes share axes, so that comparing axes is mostly a comparison of addresses.
@lru_cache(_CACHED)
def _axes(names: str, sizes: Shape, split: bool) -> tuple[Axis, ...]:
    return tuple(Axis(name, size, split) for name, size in zip(names.split(), sizes, strict=True))


def per(count: int | Fraction, *points: Axis) -> Term:
    """A term: ``count`` operations at each point of the axes (a multiply-add counts two)."""
    return count, points


def indexed(entry: Entry, extent: int, box: Box) -> Interval:
    """The interval of a dimension that an entry reads or makes on a box, inside the tensor."""
    if entry is None:
        return 0, extent
    return clipped_interval(Index((), entry) if isinstance(entry, int) else entry, extent, box)


@dataclass(frozen=True, slots=True)
class Access:
    """The reading of one operand by an op.

    ``index``: one entry for each dimension. ``padded``: positions outside of the tensor read as
    zero. ``at_most``: elements are looked up, at most one for each point of these axes. ``read``
    False: the op waits for the operand but uses only its shape, so no byte is read. ``when``: the
    operand is read only at points where this expression is 0.
    """

    index: tuple[Entry, ...]
    padded: bool = False
    at_most: tuple[Axis, ...] | None = None
    read: bool = True
    when: Index | None = None

    @property
    def any_part(self) -> bool:
        """Whether any part of the operand will do: only its shape counts, and no axis is in it."""
        return not self.read and not any(isinstance(entry, Axis | Index) for entry in self.index)


@dataclass(frozen=True, slots=True)
class Output:
    """The making of one output by an op: indexed by ``index``, reduced over the axes ``over`` by
    ``reducer``.

    An axis in neither has no effect on the output: shards along it all make the same. ``dtype``
    None: the first operand's.
    """

    index: tuple[Entry, ...]
    over: tuple[Axis, ...] = ()
    reducer: Literal["sum", "max", "min", "prod"] = "sum"
    dtype: str | None = None


def same_attributes(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
    """The attributes of the whole op, unchanged in a shard."""
    return attrs


@dataclass(frozen=True, slots=True)
class ByExtents:
    """The attributes of a shard where they depend only on the lengths of its intervals, so that
    shards of equal extents have equal attributes.
    """

    local: Callable[[Mapping[str, Any], Box], Mapping[str, Any]]

    def __call__(self, attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        """The attributes of the shard of a box."""
        return self.local(attrs, box)


@dataclass(frozen=True, slots=True)
class Description:
    """The computation of one op in index expressions.

    ``parameters``: operands that are weights in every op of the kind; ``gradients``: outputs that
    are weights or gradients of weights. ``sample``: the name of the sample axis ("": the first axis
    of the first output; None: there is none). ``updated``: operands overwritten in place.
    ``states``: the number of tensors with operand 0's shape that are also read and written
    (optimizer state). ``moves`` False: a view, which reads and writes no byte. ``local``: the
    attributes of the op that a shard runs.
    """

    outputs: tuple[Output, ...]
    inputs: tuple[Access, ...]
    flops: tuple[Term, ...] = ()
    parameters: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    sample: str | None = ""
    updated: tuple[int, ...] = ()
    states: int = 0
    moves: bool = True
    # Closures of one describer are never equal, even where the descriptions are.
    local: Callable[[Mapping[str, Any], Box], Mapping[str, Any]] = field(
        default=same_attributes, compare=False
    )


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a describer: an op's attributes, operand shapes and output shapes."""

    attrs: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


Describer = Callable[[Call], Description]
