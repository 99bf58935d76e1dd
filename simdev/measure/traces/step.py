"""A step of a trace as a graph with its host: what ``simdev import`` makes a scenario of.

The readers of calls and updates are those of profiles (``calls``, ``replay``, ``updates``); the
host's part is the rule of hosts that ``simdev.lowering.hosts`` simulates.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, count
from math import prod
from typing import Any

from ...ground.errors import InputError
from ...nouns.cluster import Host
from ...nouns.graph import Graph, Op, Tensor
from ...nouns.meetings import Communication
from ...nouns.semantics import work
from ...nouns.semantics.dtype import bits_of
from ...nouns.structure import PREFIXES
from ..kinds import Fields
from .calls import Call, is_fused, kernel_row, region_of
from .communication import GLOO, Communications, is_finished, module_of, works_of
from .events import LAUNCHES, Event, Events, busy, parse_events
from .reading import Replay, calls_of, kind_of_device, steps_of, types_of
from .replay import ATEN, Replayed, shares
from .timeline import (
    Piece,
    Timeline,
    bounds,
    device_timeline,
    host_timeline,
    is_copy,
    waits,
)  # fmt: skip
from .updates import Parameter, gradients_of, optimizers_of, update_kind

# The graph of a traced step: its calls in their order, with the times of the trace.
# A trace knows no tensors, only their shapes. What an op reads is taken to be the latest output
# of as many elements of the same type; the backward first looks at what its forward op read and
# made, which autograd's sequence numbers tell. An op that reads nothing so waits for the op
# before it. Parameters are those whose gradients autograd stores; the memory of a step is told as
# far as this goes.

STATES = {"adam": 2, "adamw": 2, "sgd_momentum": 1, "sgd": 0, "adagrad": 1, "rmsprop": 1}
"""Tensors of state a parameter, by kind of update without its ending."""

_NANOSECOND = Fraction(1, 10**9)
COMMUNICATION = "communication"
"""The stream of what communicates on a CPU, which has none."""
Talk = Callable[[Piece], Sequence[Communication]]
Key = tuple[int, str]
"""Elements and dtype of a tensor."""


@dataclass
class Step:
    """The ops of a step while they are written, and what is known of the tensors around them."""

    kind: str
    replay: Replay
    talk: Talk
    ops: list[Op] = field(default_factory=list)
    messages: dict[str, Communication] = field(default_factory=dict)
    unnamed: Counter[str] = field(default_factory=Counter)
    gradients: list[str] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _latest: dict[Key, str] = field(default_factory=dict)
    _around: dict[int, dict[Key, str]] = field(default_factory=dict)
    _last: dict[str | None, tuple[str, ...]] = field(default_factory=dict)
    _names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _streams: dict[str, str | None] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Writes a piece: an op, or several where one call is several ops."""
        self._add(piece)
        self._names[id(piece)] = self._last[piece.stream]

    def _add(self, piece: Piece) -> None:
        call = piece.call
        messages = self.talk(piece) if call.communicates else []
        if messages:
            self._communicate(piece, messages)
            return
        if call.event is not None and not piece.kernels and _is_wait(call.event):
            phase = self.ops[-1].phase if self.ops else "forward"
            self.add_host(call.event.name, piece.host_ns, phase, piece)
            return
        if not piece.last or _copies(piece) or call.event is None:
            if is_fused(call.name):
                self.unnamed[_plain(piece).row["op"]] += piece.device_ns
            self._write(piece, _plain(piece), 1.0, first=True)
            return
        parts = self.replay.of(call.event)
        if isinstance(parts, str) or not parts:
            self._write(piece, _plain(piece), 1.0, first=True)
            return
        if is_fused(call.name):
            self.unnamed[parts[0].row["op"]] += piece.device_ns
        rows = [part.row for part in parts]
        for part, share in zip(parts, shares(rows) if len(rows) > 1 else [1.0], strict=True):
            self._write(piece, part, share, first=part is parts[0])

    def add_host(self, name: str, host_ns: int, phase: str, wait: Piece | None = None) -> None:
        """Writes what the host does alone; where that is a ``wait``, it then waits for what the
        piece names, else for all that it launched.
        """
        after = self._after(wait) if wait and wait.after else chain(*self._last.values())
        self.add_op(
            Op(
                self._unique(name), "host", phase, (), tuple(dict.fromkeys(after)),
                time=0, host_time=host_ns * _NANOSECOND, blocks_host=wait is not None,
            )
        )  # fmt: skip

    def add_op(self, op: Op) -> None:
        """Writes an op, behind those of its stream."""
        self.ops.append(op)
        self._last[op.stream] = (op.name,)

    def _after(self, piece: Piece) -> Iterator[str]:
        """The op before in the piece's stream, then what it waits for in others."""
        yield from self._last.get(piece.stream, ())
        yield from (name for other in piece.after for name in self._names[id(other)])

    def _communicate(self, piece: Piece, messages: Sequence[Communication]) -> None:
        """Writes what a piece communicates, each message of a batch."""
        call, stream = piece.call, piece.stream or COMMUNICATION
        where = module_of(call.event or piece.kernels[0][0])
        piece.stream, after = stream, tuple(dict.fromkeys(self._after(piece)))
        for message in messages:
            name = PREFIXES.get(call.phase, "") + (f"{where}/" if where else "") + message.kind
            name = self._unique(name)
            first = message is messages[0]
            self.add_op(
                Op(
                    name,
                    message.kind,
                    call.phase,
                    control_inputs=after,
                    attrs={"bytes": message.bytes},
                    time=piece.device_ns * _NANOSECOND,
                    host_time=piece.host_ns * _NANOSECOND if first else 0,
                    # A CPU's thread goes on at once.
                    launches=int(bool(piece.kernels)),
                    stream=stream,
                )
            )
            self.messages[name] = replace(message, label=name)
        self._last[stream] = tuple(op.name for op in self.ops[-len(messages) :])

    def keep_gradient(self, parameter: Parameter) -> int:
        """Notes that the latest output of a parameter's size is its gradient; returns the bytes of
        a gradient that no op is known to have made.
        """
        source = self._latest.get((prod(parameter[0]), parameter[1]), "")
        if not source.startswith(PREFIXES["backward"]) or source in self.gradients:
            return _size(parameter)
        self.gradients.append(source)
        return 0

    def _write(self, piece: Piece, part: Replayed, share: float, first: bool) -> None:
        call, row = piece.call, part.row
        span = call.event or (piece.kernels[0][0] if piece.kernels else None)
        where = region_of(span) if span is not None else None
        prefix = PREFIXES.get(call.phase, "") + (f"compiled {where}/" if where else "")
        name = self._unique(prefix + row["op"])
        if any(Op(name).problems()):
            name = self._unique("call")
        # What another stream made is waited for as the kernels' times tell, not by its shape.
        inputs = tuple(
            text for text in self._reads(call, row) if self._streams[text] == piece.stream
        )
        outputs = part.outputs
        if call.phase == "update" and call.name.endswith("_"):
            # Made in place, where the parameters and the optimizer's state lie.
            outputs = [output | {"bytes": 0} for output in outputs]
        before = [] if inputs and not piece.after else [*dict.fromkeys(self._after(piece))]
        time = Fraction(round(piece.device_ns * share)) * _NANOSECOND
        launches = len({id(launch) for launch, _ in piece.kernels})
        seen: dict[str, Any] = {"in": row["in"], "dt": row["dt"]} if row["in"] else {}
        self.add_op(
            Op(
                name,
                kind=row["op"],
                phase=call.phase,
                inputs=inputs,
                control_inputs=tuple(before),
                outputs=tuple(Tensor(**output) for output in outputs),
                attrs=row["attrs"] | seen,
                # Another kind of device has a time of its own where the ladder can tell it.
                time={self.kind: time} if _has_work(part) else time,
                # All launches of a call are told of its first op: the others follow on the device.
                host_time=piece.host_ns * _NANOSECOND if first else 0,
                launches=max(1, launches) if first else 1,
                blocks_host=piece.blocks and first,
                stream=piece.stream,
            )
        )
        self._remember(piece, row, inputs, name, [made for made in outputs if made["bytes"]])

    def _reads(self, call: Call, row: Fields) -> tuple[str, ...]:
        """The tensors that the op is taken to read."""
        around = self._forward_of(call) if call.phase == "backward" else {}
        sources = []
        for i, (shape, dtype) in enumerate(zip(row["in"], row["dt"], strict=True)):
            key = (prod(shape), dtype)
            saved = around.get(key) if i or key not in self._latest else None
            source = saved or self._latest.get(key)
            if source is not None and source not in sources and prod(shape) > 1:
                sources.append(source)
        return tuple(sources)

    def _forward_of(self, call: Call) -> Mapping[Key, str]:
        """The tensors that the forward op of a backward op read and made."""
        numbers = _sequence_numbers(call)
        return next((self._around[number] for number in numbers if number in self._around), {})

    def _remember(
        self, piece: Piece, row: Fields, inputs: Sequence[str], name: str, outputs: Sequence[Fields]
    ) -> None:
        call, stream = piece.call, piece.stream
        made = {
            (prod(output["shape"]), output["dtype"]): f"{name}:{i}" if i else name
            for i, output in reversed(list(enumerate(outputs)))
        }
        self._streams |= dict.fromkeys(made.values(), stream)
        if call.phase == "forward":
            keys = [(prod(shape), dtype) for shape, dtype in zip(row["in"], row["dt"], strict=True)]
            read = {key: self._latest[key] for key in keys if self._latest.get(key) in inputs}
            for number in _sequence_numbers(call):
                self._around[number] = read | made
        self._latest |= made

    def _unique(self, name: str) -> str:
        numbered = (f"{name}_{i}" for i in count(1))
        free = next(text for text in chain([name], numbered) if text not in self._taken)
        self._taken.add(free)
        return free


