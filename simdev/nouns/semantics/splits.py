"""The axes along which an op may be split, the kind of each split, and the boxes of the shards.

SOAP (Jia et al., "Beyond Data and Model Parallelism for Deep Neural Networks", MLSys 2019, section
4) names the splits of an output axis: ``sample`` on the sample axis, ``parameter`` where the split
cuts a weight too, else ``attribute``. A split of an axis over which the output is reduced makes
partial results: ``reduction`` (Tofu's partition-n-reduce, Wang et al., EuroSys 2019, section 3.1).

Whether one kind of op may be split along an axis is a field of its description (``Axis.split``,
``sample``, ``parameters``, ``updated`` in ``simdev/nouns/semantics/description.py``), written in
``simdev/nouns/semantics/kinds/``; this module has the rules for all kinds.

Callers: ``simdev/nouns/structure.py`` (``splits`` of an op of a graph, with the weights of the
graph), ``simdev/nouns/strategy/placement.py`` (``require_degrees``), ``simdev/files/strategy.py``,
``simdev/lowering/partition/`` (``geometry.py``, ``cuts.py``, ``sums.py``, ``short.py``),
``simdev/search/soap/`` (``layers.py``, ``exhaustive.py``, ``optcnn.py``) and
``simdev/search/tofu/plan.py``. Part i of ``boxes`` goes to device i of a ``Configuration``, so the
order of boxes is part of saved strategies; ``simdev/lowering/partition/cuts.py`` and
``simdev/oracle/splits/blocks.py`` write the same order again. A new ``Effect`` needs its transfers
in ``simdev/lowering/partition/``, its cells in ``simdev/oracle/splits/blocks.py``, its cost in
``simdev/search/soap/optcnn.py``, ``simdev/search/soap/exhaustive.py`` (``_is_whole``) and
``simdev/search/tofu/plan.py``, and a line of ``docs/reference/strategies.md``. Tests:
``tests/lowering/test_cuts.py``, ``tests/semantics/test_semantics_splits.py``,
``test_semantics_grids.py``, ``test_semantics_torch.py``, and the laws over all kinds in
``test_semantics.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Literal

from ...ground.errors import InputError, refuse
from .description import Axis, Index, Interval
from .registry import Semantics

_CACHED = 16_384

SplitKind = Literal["sample", "attribute", "parameter", "reduction"]
Effect = Literal["concatenate", "reduce", "replicate"]


@dataclass(frozen=True, slots=True)
class Split:
    """An axis that may be split, its number of points, and the kind of the split.

    ``effects`` has one entry for each output: its parts are put side by side ("concatenate"), are
    partial results ("reduce"), or are all the same ("replicate").
    """

    axis: str
    size: int
    kind: SplitKind
    effects: tuple[Effect, ...]


def splits(
    semantics: Semantics, parameters: Collection[int] = (), gradients: Collection[int] = ()
) -> tuple[Split, ...]:
    """The axes that may be split, axes of the outputs first.

    ``parameters`` are numbers of operands that the graph knows as weights, ``gradients`` numbers of
    outputs that it knows as gradients of weights. They are added to the operands and outputs that
    the description of the kind names as such; numbers that the op does not have are ignored.
    """
    return _splits(semantics, frozenset(parameters), frozenset(gradients))


@lru_cache(_CACHED)
def _splits(
    semantics: Semantics, parameters: frozenset[int], gradients: frozenset[int]
) -> tuple[Split, ...]:
    weights = _weight_axes(semantics, parameters, gradients)
    sample = _sample_axis(semantics)
    splitting = []
    for axis in semantics.axes:
        effects = effects_of(semantics, axis.name)
        if (
            axis.split
            and axis.size > 1
            and _made_apart(semantics, axis)
            and _matters(semantics, axis, effects)
        ):
            splitting.append(
                Split(axis.name, axis.size, _kind(axis.name, effects, weights, sample), effects)
            )
    return tuple(splitting)


@lru_cache(_CACHED)
def effects_of(semantics: Semantics, axis: str) -> tuple[Effect, ...]:
    """The effect on each output of a split of an axis."""
    effects: list[Effect] = []
    for output, dims in zip(semantics.description.outputs, semantics.makes, strict=True):
        if any(axis in names for _, names, _ in dims):
            effects.append("concatenate")
        else:
            effects.append(
                "reduce" if any(other.name == axis for other in output.over) else "replicate"
            )
    return tuple(effects)


@lru_cache(_CACHED)
def output_axes(semantics: Semantics, output: int = 0) -> tuple[str | None, ...]:
    """For each dimension of an output the axis that cuts it; None where no axis does.

    Where several axes are merged into one dimension, only the outermost cuts it. SOAP and Tofu
    write a partition as degrees of dimensions: this makes them degrees of axes.
    """
    cut_by: list[str | None] = []
    for index, names, _ in semantics.makes[output]:
        outer = (
            a.name
            for a in semantics.axes
            if a.name in names and index is not None and _is_outermost(index, a)
        )
        cut_by.append(next(outer, None))
    return tuple(cut_by)


def _kind(
    axis: str, effects: tuple[Effect, ...], weights: frozenset[str], sample: str | None
) -> SplitKind:
    # The first output decides: others add to it, as the means of a norm and the indices of a
    # maximum do.
    if effects and effects[0] == "reduce":
        return "reduction"
    if axis in weights:
        return "parameter"
    return "sample" if axis == sample else "attribute"


def _weight_axes(
    semantics: Semantics, parameters: Collection[int], gradients: Collection[int]
) -> frozenset[str]:
    of = semantics.description
    weights = (semantics.reads, {*of.parameters, *parameters})
    derived = (semantics.makes, {*of.gradients, *gradients})
    chosen = (t[i] for t, numbers in (weights, derived) for i in numbers if i < len(t))
    return frozenset(name for dims in chosen for _, names, _ in dims for name in names)


def _sample_axis(semantics: Semantics) -> str | None:
    """The sample axis: the one that the description names, else the first axis in the first
    dimension of the first output.
    """
    named = semantics.description.sample
    if named != "":
        return named
    for _, names, _ in semantics.makes[0][:1] if semantics.makes else ():
        return next((axis.name for axis in semantics.axes if axis.name in names), None)
    return None


def _matters(semantics: Semantics, axis: Axis, effects: tuple[Effect, ...]) -> bool:
    """Whether shards along the axis differ: the axis cuts an output or an operand that is updated
    in place, or an output is reduced over it.
    """
    updated = (names for i in semantics.description.updated for _, names, _ in semantics.reads[i])
    return any(effect != "replicate" for effect in effects) or any(
        axis.name in names for names in updated
    )


def _made_apart(semantics: Semantics, axis: Axis) -> bool:
    """Whether each part of the axis makes a box of every output.

    Where a dimension merges several axes into one index, only a part of the outermost axis is one
    interval of the dimension; a part of an inner axis is many.
    """
    return all(
        _is_outermost(index, axis)
        for dims in semantics.makes
        for index, names, _ in dims
        if index is not None and axis.name in names
    )


def _is_outermost(index: Axis | Index, axis: Axis) -> bool:
    """Whether the axis has the largest factor in the index, axes of one point left aside."""
    terms = index.terms
    factors = {
        part.name: (abs(factor), part.size) for part, factor in terms if isinstance(part, Axis)
    }
    if axis.name not in factors:
        return False
    stride = factors[axis.name][0]
    return all(
        factor < stride or size == 1
        for name, (factor, size) in factors.items()
        if name != axis.name
    )


@lru_cache(_CACHED)
def parts_of(size: int, degree: int) -> tuple[Interval, ...]:
    """``degree`` parts of [0, size) whose sizes differ by one at most.

    The ends are rounded up, so of two uneven parts the first is the larger.
    """
    ends = [-(-i * size // degree) for i in range(degree + 1)]
    return tuple(pairwise(ends))


def boxes(
    semantics: Semantics, degrees: Mapping[str, int], even: bool = True
) -> tuple[dict[str, Interval], ...]:
    """The boxes of all shards, by axis the interval of each; the last axis of the op runs fastest.

    ``degrees`` are the numbers of parts by axis, 1 where an axis is missing. Raises InputError, as
    ``require_degrees`` does.
    """
    require_degrees(semantics, degrees, even)
    allowed = {split.axis: split.size for split in splits(semantics)}
    # In the op's order of axes: part i is the same box however a file orders the degrees.
    names = [axis.name for axis in semantics.axes if degrees.get(axis.name, 1) > 1]
    return tuple(
        dict(zip(names, point, strict=True))
        for point in product(*(parts_of(allowed[n], degrees[n]) for n in names))
    )


def require_degrees(semantics: Semantics, degrees: Mapping[str, int], even: bool = True) -> None:
    """Raise InputError where an axis is not known or cannot be split, or a degree is no whole
    number from 1 to its size, or (``even``) does not divide it.
    """
    allowed = {split.axis: split.size for split in splits(semantics)}
    refuse(_degree_problems(semantics, allowed, degrees, even))


def _degree_problems(
    semantics: Semantics, allowed: Mapping[str, int], degrees: Mapping[str, int], even: bool
) -> Iterator[str]:
    known = {axis.name: axis.size for axis in semantics.axes}
    for name, degree in degrees.items():
        if name not in known:
            yield (
                f'axis "{name}": kind "{semantics.kind}" has none of this name; it has '
                f"{', '.join(known)}"
            )
        elif isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
            yield f'axis "{name}": the degree must be a whole number >= 1, got {degree!r}'
        elif degree > 1 and name not in allowed:
            whole = (
                "it has one point"
                if known[name] == 1
                else f'kind "{semantics.kind}" needs all of it'
            )
            yield f'axis "{name}": cannot be split: {whole}'
        elif degree > known[name]:
            yield f'axis "{name}": {degree} parts of {known[name]} points'
        elif even and known[name] % degree:
            yield f'axis "{name}": degree {degree} does not divide {known[name]}'


def steps(workers: int) -> tuple[int, ...]:
    """The number of groups that each of Tofu's steps makes: the prime factors of ``workers``,
    largest first.

    Each step divides the workers of a group into smaller groups, and cuts every tensor along one
    dimension among them (EuroSys 2019, section 5). Raises InputError below 1.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers: must be a whole number >= 1, got {workers!r}")
    factors, factor, left = list[int](), 2, workers
    while left > 1:
        # A remainder without a factor up to its root is prime.
        if factor * factor > left:
            factor = left
        while left % factor == 0:
            factors.append(factor)
            left //= factor
        factor += 1
    return tuple(reversed(factors))
