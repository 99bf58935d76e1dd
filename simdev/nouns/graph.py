"""The training step as a graph of operators: Tensor, Op, Graph.

The order of the ops is program order, and ties are broken by it; names have no meaning. Edges are
not objects of their own: an op lists the tensors that it reads (``inputs``) and the ops it waits
for (``control_inputs``).

``simdev.files.graph`` and the importers make graphs, ``simdev.nouns.models`` builds them, and
lowering turns their ops into tasks. Files take their types from the fields of ``Op`` and
``Tensor``; the meaning of a new field is written in ``simdev/files/graph.py``. KEPT_SIZES of
``simdev/lowering/partition/emit.py`` names the sizes that follow the weights of an op that is
split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ground.errors import InputError, prefixed, refuse
from ..ground.frozen import FrozenDict, freeze
from ..ground.registry import Displayed
from ..ground.units import (
    Times,
    exact,
    is_count,
    name_problems,
    named_twice,
    parse_bytes,
    parse_time,
    size_problems,
    text_problems,
    unlisted,
    unread,
)

if TYPE_CHECKING:
    import networkx as nx

KIND = ("kind", "op", "op_type", "type")
TIME = {"time": 0, "seconds": 0, "duration": 0, "time_s": 0} | {
    f"{name}_{unit}": power
    for name in ("time", "duration")
    for unit, power in (("ms", -3), ("us", -6), ("ns", -9), ("ps", -12))
}
"""Attributes that hold a time, with the power of ten of the unit of a number (seconds: 0)."""

SIZES = ("param_bytes", "grad_bytes", "state_bytes", "workspace_bytes")
OUTPUT = ("bytes", "nbytes", "output_bytes", "size")
EDGE = ("bytes", "nbytes", "size", "tensor_bytes")
WEIGHT = "weight"
"""The attribute for the bytes of an edge in a graph made in Python. In a file "weight" may mean
anything and is not read.
"""


def only(fields: Mapping[str, Any], known: Sequence[str], meaning: str) -> str | None:
    """The name in ``known`` that ``fields`` has a value for; None where it has none.

    Raises InputError where several of the names are given, since all have one ``meaning``.
    """
    names = [name for name in known if fields.get(name) is not None]
    if len(names) > 1:
        raise InputError(f"{names[1]}: the {meaning} is told twice, beside {names[0]}")
    return names[0] if names else None


def _plain(value: Any) -> Any:
    """A number as a plain Python value: graphs often hold numbers of numpy."""
    return value.item() if isinstance(value, np.generic) else value


def size_of(fields: Mapping[str, Any], name: str) -> int:
    """The bytes given by the attribute ``name``. Raises InputError."""
    value = _plain(fields[name])
    try:
        # GraphML and JavaScript write whole numbers as floats.
        return parse_bytes(Fraction(str(value)) if isinstance(value, (float, Decimal)) else value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def time_of(name: str, value: Any) -> Any:
    """A time attribute's seconds, or seconds by kind of device. Raises InputError."""
    if isinstance(value, Mapping):
        return {str(kind): time_of(f"{name}.{kind}", time) for kind, time in value.items()}
    value = _plain(value)
    power = TIME.get(name.partition(".")[0], 0)
    try:
        if isinstance(value, str):
            return parse_time(value)
        return parse_time(exact(value) * Fraction(10) ** power)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


