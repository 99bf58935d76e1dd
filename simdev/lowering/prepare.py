"""A graph on a cluster with its costs, prepared once and lowered for many placements.

``Prepared`` remembers answers that no placement changes: durations, routes, rings. Answers about
the graph alone (``CostedGraph``), the cluster alone (its fabric) and collectives alone
(``Communicators``) are kept apart, so that each can be shared where the others differ. The second
half of the module tells what PyTorch holds beside tensors; its switches are those of
``MemoryModel`` (``simdev/nouns/memory.py``), and large models count theirs in
``simdev/lowering/hybrid/buffers.py``.

``prepare`` of ``simdev/execution/scenario.py`` and ``simdev/oracle/__init__.py`` make a
``Prepared``; every pass of ``simdev/lowering/``, the evaluators of ``simdev/oracle/`` and the
searches of ``simdev/search/`` read it. ``simdev/costs/ladder.py`` decides how long an op takes,
``simdev/lowering/collective.py`` how long a collective takes: here are only the tables. An op of
unknown cost is UNKNOWN until ``require_costs`` refuses it. Tests:
``tests/lowering/test_prepare.py`` and ``tests/memory/test_memory_framework.py`` (the second half).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..costs import MEMORY_PASS, CostModel, HostCost, OpCost, op_key
from ..costs.rows import fields_of, object_at
from ..ground.errors import InputError, MissingCostError
from ..ground.frozen import FrozenDict
from ..ground.units import Number, picoseconds
from ..nouns.cluster import Cluster, Host
from ..nouns.fabric import Fabric, Segment
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel, with_training_state
from ..nouns.semantics import op_class
from ..nouns.strategy import Collectives
from ..nouns.taskgraph import Ints, Rows, distinct
from .collective import KINDS, Communicators, Ring, is_collective, rings

UNKNOWN = -1  # duration of an op of unknown cost


@dataclass(frozen=True, slots=True)
class Reads:
    """The tensors that some op reads, in the order of producer and output.

    ``consumers`` are the ops that read each. A control input counts as the output -1 of its
    producer, of 0 bytes.
    """

    producer: Ints
    output: Ints
    bytes: Ints
    consumers: Rows


class CostedGraph:
    """A graph with what its ops cost by kind of device: each cost is looked up once."""

    def __init__(
        self, graph: Graph, costs: CostModel, updating: Mapping[int, int] = FrozenDict()
    ) -> None:
        """``updating`` is by position of an update the bytes of its temporaries (with_scratch)."""
        self.graph, self.costs, self.updating = graph, costs, updating
        self._costs: dict[tuple[int, str], OpCost | None] = {}
        self._distinct: dict[OpCost | None, OpCost | None] = {}
        self._durations: dict[str, Ints] = {}
        self._host_costs: dict[tuple[int, str], HostCost | None] = {}
        self._host_columns: dict[str, tuple[Ints, Ints]] = {}

    @cached_property
    def reads(self) -> Reads:
        """Every tensor of the graph that is read, with its distinct consumers in program order."""
        consumers: dict[tuple[int, int], list[int]] = {}
        for consumer, reads in enumerate(self.graph.reads):
            for key in reads:
                consumers.setdefault(key, []).append(consumer)
        # The order of transfers, and so of their ids: producer, then output.
        keys = sorted(consumers)
        sizes = [self.graph.ops[p].outputs[k].bytes if k >= 0 else 0 for p, k in keys]
        table = np.array(keys, np.int64).reshape(-1, 2)
        lists = Rows.of(consumers[key] for key in keys)
        return Reads(table[:, 0], table[:, 1], np.array(sizes, np.int64), lists)

    @cached_property
    def collectives(self) -> tuple[int, ...]:
        """The positions of the ops that run on several devices at once."""
        return tuple(i for i, op in enumerate(self.graph.ops) if is_collective(op))

    def cost(self, op: int, kind: str) -> OpCost | None:
        """The cost of an op on a kind of device, None where it is unknown.

        Equal costs are one object.
        """
        key = op, kind
        if key not in self._costs:
            # A collective has no cost on a device: it takes time on links (``Prepared.rings``).
            alone = not is_collective(self.graph.ops[op])
            cost = self.costs.cost(self.graph, op, kind) if alone else None
            if cost is not None and cost.rung == MEMORY_PASS and self.graph.ops[op].kind in KINDS:
                cost = None
            # One object, so that reports gather ops of equal cost by identity.
            self._costs[key] = self._distinct.setdefault(cost, cost)
        return self._costs[key]

    def durations(self, kind: str) -> Ints:
        """Duration in ps of every op on a kind of device, UNKNOWN where its cost is."""
        if kind not in self._durations:
            costs = (self.cost(op, kind) for op in range(len(self.graph.ops)))
            ps = [UNKNOWN if cost is None else picoseconds(cost.seconds) for cost in costs]
            self._durations[kind] = np.array(ps, np.int64)
        return self._durations[kind]

    def host_cost(self, op: int, kind: str) -> HostCost | None:
        """The cost of dispatching an op on the host of a kind of device, None if unknown."""
        key = op, kind
        if key not in self._host_costs:
            self._host_costs[key] = self.costs.host_cost(self.graph, op, kind)
        return self._host_costs[key]

    def host_columns(self, kind: str) -> tuple[Ints, Ints]:
        """The time in ps of dispatching every op on a kind of device (UNKNOWN where its cost is),
        and its launches.
        """
        if kind not in self._host_columns:
            ops = range(len(self.graph.ops))
            costs = [self.host_cost(op, kind) for op in ops]
            ps = [UNKNOWN if cost is None else picoseconds(cost.seconds) for cost in costs]
            launches = [self.costs.launches(self.graph, op, kind) for op in ops]
            self._host_columns[kind] = np.array(ps, np.int64), np.array(launches, np.int64)
        return self._host_columns[kind]

    @cached_property
    def blocks(self) -> NDArray[np.bool_]:
        """By op whether its host waits for it."""
        return np.array([op.blocks_host for op in self.graph.ops], np.bool_)

    def missing(self, op: int, kind: str) -> str:
        """The message where the cost of an op on a kind of device is unknown."""
        key, of_kind = op_key(self.graph, op, kind), self.graph.ops[op].kind
        why, name = self.costs.why_unknown(key, kind), self.graph.ops[op].name
        if of_kind in KINDS:
            why = "a collective names its devices in attrs.ranks"
        wanted = "given or measured time" if self.costs.strict else "time"
        hint = f"{why}; key {key[:200]}" if why else f"key {key[:200]}"
        return f'ops[{op}]: no {wanted} for "{name}" on a device of kind "{kind}" ({hint})'


def costed_graph(graph: Graph, costs: CostModel, memory: MemoryModel) -> CostedGraph:
    """A graph with its costs, with the training state that a memory model asks for and, where this
    is PyTorch's, with measured scratch memory. Raises InputError.
    """
    graph = with_training_state(graph, memory)
    if not memory.is_pytorch:
        return CostedGraph(graph, costs)
    graph, updating = with_scratch(graph, costs)
    return CostedGraph(graph, costs, updating)


class Prepared:
    """A graph on a cluster with its costs, before any op has a place.

    ``graph`` holds the training state that ``memory`` asks for. ``collectives`` says how collective
    ops run, unless an op says it itself. ``costed`` and ``communicators`` are shared with another
    ``Prepared`` where they are given. ``parts`` numbers the parts of split ops in names where a few
    replicas are simulated for many (``simdev/lowering/symmetry/``); else parts count from 0. Raises
    InputError where the training state is not known.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        costs: CostModel,
        memory: MemoryModel = MemoryModel(),
        collectives: Collectives = Collectives(),
        *,
        costed: CostedGraph | None = None,
        communicators: Communicators | None = None,
        parts: Sequence[int] = (),
    ) -> None:
        self.parts, self.memory = tuple(parts), memory.within(bool(cuda_kinds(costs)))
        self.costed = costed or costed_graph(graph, costs, self.memory)
        self.graph, self.cluster, self.costs = self.costed.graph, cluster, costs
        self.collectives = collectives
        self.communicators = communicators or Communicators(cluster, collectives)
        self._running: Prepared | None = None
        self.speed = Fraction(1)

    def on(self, cluster: Cluster) -> Prepared:
        """The graph on another cluster. Answers about graph and costs alone are shared."""
        if cluster is self.cluster:
            return self
        nouns = self.graph, cluster, self.costs, self.memory, self.collectives
        return Prepared(*nouns, costed=self.costed).at(self.speed)

    def at(self, speed: Fraction) -> Prepared:
        """A copy on devices that take 1 / ``speed`` of each op's time, rounded up to whole ps.

        Collective ops keep their time. Copies made of the result (``on``, ``of``) have its speed.
        """
        if speed == self.speed:
            return self
        there = copy(self)
        there.speed, there._running = speed, None
        there.__dict__.pop("duration", None)
        return there

    def of(self, graph: Graph, collectives: Collectives) -> Prepared:
        """Another graph on the same cluster, at the same costs. Raises InputError."""
        nouns = graph, self.cluster, self.costs, self.memory, collectives
        communicators = self.communicators.choosing(collectives)
        # No scratch memory is looked up: the other graph is made of this one, whose ops have it.
        costed = CostedGraph(with_training_state(graph, self.memory), self.costs)
        there = Prepared(*nouns, costed=costed, communicators=communicators)
        return there.at(self.speed)

    def running(self, collectives: Collectives) -> Prepared:
        """The graph with other collectives: a copy, or itself where no op is a collective."""
        if collectives == self.collectives or not self.costed.collectives:
            return self
        if self._running is None or self._running.collectives != collectives:
            self._running = self.of(self.graph, collectives)
        return self._running

    def lasting(self, duration: Ints) -> Prepared:
        """A copy with other times of ops: ps by op and device, or UNKNOWN."""
        there = copy(self)  # routes and collectives depend on no times
        there.duration = duration
        return there

    @property
    def reads(self) -> Reads:
        """The tensors that are read."""
        return self.costed.reads

    @property
    def fabric(self) -> Fabric:
        """The fabric: the queues and links of transfers between any two devices."""
        return self.communicators.fabric

    @cached_property
    def reserves(self) -> tuple[tuple[int, ...], ...]:
        """By device the bytes that are held whatever runs there.

        In this order: the context, the communication buffers, and each of WORKSPACES.
        """
        context = self.memory.context_bytes(self.cluster)
        outside = zip(context, self.memory.communication_bytes(self.cluster), strict=True)
        inside = workspaces(self.graph, self.cluster, self.costs, self.memory)
        return tuple((*both, *sizes) for both, sizes in zip(outside, inside, strict=True))

    @property
    def holders(self) -> Mapping[tuple[int, int], int]:
        """By (producer, output) the op that frees a tensor which the program holds on to."""
        return self.graph.holders if self.memory.is_pytorch else {}

    @cached_property
    def rings(self) -> dict[int, Ring]:
        """The collective ops by position. Raises InputError."""
        return rings(self.graph, self.costed.collectives, self.communicators)

    def home(self, producer: int, output: int, placement: Sequence[int]) -> int:
        """The device on which a tensor lies: that of its producer, or where a collective op made it
        that of the output's rank.
        """
        ring = self.rings.get(producer)
        if ring is None:
            return placement[producer]
        return ring.outputs_on[output] if output >= 0 else ring.ranks[0]

    def reads_there(
        self, producer: int, output: int, consumer: int, placement: Sequence[int]
    ) -> bool:
        """Whether an op reads a tensor where it lies (``home``): nothing is sent.

        A collective op reads each input there, and is done on all of its ranks at once.
        """
        rings = self.rings
        if consumer in rings:
            return True
        if output < 0 and producer in rings:
            return placement[consumer] in rings[producer].ranks
        return placement[consumer] == self.home(producer, output, placement)

    @cached_property
    def gap_ps(self) -> Ints:
        """The gap of each device, after ops of positive duration."""
        return np.array([picoseconds(device.gap) for device in self.cluster.devices], np.int64)  # type: ignore[arg-type]

    def cost(self, op: int, device: int) -> OpCost | None:
        """The cost of an op on a device; None where it is unknown. Equal costs are one object."""
        return self.costed.cost(op, self.cluster.devices[device].kind)

    @cached_property
    def duration(self) -> Ints:
        """Duration in ps by op and device; UNKNOWN where no cost is known."""
        return self._table(self._durations)

    @cached_property
    def host_ps(self) -> Ints:
        """By op and device the ps in which the host dispatches the op.

        0 where it is unknown, where the device has no host, and where its host replays CUDA graphs.
        """
        return self._table(self._host_ps)

    @cached_property
    def launches(self) -> Ints:
        """By op and device the launches of the op; 0 as for ``host_ps``."""
        return self._table(self._launches)

    def duration_at(self, ops: Ints, devices: Ints) -> Ints:
        """``duration`` of each op on the device beside it."""
        # Another pass may have given a table of its own (``lasting``).
        if "duration" in self.__dict__:
            cells: Ints = self.duration[ops, devices]
            return cells
        return self._cells(self._durations, ops, devices)

    def dispatches_at(self, ops: Ints, devices: Ints) -> tuple[Ints, Ints]:
        """``host_ps`` and ``launches`` of each op on the device beside it."""
        columns = self._host_ps, self._launches
        length, launches = (self._cells(column, ops, devices) for column in columns)
        return length, launches

    def _table(self, column: Callable[[int], Ints]) -> Ints:
        """A column of all ops for each device."""
        table = np.empty((len(self.graph.ops), len(self.cluster.devices)), np.int64)
        for like in dict.fromkeys(self._like):
            table[:, np.array(self._like) == like] = column(like)[:, None]
        return table

    def _cells(self, column: Callable[[int], Ints], ops: Ints, devices: Ints) -> Ints:
        """The cells of ``_table``, which for thousands of devices is too large to be made."""
        cells, like = np.empty(len(ops), np.int64), np.array(self._like, np.int64)[devices]
        for first in distinct(like).tolist():
            there = like == first
            cells[there] = column(first)[ops[there]]
        return cells

    @cached_property
    def _like(self) -> list[int]:
        """By device the first device of its kind, speed and host: all that an op costs there is
        alike.
        """
        first: dict[tuple[str, Number, Host | None], int] = {}
        devices = enumerate(self.cluster.devices)
        return [first.setdefault((d.kind, d.speed, self.cluster.host_of(i)), i) for i, d in devices]

    def _durations(self, device: int) -> Ints:
        # Costs are by kind of device; whether a kind runs ops is read off its first device.
        kind = self.cluster.devices[device].kind
        column = np.full(len(self.graph.ops), UNKNOWN, np.int64)
        if next(d for d in self.cluster.devices if d.kind == kind).runs_ops:
            column[:] = self.costed.durations(kind)
        speed = self.speed * Fraction(self.cluster.devices[device].speed)
        if speed != 1:
            known = column > 0  # UNKNOWN is below 0 and stays
            exact = column[known].astype(object)
            column[known] = -(-exact * speed.denominator // speed.numerator)
        column[list(self.rings)] = [ring.duration_ps for ring in self.rings.values()]
        return column

    def _host_ps(self, device: int) -> Ints:
        return np.maximum(self._of_host(device, 0), 0)

    def _launches(self, device: int) -> Ints:
        return self._of_host(device, 1)

    @property
    def blocks(self) -> NDArray[np.bool_]:
        """By op whether its host waits for it."""
        return self.costed.blocks

    def _of_host(self, device: int, column: int) -> Ints:
        """A column of ``CostedGraph.host_columns``, 0 where no host dispatches op by op."""
        host = self.cluster.host_of(device)
        if host is None or host.mode != "eager":
            return np.zeros(len(self.graph.ops), np.int64)
        return self.costed.host_columns(self.cluster.devices[device].kind)[column]

    def require_costs(self, placement: Sequence[int]) -> None:
        """Raise MissingCostError naming every op whose cost on its device is not known."""
        devices = np.array(placement, np.int64)
        known = self.duration_at(np.arange(len(devices)), devices) != UNKNOWN
        missing = np.flatnonzero(~known).tolist()
        if missing:
            kinds = [self.cluster.devices[placement[op]].kind for op in missing]
            each = map(self.costed.missing, missing, kinds)
            raise MissingCostError([*self._undescribed(zip(missing, kinds, strict=True)), *each])

    def _undescribed(self, missing: Iterable[tuple[int, str]]) -> Iterator[str]:
        """Where estimates are refused, a line with the kinds of ops that simdev does not describe:
        their estimate would be a pass over memory.
        """
        kinds = Counter(
            self.graph.ops[op].kind
            for op, kind in missing
            if self.costs.strict and self.costs.memory_pass(self.graph, op, kind) is not None
        )
        if kinds:
            listed = ", ".join(f'"{kind}" ({count:,})' for kind, count in kinds.items())
            yield f"simdev has no description of the kinds of ops {listed}"

    def segments(self, source: int, destination: int) -> tuple[Segment, ...]:
        """The pieces of the route between two devices. Raises InputError where there is none."""
        segments = self.fabric.segments(source, destination)
        if segments is None:
            first, last = (self.cluster.devices[d].name for d in (source, destination))
            raise InputError(
                f'placement: tensors must go from "{first}" to "{last}", but no route joins them'
            )
        return segments


def device_problems(cluster: Cluster, where: str, name: str) -> Iterator[str]:
    """Why no op can run on the device of this name; each line begins with ``where`` it is named."""
    if why := cluster.why_no_place(name):
        yield f"{where}: {why}"


# What PyTorch holds on a GPU beside the tensors of a step: scratch memory of operators, and
# workspaces of cuBLAS.
#
# The scratch memory of an operator is in the rows of a profile (``ws``), or is taken in proportion
# from a row of another batch. An update makes temporaries. All updates run after the backward, when
# every gradient is there (``zero_grad`` frees them later), so a step needs room for the largest
# temporaries beside all gradients. cuBLAS has a workspace for each thread that calls it, the
# program's in the forward and autograd's in the backward, from the thread's first product on.

WORKSPACES = ("cuBLAS workspace", "cuBLAS workspace of autograd", "cuBLASLt workspace")

# Bytes of a workspace where no datasheet tells it: :4096:2:16:8 in CUBLAS_WORKSPACE_CONFIG's terms,
# PyTorch's default but for GPUs of compute capability 9.0 (aten/src/ATen/cuda/CublasHandlePool.cpp,
# parseChosenWorkspaceSize, as in PyTorch 2.11).
BLAS_WORKSPACE = 2 * 4096 * 2**10 + 8 * 16 * 2**10
# The same file, parseCUDABlasLtWorkspaceSize; addmm with a bias as a row goes to cuBLASLt
# (aten/src/ATen/native/cuda/Blas.cpp, isInputCompliesAddmmCudaLt).
LT_WORKSPACE = 2**20

# By kind of update how many temporaries of the size of its parameter it makes, where no row tells;
# and how many of them a variable of PyTorch's loop keeps until the next update has made its own:
# ``denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)`` in torch/optim/adam.py,
# _single_tensor_adam.
TEMPORARIES = {"adam_update": 2}
KEPT = {"adam_update": 1}


def cuda_kinds(costs: CostModel) -> frozenset[str]:
    """The kinds of device whose profiles PyTorch measured on CUDA, as their headers say."""
    kinds = set[str]()
    for profile in costs.profiles:
        device = object_at(fields_of(profile.header), "device")
        if device.get("cuda") and device.get("torch"):
            kinds.update(profile.device_kinds)
    return frozenset(kinds)


def with_scratch(graph: Graph, costs: CostModel) -> tuple[Graph, Mapping[int, int]]:
    """The graph with the scratch memory of its ops, and the bytes of each update by position.

    The ``workspace_bytes`` of an update become the most that it or any later update needs. Other
    ops keep the workspace that the graph gives them.
    """
    rows = _Rows(costs)
    needed = [op.workspace_bytes or rows.scratch(graph, i) for i, op in enumerate(graph.ops)]
    updating = {
        i: needed[i] or TEMPORARIES.get(op.kind, 0) * _parameter_bytes(graph, i)
        for i, op in enumerate(graph.ops)
        if op.phase == "update"
    }
    most = 0
    for i, space in reversed(list(zip(updating, _with_kept(graph, updating), strict=True))):
        needed[i] = most = max(most, space)
    ops = [
        op if op.workspace_bytes == size else replace(op, workspace_bytes=size)
        for op, size in zip(graph.ops, needed, strict=True)
    ]
    return replace(graph, ops=tuple(ops)), updating


class _Rows:
    """The scratch memory in the rows of profiles.

    ``by_key`` are bytes by the key of a row; ``alike`` are (first extents, bytes) by the pattern of
    keys that differ in their batch alone.
    """

    def __init__(self, costs: CostModel) -> None:
        self.kinds, self.by_key = sorted(cuda_kinds(costs)), dict[str, int]()
        self.alike: dict[str, list[tuple[list[int], int]]] = {}
        prefixes = tuple(json.dumps([kind])[:-1] for kind in self.kinds)
        for profile in reversed(costs.profiles):
            for key, row in profile.rows.items():
                size = row.details.get("ws")
                if isinstance(size, int) and key.startswith(prefixes):
                    self.by_key[key] = size
                    if size:
                        pattern, extents = _pattern(key)
                        self.alike.setdefault(pattern, []).append((extents, size))

    def scratch(self, graph: Graph, position: int) -> int:
        """The bytes that an op needs, the most over all kinds of device.

        Where no row has the key of the op, in proportion to the row of the nearest other batch.
        """
        keys = [op_key(graph, position, kind) for kind in self.kinds]
        measured = [self.by_key[key] for key in keys if key in self.by_key]
        return max(measured or map(self._in_proportion, keys), default=0)

    def _in_proportion(self, key: str) -> int:
        pattern, extents = _pattern(key)
        near = []
        for others, size in self.alike.get(pattern, ()):
            pairs = zip(extents, others, strict=True)
            ratios = {a / b for a, b in pairs if a != b and a and b}
            if len(ratios) == 1:
                ratio = ratios.pop()
                near.append((max(ratio, 1 / ratio), round(size * ratio)))
        return min(near, default=(1.0, 0))[1]


def _pattern(key: str) -> tuple[str, list[int]]:
    """A key without the first extent of each shape, and the first extents."""
    *rest, operands, dtypes, outputs = json.loads(key)
    shapes = [shape for shape in (*operands, *outputs) if shape]
    tails = [[shape and shape[1:] for shape in part] for part in (operands, outputs)]
    return json.dumps([rest, dtypes, tails]), [shape[0] for shape in shapes]


def _parameter_bytes(graph: Graph, position: int) -> int:
    """The bytes of the parameter that an update reads first."""
    return next((tensor.bytes for tensor in graph.operands[position]), 0)


def _with_kept(graph: Graph, updating: Mapping[int, int]) -> Iterator[int]:
    """For each update the bytes of its temporaries and of those that the update before keeps."""
    left = 0
    for i, size in updating.items():
        yield left + size
        left = min(size, KEPT.get(graph.ops[i].kind, 0) * _parameter_bytes(graph, i))


def workspaces(
    graph: Graph, cluster: Cluster, costs: CostModel, memory: MemoryModel
) -> tuple[tuple[int, ...], ...]:
    """By device the bytes of each of WORKSPACES; 0 where no op of the graph needs it."""
    nothing = (0,) * len(WORKSPACES)
    if not memory.is_pytorch:
        return (nothing,) * len(cluster.devices)
    products = [op for op in graph.ops if op_class(op.kind) == "gemm"]
    phases = {op.phase for op in products}
    # The third operand of a forward product is a bias, which PyTorch lets cuBLASLt add.
    with_bias = any(op.phase == "forward" and len(op.inputs) > 2 for op in products)
    called = ("forward" in phases, "backward" in phases, with_bias)
    sizes = {spec.kind: spec.blas_workspace for spec in costs.specs}

    def of(kind: str) -> tuple[int, ...]:
        each = sizes.get(kind) or BLAS_WORKSPACE
        made = (each, each, LT_WORKSPACE)
        return tuple(size if calls else 0 for size, calls in zip(made, called, strict=True))

    # cuBLAS is for GPUs: CPUs and switches have no workspace.
    return tuple(
        of(device.kind) if device.runs_ops and not device.is_host else nothing
        for device in cluster.devices
    )
