"""Finds the calls of a traced step, and recognises code compiled by ``torch.compile`` among them.

A *call* is an operator together with the kernels that it launched. The module has two parts:

- ``device_calls`` and ``host_calls`` find the calls of a trace. A kernel belongs to the outermost
  counting operator around its launch. Composite operators, which only call others, do not count,
  nor do spans of autograd or of a compiled region; but a kernel that such a span launches directly
  belongs to the span or, in a compiled region, is a call without operator. A kernel that
  communicates is a call by itself, and so is a call of ``c10d`` on a CPU. So every kernel of a
  marked step is in some call; kernels outside of all marked steps are left out.
- The names that ``torch.compile`` gives to regions, graphs and fused kernels.

``timeline.py`` puts the calls of a step in time, ``reading.py`` makes rows of a profile of them,
``step.py`` ops of a graph. ``events.py`` (categories of spans), ``communication.py`` and
``updates.py`` (optimizers) know other names of PyTorch. ``kernel_row`` has the keys of the rows
that ``simdev/measure/operators.py`` writes. Nothing here raises InputError.
Tests: ``tests/measure/test_traces.py`` (calls) and ``test_trace_recipes.py`` (compiled models).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from ..kinds import Fields, dtype_name
from .communication import GLOO, is_communication
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
        """The operator's name; without operator, CUDA_GRAPH or the name of the first kernel."""
        if self.event is not None:
            return self.event.name
        launch, kernel = self.kernels[0]
        return CUDA_GRAPH if launch is not None and "GraphLaunch" in launch.name else kernel.name

    @property
    def communicates(self) -> bool:
        """Whether the call is a message or a collective."""
        event = self.kernels[0][1] if self.kernels else self.event
        return event is not None and is_communication(event)

    @property
    def host_ns(self) -> int:
        """The time that the host spends in the operator and in all operators inside it.

        A compiled graph counts only the time between the operators inside it, because each of these
        is a separate call (``host_calls``).
        """
        if self.event is None:
            return sum(launch.duration for launch, _ in self.kernels if launch is not None)
        inside = self.event.children if is_graph(self.event) else ()
        return self.event.duration - sum(child.duration for child in inside)

    @property
    def phase(self) -> str:
        """The call's phase, forward, backward or update, by the spans around it."""
        if self.event is not None:
            return phase_of(self.event)
        launch = self.kernels[0][0]
        return "forward" if launch is None else phase_of(launch)


def phase_of(event: Event) -> str:
    """The phase of an event: update inside an optimizer's step, else forward or backward."""
    in_optimizer = any(span.name.startswith(OPTIMIZER) for span in event.above())
    return "update" if in_optimizer else event.phase


def _counts(events: Events, event: Event) -> bool:
    """Whether an operator counts as a call, together with all operators inside it."""
    if event.category not in OPERATORS:
        return False
    if not _calls_operators(event):
        return True
    if not event.name.startswith(ATEN):
        return False
    # PyTorch runs some composites (RMS norm) as one fused kernel: then the composite launches a
    # kernel itself, and is the operator to measure.
    return not is_composite(event.name) or any(
        child.category in LAUNCHES and child.number("correlation") in events.by_correlation
        for child in event.children
    )


def _owner(events: Events, launch: Event) -> Event | None:
    """The operator to which a launch belongs: the outermost counting operator around it, else the
    innermost; None directly in a compiled region, and where no operator is around it.
    """
    around = [span for span in launch.above() if span.category in OPERATORS]
    holder = next((span for span in reversed(around) if _counts(events, span)), None)
    if holder is None and around and not is_region(around[0]):
        return around[0]
    # In a compiled region a kernel without operator is a call with the kernel's name.
    return holder


def device_calls(events: Events, steps: Sequence[Event]) -> list[Call]:
    """The calls of all marked steps (of the whole trace where no step is marked), in the order of
    their first launches.
    """
    calls: dict[tuple[int, int], Call] = {}
    for at, launch, owner, kernel in sorted(_launched(events), key=lambda row: row[0]):
        number = step_at(steps, at)
        if number is None:
            continue
        key = (id(kernel if is_communication(kernel) else owner or launch or kernel), number)
        calls.setdefault(key, Call(owner, number)).kernels.append((launch, kernel))
    return list(calls.values())


