"""The description of an op: what its outputs are made of, one index expression a dimension.

After Tofu's TDL (Wang et al., EuroSys 2019, section 4.1): an output element is told by index
variables, and so is every input element that it needs. out[b, co, x] = Sum over ci, dx of data[b,
ci, x + dx] * filters[ci, co, dx] reads

    b, co, x = axes("b co x", out)
    ci, dx = axes("ci dx", (filters[0], filters[2]))
    Description(
        outputs=(Output((b, co, x), over=(ci, dx)),),
        inputs=(Access((b, ci, x + dx)), Access((ci, co, dx))),
        flops=(per(2, b, co, x, ci, dx),),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, Literal

from .index import Axis, Box, Index, Interval, clipped_interval

Shape = tuple[int, ...]
Entry = Axis | Index | int | None
"""How one dimension is indexed: an axis, an expression, a constant, or None for all of it."""

ALL: Final = None
"""Whole-axis access: any point needs all of this dimension."""

_CACHED = 4096

Term = tuple[int | Fraction, tuple[Axis, ...]]
"""So many operations at each point of these axes."""


def axes(names: str, sizes: Sequence[int], split: bool = True) -> tuple[Axis, ...]:
    """One axis a name, names parted by blanks. Raises ValueError where the counts differ."""
    return _axes(names, tuple(sizes), split)


# An op of a shape that was described before gets the same objects: comparing them is then a
# comparison of addresses.
@lru_cache(_CACHED)
def _axes(names: str, sizes: Shape, split: bool) -> tuple[Axis, ...]:
    return tuple(Axis(name, size, split) for name, size in zip(names.split(), sizes, strict=True))


def per(count: int | Fraction, *points: Axis) -> Term:
    """``count`` operations at each point of the axes (a multiply-add counts two)."""
    return count, points


def indexed(entry: Entry, extent: int, box: Box) -> Interval:
    """The interval that an entry reads or makes of a dimension on a box, inside the tensor."""
    if entry is None:
        return 0, extent
    return clipped_interval(Index((), entry) if isinstance(entry, int) else entry, extent, box)


@dataclass(frozen=True, slots=True)
class Access:
    """How an op reads one operand.

    ``index``: one entry a dimension. ``padded``: what lies outside of the tensor reads as zero.
    ``at_most``: the elements read are looked up, no more than the points of these axes. ``read``
    False: the op waits for it, but looks at its shape alone, so no byte of it is touched. ``when``:
    read only at points where this expression is 0.
    """

    index: tuple[Entry, ...]
    padded: bool = False
    at_most: tuple[Axis, ...] | None = None
    read: bool = True
    when: Index | None = None

    @property
    def any_part(self) -> bool:
        """Whether any part of the operand will do: the op looks at its shape alone, and no axis
        runs along it.
        """
        return not self.read and not any(isinstance(entry, Axis | Index) for entry in self.index)


@dataclass(frozen=True, slots=True)
class Output:
    """How an op makes one output: indexed by ``index``, reduced over the axes ``over`` by
    ``reducer``.

    An axis in neither does not matter to it: split along it, every shard makes the same. ``dtype``
    None: as the first operand.
    """

    index: tuple[Entry, ...]
    over: tuple[Axis, ...] = ()
    reducer: Literal["sum", "max", "min", "prod"] = "sum"
    dtype: str | None = None


def same_attributes(attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
    """The attributes of a shard where they are those of the op."""
    return attrs


@dataclass(frozen=True, slots=True)
class ByExtents:
    """Attributes of a shard that hang on how long its intervals are, not on where they lie, so that
    shards of equal extents have equal ones.
    """

    local: Callable[[Mapping[str, Any], Box], Mapping[str, Any]]

    def __call__(self, attrs: Mapping[str, Any], box: Box) -> Mapping[str, Any]:
        """The attributes of the shard of a box."""
        return self.local(attrs, box)


@dataclass(frozen=True, slots=True)
class Description:
    """What one op computes, in index expressions.

    ``parameters``: operands that are weights by the kind itself; ``gradients``: outputs that are
    weights or their gradients. ``sample``: name of the sample axis ("": the first axis of the first
    output; None: there is none). ``updated``: operands overwritten in place; ``states`` tensors
    like operand 0 are read and written beside (optimizer state). ``moves`` False: a view, no byte
    is touched. ``local``: the attributes of the op a shard runs.
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
    # Two closures of one describer are no equal objects, though the descriptions are equal.
    local: Callable[[Mapping[str, Any], Box], Mapping[str, Any]] = field(
        default=same_attributes, compare=False
    )


@dataclass(frozen=True, slots=True)
class Call:
    """What a describer is asked about: the op's attributes, the shapes of its operands and
    outputs.
    """

    attrs: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


Describer = Callable[[Call], Description]
