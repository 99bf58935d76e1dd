"""The step that the ranks of a Chakra trace run together, as one graph.

Computations become ops with the times of the trace. A message becomes a tensor: the op before it
makes the tensor, and the ops after it read it on their own devices. So the simulated network
carries it, beside the computations, and the times of communication in the trace are not used. A
collective is one op over its ranks; a gather or scatter becomes a tensor for each other rank.
``comm_size`` means what it means in ASTRA-sim (``collective_algorithm/Ring.cc``): the share of a
rank for an all-gather, else the whole buffer. The root of a collective is its first rank.

``formats.import_file`` calls ``traces_scenario`` with the messages that ``chakra_messages`` reads.
The meaning, cost and messages of collectives are in ``nouns`` and ``costs``, not here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..ground.errors import InputError, collecting, refuse
from ..ground.units import parse_bandwidth
from ..nouns.cluster import Cluster, Device, Link
from ..nouns.graph import Graph, Op, Tensor
from ..nouns.meetings import RECEIVE, SEND, Communication, Place, meetings_of, operands
from ..nouns.strategy import Strategy
from .chakra_messages import Node, Trace, whole
from .imported import Imported, Machine

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter", "barrier",
)  # fmt: skip
"""By the number of ``comm_type`` (et_def.proto, CollectiveCommType)."""
PEERS = {"COMM_SEND_NODE": (SEND, "comm_dst"), "COMM_RECV_NODE": (RECEIVE, "comm_src")}

Ranked = tuple[int, Node]
"""A node and the rank whose trace has it."""


def communications(ranks: Sequence[Trace]) -> Iterator[Communication]:
    """The communications of all ranks. Raises InputError with every problem."""
    problems: list[str] = []
    for rank, trace in enumerate(ranks):
        for node in trace.nodes:
            if is_collective(node) or node.type in PEERS:
                with collecting(problems, f"rank {rank}, node {node.id}: "):
                    yield _communication(rank, node, len(ranks))
    refuse(problems)


def is_host(node: Node) -> bool:
    """Whether a node runs on the CPU of its rank."""
    return bool(node.attrs.get("is_cpu_op")) and node.type in ("COMP_NODE", "COMM_COLL_NODE")


def is_collective(node: Node) -> bool:
    """Whether a node is a collective itself; the host's call of one only launches it."""
    return node.type == "COMM_COLL_NODE" and not (is_host(node) and "comm_size" not in node.attrs)


def _communication(rank: int, node: Node, ranks: int) -> Communication:
    label = f"node {node.id}"
    if node.type in PEERS:
        kind, name = PEERS[node.type]
        peer, tag = count_of(node, name, -1), count_of(node, "comm_tag", 0)
        if not 0 <= peer < ranks:
            raise InputError(f"{name}: must be a rank from 0 to {ranks - 1}, got {peer}")
        return Communication(rank, node.id, kind, peer=peer, tag=tag, label=label)
    number, size = node.attrs.get("comm_type", 0), count_of(node, "comm_size", 0)
    if not isinstance(number, int) or not 0 <= number < len(COLLECTIVES):
        raise InputError(f"comm_type: must be from 0 to {len(COLLECTIVES) - 1}")
    return Communication(rank, node.id, COLLECTIVES[number], size, _group(node), label=label)


def _group(node: Node) -> str:
    """The name of a collective's group; "" is the group of all ranks."""
    ranks = node.attrs.get("ranks")
    if isinstance(ranks, list) and ranks:
        return ",".join(map(str, ranks))
    return str(node.attrs.get("pg_name") or node.attrs.get("comm_group") or "")


def count_of(node: Node, name: str, default: int | None = None) -> int:
    """A whole number from a node's attributes. Raises InputError if it is missing or none."""
    value: Any = node.attrs.get(name, default)
    # A default may be a number that no trace can have.
    return default if value == default and default is not None else whole(name, value)


