"""The timeline of a traced step: for each of its calls the time of the device, the host's, and
whether the host waits.

A host that needs h_1, h_2, .. to dispatch calls of device times d_1, d_2, .. gives the traced step
again where the sums of h are the moments at which each call was released: a kernel that found the
device idle was released when it started, one that had to queue when its launch was done. Of several
kernels of a call the latest decides: release = max over k of (moment k - the call's kernels before
k). What the host waits for the device is no time of the host: where the device was done with all
that it had, the next call counts from there, and what the host did before it waited is a piece.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .calls import ALL_STREAMS, Call, waits
from .events import Event, Events

FULL = 1000
"""Launches under way from which on a launch that takes long waits for room: PyTorch's streams hold
about 1,024.
"""

Pair = tuple[Event | None, Event]


@dataclass(eq=False)
class Piece:
    """A call, or a part of one that the host waits in the middle of (``last`` for its last part);
    or, without kernels, a wait that no such call holds.

    ``device_ns`` is its time on the device: its kernels but for what ran beside earlier ones, and
    the gaps in front of those that were waiting. ``host_ns`` is the host's.
    """

    call: Call
    kernels: list[Pair]
    last: bool
    device_ns: int = 0
    host_ns: int = 0
    blocks: bool = False

    @property
    def launched(self) -> int:
        """When its first kernel was launched, in ns; on a CPU when it began."""
        if not self.kernels and self.call.event is not None:
            return self.call.event.start
        return _launched(self.kernels[0])


@dataclass(frozen=True)
class Timeline:
    """A step's pieces in the order of their launches; ``rest_ns`` is what the host does after the
    last, ``step_ns`` the step from its start to its last finish on the device and the host.
    """

    pieces: tuple[Piece, ...]
    rest_ns: int
    step_ns: int


def device_timeline(
    waiting: Sequence[Event], calls: Sequence[Call], start: int, end: int | None, marked: bool
) -> Timeline:
    """The timeline of the calls of a step that begins and (None: with the trace) ends at these
    moments on the host, in ns; ``waiting`` are all waits of the trace. What no mark tells the end
    of ends with its last kernel or wait.
    """
    stops = [wait for wait in waiting if start <= wait.start and (not end or wait.start < end)]
    launched = sorted(_pieces(calls, stops), key=lambda piece: piece.launched)
    finish = max(kernel.end for piece in launched for _, kernel in piece.kernels)
    if end is None or not marked:
        end = max((wait.end for wait in stops), default=start)
    times, released = _device_times(launched)
    stalls = _stalls(launched)
    pieces = _with_waits(launched, stops)
    # When the host would go on, and when the device would be done, in the step that is made.
    host = device = start
    for piece in pieces:
        ran, release = 0, host if piece.kernels else piece.launched
        for _, kernel in piece.kernels:
            release = max(release, released[id(kernel)] - ran)
            ran += times[id(kernel)]
        piece.device_ns = ran
        piece.host_ns = max(0, release - host - stalls.get(id(piece), 0))
        host = max(release, host)
        device = max(device, host) + ran
        if piece.blocks:
            host = device
    return Timeline(tuple(pieces), max(0, end - host), max(finish, end) - start)


def _with_waits(pieces: Sequence[Piece], stops: Sequence[Event]) -> list[Piece]:
    """The pieces and, between them, the waits for all that was launched before them.

    A wait inside the operator that launched last is that operator's. What waits for less, while
    the device goes on, is time of the host, and what waits while others launch holds up nobody.
    """
    over = (max(kernel.end for _, kernel in piece.kernels) for piece in pieces)
    timed, ends = list(pieces), list(accumulate(over, max))
    starts = [piece.launched for piece in pieces]
    for wait in stops:
        i = bisect_right(starts, wait.start)
        launches_meanwhile = i < len(starts) and starts[i] < wait.end
        waits_for_less = i and wait.name not in ALL_STREAMS and wait.end < ends[i - 1]
        if not i or launches_meanwhile or waits_for_less:
            continue
        last = pieces[i - 1]
        if last.call.event in [*wait.above()] or wait in [launch for launch, _ in last.kernels]:
            last.blocks = True
        else:
            timed.append(Piece(Call(wait, last.call.step), [], True, blocks=True))
    return sorted(timed, key=lambda piece: piece.launched)


def bounds(events: Events, steps: Sequence[Event], number: int) -> tuple[int, int | None]:
    """When a step begins and ends on the host, in ns; None where it is the whole trace."""
    if not steps:
        return min(root.start for root in events.roots), None
    return steps[number].start, steps[number].end


def host_times(
    events: Events, calls: Sequence[Call], steps: Sequence[Event], marked: bool
) -> dict[int, int]:
    """The host's ns of every call of all steps (none: the whole trace is one), by ``id``."""
    times: dict[int, int] = {}
    waiting = waits(events)
    by_step: dict[int, list[Call]] = {}
    for call in calls:
        by_step.setdefault(call.step, []).append(call)
    for number, members in by_step.items():
        start, end = bounds(events, steps, number)
        for piece in device_timeline(waiting, members, start, end, marked).pieces:
            times[id(piece.call)] = times.get(id(piece.call), 0) + piece.host_ns
    return times


