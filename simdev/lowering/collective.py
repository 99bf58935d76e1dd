"""Collective ops: one op that several devices run together, over the links between them.

An op of one of KINDS with the attribute ``ranks`` (device names) reads its inputs and leaves its
outputs on its ranks. It holds no compute queue. Costed by closed form or table it is a single task
that holds, for its whole length, every queue that any of its messages would hold: one communicator
at a time, as in NCCL. Expanded, each of its messages is a task, which contends with all others.

With the attribute ``group`` its ranks are the simulated ones of a larger process group
(``Collectives.groups``). It takes as long as among the whole group, and holds the queues that
messages from and to its ranks cross, assuming that the other members behave as these do.
``symmetry/quotient.py`` does a similar thing for replicas, whose collectives join all of them.

``Prepared`` needs the collectives of a graph, ``sync/exchange.py`` those of a policy.
``costs.collectives`` gives the costs and messages of each algorithm. The checker
(``execution.check.schedule``) has an independent list of the total bytes of each algorithm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from ..costs import ROOFLINE
from ..costs.collectives import (
    COLLECTIVES,
    Closed,
    CollectiveCall,
    CollectiveCost,
    CollectiveModel,
    CollectiveTable,
    Form,
    Phase,
    bytes_sent,
    collective_model,
    pieces_of,
)
from ..costs.collectives.phases import KEPT, Group, Messages, bus_factor
from ..ground.errors import InputError, collecting, refuse
from ..ground.units import MAX_PS, PS_PER_SECOND, picoseconds, size_problems, transmission_ps
from ..nouns.cluster import Cluster
from ..nouns.fabric import Fabric, fabric_of
from ..nouns.graph import Graph, Op
from ..nouns.strategy import Collectives, choice_problems, settled_cost

# An expanded collective: its messages as tasks, which contend with all other tasks on the links.
# The op's task starts it: it waits for all inputs, takes no time and holds no queue. A rank sends
# and gets one message at a time (but for those of one round): a message starts when three others
# have arrived: the last that its source sent, the last that its destination got, and the one whose
# data it passes on. A rank is done when all messages that it sends and gets have arrived: then
# readers of its output may start, and its input is no longer needed. Adding up takes no time, as in
# closed forms.

Send = Callable[[int, int, int, int], tuple[list[int], list[int]]]
"""Adds the tasks of a message (source, destination, bytes, round), and returns the tasks
that begin it and the tasks with which it arrives."""
Wait = Callable[[int, Sequence[int]], None]
"""Lets a task wait for others."""
Arrived = list[tuple[int, list[int]]]
"""The ranks at which messages arrived, each with the tasks of its message."""


class _Ranks:
    """The tasks that each rank (device index) has to wait for: those of the messages ``sent`` in
    its last sending round, ``got`` in its last receiving round, and ``held`` to be passed on.
    """

    def __init__(self) -> None:
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.held: dict[int, list[int]] = defaultdict(list)
        self.got: dict[int, list[int]] = defaultdict(list)

    def before(self, source: int, destination: int) -> Sequence[int]:
        """The tasks after which a message from one to the other starts."""
        return [*self.sent[source], *self.held[source], *self.got[destination]]

    def advance(self, sent: Arrived, arrived: Arrived) -> None:
        """End a round; both lists are by rank."""
        # A rank has passed on what it held: later rounds wait only for the messages sent, else the
        # number of edges would grow with the square of the rounds.
        self.held.update((rank, []) for rank, _ in sent)
        for last, messages in ((self.sent, sent), (self.got, arrived)):
            last.update((rank, []) for rank, _ in messages)
            for rank, tasks in messages:
                last[rank] += tasks

    def receive(self, arrived: Arrived) -> None:
        """Let messages that arrived be passed on from now."""
        for rank, tasks in arrived:
            self.held[rank] += tasks


def add_steps(steps: Iterable[Phase], start: int, send: Send, wait: Wait) -> dict[int, list[int]]:
    """Add the messages after the task ``start``, by round and by the order of the phase.

    Returns by rank (device index) the tasks that must have arrived before it is done.
    """
    ranks, number = _Ranks(), 0
    for phase in steps:
        kept: Arrived = []
        for messages in phase.rounds():
            sent, arrived = Arrived(), Arrived()
            for source, destination in messages:
                first, last = send(source, destination, phase.size, number)
                for task in first:
                    wait(task, ranks.before(source, destination) or (start,))
                sent.append((source, last))
                arrived.append((destination, last))
            ranks.advance(sent, arrived)
            if phase.relays:
                ranks.receive(arrived)
            else:
                # In this phase no rank passes on what it gets, so the next phase is the earliest.
                kept += arrived
            number += 1
        ranks.receive(kept)
    everyone = dict.fromkeys([*ranks.sent, *ranks.held])
    return {rank: list(dict.fromkeys([*ranks.sent[rank], *ranks.held[rank]])) for rank in everyone}


# From the cost and messages of the model to a Ring: one task that holds queues, or its messages.

MAX_MESSAGES = 5_000_000


@dataclass(frozen=True, slots=True)
class Ring:
    """A collective ready to run: its ranks (device indices), its ps, and the queues that it holds.

    ``bytes`` are those of all messages, divided by the number of ranks that are left with a result:
    the bytes that each rank of a ring sends. Under fair links it is a flow: ``duration_ps`` is then
    the latency of all its steps, and ``bytes`` go over ``half_links`` (more bytes where several
    messages of a step cross a half-link). Expanded it takes no time and holds no queue itself:
    ``steps`` are its messages, over device indices. ``inputs_on`` and ``outputs_on`` are the
    devices of an op's inputs and outputs. ``members`` is the number of ranks of the group where
    only some are simulated, which are then ``ranks`` (0: all are). ``rung`` is that of its time.
    """

    ranks: tuple[int, ...]
    duration_ps: int
    bytes: int
    resources: tuple[int, ...]
    half_links: tuple[int, ...]
    steps: tuple[Phase, ...] = ()
    inputs_on: tuple[int, ...] = ()
    outputs_on: tuple[int, ...] = ()
    members: int = 0
    rung: str = ROOFLINE

    @property
    def expanded(self) -> bool:
        """Whether it runs as its messages, one task each."""
        return bool(self.steps)


class Communicators:
    """The collectives on a cluster under the choice of a strategy; each is costed once.

    ``base`` are the Communicators of another choice on this cluster, whose fabric is shared, and
    whose model too where it has the same tables.
    """

    def __init__(
        self, cluster: Cluster, choice: Collectives, base: Communicators | None = None
    ) -> None:
        self.cluster, self.choice = cluster, choice
        self.fabric: Fabric = base.fabric if base else fabric_of(cluster)
        if base and base.choice.tables == choice.tables:
            self.model = base.model
        self._rings: dict[tuple[CollectiveCall, str, Group], Ring] = {}

    def choosing(self, choice: Collectives) -> Communicators:
        """The collectives on this cluster under another choice."""
        return Communicators(self.cluster, choice, self)

    @cached_property
    def model(self) -> CollectiveModel:
        """The model of collectives, with the tables of the choice, else those of the cluster."""
        tables = [
            CollectiveTable(t.collective, t.ranks, t.anchors, t.source) for t in self.choice.tables
        ]
        return collective_model(self.cluster, tables=tables)

    def ring(
        self,
        kind: str,
        ranks: Sequence[int],
        size: int,
        algorithm: str | None = None,
        cost: str | None = None,
    ) -> Ring:
        """The cost of a collective among these devices (indices, in the order of their ranks), and
        the queues that it holds.

        ``size`` is in bytes, as nccl-tests counts them. Raises InputError.
        """
        return self.costed(self._call(kind, ranks, size, algorithm), cost or self.choice.cost)

    def alone_ps(self, kind: str, ranks: Sequence[int], size: int) -> int:
        """The ps of a collective that shares no link with others; if expanded, by its closed form.

        Raises InputError.
        """
        form, measured = _timed(self._call(kind, ranks, size), self.choice.cost, self.model)
        return measured.ps if measured else self.model.forms.closed(form.phases).ps

    def _call(
        self, kind: str, ranks: Sequence[int], size: int, algorithm: str | None = None
    ) -> CollectiveCall:
        name = algorithm or self.choice.algorithm
        return CollectiveCall(kind, tuple(ranks), size, name, self.choice.chunks)

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """The process groups of the choice, as device indices. Raises InputError."""
        named = self.choice.groups
        refuse(
            f'strategy.collectives.groups["{group}"][{j}]: {problem}'
            for group, names in named.items()
            for j, problem in _rank_problems(self.cluster, names)
        )
        index = self.cluster.index
        return {group: tuple(index[name] for name in names) for group, names in named.items()}

    def costed(self, call: CollectiveCall, cost: str, simulated: Group = ()) -> Ring:
        """The Ring of a collective; ``cost`` is "closed", "table", "auto" or "expanded".

        It holds the queues of the ranks that are ``simulated`` (empty: of all). Raises InputError
        where a route is missing, an algorithm does not have this form, or the time is too long.
        """
        key = call, cost, simulated
        if key not in self._rings:
            ring = _ring_of(call, cost, self.model, simulated or call.ranks)
            measured = _timed(call, cost, self.model)[1]
            self._rings[key] = ring if measured is None else replace(ring, rung=measured.rung)
        return self._rings[key]


def _timed(
    call: CollectiveCall, cost: str, model: CollectiveModel
) -> tuple[Form, CollectiveCost | None]:
    """The messages of a collective, and its time where tables give one."""
    if settled_cost(cost, call.algorithm, bool(model.tables)) != "table":
        return model.form(call), None
    if not model.tables:
        raise InputError(
            'cost: "table" needs tables: those of the cluster, or those that the strategy names'
        )
    measured, form = model.timed(replace(call, algorithm="auto"))
    return form, measured


def _ring_of(call: CollectiveCall, cost: str, model: CollectiveModel, simulated: Group) -> Ring:
    form, measured = _timed(call, cost, model)
    fabric, whole = model.fabric, simulated == call.ranks
    if not whole and (cost == "expanded" or fabric.shares_rates):
        what = "messages" if cost == "expanded" else "flows"
        raise InputError(
            f"attrs.group: {what} of a collective are those of all its ranks; cost it by its "
            "closed form, on links that are not fair, or name all ranks of the group"
        )
    # The number of ranks left with a result: all but the root of a broadcast, one of a reduction.
    results = {"broadcast": len(call.ranks) - 1, "reduce": 1, "p2p": 1}
    sent = -(-bytes_sent(form.phases) // max(results.get(call.kind, len(call.ranks)), 1))
    if cost == "expanded":
        _require_few(form.phases, len(call.ranks))
        for phase in form.phases:
            for source, destination, _ in phase.messages:
                pieces_of(fabric, source, destination)
        return Ring(call.ranks, 0, sent, (), (), form.phases)
    closed = model.forms.closed(form.phases)
    ps = measured.ps if measured else closed.ps
    if ps > MAX_PS:
        raise InputError(
            f"an {call.kind.replace('_', '-')} of {call.size} bytes over {len(call.ranks)} ranks "
            "takes more than 53 days"
        )
    if fabric.shares_rates:
        return _flow(call, model, form, closed, ps)
    phases = form.phases if whole else tuple(_of_ranks(form.phases, simulated))
    queues = tuple(fabric.first_queue + queue for queue in sorted(model.forms.crossed(phases)))
    return Ring(simulated, ps, sent, queues, (), members=_some_of(simulated, call.ranks))


def _of_ranks(phases: Iterable[Phase], ranks: Group) -> Iterator[Phase]:
    """The phases with only the messages that these ranks send or get."""
    for phase in phases:
        if messages := _messages_of(phase.messages, ranks):
            yield replace(phase, messages=messages)


@lru_cache(KEPT)
def _messages_of(messages: Messages, ranks: Group) -> Messages:
    here = set(ranks)
    return Messages(m for m in messages if not here.isdisjoint(m[:2]))


def _require_few(phases: Sequence[Phase], ranks: int) -> None:
    """Raise InputError where messages would have too many edges. Each counts with the messages that
    it waits for: as many as its rank sent and got in the phase before.
    """
    total, before = 0, 1
    for phase in phases:
        total += phase.count() * before
        before = max(1, len(phase.messages) // ranks)
    if total > MAX_MESSAGES:
        raise InputError(
            f"cost: expanded makes more than {MAX_MESSAGES} messages; cost it by its closed form"
        )


def _flow(
    call: CollectiveCall, model: CollectiveModel, form: Form, closed: Closed, ps: int
) -> Ring:
    """A collective as a single flow over every half-link that it crosses, with bytes such that it
    takes ``ps`` alone.

    Its bytes are those that the busiest half-link carries; more where phases leave this link idle,
    or where a slower link decides the time. With a table, its latency is the measured time less the
    sending time of these bytes.
    """
    crossed = model.forms.crossed(form.phases)
    links = (model.cluster.half_links[half_link].link for half_link in crossed)
    slowest = min((Fraction(link.bandwidth) for link in links), default=Fraction(1))
    latency, size = closed.latency, max(crossed.values(), default=0)
    if ps != closed.ps:
        size = min(size, int(ps * slowest // PS_PER_SECOND))
        latency = ps - transmission_ps(size, slowest)
    elif abs(transmission_ps(size, slowest) + latency - ps) > closed.rounds:
        size = int((ps - latency) * slowest // PS_PER_SECOND)
    return Ring(call.ranks, latency, size, (), tuple(sorted(crossed)))


# The inputs and outputs of a collective op on its ranks, and the problems of such an op.

ALL_REDUCE, ALL_TO_ALL = "all_reduce", "all_to_all"
KINDS = COLLECTIVES
SINGLE_INPUT = ("broadcast", "p2p")
_OPTIONS = ("algorithm", "cost", "chunks")


def is_collective(op: Op) -> bool:
    """Whether the op runs on several devices at once."""
    return op.kind in KINDS and "ranks" in op.attrs


def rings(graph: Graph, positions: Sequence[int], communicators: Communicators) -> dict[int, Ring]:
    """The collective ops of a graph, at these positions, costed by their own attributes or else by
    the strategy's choice.

    Raises InputError with every problem at once.
    """
    ring_of: dict[int, Ring] = {}
    problems: list[str] = []
    for i in positions:
        group = _group(graph.ops[i], communicators)
        reasons = list(collective_problems(graph, communicators.cluster, i, group))
        problems += [f"ops[{i}].{reason}" for reason in reasons]
        if not reasons:
            with collecting(problems, f'ops[{i}]: "{graph.ops[i].name}": '):
                ring_of[i] = _ring(graph, i, communicators, group or ())
    refuse(problems)
    return ring_of


def _group(op: Op, communicators: Communicators) -> Group | None:
    """The devices of the process group that an op names; () where it names none, None where the
    group does not exist. Raises InputError.
    """
    name = op.attrs.get("group")
    return () if name is None else communicators.groups.get(name)


def _ring(graph: Graph, position: int, communicators: Communicators, group: Group) -> Ring:
    """An op's collective, with the devices of its inputs and of its outputs; ``group`` are all
    ranks (none: those that the op names).
    """
    op, operands = graph.ops[position], graph.operands[position]
    ranks = tuple(communicators.cluster.index[name] for name in op.attrs["ranks"])
    group = group or ranks
    options = (op.attrs.get(name, getattr(communicators.choice, name)) for name in _OPTIONS)
    algorithm, cost, chunks = options
    call = CollectiveCall(op.kind, group, _size(op, operands, len(group)), algorithm, chunks)
    seconds = op.seconds_on(communicators.cluster.devices[ranks[0]].kind)
    if cost == "given" and seconds is not None:
        # The given time was measured, with all other traffic of the links. Parts are whole bytes.
        factor, count = bus_factor(op.kind, len(group)), len(group)
        padded = call.size if factor == 1 else -(-call.size // count) * count
        sent = 0 if communicators.model.fabric.shares_rates else int(padded * factor)
        members = _some_of(ranks, group)
        ring = Ring(ranks, picoseconds(seconds), sent, (), (), members=members, rung="given")
    else:
        ring = communicators.costed(call, cost, ranks)
    sending, getting = _ends(op, ranks, group)
    # The inputs of a bucket are ordered by rank.
    inputs = tuple(rank for rank in sending for _ in range(len(op.inputs) // len(sending)))
    made, homes = iter(getting), list[int]()
    for tensor in op.outputs:
        # A view is on the device of its base.
        homes.append(next(made) if tensor.view_of is None else homes[tensor.view_of])
    return replace(ring, inputs_on=inputs, outputs_on=tuple(homes))


def _ends(op: Op, ranks: Sequence[int], group: Sequence[int]) -> tuple[Group, Group]:
    """The simulated ranks on which a collective op reads inputs, and those on which it leaves
    outputs. The root of a broadcast, the first of its group, need not be simulated.
    """
    if op.kind not in SINGLE_INPUT:
        return tuple(ranks), tuple(ranks)
    sending = sum(rank == group[0] for rank in ranks[:1])
    return tuple(ranks[:sending]), tuple(ranks[sending:])


def _some_of(ranks: Group, group: Group) -> int:
    """The number of ranks of a group where only some are simulated; 0 where all are."""
    return 0 if ranks == group else len(group)


def _size(op: Op, operands: Sequence[Any], ranks: int) -> int:
    """Bytes as nccl-tests counts them; shards of unequal size are padded to the largest. The
    attribute ``bytes`` of the op counts first: a collective that writes into existing memory has no
    tensors that show its size.
    """
    if "bytes" in op.attrs:
        return int(op.attrs["bytes"])
    match op.kind:
        case "all_gather":
            return ranks * max(int(tensor.bytes) for tensor in operands)
        case "reduce_scatter":
            return ranks * max(tensor.bytes for tensor in op.made)
        case "all_reduce":
            return op.made[0].bytes  # all bytes that a rank reads
        case _:
            # A broadcast whose root is not simulated has no input, but an output.
            return int((*operands, *op.made)[0].bytes)


def _rank_problems(cluster: Cluster, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The places of names that are not those of devices that run ops, with a problem each."""
    for j, name in enumerate(names):
        if name not in cluster.index or not cluster.devices[cluster.index[name]].runs_ops:
            yield j, f'no device that runs ops is named "{name}"'