HOST, LAUNCH = "host-cpu", "1 TB/s"
PEAKS = ("bfloat16", "float16", "float32")
_RANK = re.compile(r"([0-9]{1,9})\.(?:et|json)(?:\.gz)?\Z")


@dataclass(frozen=True)
class _Done:
    """The ops and tensors by which later ops wait for nodes that have finished on a rank."""

    ops: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


def _all_done(parts: Iterable[_Done]) -> _Done:
    parts = list(parts)
    return _Done(
        tuple(dict.fromkeys(op for part in parts for op in part.ops)),
        tuple(dict.fromkeys(tensor for part in parts for tensor in part.tensors)),
    )


def traces_scenario(traces: Sequence[Trace], machine: Machine, name: str | None = None) -> Imported:
    """The scenario of the traces of all ranks, or of a single trace that all ranks run
    (``machine.devices`` of them).

    Raises InputError with every problem: collectives that do not meet, sends without receivers,
    times that are missing.
    """
    ranks = _ranks(traces, machine)
    nodes = [node for trace in ranks for node in trace.nodes]
    build = _Builder(ranks, _cluster(machine, len(ranks), any(map(is_host, nodes))), machine)
    build.run()
    notes = [
        "times are whole microseconds in a Chakra trace: what lasted less is 0, memory is not told"
    ]
    if len(traces) == 1 and len(ranks) > 1:
        notes.append(f"all {len(ranks)} ranks run the one trace")
    if any("COMM" in node.type for node in nodes):
        notes.append(
            "communication is simulated on the cluster; its times in the trace are not used"
        )
    if len(ranks) == 1 and any(map(is_collective, nodes)):
        notes.append(
            "one rank alone: its collectives take no time; give the files of all ranks, or "
            "--devices"
        )
    notes += [f"{count} nodes of {kind} left out" for kind, count in sorted(build.left_out.items())]
    if build.estimated:
        notes.append(
            f"{build.estimated} nodes tell no time: num_ops and tensor_size over the datasheet's "
            "peaks"
        )
    return Imported(
        Graph(name or "Chakra trace", tuple(build.ops.values())),
        build.cluster,
        Strategy(build.placement),
        source="chakra",
        notes=tuple(notes),
    )


def _ranks(traces: Sequence[Trace], machine: Machine) -> list[Trace]:
    """The traces by rank: by the numbers at the ends of their files' names, else in the given
    order.
    """
    if len(traces) == 1:
        return [traces[0]] * (machine.devices or 1)
    if machine.devices not in (None, len(traces)):
        raise InputError(
            f"--devices: {machine.devices}, but there are traces of {len(traces)} ranks"
        )
    matches = [_RANK.search(trace.file) for trace in traces]
    by_rank = {int(match[1]): trace for match, trace in zip(matches, traces, strict=True) if match}
    if sorted(by_rank) != list(range(len(traces))):
        return list(traces)
    return [by_rank[rank] for rank in range(len(traces))]


def _cluster(machine: Machine, ranks: int, hosts: bool) -> Cluster:
    cluster = machine.build(ranks)
    count = sum(device.runs_ops for device in cluster.devices)
    if count < ranks:
        raise InputError(f"--cluster: {count} devices for {ranks} ranks")
    names = [f"cpu:{rank}" for rank in range(ranks)] if hosts else []
    missing = [name for name in names if name not in cluster.index]
    if not missing:
        return cluster
    # Messages from a host to its GPU are launches, not data.
    workers = [device.name for device in cluster.devices if device.runs_ops][:ranks]
    links = [
        Link((worker, name), parse_bandwidth(LAUNCH))
        for worker, name in zip(workers, names, strict=True)
        if name in missing
    ]
    return replace(
        cluster,
        name=f"{cluster.name} with hosts",
        devices=(*cluster.devices, *(Device(name, HOST) for name in missing)),
        links=(*cluster.links, *links),
    )


