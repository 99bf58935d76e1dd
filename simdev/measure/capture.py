"""Captures a PyTorch training step as a simdev graph: forward, backward and update, with shapes.

The step is run once on fake tensors (nothing is computed; a step that depends on values can run on
real ones), and every operator that PyTorch dispatches becomes an op. The backward consists of the
operators that autograd really runs, with their own shapes; it is not estimated from the forward.
Views are folded away. Each parameter has one update op.

``profiles``, ``programs`` and the trace readers call it. ``kinds`` decides an operator's name,
``simdev.nouns.semantics.keys`` its row's key. ``simdev.nouns.models`` builds the same ops without
PyTorch, so a change of names or attributes has to be made there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..costs import PHASE_CODES, profile_key
from ..nouns.semantics import traits_of
from ..nouns.structure import PREFIXES
from .kinds import Fields, dtype_name
from .record import Call, Instance, Record, Recorder, Slot, TensorSpec
from .tracing import Gradient, Loss, Optimizer, optimizer_named, trace_step


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A call by its name in PyTorch's profiler (``aten::mm``), and the keys of the ops made of it:
    two for a convolution's backward.
    """

    name: str
    phase: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """A captured step: the graph in the JSON format v1, and for each distinct op a call that
    repeats it.

    Keys are those of ``row_key``, without a device kind. ``calls``, ``rows``, ``counts`` and
    ``saved`` map a key to the call, to the fields that make up the key in a profile row, to the
    number of times that the step runs the op, and to the bytes, besides parameters, that are kept
    for its backward. ``dispatches`` are the calls of forward and backward in their order.
    ``autocast`` is the dtype that modules ran under, None without.
    """

    graph: Fields
    calls: Mapping[str, Call]
    rows: Mapping[str, Fields]
    counts: Mapping[str, int]
    saved: Mapping[str, int]
    dispatches: tuple[Dispatch, ...] = ()
    autocast: str | None = None

    def count_of(self, row: Mapping[str, Any]) -> int:
        """The number of times that the step runs the op of a profile row (measured on any kind of
        device); 0 for an op of another step.
        """
        return self.counts.get(row_key(row), 0)


def capture(
    module: nn.Module,
    inputs: Sequence[Tensor],
    loss: Loss,
    optimizer: str = "sgd-momentum",
    name: str = "model",
    real: bool = False,
) -> Capture:
    """The training step of a module as a graph.

    ``loss(module, *inputs)`` gives the scalar that the step minimises. A step that depends on the
    values of tensors is run on real tensors where ``real`` (its graph then holds the branches that
    these values took), else refused. Raises InputError for an unknown optimizer, a loss that is no
    scalar of the parameters, and a step that fails.
    """
    update = optimizer_named(optimizer)
    traced = trace_step(module, inputs, loss, training=True, real=real)
    writer = Writer(traced.recorder, traced.leaves)
    writer.write_step()
    # After the whole backward, where optimizer.step() runs.
    for parameter, gradient in traced.gradients.items():
        writer.write_update(parameter, gradient, update)
    return writer.captured(name)


def capture_forward(
    module: nn.Module,
    inputs: Sequence[Tensor],
    call: Callable[..., Any],
    name: str = "model",
) -> Capture:
    """The forward pass ``call(module, *inputs)`` of a module as a graph, without backward and
    updates.

    Raises InputError for a pass that fails.
    """
    traced = trace_step(module, inputs, call, training=False)
    return captured(traced.recorder, traced.leaves, name)


def captured(recorder: Recorder, leaves: Mapping[int, str], name: str) -> Capture:
    """The recorded operators as a graph without updates; ``leaves`` names the leaves by record."""
    writer = Writer(recorder, leaves)
    writer.write_step()
    return writer.captured(name)


def _path(name: str) -> str:
    return name.removeprefix("module.").replace(".", "/")


