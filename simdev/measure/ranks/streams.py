"""Streams and events of a pretended device: they track which op waits for which.

A stream runs its ops one after another in the order in which the host issues them. An event marks
the last op issued to a stream; when another stream waits for the event, its later ops run after
that op. ``Streams`` keeps this state for one rank while its step is recorded; the stand-ins for
``torch.cuda.Stream`` and ``torch.cuda.Event`` here update it.

``pretend`` puts the stand-ins in place of PyTorch's, ``recording`` reads the streams of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

DEFAULT = ""
"""The name of a device's default stream."""


class Event:
    """A stand-in for ``torch.cuda.Event``, with the ops that have to end before it happens."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.ops: frozenset[int] = frozenset()

    def record(self, stream: Stream | None = None) -> Event:
        """Marks the ops issued so far to the stream (None: the current one)."""
        self.ops = frozenset((stream or Streams.running.current).frontier)
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """Lets the stream (None: the current one) wait for the event."""
        (stream or Streams.running.current).wait_event(self)

    def synchronize(self) -> None:
        """Lets the host wait for the event."""
        Streams.running.host_waits(self.ops)

    def query(self) -> bool:
        """Whether the event has happened: always, as nothing takes time in a capture."""
        return True

    def elapsed_time(self, _: Event) -> float:
        """Milliseconds to another event: always 1, as no time is known in a capture."""
        return 1.0


class Stream:
    """A stand-in for ``torch.cuda.Stream``. ``frontier`` holds the ops that its next op has to wait
    for: its last op, and ops of other streams.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        self.streams = Streams.running
        self.frontier: set[int] = set()
        self.name = self.streams.add(self)
        self.device = self.device_type = None
        self.priority, self.stream_id, self.cuda_stream = 0, id(self), id(self)

    def wait_event(self, event: Event) -> None:
        """Lets the next op wait for an event."""
        self.frontier |= event.ops

    def wait_stream(self, other: Stream) -> None:
        """Lets the next op wait for all ops issued so far to another stream."""
        self.frontier |= other.frontier

    def record_event(self, event: Event | None = None) -> Event:
        """An event after all ops issued so far to the stream."""
        return (event or Event()).record(self)

    def synchronize(self) -> None:
        """Lets the host wait for the stream."""
        Streams.running.host_waits(frozenset(self.frontier))

    def query(self) -> bool:
        """Whether the stream has nothing left to do: always, in a capture."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured in the stream: never, as scripts that do so are
        refused.
        """
        return False

    def __enter__(self) -> Stream:
        self.streams.entered.append(self.streams.current)
        self.streams.use(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.streams.current = self.streams.entered.pop()


class Future:
    """A stand-in for ``torch.futures.Future``: the ``result`` of a call of a process group, which
    exists once ``ops`` have ended.
    """

    def __init__(self, result: Any, ops: Iterable[int]) -> None:
        self.result, self.ops = result, frozenset(ops)

    def wait(self) -> Any:
        """The result; later ops of the current stream wait for it."""
        Streams.running.current.frontier |= self.ops
        return self.result

    def value(self) -> Any:
        """The result."""
        return self.result

    def done(self) -> bool:
        """Whether the result exists: always, as nothing takes time in a capture."""
        return True

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """The future of ``callback``'s result; the callback runs in a new stream, as on a GPU."""
        streams, stream = Streams.running, Stream()
        stream.frontier |= self.ops
        around, streams.current = streams.current, stream
        try:
            return Future(callback(self), stream.frontier)
        finally:
            streams.current = around


class Streams:
    """The streams of one rank. ``running`` is the instance of the script being captured.

    ``waits`` holds the ops for which the host waits, by the last op issued before the wait.
    ``on_cpu``: the device is a CPU, where a single thread runs all streams.
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
        """Registers a new stream; returns its name: "" for the first, then ``1``, ``2``, ..."""
        name = str(len(self.named)) if self.named else DEFAULT
        self.named[name] = stream
        return name

    def use(self, stream: Stream) -> None:
        """Makes a stream the current one."""
        if not self.on_cpu:
            self.current = stream

    def of(self, name: str) -> Stream:
        """The stream of a name (of a communicator, for example); created where it is new."""
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
        """Issues an op to the stream (None: the current one). Returns the stream's name, and the
        ops for which the op has to wait.
        """
        stream = stream or self.current
        before = frozenset(stream.frontier)
        stream.frontier, self.last = {op}, op
        return stream.name, before

    def host_waits(self, ops: frozenset[int] | None = None) -> None:
        """Notes that the host waits for these ops (None: for all ops issued to any stream)."""
        if ops is None:
            ops = frozenset(op for stream in self.named.values() for op in stream.frontier)
        if ops:
            self.waits.setdefault(self.last, set()).update(ops)