def step_graph(
    name: str,
    timeline: Timeline,
    kind: str,
    replay: Replay,
    talk: Talk,
    gradients: Sequence[tuple[int, Parameter]],
    update: str | None,
) -> tuple[Graph, Step]:
    """The graph of a step on a kind of device, and what else is known of its ops.

    ``talk`` tells what a piece communicates, ``gradients`` are as ``gradients_of`` tells them,
    ``update`` is the kind of the optimizer's updates, where it is known.
    """
    step = Step(kind, replay, talk)
    if gradients:
        step.add_op(_parameters([parameter for _, parameter in gradients], update))
    left, unmade = deque(gradients), 0
    for piece in timeline.pieces:
        while left and left[0][0] < piece.launched:
            unmade += step.keep_gradient(left.popleft()[1])
        step.add(piece)
    unmade += sum(step.keep_gradient(parameter) for _, parameter in left)
    if timeline.rest_ns:
        step.add_host("rest of the step", timeline.rest_ns, "update")
    if gradients:
        step.ops[0] = replace(step.ops[0], grad_bytes=unmade)
    # Gradients live to the end of the step, where the next one clears them.
    last = step.ops[-1]
    reached = (*last.inputs, last.name)
    kept = [
        name
        for name in step.gradients
        if name not in reached and not name.startswith(f"{last.name}:")
    ]
    step.ops[-1] = replace(last, inputs=(*last.inputs, *kept))
    return Graph(name, tuple(step.ops)), step


