"""Where samples lie in a tensor that is seen through a view: by brute force over its elements."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from intervals import intervals
from simdev.nouns.semantics import Samples, samples_seen
from simdev.nouns.semantics.views import BatchView, batch_region

Shape = tuple[int, ...]


class Tensor:
    """A tensor in memory: its factors, of which some are its samples, and how they are merged into
    the dimensions of the tensor, in another order than in the memory.
    """

    def __init__(self, data: st.DataObject) -> None:
        sizes = st.sampled_from([1, 2, 3, 4])
        before, behind = (data.draw(st.lists(sizes, max_size=2)) for _ in range(2))
        samples = data.draw(st.sampled_from([[2], [4], [6], [2, 2], [2, 3]]))
        self.factors, first = (*before, *samples, *behind), len(before)
        self.last, self.number = first + len(samples), prod(samples)
        self.behind = prod(behind)
        # The dimensions in the order of the memory; the samples are in one.
        cuts = {c for c in self.cuts(data) if c <= first or c >= self.last}
        runs = [range(a, b) for a, b in pairwise([0, *sorted(cuts), len(self.factors)])]
        memory = [prod(self.factors[at] for at in run) for run in runs]
        self.order = tuple(data.draw(st.permutations(range(len(runs)))))
        self.shape = tuple(memory[self.order.index(d)] for d in range(len(runs)))
        (at,) = (k for k, run in enumerate(runs) if first in run)
        outer = prod(self.factors[runs[at].start : first])
        inner = prod(self.factors[self.last : runs[at].stop])
        self.held = Samples(self.order[at], outer, self.number, inner)

    def cuts(self, data: st.DataObject) -> set[int]:
        """Between which factors dimensions end."""
        return data.draw(st.sets(st.integers(1, max(1, len(self.factors) - 1)))) - {
            len(self.factors)
        }

    def sample_of(self, element: int) -> int:
        """The sample to which an element belongs, numbered in the memory."""
        return element // self.behind % self.number

    def place_of(self, element: int) -> Shape:
        """The element's place in the tensor, along the merged dimension samples first."""
        memory = tuple(self.shape[d] for d in self.order)
        place = np.unravel_index(element, memory)
        return numbered(
            tuple(int(place[self.order.index(d)]) for d in range(len(memory))), self.held
        )


def numbered(place: Shape, at: Samples) -> Shape:
    """A place with the points of the dimension of the samples numbered samples first."""
    outer, sample, inner = (
        int(n) for n in np.unravel_index(place[at.dimension], (at.outer, at.number, at.inner))
    )
    point = (sample * at.outer + outer) * at.inner + inner
    return (*place[: at.dimension], point, *place[at.dimension + 1 :])


def view_of(data: st.DataObject, tensor: Tensor) -> np.ndarray:
    """The elements of a view: some of the samples or all, factors merged anew, and exchanged."""
    whole = np.arange(prod(tensor.factors)).reshape(tensor.factors)
    if (
        tensor.last
        and tensor.factors[tensor.last - 1] == tensor.number
        and data.draw(st.booleans())
    ):
        kept = data.draw(st.sampled_from([n for n in range(2, tensor.number + 1)]))
        start = data.draw(st.integers(0, tensor.number - kept))
        whole = whole[(*[slice(None)] * (tensor.last - 1), slice(start, start + kept))]
    cuts = [0, *sorted(tensor.cuts(data)), len(tensor.factors)]
    shape = tuple(prod(whole.shape[a:b]) for a, b in pairwise(cuts))
    merged = whole.reshape(shape)
    merged = merged if np.shares_memory(whole, merged) else whole
    return merged.transpose(data.draw(st.permutations(range(merged.ndim))))


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_samples_are_seen_where_they_are(data: st.DataObject) -> None:
    tensor = Tensor(data)
    view = view_of(data, tensor)
    strides = tuple(step // view.itemsize for step in view.strides)
    seen = samples_seen(tensor.held, view.shape, tensor.shape, strides, tensor.order)
    if seen is None:
        return
    first = min(map(tensor.sample_of, view.ravel().tolist()))
    sizes = seen.outer, seen.number, seen.inner
    for place, element in np.ndenumerate(view):
        _, sample, _ = np.unravel_index(place[seen.dimension], sizes)
        assert sample == tensor.sample_of(int(element)) - first
    sliced = seen.number < tensor.number
    region = tuple(data.draw(intervals(extent)) for extent in view.shape)
    box = batch_region(
        region,
        view.shape,
        tensor.shape,
        strides,
        BatchView(seen, tensor.held, sliced, tensor.order),
    )
    if sliced:
        # Every worker slices its part of the batch: parts of the slice are read from theirs.
        size = seen.outer * seen.inner
        start, stop = region[seen.dimension][0] // size, -(-region[seen.dimension][1] // size)
        size = tensor.held.outer * tensor.held.inner
        low, high = box[tensor.held.dimension]
        assert low // size <= start * tensor.number // seen.number
        assert -(-high // size) >= -(-stop * tensor.number // seen.number) - 1
        return
    read = [
        int(element)
        for place, element in np.ndenumerate(view)
        if inside(numbered(place, seen), region)
    ]
    assert all(inside(tensor.place_of(element), box) for element in read)


def inside(place: Shape, region: tuple[tuple[int, int], ...]) -> bool:
    return all(a <= point < b for point, (a, b) in zip(place, region, strict=True))


def test_a_batch_that_a_view_parts_is_no_slice_of_it() -> None:
    """Of eight samples seen as four pairs the second of each are no half of the batch."""
    held = Samples(0, 1, 8, 1)
    assert samples_seen(held, (4, 2, 3), (8, 3), (6, 3, 1), ()) is None
    assert samples_seen(held, (2, 3), (8, 3), (3, 1), ()) == Samples(0, 1, 2, 1)