def _launched(events: Events) -> Iterator[tuple[int, Event | None, Event | None, Event]]:
    """For every kernel of the trace: (time, launch, operator that it belongs to, kernel)."""
    operators: dict[int | None, Event] = {}
    for span in events.spans:
        if span.category in LAUNCHES:
            for kernel in events.by_correlation.get(span.number("correlation"), ()):
                yield span.start, span, _owner(events, span), kernel
        elif span.category in OPERATORS:
            operators[span.external_id] = span
    for number, kernels in events.by_operator.items():
        operator = operators.get(number) if number is not None else None
        for kernel in kernels:
            if operator is None:
                yield kernel.start, None, None, kernel
            else:
                holder = operator if _counts(events, operator) else _owner(events, operator)
                yield operator.start, None, holder or operator, kernel


def host_calls(events: Events, steps: Sequence[Event]) -> Iterator[Call]:
    """The calls of a CPU's trace, which has no kernels; a compiled graph precedes its operators."""
    stack = list(reversed(events.roots))
    while stack:
        event = stack.pop()
        if event.name.startswith(GLOO) and event.parent is None:
            continue  # a thread of gloo: its copies and sums are part of the communication
        counts = _counts(events, event) or is_communication(event)
        if not counts:
            stack.extend(reversed(event.children))
        number = step_at(steps, event.start)
        if number is not None and (counts or is_graph(event)) and not _is_hosts(event):
            yield Call(event, number)


def _calls_operators(event: Event) -> bool:
    """Whether an operator calls others. A compiled graph inside counts as one, because a compiled
    function calls its operators there.
    """
    return any(
        child.category in OPERATORS
        or is_graph(child)
        or (child.category in ANNOTATIONS and _calls_operators(child))
        for child in event.children
    )


def _is_hosts(event: Event) -> bool:
    """Whether a span without operators inside is work of Python or autograd, by its name.

    Operators have a namespace (``aten::mm``), and compiled code has the names of its kernels; every
    other name is the host's.
    """
    is_operator = "::" in event.name and not event.name.startswith(("torch::autograd", "autograd"))
    return not (is_operator or is_fused(event.name))


def step_at(steps: Sequence[Event], time: int) -> int | None:
    """The number of the step in which a moment lies; 0 where no steps are marked."""
    if not steps:
        return 0
    number = bisect_right(steps, time, key=lambda step: step.start) - 1
    return number if number >= 0 and time < steps[number].end else None


# The marks of ``torch.compile`` in a trace: regions, their graphs, and fused kernels.
#
# A call of a compiled region is a span ``Torch-Compiled Region: frame/recompilation``; inside it,
# also in the backward, each graph of Inductor is a span ``## Call CompiledFxGraph <hash> ##``. Its
# products and convolutions are ordinary operators. A fused kernel is an operator with the kernel's
# name (``triton_poi_fused_gelu_0``). The trace holds its tensors, but not what it computes, nor
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
"""The name of a call that launches a CUDA graph, all kernels of which are launched together."""


def is_graph(event: Event) -> bool:
    """Whether a span is a call of a compiled graph."""
    return GRAPH.match(event.name) is not None


def is_fused(name: str) -> bool:
    """Whether this is the name of a fused kernel, of a compiled graph or of a CUDA graph."""
    return name == CUDA_GRAPH or FUSED.match(name) is not None or GRAPH.match(name) is not None


def is_region(event: Event) -> bool:
    """Whether a span is a compiled region, function or graph, which encloses operators and fused
    kernels and is no operator itself.
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
    """The key's parts for the row of a fused kernel of which only the name is known."""
    fused = FUSED.match(name)
    kind = fused[1] if fused else name
    code = "bwd" if phase == "backward" else "fwd"
    return {"op": kind, "attrs": {}, "in": [], "dt": [], "out": [], "phase": code}


def fused_row(event: Event) -> tuple[Fields, list[Fields]]:
    """The key's parts for the row of a fused kernel (its name without number, its tensors), and its
    output in the format of a graph.
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
