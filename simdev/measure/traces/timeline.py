"""The timeline of a traced step. Each call, or each piece of a call in which the host waits, gets
its time on the device, its time on the host, and whether the host waits after it.

The times are chosen so that a simulated host, which dispatches call i for h_i while the device
runs it for d_i, reproduces the traced step. For this the sum h_1 + .. + h_i has to be the moment
at which the host released call i. A kernel that found the device idle was released when it
started; a kernel that had to queue was released when its launch returned. Where a call has several
kernels, the latest decides: release = max over k of (release of kernel k - device time of the
call's kernels before k). Waiting for the device is no time of the host. So where the host waited
until the device was done, the time of the next call counts from there; where it waited in the
middle of a call, the call is cut there into pieces.

Streams run in parallel, each in order. A trace does not say which kernel of another stream a kernel
waits for; it is assumed to be the one that ended last there. A communication always waits so, since
PyTorch makes it wait for the stream that calls it. Any other kernel waits where the host made a
stream wait (cudaStreamWaitEvent) just before or, in a trace without such calls, where that end
alone explains why the kernel did not start earlier. Waiting does not count as the kernel's time.

``step.py`` writes ops from it, after refusing a step without operators; ``reading.py`` uses the
host's times alone. Tests: ``tests/measure/test_trace_steps.py``, ``test_trace_waits.py``,
``test_trace_ranks.py`` (streams).
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from .calls import Call, Pair
from .communication import RECORDED, is_finished
from .events import LAUNCHES, Event, Events

FULL = 1000
"""With this many launches pending, a launch that takes longer than usual is assumed to wait for
room in the stream's queue, which holds about 1,024.
"""


@dataclass(eq=False)
class Piece:
    """A call, a part of a call, or a wait.

    A call is cut into parts where the host waits in the middle of it; ``last`` is true for the last
    part, and for a whole call. A wait that lies in no call has no kernels. ``stream`` is the stream
    in which most of the piece runs (None: the stream with the most computation), ``after`` the
    pieces of other streams for which it waits. ``device_ns`` is the time on the device: of the
    kernels, without overlap with earlier ones, plus the gaps before kernels that were already
    released. For a communication on a CPU it is the time until the communication ended. ``host_ns``
    is the time of the host; ``blocks`` says that the host then waits for the device.
    """

    call: Call
    kernels: list[Pair]
    last: bool
    device_ns: int = 0
    host_ns: int = 0
    blocks: bool = False
    stream: str | None = None
    after: list[Piece] = field(default_factory=list)

    @property
    def launched(self) -> int:
        """The moment, in ns, at which the first kernel was launched or, without kernels, at which
        the operator or the wait began.
        """
        if not self.kernels and self.call.event is not None:
            return self.call.event.start
        return _launches_of(self.kernels[0])


@dataclass(frozen=True)
class Timeline:
    """A step's pieces in the order of their launches.

    ``rest_ns`` is the time of the host after the last piece; ``step_ns`` the time from the start of
    the step until both the device and the host have finished.
    """

    pieces: tuple[Piece, ...]
    rest_ns: int
    step_ns: int


def device_timeline(
    waiting: Waiting, calls: Sequence[Call], start: int, end: int | None, marked: bool
) -> Timeline:
    """The timeline of the calls of one step, at least one of them with kernels.

    ``start`` and ``end`` are moments on the host in ns (``end`` None: the step lasts to the end of
    the trace); ``waiting`` holds all waits of the trace. Where steps are not ``marked`` or have
    no ``end``, the step ends with its last kernel or its last wait.
    """
    stops = [
        wait for wait in waiting.hosts if start <= wait.start and (not end or wait.start < end)
    ]
    launched = sorted(_pieces(calls, stops), key=lambda piece: piece.launched)
    finish = max(kernel.end for piece in launched for _, kernel in piece.kernels)
    if end is None or not marked:
        end = max((wait.end for wait in stops), default=start)
    _set_streams(launched)
    _set_after(launched, waiting.streams)
    times, released = _device_times(launched)
    stalls = _stalls(launched)
    pieces = _with_waits(launched, stops)
    # Simulates the step: the moments at which the host can go on, and at which streams are done.
    host, device, finishes = start, defaultdict[str | None, int](lambda: start), dict[int, int]()
    for piece in pieces:
        ran, release = 0, host if piece.kernels else piece.launched
        for _, kernel in piece.kernels:
            release = max(release, released[id(kernel)] - ran)
            ran += times[id(kernel)]
        piece.device_ns = ran
        piece.host_ns = max(0, release - host - stalls.get(id(piece), 0))
        host = max(release, host)
        begin = max(host, device[piece.stream], *(finishes[id(other)] for other in piece.after))
        device[piece.stream] = finishes[id(piece)] = begin + ran
        if piece.blocks:
            host = max(device.values())
    return Timeline(tuple(pieces), max(0, end - host), max(finish, end) - start)


def _with_waits(pieces: Sequence[Piece], stops: Sequence[Event]) -> list[Piece]:
    """The pieces and, between them, the waits for everything that was launched before.

    A wait inside the operator that launched last makes that piece block, and is no separate piece.
    Two kinds of waits are left out: those that end while the device still runs earlier kernels
    (they count as time of the host), and those during which another thread launches (they delay no
    launch).
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
    """The start and end of a step on the host, in ns. Without steps the whole trace is the step,
    and its end is None.
    """
    if not steps:
        return min(root.start for root in events.roots), None
    return steps[number].start, steps[number].end