def _parameters(parameters: Sequence[Parameter], update: str | None) -> Op:
    """An op that owns all parameters and the optimizer's state."""
    size = sum(map(_size, parameters))
    states = STATES.get((update or "").removesuffix("_update"), 0)
    return Op(
        "parameters",
        "parameter",
        time=0,
        host_time=0,
        param_bytes=size,
        state_bytes=states * size,
    )


def _has_work(part: Replayed) -> bool:
    """Whether simdev knows what an op computes."""
    row = part.row
    amount = work(row["op"], row["attrs"], row["in"], row.get("out", ()), row["dt"])
    return bool(part.outputs) and amount is not None


def _size(parameter: Parameter) -> int:
    shape, dtype = parameter
    return prod(shape) * bits_of(dtype) // 8


def _is_wait(event: Event) -> bool:
    """Whether this is a call that waits for the device, or what gloo did meanwhile."""
    return event.category in LAUNCHES or event.name.startswith(GLOO)


def _plain(piece: Piece) -> Replayed:
    """The kind of a piece without a known row, by the name of its operator or kernel."""
    call, attrs = piece.call, Fields()
    if _copies(piece):
        home = is_copy(piece.kernels[0][1], "DtoH")
        kind = "copy_to_host" if home else "copy_to_device"
        attrs["bytes"] = sum(kernel.number("bytes") or 0 for _, kernel in piece.kernels)
    elif call.communicates and piece.kernels:
        kernel = piece.kernels[0][1]
        kind = str(kernel.args.get("Collective name") or _short(kernel.name))
    elif call.event is not None:
        kind = call.event.name.removeprefix(ATEN).strip("_") or "op"
        kind = kind if piece.last else f"{kind} (part)"
    elif is_fused(call.name):
        kind = kernel_row(call.name, call.phase)["op"]
    else:
        kind = _short(call.name)
    return Replayed({"op": kind, "attrs": attrs, "in": [], "dt": []}, [])


