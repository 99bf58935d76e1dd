"""The calls of a traced step, what ``torch.compile`` left among them, and how long each took.

A *call* is an operator together with the kernels that it launched. The module has four parts:

- ``device_calls`` and ``host_calls`` find the calls of a trace. A kernel belongs to the outermost
  operator around its launch that counts. A composite operator, which only calls others, does not
  count; nor does a span of autograd or of a compiled region. A kernel that such a span launches
  itself belongs to it, or where the span is a region's, is a call without operator. So every kernel
  of a marked step is in some call; kernels outside of all marked steps are left out.
- The names that ``torch.compile`` gives to regions, graphs and fused kernels.
- ``device_timeline`` and ``host_timeline`` tell for each call, or for each piece of a call in which
  the host waits, the time of the device, the time of the host, and whether the host waits.
- ``waits`` finds the host's calls that wait for the device.

Callers: ``simdev/measure/traces/reading.py`` makes rows of a profile of the calls, and
``simdev/measure/traces/step.py`` ops of a graph. Other names of PyTorch are known to ``events.py``
(categories of spans) and ``updates.py`` (optimizers) beside this module; the keys of ``kernel_row``
are those of the rows that ``simdev/measure/operators.py`` writes. Nothing here raises InputError:
``step.py`` refuses a step without operators before it asks for a timeline. Tests:
``tests/measure/test_traces.py`` (calls), ``test_trace_recipes.py`` (compiled models),
``test_trace_steps.py`` and ``test_trace_waits.py`` (timelines and waits).
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

Pair = tuple[Event | None, Event]
"""A launch (None: the trace lacks it) and the kernel that it started."""


@dataclass(eq=False)
class Call:
    """An operator in step number ``step`` with the kernels that it launched.

    ``event`` is the operator; None for kernels that no operator launched. ``kernels`` are in the
    order of their launches. The trace of a CPU has no kernels: there the list is empty, and the
    operator's own time counts.
    """

    event: Event | None
    step: int
    kernels: list[Pair] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The operator's name, else its first kernel's, or that it is a CUDA graph."""
        if self.event is not None:
            return self.event.name
        launch, kernel = self.kernels[0]
        return CUDA_GRAPH if launch is not None and "GraphLaunch" in launch.name else kernel.name

    @property
    def host_ns(self) -> int:
        """The time that the host spends in the operator and in all operators inside it.

        A graph that a compiler made is charged only for what lies between the operators inside it,
        for each of these is a call of its own (``host_calls``).
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
    """Tells to which operator a launch belongs.

    Whether a name is a composite's is looked up once a name: a trace has many thousand operators of
    a few names.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self._composite: dict[str, bool] = {}

    def is_composite(self, name: str) -> bool:
        if name not in self._composite:
            self._composite[name] = is_composite(name)
        return self._composite[name]

    def counts(self, event: Event) -> bool:
        """Whether an operator is a call, with everything inside it, so that none of the operators
        inside is one.
        """
        if event.category not in OPERATORS:
            return False
        if not _calls_operators(event):
            return True
        if not event.name.startswith(ATEN):
            return False
        # PyTorch runs some composites (RMS norm) as one fused kernel: then the composite launches a
        # kernel itself, and is the operator to measure.
        return not self.is_composite(event.name) or any(
            child.category in LAUNCHES and child.number("correlation") in self.events.by_correlation
            for child in event.children
        )

    def owner(self, launch: Event) -> Event | None:
        """The operator to which a launch belongs: of those around it the outermost that counts,
        else the innermost; None in a compiled region, and where no operator is around it.
        """
        around = [span for span in launch.above() if span.category in OPERATORS]
        holder = next(filter(self.counts, reversed(around)), None)
        if holder is None and around and not is_region(around[0]):
            return around[0]
        # In a compiled region a kernel without operator is a call under the kernel's own name.
        return holder


def device_calls(events: Events, steps: Sequence[Event]) -> list[Call]:
    """The calls of all marked steps, in the order of their first launches; of the whole trace where
    no step is marked.
    """
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
    """(time, launch, operator to which it belongs, kernel) of every kernel of the trace."""
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
    """The calls of a trace without kernels, which a CPU ran: a graph before what is inside it."""
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
    """Whether an operator calls others. The span of a compiled graph inside counts as one: a
    compiled function calls its operators there.
    """
    return any(
        child.category in OPERATORS
        or is_graph(child)
        or (child.category in ANNOTATIONS and _calls_operators(child))
        for child in event.children
    )


def _is_hosts(event: Event) -> bool:
    """Whether a span without operators inside is work of Python or of autograd, by its name.

    Operators have a namespace (``aten::mm``), and what a compiler made is called like its kernels;
    every other name is the host's.
    """
    is_operator = "::" in event.name and not event.name.startswith(("torch::autograd", "autograd"))
    return not (is_operator or is_fused(event.name))


def step_at(steps: Sequence[Event], time: int) -> int | None:
    """The number of the step in which a moment lies; 0 where no steps are marked."""
    if not steps:
        return 0
    number = bisect_right(steps, time, key=lambda step: step.start) - 1
    return number if number >= 0 and time < steps[number].end else None


# What ``torch.compile`` leaves in a trace: regions, their graphs, and the kernels that a compiler
# fused.
#
# A call of a compiled region is a span ``Torch-Compiled Region: frame/recompilation``; inside it,
# also in the backward, is one ``## Call CompiledFxGraph <hash> ##`` a graph of Inductor. Its
# products and convolutions are operators as ever. A fused kernel is an operator called like the
# kernel (``triton_poi_fused_gelu_0``). The trace holds its tensors, but not what it computes, nor
# which tensors it writes. Inductor passes the tensors that a kernel writes after those that it
# reads, so the last tensor is taken to be the output.