def host_times(
    events: Events, calls: Sequence[Call], steps: Sequence[Event], marked: bool
) -> dict[int, int]:
    """The host's ns of every call, by the call's ``id``; arguments as for ``device_timeline``."""
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


def host_timeline(
    calls: Sequence[Call], start: int, end: int | None, works: Mapping[int, Event]
) -> Timeline:
    """The timeline of a step on a CPU, which is host and device at once: the time in operators is
    the device's, the time between them the host's. ``works`` holds gloo's span of a communication
    by the ``id`` of its call; where such a span ends between two operators, the host waited for it.
    """
    pieces, now = list[Piece](), start
    under_way: list[tuple[Piece, Event]] = []
    for call in sorted(calls, key=lambda call: call.event.start if call.event else 0):
        event = call.event
        assert event is not None
        now = _awaited(pieces, under_way, now, event.start)
        piece = Piece(call, [], True, call.host_ns, max(0, event.start - now))
        pieces.append(piece)
        if call.communicates:
            work = works.get(id(event))
            piece.host_ns, piece.device_ns = piece.host_ns + call.host_ns, 0
            if work is not None and is_finished(work):
                piece.device_ns = work.duration
                under_way.append((piece, work))
        if call.phase == "update":
            # Communications that ended while the host computed were awaited before their gradients
            # were used.
            piece.after = [other for other, work in under_way if work.end <= now]
            under_way = [(other, work) for other, work in under_way if work.end > now]
        # The operators of a compiled graph lie inside its span: its other work runs around them.
        now = max(now, event.start) + call.host_ns
    now = _awaited(pieces, under_way, now, end or now)
    finish = max(now, end or 0)
    return Timeline(tuple(pieces), finish - now, finish - start)


def _awaited(
    pieces: list[Piece], under_way: list[tuple[Piece, Event]], now: int, until: int
) -> int:
    """Adds the host's wait for communications that ended between two moments; returns the end of
    the wait.
    """
    ended = [(piece, work) for piece, work in under_way if now < work.end <= until]
    if not ended:
        return now
    under_way[:] = [pair for pair in under_way if pair not in ended]
    last = max((work for _, work in ended), key=lambda work: work.end)
    wait = Piece(Call(last, pieces[-1].call.step), [], True, blocks=True)
    wait.after = [piece for piece, _ in ended]
    pieces.append(wait)
    return last.end


def _set_streams(pieces: Sequence[Piece]) -> None:
    """Sets the stream of every piece."""
    busy_ns: defaultdict[str, int] = defaultdict(int)
    for piece in pieces:
        times: defaultdict[str, int] = defaultdict(int)
        for _, kernel in piece.kernels:
            times[str(kernel.args.get("stream"))] += kernel.duration
        piece.stream = stream = max(times, key=lambda name: times[name])
        busy_ns[stream] += 0 if piece.call.communicates else sum(times.values())
    main = max(busy_ns, key=lambda name: busy_ns[name])
    for piece in pieces:
        piece.stream = None if piece.stream == main and busy_ns[main] else piece.stream


def _set_after(pieces: Sequence[Piece], ordered: Sequence[int]) -> None:
    """Sets the pieces of other streams for which every piece waits. Pieces are in the order of
    launches; ``ordered`` are the moments at which the host made a stream wait.
    """
    launched: dict[str | None, _Launched] = {}
    talking = {piece.stream for piece in pieces if piece.call.communicates}
    for piece in pieces:
        launch, kernel = min(piece.kernels, key=lambda pair: pair[1].start)
        stream = launched.setdefault(piece.stream, _Launched())
        others = [other for name, other in launched.items() if name != piece.stream]
        orders = bisect_left(ordered, piece.launched)
        piece.after = []
        if piece.call.communicates:
            waits = [other.ended(kernel.start, piece.launched) for other in others]
            piece.after = [last for last, _ in filter(None, waits) if last.stream not in talking]
        elif orders > stream.orders:
            waits = [other.ended(kernel.start, ordered[orders - 1]) for other in others]
            piece.after = [last for last, _ in filter(None, waits)]
        elif not ordered:
            ready = kernel.start if launch is None else launch.end
            waits = [other.ended(kernel.start, piece.launched) for other in others]
            last, end = max(filter(None, waits), key=lambda row: row[1], default=(piece, 0))
            piece.after = [last] if end > max([ready, *stream.ends[-1:]]) else []
        stream.orders = orders
        stream.pieces.append(piece)
        stream.ends.append(max([*stream.ends[-1:], *(k.end for _, k in piece.kernels)]))


