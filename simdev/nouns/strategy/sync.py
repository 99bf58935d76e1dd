"""Sync: one mechanism, with settings, that adds up gradients where steps follow one another.

A *parcel* is the unit that is sent at once: a whole gradient, a slice of one, or a bucket of
several. It is sent by an all-reduce over the workers, or to a server that adds it up and returns
the sum. Parcels are sent in the order of their priority, and ops of the next step wait for the
parameters that they read, so the step time is a period (docs/reference/sync.md).

The policies of the literature are settings of this one mechanism (``PRESETS``): P3 (Jayarajan et
al., MLSys 2019), ByteScheduler (Peng et al., SOSP 2019), BytePS (Jiang et al., OSDI 2020), TicTac
(Hashemi et al., MLSys 2019), buckets (Li et al., VLDB 2020), local SGD (Stich, ICLR 2019).

``simdev/lowering/sync`` lowers a policy. A new policy is a row of ``PRESETS`` and of
``POLICY_MEANINGS``; a setting that no policy has yet is a field of ``Sync`` with its rule in
``simdev/lowering/sync``. The rule of a sender's credit is
``Sender`` (``simdev/lowering/sync/credit.py``), which the reference engine asks while a graph runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...ground.errors import InputError, refuse
from ...ground.units import (
    MAX_BYTES,
    Bandwidth,
    Bytes,
    Seconds,
    flag_problems,
    is_count,
    unlisted,
    unread,
    written,
)

CHOICES: Mapping[str, Collection[str]] = {
    "transport": ("all-reduce", "server"),
    "priority": ("none", "forward", "tic", "tac"),
    "credit_rule": ("wait", "skip"),
    "server_order": ("fifo", "priority"),
    "reply": ("broadcast", "pull"),
    "hold": ("in-turn", "together"),
    "spread": ("first", "hashed"),
}
SERVERS = ("sharded", "star")
MOST_LOCAL_STEPS = 10_000
"""The most steps of a round; a longer round would have too many tasks to simulate."""
# The ways to cut or gather gradients: a policy has at most one of them.
_CUTS = ("slice_parameters", "even_parameters", "bucket")


@dataclass(frozen=True, slots=True)
class Sync:
    """The settings of gradient synchronisation; ``sync_policy`` makes a Sync from the name of a
    policy and the settings that differ.

    - ``policy``: the name of the policy.
    - ``transport``: ``all-reduce`` over the workers, or ``server``.
    - ``slice_parameters``: gradients of more parameters are cut into slices of exactly this number.
      ``even_parameters``: gradients of this number of parameters or more are cut evenly, one piece
      a server. ``bucket``: gradients are gathered in the order in which they are made, until a
      bucket holds this number of bytes. At most one of the three is given; none: whole gradients.
    - ``priority``: the order of parcels in every queue: ``none`` (first come, first served),
      ``forward`` (the parcel that the next forward needs first), ``tic`` and ``tac`` (TicTac's
      orders).
    - ``credit``: bytes that a worker may have in flight to servers; none: no limit, and its send
      queue is the priority queue. ``credit_rule``: a parcel starts while any credit is left, and
      may overdraw it (``wait``, as in ByteScheduler), or only where it fits, and smaller parcels
      may overtake it (``skip``, as in BytePS).
    - ``servers``: ``sharded`` over the workers, ``star`` (the first worker), or names of devices,
      in a file ``{"machine": NAME}``. ``spread``: slice i of a gradient goes to server i
      (``first``), or i places after the server of its key (``hashed``), where whole gradients go.
    - ``server_order``: the order in which a server adds up and sends, ``fifo`` or ``priority``.
      ``aggregation``: bytes/s at which it adds up, one push at a time; none: in no time. ``reply``:
      a server sends a sum as soon as it has it (``broadcast``), or announces it and waits for a
      request (``pull``).
    - ``overlap``: a parcel is sent once its gradients are made, else after the whole backward of
      its worker.
    - ``every``: local SGD: workers update their own parameters from their own gradients, and once
      in this number of steps a parcel holds updated parameters, which the all-reduce averages
      before the next step reads them; none: gradients are sent in every step. ``overlap`` then says
      whether a parcel is sent once its parameters are updated, or after all updates of its worker.
    - ``message``: seconds that each message adds in the queue that sends it. ``hold``: a message
      holds the queues of its route ``in-turn``, or all ``together`` as other transfers do.
      ``segment``: bytes of the pieces in which a message passes several queues.

    Quantities may be texts with units. Raises InputError with every problem at once.
    """

    policy: str
    transport: str = "server"
    slice_parameters: int | None = None
    even_parameters: int | None = None
    bucket: Bytes | None = None
    priority: str = "none"
    credit: Bytes | None = None
    credit_rule: str = "wait"
    servers: str | tuple[str, ...] = "sharded"
    server_order: str = "fifo"
    aggregation: Bandwidth | None = None
    reply: str = "broadcast"
    overlap: bool = True
    message: Seconds = 0
    hold: str = "in-turn"
    segment: Bytes = 200_000
    spread: str = "first"
    every: int | None = None

    def __post_init__(self) -> None:
        problems = list(unread(self))
        names = {problem.partition(":")[0] for problem in problems}
        problems += [line for line in self._problems() if line.partition(":")[0] not in names]
        refuse(f"sync.{problem}" for problem in problems)

    def _problems(self) -> Iterator[str]:
        yield from unlisted(self, policy=PRESETS, **CHOICES)
        for name in (*_CUTS, "credit", "segment"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                yield f"{name}: must be a whole number, got {value!r}"
            elif value is not None and not 0 < value <= MAX_BYTES:
                yield (
                    f"{name}: must be > 0{', at most 2^60' if value > 0 else ''}, got "
                    f"{str(value)[:40]}"
                )
        if self.every is not None:
            yield from self._every_problems(self.every)
        cuts = [name for name in _CUTS if getattr(self, name) is not None]
        if len(cuts) > 1:
            yield f"{cuts[1]}: goes without {cuts[0]}: gradients are cut or gathered in one way"
        yield from flag_problems("overlap", self.overlap)
        yield from self._server_problems()

    def _every_problems(self, every: int) -> Iterator[str]:
        if not (is_count(every) and 0 < every <= MOST_LOCAL_STEPS):
            most = f"{MOST_LOCAL_STEPS:,}"
            yield f"every: must be a whole number of steps from 1 to {most}, got {written(every)}"
        if self.transport != "all-reduce":
            yield 'every: goes with the transport "all-reduce", which averages parameters'
        if self.overlap is True and self.bucket == MAX_BYTES:
            # A setting without effect is a misunderstanding of the user.
            yield "overlap: all parameters go at once, after all updates; give a bucket, too"
        if self.priority in ("tic", "tac"):
            yield f'every: goes without the priority "{self.priority}", an order of gradients'

    def _server_problems(self) -> Iterator[str]:
        if isinstance(self.servers, str) and self.servers not in SERVERS:
            choice = ", ".join(SERVERS)
            yield f'servers: must be one of {choice}, or name a machine, got "{self.servers}"'
        elif not isinstance(self.servers, (str, tuple)) or not all(
            isinstance(name, str) for name in self.servers
        ):
            yield f"servers: must be names of devices, got {self.servers!r}"
        elif not self.servers or (
            isinstance(self.servers, tuple) and len(set(self.servers)) < len(self.servers)
        ):
            yield "servers: must name one device at least, each once"
        if self.transport == "all-reduce":
            for name in ("even_parameters", "credit", "aggregation"):
                if getattr(self, name) is not None:
                    yield f'{name}: goes with the transport "server"'
        # A setting without effect is a misunderstanding of the user.
        if self.credit is None and self.credit_rule == "skip":
            yield "credit_rule: means something only with a credit"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that differ from the policy's preset."""
        preset = sync_policy(self.policy)
        values = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in values.items() if value != getattr(preset, name)}