def host_timeline(calls: Sequence[Call], start: int, end: int | None) -> Timeline:
    """The timeline of a step that a CPU runs itself: what lies between its operators is the
    host's.
    """
    pieces, now = [], start
    for call in sorted(calls, key=lambda call: call.event.start if call.event else 0):
        assert call.event is not None
        piece = Piece(call, [], True, call.host_ns, max(0, call.event.start - now))
        pieces.append(piece)
        # A graph's operators lie inside it: its own kernels run around them.
        now = max(now, call.event.start) + call.host_ns
    finish = max(now, end or 0)
    return Timeline(tuple(pieces), finish - now, finish - start)


def _launched(pair: Pair) -> int:
    launch, kernel = pair
    return kernel.start if launch is None else launch.start


def _pieces(calls: Sequence[Call], stops: Sequence[Event]) -> list[Piece]:
    """The calls, cut where the host waits between two of their launches."""
    starts = [wait.start for wait in stops]
    pieces = []
    for call in calls:
        parts: dict[int, list[Pair]] = {}
        for pair in call.kernels:
            parts.setdefault(bisect_left(starts, _launched(pair)), []).append(pair)
        cut = list(parts.values())
        pieces += [Piece(call, pairs, pairs is cut[-1]) for pairs in cut]
    return pieces


def _device_times(pieces: Sequence[Piece]) -> tuple[dict[int, int], dict[int, int]]:
    """For each kernel its time on the device and when it was released, in ns."""
    pairs = [pair for piece in pieces for pair in piece.kernels]
    times: dict[int, int] = {}
    released: dict[int, int] = {}
    end: int | None = None
    for launch, kernel in sorted(pairs, key=lambda pair: (pair[1].start, _launched(pair))):
        begin = kernel.start if end is None else max(kernel.start, end)
        times[id(kernel)] = max(0, kernel.end - begin)
        released[id(kernel)] = kernel.start
        if launch is not None and end is not None:
            # A copy that the host waits for is launched long before the call returns.
            ready = launch.start if launch.end >= kernel.end else launch.end
            if ready <= end:
                released[id(kernel)] = min(ready, kernel.start)
                times[id(kernel)] += max(0, kernel.start - end)
        end = kernel.end if end is None else max(end, kernel.end)
    return times, released


def _stalls(pieces: Sequence[Piece]) -> dict[int, int]:
    """What the launches of a piece waited for room on the device, in ns, by piece."""
    pairs = [pair for piece in pieces for pair in piece.kernels]
    ends = sorted(kernel.end for _, kernel in pairs)
    launches = sorted(launch.start for launch, _ in pairs if launch is not None)
    if len(launches) <= FULL:
        return {}
    usual = statistics.median(launch.duration for launch, _ in pairs if launch is not None)
    stalls: dict[int, int] = {}
    for piece in pieces:
        for launch in {id(launch): launch for launch, _ in piece.kernels}.values():
            if launch is None:
                continue
            under_way = bisect_right(launches, launch.start) - bisect_right(ends, launch.start)
            if under_way >= FULL:
                extra = max(0, round(launch.duration - usual))
                stalls[id(piece)] = stalls.get(id(piece), 0) + extra
    return stalls
