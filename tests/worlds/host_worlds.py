"""Random questions with hosts, each also as a HostModel, which follows the contract's text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from simdev.costs import CostModel
from simdev.lowering import LoweredStep, Prepared, iterated, lower_step
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.taskgraph import TaskGraph
from worlds.clusters import joined
from worlds.host_model import HostModel, Node, Piece
from worlds.tape import Tape

PS = Fraction(1, 10**12)


@dataclass(frozen=True)
class HostWorld:
    """A question; ``model`` is its HostModel for one step."""

    prepared: Prepared
    strategy: Strategy
    model: HostModel

    def lowered(self, repeated: bool = False) -> LoweredStep:
        return lower_step(self.prepared, self.strategy, repeated)

    def steps(self, count: int) -> tuple[TaskGraph, HostModel]:
        """The task graph and the HostModel of ``count`` steps."""
        step = self.lowered(True)
        return iterated(step, count), replace(
            self.model, steps=count, across=step.across, length={}, edges=[]
        )


def finishes(world: HostWorld, task_graph: TaskGraph, finish: list[int]) -> dict[Node, int]:
    """The ends of ops and dispatches in a trace, by the nodes of the model."""
    ops, devices = world.prepared.graph.ops, task_graph.devices
    names: dict[str, Node] = {}
    for step in range(task_graph.steps):
        mark = f"~{step}" if step else ""
        for i, op in enumerate(ops):
            names[op.name + mark] = "op", step, i
            for d, device in enumerate(devices):
                names[f"dispatch graph@{device}{mark}"] = "dispatch", step, "graph", d
                end = f"@{device}" if op.kind == "all_reduce" else ""
                if end or d == world.model.pieces[i].devices[0]:
                    names[f"dispatch {op.name}{mark}{end}"] = "dispatch", step, i, d
    return {
        names[name]: end
        for name, end in zip(task_graph.tasks.name, finish, strict=True)
        if name in names
    }


def host(tape: Tape, far: int) -> Host:
    mode = tape.pick("eager", "eager", "eager", "graph", "none")
    ahead = tape.pick(1, 2, 3, 5, far)
    return Host(mode, ahead, tape.pick("device", "node"), tape.number(4) * PS)


def host_world(tape: Tape, far: int = 1024) -> HostWorld:
    """A question of up to three devices and ten ops, under any order; hosts run at most ``far``
    launches ahead.
    """
    policy = tape.pick("fifo", "program", "priority", "fixed")
    count = 1 + tape.number(3)
    cluster = _cluster(tape, count, policy in ("fifo", "priority"), far)
    pieces: list[Piece] = []
    replays = {d for d in range(count) if (h := cluster.host_of(d)) and h.mode == "graph"}
    for _ in range(1 + tape.number(5)):
        if policy != "fixed" and count > 1 and tape.number(4) == 0:
            _add_collective(tape, pieces, count, replays)
        else:
            _add_op(tape, pieces, tape.number(count), replays)
    if policy in ("fifo", "program"):
        streams = (tape.pick(None, None, "a", "b") for _ in pieces)
        pieces = [replace(p, stream=s) for p, s in zip(pieces, streams, strict=True)]
    ops = tuple(_op(i, piece, pieces) for i, piece in enumerate(pieces))
    graph, names = Graph("world", ops), [device.name for device in cluster.devices]
    placement = {op.name: names[piece.devices[0]] for op, piece in zip(ops, pieces, strict=True)}
    order = Order(policy)
    given: str | dict[int, list[int]] = policy
    if policy == "priority":
        order = Order(policy, {op.name: p.priority for op, p in zip(ops, pieces, strict=True)})
    if policy == "fixed":
        given = _sequences(tape, pieces, count)
        sequence = {names[d]: tuple(ops[i].name for i in row) for d, row in given.items()}
        order = Order(policy, sequence=sequence)
    prepared = Prepared(graph, cluster, CostModel())
    # The duration of a collective does not depend on hosts, so it is taken from simdev.
    for i, ring in prepared.rings.items():
        pieces[i] = replace(pieces[i], duration=ring.duration_ps)
    model = HostModel(pieces, cluster, given, lambda size: size)
    return HostWorld(prepared, Strategy(placement, order), model)


def _cluster(tape: Tape, count: int, every: bool, far: int) -> Cluster:
    """A random cluster. With ``every`` all devices have a host, because a device without one serves
    ops in the order of their arrival.
    """
    devices = []
    for d in range(count):
        given = host(tape, far) if tape.number(2) else None
        if every and given is not None and given.mode == "none":
            given = None
        devices.append(Device(f"gpu:{d}", node=tape.number(2), host=given))
    common = host(tape, far)
    if every and common.mode == "none":
        common = Host("eager", common.ahead, common.threads)
    cluster = joined(devices, "parallel")
    return replace(cluster, host=common)


def _piece(tape: Tape, place: int, devices: tuple[int, ...], replays: set[int]) -> Piece:
    return Piece(
        place,
        devices,
        tape.number(5),
        tape.number(5),
        tape.pick(1, 1, 2, 0, 3),
        blocks=tape.number(4) == 0 and replays.isdisjoint(devices),
        priority=tape.number(3) - 1,
    )


def _add_op(tape: Tape, pieces: list[Piece], device: int, replays: set[int]) -> None:
    able = [i for i, piece in enumerate(pieces) if not piece.collective or device in piece.devices]
    some = tape.some(2, len(able)) if able else []
    reads = tuple((able[i], tape.number(4)) for i in some)
    piece = _piece(tape, len(pieces), (device,), replays)
    # A collective has its output on each rank, so reading it sends nothing.
    reads = tuple((i, 0 if pieces[i].collective else size) for i, size in reads)
    pieces.append(replace(piece, reads=reads))


def _add_collective(tape: Tape, pieces: list[Piece], count: int, replays: set[int]) -> None:
    first = len(pieces)
    for device in range(count):
        _add_op(tape, pieces, device, replays)
    ranks = tuple(range(count))
    piece = _piece(tape, len(pieces), ranks, replays)
    reads = tuple((first + device, 0) for device in ranks)
    pieces.append(replace(piece, reads=reads, collective=True))


def _op(i: int, piece: Piece, pieces: list[Piece]) -> Op:
    fields = {
        "host_time": piece.host * PS,
        "launches": piece.launches,
        "blocks_host": piece.blocks,
        "stream": piece.stream,
    }
    if piece.collective:
        ranks = [f"gpu:{device}" for device in piece.devices]
        inputs = tuple(f"op{j}:9" for j, _ in piece.reads)
        outputs = tuple(Tensor(8) for _ in ranks)
        attrs = {"ranks": ranks}
        return Op(f"op{i}", "all_reduce", inputs=inputs, outputs=outputs, attrs=attrs, **fields)
    # Output k has k bytes, so that a reader chooses the bytes by the output; collectives sum the
    # last output.
    inputs = tuple(
        f"op{j}:{pieces[j].devices.index(piece.devices[0])}"
        if pieces[j].collective
        else f"op{j}:{size}"
        for j, size in piece.reads
    )
    outputs = tuple(Tensor(size) for size in (*range(9), 8))
    return Op(f"op{i}", inputs=inputs, outputs=outputs, time=piece.duration * PS, **fields)


def _sequences(tape: Tape, pieces: list[Piece], count: int) -> dict[int, list[int]]:
    """A feasible random order of the ops of each device."""
    left, done = list(range(len(pieces))), list[int]()
    while left:
        able = [i for i in left if set(done).issuperset(j for j, _ in pieces[i].reads)]
        done.append(able[tape.number(len(able))])
        left.remove(done[-1])
    return {d: [i for i in done if pieces[i].devices == (d,)] for d in range(count)}
