"""PyTorch's caching allocator for CUDA, for one device and one stream.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings (or with
expandable segments). Sizes round up to 512 bytes. Up to 1 MiB they come from segments of 2 MiB;
larger ones from segments of 20 MiB or, from 10 MiB on, of their own size rounded up to 2 MiB. The
smallest free block that is large enough serves (the lowest address where several are), and is split
where the rest is worth it: 512 bytes in small segments, more than 1 MiB in large ones. A block that
is freed merges with its free neighbours; segments stay reserved. For want of memory, segments that
are free as a whole are given back, and the request is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort

BLOCK = 512  # bytes, of which every size is a multiple
SMALL = 2**20  # the largest size served from small segments
SMALL_SEGMENT, LARGE_SEGMENT, ROUND_LARGE = 2 * 2**20, 20 * 2**20, 2 * 2**20
OWN_SEGMENT = 10 * 2**20  # from this size on, a segment of its own size
ADDRESSES = 2**63  # of each pool; nothing that is reserved comes near it


class _Pool:
    """The segments of small or of large blocks, and the free blocks in them.

    Segments lie apart, so that blocks whose addresses meet are neighbours in one segment.
    """

    def __init__(self, base: int, small: bool) -> None:
        self.base, self.small = base, small
        self.least_rest = BLOCK if small else SMALL + 1
        self.free: list[tuple[int, int]] = []  # (size, address), sorted
        # By both ends, so that a block that becomes free finds its neighbours at once.
        self.size_at: dict[int, int] = {}
        self.start_of: dict[int, int] = {}  # of the free block that ends there
        self.segments: dict[int, int] = {}
        self.top = base

    def put(self, address: int, size: int) -> None:
        """A block becomes free and merges with its neighbours."""
        before = self.start_of.get(address)
        if before is not None:
            size += self.remove(before)
            address = before
        if address + size in self.size_at:
            size += self.remove(address + size)
        insort(self.free, (size, address))
        self.size_at[address], self.start_of[address + size] = size, address

    def remove(self, address: int) -> int:
        """A free block is free no longer; its size."""
        size = self.size_at.pop(address)
        del self.start_of[address + size]
        del self.free[bisect_left(self.free, (size, address))]
        return size

    def best(self, size: int) -> int | None:
        """The place in ``free`` of the block that serves."""
        # No address is below 0, so this is the first block of the size, the lowest of several.
        place = bisect_left(self.free, (size, -1))
        return place if place < len(self.free) else None

    def take(self, size: int) -> tuple[int, int] | None:
        """(address, size) of a free block that is large enough, no longer free; None where there is
        none.
        """
        place = self.best(size)
        if place is None:
            return None
        size, address = self.free[place]
        self.remove(address)
        return address, size

    def cut(self, address: int, block: int, size: int) -> int:
        """Split a block where the rest is worth it; the size that is used."""
        if block - size < self.least_rest:
            return block
        self.put(address + size, block - size)
        return size

    def grow(self, size: int, room: int) -> tuple[int, int, int] | None:
        """(address, size) of a new block, and the bytes reserved for it; None where that is more
        than ``room``.
        """
        segment = SMALL_SEGMENT if self.small else LARGE_SEGMENT
        if not self.small and size >= OWN_SEGMENT:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        if segment > room:
            return None
        address = self.top
        self.segments[address] = segment
        self.top += segment + BLOCK  # a gap: blocks of two segments must never merge
        return address, segment, segment

    def release(self) -> int:
        """Give back every segment that is free as a whole; their bytes."""
        # A segment is free as a whole where one free block begins with it and is as large.
        idle = [start for start, size in self.segments.items() if self.size_at.get(start) == size]
        for start in idle:
            self.remove(start)
        return sum(self.segments.pop(start) for start in idle)


class _Expandable(_Pool):
    """One segment that grows by pages of 2 MiB (small blocks) or 20 MiB; pages can be unmapped
    anywhere in it.
    """

    def __init__(self, base: int, small: bool) -> None:
        super().__init__(base, small)
        self.least_rest = BLOCK
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.unmapped = {base: base + ADDRESSES}  # start: end

    def reach(self, place: int) -> int:
        """The size to which a free block could grow."""
        size, address = self.free[place]
        end = address + size
        return size + self.unmapped.get(end, end) - end

    def best(self, size: int) -> int | None:
        """A block that could grow is the last choice: it counts with the size to which it could."""
        place = super().best(size)
        while (
            place is not None
            and place + 1 < len(self.free)
            and self.reach(place + 1) < self.reach(place)
        ):
            place += 1
        return place

    def grow(self, size: int, room: int) -> tuple[int, int, int] | None:
        """Map pages at the lowest address where they make, with the free blocks around, a block
        large enough.
        """
        begin = next(begin for begin in self._begins() if self._span(begin, size) >= size)
        at, holes = begin, []
        while at - begin < size:
            if at in self.size_at:
                at += self.size_at[at]
            else:
                pages = -(-(size - (at - begin)) // self.page) * self.page
                holes.append((at, min(at + pages, self.unmapped[at])))
                at = holes[-1][1]
        mapped = sum(end - start for start, end in holes)
        if mapped > room:
            return None
        for start, end in holes:
            last = self.unmapped.pop(start)
            if end < last:
                self.unmapped[end] = last
            self.put(start, end - start)
        return begin, self.remove(begin), mapped

    def _begins(self) -> list[int]:
        """Where a block could begin that is to be grown: the holes, each with the free block before
        it.
        """
        return [self.start_of.get(start, start) for start in sorted(self.unmapped)]

    def _span(self, begin: int, size: int) -> int:
        """The free and unmapped bytes in one piece from here on, as far as they are needed."""
        at = begin
        while at - begin < size and (at in self.size_at or at in self.unmapped):
            at = at + self.size_at[at] if at in self.size_at else self.unmapped[at]
        return at - begin

    def release(self) -> int:
        """Unmap every page that is free as a whole; their bytes."""
        given = 0
        for size, address in list(self.free):
            start = self.base - (self.base - address) // self.page * self.page
            end = self.base + (address + size - self.base) // self.page * self.page
            if start < end:
                self.remove(address)
                for left, right in ((address, start), (end, address + size)):
                    if left < right:
                        self.put(left, right - left)
                last = self.unmapped.pop(end, end)
                first = next((hole for hole, edge in self.unmapped.items() if edge == start), start)
                self.unmapped[first] = last
                given += end - start
        return given


class Allocator:
    """One device's caching allocator; all sizes are bytes.

    ``limit`` is what it may reserve (None: no limit). ``requested``, ``allocated`` (whole blocks,
    as torch.cuda.memory_allocated tells) and ``reserved`` are levels; ``flushes`` counts how often
    it gave its cache back for want of memory, ``failures`` the requests that it still could not
    serve (they are served beyond the limit).
    """

    def __init__(self, limit: int | None = None, expandable: bool = False) -> None:
        kind = _Expandable if expandable else _Pool
        self._small, self._large = kind(0, True), kind(2 * ADDRESSES, False)
        self._limit = ADDRESSES if limit is None else limit
        self._live: dict[int, tuple[int, int]] = {}
        self.requested = self.allocated = self.reserved = self.flushes = self.failures = 0

    def allocate(self, size: int) -> int:
        """Serve a request of ``size`` > 0 bytes; its address."""
        # The size rounded up to whole blocks chooses the pool, as in get_pool of the original.
        need = -(-size // BLOCK) * BLOCK
        pool = self._small if need <= SMALL else self._large
        address, block = pool.take(need) or self._grown(pool, need)
        used = pool.cut(address, block, need)
        self._live[address] = size, used
        self.requested, self.allocated = self.requested + size, self.allocated + used
        return address

    def _grown(self, pool: _Pool, need: int) -> tuple[int, int]:
        grown = pool.grow(need, self._limit - self.reserved)
        if grown is None:
            self.flushes += 1
            self.reserved -= self._small.release() + self._large.release()
            grown = pool.grow(need, self._limit - self.reserved)
        # Served all the same: the rest of the step is worth knowing, and the failure is counted.
        if grown is None:
            self.failures += 1
            grown = pool.grow(need, ADDRESSES)
        assert grown is not None
        self.reserved += grown[2]
        return grown[:2]

    def free(self, address: int) -> None:
        """Take back what was served at an address."""
        size, used = self._live.pop(address)
        self.requested, self.allocated = self.requested - size, self.allocated - used
        (self._small if address < 2 * ADDRESSES else self._large).put(address, used)
