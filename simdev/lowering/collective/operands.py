"""What a collective op reads and leaves, on which of its ranks, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...costs.collectives import COLLECTIVES, CollectiveCall
from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph, Op
from ...nouns.strategy import Collectives, choice_problems
from .tasks import Communicators, Ring

ALL_REDUCE = "all_reduce"
KINDS = COLLECTIVES
SINGLE_INPUT = ("broadcast", "p2p")
_OPTIONS = ("algorithm", "cost", "chunks")


def is_collective(op: Op) -> bool:
    """Whether the op runs on several devices at once."""
    return op.kind in KINDS and "ranks" in op.attrs


def rings(graph: Graph, positions: Sequence[int], communicators: Communicators) -> dict[int, Ring]:
    """The collective ops of a graph, which stand at these positions, costed as they say, else as a
    strategy chooses.

    Raises InputError with every problem at once.
    """
    ring_of: dict[int, Ring] = {}
    problems: list[str] = []
    for i in positions:
        reasons = collective_problems(graph, communicators.cluster, i)
        wrong = [f"ops[{i}].{reason}" for reason in reasons]
        try:
            if not wrong:
                ring_of[i] = _ring(graph, i, communicators)
        except InputError as error:
            name = graph.ops[i].name
            wrong = [f'ops[{i}]: "{name}": {problem}' for problem in error.problems]
        problems += wrong
    if problems:
        raise InputError(problems)
    return ring_of


def _ring(graph: Graph, position: int, communicators: Communicators) -> Ring:
    """An op's collective, with the devices of its inputs and of its outputs."""
    op, operands = graph.ops[position], graph.operands[position]
    ranks = tuple(communicators.cluster.index[name] for name in op.attrs["ranks"])
    options = (op.attrs.get(name, getattr(communicators.choice, name)) for name in _OPTIONS)
    algorithm, cost, chunks = options
    call = CollectiveCall(op.kind, ranks, _size(op, operands, len(ranks)), algorithm, chunks)
    ring = communicators.costed(call, cost)
    # Of each rank the inputs of a bucket stand together.
    inputs = tuple(rank for rank in ranks for _ in range(len(op.inputs) // len(ranks)))
    outputs = ranks
    if op.kind in SINGLE_INPUT:
        inputs, outputs = ranks[:1], ranks[1:]
    made, homes = iter(outputs), list[int]()
    for tensor in op.outputs:
        # A view lies with its base.
        homes.append(next(made) if tensor.view_of is None else homes[tensor.view_of])
    return replace(ring, inputs_on=inputs, outputs_on=tuple(homes))


def _size(op: Op, operands: Sequence[Any], ranks: int) -> int:
    """Bytes as nccl-tests counts them; shards of unequal size are padded to the largest."""
    match op.kind:
        case "all_gather":
            return ranks * max(int(tensor.bytes) for tensor in operands)
        case "reduce_scatter":
            return ranks * max(tensor.bytes for tensor in op.made)
        case "all_reduce":
            return op.made[0].bytes  # of all that a rank reads
        case _:
            return int(operands[0].bytes)


def collective_problems(graph: Graph, cluster: Cluster, position: int) -> Iterator[str]:
    """What is wrong with a collective op, as ``field: reason``."""
    op = graph.ops[position]
    names: Any = op.attrs["ranks"]
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    texts = listed and all(isinstance(name, str) for name in names)
    if not texts or len(names) < 2 or len(set(names)) < len(names):
        yield "attrs.ranks: must name two devices at least, each once"
        return
    for j, name in enumerate(names):
        if name not in cluster.index or not cluster.devices[cluster.index[name]].runs_ops:
            yield f'attrs.ranks[{j}]: no device that runs ops is named "{name}"'
    given = (op.attrs.get(name, getattr(Collectives(), name)) for name in _OPTIONS)
    yield from (f"attrs.{problem}" for problem in choice_problems(*given))
    sizes = [tensor.bytes for tensor in graph.operands[position]]
    yield from _operand_problems(op, sizes, len(names))


def _operand_problems(op: Op, read: list[int], ranks: int) -> Iterator[str]:
    made = [tensor.bytes for tensor in op.made]
    if op.kind == ALL_REDUCE and len(read) > ranks and len(read) % ranks == 0:
        # A bucket: each rank reads so many tensors, and is left with one of their size.
        each = len(read) // ranks
        read = [sum(read[first : first + each]) for first in range(0, len(read), each)]
    if op.kind == "p2p" and ranks != 2:
        yield f"attrs.ranks: p2p joins two, got {ranks}"
        return
    counts = (ranks, 1 if op.kind == "reduce" else ranks)
    if op.kind in SINGLE_INPUT:
        counts = 1, ranks - 1
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
    if set(whole) != {sum(parts)}:
        yield f"{names[0]}: each must have the {sum(parts)} bytes of all {names[1]} together"
