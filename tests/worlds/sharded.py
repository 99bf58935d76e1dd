"""Small training graphs with their backward, random splits, and invariants of every split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod

from simdev.lowering import Partitioned, Prepared, lower_prepared, partition
from simdev.lowering.collective import is_collective
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster
from simdev.nouns.graph import Graph
from simdev.nouns.semantics import (
    Region,
    flops,
    input_regions,
    op_semantics,
    op_work,
    stored_region,
)
from simdev.nouns.semantics.registry import LEAF_ROLES as LEAVES
from simdev.nouns.strategy import SYNCS, Configuration, Origin, Strategy
from simdev.nouns.structure import op_splits, weights_of
from simdev.nouns.taskgraph import COLLECTIVE, TRANSFER, TaskGraph
from worlds.costs import COSTS
from worlds.split_graphs import DEVICES, cluster, graphs
from worlds.tape import Tape


@dataclass(frozen=True, repr=False)
class Case:
    """A graph, a cluster and a strategy, split and lowered."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy

    def __repr__(self) -> str:
        told = {"placement": self.strategy.placement, "partition": self.strategy.partition}
        return f"Case({self.graph.name!r}, {self.cluster.queues!r}, {self.strategy.sync!r}, {told})"

    @cached_property
    def found(self) -> Partitioned:
        return partition(self.graph, self.cluster, self.strategy, COSTS)

    @cached_property
    def task_graph(self) -> TaskGraph:
        prepared = Prepared(self.found.graph, self.cluster, COSTS)
        return lower_prepared(prepared, Strategy(self.found.placement, self.strategy.order))


def split_of(tape: Tape, graph: Graph, position: int) -> dict[str, int]:
    """A random split of one op into up to four parts."""
    if graph.ops[position].phase == "update":
        return {}
    found: dict[str, int] = {}
    for one in op_splits(graph, position, weights_of(graph)):
        degree = tape.pick(1, 1, 2, 4, 3)
        if one.size % degree == 0 and degree * prod(found.values()) <= DEVICES:
            found[one.axis] = degree
    return {axis: degree for axis, degree in found.items() if degree > 1}


