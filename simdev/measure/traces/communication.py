"""The communications of a traced rank: kernels of NCCL, and calls of ``c10d`` on a CPU.

PyTorch records every call of a process group (``record_param_comms``) with its kind, elements,
dtype and group, and Kineto also writes these into the args of the kernel (saveNcclMeta of
torch/csrc/profiler/util.cpp). Gloo records none of this: there the size follows from the shapes of
the call's arguments, and the end from a span ``gloo:...``, mostly on another thread.

``calls`` separates these kernels from computation, ``ranks`` joins those of several ranks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

from ...nouns.meetings import RECEIVE, SEND, Communication
from ..kinds import communication_kind
from .events import ANNOTATIONS, KERNELS, Event, Events, is_shape
from .replay import DTYPES

BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of an element, by the name of its type (c10/core/ScalarType.h); other types have 1 byte."""
BATCHES = "SendRecv", "Generic"  # in the names of kernels of NCCL and RCCL
RECORDED, C10D, GLOO = "record_param_comms", "c10d::", "gloo:"
# FSDP names the module in whose hook it communicates.
HOOK = re.compile(r"FSDP::[\w ]+ \(?([\w.]+)\)?\Z")


def is_communication(event: Event) -> bool:
    """Whether a kernel, or an operator on a CPU, is a communication."""
    if event.category in KERNELS:
        return "Collective name" in event.args or "nccl" in event.name[:12].lower()
    return (
        event.name.startswith(C10D)
        and communication_kind(event.name.removeprefix(C10D)) is not None
    )


def module_of(event: Event | None) -> str:
    """The path of the module in whose hook (of FSDP) a call communicates; "" where the trace does
    not name it.
    """
    spans = () if event is None else event.above()
    matches = (HOOK.match(span.name) for span in spans if span.category in ANNOTATIONS)
    return next((match[1].replace(".", "/") for match in matches if match), "")


