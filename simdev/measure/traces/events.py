"""The events of a Kineto trace: operators nested on their threads, the kernels that they launched,
the steps.

Times in a trace are us with three decimals, whatever ``displayTimeUnit`` says (it only concerns the
display); here they are whole nanoseconds. A kernel runs long after its launch: the two share a
``correlation``.

All other modules of this folder read its events. Only this module, ``calls``, ``communication`` and
``updates`` know PyTorch's names in a trace.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

from ...files.reading import parse_json
from ...ground.errors import InputError
from ...ground.units import written

OPERATORS = frozenset({"cpu_op", "Operator", "operator"})
ANNOTATIONS = frozenset({"user_annotation"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "runtime"})
KERNELS = frozenset({"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
WINDOW_END = "Record Window End"
STEP = re.compile(r"ProfilerStep#(\d{1,18})(?!\d)")
BACKWARD = "autograd::engine::evaluate_function"
MOST_NS = 2**62  # the sum of a start and a duration stays within 64 bits
MOST_EXTENT = 2**62  # the greatest extent of a dimension: PyTorch counts in 64 bits


class Argument(NamedTuple):
    """An argument of an operator as the trace writes it; ``text`` is its value, "" for a tensor."""

    type: str
    shape: Any
    stride: Any
    text: str


@dataclass(slots=True, eq=False)
class Event:
    """A span of a thread or a stream, in ns; ``children`` are the spans inside it on the same
    thread.
    """

    name: str
    category: str
    start: int
    end: int
    thread: tuple[str, str]
    args: Mapping[str, Any]
    children: list[Event] = field(default_factory=list)
    parent: Event | None = None

    @property
    def duration(self) -> int:
        """Its time in ns, including everything inside it."""
        return self.end - self.start

    def above(self) -> Iterator[Event]:
        """The spans around the event, innermost first."""
        span = self.parent
        while span is not None:
            yield span
            span = span.parent

    def inside(self) -> Iterator[Event]:
        """The event and all spans inside it."""
        stack = [self]
        while stack:
            span = stack.pop()
            yield span
            stack.extend(reversed(span.children))

    @property
    def phase(self) -> str:
        """The phase: backward where the event lies in a span of autograd's engine, else forward."""
        in_engine = any(span.name.startswith(BACKWARD) for span in self.above())
        # The gradient of the loss with respect to itself is made before autograd's spans begin.
        seed = self.name == "aten::ones_like" and [a.shape for a in self.arguments()[:1]] == [[]]
        return "backward" if in_engine or seed else "forward"

    def arguments(self) -> list[Argument]:
        """Its arguments; none where the trace does not hold their shapes and types."""
        shapes, types = self.args.get("Input Dims"), self.args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(types, list) or len(shapes) != len(types):
            return []
        strides, values = (
            [*(listed if isinstance(listed, list) else []), *[missing] * len(shapes)]
            for listed, missing in (
                (self.args.get("Input Strides"), None),
                (self.args.get("Concrete Inputs"), ""),
            )
        )
        rows = zip(map(str, types), shapes, strides, map(str, values), strict=False)
        return [Argument(*row) for row in rows]

    @property
    def external_id(self) -> int | None:
        """The number of an operator, which its kernels share."""
        # PyTorch before 1.10 writes the key in lower case.
        return self.number("External id" if "External id" in self.args else "external id")

    def number(self, name: str) -> int | None:
        """An entry of ``args`` that is a whole number; None where it is anything else."""
        value = self.args.get(name)
        return value if isinstance(value, int) else None


Groups = Mapping[int | None, Sequence[Event]]
"""Kernels by a number that they share with their launch or operator."""