@dataclass
class _Launched:
    """The launched part of a stream: its pieces; for each, the latest end of it and all earlier
    pieces; and the number of times that the host had made a stream wait before the last piece.
    """

    pieces: list[Piece] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    orders: int = 0

    def ended(self, moment: int, launched: int) -> tuple[Piece, int] | None:
        """The last piece that was launched before ``launched`` and had ended by ``moment``, with
        its end; None where there is no such piece.
        """
        count = min(
            bisect_right(self.ends, moment),
            bisect_left(self.pieces, launched, key=lambda piece: piece.launched),
        )
        return (self.pieces[count - 1], self.ends[count - 1]) if count else None


def _launches_of(pair: Pair) -> int:
    launch, kernel = pair
    return kernel.start if launch is None else launch.start


def _pieces(calls: Sequence[Call], stops: Sequence[Event]) -> list[Piece]:
    """The calls, cut where the host waits between two of their launches."""
    starts = [wait.start for wait in stops]
    pieces = []
    for call in calls:
        parts: dict[int, list[Pair]] = {}
        for pair in call.kernels:
            parts.setdefault(bisect_left(starts, _launches_of(pair)), []).append(pair)
        cut = list(parts.values())
        pieces += [Piece(call, pairs, pairs is cut[-1]) for pairs in cut]
    return pieces


def _device_times(pieces: Sequence[Piece]) -> tuple[dict[int, int], dict[int, int]]:
    """The time on the device, and the moment of release, of each kernel by its ``id``, in ns.

    Where the kernel was released earlier, its time counts from the end of the previous kernel and
    of everything that the piece waits for.
    """
    rows = [(piece, pair) for piece in pieces for pair in piece.kernels]
    times: dict[int, int] = {}
    released: dict[int, int] = {}
    ends = {
        id(piece): max((k.end for other in piece.after for _, k in other.kernels), default=None)
        for piece in pieces
    }
    streams: dict[str | None, int] = {}
    rows.sort(key=lambda row: (row[1][1].start, _launches_of(row[1])))
    for piece, (launch, kernel) in rows:
        before = streams.get(piece.stream), ends[id(piece)]
        end = max((moment for moment in before if moment is not None), default=None)
        begin = kernel.start if end is None else max(kernel.start, end)
        times[id(kernel)] = max(0, kernel.end - begin)
        released[id(kernel)] = kernel.start
        if launch is not None and end is not None:
            # A copy for which the host waits was launched when its call began, not at its return.
            ready = launch.start if launch.end >= kernel.end else launch.end
            if ready <= end:
                released[id(kernel)] = min(ready, kernel.start)
                times[id(kernel)] += max(0, kernel.start - end)
        streams[piece.stream] = max(kernel.end, streams.get(piece.stream, 0))
    return times, released


def _stalls(pieces: Sequence[Piece]) -> dict[int, int]:
    """The ns for which a piece's launches waited for room (``FULL``), by the piece's ``id``."""
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


@dataclass(frozen=True)
class Waiting:
    """The waits of a trace in the order of time. ``hosts`` are the host's calls that wait for the
    device; ``streams`` are the moments at which the host made a stream wait for another.
    """

    hosts: Sequence[Event]
    streams: Sequence[int]


def waits(events: Events) -> Waiting:
    """The waits of a trace.

    Only threads that launch kernels count: a wait of a data loader or of a watchdog delays no
    launch.
    """
    spans = [span for span in events.spans if span.category in LAUNCHES]
    ordered = [span.start for span in spans if span.name in ORDERS and not _is_recorded(span)]
    launching = {
        span.thread for span in spans if span.number("correlation") in events.by_correlation
    }
    stops = [span for span in spans if span.name in WAITS or _waits_for_copy(span, events)]
    stops = sorted((span for span in stops if span.thread in launching), key=lambda s: s.start)
    if events.by_profiler and all(span.name in ALL_STREAMS for span in stops[-2:]):
        # These two waits are no part of the step: PyTorch's profiler waits for the device when its
        # ``with`` block is exited, and Kineto when it stops.
        del stops[-2:]
    return Waiting(stops, sorted(ordered))


def _is_recorded(span: Event) -> bool:
    """Whether a span belongs to a communication (which waits anyway), not to a wait for one."""
    recorded = (around for around in span.above() if around.name == RECORDED)
    return any(around.args.get("Collective name") != "wait" for around in recorded)


ALL_STREAMS = frozenset({"cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize"})
"""Calls that wait for everything that was launched, on every stream."""

WAITS = ALL_STREAMS | {
    *("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize"),
    *("cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"),
}


ORDERS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"})
"""Calls by which the host makes a stream wait for another."""


def _waits_for_copy(launch: Event, events: Events) -> bool:
    """Whether a launch copied between host and device and returned only after the copy, so that the
    host waited for it.
    """
    copies: Mapping[int | None, Sequence[Event]] = events.by_correlation
    return any(
        is_copy(kernel, "HtoD", "DtoH") and kernel.end <= launch.end
        for kernel in copies.get(launch.number("correlation"), ())
    )


def is_copy(kernel: Event, *ways: str) -> bool:
    """Whether a kernel is a copy in one of these directions (HtoD, DtoH, DtoD), by its name."""
    return kernel.name.startswith("Memcpy") and any(way in kernel.name for way in ways)