def gathered(sizes: Sequence[int], first: int, limit: int) -> list[list[int]]:
    """Groups of consecutive rows, given the sizes of rows in bytes. A group is closed once it holds
    ``limit`` bytes, the first group once it holds ``first``.
    """
    groups: list[list[int]] = []
    held = 0
    for row, size in enumerate(sizes):
        if not held:
            groups.append([])
        groups[-1].append(row)
        held += size
        # The first group is smaller, so that sending begins early in the backward.
        if held >= (limit if len(groups) > 1 else first):
            held = 0
    return groups


_SERVER = {"reply": "broadcast", "slice_parameters": 50_000}
_PRIORITY = {"priority": "forward", "server_order": "priority"}
BUCKET, FIRST_BUCKET = 25 * 2**20, 2**20
"""The bytes at which PyTorch's DistributedDataParallel closes a bucket, and the first bucket."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "bulk-synchronous": {"transport": "all-reduce", "overlap": False},
    "bucketed": {"transport": "all-reduce", "bucket": BUCKET},
    "parameter-server": {"even_parameters": 1_000_000, "reply": "pull"},
    "sliced": _SERVER,
    "p3": _SERVER | _PRIORITY,
    "byte-scheduler": {
        "slice_parameters": 1_000_000,
        "spread": "hashed",
        "priority": "forward",
        "credit": 16_000_000,
        "reply": "pull",
    },
    "byteps": {
        "slice_parameters": 1_024_000,
        "spread": "hashed",
        "priority": "forward",
        "reply": "pull",
    },
    "tic": {"priority": "tic", "server_order": "priority"},
    "tac": {"priority": "tac", "server_order": "priority"},
    # PyTorch's average_parameters sends all parameters as one flat tensor.
    "local-sgd": {"transport": "all-reduce", "overlap": False, "bucket": MAX_BYTES, "every": 4},
}
"""The settings behind a policy's name; the other fields keep the defaults of Sync.

