"""The calls of a step: operators with the kernels that they launched, in the order of the launches.

A kernel belongs to the outermost operator that counts around its launch. Composites that only call
others are passed by, spans of autograd and of compiled regions too, but for what they launch
themselves. A kernel whose launch no operator holds is a call of its own: no time of the device is
lost.

``reading`` makes rows of the calls, ``step`` ops.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from ..kinds import Fields, dtype_name
from .events import ANNOTATIONS, LAUNCHES, OPERATORS, Event, Events, is_shape
from .replay import ATEN, DTYPES, is_composite
from .updates import OPTIMIZER

# The timeline of a traced step: for each of its calls the time of the device, the host's, and
# whether the host waits.
#
# A host that needs h_1, h_2, .. to dispatch calls of device times d_1, d_2, .. gives the traced
# step again where the sums of h are the moments at which each call was released: a kernel that
# found the device idle was released when it started, one that had to queue when its launch was
# done. Of several kernels of a call the latest decides: release = max over k of (moment k - the
# call's kernels before k). What the host waits for the device is no time of the host: where the
# device was done with all that it had, the next call counts from there, and what the host did
# before it waited is a piece.

FULL = 1000
"""Launches under way from which on a launch that takes long waits for room: PyTorch's streams hold
about 1,024.
"""

Pair = tuple[Event | None, Event]


@dataclass(eq=False)
class Piece:
    """A call, or a part of one that the host waits in the middle of (``last`` for its last part);
    or, without kernels, a wait that no such call holds.

    ``device_ns`` is its time on the device: its kernels but for their overlap with earlier ones,
    and the gaps in front of kernels that were waiting. ``host_ns`` is the host's.
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
        return _launches_of(self.kernels[0])


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
    """For each kernel its time on the device and when it was released, in ns."""
    pairs = [pair for piece in pieces for pair in piece.kernels]
    times: dict[int, int] = {}
    released: dict[int, int] = {}
    end: int | None = None
    for launch, kernel in sorted(pairs, key=lambda pair: (pair[1].start, _launches_of(pair))):
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
    """By piece the ns for which its launches waited for room on the device."""
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


# What ``torch.compile`` leaves in a trace: regions, their graphs, and the kernels that a compiler
# fused.
#
# A call of a compiled region is a span ``Torch-Compiled Region: frame/recompilation``; inside it,
# also in the backward, is one ``## Call CompiledFxGraph <hash> ##`` a graph of Inductor. Its
# products and convolutions are operators as ever; what was fused is an operator called like its
# kernel (``triton_poi_fused_gelu_0``), with the tensors that it is given and no more: what it
# computes no trace tells. Inductor puts what a kernel writes behind what it reads, so the last
# tensor is taken to be its output.

# triton_ and three letters of what kind of loop it is (pointwise, reduction, persistent, template),
# or C++ of a CPU; the number at the end counts the kernels of a graph.
FUSED = re.compile(r"(?:graph_\d+_)?((?:triton_[a-z]{3}|cpp_fused)_\w*?)(?:_\d+)?\Z")
GRAPH = re.compile(r"## Call CompiledFxGraph (\w+)")
FRAME = re.compile(r"Torch-Compiled Region: (\S+)")
FUNCTION = re.compile(r"CompiledFunction(?:Backward)?\Z")
REGION_KIND = "compiled_graph"
CUDA_GRAPH = "cuda_graph"
"""Kernels that are launched as one."""


def is_graph(event: Event) -> bool:
    """Whether a span is a call of a graph that a compiler made."""
    return GRAPH.match(event.name) is not None


def is_fused(name: str) -> bool:
    """Whether an operator or a kernel is of those that a compiler made, or a graph of such."""
    return name == CUDA_GRAPH or FUSED.match(name) is not None or GRAPH.match(name) is not None


def is_region(event: Event) -> bool:
    """Whether a span lies around what a compiler made, and is no operator itself."""
    return any(pattern.match(event.name) for pattern in (GRAPH, FRAME, FUNCTION))


def region_of(event: Event) -> str | None:
    """The compiled region in which a span lies: its graph (a part of the hash), else its frame;
    None outside of all.
    """
    region = None
    for span in [event, *event.above()]:
        if graph := GRAPH.match(span.name):
            return graph[1][:8]
        if frame := FRAME.match(span.name):
            return frame[1]
        if FUNCTION.match(span.name):
            region = "function"
    return region