class Communications:
    """Reads the communications of kernels and calls in the trace of a rank."""

    def __init__(self, events: Events) -> None:
        self._groups = {
            str(group.get("pg_name")): _ranks(group.get("ranks"))
            for group in _listed(events.distributed.get("pg_config"))
            if isinstance(group, Mapping)
        }
        self._spans = events.spans
        self.rank = events.rank if events.rank is not None else 0
        self._until = 0

    def of_kernel(self, launch: Event | None, kernel: Event) -> list[Communication]:
        """The communications of a kernel: none where the trace does not record them, several for a
        batch of messages (sends first). Must be called in the order of the kernels' launches.
        """
        spans = [] if launch is None else [*launch.above()]
        recorded = next((span.args for span in spans if span.name == RECORDED), {})
        call = self._recorded({**recorded, **kernel.args})
        start, self._until = self._until, launch.start if launch else self._until
        if call is not None or launch is None or not any(n in kernel.name for n in BATCHES):
            return [call] if call else []
        # The messages of a batch are recorded one by one, before the batch is launched.
        starts = [span.start for span in self._messages]
        batch = self._messages[bisect_left(starts, start) : bisect_left(starts, launch.start)]
        calls = filter(None, (self._recorded(span.args) for span in batch))
        return sorted(calls, key=lambda call: call.kind != SEND)

    def of_call(self, event: Event, work: Event | None) -> list[Communication]:
        """The communication of a call of ``c10d`` on a CPU. ``work`` is the span of gloo that
        carried it out; it has the element type of tensors in a list.
        """
        kind = communication_kind(event.name.removeprefix(C10D))
        spans = [event] if work is None else [work, event]
        types = (DTYPES.get(argument.type) for span in spans for argument in span.arguments())
        dtype = next(filter(None, types), None)
        tensors = [
            prod(shape) * dtype.itemsize
            for argument in event.arguments()
            for shape in (argument.shape if argument.type == "TensorList" else [argument.shape])
            if dtype and is_shape(shape) and argument.type in (*DTYPES, "TensorList")
        ]
        if "barrier" in event.name:
            tensors = [1]
        if kind is None or not tensors:
            return []
        numbers = [argument.text for argument in event.arguments() if argument.type == "Scalar"]
        peer = int(numbers[0]) if kind in (SEND, RECEIVE) and numbers else -1
        size = min(tensors) if kind == "all_gather" else max(tensors)
        # The trace does not name the group, so the first group is assumed.
        ranks = next(iter(self._groups.values()), ())
        return [Communication(self.rank, 0, kind, size, "", ranks, peer, blocking=kind != SEND)]

    @cached_property
    def _messages(self) -> list[Event]:
        """The recorded sends and receives, ordered by start."""
        spans = [span for span in self._spans if span.name == RECORDED]
        kinds = [communication_kind(span.args.get("Collective name")) for span in spans]
        pairs = zip(spans, kinds, strict=True)
        messages = [span for span, kind in pairs if kind in (SEND, RECEIVE)]
        return sorted(messages, key=lambda span: span.start)

    def _recorded(self, args: Mapping[str, Any]) -> Communication | None:
        kind = communication_kind(args.get("Collective name"))
        sent, got = args.get("In msg nelems"), args.get("Out msg nelems")
        if kind is None or not isinstance(sent, int) or not isinstance(got, int):
            return None
        elements = sent if kind == "all_gather" else max(sent, got)
        name = str(args.get("Process Group Name", ""))
        call = Communication(
            self.rank, 0, kind, elements * BYTES.get(str(args.get("dtype")), 1),
            name, self._members(args, name), blocking=kind != SEND,
        )  # fmt: skip
        if call.is_message:
            return replace(call, peer=self._peer(call, args))
        root = args.get("Rank") if kind in ("broadcast", "reduce") else None
        if isinstance(root, int) and 0 < root < len(call.ranks):
            return replace(call, ranks=(*call.ranks[root:], *call.ranks[:root]))
        return call

    def _members(self, args: Mapping[str, Any], name: str) -> tuple[int, ...]:
        """The ranks of a group. PyTorch cuts the list after 30 ranks: then they come from the
        trace's head, or from the first rank and the stride.
        """
        text = args.get("Process Group Ranks")
        if "..." not in str(text) and (ranks := _ranks(text)):
            return ranks
        if name in self._groups:
            return self._groups[name]
        keys = ("Global rank start", "Global rank stride", "Group size")
        start, stride, size = (args.get(key) for key in keys)
        if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int):
            return tuple(range(start, start + stride * size, stride)) if stride > 0 else ()
        return ()

    def _peer(self, call: Communication, args: Mapping[str, Any]) -> int:
        peer = args.get("Dst Rank" if call.kind == SEND else "Src Rank")
        if isinstance(peer, int):
            return peer
        # In a group of two the peer is the other rank.
        others = [rank for rank in call.ranks if rank != self.rank]
        return others[0] if len(others) == 1 else -1


def _ranks(value: Any) -> tuple[int, ...]:
    """The ranks in a list, or in a list written as a text."""
    if isinstance(value, str):
        value = [int(number) for number in re.findall(r"[0-9]{1,9}", value)]
    return tuple(rank for rank in _listed(value) if isinstance(rank, int))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def works_of(events: Events, calls: Iterable[Event]) -> dict[int, Event]:
    """The span of gloo that carried out each of these calls, by the call's ``id``: the first span
    that begins after the call does and belongs to no earlier call.
    """
    spans = [
        span for span in events.spans if span.name.startswith(GLOO) and span.category in ANNOTATIONS
    ]
    works = sorted(spans, key=lambda span: span.start)
    matched: dict[int, Event] = {}
    following = 0
    for call in sorted(calls, key=lambda call: call.start):
        while following < len(works) and works[following].start < call.start:
            following += 1
        if following < len(works):
            matched[id(call)] = works[following]
            following += 1
    return matched


def is_finished(work: Event) -> bool:
    """Whether the end of gloo's span is known."""
    return work.args.get("finished") is not False
