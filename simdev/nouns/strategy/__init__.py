"""Strategy: how a step is spread over the devices: a placement, how ops are split, and the order in
which queues are served. Its larger parts have modules of their own: ``placement`` (placements and
configurations of ops), ``sync`` (policies of synchronisation) and ``parallelism`` (pipelines and
large models).

``simdev/files/strategy.py`` reads strategies and takes its types from the fields here, where each
has its meaning; lowering has a pass for each field. An order of ops is a name in ``POLICIES``; its
queues are set in ``simdev/lowering/__init__.py``, and with hosts in ``simdev/lowering/turns.py``
and, in another way, ``simdev/execution/check/hosts.py``. A short form is a row of
``SHORT_MEANINGS`` and a rule of ``simdev/lowering/partition/short.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Annotated, Any

from ...ground.errors import InputError, refuse
from ...ground.frozen import FrozenDict, freeze
from ...ground.registry import Displayed
from ...ground.units import (
    Seconds,
    Unit,
    decimal_text,
    is_count,
    name_problems,
    parse_slowdown,
    unlisted,
    unread,
)
from .parallelism import DEGREES, Parallelism, degrees_over_one
from .placement import (
    NOWHERE,
    Configuration,
    Origin,
    Resolved,
    Resolver,
    named,
    placed,
    resolve_partition,
    resolve_placement,
)
from .sync import POLICY_MEANINGS, PRESETS, Sync, sync_policy

__all__ = [
    "ALGORITHMS",
    "COSTS",
    "DEGREES",
    "NOWHERE",
    "POLICIES",
    "POLICY_MEANINGS",
    "POLICY_NAMES",
    "PRESETS",
    "SHORT_FORMS",
    "SHORT_MEANINGS",
    "SYNCS",
    "Collectives",
    "Configuration",
    "Loader",
    "Order",
    "Origin",
    "Parallelism",
    "Resolved",
    "Resolver",
    "Strategy",
    "Sync",
    "choice_problems",
    "default_sync",
    "degrees_over_one",
    "named",
    "no_sync",
    "placed",
    "resolve_partition",
    "resolve_placement",
    "settled_cost",
    "sync_of",
    "sync_policy",
]

FORMS = ("ring", "tree", "hierarchical", "direct")
ALGORITHMS = ("auto", *FORMS)
COSTS = ("auto", "closed", "table", "expanded", "given")


@dataclass(frozen=True, slots=True)
class Collectives:
    """How collective ops run unless their attributes say otherwise.

    - ``algorithm``: one of ALGORITHMS; "auto" is the fastest.
    - ``cost``: "closed", one task of the length of the closed form; "table", of the time in
      ``tables`` (the fastest closed form where they hold none); "expanded", its messages one by
      one; "given", as long as its op tells, else as "closed"; "auto" as ``settled_cost`` has it.
    - ``tables``: CollectiveTables measured inside one node; none: those that the cluster names.
    - ``chunks``: into how many a broadcast or reduce along a chain is cut (None: the number of
      least closed form).
    - ``slowdown``: how many times longer computation and a collective take while they share a
      device (1: they do not slow each other; Galvatron, VLDB 2022, has 1.3). At most 2: what shares
      a device is no slower than in turn.
    - ``groups``: process groups by name, each the names of its devices in the order of its ranks. A
      collective op that names a group (its attribute ``group``) takes as long as among all of them,
      though ``ranks`` has only those that are simulated: the others do as these do.
    """

    algorithm: str = ALGORITHMS[0]
    cost: str = COSTS[0]
    tables: tuple[Any, ...] = ()
    chunks: int | None = None
    slowdown: Annotated[Fraction, Unit(parse_slowdown, decimal_text)] = Fraction(1)
    groups: Mapping[str, tuple[str, ...]] = FrozenDict()

    def __post_init__(self) -> None:
        freeze(self, "groups")
        problems = list(choice_problems(self.algorithm, self.cost, self.chunks))
        problems += [
            f'groups["{name}"]: must name two devices at least, each once'
            for name, members in self.groups.items()
            if not 1 < len(set(members)) == len(members)
        ]
        # A path is a sequence too; its letters would be taken for tables.
        tables: object = self.tables
        if not isinstance(tables, Sequence) or isinstance(tables, str):
            problems.append("tables: must hold measured tables; files.read_collectives reads them")
        refuse(f"collectives.{problem}" for problem in [*problems, *unread(self)])
        object.__setattr__(self, "tables", tuple(self.tables))


def settled_cost(cost: str, algorithm: str, measured: bool) -> str:
    """The way to cost a collective, with "auto" settled: by tables where there are any
    (``measured``) and no algorithm is asked for, since they hold the one that the library took.
    """
    if cost != "auto":
        return cost
    return "table" if measured and algorithm == "auto" else "closed"


def choice_problems(algorithm: object, cost: object, chunks: object) -> list[str]:
    """``field: reason`` for each fault of an algorithm, a way to cost it and a number of chunks."""
    problems = [
        f"{name}: must be one of {', '.join(choice)}, got {_shown(value)}"
        for name, value, choice in (("algorithm", algorithm, ALGORITHMS), ("cost", cost, COSTS))
        if value not in choice
    ]
    if chunks is not None and not (is_count(chunks) and chunks):
        problems.append(f"chunks: must be a whole number > 0, at most 2^60, got {_shown(chunks)}")
    return problems


def _shown(value: object) -> str:
    return f'"{value[:40]}"' if isinstance(value, str) else str(value)[:40]


@dataclass(frozen=True, slots=True)
class Loader:
    """Batches are made on ``device`` (a host), each in ``time`` seconds, and copied from there.

    All worker processes together make a batch in that time. Where steps follow one another the next
    batch is made and copied while a step runs: it begins when the first ops of that step have read
    theirs. Raises InputError.
    """

    device: str
    time: Seconds = Fraction(0)

    def __post_init__(self) -> None:
        problems = [*name_problems("device", self.device), *unread(self)]
        refuse(f"loader.{problem}" for problem in problems)


POLICIES = ("fifo", "program", "priority", "fixed")
SYNCS = ("all-reduce", "parameter-server", "sharded", "bucketed")
SHORT_MEANINGS: Mapping[str, str] = {
    "data-parallel": "Every input is cut along its samples; all else follows.",
    "model-parallel": "Layers are put on devices one after the other, balanced by their forward "
    "cost. A layer is an op with a weight and what follows it without one, at all of its steps "
    "(``lstm@3``).",
    "owt": "One weird trick: data parallel, but layers of class gemm with a weight are split along "
    "their output channels, in as many equal parts as there are devices, or the most that are "
    "fewer.",
    "expert": "Layers of recurrent networks are put on the devices of a node, samples across "
    "nodes; other networks are split as by ``owt``.",
}
"""The meaning of each short form of a strategy."""
SHORT_FORMS = tuple(SHORT_MEANINGS)
# Each microbatch is lowered: beyond this a graph has more tasks than a step can have.
MOST_MICROBATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    """The order of queues.

    ``fifo``: by readiness. ``program``: each device runs its ops in program order. ``priority``:
    smaller first, 0 where nothing is said; a transfer takes the smallest of its consumers.
    ``fixed``: each queue named in ``sequence`` ("gpu:0", "send gpu:0") serves exactly the given ops
    or transfers ("op:output>device"); other queues stay fifo.
    """

    policy: str = "fifo"
    priority: Mapping[str, int] = FrozenDict()
    sequence: Mapping[str, tuple[str, ...]] = FrozenDict()

    def __post_init__(self) -> None:
        freeze(self, "priority", "sequence")
        refuse(f"order.{problem}" for problem in unlisted(self, policy=POLICIES))
        for name, policy in (("priority", "priority"), ("sequence", "fixed")):
            if getattr(self, name) and self.policy != policy:
                raise InputError(
                    f'order.{name}: goes with the policy "{policy}", not with "{self.policy}"'
                )


def default_sync(short: str | None) -> str:
    """How gradients are added up where nothing is told: in buckets under "data-parallel", as
    frameworks do.
    """
    # PyTorch's DistributedDataParallel and Horovod gather small gradients before they send them.
    return "bucketed" if short == "data-parallel" else SYNCS[0]


POLICY_NAMES = tuple(name for name in PRESETS if name not in SYNCS)
"""Policies that a text alone names; the others share their name with a way to add up gradients in
one step, which the text means.
"""


def sync_of(name: str) -> str | Sync:
    """The synchronisation that a text names: one of SYNCS as it is, or the policy of that name.

    Raises InputError.
    """
    if name in POLICY_NAMES:
        return sync_policy(name)
    if name not in SYNCS:
        raise InputError(no_sync(f'"{name}"'))
    return name


def no_sync(shown: str) -> str:
    """The problem of a ``sync`` that is written so."""
    return f"sync: must be one of {', '.join(SYNCS)}, or an object with a policy, got {shown}"


@dataclass(frozen=True, slots=True)
class Strategy(Displayed):
    """How a step is spread: where ops run, how they and their tensors are split, and the order of
    queues.

    - ``placement``: op, colocation group, module ("blocks.2": forward, backward and update) or
      pattern -> device. An op placed runs whole.
    - ``order``: an Order, or the name of a policy.
    - ``partition``: op, group or pattern -> Configuration; what it leaves out follows its operands.
    - ``tensors``: "op:output" -> parts by dimension, where a tensor is stored otherwise than its op
      makes it.
    - ``sync``: how gradients are added up in one step (one of SYNCS), or a policy of steps in a
      row (a Sync, or one of POLICY_NAMES). Left out: "bucketed" under the short form
      "data-parallel", as frameworks do, else "all-reduce".
    - ``short``: one of SHORT_FORMS, on ``devices`` (none: the workers); what else is told takes
      precedence over it.
    - ``collectives``: which algorithm collective ops take, and how they are costed, where they do
      not say so.
    - ``accumulate``: so many microbatches a step, each a forward and backward of the graph as
      given; gradients are added up in place, synchronised and applied once, after the last.
    - ``loader``: a Loader, which makes the batch on a host; left out, inputs are there from the
      start.
    - ``pipeline``: a Parallelism, replicas, parts and stages that take the devices in their order;
      nothing else is told beside it.
    """

    placement: Mapping[str, str] = FrozenDict()
    order: Order = Order()
    partition: Mapping[str, Configuration] = FrozenDict()
    tensors: Mapping[str, Mapping[int, int]] = FrozenDict()
    sync: str | Sync = ""
    short: str | None = None
    devices: tuple[str, ...] = ()
    collectives: Collectives = Collectives()
    accumulate: int = 1
    loader: Loader | None = None
    pipeline: Parallelism | None = None

    def __post_init__(self) -> None:
        # object: a caller without types may give anything, and is told here rather than later.
        order: object = self.order
        if isinstance(order, str):
            order = Order(order)
            object.__setattr__(self, "order", order)
        placement: object = self.placement
        if not isinstance(placement, Mapping) or not isinstance(order, Order):
            raise InputError(
                "strategy: needs a placement by name, and an order or the name of a policy"
            )
        freeze(self, "placement", "partition", "tensors", "devices")
        if not isinstance(self.collectives, Collectives):
            raise InputError("collectives: must be Collectives(algorithm, cost, ...)")
        if self.sync == "":
            object.__setattr__(self, "sync", default_sync(self.short))
        if isinstance(self.sync, str):
            object.__setattr__(self, "sync", sync_of(self.sync))
        refuse(unlisted(self, short=(None, *SHORT_FORMS)))
        if not (is_count(self.accumulate) and 0 < self.accumulate <= MOST_MICROBATCHES):
            raise InputError(
                f"accumulate: must be a whole number from 1 to {MOST_MICROBATCHES}, got "
                f"{self.accumulate!r}"
            )
        if self.devices and self.short is None:
            raise InputError("devices: go with a short form; a configuration names its own")
        if self.pipeline is not None:
            self._check_pipeline()

    def _check_pipeline(self) -> None:
        """Raises InputError for what is told beside a pipeline."""
        if not isinstance(self.pipeline, Parallelism):
            raise InputError("pipeline: must be a Parallelism(dp, tp, pp, ...)")
        # What a short form brings is not told beside the pipeline.
        plain = replace(_PLAIN, sync=default_sync(self.short))
        names = [field.name for field in fields(self) if field.name != "pipeline"]
        beside = (name for name in names if getattr(self, name) != getattr(plain, name))
        refuse(f"{name}: a pipeline stands alone; it says where everything runs" for name in beside)

    @property
    def splits(self) -> bool:
        """Whether anything is split: then ops become shards before they are lowered."""
        return bool(self.partition or self.tensors or self.short)


_PLAIN = Strategy()
