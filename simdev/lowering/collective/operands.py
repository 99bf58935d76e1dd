"""What a collective op reads and leaves, on which of its ranks, and what can be wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...cluster import Cluster
from ...collectives import COLLECTIVES, CollectiveCall
from ...errors import InputError
from ...graph import Graph, Op
from ...strategy import Collectives, choice_problems
from .tasks import Ring

ALL_REDUCE = "all_reduce"
KINDS = COLLECTIVES
SINGLE_INPUT = ("broadcast", "p2p")
_OPTIONS = ("algorithm", "cost", "chunks")
Cost = Callable[[CollectiveCall, str], Ring]
"""The collective that is asked for, costed so."""


def is_collective(op: Op) -> bool:
    """Whether the op runs on several devices at once."""
    return op.kind in KINDS and "ranks" in op.attrs


def rings(graph: Graph, cluster: Cluster, choice: Collectives, cost: Cost) -> dict[int, Ring]:
    """The collective ops of a graph by their position, costed as they say, else as ``choice`` does.

    Raises InputError with every problem at once.
    """
    found: dict[int, Ring] = {}
    problems: list[str] = []
    for i, op in enumerate(graph.ops):
        if not is_collective(op):
            continue
        wrong = list(collective_problems(graph, cluster, i))
        problems += [f"ops[{i}].{problem}" for problem in wrong]
        if wrong:
            continue
        ranks = tuple(cluster.index[name] for name in op.attrs["ranks"])
        try:
            found[i] = _placed(op, cost(*_question(graph, i, ranks, choice)))
        except InputError as error:
            problems += [f'ops[{i}]: "{op.name}": {problem}' for problem in error.problems]
    if problems:
        raise InputError(problems)
    return found


def _question(
    graph: Graph, position: int, ranks: tuple[int, ...], choice: Collectives
) -> tuple[CollectiveCall, str]:
    op = graph.ops[position]
    algorithm, cost, chunks = (op.attrs.get(name, getattr(choice, name)) for name in _OPTIONS)
    return CollectiveCall(
        op.kind, ranks, _size(op, graph.operands[position], len(ranks)), algorithm, chunks
    ), cost


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


def _placed(op: Op, ring: Ring) -> Ring:
    """With the devices of its inputs and of its outputs; a view lies with its base."""
    each = len(op.inputs) // len(ring.ranks)
    inputs = (
        ring.ranks[:1]
        if op.kind in SINGLE_INPUT
        else tuple(rank for rank in ring.ranks for _ in range(each))
    )
    outputs = ring.ranks[1:] if op.kind in SINGLE_INPUT else ring.ranks
    made = iter(outputs)
    homes: list[int] = []
    for tensor in op.outputs:
        homes.append(next(made) if tensor.view_of is None else homes[tensor.view_of])
    return replace(ring, inputs_on=inputs, outputs_on=tuple(homes))


def collective_problems(graph: Graph, cluster: Cluster, position: int) -> Iterator[str]:
    """What is wrong with a collective op, as ``field: reason``."""
    op = graph.ops[position]
    names: Any = op.attrs["ranks"]
    listed = (
        isinstance(names, Sequence)
        and not isinstance(names, str)
        and all(isinstance(one, str) for one in names)
    )
    if not listed or len(names) < 2 or len(set(names)) < len(names):
        yield "attrs.ranks: must name two devices at least, each once"
        return
    for j, name in enumerate(names):
        if name not in cluster.index or not cluster.devices[cluster.index[name]].runs_ops:
            yield f'attrs.ranks[{j}]: no device that runs ops is named "{name}"'
    given = [
        op.attrs.get(name, default)
        for name, default in zip(_OPTIONS, ("ring", "closed", None), strict=True)
    ]
    yield from (f"attrs.{problem}" for problem in choice_problems(*given))
    yield from _operand_problems(
        op, [tensor.bytes for tensor in graph.operands[position]], len(names)
    )


def _operand_problems(op: Op, read: list[int], ranks: int) -> Iterator[str]:
    made = [tensor.bytes for tensor in op.made]
    if op.kind == ALL_REDUCE and len(read) > ranks and len(read) % ranks == 0:
        # a bucket: each rank reads so many tensors, and is left with one of their size
        each = len(read) // ranks
        read = [sum(read[rank * each : (rank + 1) * each]) for rank in range(ranks)]
    if op.kind == "p2p" and ranks != 2:
        yield f"attrs.ranks: p2p joins two, got {ranks}"
        return
    counts = (
        (1, ranks - 1) if op.kind in SINGLE_INPUT else (ranks, 1 if op.kind == "reduce" else ranks)
    )
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
            parts, whole = read, made
        case "reduce_scatter":
            parts, whole = made, read
        case _:
            if len({*read, *made}) > 1:
                yield "inputs: all inputs and outputs must have the same bytes"
            return
    if set(whole) != {sum(parts)}:
        names = ("outputs", "inputs") if op.kind == "all_gather" else ("inputs", "outputs")
        yield f"{names[0]}: each must have the {sum(parts)} bytes of all {names[1]} together"