@dataclass
class Writer:
    """Writes the ops of a graph one after another, in program order."""

    recorder: Recorder
    leaves: Mapping[int, str]
    ops: list[Fields] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)
    rows: dict[str, Fields] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)
    _repeated: set[str] = field(default_factory=set)

    def captured(self, name: str) -> Capture:
        """The recorded step as a graph of this name."""
        graph = {"version": 1, "name": name, "ops": self.ops}
        called = tuple(self.dispatches), self.recorder.scopes.autocast
        return Capture(graph, self.calls, self.rows, self.counts, self.saved, *called)

    def write_step(self) -> None:
        """Writes the leaves, the forward and the backward."""
        calls = self.recorder.scopes.counts
        self._repeated = {name for (_, name), times in calls.items() if times > 1}
        for index, record in enumerate(self.recorder.records):
            if traits_of(record.kind).leaf:
                self._write_leaf(index, record)
            else:
                self._write_record(index, record)
        self._write_lifetimes()

    def _write_lifetimes(self) -> None:
        """Notes, for each tensor that outlives its last reader, the op after which it is freed."""
        last = {
            source: index
            for index, record in enumerate(self.recorder.records)
            for source in record.sources
        }
        named = {op["name"]: op for op in self.ops}
        for source, until in sorted(self.recorder.lifetimes.until.items()):
            if until > last.get(source, until):
                releases = named[self._names[until]].setdefault("releases", [])
                releases.append(self._reference(source))

    def write_update(self, parameter: str, gradient: Gradient, optimizer: Optimizer) -> None:
        """Writes the update of a parameter, colocated with the parameter."""
        index = next(i for i, name in self.leaves.items() if name == parameter)
        path, states = _path(parameter), optimizer.states
        spec = self.recorder.records[index].outputs[0]
        slots = tuple(map(Slot, range(2 + states)))
        call = Call(optimizer.update, slots, {}, (spec, gradient[1], *(spec,) * states), ())
        sources = (index, 0), gradient[0]
        record = Record(optimizer.kind, "update", {}, call, (0, 1), sources, (), ())
        self._op(self._unique(f"update/{path}"), record)
        self.ops[-1]["colocate"] = path
        owner = next(op for op in self.ops if op["name"] == path)
        owner["state_bytes"] = states * spec.bytes

    def _write_leaf(self, index: int, record: Record) -> None:
        name = self._names[index] = self._unique(_path(self.leaves.get(index, "constant")))
        outputs = [_output(record.outputs[0])]
        op = {"name": name, "kind": record.kind, "phase": "forward", "time": 0, "outputs": outputs}
        if traits_of(record.kind).leaf == "parameter":
            op |= {"param_bytes": record.outputs[0].bytes, "colocate": name}
        self.ops.append(op)

    def _write_record(self, index: int, record: Record) -> None:
        scope = self._scope(record.instance) if record.instance else "loss"
        name = f"{scope}/{record.kind}" if scope else record.kind
        back = PREFIXES["backward"] if record.phase == "backward" else ""
        self._names[index] = self._unique(back + name)
        key = self._op(self._names[index], record)
        self._note_dispatch(index, record, key)
        if index in self.recorder.blocking:
            self.ops[-1]["blocks_host"] = True
        self.saved[key] = max(self.saved.get(key, 0), self.recorder.saved.get(index, 0))

    def _note_dispatch(self, index: int, record: Record, key: str) -> None:
        name = str(record.call.func._schema.name)
        before = self.recorder.records[index - 1]
        if record.kind.endswith("_backward_weight") and before.kind.endswith("_backward_input"):
            first = self.dispatches.pop()
            self.dispatches.append(Dispatch(name, record.phase, (*first.keys, key)))
        else:
            self.dispatches.append(Dispatch(name, record.phase, (key,)))

    def _op(self, name: str, record: Record) -> str:
        """Writes one op; returns its key."""
        shapes, attrs = _operands(record)
        dtypes = [dtype_name(record.call.specs[i].dtype) for i in record.operands]
        made = [self.recorder.records[i].outputs[output] for i, output in record.sources]
        # Views are folded away: where the op reads another shape or dtype than its producer made,
        # the op says so.
        folded: Fields = {}
        if shapes != [list(spec.shape) for spec in made]:
            folded["in"] = shapes
        if dtypes != [dtype_name(spec.dtype) for spec in made]:
            folded["dt"] = dtypes
        op: Fields = {
            "name": name,
            "kind": record.kind,
            "phase": record.phase,
            "inputs": [self._reference(source) for source in record.sources],
            "outputs": [_output(spec) for spec in record.outputs],
        }
        if attrs or folded:
            op["attrs"] = {**attrs, **folded}
        self.ops.append(op)
        row = {
            "op": record.kind,
            "attrs": attrs,
            "in": shapes,
            "dt": dtypes,
            "out": [list(spec.shape) for spec in record.outputs],
            "phase": PHASE_CODES[record.phase],
        }
        key = row_key(row)
        # Equal ops are measured once, by the first call of their key.
        self.calls.setdefault(key, record.call)
        self.rows.setdefault(key, row)
        self.counts[key] = self.counts.get(key, 0) + 1
        return key

    def _reference(self, source: tuple[int, int]) -> str:
        index, output = source
        return f"{self._names[index]}:{output}" if output else self._names[index]

    def _scope(self, instance: Instance) -> str:
        """The path of a module, with @n behind each part that is called several times."""
        path = instance[-1][0]
        parts = path.split(".")
        for name, call in instance:
            # A module that calls its sibling is no part of the path of the sibling's ops.
            if name in self._repeated and name and f"{path}.".startswith(f"{name}."):
                parts[name.count(".")] += f"@{call}"
        return "/".join(parts)

    def _unique(self, name: str) -> str:
        free = name
        while free in self._taken:
            self._taken[name] += 1  # up to here all numbers are taken
            free = f"{name}_{self._taken[name]}"
        self._taken[free] = 0
        return free


def row_key(row: Mapping[str, Any], device: str = "") -> str:
    """The profile's key of a row. Without a device kind, an op has the same key on all devices."""
    return profile_key(
        row["op"], row["attrs"], row["in"], row["dt"], row["out"], row["phase"], device
    )


def _operands(record: Record) -> tuple[list[list[int]], Fields]:
    """The shapes of the operands as they lie in memory, and the attributes, including those that
    describe the layout: transpositions and strides.
    """
    attrs = dict(record.attrs)
    shapes, strides = [], []
    flags = traits_of(record.kind).transposes
    for position, index in enumerate(record.operands):
        shape, stride = list(record.call.specs[index].shape), list(record.call.specs[index].stride)
        # A transposed operand is described as it lies in memory, with a flag: products read it so.
        if position < len(flags) and not _contiguous(shape, stride) and stride[-2] == 1:
            shape[-2:], stride[-2:] = shape[:-3:-1], stride[:-3:-1]
            attrs[flags[position]] = True
        shapes.append(shape)
        strides.append(None if _contiguous(shape, stride) else stride)
    if any(stride is not None for stride in strides):
        attrs["strides"] = strides
    return shapes, attrs


def _contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for extent, step in zip(reversed(shape), reversed(stride), strict=True):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def _output(spec: TensorSpec) -> Fields:
    return {"bytes": spec.bytes, "shape": list(spec.shape), "dtype": dtype_name(spec.dtype)}
