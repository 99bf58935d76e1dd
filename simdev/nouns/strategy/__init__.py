"""A strategy: how a step is spread over the devices, that is where ops run, how they are split, and
in which order queues are served. Its larger parts have modules of their own: ``placement``
(placements and configurations of ops), ``sync`` (policies of synchronisation) and ``parallelism``
(pipelines and large models).

``simdev/files/strategy.py`` reads strategies and takes its types and their meanings from the fields
here; lowering has a pass for each field. An order of ops is a name in ``POLICIES``;
``simdev/lowering/__init__.py`` sets its queues, with hosts ``simdev/lowering/turns.py`` and,
written independently, ``simdev/execution/check/hosts.py``. A short form is a row of
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
    """The algorithm and cost of collective ops whose attributes do not give their own.

    - ``algorithm``: one of ALGORITHMS; "auto" is the fastest.
    - ``cost``: "closed", one task that lasts as long as the closed form says; "table", one task
      with the time in ``tables`` (the fastest closed form where they have none); "expanded", one
      task for each message; "given", the time of its op, else as "closed"; "auto", see
      ``settled_cost``.
    - ``tables``: CollectiveTables measured inside one node (none: the tables that the cluster
      names).
    - ``chunks``: the number of chunks that a broadcast or reduce along a chain is cut into (None:
      the number that makes the closed form shortest).
    - ``slowdown``: how many times longer computation and a collective take while they share a
      device (1: they do not slow each other; Galvatron, VLDB 2022, has 1.3). At most 2: sharing a
      device is no slower than using it in turn.
    - ``groups``: process groups by name, each with the names of its devices in the order of its
      ranks. A collective op whose attribute ``group`` names one takes the time of the whole group,
      even where its ``ranks`` are only those that are simulated; the other ranks are taken to do
      the same.
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
        # A path is a sequence too, and its letters would be taken for tables.
        tables: object = self.tables
        if not isinstance(tables, Sequence) or isinstance(tables, str):
            problems.append("tables: must hold measured tables; files.read_collectives reads them")
        refuse(f"collectives.{problem}" for problem in [*problems, *unread(self)])
        object.__setattr__(self, "tables", tuple(self.tables))


def settled_cost(cost: str, algorithm: str, measured: bool) -> str:
    """The way to cost a collective, with "auto" settled: by tables where there are some
    (``measured``) and no algorithm is chosen, since the library chose the tables' algorithm.
    """
    if cost != "auto":
        return cost
    return "table" if measured and algorithm == "auto" else "closed"


def choice_problems(algorithm: object, cost: object, chunks: object) -> list[str]:
    """``field: reason`` for each fault of an algorithm, a cost and a number of chunks."""
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
    """The data loader: batches are made on ``device`` (a host) and copied from there to the
    workers.

    All its worker processes together make a batch in ``time`` seconds. Where steps follow one
    another, the next batch is made and copied during a step, from the moment when the first ops of
    that step have read their batch. Raises InputError.
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
# Each microbatch is lowered; more of them would exceed the tasks that a step can have.
MOST_MICROBATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which queues are served.

    ``fifo``: in the order of readiness. ``program``: each device runs its ops in program order.
    ``priority``: smallest number first, 0 by default; a transfer takes the smallest number of its
    consumers. ``fixed``: each queue named in ``sequence`` ("gpu:0", "send gpu:0") serves exactly
    the given ops or transfers ("op:output>device"); other queues stay fifo.
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
    """The default of ``sync``: gradients are added up in buckets under the short form
    "data-parallel", as frameworks do.
    """
    # PyTorch's DistributedDataParallel and Horovod gather small gradients before they send them.
    return "bucketed" if short == "data-parallel" else SYNCS[0]


POLICY_NAMES = tuple(name for name in PRESETS if name not in SYNCS)
"""Policies that a text can name; the other policies share their names with SYNCS, and there a text
means the way to add up gradients in one step.
"""


def sync_of(name: str) -> str | Sync:
    """The synchronisation that a text names: one of SYNCS unchanged, or the policy of that name.

    Raises InputError.
    """
    if name in POLICY_NAMES:
        return sync_policy(name)
    if name not in SYNCS:
        raise InputError(no_sync(f'"{name}"'))
    return name


def no_sync(shown: str) -> str:
    """The problem of an unknown ``sync``, where ``shown`` is its text."""
    return f"sync: must be one of {', '.join(SYNCS)}, or an object with a policy, got {shown}"


@dataclass(frozen=True, slots=True)
class Strategy(Displayed):
    """The spread of a step: where ops run, how they and their tensors are split, and the order of
    queues.

    - ``placement``: op, colocation group, module ("blocks.2": forward, backward and update) or
      pattern -> device. An op with a placement is not split.
    - ``order``: an Order, or the name of a policy.
    - ``partition``: op, group or pattern -> Configuration; ops that it leaves out follow their
      operands.
    - ``tensors``: "op:output" -> parts by dimension, for a tensor that is stored in other parts
      than its op makes.
    - ``sync``: how gradients are added up in one step (one of SYNCS), or a policy of steps in a
      row (a Sync, or one of POLICY_NAMES). Left out: "bucketed" under the short form
      "data-parallel", as frameworks do, else "all-reduce".
    - ``short``: one of SHORT_FORMS, on ``devices`` (none: the workers); the other fields take
      precedence over it.
    - ``collectives``: the algorithm and cost of collective ops that do not give their own.
    - ``accumulate``: microbatches a step, each a forward and backward of the given graph; gradients
      are added up in place, then synchronised and applied once, after the last microbatch.
    - ``loader``: a Loader, which makes the batch on a host; left out, inputs are ready from the
      start.
    - ``pipeline``: a Parallelism: replicas, parts and stages that take the devices in their order;
      no other field goes with it.
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
        # object: a caller without types may pass anything, and learns it here rather than later.
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
        """Raises InputError where other fields are set beside a pipeline."""
        if not isinstance(self.pipeline, Parallelism):
            raise InputError("pipeline: must be a Parallelism(dp, tp, pp, ...)")
        # The default that a short form sets is no setting of the user.
        plain = replace(_PLAIN, sync=default_sync(self.short))
        names = [field.name for field in fields(self) if field.name != "pipeline"]
        beside = (name for name in names if getattr(self, name) != getattr(plain, name))
        refuse(f"{name}: a pipeline stands alone; it says where everything runs" for name in beside)

    @property
    def splits(self) -> bool:
        """Whether anything is split: ops are then replaced by shards before they are lowered."""
        return bool(self.partition or self.tensors or self.short)


_PLAIN = Strategy()
