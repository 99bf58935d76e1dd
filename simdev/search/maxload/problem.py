"""The problems of dnn-partitioning (Tarnawski et al., NeurIPS 2020): the largest load, which is the
period of a full pipeline, and the latency of one inference.

All modules beside it read ``MaxLoadProblem``. Its objectives (``loads``, ``latency``) are written a
second time as rows of integer programs (``placers.py``), the loads also as a dynamic program
(``contiguous.py``, ``search.kernels.pairs``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import Any

from ...ground.errors import InputError
from ...nouns.structure import before_of, components, readers_of, topological, unit_of
from ...oracle import Oracle
from ..instance import Instance
from ..prepare import Grouped
from ..space import held_bytes

CPU = "cpu"
# The attribute of imported ops: transfer_ms, bytes, and readers where the graph's edges differ.
ATTRIBUTE = "max_load"


@dataclass(frozen=True)
class MaxLoadProblem:
    """Assign each group of ops to an accelerator or a CPU (device indices), so that the largest
    load is least.

    ``on_accelerator`` and ``on_cpu`` are ms by op (inf: cannot run there), ``cost`` the ms to move
    an op's outputs between an accelerator and any other device, ``size`` bytes by op, ``readers``
    the ops that read each op, ``group`` the group of each op. ``capacity`` is the bytes of an
    accelerator, None: unlimited.
    """

    on_accelerator: tuple[float, ...]
    on_cpu: tuple[float, ...]
    cost: tuple[float, ...]
    size: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    backward: tuple[bool, ...]
    group: tuple[int, ...]
    accelerators: tuple[int, ...]
    cpus: tuple[int, ...]
    capacity: int | None = None

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ops of each group."""
        return _members(self.group)

    @cached_property
    def order(self) -> frozenset[tuple[int, int]]:
        """Pairs of groups (earlier, later) that a contiguous split respects.

        Edges between forward ops; and edges between backward ops reversed, where one of the two
        groups has backward ops only: that gives it a place in the forward order. Edges from forward
        to backward ops do not count.
        """
        back, group = self.backward, self.group
        has_forward = [not all(back[op] for op in ops) for ops in self.members]
        pairs = set()
        for op, readers in enumerate(self.readers):
            for reader in readers:
                a, b = group[op], group[reader]
                if not (back[op] or back[reader]):
                    pairs.add((a, b))
                elif back[op] and back[reader] and not (has_forward[a] and has_forward[b]):
                    pairs.add((b, a))
        return frozenset((a, b) for a, b in pairs if a != b)

    def loads(self, devices: Sequence[int]) -> dict[int, float]:
        """The load in ms of each device that has ops. ``devices`` by op.

        An accelerator's load: the times of its ops, and once the cost of each op that is read
        across the accelerator's border. A CPU's load: the times of its ops. inf where an op cannot
        run.
        """
        loads = dict.fromkeys(sorted(set(devices)), 0.0)
        for op, device in enumerate(devices):
            loads[device] += self.on_cpu[op] if device in self.cpus else self.on_accelerator[op]
            elsewhere = {devices[reader] for reader in self.readers[op]} - {device}
            for end in {*elsewhere, device} if elsewhere else ():
                if end not in self.cpus:
                    loads[end] += self.cost[op]
        return loads

    def fits(self, devices: Sequence[int]) -> bool:
        """Whether the sizes on each accelerator stay within its capacity."""
        held = dict.fromkeys(self.accelerators, 0)
        for op, device in enumerate(devices):
            if device in held:
                held[device] += self.size[op]
        return self.capacity is None or all(size <= self.capacity for size in held.values())


