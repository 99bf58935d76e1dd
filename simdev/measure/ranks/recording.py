"""Records the ops of one rank of a distributed step: what it computes, and what it sends.

``RankRecorder`` is the recorder of ``record`` for a script that runs by itself. It sees the local
operators behind DTensors, writes tensors that are written in place back to what made them, and
notes with every record its stream and the records for which it waits. Calls of process groups
(``c10d`` and functional ones) become records of the kinds of collectives, of ``p2p``, or of
``barrier``, each with a ``Message``.

``scripts`` runs a script under it; ``writing`` makes the ops of a graph of its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from ...ground.errors import InputError
from ...nouns.meetings import RECEIVE, SEND
from ..kinds import (
    ALLOCATIONS,
    VALUES_TO_HOST,
    aten_name,
    communication_kind,
    named_arguments,
)
from ..record import (
    USERS,
    Dispatched,
    Instance,
    Recorder,
    TensorSpec,
    is_view,
    key_of,
    tensors_in,
    written,
)
from ..tracing import running_line
from .devices import Devices, on_cpu
from .pretend import Replacement
from .scopes import RankScopes, in_backward
from .shapes import Shapes
from .streams import Future, Streams

# Calls of process groups of which a capture does not know the other rank, or all tensors.
_REFUSED = frozenset({"recv_any_source_", "allgather_coalesced_"})
UPDATE: Instance = (("update", 0),)
"""Where the ops of an optimizer belong."""
NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
# What writes into memory that its schema does not name as written.
_WRITES = frozenset({"all_gather_copy_in"})
# Calls that ask whether numbers are none, and those that pass their answers on.
_INVALID = frozenset({"isnan", "isinf"})
_CARRY = frozenset({
    "any", "sum", "max", "or", "logical_or", "bitwise_or",
    "copy", "_to_copy", "to", "cast", "clone",
})  # fmt: skip
# Tensors of numbers in a script, which no kernel makes.
_LITERALS = frozenset({"lift_fresh", "lift_fresh_copy"})


@dataclass(frozen=True, slots=True)
class Message:
    """A call of a process group as one rank makes it.

    ``group`` are the ranks of the group in their order and ``name`` what PyTorch calls it, alike on
    all of them; ``peer`` is the other rank of a send or receive or the root of a rooted collective
    (else None), ``sends`` whether this rank sends; ``bytes`` as nccl-tests counts them, ``place``
    the line of the script that asked for it.
    """

    kind: str
    group: tuple[int, ...]
    bytes: int
    peer: int | None
    sends: bool
    tag: int
    place: str
    name: str = ""

    @property
    def root(self) -> int:
        """The place in the group of the root of a collective, 0 where it has none."""
        rooted = self.kind != "p2p" and self.peer is not None
        return self.group.index(self.peer) if rooted else 0


class RankRecorder(Recorder):
    """Fills ``records`` while a script runs and ``recording`` is true.

    By the number of a record ``issued`` tells its stream and the records for which it waits,
    ``messages`` its message, ``placed`` which of its outputs are memory that was there before, and
    ``shared`` for each of them the first that is the same memory.
    """

    def __init__(self, streams: Streams, rank: int) -> None:
        self.scopes: RankScopes
        super().__init__(RankScopes())
        self.streams, self.rank = streams, rank
        self.recording = self.updating = False
        self.issued: dict[int, tuple[str, frozenset[int]]] = {}
        self.messages: dict[int, Message] = {}
        self.placed: dict[int, tuple[bool, ...]] = {}
        self.shared: dict[int, tuple[int, ...]] = {}
        self.notes: dict[str, None] = {}
        self.devices = Devices.running
        self.hosts: list[str] = []
        self.parameters: dict[int, int] = {}
        self.states: dict[int, int] = {}
        self.persistent: dict[int, str] = {}
        self._leaves: dict[int, Any] = {}
        self._works: dict[int, tuple[Any, Future]] = {}
        self._waits: dict[int, int] = {}
        self._batch: list[int] | None = None
        self._false: set[int] = set()
        self._gradients: set[int] = set()  # memory of gradients and of norms made of them
        self._is_of_gradients = self._is_behind_backward = False
        self.orphans: set[int] = set()
        self._shapes = Shapes()
        self._communicators: dict[tuple[int, ...], dict[str, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and the wrapper that this spares is called for every operator.
        return False

    @property
    def phase(self) -> str:
        """The phase of the op that is dispatched now."""
        if self.updating or self._is_of_gradients:
            return "update"
        # Numbered from 0 while autograd runs a backward.
        return "backward" if in_backward() else "forward"

    @phase.setter
    def phase(self, _: str) -> None:
        pass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and records it."""
        # A DTensor takes its operators apart into those of its local tensors, which come back here.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        # Operators of ``prim`` ask for a tensor's device or layout: no device runs them.
        if func.namespace == "prim":
            is_device = func is torch.ops.prim.device.default and not in_kernel(args[0])
            return args[0].fake_device if is_device else func(*args, **kwargs)
        name = aten_name(func)
        if name == "_local_scalar_dense":
            return self._value(args[0])
        if name in VALUES_TO_HOST:
            self.streams.current.synchronize()
            return key_of(args[0]) not in self._false
        inputs = tensors_in((args, kwargs))
        self._is_of_gradients = self._reads_gradients(inputs)
        is_hosts = self._is_hosts(func, inputs, kwargs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": on_cpu(kwargs["device"])}
        result = self._shapes.run(func, args, kwargs)
        made = tensors_in(result)
        self._note_false(name, args, inputs, made)
        self.devices.place(made, is_hosts)
        if self._gradients:
            is_of = self._is_of_gradients
            change = self._gradients.update if is_of else self._gradients.difference_update
            change(map(key_of, made))
        if self.recording:
            self.lifetimes.settle(len(self.records) - 1)
            arguments = named_arguments(func, args, kwargs)
            if not (is_hosts and self.devices.is_named):
                self._note(func, arguments, result)
            elif not (self.devices.is_moving or is_view(written(func, arguments), inputs, made)):
                self.hosts.append(running_line())
        return result

    def _value(self, tensor: Tensor) -> Any:
        """An answer to a script that asks for a value, which a fake tensor has not."""
        if self.updating:
            return 1.0  # the number of the step, which an optimizer keeps on the host
        self.streams.current.synchronize()
        place, is_false = running_line(), key_of(tensor) in self._false
        if place:
            answer = f"asks for the value of a tensor; {0 if is_false else 1} was answered"
            self.notes[f"{place}: {answer}"] = None
        if is_false:
            return tensor.dtype.is_floating_point and 0.0
        return 1.0 if tensor.dtype.is_floating_point else tensor.dtype == torch.bool or 1

    def _note_false(
        self, name: str, args: Any, inputs: Sequence[Tensor], made: Sequence[Tensor]
    ) -> None:
        """Notes tensors that say whether a number is none or infinite: no number is."""
        scaled = name == "_amp_foreach_non_finite_check_and_unscale_"
        if not self._false and not scaled and name not in _INVALID:
            return
        carried = name in _CARRY and all(key_of(x) in self._false for x in inputs)
        if scaled or carried or name in _INVALID:
            self._false |= set(map(key_of, [args[1]] if scaled else made))
        else:
            self._false.difference_update(map(key_of, made))

    def _reads_gradients(self, inputs: Sequence[Tensor]) -> bool:
        """Whether an operator clips gradients or scales them, which is part of the update: it runs
        behind a backward, outside of modules, on gradients of parameters or on norms of them.
        """
        if in_backward():
            self._is_behind_backward = True
            return False
        if self.updating or self.scopes.current:
            return False
        if self._is_behind_backward:
            self._is_behind_backward = False
            self._gradients = set(self.scopes.gradients())
        return any(key_of(tensor) in self._gradients for tensor in inputs)

    def _is_hosts(self, func: Any, inputs: Sequence[Tensor], kwargs: Any) -> bool:
        """Whether the host runs an operator, on tensors that the script keeps there."""
        if self.devices.is_moving:
            return True
        if self.streams.on_cpu or func.namespace in NAMESPACES or self.phase != "forward":
            return False
        return self.devices.is_hosts(() if aten_name(func) in _LITERALS else inputs, kwargs)

    def _note(self, func: Any, arguments: dict[str, Any], result: Any) -> None:
        name = aten_name(func)
        if func.namespace in NAMESPACES:
            self._note_call(func, name, arguments, result)
            return
        instance = self._instance()
        outputs = tensors_in(result)
        if name in ALLOCATIONS or name in _LITERALS:
            for output in outputs:
                if name in _LITERALS and output.numel() > 1:
                    self.add_leaf("input", output)  # made of a list, such as labels
                else:
                    self._note_source(output, None)
            return
        inputs = tensors_in(list(arguments.values()))
        if self.updating and all(tensor.numel() == 1 for tensor in (*inputs, *outputs)):
            return  # numbers of steps: the host counts them
        if name.endswith("_norm_backward") and result[0] is None:
            # Nobody wants the gradient of the input: its shape is that of the output's gradient.
            outputs = [inputs[0], *outputs]
        writes = written(func, arguments)
        self._note_memory(writes)
        outputs = outputs or writes
        if not outputs or (is_view(writes, inputs, outputs) and name not in _WRITES):
            return
        self._record_operator(Dispatched(func, arguments, inputs, outputs, instance), result)

    def _instance(self) -> Instance:
        return UPDATE if self.phase == "update" else super()._instance()

    def _record(self, kind: str, op: Dispatched, operands: Sequence[int]) -> None:
        keys, there = list(map(key_of, op.outputs)), self._there(op.outputs)
        super()._record(kind, op, operands)
        # Inputs that were never seen before have become records in front of it.
        index = len(self.records) - 1
        # A part of a new memory makes all of it.
        pairs = zip(op.outputs, there, strict=True)
        specs = tuple(TensorSpec.of(made) if old else _spec(made) for made, old in pairs)
        self.records[index] = replace(self.records[index], outputs=specs)
        self.placed[index] = there
        keys = list(map(key_of, op.outputs))
        self.shared[index] = tuple(map(keys.index, keys))
        self.issued[index] = self.streams.issue(index)
        if self.scopes.is_orphan:
            self.orphans.add(index)

    def _there(self, tensors: Sequence[Tensor]) -> tuple[bool, ...]:
        """By tensor whether its memory was there before."""
        return tuple(self._sources.get(key_of(tensor)) is not None for tensor in tensors)

    def _note_source(self, tensor: Tensor, source: tuple[int, int] | None) -> None:
        # Written in place: the memory stays that of whatever made it, and gets no second life.
        if source is None or self._sources.get(key_of(tensor)) is None:
            super()._note_source(tensor, source)

    def _note_memory(self, written: Sequence[Tensor]) -> None:
        """Records memory that is written, and was there before the step, as an input of it."""
        for tensor in written:
            if key_of(tensor) not in self._sources:
                self.add_leaf("input", tensor)

    def add_leaf(self, kind: str, tensor: Tensor) -> int:
        """Records a tensor that the step is given, with all of the memory behind it where it is no
        parameter: the number of its record.
        """
        index = super().add_leaf(kind, tensor)
        self._leaves[index] = self._alive[-1]
        if kind == "input":
            self.records[index] = replace(self.records[index], outputs=(_spec(tensor),))
            self.lifetimes.note(self._alive[-1], (index, 0))
        return index

    def end(self) -> None:
        """Ends the step, and notes the leaves that outlive it, such as buffers, not batches:
        ``persistent`` has a name of each that is a gradient.
        """
        self.recording = False
        if self.streams.on_cpu:
            note = "the script asks for gloo: each rank is one thread of a CPU (nccl is for GPUs)"
            self.notes[note] = None
        if self.hosts:
            count = f"{len(self.hosts)} operators work on tensors that the script keeps on the CPU"
            self.notes[f"{self.hosts[0]}: {count}; what these take is not counted"] = None
        self.lifetimes.settle(len(self.records) - 1)
        gradients = self.scopes.gradients() | dict.fromkeys(self.scopes.buckets, "bucket")
        for index, storage in self._leaves.items():
            if USERS is not None and USERS(storage._cdata) > 2:
                self.persistent[index] = gradients.get(storage._cdata, "")

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Records nothing of the block, nor that the host waits for a value there."""
        waits = {op: set(ops) for op, ops in self.streams.waits.items()}
        before = self.recording, waits, dict(self.notes)
        self.recording = False
        try:
            yield
        finally:
            self.recording, self.streams.waits, self.notes = before

    def note_size(self, storage: Any, size: int) -> None:
        """Notes that the memory behind a tensor was given back (size 0) or taken anew."""
        source = self._sources.get(storage._cdata)
        if size == 0 and source is not None:
            self.lifetimes.until[source] = len(self.records) - 1
            self.lifetimes.forget(storage)
        self._sources[storage._cdata] = None

    def add_parameter(self, tensor: Tensor, states: Sequence[Tensor]) -> None:
        """Records a parameter as a leaf; reading one of its states counts as reading it."""
        self.devices.place(tensor, is_host=False)  # FSDP moves parameters by itself
        if key_of(tensor) not in self.parameters:
            index = self.add_leaf("parameter", tensor)
            self.parameters[key_of(tensor)] = index
            self.states[index] = _bytes(states)
            for state in states:
                self._note_source(state, (index, 0))
                self.lifetimes.forget(state.untyped_storage())

    # Calls of process groups.

    def _note_call(self, func: Any, name: str, arguments: dict[str, Any], result: Any) -> None:
        if name == "wait_tensor":
            self._wait_for_tensor(arguments["tensor"], result)
            return
        if name == "barrier":
            self.streams.host_waits()
            return
        if communication_kind(name) is None or name in _REFUSED:
            raise InputError(
                f"{running_line()}: {func.namespace}.{name} is not covered by a capture"
            )
        inputs, outputs = _ends(name, arguments, result)
        if func.namespace == "c10d":  # functional calls make what they bring
            self._note_memory(outputs)
        message = self._message(name, arguments, inputs, outputs)
        if len(message.group) == 1 and message.kind != "p2p":
            self._note_copies(inputs, outputs)
            return
        # What is called to be done at once runs in the current stream, as NCCL does it; sends and
        # receives and functional collectives are always waited for later.
        at_once = not arguments.get("async_op", True)
        there = self._there(outputs)
        op = Dispatched(func, {}, inputs, outputs, self._instance())
        super()._record(message.kind, op, range(len(inputs)))
        index = len(self.records) - 1
        self.placed[index], self.messages[index] = there, message
        self._issue_message(index, message, at_once)
        if func.namespace != "c10d":
            for tensor in outputs:
                self._waits[key_of(tensor)] = index

    def _note_copies(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Records a collective of a rank alone: a copy of what is not there already."""
        copy = torch.ops.aten.clone.default
        for read, made in zip(inputs, outputs, strict=False):
            if key_of(read) != key_of(made):
                op = Dispatched(copy, {"self": read}, [read], [made], self._instance())
                self._record("clone", op, (0,))

    def _message(
        self,
        name: str,
        arguments: dict[str, Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> Message:
        group = _group(arguments)
        ranks = tuple(dist.get_process_group_ranks(group))
        kind, peer = communication_kind(name) or "", None
        for argument in ("dst", "src", "root_rank"):
            if argument in arguments:
                peer = ranks[arguments[argument]]
        sends = kind == SEND or (kind == "broadcast" and peer == self.rank)
        kind = "p2p" if kind in (SEND, RECEIVE) else kind
        size = max(_bytes(inputs), _bytes(outputs))
        tag = int(arguments.get("tag", 0))
        return Message(kind, ranks, size, peer, sends, tag, running_line(), group.group_name)

    def _issue_message(self, index: int, message: Message, at_once: bool) -> None:
        """Issues a call to the current stream, or to that of its communicator behind what the
        current stream was given so far.
        """
        names = self._communicators.setdefault(message.group, {})
        number = names.setdefault(message.name, len(names))
        streams, name = self.streams, _short(message.group) + "'" * number
        if self._batch is not None:
            # Of a batch all go at once: its end waits for each.
            before = streams.of(name).frontier | streams.current.frontier
            self.issued[index] = name, frozenset(before)
            self._batch.append(index)
        elif at_once:
            self.issued[index] = streams.issue(index)
        else:
            # Two ranks that send one another something alone have a communicator of their own.
            stream = streams.of(f"{name} {message.peer}" if message.kind == "p2p" else name)
            stream.frontier |= streams.current.frontier
            self.issued[index] = streams.issue(index, stream)

    def _wait_for_tensor(self, tensor: Tensor, result: Tensor) -> None:
        if key_of(result) != key_of(tensor):
            super()._note_source(result, self.source_of(tensor))
        index = self._waits.pop(key_of(tensor), None)
        if index is not None:
            self.streams.current.frontier.add(index)

    def replacements(self) -> Iterator[Replacement]:
        """Links what calls of process groups return to their records, for ``work.wait()``."""
        wait = c10d.FakeWork.wait

        def waiting(work: Any, *args: Any) -> Any:
            self._works.pop(id(work), (None, Future(None, ())))[1].wait()
            return wait(work, *args)

        yield c10d.FakeWork, "wait", waiting
        yield c10d.FakeWork, "get_future", lambda work: self._works[id(work)][1]
        groups = c10d.ProcessGroup
        for name in filter(partial(hasattr, groups), METHODS):
            yield groups, name, self._linked(name, getattr(groups, name))

    def _linked(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if name == "_start_coalescing":

            def start(*args: Any) -> Any:
                self._batch = []
                return method(*args)

            return start

        def call(*args: Any, **kwargs: Any) -> Any:
            first = len(self.records)
            work = method(*args, **kwargs)
            records = tuple(i for i in range(first, len(self.records)) if i in self.messages)
            if name == "_end_coalescing":
                records, self._batch = self._end_batch(), None
            if work is not None:
                made = tree_leaves(args[1:2])
                self._works[id(work)] = work, Future(made, records)
            return work

        return call

    def _end_batch(self) -> tuple[int, ...]:
        records = tuple(self._batch or ())
        for index in records:
            self.streams.of(self.issued[index][0]).frontier = set(records)
        return records


METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "send", "recv", "barrier",
    "_start_coalescing", "_end_coalescing", "all_gather_single", "reduce_scatter_single",
    "all_to_all_single",
)  # fmt: skip
"""The methods of process groups that send."""


# Private, but what functional collectives themselves call.
resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]


def _group(arguments: dict[str, Any]) -> Any:
    """The process group among the arguments of a call, which may name it."""
    if "process_group" in arguments:
        return dist.ProcessGroup.unbox(arguments["process_group"])
    name = arguments.get("group_name")
    return resolve(name) if isinstance(name, str) else name


def _spec(tensor: Tensor) -> TensorSpec:
    """The spec of a tensor that an op makes; of a part of a larger memory that of the whole."""
    size = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    spec = TensorSpec.of(tensor)
    return TensorSpec((size,), (1,), tensor.dtype) if size > tensor.numel() > 0 else spec


def in_kernel(tensor: Any) -> bool:
    """Whether PyTorch computes the shape of a fake tensor now, for which all are of ``meta``."""
    return not isinstance(tensor, FakeTensor) or bool(tensor.fake_mode.in_kernel_invocation)


def _ends(name: str, arguments: dict[str, Any], result: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a call of a process group reads, and those that it fills."""

    def tensors(*names: str) -> list[Tensor]:
        return tensors_in([arguments.get(argument) for argument in names])

    if name == "send":
        return tensors("tensors"), []
    if name == "recv_":
        return [], tensors("tensors")
    if name == "barrier":
        return [], []
    inputs = tensors("input", "inputs", "input_tensor", "input_tensors", "tensors", "tensor")
    outputs = tensors("output", "out", "output_tensor", "output_tensors", "outputs")
    if not outputs:
        outputs = tensors_in(result)
    return inputs, outputs or inputs


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(TensorSpec.of(tensor).bytes for tensor in tensors)


def _short(group: Sequence[int]) -> str:
    """A group in a few words: its number of ranks, the first and the last of them."""
    return f"{len(group)} ranks, {group[0]} to {group[-1]}"
