"""The step that the ranks of a Chakra trace run together, as one graph.

Computations become ops with the times of the trace; what is sent becomes a tensor that the op
before it makes and the ops behind it read on their own devices, so that the simulated network
carries it, beside the computations, and times of communication in the trace are not used. A
collective is one op over its ranks; a gather or scatter is so many tensors sent. Sizes are those
that ASTRA-sim gives ``comm_size`` (``collective_algorithm/Ring.cc``): the share of a rank for an
all-gather, else the whole buffer. The root of a collective is its first rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ...cluster import Cluster, Device, Link
from ...errors import InputError
from ...graph import Graph, Op, Tensor
from ...strategy import Strategy
from ...units import parse_bandwidth
from ..imported import Imported
from ..machine import Machine
from .messages import Node, Trace

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""By the number of ``comm_type`` (et_def.proto, CollectiveCommType)."""

HOST, LAUNCH = "host-cpu", "1 TB/s"
PEAKS = ("bfloat16", "float16", "float32")
_RANK = re.compile(r"(\d+)\.(?:et|json)(?:\.gz)?\Z")


@dataclass
class _Done:
    """What it means that a node has finished on its rank: ops to wait for, and tensors to read."""

    ops: list[str] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)

    def __iadd__(self, other: _Done) -> _Done:
        self.ops += [one for one in other.ops if one not in self.ops]
        self.tensors += [one for one in other.tensors if one not in self.tensors]
        return self


def traces_scenario(
    traces: Sequence[Trace], machine: Machine, name: str = "Chakra trace"
) -> Imported:
    """The scenario of the traces of all ranks, or of one that all ranks run (``machine.devices`` of
    them).

    Raises InputError with every problem: collectives that do not meet, sends without receivers,
    times that are missing.
    """
    ranks = _ranks(traces, machine)
    hosts = any(_is_host(node) for trace in ranks for node in trace.nodes)
    cluster = _cluster(machine, len(ranks), hosts)
    build = _Builder(ranks, cluster, machine)
    build.run()
    graph = Graph(name, tuple(build.ops.values()))
    notes = [
        (
            "times are whole microseconds in a Chakra trace: what lasted less is 0, memory is "
            "not told"
        )
    ]
    if len(traces) == 1 and len(ranks) > 1:
        notes.append(f"all {len(ranks)} ranks run the one trace")
    if any("COMM" in node.type for trace in ranks for node in trace.nodes):
        notes.append(
            "communication is simulated on the cluster; its times in the trace are not used"
        )
    if len(ranks) == 1 and any(map(_is_collective, ranks[0].nodes)):
        notes.append(
            "one rank alone: its collectives take no time; give the files of all ranks, or "
            "--devices"
        )
    notes += [f"{count} nodes of {kind} left out" for kind, count in sorted(build.left_out.items())]
    notes += build.notes
    return Imported(graph, cluster, Strategy(build.placement), "chakra", tuple(notes))


def _ranks(traces: Sequence[Trace], machine: Machine) -> list[Trace]:
    """The traces by rank: by the numbers at the ends of their files' names, else as they are
    given.
    """
    if len(traces) == 1:
        return [traces[0]] * (machine.devices or 1)
    if machine.devices not in (None, len(traces)):
        raise InputError(
            f"--devices: {machine.devices}, but there are traces of {len(traces)} ranks"
        )
    numbers = [_RANK.search(trace.file) for trace in traces]
    found = [int(number[1]) for number in numbers if number]
    if sorted(found) != list(range(len(traces))):
        return list(traces)
    return [trace for _, trace in sorted(zip(found, traces, strict=True), key=lambda pair: pair[0])]


def _cluster(machine: Machine, ranks: int, hosts: bool) -> Cluster:
    cluster = machine.build(ranks)
    count = sum(device.runs_ops for device in cluster.devices)
    if count < ranks:
        raise InputError(f"--cluster: {count} devices for {ranks} ranks")
    if not hosts:
        return cluster
    if machine.cluster is not None:
        missing = [f"cpu:{r}" for r in range(ranks) if f"cpu:{r}" not in cluster.index]
        if missing:
            raise InputError(
                [f'--cluster: no device "{one}" for the ops of the host' for one in missing]
            )
        return cluster
    # What the host tells its GPU are launches, not data.
    links = [Link((f"gpu:{r}", f"cpu:{r}"), parse_bandwidth(LAUNCH)) for r in range(ranks)]
    devices = (*cluster.devices, *(Device(f"cpu:{r}", HOST) for r in range(ranks)))
    return Cluster(f"{cluster.name} with hosts", devices, (*cluster.links, *links), cluster.queues)


