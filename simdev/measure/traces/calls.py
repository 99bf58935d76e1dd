"""The calls of a step: operators with the kernels that they launched, in the order of the launches.

A kernel belongs to the outermost operator that counts around its launch. Composites that only call
others are passed by, spans of autograd and of compiled regions too, but for what they launch
themselves. A kernel whose launch no operator holds is a call of its own: no time of the device is
lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .compiled import CUDA_GRAPH, is_fused, is_graph, is_region
from .events import ANNOTATIONS, LAUNCHES, OPERATORS, Event, Events
from .replay import ATEN, is_composite
from .updates import OPTIMIZER


@dataclass(eq=False)
class Call:
    """What is launched together in step number ``step``.

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
        """What the host spends on it, with all that it calls; of a graph that a compiler made, what
        its kernels take that are no operators.
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
        # A fused kernel stands behind the name of a composite (RMS norm): it launches itself.
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
    compiler makes, stand in namespaces or are called like its kernels.
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
    """The host's calls that wait for the device, by their starts: those of threads that launch, for
    what a loader or a watchdog waits for holds up nobody else.
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