PHASES = ("forward", "backward", "update")
_SIZE = "output size"
NO_KIND = "op"
"""The kind of an op for which none is given."""
_OUTPUT = re.compile(r"(.+):([0-9]{1,7})\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of an op: its size in bytes and, where known, its shape and dtype.

    A view is a part of output ``view_of`` of the same op. On the device of its op it has no memory
    of its own, but its readers keep that output alive. A view that is sent to another device has
    its own bytes there.
    """

    bytes: int
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    view_of: int | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and type(self.shape) is not tuple:
            object.__setattr__(self, "shape", tuple(self.shape))

    def problems(self) -> Iterator[str]:
        """``field: reason`` for each fault."""
        yield from size_problems("bytes", self.bytes)
        if self.shape is not None and any(not is_count(extent) for extent in self.shape):
            yield f"shape: must hold whole numbers >= 0, got {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operator of the step.

    ``inputs`` are written "op" or "op:output"; ``time`` (seconds, or a table by device kind)
    overrides the profile. ``param_bytes``, ``grad_bytes`` and ``state_bytes`` occupy its device
    throughout the step, ``workspace_bytes`` only while the op runs. Ops with the same ``colocate``
    group go to one device. ``host_time`` (same form as ``time``) is the time that a host needs to
    dispatch it, ``launches`` the number of kernels launched (None: as measured, else 1). Where
    ``blocks_host`` is true, the host waits for the op to finish. ``releases`` names tensors to
    which the program keeps a reference until this op ends, although nothing reads them any more; it
    matters only where memory is counted as the framework counts it. ``stream`` is the queue of its
    device in which it runs, like a CUDA stream (None: the compute queue): ops of a stream run one
    at a time in program order, concurrently with other streams.
    """

    name: str
    kind: str = NO_KIND
    phase: str = "forward"
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    attrs: Mapping[str, Any] = FrozenDict()
    param_bytes: int = 0
    grad_bytes: int = 0
    state_bytes: int = 0
    workspace_bytes: int = 0
    colocate: str | None = None
    time: Times | None = None
    host_time: Times | None = None
    launches: int | None = None
    blocks_host: bool = False
    releases: tuple[str, ...] = ()
    stream: str | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "control_inputs", "outputs", "attrs", "releases"):
            # Most values are already of these types, and a graph may have a hundred thousand ops.
            if type(getattr(self, name)) not in (tuple, FrozenDict):
                freeze(self, name)
        if self.time is not None or self.host_time is not None:
            refuse(unread(self))

    def seconds_on(self, device_kind: str) -> Fraction | None:
        """The time given in the graph for this kind of device, in seconds, or None."""
        return _seconds_on(self.time, device_kind)

    def host_seconds_on(self, device_kind: str) -> Fraction | None:
        """The host time for dispatching on this kind of device, in seconds, or None."""
        return _seconds_on(self.host_time, device_kind)

    @property
    def made(self) -> tuple[Tensor, ...]:
        """The outputs that the op computes: all except views."""
        return tuple(tensor for tensor in self.outputs if tensor.view_of is None)

    def problems(self) -> Iterator[str]:
        """``field: reason`` for each fault of the op by itself."""
        yield from name_problems("name", self.name)
        if _OUTPUT.match(self.name) or self.name.startswith("^"):
            yield (
                f'name: "{self.name}" reads as a tensor or a control input: it may not end '
                'in ":0" or start with "^"'
            )
        yield from text_problems("kind", self.kind)
        yield from unlisted(self, phase=PHASES)
        for name in ("colocate", "stream"):
            if getattr(self, name) is not None:
                yield from name_problems(name, getattr(self, name))
        for name in SIZES:
            yield from size_problems(name, getattr(self, name))
        if self.launches is not None and not is_count(self.launches):
            yield f"launches: must be a whole number, got {self.launches!r}"
        for index, tensor in enumerate(self.outputs):
            yield from (f"outputs[{index}].{problem}" for problem in tensor.problems())
            if tensor.view_of is not None and (problem := self._view_problem(index, tensor)):
                yield f"outputs[{index}].view_of: {problem}"

    def _view_problem(self, index: int, view: Tensor) -> str:
        base, size = view.view_of, view.bytes
        # A view of a view, or of a later output, would be a chain to follow at every read.
        if not is_count(base) or base >= index:
            return f"must be the number of an earlier output, got {base!r}"
        tensor = self.outputs[base]
        if tensor.view_of is not None:
            return f"output {base} is a view itself"
        if is_count(size) and size > tensor.bytes:
            return f"has {size} bytes, more than the {tensor.bytes} of output {base}"
        return ""


def _op_of_node(graph: nx.DiGraph[Any], node: Any) -> Op:
    with prefixed(f"nodes[{str(node)!r}]: "):
        fields = _fields_of(graph.nodes[node])
    if "inputs" not in fields and "control_inputs" not in fields:
        edges = graph.in_edges(node, data="outputs", default=(0,))
        reads = [(producer, output) for producer, _, outputs in edges for output in outputs]
        fields["inputs"] = [f"{producer}:{output}" for producer, output in reads if output >= 0]
        fields["control_inputs"] = [str(producer) for producer, output in reads if output < 0]
    size = fields.pop(_SIZE, None)
    if size is not None or "outputs" not in fields:
        fields["outputs"] = _outputs_of(graph, node, size)
    return Op(name=str(node), **fields)


