"""Makes a graph with host times of a step of a trace; ``simdev import`` makes a scenario of it.

``calls``, ``replay`` and ``updates`` read the trace, as they do for profiles.
``simdev.lowering.hosts`` simulates the host.
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
# A trace has the shapes of tensors, but not their identity. So an op is taken to read the latest
# output with as many elements of the same type. A backward op first considers the tensors that its
# forward op read and made; autograd's sequence numbers connect the two. An op for which no input is
# known waits for the previous op. Parameters are tensors whose gradients autograd stores. The
# memory of a step is only as exact as these assumptions.

STATES = {"adam": 2, "adamw": 2, "sgd_momentum": 1, "sgd": 0, "adagrad": 1, "rmsprop": 1}
"""The number of state tensors per parameter, by the kind of update without its suffix."""

_NANOSECOND = Fraction(1, 10**9)
COMMUNICATION = "communication"
"""The stream of communications on a CPU, which has no streams."""
Talk = Callable[[Piece], Sequence[Communication]]
Key = tuple[int, str]
"""The number of elements and the dtype of a tensor."""


@dataclass
class Step:
    """The ops of a step while they are written, and the tensors known so far."""

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
        """Writes work of the host alone. With a ``wait`` the host then waits for the pieces that it
        names in ``after``, or for everything launched before where it names none.
        """
        after = self._after(wait) if wait and wait.after else chain(*self._last.values())
        self.add_op(
            Op(
                self._unique(name), "host", phase, (), tuple(dict.fromkeys(after)),
                time=0, host_time=host_ns * _NANOSECOND, blocks_host=wait is not None,
            )
        )  # fmt: skip

    def add_op(self, op: Op) -> None:
        """Writes an op, which becomes the last of its stream."""
        self.ops.append(op)
        self._last[op.stream] = (op.name,)

    def _after(self, piece: Piece) -> Iterator[str]:
        """The names of the last op in the piece's stream, then of the ops in other streams for
        which the piece waits.
        """
        yield from self._last.get(piece.stream, ())
        yield from (name for other in piece.after for name in self._names[id(other)])

    def _communicate(self, piece: Piece, messages: Sequence[Communication]) -> None:
        """Writes the communications of a piece: an op for each message of a batch."""
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
                    # On a CPU nothing is launched: the thread goes on at once.
                    launches=int(bool(piece.kernels)),
                    stream=stream,
                )
            )
            self.messages[name] = replace(message, label=name)
        self._last[stream] = tuple(op.name for op in self.ops[-len(messages) :])

    def keep_gradient(self, parameter: Parameter) -> int:
        """Notes that the latest output of a parameter's size is its gradient. Returns the bytes of
        the gradient where no op is known to have made it, else 0.
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
        # Tensors of other streams are no inputs: such waits follow from the kernels' times instead.
        inputs = tuple(
            text for text in self._reads(call, row) if self._streams[text] == piece.stream
        )
        outputs = part.outputs
        if call.phase == "update" and call.name.endswith("_"):
            # Written in place, in the memory of parameters and the optimizer's state.
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
                # On another kind of device the time is estimated, where the op's work is known.
                time={self.kind: time} if _has_work(part) else time,
                # All launches of a call stand on its first op: the others follow on the device.
                host_time=piece.host_ns * _NANOSECOND if first else 0,
                launches=max(1, launches) if first else 1,
                blocks_host=piece.blocks and first,
                stream=piece.stream,
            )
        )
        self._remember(piece, row, inputs, name, [made for made in outputs if made["bytes"]])

    def _reads(self, call: Call, row: Fields) -> tuple[str, ...]:
        """The tensors that an op is assumed to read."""
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
    """The graph of a step on a kind of device, and the ``Step`` that wrote it.

    ``talk`` returns the communications of a piece, ``gradients`` is the result of
    ``gradients_of``, ``update`` is the kind of the optimizer's updates (None: not known).
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
    # Gradients live until the end of the step: the next step clears them.
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
    """Whether simdev knows the work of an op."""
    row = part.row
    amount = work(row["op"], row["attrs"], row["in"], row.get("out", ()), row["dt"])
    return bool(part.outputs) and amount is not None


def _size(parameter: Parameter) -> int:
    shape, dtype = parameter
    return prod(shape) * bits_of(dtype) // 8


def _is_wait(event: Event) -> bool:
    """Whether an event is a wait: a runtime call that waits for the device, or a span of gloo."""
    return event.category in LAUNCHES or event.name.startswith(GLOO)


def _plain(piece: Piece) -> Replayed:
    """A row with the kind alone, for a piece without a known row: by its operator or kernel."""
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
    """Whether a piece only copies between host and device."""
    return bool(piece.kernels) and all(
        is_copy(kernel, "HtoD", "DtoH") for _, kernel in piece.kernels
    )


def _short(name: str) -> str:
    """A kernel's name without template arguments and parameters."""
    return name.removeprefix("void ").split("<")[0].split("(")[0].strip() or "kernel"