def devices_of(tape: Tape, parts: int) -> tuple[str, ...]:
    """Distinct devices for ``parts`` parts: as many devices as parts, or a divisor of that."""
    count = tape.pick(parts, parts, 1, parts // 2 if parts % 2 == 0 else parts)
    first = tape.number(DEVICES)
    return tuple(f"gpu:{(first + i) % DEVICES}" for i in range(count))


def make_case(
    tape: Tape, queues: Sequence[str] = QUEUES, transfers: Sequence[str] = TRANSFERS[:1]
) -> Case:
    """A random strategy; ops that it does not place follow others."""
    graph = tape.pick(*graphs())
    split: dict[str, Configuration] = {}
    placement: dict[str, str] = {}
    for position, op in enumerate(graph.ops):
        wanted = tape.number(4)
        if op.kind == "input" and wanted == 0:
            placement[op.name] = f"gpu:{tape.number(DEVICES)}"
        elif op.kind == "input" or (op.kind not in LEAVES and wanted == 1):
            degrees = split_of(tape, graph, position)
            split[op.name] = Configuration(degrees, devices_of(tape, prod(degrees.values())))
        elif op.kind not in LEAVES and wanted == 2 and tape.number(4) == 0:
            placement[op.name] = f"gpu:{tape.number(DEVICES)}"
    if not split:  # there would be no split for other ops to follow
        name = next(iter(placement))
        split[name] = Configuration(devices=(placement.pop(name),))
    sync = tape.pick(*(name for name in SYNCS if name != "bucketed"))  # a bucket joins several ops
    strategy = Strategy(
        placement, partition=split, tensors=tensors_of(tape, graph, split), sync=sync
    )
    return Case(
        graph, replace(cluster(tape.pick(*queues)), transfer=tape.pick(*transfers)), strategy
    )


def tensors_of(
    tape: Tape, graph: Graph, split: Mapping[str, Configuration]
) -> dict[str, dict[int, int]]:
    """Storage splits for some outputs of configured ops: into as many parts as the op has devices,
    or half as many.
    """
    found = {}
    for name, configuration in split.items():
        op = graph.ops[graph.index[name]]
        if op.inputs and tape.number(3) == 0 and op.outputs:
            parts = max(1, len(configuration.devices) // tape.pick(1, 2))
            shape = op.outputs[0].shape
            dimension = tape.number(max(1, len(shape)))
            if shape and shape[dimension] % parts == 0 and len(configuration.devices) % parts == 0:
                found[f"{name}:0"] = {dimension: parts}
    return found


# Invariants of splits, checked element by element.


Element = tuple[int, ...]


def elements(region: Region) -> Iterator[Element]:
    return product(*(range(start, stop) for start, stop in region))


def size_of(graph: Graph, op: str, output: int) -> Fraction:
    """The bytes of an element of a tensor."""
    made = graph.ops[graph.index[op]].outputs[output]
    return Fraction(made.bytes, prod(made.shape))


def holders(
    case: Case, whole: bool = True
) -> dict[tuple[str, int], list[tuple[str, str, frozenset[Element]]]]:
    """For every tensor, the shards (op, device, elements) that hold its values or, where not
    ``whole``, its partial results.
    """
    found: dict[tuple[str, int], list[tuple[str, str, frozenset[Element]]]] = {}
    for op in case.found.graph.ops:
        origin = case.found.origins[op.name]
        places = (
            op.attrs["ranks"]
            if is_collective(op)
            else [case.found.placement[op.name]] * len(origin.regions)
        )
        for (output, region), (_, count), place in zip(
            origin.regions, origin.addend, places, strict=True
        ):
            if (count == 1) == whole:
                found.setdefault((origin.op, output), []).append(
                    (op.name, place, frozenset(elements(region)))
                )
    return {key: _stored(case, key, held) if whole else held for key, held in found.items()}


def _stored(case, key, held):  # type: ignore[no-untyped-def]
    """The parts in which a tensor is stored, where its storage is split differently than made."""
    degrees = case.strategy.tensors.get(f"{key[0]}:{key[1]}")
    if degrees is None:
        return held
    own = [one for one in held if case.found.origins[one[0]].role == "stored"]
    shape = case.graph.ops[case.graph.index[key[0]]].outputs[key[1]].shape
    cuts = [
        [(p * n // d, (p + 1) * n // d) for p in range(d)]
        for n, d in ((n, degrees.get(i, 1)) for i, n in enumerate(shape))
    ]
    devices = list(dict.fromkeys(case.found.placement[name] for name,
    origin in case.found.origins.items()
                                 if origin.op == key[0] and origin.role == "shard"))  # fmt: skip
    cells = [frozenset(elements(region)) for region in product(*cuts)]
    for number, cell in enumerate(cells):
        place = devices[number * len(devices) // len(cells)]
        if not any(one[2] == cell for one in own):  # the part was made where it is stored
            own.append(next(one for one in held if one[1:] == (place, cell)))
    return own


def needs(case: Case, name: str) -> list[tuple[tuple[str, int], Region]]:
    """The tensors of the unsplit graph that a shard reads, and their regions."""
    graph, origin = case.graph, case.found.origins[name]
    position = graph.index[origin.op]
    op = graph.ops[position]
    if not op.inputs:
        return []
    semantics = op_semantics(graph, position)
    strides = op.attrs.get("strides") or [None] * len(op.inputs)
    found = []
    regions = input_regions(semantics, dict(origin.box))
    for text, region, seen, layout in zip(
        op.inputs, regions, semantics.inputs, strides, strict=True
    ):
        producer, output = graph.resolve(text)
        stored = graph.ops[producer].outputs[output].shape
        if not origin.box:  # the whole op reads its operands whole
            found.append(((graph.ops[producer].name, output), tuple((0, n) for n in stored)))
        elif region is not None:
            found.append(
                ((graph.ops[producer].name, output), stored_region(region, seen, stored, layout))
            )
    return found


def expected_bytes(case: Case) -> Fraction:
    """The bytes that have to be sent: the elements that a device needs and does not hold; equal
    requests for a piece count once.
    """
    whole, partial = holders(case), holders(case, False)
    asked: dict[tuple[str, tuple[str, int], str, frozenset[Element]], Fraction] = {}
    for op in case.found.graph.ops:
        origin, device = case.found.origins[op.name], case.found.placement[op.name]
        if origin.role in ("sum", "sync", "stored"):
            if not is_collective(op):
                _ask_addends(case, op, origin, device, partial, asked)
            continue
        for key, region in needs(case, op.name):
            own = [
                name
                for name, *_ in partial.get(key, ())
                if any(t.startswith(f"{name}:") for t in op.inputs)
            ]
            if own:  # continues with the local partial result, or reads one for its shape
                for name, place, made in partial[key]:
                    if name in own and place != device:
                        assert op.kind.endswith("_like")
                        piece = frozenset(made & set(elements(region)))
                        asked[name, key, device, piece] = len(piece) * size_of(case.graph, *key)
                continue
            _ask(case, key, set(elements(region)), device, whole[key], asked)
    return sum(asked.values(), Fraction(0))


def _ask(case, key, wanted, device, held, asked) -> None:  # type: ignore[no-untyped-def]
    for name, place, own in [
        *(h for h in held if h[1] == device),
        *(h for h in held if h[1] != device),
    ]:
        piece = frozenset(wanted & own)
        wanted -= piece
        if piece and place != device:
            asked[name, key, device, piece] = len(piece) * size_of(case.graph, *key)
    assert not wanted, f"nobody makes {sorted(wanted)[:3]} of {key}"


def _ask_addends(case, op, origin: Origin, device, partial, asked) -> None:  # type: ignore[no-untyped-def]
    ((output, region),) = origin.regions
    own = set(elements(region))
    held = partial.get((origin.op, output)) or _made(case, origin.op, output)
    sources = {text.rpartition(":")[0] for text in op.inputs}
    for name, place, made in held:
        if name in sources and made & own and place != device:
            asked[name, (origin.op, output), device, frozenset(made & own)] = len(
                made & own
            ) * size_of(case.graph, origin.op, output)


def _made(case, name: str, output: int):  # type: ignore[no-untyped-def]
    """The shards that make an output of an op: (name, device, elements)."""
    found = []
    for op, origin in case.found.origins.items():
        if origin.op == name and origin.role == "shard":
            regions = [region for k, region in origin.regions if k == output]
            found += [
                (op, case.found.placement[op], frozenset(elements(region))) for region in regions
            ]
    return found


def sent_bytes(task_graph: TaskGraph) -> int:
    """The bytes of all transfers."""
    tasks = task_graph.tasks
    return sum(
        int(size) for size, kind in zip(tasks.bytes, tasks.kind, strict=True) if kind == TRANSFER
    )


def require_sent(case: Case) -> None:
    """Asserts that transfers and collectives send the expected bytes."""
    assert sent_bytes(case.task_graph) == expected_bytes(case)
    tasks = case.task_graph.tasks
    for task, kind in enumerate(tasks.kind):
        if kind == COLLECTIVE:
            op = case.found.graph.ops[task]
            ranks, size = len(op.attrs["ranks"]), op.outputs[0].bytes
            assert tasks.bytes[task] in {2 * (ranks - 1) * -(-size // ranks) * n for n in (1, 2)}


def require_made_once(case: Case) -> None:
    """Asserts that the shards of every op make each element of each output once, and where they
    make partial results, each addend of it once.
    """
    made: dict[tuple[str, int, int], dict[Region, int]] = {}
    counts: dict[tuple[str, int], set[int]] = {}
    for origin in case.found.origins.values():
        if origin.role == "shard":
            for (output, region), (addend, count) in zip(
                origin.regions, origin.addend, strict=True
            ):
                seen = made.setdefault((origin.op, output, addend), {})
                seen[region] = seen.get(region, 0) + 1
                counts.setdefault((origin.op, output), set()).add(count)
    for (op, output, addend), regions in made.items():
        shape = case.graph.ops[case.graph.index[op]].outputs[output].shape
        found = [element for region in regions for element in elements(region)]
        assert len(found) == len(set(found)) == prod(shape), (op, output, addend)
        assert len(set(regions.values())) == 1, "copies of some regions only"
    for (op, output), seen in counts.items():
        (count,) = seen
        assert {addend for name, k, addend in made if (name, k) == (op, output)} == set(
            range(count)
        )


LOOKUPS = ("nll_loss", "nll_loss_backward", "embedding_backward")
"""Kinds that look up one element a row, however many classes there are. Their work per point is a
share of the number of classes, of which a shard has fewer.
"""
HALOS = ("conv2d_backward_input", "avg_pool2d_backward")
"""Kinds whose shards, run as kernels, also compute points that a stride may leave out."""


def require_flops(case: Case) -> None:
    """Asserts that the boxes of an op sum to all of its work, and that its shards, as separate ops,
    compute as much, halos aside.
    """
    boxes: dict[str, dict[object, int]] = {}
    for position, op in enumerate(case.found.graph.ops):
        origin = case.found.origins[op.name]
        if origin.role == "shard" and op.kind not in LOOKUPS:
            boxes.setdefault(origin.op, {})[origin.box] = op_work(case.found.graph, position).flops
    for name, found in boxes.items():
        position = case.graph.index[name]
        semantics = op_semantics(case.graph, position)
        whole = flops(semantics, {})
        # Each box's count is rounded down.
        assert abs(sum(flops(semantics, dict(box)) for box in found) - whole) <= len(found), name
        assert sum(found.values()) >= whole - len(found), name
        if case.graph.ops[position].kind not in HALOS:
            assert sum(found.values()) <= whole + len(found), name


WAITING = ("device", "half-duplex", "link", "egress", "parallel")
"""Kinds of queues in which transfers do not share bandwidth."""


def timed(tape: Tape, case: Case) -> Case:
    """The case with many ties: configured ops have small given times, others 0 or estimated ones;
    the speeds of links are similar.
    """
    ops = []
    for one in case.graph.ops:
        given = (0, 0, 1, 2) if one.name in case.strategy.partition else (0, None)
        time = None if one.kind in LEAVES else tape.pick(*given)
        ops.append(one if time is None else replace(one, time=f"{time} us"))
    partition = {
        name: replace(one, time="divided") for name, one in case.strategy.partition.items()
    }
    own = cluster(
        case.cluster.queues, bandwidth=10**6 * tape.pick(1, 256), latency=f"{tape.pick(0, 1, 2)} us"
    )
    return Case(
        Graph(case.graph.name, tuple(ops)), own, replace(case.strategy, partition=partition)
    )


def covered(tape: Tape) -> Case:
    """A random strategy that the oracle's fast path supports; half of them with many ties."""
    case = make_case(tape, WAITING)
    sync = "all-reduce" if case.strategy.sync == "bucketed" else case.strategy.sync
    case = Case(case.graph, case.cluster, replace(case.strategy, tensors={}, sync=sync))
    return timed(tape, case) if tape.number(2) == 0 else case