ByteScheduler's partition is a million parameters, its credit four partitions. BytePS's partition is
4,096,000 bytes, and it has no credit by default (with one, its ``credit_rule`` is "skip").
"""
POLICY_MEANINGS: Mapping[str, str] = {
    "bulk-synchronous": "An all-reduce of each gradient after the backward.",
    "bucketed": "All-reduces of 25 MiB, overlapped, as PyTorch's DistributedDataParallel.",
    "parameter-server": "MXNet's: gradients of a million parameters or more in one even piece a "
    "server, others whole; each sum is announced and asked for.",
    "sliced": "Slices of 50,000 parameters, in order, broadcast at once.",
    "p3": "The same slices by priority, at workers and servers (Jayarajan et al., MLSys 2019).",
    "byte-scheduler": "Slices of a million parameters by priority, with a credit of four of them "
    "(Peng et al., SOSP 2019).",
    "byteps": "Pieces of 4,096,000 bytes by priority, on servers of their own: name these in "
    "``servers`` (Jiang et al., OSDI 2020).",
    "tic": "Whole gradients in TicTac's timing-independent order (Hashemi et al., MLSys 2019).",
    "tac": "Whole gradients in TicTac's timing-aware order.",
    "local-sgd": "Steps of each worker alone; after every fourth (``every``) an all-reduce "
    "averages all parameters at once, as PyTorch's PeriodicModelAverager (Stich, ICLR 2019).",
}
"""A sentence on each policy."""


def sync_policy(policy: str, /, **settings: Any) -> Sync:
    """The settings of a policy, some replaced by the given ones: ``sync_policy("p3",
    aggregation="0.8 GB/s")``.

    A given way to cut gradients replaces the policy's. Raises InputError.
    """
    if policy not in PRESETS:
        raise InputError(f'sync.policy: must be one of {", ".join(PRESETS)}, got "{policy}"')
    preset = dict(PRESETS[policy])
    if any(settings.get(name) is not None for name in _CUTS):
        preset |= dict.fromkeys(_CUTS)
    # All-reduce has no use for settings that only servers have.
    if settings.get("transport") == "all-reduce":
        preset |= {name: None for name in ("even_parameters", "credit") if name in preset}
    unknown = [f"sync.{name}: no such setting" for name in settings if name not in _FIELDS]
    refuse(unknown)
    return Sync(policy, **(preset | settings))


_FIELDS = [field.name for field in fields(Sync) if field.name != "policy"]