# triton_ and three letters for the kind of loop (pointwise, reduction, persistent, template), or
# cpp_fused on a CPU; the number at the end counts the kernels of a graph.
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
    """Whether this is the name of a fused kernel, of a compiled graph or of a CUDA graph."""
    return name == CUDA_GRAPH or FUSED.match(name) is not None or GRAPH.match(name) is not None


def is_region(event: Event) -> bool:
    """Whether a span is a compiled region, function or graph: it lies around operators and fused
    kernels, and is no operator itself.
    """
    return any(pattern.match(event.name) for pattern in (GRAPH, FRAME, FUNCTION))


def region_of(event: Event) -> str | None:
    """The compiled region of a span: the first digits of its graph's hash, else the name of its
    frame; None outside of every region.
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


# The timeline of a traced step: for each of its calls the time of the device, the time of the host,
# and whether the host waits.
#
# The times are chosen so that a simulated host, which dispatches call i for h_i while the device
# runs it for d_i, reproduces the traced step. For this the sum h_1 + .. + h_i has to be the moment
# at which the host released call i. A kernel that found the device idle was released when it
# started; one that had to queue was released when its launch was done. Where a call has several
# kernels, the latest decides: release = max over k of (release of kernel k - device time of the
# call's kernels before k). Waiting for the device is no time of the host. So where the host waited
# until the device was done, the time of the next call counts from there; where it waited in the
# middle of a call, the call is cut there into pieces.

FULL = 1000
"""With so many launches under way, a launch that takes longer than usual is taken to wait for room
in the stream: a stream of PyTorch holds about 1,024.
"""


@dataclass(eq=False)
class Piece:
    """A call, a part of a call, or a wait.

    A call is cut into parts where the host waits in the middle of it; ``last`` is true for the last
    part, and for a whole call. A wait that lies in no call has no kernels. ``device_ns`` is the
    time on the device: that of the kernels without their overlap with earlier ones, and the gaps
    before kernels that were already released. ``host_ns`` is the time of the host, ``blocks``
    whether the host then waits for the device.
    """

    call: Call
    kernels: list[Pair]
    last: bool
    device_ns: int = 0
    host_ns: int = 0
    blocks: bool = False

    @property
    def launched(self) -> int:
        """When the first kernel was launched, in ns; where there is none, when the operator or the
        wait began.
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
    waiting: Sequence[Event], calls: Sequence[Call], start: int, end: int | None, marked: bool
) -> Timeline:
    """The timeline of the calls of one step, at least one of them with kernels.

    ``start`` and ``end`` are moments of the host in ns, ``end`` None where the step goes on to the
    end of the trace; ``waiting`` are all waits of the trace. Where steps are not ``marked`` or have
    no ``end``, the step ends with its last kernel or its last wait.
    """
    stops = [wait for wait in waiting if start <= wait.start and (not end or wait.start < end)]
    launched = sorted(_pieces(calls, stops), key=lambda piece: piece.launched)
    finish = max(kernel.end for piece in launched for _, kernel in piece.kernels)
    if end is None or not marked:
        end = max((wait.end for wait in stops), default=start)
    times, released = _device_times(launched)
    stalls = _stalls(launched)
    pieces = _with_waits(launched, stops)
    # The simulated step: when its host can go on, and when its device is done.
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
    """The pieces and, between them, the waits for everything that was launched before.

    A wait inside the operator that launched last makes that piece block, and is no piece itself.
    Two kinds of waits are left out: one that ends while the device still runs earlier kernels, for
    it is time of the host, and one during which another thread launches, for it delays no launch.
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
    """When a step begins and ends on the host, in ns; where no steps are marked, the step is the
    whole trace and has no end (None).
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


def host_timeline(calls: Sequence[Call], start: int, end: int | None) -> Timeline:
    """The timeline of a step on a CPU, which is host and device at once: operators are the time of
    the device, and what lies between them is the time of the host.
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
    """By the kernel's ``id`` its time on the device and the moment of its release, in ns.

    The time counts from the end of the kernel before where the kernel was released by then.
    """
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
    """By the piece's ``id`` the ns for which its launches waited for room (``FULL``)."""
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


def waits(events: Events) -> list[Event]:
    """The host's calls that wait for the device, in the order of their starts.

    Only threads that launch kernels count: a wait of a data loader or of a watchdog delays no
    launch.
    """
    spans = [span for root in events.roots for span in root.inside() if span.category in LAUNCHES]
    launching = {
        span.thread for span in spans if span.number("correlation") in events.by_correlation
    }
    stops = [span for span in spans if span.name in WAITS or _waits_for_copy(span, events)]
    stops = sorted((span for span in stops if span.thread in launching), key=lambda s: s.start)
    if events.by_profiler and all(span.name in ALL_STREAMS for span in stops[-2:]):
        # These two waits are no part of the step: PyTorch's profiler waits for the device when its
        # ``with`` block is exited, and Kineto when it stops.
        del stops[-2:]
    return stops


ALL_STREAMS = frozenset({"cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize"})
"""Calls that wait for everything that was launched, on every stream."""

WAITS = ALL_STREAMS | {
    *("cudaStreamSynchronize", "cuStreamSynchronize", "hipStreamSynchronize"),
    *("cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"),
}


def _waits_for_copy(launch: Event, events: Events) -> bool:
    """Whether a launch copied between host and device and returned only after the copy: then the
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