def kernel_row(name: str, phase: str) -> Fields:
    """The parts of the key of a fused kernel's row where only its name is known."""
    fused = FUSED.match(name)
    kind = fused[1] if fused else name
    code = "bwd" if phase == "backward" else "fwd"
    return {"op": kind, "attrs": {}, "in": [], "dt": [], "out": [], "phase": code}


def fused_row(event: Event) -> tuple[Fields, list[Fields]]:
    """The parts of the key of a fused kernel's row (its name without number, its tensors), and its
    output as a graph tells it.
    """
    tensors = [
        (argument.shape, DTYPES[argument.type])
        for argument in event.arguments()
        if argument.type in DTYPES and is_shape(argument.shape)
    ]
    graph = GRAPH.match(event.name)
    read, written = tensors[:-1], tensors[-1:]
    outputs = [
        {"bytes": prod(shape) * dtype.itemsize, "shape": shape, "dtype": dtype_name(dtype)}
        for shape, dtype in written
    ]
    row = kernel_row(event.name, event.phase) | {
        "in": [shape for shape, _ in read],
        "dt": [dtype_name(dtype) for _, dtype in read],
        "out": [shape for shape, _ in written],
    }
    if graph:
        row |= {"op": REGION_KIND, "attrs": {"graph": graph[1][:16]}}
    return row, outputs