def _members(sets: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ops of each set, from the number of the set by op."""
    ops: list[list[int]] = [[] for _ in range(max(sets, default=-1) + 1)]
    for op, number in enumerate(sets):
        ops[number].append(op)
    return tuple(map(tuple, ops))


def problem_of(oracle: Oracle) -> MaxLoadProblem:
    """The max-load problem of a graph on a cluster.

    Devices of kind ``cpu`` are CPUs, unless there are no others.

    An op's cost is ``transfer_ms`` of its attribute ``max_load`` (imported workloads), else the
    slowest transfer of all its outputs for others between two devices. Raises InputError where the
    accelerators differ in kind, speed or memory.
    """
    devices = oracle.cluster.devices
    able = [d for d, device in enumerate(devices) if device.runs_ops]
    accelerators = [d for d in able if devices[d].kind != CPU] or able
    cpus = [d for d in able if d not in accelerators]
    if len({(devices[d].kind, devices[d].memory, devices[d].speed) for d in accelerators}) > 1:
        raise InputError(
            "max-load: the accelerators must be alike, of one kind and with as much memory"
        )
    given = [_given(op.attrs) for op in oracle.graph.ops]
    limit = devices[accelerators[0]].memory
    return MaxLoadProblem(
        on_accelerator=_times(oracle, accelerators[0]),
        on_cpu=_times(oracle, cpus[0]) if cpus else (inf,) * len(given),
        cost=_costs(oracle, given),
        size=tuple(
            int(attrs.get("bytes", held_bytes(op)))
            for attrs, op in zip(given, oracle.graph.ops, strict=True)
        ),
        readers=_readers(oracle, given),
        backward=tuple(op.phase != "forward" for op in oracle.graph.ops),
        group=tuple(unit_of(oracle.graph)),
        accelerators=tuple(accelerators),
        cpus=tuple(cpus),
        capacity=None if limit is None else int(limit),
    )


def _given(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes that a file of the paper gives an op; empty for other ops."""
    given = attrs.get(ATTRIBUTE, {})
    return given if isinstance(given, Mapping) else {}


def _times(oracle: Oracle, device: int) -> tuple[float, ...]:
    """Ms of each op on a device, unrounded."""
    costs = (oracle.prepared.cost(i, device) for i in range(len(oracle.graph.ops)))
    return tuple(inf if cost is None else float(cost.seconds * 1000) for cost in costs)


def _costs(oracle: Oracle, given: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    instance = Instance(oracle.prepared, Grouped.of(oracle.graph))
    slowest = (instance.sending + instance.routes.lag).max(axis=1, initial=0)
    costs = [0.0] * len(given)
    for row, ps in zip(instance.tensors[0], slowest.tolist(), strict=True):
        costs[int(oracle.prepared.reads.producer[row])] += ps / 1e9
    pairs = zip(given, costs, strict=True)
    return tuple(float(attrs.get("transfer_ms", cost)) for attrs, cost in pairs)


def _readers(oracle: Oracle, given: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    graph = oracle.graph
    readers = readers_of(graph)
    for i, attrs in enumerate(given):
        if "readers" in attrs:
            readers[i] = sorted({graph.index[name] for name in attrs["readers"]})
    return tuple(map(tuple, readers))


# The latency problem: one inference as early as possible. CPUs are unlimited: an op there ends
# ``on_cpu`` after its last producer. An accelerator runs all its ops as one unit: it begins when
# every producer outside has ended, then takes the costs of its inputs, the times of its ops and the
# costs of its outputs; then all its ops end. Their sizes must fit into its memory.


def latency(problem: MaxLoadProblem, devices: Sequence[int]) -> float:
    """The ms until the last op ends; inf where devices wait for each other or an op cannot run.

    ``devices`` by op.
    """
    # A unit is an accelerator with all its ops, or an op on a CPU (the number below 0).
    unit = [-1 - op if device in problem.cpus else device for op, device in enumerate(devices)]
    number = {key: at for at, key in enumerate(dict.fromkeys(unit))}
    length, edges = [0.0] * len(number), set[tuple[int, int]]()
    for op, key in enumerate(unit):
        length[number[key]] += (problem.on_cpu if key < 0 else problem.on_accelerator)[op]
        others = {unit[reader] for reader in problem.readers[op]} - {key}
        edges.update((number[key], number[other]) for other in others)
        for end in {*others, key} if others else ():
            if end >= 0:
                length[number[end]] += problem.cost[op]
    return _longest(length, edges)


def _longest(length: Sequence[float], edges: Iterable[tuple[int, int]]) -> float:
    """The longest path along edges (before, after); inf where there is a cycle."""
    before = before_of(len(length), edges)
    order, ends = topological(before), [0.0] * len(length)
    for node in order:
        ends[node] = max((ends[other] for other in before[node]), default=0.0) + length[node]
    return inf if len(order) < len(length) else max(ends, default=0.0)


def least(problem: MaxLoadProblem) -> float:
    """A lower bound of the latency of any placement: the longest path, with every op where it is
    fastest and free transfers.
    """
    pairs = ((op, reader) for op, readers in enumerate(problem.readers) for reader in readers)
    times = zip(problem.on_accelerator, problem.on_cpu, strict=True)
    return _longest([min(*pair) if problem.cpus else pair[0] for pair in times], pairs)


def filled(problem: MaxLoadProblem) -> tuple[int, ...] | None:
    """The greedy baseline: accelerators are filled in an order that stays on a branch, and the CPU
    gets the rest.

    Ops that only the CPU can run close the current accelerator: it may not be entered twice. None
    where some op runs nowhere.
    """
    capacity = inf if problem.capacity is None else problem.capacity
    places, room, entered = list(problem.accelerators), capacity, False
    where = [-1] * len(problem.group)
    for members in _in_order(problem):
        size = sum(problem.size[op] for op in members)
        able = all(isfinite(problem.on_accelerator[op]) for op in members) and size <= capacity
        if entered and places and (not able or size > room):
            places, room, entered = places[1:], capacity, False
        if able and places:
            device, room, entered = places[0], room - size, True
        elif problem.cpus and all(isfinite(problem.on_cpu[op]) for op in members):
            device = problem.cpus[0]
        else:
            return None
        for op in members:
            where[op] = device
    return tuple(where)


def _in_order(problem: MaxLoadProblem) -> list[tuple[int, ...]]:
    """The ops group by group (groups on a cycle together), in an order that stays on a branch."""
    block = components(len(problem.members), problem.order)
    ops_of = _members([block[group] for group in problem.group])
    edges = ((block[a], block[b]) for a, b in problem.order if block[a] != block[b])
    return [ops_of[number] for number in topological(before_of(len(ops_of), edges), "branch")]