def _sequence_numbers(call: Call) -> list[int]:
    """The sequence numbers of autograd around a call, innermost first."""
    event = call.event
    spans: list[Event] = [] if event is None else [event, *event.above()]
    numbers = [span.number("Sequence number") for span in spans]
    return [number for number in numbers if number is not None]


MOST_NAMED = 5


@dataclass(frozen=True)
class TraceStep:
    """A traced step: its graph on a kind of device, the host that dispatches it, notes for people,
    figures (seconds, counts) for the provenance, and the communications by op name.
    """

    graph: Graph
    kind: str
    host: Host
    notes: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    messages: Mapping[str, Communication] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """The trace of a rank: its steps that count, the number ``skipped`` as warm-up, whether steps
    are ``marked``, its calls, its communications, and gloo's spans by the ``id`` of the call.
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
        """Reads the text of a trace. Raises InputError."""
        events = parse_events(text)
        steps, skipped, marked = steps_of(events, warm_up)
        calls = calls_of(events, steps)
        talking = [call.event for call in calls if call.event is not None and call.communicates]
        works = {} if events.kernels else works_of(events, talking)
        return cls(events, steps, skipped, marked, calls, Communications(events), works)

    @property
    def lengths(self) -> list[int]:
        """The ns of each step; endless where a communication in it has no recorded end."""
        open_ = [work for work in self.works.values() if not is_finished(work)]
        return [
            2**62 if any(step.start <= work.start < step.end for work in open_) else step.duration
            for step in self.steps
        ]

    def messages(self, piece: Piece) -> list[Communication]:
        """The communications of a piece; in a batch of messages the sends come first."""
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
    """A step of a trace; ``number`` counts from 0, without the warm-up.

    ``device`` is the kind of device (None: the GPU that the trace names; for a CPU "cpu", as its
    ops carry their times themselves). Raises InputError.
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
        # A view computes nothing: on a CPU its time is the host's.
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
    # A CPU runs each operator itself before it dispatches the next.
    host = Host() if on_device else Host(ahead=1)
    notes = [
        *_notes(loaded, figures, len(updates)),
        *_unnamed(graph, kind, figures, step.unnamed),
    ]
    return TraceStep(graph, kind, host, tuple(notes), figures, step.messages)


def _is_view(call: Call, replay: Replay) -> bool:
    return call.event is not None and replay.of(call.event) == []


def middle_of(lengths: Sequence[int]) -> int:
    """The number of the step of median length; 0 where there are no steps."""
    return lengths.index(statistics.median_low(lengths)) if lengths else 0


def _update(events: Events) -> str | None:
    """The kind of the optimizer's updates; None where it is not known."""
    steps = optimizers_of(events)
    present = {inner.name for step in steps for inner in step.inside()}
    return update_kind(steps[0].name, present) if steps else None


def _figures(timeline: Timeline, calls: Sequence[Call], fused: Mapping[str, int]) -> dict[str, Any]:
    """Figures of the step: seconds of the traced step, its kernels, its ops on the device and the
    host, and counts of kernels, devices and waits.
    """
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
    """Notes about ops without a known operator, with counts and shares of the device's time."""
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
    """Whether the work of an op is unknown: a fused kernel, or an op without shapes."""
    return op.kind in fused or not ("in" in op.attrs or op.outputs or "bytes" in op.attrs)