@dataclass(eq=False)
class Call:
    """Kernels that are launched together in step number ``step``.

    ``event`` is the operator (None: no operator launched it); ``kernels`` are (launch, kernel) in
    the order of launches, the launch None where the trace lacks it; of a trace without kernels
    there are none, and the operator's own time counts.
    """

    event: Event | None
    step: int
    kernels: list[tuple[Event | None, Event]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The operator's name, else its first kernel's, or that it is a CUDA graph."""
        if self.event is not None:
            return self.event.name
        launch, kernel = self.kernels[0]
        return CUDA_GRAPH if launch is not None and "GraphLaunch" in launch.name else kernel.name

    @property
    def host_ns(self) -> int:
        """The host's time of the call, with all calls inside it; of a graph that a compiler made,
        the time of its kernels that are no operators.
        """
        if self.event is None:
            return sum(launch.duration for launch, _ in self.kernels if launch is not None)
        inside = self.event.children if is_graph(self.event) else ()
        return self.event.duration - sum(child.duration for child in inside)

    @property
    def phase(self) -> str:
        """Forward, backward or update, by the spans around it."""
        if self.event is not None:
            return phase_of(self.event)
        launch = self.kernels[0][0]
        return "forward" if launch is None else phase_of(launch)


def phase_of(event: Event) -> str:
    """Forward, backward, or update where it lies in an optimizer's step."""
    in_optimizer = any(span.name.startswith(OPTIMIZER) for span in event.above())
    return "update" if in_optimizer else event.phase


class _Owners:
    """Which operator a launch counts for; what is known of operators' names is kept, for a trace
    has many thousand calls of a few.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self._composite: dict[str, bool] = {}

    def is_composite(self, name: str) -> bool:
        if name not in self._composite:
            self._composite[name] = is_composite(name)
        return self._composite[name]

    def counts(self, event: Event) -> bool:
        """Whether an operator counts with all that it calls."""
        if event.category not in OPERATORS:
            return False
        if not _calls_operators(event):
            return True
        if not event.name.startswith(ATEN):
            return False
        # A fused kernel hides behind the name of a composite (RMS norm): it launches itself.
        return not self.is_composite(event.name) or any(
            child.category in LAUNCHES and child.number("correlation") in self.events.by_correlation
            for child in event.children
        )

    def owner(self, launch: Event) -> Event | None:
        """The outermost operator around a launch that counts, else the innermost one."""
        around = [span for span in launch.above() if span.category in OPERATORS]
        holder = next(filter(self.counts, reversed(around)), None)
        if holder is None and around and not is_region(around[0]):
            return around[0]
        # Kernels that a compiled region launches have names of their own.
        return holder


def device_calls(events: Events, steps: Sequence[Event]) -> list[Call]:
    """The calls of all steps (none: the whole trace is one), by their first launches."""
    owners, calls = _Owners(events), dict[tuple[int, int], Call]()
    for at, launch, owner, kernel in sorted(_launched(events, owners), key=lambda row: row[0]):
        number = step_at(steps, at)
        if number is None:
            continue
        key = (id(owner or launch or kernel), number)
        calls.setdefault(key, Call(owner, number)).kernels.append((launch, kernel))
    return list(calls.values())


def _launched(
    events: Events, owners: _Owners
) -> Iterator[tuple[int, Event | None, Event | None, Event]]:
    """(time, launch, operator that it counts for, kernel) of everything that ran on a GPU."""
    operators: dict[int | None, Event] = {}
    for root in events.roots:
        for span in root.inside():
            if span.category in LAUNCHES:
                for kernel in events.by_correlation.get(span.number("correlation"), ()):
                    yield span.start, span, owners.owner(span), kernel
            elif span.category in OPERATORS:
                operators[span.external_id] = span
    for number, kernels in events.by_operator.items():
        operator = operators.get(number) if number is not None else None
        for kernel in kernels:
            if operator is None:
                yield kernel.start, None, None, kernel
            else:
                holder = operator if owners.counts(operator) else owners.owner(operator)
                yield operator.start, None, holder or operator, kernel


def host_calls(events: Events, steps: Sequence[Event]) -> Iterator[Call]:
    """The operators of a trace without kernels, outermost first."""
    owners = _Owners(events)
    stack = list(reversed(events.roots))
    while stack:
        event = stack.pop()
        counts = owners.counts(event)
        if not counts:
            stack.extend(reversed(event.children))
        number = step_at(steps, event.start)
        if number is not None and (counts or is_graph(event)) and not _is_hosts(event):
            yield Call(event, number)


def _calls_operators(event: Event) -> bool:
    """Whether an operator calls others; a compiled function does it in the span of its graph."""
    return any(
        child.category in OPERATORS
        or is_graph(child)
        or (child.category in ANNOTATIONS and _calls_operators(child))
        for child in event.children
    )


def _is_hosts(event: Event) -> bool:
    """Whether a span without operators inside is work of Python or autograd: operators, and what a
    compiler makes, are in namespaces or are called like its kernels.
    """
    is_operator = "::" in event.name and not event.name.startswith(("torch::autograd", "autograd"))
    return not (is_operator or is_fused(event.name))


def step_at(steps: Sequence[Event], time: int) -> int | None:
    """The number of the step in which a moment lies; 0 where no steps are marked."""
    if not steps:
        return 0
    number = bisect_right(steps, time, key=lambda step: step.start) - 1
    return number if number >= 0 and time < steps[number].end else None


def waits(events: Events) -> list[Event]:
    """The host's calls that wait for the device, by their starts, on threads that launch: a
    wait of a loader or a watchdog holds up nobody else.
    """
    spans = [span for root in events.roots for span in root.inside() if span.category in LAUNCHES]
    launching = {
        span.thread for span in spans if span.number("correlation") in events.by_correlation
    }
    stops = [span for span in spans if span.name in WAITS or _waits_for_copy(span, events)]
    stops = sorted((span for span in stops if span.thread in launching), key=lambda s: s.start)
    if events.by_profiler and all(span.name in ALL_STREAMS for span in stops[-2:]):
        # PyTorch's profiler waits for the device when it is left, and Kineto when it stops.
        del stops[-2:]
    return stops


ALL_STREAMS = frozenset({"cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize"})
"""Calls that wait for all that was launched."""

WAITS = ALL_STREAMS | {
    *("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize"),
    *("cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"),
}


def _waits_for_copy(launch: Event, events: Events) -> bool:
    """Whether a copy between host and device was over when the call that asked for it returned."""
    copies: Mapping[int | None, Sequence[Event]] = events.by_correlation
    return any(
        is_copy(kernel, "HtoD", "DtoH") and kernel.end <= launch.end
        for kernel in copies.get(launch.number("correlation"), ())
    )


def is_copy(kernel: Event, *ways: str) -> bool:
    """Whether a kernel is a copy of one of these ways (HtoD, DtoH, DtoD), by its name."""
    return kernel.name.startswith("Memcpy") and any(way in kernel.name for way in ways)
