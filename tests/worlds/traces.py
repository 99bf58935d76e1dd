"""Traces written by hand as spans in ps, so that tests of a trace's readers need no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simdev.nouns.taskgraph import (
    BUFFER_KINDS,
    PERSISTENT,
    TRANSFER,
    Buffers,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from simdev.nouns.trace import Trace
from worlds.programs import words

ACTIVATIONS = BUFFER_KINDS.index("activations")


@dataclass(frozen=True)
class Span:
    """A task with its start and finish; with a ``to`` (device) it is a transfer."""

    name: str
    start: int
    finish: int
    on: str | Sequence[str] = ()
    after: str | Sequence[str] = ()
    at: int = 0
    to: int | None = None
    kind: str = "forward"
    size: int = 0
    lag: int = 0
    gap: int = 0
    links: Sequence[int] = ()
    held: int = 0  # latency in ps before a flow enters its links


@dataclass(frozen=True)
class Held:
    """A buffer; without a filler it is persistent."""

    name: str
    at: int
    size: int
    filler: str | None = None
    readers: str = ""


def trace_of(
    spans: Sequence[Span],
    devices: Sequence[str] = ("gpu:0", "gpu:1"),
    capacity: Sequence[int] | None = None,
    buffers: Sequence[Held] = (),
    links: Sequence[str] = (),
) -> Trace:
    """The trace of these spans. A span's ``on`` is a list of queues, or a string, which is a single
    queue (names of queues may hold spaces).
    """
    row = {span.name: i for i, span in enumerate(spans)}
    queues = list(dict.fromkeys([*devices, *(queue for span in spans for queue in _queues(span))]))
    graph = TaskGraph(
        _tasks(spans, row, queues),
        tuple(Resource(queue, device=_device(queue, devices)) for queue in queues),
        _buffers(buffers, row),
        tuple(devices),
        np.array(capacity if capacity is not None else [-1] * len(devices), np.int64),
        tuple(links),
        np.full(len(links), 1e12),
    )
    start, finish = (
        np.array([getattr(span, end) for span in spans], np.int64) for end in ("start", "finish")
    )
    return Trace(graph, start, finish, "by hand")


def _queues(span: Span) -> list[str]:
    return [span.on] if isinstance(span.on, str) else list(span.on)


def _device(queue: str, devices: Sequence[str]) -> int:
    if queue in devices:
        return devices.index(queue)
    return next(
        (d for d, name in enumerate(devices) if queue in (f"send {name}", f"recv {name}")), -1
    )


def _tasks(spans: Sequence[Span], row: dict[str, int], queues: list[str]) -> Tasks:
    successors: list[list[int]] = [[] for _ in spans]
    for i, span in enumerate(spans):
        for name in words(span.after):
            successors[row[name]].append(i)
    columns = ("at", "lag", "gap", "size")
    numbers = {
        name: np.array([getattr(span, name) for span in spans], np.int64) for name in columns
    }
    zeros = np.zeros(len(spans), np.int64)
    flow = np.array([bool(span.links) for span in spans], bool)
    return Tasks(
        name=tuple(span.name for span in spans),
        kind=tuple(span.kind if span.to is None else TRANSFER for span in spans),
        op=zeros - 1,
        output=zeros,
        source=numbers["at"],
        destination=np.array([span.at if span.to is None else span.to for span in spans], np.int64),
        duration=np.array(
            [span.held if span.links else span.finish - span.start for span in spans], np.int64
        ),
        lag=numbers["lag"],
        gap=numbers["gap"],
        priority=zeros,
        bytes=numbers["size"],
        flow=flow,
        resources=Rows.of([queues.index(queue) for queue in _queues(span)] for span in spans),
        links=Rows.of(span.links for span in spans),
        successors=Rows.of(successors),
    )


def _buffers(buffers: Sequence[Held], row: dict[str, int]) -> Buffers:
    filler = [PERSISTENT if one.filler is None else row[one.filler] for one in buffers]
    return Buffers(
        tuple(one.name for one in buffers),
        np.array([one.at for one in buffers], np.int64),
        np.array([one.size for one in buffers], np.int64),
        np.array([ACTIVATIONS if one.filler else 0 for one in buffers], np.int64),
        np.array(filler, np.int64),
        Rows.of([row[name] for name in words(one.readers)] for one in buffers),
    )


def two_devices(capacity: Sequence[int] | None = None) -> Trace:
    """A trace of two devices and a transfer between them; times are ps, sizes bytes.

    ::

        gpu:0       a[0,10)  b[12,20)            gap 2 after each op
        send gpu:0           x[10,16)            lag 4: c is released at 20
        recv gpu:1           x[10,16)
        gpu:1                        c[20,25)    d[26,30)    gap 1
    """
    return trace_of(
        [
            Span("a", 0, 10, "gpu:0", gap=2),
            Span("b", 12, 20, "gpu:0", gap=2),
            Span("c", 20, 25, "gpu:1", "a:0>gpu:1", at=1, kind="backward", gap=1),
            Span("d", 26, 30, "gpu:1", "a:0>gpu:1", at=1, kind="update", gap=1),
            Span("a:0>gpu:1", 10, 16, ("send gpu:0", "recv gpu:1"), "a", to=1, size=6, lag=4),
        ],
        capacity=capacity,
        buffers=[
            Held("weights", 0, 100),
            Held("a:0", 0, 6, "a", "a:0>gpu:1"),
            Held("a:0 on gpu:1", 1, 6, "a:0>gpu:1", "c d"),
            Held("c:0", 1, 3, "c"),
        ],
    )


HOSTILE = (
    "<script>alert(1)</script>",
    "$\\frac{1}{0}$",
    'quote " and \\ back',
    "a\\$b$",
    "日本語 ✓ 🚀",
    "%s {0} &amp;",
    "x" * 256,
)


def hostile() -> Trace:
    """A trace whose tasks and devices have names that look like markup, mathtext or formats, or are
    too long.
    """
    devices = (HOSTILE[0], HOSTILE[1])
    spans = [
        Span(name, i * 10, i * 10 + 10, devices[i % 2], at=i % 2, kind=name)
        for i, name in enumerate(HOSTILE)
    ]
    spans.append(Span(f"x:0>{devices[1]}", 10, 70, f"send {devices[0]}", HOSTILE[0], to=1, size=5))
    return trace_of(spans, devices, capacity=[2, -1], buffers=[Held(HOSTILE[0], 0, 3, HOSTILE[0])])