def _copies(piece: Piece) -> bool:
    """Whether a piece copies between host and device and does nothing else."""
    return bool(piece.kernels) and all(
        is_copy(kernel, "HtoD", "DtoH") for _, kernel in piece.kernels
    )


def _short(name: str) -> str:
    """A kernel's name without template arguments and parameters."""
    return name.removeprefix("void ").split("<")[0].split("(")[0].strip() or "kernel"


def _sequence_numbers(call: Call) -> list[int]:
    """Numbers of the autograd node of a call, innermost first."""
    event = call.event
    spans: list[Event] = [] if event is None else [event, *event.above()]
    numbers = [span.number("Sequence number") for span in spans]
    return [number for number in numbers if number is not None]


MOST_NAMED = 5


@dataclass(frozen=True)
class TraceStep:
    """A traced step: its graph on a kind of device, the host that dispatches it, notes for people,
    figures (seconds, counts) for the provenance, and by op what it communicates.
    """

    graph: Graph
    kind: str
    host: Host
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    messages: Mapping[str, Communication] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """The trace of a rank: its steps that count, how many were left out as ``skipped``, whether it
    marks them, what it communicates, and gloo's span of each call by its ``id``.
    """

    events: Events
    steps: Sequence[Event]
    skipped: int
    marked: bool
    calls: Sequence[Call]
    talk: Communications
    works: Mapping[int, Event]

    @classmethod
    def of(cls, text: str, warm_up: int | None = None) -> Loaded:
        """A trace by its text. Raises InputError."""
        events = parse_events(text)
        steps, skipped, marked = steps_of(events, warm_up)
        calls = calls_of(events, steps)
        talking = [call.event for call in calls if call.event is not None and call.communicates]
        works = {} if events.kernels else works_of(events, talking)
        return cls(events, steps, skipped, marked, calls, Communications(events), works)

    @property
    def lengths(self) -> list[int]:
        """The ns of each step; those in which a communication has no end count as endless."""
        open_ = [work for work in self.works.values() if not is_finished(work)]
        return [
            2**62 if any(step.start <= work.start < step.end for work in open_) else step.duration
            for step in self.steps
        ]

    def messages(self, piece: Piece) -> list[Communication]:
        """The communications of a piece, of a batch the sends first."""
        event = piece.call.event
        if not piece.kernels:
            return self.talk.of_call(event, self.works.get(id(event))) if event else []
        return [call for pair in piece.kernels for call in self.talk.of_kernel(*pair)]


def trace_step(
    text: str, device: str | None = None, warm_up: int | None = None, name: str = "trace"
) -> TraceStep:
    """The step of median length of a trace's text; a trace that marks no steps is one step.

    ``device`` and ``warm_up`` as in ``import_trace``; a CPU's step names its times itself, so its
    kind may be left out: "cpu". Raises InputError.
    """
    loaded = Loaded.of(text, warm_up)
    return step_of(loaded, middle_of(loaded.lengths), device, name)


