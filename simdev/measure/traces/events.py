"""The events of a Kineto trace: operators nested on their threads, the kernels that they launched,
the steps.

Times are us with three decimals whatever ``displayTimeUnit`` says (that is a wish about the
display); here they are whole nanoseconds. A kernel runs long after its launch: the two share a
``correlation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ...errors import InputError
from ...files.reading import parse_json

OPERATORS = frozenset({"cpu_op", "Operator", "operator"})
ANNOTATIONS = frozenset({"user_annotation"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "runtime"})
KERNELS = frozenset({"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
STEP = re.compile(r"ProfilerStep#(\d{1,18})(?!\d)")
OPTIMIZER, BACKWARD = "Optimizer.step", "autograd::engine::evaluate_function"
MOST_NS = 2**62
MOST_EXTENT = 2**62  # of a dimension: PyTorch counts in 64 bits


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
        """Its time in ns, with that of everything inside it."""
        return self.end - self.start

    def above(self) -> Iterator[Event]:
        """The spans that it lies in, innermost first."""
        one = self.parent
        while one is not None:
            yield one
            one = one.parent

    def inside(self) -> Iterator[Event]:
        """It and all spans inside it."""
        stack = [self]
        while stack:
            one = stack.pop()
            yield one
            stack.extend(reversed(one.children))

    @property
    def phase(self) -> str:
        """Forward or backward, by whether it lies in a span of autograd's engine."""
        return (
            "backward" if any(one.name.startswith(BACKWARD) for one in self.above()) else "forward"
        )


@dataclass(frozen=True)
class Events:
    """A trace: outermost spans of all threads by their starts, steps by number, kernels by what
    launched them.

    ``devices`` are the names of the GPUs, ``has_kernels`` tells whether any ran.
    """

    roots: tuple[Event, ...]
    steps: tuple[tuple[int, Event], ...]
    by_correlation: Mapping[int, tuple[Event, ...]]
    by_operator: Mapping[int, tuple[Event, ...]]
    devices: tuple[str, ...]

    @property
    def has_kernels(self) -> bool:
        """Whether anything ran on a GPU."""
        return bool(self.by_correlation or self.by_operator)

    def kernels(self, operator: Event) -> list[Event]:
        """What an operator, and all inside it, ran on a GPU."""
        found: dict[int, Event] = {}
        for one in operator.inside():
            key = _number(one, "correlation") if one.category in LAUNCHES else None
            ran = self.by_correlation.get(key, ()) if key is not None else ()
            if not ran and one.category in OPERATORS:
                ran = self.by_operator.get(_id(one), ())
            found |= {id(kernel): kernel for kernel in ran}
        return list(found.values())


def parse_events(text: str) -> Events:
    """The events of a trace's text. Raises InputError with every problem."""
    value = parse_json(text)
    told: Mapping[str, Any] = value if isinstance(value, dict) else {"traceEvents": value}
    listed = told.get("traceEvents")
    if not isinstance(listed, list):
        raise InputError("not a trace: needs a list of traceEvents")
    events, problems = [], []
    for i, one in enumerate(listed):
        try:
            event = _event(one)
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
    steps = [
        (int(found[1]), one)
        for one in events
        if (found := STEP.match(one.name)) and one.category in ANNOTATIONS
    ]
    kernels = [one for one in events if one.category in KERNELS]
    launched = {_number(one, "correlation") for one in events if one.category in LAUNCHES} - {None}
    return Events(
        tuple(_nested([one for one in events if one.category not in KERNELS])),
        tuple(sorted(steps, key=lambda step: (step[0], step[1].start))),
        _by(kernels, "correlation", launched),
        _by(
            [one for one in kernels if _number(one, "correlation") not in launched],
            "External id",
            None,
        ),
        _devices(told),
    )


def _event(one: object) -> Event | None:
    """A complete span (``ph`` X); None for anything else. Raises InputError."""
    if not isinstance(one, dict):
        raise InputError(": must be an object")
    category = one.get("cat")
    known = OPERATORS | ANNOTATIONS | LAUNCHES | KERNELS
    if one.get("ph") != "X" or not isinstance(category, str) or category not in known:
        return None
    times = [
        _nanoseconds(name, one.get(name, 0 if name == "dur" else None)) for name in ("ts", "dur")
    ]
    name, args = one.get("name"), one.get("args", {})
    if not isinstance(name, str) or not isinstance(args, dict):
        raise InputError(".name: must be a text, with an object of args")
    thread = str(one.get("pid")), str(one.get("tid"))
    return Event(name, category, times[0], times[0] + times[1], thread, args)


def _nanoseconds(name: str, value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, Decimal))
        or not 0 <= value <= MOST_NS // 1000
    ):
        raise InputError(f".{name}: must be a number of us >= 0, got {value!r}")
    return round(value * 1000)


def _nested(events: Sequence[Event]) -> Iterator[Event]:
    """Puts every span into the innermost one of its thread that holds it; yields those that none
    holds, by start.
    """
    stacks: dict[tuple[str, str], list[Event]] = {}
    for event in sorted(events, key=lambda one: (one.start, -one.end)):
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1].end < event.end:
            stack.pop()
        if stack and stack[-1].end > event.start:
            event.parent = stack[-1]
            stack[-1].children.append(event)
        else:
            yield event
        stack.append(event)


def _by(
    kernels: Sequence[Event], name: str, known: set[Any] | None
) -> dict[int, tuple[Event, ...]]:
    found: dict[int, list[Event]] = {}
    for kernel in kernels:
        key = _number(kernel, name)
        if key is not None and (known is None or key in known):
            found.setdefault(key, []).append(kernel)
    return {key: tuple(ran) for key, ran in found.items()}


def _number(event: Event, name: str) -> int | None:
    """An argument that is a whole number; None where it is something else, or not told."""
    found = event.args.get(name)
    return found if isinstance(found, int) else None


def is_shape(value: object) -> bool:
    """Whether an argument's dimensions are those of a tensor."""
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_EXTENT for n in value
    )


def _id(event: Event) -> int:
    found = event.args.get("External id", event.args.get("external id"))
    return found if isinstance(found, int) else -1


def _devices(told: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the GPUs that ran something, each once."""
    listed = told.get("deviceProperties")
    names = (
        [one.get("name") for one in listed if isinstance(one, dict)]
        if isinstance(listed, list)
        else []
    )
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def busy(kernels: Sequence[Event]) -> int:
    """Nanoseconds in which any of the kernels runs: those of several streams at once count once."""
    total, end = 0, 0
    for one in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0, one.end - max(one.start, end))
        end = max(end, one.end)
    return total