def collective_problems(
    graph: Graph, cluster: Cluster, position: int, group: Group | None = ()
) -> Iterator[str]:
    """The problems of a collective op, as ``field: reason``; ``group`` are the devices of the group
    that it names ((): it names none; None: the group does not exist).
    """
    op = graph.ops[position]
    names: Any = op.attrs["ranks"]
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    texts = listed and all(isinstance(name, str) for name in names)
    fewest = ("two devices", 2) if group == () else ("one device", 1)
    if not texts or len(names) < fewest[1] or len(set(names)) < len(names):
        yield f"attrs.ranks: must name {fewest[0]} at least, each once"
        return
    wrong = [f"attrs.ranks[{j}]: {problem}" for j, problem in _rank_problems(cluster, names)]
    yield from wrong
    if group is None:
        yield f'attrs.group: no group of strategy.collectives.groups is named "{op.attrs["group"]}"'
    if wrong or group is None:
        return
    ranks, rest = [cluster.index[name] for name in names], iter(group)
    if group and not all(rank in rest for rank in ranks):
        yield f'attrs.ranks: must be ranks of the group "{op.attrs["group"]}", in its order'
        return
    if op.kind == "p2p" and len(group or ranks) != 2:
        yield f"attrs.ranks: p2p joins two, got {len(group or ranks)}"
        return
    if op.kind in ("p2p", "reduce") and len(ranks) < len(group):
        yield f"attrs.ranks: a {op.kind} needs all ranks of its group"
        return
    given = (op.attrs.get(name, getattr(Collectives(), name)) for name in _OPTIONS)
    yield from (f"attrs.{problem}" for problem in choice_problems(*given))
    sizes = [tensor.bytes for tensor in graph.operands[position]]
    yield from _operand_problems(op, sizes, ranks, group or ranks)


