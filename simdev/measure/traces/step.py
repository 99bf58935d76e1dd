"""A step of a trace as a graph with its host: what ``simdev import`` makes a scenario of."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ground.errors import InputError
from ...nouns.cluster import Host
from ...nouns.graph import Graph, Op
from .calls import Call, waits
from .events import Event, Events, busy, parse_events
from .graph import step_graph
from .operators import Replay, types_of
from .reading import calls_of, kind_of_device, steps_of
from .timeline import Timeline, bounds, device_timeline, host_timeline
from .updates import OPTIMIZER, gradients_of, update_kind

MOST_NAMED = 5


@dataclass(frozen=True)
class TraceStep:
    """A traced step: its graph on a kind of device, the host that dispatches it, notes for people,
    and figures (seconds, counts) for the provenance.
    """

    graph: Graph
    kind: str
    host: Host
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def trace_step(
    text: str, device: str | None = None, warm_up: int | None = None, name: str = "trace"
) -> TraceStep:
    """The step of median length of a trace's text; a trace that marks no steps is one step.

    ``device`` and ``warm_up`` as in ``import_trace``; a CPU's step names its times itself, so its
    kind may be left out: "cpu". Raises InputError.
    """
    events = parse_events(text)
    kind = kind_of_device(events, device or (None if events.kernels else "cpu"))
    steps, skipped, marked = steps_of(events, warm_up)
    number = _median_step(steps)
    start, end = bounds(events, steps, number)
    gradients = gradients_of(events.roots, start)
    replay = Replay(types_of(events), [parameter for _, parameter in gradients])
    on_device = bool(events.kernels)
    calls = [
        call
        for call in calls_of(events, steps)
        # A view computes nothing: on a CPU it is the host's.
        if call.step == number and (on_device or not _is_view(call, replay))
    ]
    if not calls:
        raise InputError("the step has no operator")
    timeline = (
        device_timeline(waits(events), calls, start, end, marked)
        if on_device
        else host_timeline(calls, start, end if marked else None)
    )
    graph, fused = step_graph(name, timeline, kind, replay, gradients, _update(events))
    figures = _figures(timeline, calls, fused)
    # A CPU runs an operator itself before it goes on to the next.
    host = Host() if on_device else Host(ahead=1)
    notes = [
        *_notes(steps, skipped, marked, figures, on_device),
        *_unnamed(graph, kind, figures, fused),
    ]
    return TraceStep(graph, kind, host, tuple(notes), figures)


def _is_view(call: Call, replay: Replay) -> bool:
    return call.event is not None and replay.of(call.event) == []


def _median_step(steps: Sequence[Event]) -> int:
    """The number of the step of median length."""
    if not steps:
        return 0
    middle = statistics.median_low(step.duration for step in steps)
    return next(i for i, step in enumerate(steps) if step.duration == middle)


def _update(events: Events) -> str | None:
    """The kind of the optimizer's updates."""
    spans = [span for root in events.roots for span in root.inside()]
    steps = [span for span in spans if span.name.startswith(OPTIMIZER)]
    present = {inner.name for step in steps for inner in step.inside()}
    return update_kind(steps[0].name, present) if steps else None


def _figures(timeline: Timeline, calls: Sequence[Call], fused: Mapping[str, int]) -> dict[str, Any]:
    """What the step holds, in seconds: the traced step, its kernels' time, what ops have of it."""
    pieces = timeline.pieces
    kernels = [kernel for call in calls for _, kernel in call.kernels]
    device = sum(piece.device_ns for piece in pieces)
    figures = {
        "step_s": timeline.step_ns / 1e9,
        "kernels_s": (busy(kernels) if kernels else device) / 1e9,
        "device_s": device / 1e9,
        "host_s": (timeline.rest_ns + sum(piece.host_ns for piece in pieces)) / 1e9,
        "kernels": len(kernels),
        "devices": len({kernel.number("device") for kernel in kernels}) or 1,
        "waits": sum(piece.blocks for piece in pieces),
    }
    return figures | ({"compiled_s": sum(fused.values()) / 1e9} if fused else {})


def _notes(
    steps: Sequence[Event],
    skipped: int,
    marked: bool,
    figures: Mapping[str, Any],
    on_device: bool,
) -> Iterator[str]:
    if not steps:
        yield "the trace marks no steps: the whole of it is one"
    elif not marked:
        yield f"the trace marks no steps: {len(steps) + skipped} are told by the optimizer's"
    if len(steps) > 1:
        yield f"the step of median length of {len(steps)}, {skipped} left out as warm-up"
    yield (
        f"traced step {figures['step_s'] * 1e3:.3f} ms: device {figures['device_s'] * 1e3:.3f} ms, "
        f"host {figures['host_s'] * 1e3:.3f} ms"
    )
    whose = "the host's times hold" if on_device else "times of a CPU hold"
    yield f"{whose} the profiler's own work: without it the step is shorter"
    devices = figures["devices"]
    if devices > 1:
        yield f"kernels of {devices} devices are one after another on a single one"
    yield "who reads whose output is told from shapes and autograd's numbers, not from the trace"


def _unnamed(
    graph: Graph, kind: str, figures: Mapping[str, Any], fused: Mapping[str, int]
) -> Iterator[str]:
    """What no operator names, with counts and shares of the device's time."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for op in graph.ops:
        if _is_unnamed(op, fused) and op.seconds_on(kind):
            sums[op.kind].append(float(op.seconds_on(kind) or 0))
    total = figures["device_s"] or 1
    for label, kinds in (
        ("kernels that a compiler fused", [name for name in sums if name in fused]),
        ("operators that simdev does not know", [name for name in sums if name not in fused]),
    ):
        count = sum(len(sums[name]) for name in kinds)
        share = sum(sum(sums[name]) for name in kinds) / total
        largest = sorted(kinds, key=lambda name: -sum(sums[name]))[:MOST_NAMED]
        if count:
            yield (
                f"{count} of {len(graph.ops)} ops, {share:.1%} of the device's time, are {label}: "
                f"{', '.join(largest)}{', ..' if len(kinds) > len(largest) else ''}"
            )


def _is_unnamed(op: Op, fused: Mapping[str, int]) -> bool:
    """Whether nothing tells what an op computes: a fused kernel, or one without shapes."""
    return op.kind in fused or not ("in" in op.attrs or op.outputs or "bytes" in op.attrs)