def _is_host(node: Node) -> bool:
    return bool(node.attrs.get("is_cpu_op")) and node.type in ("COMP_NODE", "COMM_COLL_NODE")


def _is_collective(node: Node) -> bool:
    """Whether a node communicates; the host's call of a collective only launches it."""
    return node.type == "COMM_COLL_NODE" and not (_is_host(node) and "comm_size" not in node.attrs)


class _Builder:
    """Puts the graph together: visits the nodes of all ranks once what they wait for is done."""

    def __init__(self, ranks: Sequence[Trace], cluster: Cluster, machine: Machine) -> None:
        self.ranks, self.cluster, self.machine = ranks, cluster, machine
        self.devices = [device.name for device in cluster.devices if device.runs_ops][: len(ranks)]
        self.ops: dict[str, Op] = {}
        self.placement: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.done: dict[tuple[int, int], _Done] = {}
        self.meetings = _Meetings(ranks)
        self._roofline = 0

    def run(self) -> None:
        """Builds all ops. Raises InputError with every problem."""
        problems = [*self.meetings.problems]
        waiting = [[node.id for node in trace.nodes] for trace in self.ranks]
        nodes = [{node.id: node for node in trace.nodes} for trace in self.ranks]
        moved = not problems
        while moved:
            moved = False
            for rank, left in enumerate(waiting):
                later = []
                for number in left:
                    try:
                        ready = self._try(rank, nodes[rank][number])
                    except InputError as error:
                        problems += [
                            f"rank {rank}, node {number}: {problem}" for problem in error.problems
                        ]
                        self.done[rank, number], ready = _Done(), True
                    moved |= ready
                    if not ready:
                        later.append(number)
                waiting[rank] = later
        if not problems and any(waiting):
            rank = next(r for r, left in enumerate(waiting) if left)
            stuck = ", ".join(map(str, waiting[rank][:5]))
            problems.append(
                f"rank {rank}: nodes {stuck} wait for each other, or for a rank that does"
            )
        if problems:
            raise InputError(problems)
        if self._roofline:
            self.notes.append(
                f"{self._roofline} nodes tell no time: num_ops and tensor_size over "
                "the datasheet's peaks"
            )

    def _try(self, rank: int, node: Node) -> bool:
        """Builds a node where all that it waits for is built; returns whether it could."""
        if _is_collective(node):
            return self._meet(self.meetings.of[rank, node.id])
        if node.type == "COMM_RECV_NODE":
            sender = self.meetings.sender[rank, node.id]
            if (sender[0], sender[1].id) not in self.done:
                return False
        before = self._before(rank, node)
        if before is None:
            return False
        if node.type == "COMM_SEND_NODE":
            size = _number(node, "comm_size")
            carrier = self._carrier(rank, node, before)
            self.meetings.sent[rank, node.id] = self._output(carrier, size)
        elif node.type == "COMM_RECV_NODE":
            before += _Done(tensors=[self.meetings.sent[sender[0], sender[1].id]])
        elif node.type in ("COMP_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE") or _is_host(node):
            before = self._compute(rank, node, before)
        else:
            self.left_out[node.type] += 1
        self.done[rank, node.id] = before
        return True

    def _before(self, rank: int, node: Node) -> _Done | None:
        """All that a node waits for; None where some of it is not built yet."""
        found = _Done()
        for other in node.waits:
            done = self.done.get((rank, other))
            if done is None:
                return None
            found += done
        return found

    def _compute(self, rank: int, node: Node, before: _Done) -> _Done:
        host = _is_host(node)
        seconds = node.seconds or (Fraction(0) if host else self._reckoned(node))
        kind = node.type.removesuffix("_NODE").lower()
        device = f"cpu:{rank}" if host else self.devices[rank]
        name = self._add(rank, node, device, before, kind="host" if host else kind, time=seconds)
        return _Done(ops=[name])

    def _reckoned(self, node: Node) -> Fraction:
        """Seconds of a node that tells none: max(num_ops / peak, tensor_size / bandwidth), as
        ASTRA-sim reckons.
        """
        ops, size = (_number(node, name, 0) for name in ("num_ops", "tensor_size"))
        if not ops and not size:
            return Fraction(0)
        sheet = self.machine.datasheet
        if sheet is None:
            raise InputError("tells num_ops and no time: name a --device that has a datasheet")
        self._roofline += 1
        peak = next(
            (sheet.flops[dtype] for dtype in PEAKS if dtype in sheet.flops),
            max(sheet.flops.values()),
        )
        return max(Fraction(ops) / peak, Fraction(size) / sheet.memory_bandwidth)

    def _add(self, rank: int, node: Node, device: str, before: _Done, **fields: Any) -> str:
        """An op more, placed; returns its name."""
        base = f"rank{rank}/{node.name}" if node.name else f"rank{rank}/{node.id}"
        if any(Op(base).problems()):
            base = f"rank{rank}/node {node.id}"
        name = base if base not in self.ops else f"{base} #{node.id}"
        while name in self.ops:
            name += "'"
        self.ops[name] = Op(
            name, inputs=tuple(before.tensors), control_inputs=tuple(before.ops), **fields
        )
        self.placement[name] = device
        return name

    def _carrier(self, rank: int, node: Node, before: _Done) -> str:
        """The op whose finish lets the node send: the one it waits for, or an op of no time that
        waits for all.
        """
        if (
            not before.tensors
            and len(before.ops) == 1
            and self.placement[before.ops[0]] == self.devices[rank]
        ):
            return before.ops[0]
        return self._add(rank, node, self.devices[rank], before, kind="ready", time=Fraction(0))

    def _output(self, name: str, size: int) -> str:
        """A tensor more that an op makes; returns how it is read."""
        op = self.ops[name]
        self.ops[name] = replace(op, outputs=(*op.outputs, Tensor(size)))
        return f"{name}:{len(op.outputs)}"

    def _meet(self, meeting: Sequence[tuple[int, Node]]) -> bool:
        """Builds a collective on all its ranks, once it is ready on each."""
        if (meeting[0][0], meeting[0][1].id) in self.done:
            return True
        before = [self._before(rank, node) for rank, node in meeting]
        if any(one is None for one in before):
            return False
        ready = [one for one in before if one is not None]
        kind, size = _collective(meeting[0][1]), _number(meeting[0][1], "comm_size", 0)
        if len(meeting) == 1:
            found = ready
        elif kind == "barrier":
            all_of_them = _Done()
            for one in ready:
                all_of_them += one
            found = [all_of_them] * len(ready)
        else:
            names = [
                self._carrier(rank, node, one)
                for (rank, node), one in zip(meeting, ready, strict=True)
            ]
            sent = kind in ("gather", "scatter")
            found = (
                self._send(names, kind, size) if sent else self._collect(meeting, names, kind, size)
            )
        for (rank, node), one in zip(meeting, found, strict=True):
            self.done[rank, node.id] = one
        return True

    def _collect(
        self, meeting: Sequence[tuple[int, Node]], names: Sequence[str], kind: str, size: int
    ) -> list[_Done]:
        """One op over all ranks, with the operands that a collective of its kind has
        (docs/collectives.md).
        """
        rank, node = meeting[0]
        count = len(names)
        read, made = _operands(kind, count, size)
        inputs = _Done(
            tensors=[self._output(name, one) for name, one in zip(names, read, strict=False)]
        )
        told = {"ranks": [self.devices[rank] for rank, _ in meeting]}
        outputs = tuple(map(Tensor, made))
        name = self._add(
            rank, node, self.devices[rank], inputs, kind=kind, outputs=outputs, attrs=told
        )
        found = [_Done([own]) for own in names]
        # A broadcast leaves nothing on its root, a reduce nothing elsewhere: there only what came
        # before is done.
        for i, one in enumerate(found[count - len(made) :] if kind != "reduce" else found[:1]):
            one.tensors.append(f"{name}:{i}")
        return found

    def _send(self, names: Sequence[str], kind: str, size: int) -> list[_Done]:
        """A gather to the first rank or a scatter from it, as so many tensors sent."""
        if kind == "gather":
            tensors = [self._output(name, size) for name in names[1:]]
            return [_Done([names[0]], tensors), *(_Done([name]) for name in names[1:])]
        share = -(-size // len(names))
        return [
            _Done([names[0]]),
            *(_Done([name], [self._output(names[0], share)]) for name in names[1:]),
        ]


class _Meetings:
    """Which nodes of which ranks are one collective, and which receive what which others send."""

    def __init__(self, ranks: Sequence[Trace]) -> None:
        self.of: dict[tuple[int, int], list[tuple[int, Node]]] = {}
        self.sender: dict[tuple[int, int], tuple[int, Node]] = {}
        self.sent: dict[tuple[int, int], str] = {}
        self.problems = [*self._collectives(ranks), *self._pairs(ranks)]

    def _collectives(self, ranks: Sequence[Trace]) -> Iterator[str]:
        """The k-th collective of a group on each of its ranks is the same one."""
        queues: dict[str, dict[int, list[Node]]] = {}
        for rank, trace in enumerate(ranks):
            for node in filter(_is_collective, trace.nodes):
                queues.setdefault(_group(node), {}).setdefault(rank, []).append(node)
        for group, members in queues.items():
            told = f'of the group "{group}"' if group else "of all ranks"
            counts = {rank: len(nodes) for rank, nodes in members.items()}
            if not group and len(members) < len(ranks):
                silent = next(rank for rank in range(len(ranks)) if rank not in members)
                yield f"rank {silent}: takes no part in the collectives of all ranks"
            elif len(set(counts.values())) > 1:
                few, many = (
                    min(counts, key=lambda r: counts[r]),
                    max(counts, key=lambda r: counts[r]),
                )
                yield (
                    f"rank {few}: {counts[few]} collectives {told}, but {counts[many]} on "
                    f"rank {many}"
                )
            else:
                for nodes in zip(*members.values(), strict=True):
                    meeting = list(zip(members, nodes, strict=True))
                    self.of |= {(rank, node.id): meeting for rank, node in meeting}
                    yield from _meeting_problems(meeting)

    def _pairs(self, ranks: Sequence[Trace]) -> Iterator[str]:
        """The k-th send from one rank to another under a tag belongs to the k-th receive of it."""
        sends: dict[tuple[int, int, int], list[tuple[int, Node]]] = {}
        receives: dict[tuple[int, int, int], list[tuple[int, Node]]] = {}
        for rank, trace in enumerate(ranks):
            for node in trace.nodes:
                tag = _number(node, "comm_tag", 0)
                if node.type == "COMM_SEND_NODE":
                    sends.setdefault((rank, _number(node, "comm_dst", -1), tag), []).append(
                        (rank, node)
                    )
                elif node.type == "COMM_RECV_NODE":
                    receives.setdefault((_number(node, "comm_src", -1), rank, tag), []).append(
                        (rank, node)
                    )
        for key in dict.fromkeys([*sends, *receives]):
            out, into = sends.get(key, []), receives.get(key, [])
            source, end, tag = key
            if len(out) != len(into):
                yield (
                    f"{len(out)} sends from rank {source} to {end} with tag {tag}, "
                    f"{len(into)} receives"
                )
            self.sender |= {
                (rank, node.id): sender for (rank, node), sender in zip(into, out, strict=False)
            }


def _operands(kind: str, ranks: int, size: int) -> tuple[list[int], list[int]]:
    """Bytes of what a collective reads and leaves, rank by rank, for ``comm_size`` as ASTRA-sim
    means it.
    """
    if kind == "all_gather":
        return [size] * ranks, [ranks * size] * ranks
    if kind == "reduce_scatter":
        return [size] * ranks, [size // ranks + (i < size % ranks) for i in range(ranks)]
    if kind == "broadcast":
        return [size], [size] * (ranks - 1)
    return [size] * ranks, [size] * (1 if kind == "reduce" else ranks)


def _meeting_problems(meeting: Sequence[tuple[int, Node]]) -> Iterator[str]:
    (first, one), *others = meeting
    told = _told(one)
    if told[0] is None:
        yield f"rank {first}, node {one.id}: comm_type: must be from 0 to {len(COLLECTIVES) - 1}"
    for rank, node in others:
        if _told(node) != told:
            mine, its = (f"{kind} of {size} bytes" for kind, size in (told, _told(node)))
            yield f"rank {rank}, node {node.id}: {its}, but {mine} on rank {first}"


def _told(node: Node) -> tuple[str | None, int]:
    kind = node.attrs.get("comm_type", 0)
    known = isinstance(kind, int) and 0 <= kind < len(COLLECTIVES)
    return (COLLECTIVES[kind] if known else None), _number(node, "comm_size", 0)


def _collective(node: Node) -> str:
    return _told(node)[0] or ""


def _group(node: Node) -> str:
    """The name of a collective's group; "" is that of all ranks."""
    ranks = node.attrs.get("ranks")
    if isinstance(ranks, list) and ranks:
        return ",".join(map(str, ranks))
    return str(
        next((node.attrs[name] for name in ("pg_name", "comm_group") if node.attrs.get(name)), "")
    )


def _number(node: Node, name: str, default: int | None = None) -> int:
    """A whole number of a node's attributes. Raises InputError where it is missing or is none."""
    value: Any = node.attrs.get(name, default)
    if isinstance(value, str) and value.lstrip("-").isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or (value < 0 and value != default):
        raise InputError(f"{name}: must be a whole number >= 0, got {value!r}")
    return value