class _Builder:
    """A builder of the graph, which visits each node once all that it waits for is built."""

    def __init__(self, ranks: Sequence[Trace], cluster: Cluster, machine: Machine) -> None:
        self.ranks, self.cluster, self.machine = ranks, cluster, machine
        self.devices = [device.name for device in cluster.devices if device.runs_ops][: len(ranks)]
        self.ops: dict[str, Op] = {}
        self.placement: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.estimated = 0
        self.done: dict[tuple[int, int], _Done] = {}
        self.sent: dict[tuple[int, int], str] = {}
        self.nodes = {
            (rank, node.id): node for rank, trace in enumerate(ranks) for node in trace.nodes
        }
        self.meetings = meetings_of(communications(ranks), range(len(ranks)))

    def run(self) -> None:
        """Builds all ops. Raises InputError with every problem."""
        problems = [*self.meetings.problems]
        left = [(rank, node) for rank, trace in enumerate(self.ranks) for node in trace.nodes]
        moved = not problems
        # Repeated passes in the order of the files, so that the order of ops does not depend on how
        # long a node waits for another rank.
        while moved:
            later: list[Ranked] = []
            for rank, node in left:
                try:
                    if not self._build(rank, node):
                        later.append((rank, node))
                except InputError as error:
                    place = f"rank {rank}, node {node.id}"
                    problems += [f"{place}: {problem}" for problem in error.problems]
                    # Nodes that wait for a wrong node are still built, to report their faults too.
                    self.done[rank, node.id] = _Done()
            moved, left = len(later) < len(left), later
        if left and not problems:
            rank = left[0][0]
            stuck = ", ".join([str(node.id) for other, node in left if other == rank][:5])
            problems = [f"rank {rank}: nodes {stuck} wait for each other, or for a rank that does"]
        refuse(problems)

    def _build(self, rank: int, node: Node) -> bool:
        """Builds a node where all that it waits for is built; returns whether it could."""
        if is_collective(node):
            meeting = self.meetings.of[rank, node.id]
            return self._meet(
                [call.place for call in meeting], meeting[0].kind, meeting[0].bytes or 0
            )
        sender = self.meetings.of[rank, node.id][0].place if node.type == "COMM_RECV_NODE" else None
        before = self._before(rank, node)
        if before is None or (sender is not None and sender not in self.sent):
            return False
        if node.type == "COMM_SEND_NODE":
            carrier = self._carrier(rank, node, before)
            self.sent[rank, node.id] = self._output(carrier, count_of(node, "comm_size"))
        elif sender is not None:
            before = _all_done([before, _Done(tensors=(self.sent[sender],))])
        elif node.type in ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE") or is_host(node):
            before = self._compute(rank, node, before)
        else:
            self.left_out[node.type] += 1
        self.done[rank, node.id] = before
        return True

    def _before(self, rank: int, node: Node) -> _Done | None:
        """The ops and tensors that a node waits for; None where some are not built yet."""
        parts = [self.done.get((rank, number)) for number in node.waits]
        return None if None in parts else _all_done(filter(None, parts))

    def _compute(self, rank: int, node: Node, before: _Done) -> _Done:
        device, kind = self.devices[rank], node.type.removesuffix("_NODE").lower()
        seconds = node.seconds
        if is_host(node):
            device, kind = f"cpu:{rank}", "host"
        elif not seconds:
            seconds = self._estimate(node)
        return _Done((self._add(rank, node, device, before, kind=kind, time=seconds),))

    def _estimate(self, node: Node) -> Fraction:
        """Seconds of a node without a time: max(num_ops / peak, tensor_size / bandwidth), as in
        ASTRA-sim.
        """
        ops, size = (count_of(node, name, 0) for name in ("num_ops", "tensor_size"))
        if not ops and not size:
            return Fraction(0)
        sheet = self.machine.datasheet
        if sheet is None:
            raise InputError("tells num_ops and no time: name a --device that has a datasheet")
        self.estimated += 1
        peaks = [sheet.flops[dtype] for dtype in PEAKS if dtype in sheet.flops]
        peak = peaks[0] if peaks else max(sheet.flops.values())
        return max(Fraction(ops) / peak, Fraction(size) / sheet.memory_bandwidth)

    def _add(self, rank: int, node: Node, device: str, before: _Done, **fields: Any) -> str:
        """Adds an op and its placement; returns its name."""
        base = f"rank {rank}/{node.name or node.id}"
        if any(Op(base).problems()):
            base = f"rank {rank}/node {node.id}"
        name = base if base not in self.ops else f"{base} #{node.id}"
        # Another node may have this name already.
        while name in self.ops:
            name += "'"
        self.ops[name] = Op(name, inputs=before.tensors, control_inputs=before.ops, **fields)
        self.placement[name] = device
        return name

    def _carrier(self, rank: int, node: Node, before: _Done) -> str:
        """The op after which the node can send: the single op on its device that it waits for, else
        a new op of no time that waits for all.
        """
        device = self.devices[rank]
        if len(before.ops) == 1 and not before.tensors and self.placement[before.ops[0]] == device:
            return before.ops[0]
        return self._add(rank, node, device, before, kind="ready", time=Fraction(0))

    def _output(self, name: str, size: int) -> str:
        """Adds an output to an op; returns the name by which it is read."""
        op = self.ops[name]
        self.ops[name] = replace(op, outputs=(*op.outputs, Tensor(size)))
        return f"{name}:{len(op.outputs)}"

    def _meet(self, places: Sequence[Place], kind: str, size: int) -> bool:
        """Builds a collective on all its ranks, once it is ready on each."""
        if places[0] in self.done:
            return True
        meeting = [(rank, self.nodes[rank, number]) for rank, number in places]
        parts = [self._before(rank, node) for rank, node in meeting]
        ready = [part for part in parts if part is not None]
        if len(ready) < len(parts):
            return False
        count = len(meeting)
        # A single rank has nobody to send to.
        if count == 1:
            after = ready
        elif kind == "barrier":
            after = [_all_done(ready)] * count
        else:
            names = [
                self._carrier(rank, node, part)
                for (rank, node), part in zip(meeting, ready, strict=True)
            ]
            if kind in ("gather", "scatter"):
                after = self._send(names, kind, size)
            else:
                after = self._collect(meeting, names, kind, size)
        for (rank, node), part in zip(meeting, after, strict=True):
            self.done[rank, node.id] = part
        return True

    def _collect(
        self, meeting: Sequence[Ranked], names: Sequence[str], kind: str, size: int
    ) -> list[_Done]:
        """One op over all ranks, with the operands that a collective of its kind has
        (docs/reference/collectives.md).
        """
        (rank, node), count = meeting[0], len(names)
        read, made = operands(kind, count, size)
        tensors = tuple(map(self._output, names, read))
        name = self._add(
            rank,
            node,
            self.devices[rank],
            _Done(tensors=tensors),
            kind=kind,
            outputs=tuple(map(Tensor, made)),
            attrs={"ranks": [self.devices[rank] for rank, _ in meeting]},
        )
        # A broadcast makes no tensor on its root, a reduce none on other ranks: later nodes there
        # wait only for what came before.
        root_first = kind == "reduce"
        start = 0 if root_first else count - len(made)
        return [
            _Done((carrier,), (f"{name}:{i - start}",) if start <= i < start + len(made) else ())
            for i, carrier in enumerate(names)
        ]

    def _send(self, names: Sequence[str], kind: str, size: int) -> list[_Done]:
        """Builds a gather to the first rank, or a scatter from it: a tensor for each other rank."""
        root, *others = names
        if kind == "gather":
            tensors = tuple(self._output(name, size) for name in others)
            return [_Done((root,), tensors), *(_Done((name,)) for name in others)]
        share = -(-size // len(names))
        return [
            _Done((root,)),
            *(_Done((name,), (self._output(root, share),)) for name in others),
        ]
