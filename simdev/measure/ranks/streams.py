"""Streams and events of a device that is not there: which op waits for which, as a script asks.

A stream runs its ops one after another in the order in which the host issues them. An event marks
the last op that a stream was given; another stream that waits for it runs what it is given from
then on behind that op. ``Streams`` keeps this for one rank while its step is recorded, and the
stand-ins of ``torch.cuda.Stream`` and ``torch.cuda.Event`` here tell it what the script asks.

``pretend`` puts the stand-ins in place of PyTorch's, ``recording`` asks where an op was issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

DEFAULT = ""
"""The name of the stream in which a device computes where nothing else is said."""


class Event:
    """Stand-in of ``torch.cuda.Event``: the ops that have to end before it has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ops: frozenset[int] = frozenset()

    def record(self, stream: Stream | None = None) -> Event:
        """Marks what the stream (None: the current one) was given so far."""
        self.ops = frozenset((stream or Streams.running.current).frontier)
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """Lets the stream (None: the current one) wait for the event."""
        (stream or Streams.running.current).wait_event(self)

    def synchronize(self) -> None:
        """Lets the host wait for the event."""
        Streams.running.host_waits(self.ops)

    def query(self) -> bool:
        """Whether the event has happened; nothing takes time here."""
        return True

    def elapsed_time(self, _: Event) -> float:
        """Milliseconds to another event: no time is known while a script is captured."""
        return 1.0


class Stream:
    """Stand-in of ``torch.cuda.Stream``. ``frontier`` are the ops that whatever it is given next
    comes behind: the last op, and those of other streams for which it waits.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        self.streams = Streams.running
        self.frontier: set[int] = set()
        self.name = self.streams.add(self)
        self.device = self.device_type = None
        self.priority, self.stream_id, self.cuda_stream = 0, id(self), id(self)

    def wait_event(self, event: Event) -> None:
        """Lets what comes next wait for an event."""
        self.frontier |= event.ops

    def wait_stream(self, other: Stream) -> None:
        """Lets what comes next wait for all that another stream was given so far."""
        self.frontier |= other.frontier

    def record_event(self, event: Event | None = None) -> Event:
        """An event behind all that the stream was given so far."""
        return (event or Event()).record(self)

    def synchronize(self) -> None:
        """Lets the host wait for the stream."""
        Streams.running.host_waits(frozenset(self.frontier))

    def query(self) -> bool:
        """Whether the stream has nothing left to do."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is made of what the stream is given: of no script here."""
        return False

    def __enter__(self) -> Stream:
        self.streams.entered.append(self.streams.current)
        self.streams.use(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.streams.current = self.streams.entered.pop()


class Future:
    """Stand-in of ``torch.futures.Future``: what a call of a process group brings, ``result``, once
    ``ops`` have ended.
    """

    def __init__(self, result: Any, ops: Iterable[int]) -> None:
        self.result, self.ops = result, frozenset(ops)

    def wait(self) -> Any:
        """The result; what the current stream is given from now on comes behind it."""
        Streams.running.current.frontier |= self.ops
        return self.result

    def value(self) -> Any:
        """The result."""
        return self.result

    def done(self) -> bool:
        """Whether the result is there; nothing takes time here."""
        return True

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """The future of what ``callback`` makes of this one, in a stream of its own as on a GPU."""
        streams, stream = Streams.running, Stream()
        stream.frontier |= self.ops
        around, streams.current = streams.current, stream
        try:
            return Future(callback(self), stream.frontier)
        finally:
            streams.current = around


class Streams:
    """The streams of one rank. ``running`` are those of the script that is captured now.

    ``waits`` are the ops for which the host waits, by the op that it issued last before.
    ``on_cpu``: the device is a CPU, one thread of which does all, in whichever stream.
    """

    running: Streams

    def __init__(self) -> None:
        Streams.running = self
        self.named: dict[str, Stream] = {}
        self.entered: list[Stream] = []
        self.waits: dict[int, set[int]] = {}
        self.last = -1
        self.on_cpu = False
        self.current = self.default = Stream()

    def add(self, stream: Stream) -> str:
        """Takes a new stream in; returns its name: "" of the first, else ``1``, ``2``, ..."""
        name = str(len(self.named)) if self.named else DEFAULT
        self.named[name] = stream
        return name

    def use(self, stream: Stream) -> None:
        """Makes a stream the current one."""
        if not self.on_cpu:
            self.current = stream

    def of(self, name: str) -> Stream:
        """The stream of a name, such as the one of a communicator; made where it is new."""
        if name not in self.named:
            stream = Stream()
            del self.named[stream.name]
            stream.name, self.named[name] = name, stream
        return self.named[name]

    def clear(self) -> None:
        """Forgets all ops: a step begins."""
        self.waits.clear()
        for stream in self.named.values():
            stream.frontier.clear()

    def issue(self, op: int, stream: Stream | None = None) -> tuple[str, frozenset[int]]:
        """Gives the stream (None: the current one) an op: the stream's name, and the ops for which
        the op has to wait.
        """
        stream = stream or self.current
        before = frozenset(stream.frontier)
        stream.frontier, self.last = {op}, op
        return stream.name, before

    def host_waits(self, ops: frozenset[int] | None = None) -> None:
        """Notes that the host waits for these ops (None: for all that any stream was given)."""
        if ops is None:
            ops = frozenset(op for stream in self.named.values() for op in stream.frontier)
        if ops:
            self.waits.setdefault(self.last, set()).update(ops)