def step_of(loaded: Loaded, number: int, device: str | None, name: str) -> TraceStep:
    """The step of a number (from 0, without the warm-up) of a trace.

    ``device`` is the kind of device; a CPU's step names its times itself, so it may be left out:
    "cpu". Raises InputError.
    """
    events, steps, marked = loaded.events, loaded.steps, loaded.marked
    kind = kind_of_device(events, device or (None if events.kernels else "cpu"))
    start, end = bounds(events, steps, number)
    gradients = gradients_of(events, start)
    replay = Replay(types_of(events), [parameter for _, parameter in gradients])
    on_device = bool(events.kernels)
    calls = [
        call
        for call in loaded.calls
        # A view computes nothing: on a CPU it is the host's.
        if call.step == number and (on_device or not _is_view(call, replay))
    ]
    if not calls:
        raise InputError("the step has no operator")
    timeline = (
        device_timeline(waits(events), calls, start, end, marked)
        if on_device
        else host_timeline(calls, start, end if marked else None, loaded.works)
    )
    graph, step = step_graph(
        name, timeline, kind, replay, loaded.messages, gradients, _update(events)
    )
    figures = _figures(timeline, calls, step.unnamed)
    updates = [span for span in optimizers_of(events) if start <= span.start < (end or span.end)]
    # A CPU runs an operator itself before it goes on to the next.
    host = Host() if on_device else Host(ahead=1)
    notes = [
        *_notes(loaded, figures, len(updates)),
        *_unnamed(graph, kind, figures, step.unnamed),
    ]
    return TraceStep(graph, kind, host, tuple(notes), figures, step.messages)


def _is_view(call: Call, replay: Replay) -> bool:
    return call.event is not None and replay.of(call.event) == []


def middle_of(lengths: Sequence[int]) -> int:
    """The number of the step of median length, 0 where there are none."""
    return lengths.index(statistics.median_low(lengths)) if lengths else 0


def _update(events: Events) -> str | None:
    """The kind of the optimizer's updates."""
    steps = optimizers_of(events)
    present = {inner.name for step in steps for inner in step.inside()}
    return update_kind(steps[0].name, present) if steps else None


def _figures(timeline: Timeline, calls: Sequence[Call], fused: Mapping[str, int]) -> dict[str, Any]:
    """Figures of the step in seconds: the traced step, the time of its kernels, the part of ops."""
    pieces = timeline.pieces
    kernels = [kernel for call in calls for _, kernel in call.kernels]
    times = {talks: 0 for talks in (False, True)}
    for piece in pieces:
        times[piece.call.communicates] += piece.device_ns
    device = times[False]
    figures = {
        "step_s": timeline.step_ns / 1e9,
        "kernels_s": (busy(kernels) if kernels else device) / 1e9,
        "device_s": device / 1e9,
        "host_s": (timeline.rest_ns + sum(piece.host_ns for piece in pieces)) / 1e9,
        "kernels": len(kernels),
        "devices": len({kernel.number("device") for kernel in kernels}) or 1,
        "waits": sum(piece.blocks for piece in pieces),
    }
    figures |= {"communication_s": times[True] / 1e9} if times[True] else {}
    return figures | ({"compiled_s": sum(fused.values()) / 1e9} if fused else {})


def _notes(loaded: Loaded, figures: Mapping[str, Any], updates: int) -> Iterator[str]:
    steps, skipped, on_device = loaded.steps, loaded.skipped, bool(loaded.events.kernels)
    if not steps:
        yield "the trace marks no steps: the whole of it is one"
    elif not loaded.marked:
        yield f"the trace marks no steps: {len(steps) + skipped} are told by the optimizer's"
    if len(steps) > 1:
        yield f"the step of median length of {len(steps)}, {skipped} left out as warm-up"
    yield (
        f"traced step {figures['step_s'] * 1e3:.3f} ms: device {figures['device_s'] * 1e3:.3f} ms, "
        f"host {figures['host_s'] * 1e3:.3f} ms"
    )
    whose = "the host's times hold" if on_device else "times of a CPU hold"
    yield f"{whose} the profiler's own work: without it the step is shorter"
    if updates > 1:
        yield f"{updates} optimizers in a step: memory counts the parameters of the first"
    devices = figures["devices"]
    if devices > 1:
        yield f"kernels of {devices} devices are one after another on a single one"
    yield "who reads whose output is told from shapes and autograd's numbers, not from the trace"


def _unnamed(
    graph: Graph, kind: str, figures: Mapping[str, Any], fused: Mapping[str, int]
) -> Iterator[str]:
    """Pieces that no operator names, with counts and shares of the device's time."""
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