def _fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Op from the attributes of a node, which may have their aliases (KIND, TIME).
    The bytes of its output are under _SIZE. Raises InputError.
    """
    fields = dict(given)
    time, size = only(fields, tuple(TIME), "time"), only(fields, OUTPUT, "size of its output")
    if time is not None:
        fields["time"] = time_of(time, fields.pop(time))
    kind = only(fields, KIND, "kind")
    if kind is not None:
        fields["kind"] = fields.pop(kind)
    if size is not None and fields.get("outputs"):
        raise InputError(f"{size}: the size of its output is told twice, beside outputs")
    if size is not None:
        fields[_SIZE] = size_of(fields, size)
        del fields[size]
    unknown = sorted(map(str, set(fields) - {*Op.__slots__, _SIZE}))
    if unknown:
        raise InputError(
            f"unknown attributes {', '.join(unknown)}; known are the fields of Op, "
            f"{', '.join(TIME)} for the time and {', '.join(OUTPUT)} for the output"
        )
    return fields


def _outputs_of(graph: nx.DiGraph[Any], node: Any, size: int | None) -> tuple[Tensor, ...]:
    """The single output of a node that lists none: of ``size`` bytes, else sized by its edges."""
    sizes = []
    for _, end, fields in graph.out_edges(node, data=True):
        with prefixed(f"edges[{str(node)!r}, {str(end)!r}]: "):
            name = only(fields, (*EDGE, WEIGHT), "size")
            sizes.append(0 if name is None else size_of(fields, name))
            if size is not None and name is not None and sizes[-1] != size:
                raise InputError(f"{name}: {sizes[-1]} bytes, but the node tells {size}")
    if size is not None:
        return (Tensor(size),)
    # An edge may carry a part of the output; the largest is the best guess at the whole.
    return (Tensor(max(sizes)),) if sizes else ()


def _seconds_on(time: Times | None, kind: str) -> Fraction | None:
    seconds = time.get(kind) if isinstance(time, Mapping) else time
    # The constructor parsed it, which the type does not show.
    assert seconds is None or isinstance(seconds, Fraction)
    return seconds


@dataclass(frozen=True)
class Graph(Displayed):
    """A directed acyclic graph of ops in program order.

    Raises InputError with every problem at once.
    """

    name: str
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        problems = [
            f"ops[{i}].{problem}" for i, op in enumerate(self.ops) for problem in op.problems()
        ]
        problems.extend(named_twice("ops", (op.name for op in self.ops)))
        problems.extend(self._reference_problems())
        # Cycles are looked for only when every reference leads to an op.
        if not problems:
            problems.extend(self._cycle_problems())
        refuse(problems)

    @classmethod
    def trusted(cls, name: str, ops: tuple[Op, ...]) -> Graph:
        """A graph of ops that are known to be valid; nothing is checked."""
        graph = cls.__new__(cls)
        object.__setattr__(graph, "name", name)
        object.__setattr__(graph, "ops", ops)
        return graph

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each op by its name."""
        return {op.name: i for i, op in enumerate(self.ops)}

    @cached_property
    def reads(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each op the distinct (producer, output) pairs that it reads, sorted; -1: control."""
        return tuple(tuple(sorted(set(self._references(op)))) for op in self.ops)

    @cached_property
    def holders(self) -> Mapping[tuple[int, int], int]:
        """The op (position) that releases each tensor that the program holds (``Op.releases``), by
        the tensor's (producer, output).

        It is the last dependent of the producer up to the op that names the tensor, since no other
        op is sure to run later. Tensors that are not in the graph (ops were fused, say) are left
        out.
        """
        ends = {}
        for end, op in enumerate(self.ops):
            for text in op.releases:
                with suppress(InputError):
                    ends[self.resolve(text)] = end
        last = {(i, k): self._last_behind(i, end) for (i, k), end in ends.items()}
        return {(i, k): holder for (i, k), holder in last.items() if holder > i}

    def _last_behind(self, producer: int, end: int) -> int:
        """The last op up to ``end`` that depends on the producer."""
        # The latest dependents are followed first: this mostly reaches the end at once, where a
        # scan of all ops in between would visit the ops of every rank.
        last, seen, stack = producer, {producer}, [producer]
        while stack and last < end:
            for after in self._dependents[stack.pop()]:
                if after <= end and after not in seen:
                    seen.add(after)
                    stack.append(after)
                    last = max(last, after)
        return last

    @cached_property
    def _dependents(self) -> tuple[list[int], ...]:
        """For each op, the ops that read it or wait for it, ascending."""
        after: tuple[list[int], ...] = tuple([] for _ in self.ops)
        for i, reads in enumerate(self.reads):
            for producer in dict.fromkeys(producer for producer, _ in reads):
                after[producer].append(i)
        return after

    @cached_property
    def operands(self) -> tuple[tuple[Tensor, ...], ...]:
        """For each op the tensors that it reads, in the order of its ``inputs``."""
        sources = ([self.resolve(text) for text in op.inputs] for op in self.ops)
        return tuple(tuple(self.ops[p].outputs[k] for p, k in pairs) for pairs in sources)

    @cached_property
    def groups(self) -> Mapping[str, tuple[int, ...]]:
        """Colocation groups: name to positions of their ops, in program order."""
        members: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            if op.colocate is not None:
                members.setdefault(op.colocate, []).append(i)
        return {name: tuple(positions) for name, positions in members.items()}

    @cached_property
    def streamed(self) -> tuple[int, ...]:
        """The positions of the ops that run in a stream of a name."""
        return tuple(i for i, op in enumerate(self.ops) if op.stream is not None)

    def resolve(self, text: str) -> tuple[int, int]:
        """(position, output) of an input "op" or "op:output". Raises InputError."""
        match = _OUTPUT.match(text)
        name, output = (match[1], int(match[2])) if match else (text, 0)
        producer = self.index.get(name)
        if producer is None:
            raise InputError(f'no op named "{name}"')
        count = len(self.ops[producer].outputs)
        if output >= count:
            raise InputError(f'op "{name}" has {count} outputs, none with index {output}')
        return producer, output

    def _references(self, op: Op) -> Iterator[tuple[int, int]]:
        yield from (self.resolve(text) for text in op.inputs)
        yield from ((self.index[name.removeprefix("^")], -1) for name in op.control_inputs)

    def unresolved(self, i: int, field: str) -> Iterator[str]:
        """``ops[i].field[k]: reason`` for each tensor that a field of the op at a position names
        ("inputs", "releases") and that no op makes.
        """
        for k, text in enumerate(getattr(self.ops[i], field)):
            try:
                self.resolve(text)
            except InputError as error:
                yield f"ops[{i}].{field}[{k}]: {error}"

    def _reference_problems(self) -> Iterator[str]:
        for i, op in enumerate(self.ops):
            yield from self.unresolved(i, "inputs")
            for j, name in enumerate(op.control_inputs):
                if name.removeprefix("^") not in self.index:
                    yield f'ops[{i}].control_inputs[{j}]: no op named "{name}"'

    def _cycle_problems(self) -> Iterator[str]:
        cycle = find_cycle([[producer for producer, _ in reads] for reads in self.reads])
        if cycle:
            yield "ops: cycle: " + " -> ".join(self.ops[i].name for i in [*cycle, cycle[0]])

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[Any], name: str = "graph") -> Graph:
        """The graph of a DiGraph: node key = op name, node attributes = fields of Op, in node
        order.

        A time may have any name in ``TIME`` (``seconds``, ``time_ms``, ...), the size of a node's
        only output may be ``bytes``, ``nbytes``, ``output_bytes`` or ``size``. A node without
        ``inputs`` reads along its in-edges: edge attribute ``outputs`` lists the outputs read
        (default [0]; -1 is a control input), ``bytes`` (or ``nbytes``, ``size``, ``tensor_bytes``,
        ``weight``) the size of output 0 where the producer lists no outputs. Raises InputError,
        also where two attributes give one value.
        """
        if not graph.is_directed():
            raise InputError("edges: must have a direction, from producer to consumer (DiGraph)")
        if graph.is_multigraph() and len(set(graph.edges())) < graph.number_of_edges():
            raise InputError('edges: of several between two nodes make one, "outputs": [0, 1]')
        return cls(name, tuple(_op_of_node(graph, node) for node in graph.nodes))

    def to_networkx(self) -> nx.DiGraph[str]:
        """A DiGraph whose nodes have the fields of Op, and whose edges the ``outputs`` read (-1:
        control) and their ``bytes``.
        """
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        for op in self.ops:
            fields = {name: getattr(op, name) for name in Op.__slots__ if name != "name"}
            graph.add_node(op.name, **fields)
        for consumer, reads in zip(self.ops, self.reads, strict=True):
            # Reads are sorted, so reads of one producer are consecutive.
            for position, pairs in groupby(reads, key=itemgetter(0)):
                producer, outputs = self.ops[position], [output for _, output in pairs]
                size = sum(producer.outputs[output].bytes for output in outputs if output >= 0)
                graph.add_edge(producer.name, consumer.name, outputs=outputs, bytes=size)
        return graph

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops)"


def find_cycle(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """One cycle in the order of its edges, or an empty list."""
    # Most graphs are written in an order in which they could run, and then there is none: to see
    # that takes a tenth of the time of a search.
    if all(max(before, default=-1) < i for i, before in enumerate(predecessors)):
        return []
    try:
        TopologicalSorter(dict(enumerate(predecessors))).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        return cycle[1:]  # its first node is at both ends
    return []