@dataclass(frozen=True)
class Events:
    """A trace: the outermost spans of all threads, ordered by start; the steps in order; and the
    kernels by their launch or, where the trace lacks it, by their operator.

    ``devices`` are the names of the GPUs. ``by_profiler`` says that the trace has the mark that
    PyTorch's profiler writes when it stops. ``distributed`` holds the entries of the trace's head
    about rank, world and process groups.
    """

    roots: tuple[Event, ...]
    steps: tuple[Event, ...]
    by_correlation: Groups
    by_operator: Groups
    devices: tuple[str, ...]
    by_profiler: bool = False
    distributed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The rank that wrote the trace; None where the trace does not say."""
        rank = self.distributed.get("rank")
        return rank if type(rank) is int and rank >= 0 else None

    @cached_property
    def spans(self) -> list[Event]:
        """All spans of threads; a span comes before the spans inside it."""
        return [span for root in self.roots for span in root.inside()]

    @property
    def kernels(self) -> list[Event]:
        """All kernels and copies that ran on a GPU."""
        groups = (*self.by_correlation.values(), *self.by_operator.values())
        return [kernel for group in groups for kernel in group]


def parse_events(text: str) -> Events:
    """The events of a trace's text. Raises InputError with every problem."""
    value = parse_json(text)
    trace: Mapping[str, Any] = value if isinstance(value, dict) else {"traceEvents": value}
    entries = trace.get("traceEvents")
    if not isinstance(entries, list):
        raise InputError("not a trace: needs a list of traceEvents")
    events = _parsed(entries)
    steps = [
        (int(match[1]), event.start, event)
        for event in events
        if event.category in ANNOTATIONS and (match := STEP.match(event.name))
    ]
    kernels = [event for event in events if event.category in KERNELS]
    distributed = trace.get("distributedInfo")
    launches = {event.number("correlation") for event in events if event.category in LAUNCHES}
    launched = [kernel.number("correlation") in launches - {None} for kernel in kernels]
    return Events(
        tuple(_nested([event for event in events if event.category not in KERNELS])),
        tuple(event for _, _, event in sorted(steps, key=lambda step: step[:2])),
        _grouped(compress(kernels, launched), "correlation"),
        # A kernel whose launch the trace lacks (as in a CUDA graph) may still name its operator.
        _grouped(compress(kernels, map(not_, launched)), "External id"),
        _devices(trace.get("deviceProperties")),
        any(isinstance(entry, dict) and entry.get("name") == WINDOW_END for entry in entries),
        distributed if isinstance(distributed, dict) else {},
    )


def _parsed(entries: Sequence[object]) -> list[Event]:
    """The spans among a trace's entries. Raises InputError with every problem."""
    events, problems = [], []
    for i, entry in enumerate(entries):
        try:
            event = _event(entry)
        except InputError as error:
            problems += [f"traceEvents[{i}]{problem}" for problem in error.problems]
            continue
        if event is not None:
            events.append(event)
    if not problems and not any(event.category in OPERATORS for event in events):
        problems.append(
            "no operators (cpu_op): not a trace of torch.profiler, or one without "
            "ProfilerActivity.CPU"
        )
    if problems:
        raise InputError(problems)
    return events


def _event(entry: object) -> Event | None:
    """A complete span (``ph`` X); None for anything else. Raises InputError."""
    if not isinstance(entry, dict):
        raise InputError(": must be an object")
    category = entry.get("cat")
    known = OPERATORS | ANNOTATIONS | LAUNCHES | KERNELS
    if entry.get("ph") != "X" or not isinstance(category, str) or category not in known:
        return None
    start, duration = (
        _nanoseconds(name, entry.get(name, default)) for name, default in (("ts", None), ("dur", 0))
    )
    name, args = entry.get("name"), entry.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        raise InputError(".name: must be a text, with an object of args")
    thread = str(entry.get("pid")), str(entry.get("tid"))
    return Event(name, category, start, start + duration, thread, args)


def _nanoseconds(name: str, value: Any) -> int:
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_NS // 1000:
        raise InputError(f".{name}: must be a number of us >= 0, got {written(value)}")
    nanoseconds: int = round(value * 1000)
    return nanoseconds


def _nested(events: Sequence[Event]) -> Iterator[Event]:
    """Puts every span into the innermost span of its thread that encloses it; yields the outermost
    spans, ordered by start.
    """
    stacks: dict[tuple[str, str], list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1].end < event.end:
            stack.pop()
        # Spans that only touch are not nested.
        if stack and stack[-1].end > event.start:
            event.parent = stack[-1]
            stack[-1].children.append(event)
        else:
            yield event
        stack.append(event)


def _grouped(kernels: Iterable[Event], name: str) -> Groups:
    """Kernels by a number in their ``args``; under None where they lack it."""
    groups: defaultdict[int | None, list[Event]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.number(name)].append(kernel)
    return dict(groups)


def is_shape(value: object) -> bool:
    """Whether a value of "Input Dims" is the shape of a tensor."""
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_EXTENT for n in value
    )


def _devices(properties: object) -> tuple[str, ...]:
    """The names of the GPUs that ran something, each once."""
    entries = properties if isinstance(properties, list) else []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def busy(kernels: Sequence[Event]) -> int:
    """Nanoseconds in which at least one of the kernels runs."""
    total, end = 0, 0
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
    return total
