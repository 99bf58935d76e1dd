"""The caching allocator by hand, and against another one written the long way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_graphs import KiB, MiB
from simdev.nouns.memory import MemoryModel
from simdev.report.measures.footprint import (
    Allocator,
    AllocatorUse,
    Footprint,
    _Expandable,
    allocator_use,
)
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World


def serve(allocator: Allocator, *sizes: int) -> list[int]:
    return [allocator.allocate(size) for size in sizes]


def levels(allocator: Allocator) -> tuple[int, int, int]:
    return allocator.requested, allocator.allocated, allocator.reserved


def test_small_requests_share_segments_of_two_mebibytes() -> None:
    allocator = Allocator()
    serve(allocator, 1)
    assert levels(allocator) == (1, 512, 2 * MiB)
    serve(allocator, MiB)  # the rest is 1 MiB - 512 now
    assert levels(allocator) == (MiB + 1, MiB + 512, 2 * MiB)
    serve(allocator, MiB)
    assert levels(allocator) == (2 * MiB + 1, 2 * MiB + 512, 4 * MiB)
    serve(allocator, MiB - 512)  # the rest of the first segment, to the byte
    assert allocator.reserved == 4 * MiB


def test_large_requests_come_from_twenty_mebibytes_or_from_segments_of_their_own() -> None:
    allocator = Allocator()
    serve(allocator, MiB + 1)  # one byte too large for a small segment
    assert levels(allocator) == (MiB + 1, MiB + 512, 20 * MiB)
    serve(allocator, 10 * MiB)  # fits into the rest of 19 MiB - 512
    assert allocator.reserved == 20 * MiB
    serve(allocator, 10 * MiB - 512)  # does not fit into 9 MiB - 512, and is under 10 MiB
    assert allocator.reserved == 40 * MiB
    serve(allocator, 11 * MiB)
    assert allocator.reserved == 52 * MiB


def test_a_large_block_is_split_where_more_than_a_mebibyte_is_left() -> None:
    allocator = Allocator()
    serve(allocator, 19 * MiB)
    assert levels(allocator) == (19 * MiB, 20 * MiB, 20 * MiB)
    allocator = Allocator()
    serve(allocator, 19 * MiB - 512)
    assert levels(allocator) == (19 * MiB - 512, 19 * MiB - 512, 20 * MiB)


def test_freed_neighbours_merge() -> None:
    allocator = Allocator()
    first, second, third = serve(allocator, 4 * MiB, 4 * MiB, 4 * MiB)
    for address in (first, third, second):
        allocator.free(address)
    assert levels(allocator) == (0, 0, 20 * MiB)
    serve(allocator, 20 * MiB)
    assert allocator.reserved == 20 * MiB


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    allocator = Allocator()
    large, small = serve(allocator, 60 * MiB, 40 * MiB)
    allocator.free(large)
    allocator.free(small)
    assert serve(allocator, 40 * MiB, 60 * MiB) == [small, large]
    assert allocator.reserved == 100 * MiB


def test_for_want_of_memory_idle_segments_are_given_back() -> None:
    allocator = Allocator(40 * MiB)
    (address,) = serve(allocator, 30 * MiB)
    allocator.free(address)
    serve(allocator, 40 * MiB)
    assert (allocator.reserved, allocator.flushes, allocator.failures) == (40 * MiB, 1, 0)


def test_a_segment_in_use_is_not_given_back() -> None:
    """30 of 40 MiB are free, and yet 30 cannot be served: this is fragmentation."""
    allocator = Allocator(40 * MiB)
    first, second = serve(allocator, 20 * MiB, 20 * MiB)
    allocator.free(first)
    allocator.free(second)
    serve(allocator, 10 * MiB)
    serve(allocator, 30 * MiB)
    assert (allocator.flushes, allocator.failures) == (1, 1)


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = Allocator(expandable=True)
    serve(allocator, 1)
    assert allocator.reserved == 2 * MiB
    # 15 MiB of the first page and 3 of the second
    first, second = serve(allocator, 5 * MiB, 18 * MiB)
    assert allocator.reserved == 2 * MiB + 40 * MiB
    assert second == first + 5 * MiB
    assert allocator.allocated == 512 + 23 * MiB
    allocator.free(first)
    allocator.free(second)
    assert serve(allocator, 40 * MiB) == [first]
    assert allocator.reserved == 2 * MiB + 40 * MiB


def test_expandable_pages_in_between_are_unmapped_and_mapped_again() -> None:
    allocator = Allocator(80 * MiB, expandable=True)
    first, middle, last = serve(allocator, 20 * MiB, 40 * MiB, 20 * MiB)
    allocator.free(middle)
    (far,) = serve(allocator, 40 * MiB)
    assert far == middle
    allocator.free(far)
    allocator.free(last)
    assert allocator.reserved == 80 * MiB
    serve(allocator, 60 * MiB)
    assert (allocator.reserved, allocator.flushes) == (80 * MiB, 0)
    assert first == min(first, middle, last)


def test_pages_given_back_leave_what_is_free_beside_them() -> None:
    """Of a free block [5, 55) MiB the page [20, 40) goes: 15 MiB are left on either side of it."""
    allocator = Allocator(80 * MiB, expandable=True)
    first, middle, _ = serve(allocator, 5 * MiB, 50 * MiB, 5 * MiB)
    allocator.free(middle)
    serve(allocator, 70 * MiB)  # 40 MiB stay mapped; 80 more are too many, and mapped all the same
    assert (allocator.flushes, allocator.failures, allocator.reserved) == (1, 1, 120 * MiB)
    sides = serve(allocator, 15 * MiB, 15 * MiB)
    assert sorted(address - first for address in sides) == [5 * MiB, 40 * MiB]
    assert allocator.reserved == 120 * MiB


@dataclass
class Plain:
    """The same rules over plain lists of [size, state] blocks, searched from the front each
    time.
    """

    limit: float = float("inf")
    expandable: bool = False
    segments: dict[bool, list[list[list[Any]]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    live: dict[int, tuple[bool, list[Any], int]] = field(default_factory=dict)
    count: int = 0
    flushes: int = 0
    failures: int = 0

    def mapped(self) -> list[list[Any]]:
        return [
            b for small in (True, False) for s in self.segments[small] for b in s if b[1] != "hole"
        ]

    @property
    def reserved(self) -> int:
        return sum(block[0] for block in self.mapped())

    @property
    def allocated(self) -> int:
        return sum(block[0] for block in self.mapped() if block[1] == "used")

    def reach(self, segment: list[list[Any]], at: int) -> int:
        after = segment[at + 1] if at + 1 < len(segment) else [0, "used"]
        return int(segment[at][0] + (after[0] if after[1] == "hole" else 0))

    def find(self, small: bool, need: int) -> tuple[list[list[Any]], int] | None:
        fits = [
            (block[0], s, at)
            for s, segment in enumerate(self.segments[small])
            for at, block in enumerate(segment)
            if block[1] == "free" and block[0] >= need
        ]
        fits.sort()
        while (
            self.expandable
            and len(fits) > 1
            and self.reach(self.segments[small][fits[1][1]], fits[1][2])
            < self.reach(self.segments[small][fits[0][1]], fits[0][2])
        ):
            fits.pop(0)
        return (self.segments[small][fits[0][1]], fits[0][2]) if fits else None

    def grow(self, small: bool, need: int, limit: float) -> tuple[list[list[Any]], int] | None:
        if not self.expandable:
            own = -(-need // (2 * MiB)) * 2 * MiB
            size = 2 * MiB if small else 20 * MiB if need < 10 * MiB else own
            if self.reserved + size > limit:
                return None
            self.segments[small].append([[size, "free"]])
            return self.segments[small][-1], 0
        return self.extend(small, need, limit)

    def extend(self, small: bool, need: int, limit: float) -> tuple[list[list[Any]], int] | None:
        page = 2 * MiB if small else 20 * MiB
        if not self.segments[small]:
            self.segments[small].append([[2**50 * page, "hole"]])
        segment = self.segments[small][0]
        for at, block in enumerate(segment):
            if block[1] != "hole":
                continue
            begin = at - 1 if at and segment[at - 1][1] == "free" else at
            end, room = begin, 0
            while end < len(segment) and segment[end][1] != "used" and room < need:
                room, end = room + segment[end][0], end + 1
            if room < need:
                continue
            parts, have, fresh = [list(one) for one in segment[begin:end]], 0, 0
            kept: list[list[Any]] = []
            for size, state in parts:
                take = min(size, -(-(need - have) // page) * page) if state == "hole" else size
                have, fresh = have + take, fresh + (take if state == "hole" else 0)
                if take < size:
                    kept = [[size - take, "hole"]]
            if self.reserved + fresh > limit:
                return None
            segment[begin:end] = [[have, "free"], *kept]
            return segment, begin
        raise AssertionError

    def tidy(self) -> None:
        for small in (True, False):
            for segment in self.segments[small]:
                at = 0
                while at + 1 < len(segment):
                    if segment[at][1] == segment[at + 1][1] != "used":
                        segment[at][0] += segment.pop(at + 1)[0]
                    else:
                        at += 1

    def release(self) -> None:
        for small in (True, False):
            page = 2 * MiB if small else 20 * MiB
            if not self.expandable:
                self.segments[small] = [
                    s for s in self.segments[small] if len(s) > 1 or s[0][1] != "free"
                ]
                continue
            for segment in self.segments[small]:
                made: list[list[Any]] = []
                at = 0
                for size, state in segment:
                    start, end = -(-at // page) * page, (at + size) // page * page
                    whole = state == "free" and start < end
                    if whole:
                        pieces = [
                            [start - at, "free"],
                            [end - start, "hole"],
                            [at + size - end, "free"],
                        ]
                        made += [piece for piece in pieces if piece[0]]
                    at += size
                    if not whole:
                        made.append([size, state])
                used = [block for block in segment if block[1] == "used"]
                segment[:] = [used.pop(0) if block[1] == "used" else block for block in made]
        self.tidy()

    def allocate(self, size: int) -> int:
        need = -(-size // 512) * 512
        small = need <= MiB
        found = self.find(small, need) or self.grow(small, need, self.limit)
        if found is None:
            self.flushes += 1
            self.release()
            found = self.grow(small, need, self.limit)
        if found is None:
            self.failures += 1
            found = self.grow(small, need, float("inf"))
        assert found is not None
        segment, at = found
        self.tidy()
        block = segment[at]
        rest = block[0] - need
        if rest >= (512 if small or self.expandable else MiB + 1):
            block[0] = need
            segment.insert(at + 1, [rest, "free"])
        block[1] = "used"
        self.tidy()
        self.count += 1
        self.live[self.count] = small, block, size
        return self.count

    def free(self, handle: int) -> None:
        self.live.pop(handle)[1][1] = "free"
        self.tidy()


SIZES = (
    1,
    512,
    700,
    100 * KiB,
    MiB - 512,
    MiB,
    MiB + 1,
    3 * MiB,
    9 * MiB,
    10 * MiB,
    19 * MiB,
    21 * MiB,
    50 * MiB,
)


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(SIZES), st.integers(0, 99)), max_size=60)


@settings(max_examples=300)
@given(STEPS, st.booleans(), st.sampled_from([None, 64 * MiB, 130 * MiB]))
def test_the_allocator_equals_one_written_the_long_way(
    steps: list[tuple[bool, int, int]], expandable: bool, limit: int | None
) -> None:
    quick = Allocator(limit, expandable)
    plain = Plain(float("inf") if limit is None else limit, expandable)
    live: list[tuple[int, int]] = []
    for frees, size, pick in steps:
        if frees and live:
            address, handle = live.pop(pick % len(live))
            quick.free(address)
            plain.free(handle)
        else:
            live.append((quick.allocate(size), plain.allocate(size)))
        assert quick.requested <= quick.allocated <= quick.reserved
        assert (quick.allocated, quick.reserved) == (plain.allocated, plain.reserved)
        assert (quick.flushes, quick.failures) == (plain.flushes, plain.failures)


@given(STEPS, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_equal_frees_is_irrelevant(
    steps: list[tuple[bool, int, int]], expandable: bool, order: random.Random
) -> None:
    """Whatever is freed at one moment leaves the same free blocks, in any order."""
    sizes, after = [size for _, size, _ in steps], [size for frees, size, _ in steps if frees]
    found = []
    for shuffled in (False, True):
        allocator = Allocator(None, expandable)
        addresses = serve(allocator, *sizes)
        leaving = [
            address for address, (frees, _, _) in zip(addresses, steps, strict=True) if not frees
        ]
        if shuffled:
            order.shuffle(leaving)
        for address in leaving:
            allocator.free(address)
        found.append((serve(allocator, *after), levels(allocator)))
    assert found[0] == found[1]


@given(STEPS, st.booleans())
def test_a_second_round_of_the_same_requests_reserves_nothing(
    steps: list[tuple[bool, int, int]], expandable: bool
) -> None:
    allocator, sizes = Allocator(None, expandable), [size for _, size, _ in steps]
    for address in serve(allocator, *sizes):
        allocator.free(address)
    before = allocator.reserved
    serve(allocator, *sizes)
    assert allocator.reserved == before


def test_the_replay_equals_the_counters_of_a_cuda_device() -> None:
    """The same random requests, served by PyTorch itself: peaks of torch.cuda.memory_stats, to the
    byte.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved():
        pytest.skip("needs a process that holds no CUDA memory yet")
    draw, allocator = random.Random(4), Allocator()
    live: list[tuple[Any, int]] = []
    for _ in range(2000):
        if live and draw.random() < 0.5:
            tensor, address = live.pop(draw.randrange(len(live)))
            del tensor
            allocator.free(address)
        else:
            size = draw.choice(
                [draw.randint(1, 4 * KiB), draw.randint(1, MiB), draw.randint(MiB, 64 * MiB)]
            )
            live.append(
                (torch.empty(size, dtype=torch.uint8, device="cuda"), allocator.allocate(size))
            )
        stats = torch.cuda.memory_stats()
        told = tuple(
            stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "reserved")
        )
        assert levels(allocator) == told


def test_parameters_that_do_not_fit_fail_before_the_step():
    large = replace(op("a", 3), param_bytes=6 * MiB)
    trace = World.of([large], joined(1, memory=MiB), [0]).trace
    assert allocator_use(trace, steady=True)[0].failed == (0, "a", 6 * MiB)


def test_a_block_that_could_grow_is_the_last_choice() -> None:
    """Of two free blocks that serve, the larger that cannot grow is taken."""
    pool = _Expandable(0, small=False)
    pool.free = [(1024, 8192), (2048, 0)]
    pool.unmapped = {9216: 1 << 30}
    assert pool.best(512) == 1


def test_notes_name_the_devices_whose_allocators_came_to_their_limit() -> None:
    uses = (
        AllocatorUse("calm", 1, 1, 1, 0, 0, None),
        AllocatorUse("tight", 1, 1, 1, 0, 3, None),
        AllocatorUse("full", 1, 1, 1, 0, 1, (0, "x", 7)),
    )
    _, *notes = Footprint(MemoryModel(rounding="pytorch"), uses).notes()
    assert [note.partition(":")[0] for note in notes] == ["tight", "full"]
    assert "gives cached segments back 3 times" in notes[0]
    assert "cannot serve 7 B for x" in notes[1]