def _count_problems(read: int, sending: int, made: int, getting: int) -> Iterator[str]:
    """Problems of the numbers of inputs and outputs where the op tells its bytes: each sending rank
    has equally many inputs, and a rank gets at most one output.
    """
    if read and (not sending or read % sending):
        yield f"inputs: must be as many of each of the {sending} ranks, got {read}"
    if made > getting:
        yield f"outputs: must be at most {getting}, one a rank, got {made}"


def _unfilled(op: Op, read: Sequence[int], sending: int, members: int) -> Iterator[str]:
    """Outputs larger than the sum of the bytes that their rank reads and gets (by the op's
    ``bytes``). A rank without inputs has its own part in the output's memory already.
    """
    if op.kind == ALL_TO_ALL:
        return  # ranks may exchange unequal parts; ``bytes`` are those of one rank
    got, each = int(op.attrs["bytes"] * bus_factor(op.kind, members)), len(read) // max(sending, 1)
    alone = op.kind in SINGLE_INPUT
    for j, tensor in enumerate(op.made):
        given = 0 if alone else sum(read[j * each : (j + 1) * each])
        part = given if alone or 0 < given < tensor.bytes else -(-tensor.bytes // members)
        if tensor.bytes - part > got:
            more = f"bytes are more than a rank has and gets, {part + got}"
            yield f"outputs[{j}]: {tensor.bytes} {more}"


def _operand_problems(
    op: Op, read: list[int], simulated: Sequence[int], group: Sequence[int]
) -> Iterator[str]:
    made, ranks, members = [tensor.bytes for tensor in op.made], len(simulated), len(group)
    sending, getting = map(len, _ends(op, simulated, group))
    if "bytes" in op.attrs:
        reasons = [
            *size_problems("attrs.bytes", op.attrs["bytes"]),
            *_count_problems(len(read), sending, len(made), getting),
        ]
        yield from reasons or _unfilled(op, read, sending, members)
        return
    if op.kind == ALL_REDUCE and len(read) > ranks and len(read) % ranks == 0:
        # A bucket: each rank reads several tensors, and is left with one of their total size.
        each = len(read) // ranks
        read = [sum(read[first : first + each]) for first in range(0, len(read), each)]
    counts = sending, 1 if op.kind == "reduce" else getting
    if (len(read), len(made)) != counts:
        if counts == (ranks, ranks):
            yield f"inputs: {ranks} ranks need as many inputs and outputs"
        else:
            yield (
                f"inputs: {op.kind} of {ranks} ranks has {counts[0]} inputs and {counts[1]} outputs"
            )
        return
    match op.kind:
        case "all_gather":
            parts, whole, names = read, made, ("outputs", "inputs")
        case "reduce_scatter":
            parts, whole, names = made, read, ("inputs", "outputs")
        case _:
            if len({*read, *made}) > 1:
                yield "inputs: all inputs and outputs must have the same bytes"
            return
    # Ranks that are not simulated are assumed to have parts of the same size.
    total = sum(parts) if ranks == members else members * max(parts)
    if set(whole) != {total} or (ranks < members and len(set(parts)) > 1):
        yield f"{names[0]}: each must have the {total} bytes of all {names[1]} together"
