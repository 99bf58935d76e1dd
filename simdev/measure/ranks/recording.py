"""Records the ops of one rank of a distributed step, computation and communication.

``RankRecorder`` extends the recorder of ``record`` to a script that runs its own training loop. It
sees the local operators behind DTensors, attributes tensors that are written in place to the record
that made their memory, and notes for every record its stream and the records for which it waits.
Calls of process groups (``c10d`` and functional ones) become records of the kind of a collective,
``p2p`` or ``barrier``, each with a ``Message``.

``scripts`` runs a script under it; ``writing`` makes the ops of a graph from its records.
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

# Refused calls of process groups: their other rank, or some of their tensors, are not known.
_REFUSED = frozenset({"recv_any_source_", "allgather_coalesced_"})
UPDATE: Instance = (("update", 0),)
"""The module path of an optimizer's ops."""
NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor")
# Operators that write into memory which their schema does not mark as written.
_WRITES = frozenset({"all_gather_copy_in"})
# Calls that test for NaN or infinity, and calls that pass on the result of such a test.
_INVALID = frozenset({"isnan", "isinf"})
_CARRY = frozenset({
    "any", "sum", "max", "or", "logical_or", "bitwise_or",
    "copy", "_to_copy", "to", "cast", "clone",
})  # fmt: skip
# Calls that make a tensor of literals in a script; no kernel runs.
_LITERALS = frozenset({"lift_fresh", "lift_fresh_copy"})


@dataclass(frozen=True, slots=True)
class Message:
    """A rank's call of a process group.

    ``group`` are the ranks of the group in their order, and ``name`` is PyTorch's name of it, equal
    on all of them. ``peer`` is the other rank of a send or receive, or the root of a rooted
    collective (else None); ``sends`` says whether this rank sends. ``bytes`` are counted as by
    nccl-tests; ``place`` is the line of the script that made the call.
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
        """The root's place in the group; 0 for a call without root."""
        rooted = self.kind != "p2p" and self.peer is not None
        return self.group.index(self.peer) if rooted else 0


class RankRecorder(Recorder):
    """Fills ``records`` while a script runs and ``recording`` is true.

    By index of the record, ``issued`` holds its stream and the records for which it waits,
    ``messages`` its message, ``placed`` whether each output lies in memory that existed before, and
    ``shared`` for each output the first output in the same memory.
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
        self._gradients: set[int] = set()  # memory of gradients, and of norms computed from them
        self._is_of_gradients = self._is_behind_backward = False
        self.orphans: set[int] = set()
        self._shapes = Shapes()
        self._communicators: dict[tuple[int, ...], dict[str, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; skipping the wrapper saves time for every operator.
        return False

    @property
    def phase(self) -> str:
        """The phase of the op being dispatched."""
        if self.updating or self._is_of_gradients:
            return "update"
        # Graph tasks of autograd are numbered from 0 while a backward runs, else -1.
        return "backward" if in_backward() else "forward"

    @phase.setter
    def phase(self, _: str) -> None:
        pass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and records it."""
        # A DTensor runs its operators on its local tensors, and those calls come back here.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        # Operators of ``prim`` query a tensor's device or layout; no device runs them.
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
        """The value that a script reads from a fake tensor: 1, or 0 for a test for NaN; noted."""
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
        """Notes tensors that hold the result of a test for NaN or infinity, which is false."""
        scaled = name == "_amp_foreach_non_finite_check_and_unscale_"
        if not self._false and not scaled and name not in _INVALID:
            return
        carried = name in _CARRY and all(key_of(x) in self._false for x in inputs)
        if scaled or carried or name in _INVALID:
            self._false |= set(map(key_of, [args[1]] if scaled else made))
        else:
            self._false.difference_update(map(key_of, made))

    def _reads_gradients(self, inputs: Sequence[Tensor]) -> bool:
        """Whether an operator clips or scales gradients, which is part of the update. Such an
        operator runs after a backward, outside of modules, on gradients of parameters or their
        norms.
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
        """Whether the host runs an operator: on tensors that the script keeps on the CPU."""
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
            return  # step counters of the optimizer, which the host counts
        if name.endswith("_norm_backward") and result[0] is None:
            # The gradient of the input is not needed: the output's gradient has its shape.
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
        # Inputs never seen before have become records before this one.
        index = len(self.records) - 1
        # An output that is a part of new memory counts as the whole memory.
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
        """For each tensor, whether its memory existed before."""
        return tuple(self._sources.get(key_of(tensor)) is not None for tensor in tensors)

    def _note_source(self, tensor: Tensor, source: tuple[int, int] | None) -> None:
        # A write in place changes nothing: the memory keeps its source and its lifetime.
        if source is None or self._sources.get(key_of(tensor)) is None:
            super()._note_source(tensor, source)

    def _note_memory(self, written: Sequence[Tensor]) -> None:
        """Records memory that is written, and existed before the step, as an input of the step."""
        for tensor in written:
            if key_of(tensor) not in self._sources:
                self.add_leaf("input", tensor)

    def add_leaf(self, kind: str, tensor: Tensor) -> int:
        """Records a tensor that the step is given, and returns the record's index. An input counts
        with all of the memory behind it.
        """
        index = super().add_leaf(kind, tensor)
        self._leaves[index] = self._alive[-1]
        if kind == "input":
            self.records[index] = replace(self.records[index], outputs=(_spec(tensor),))
            self.lifetimes.note(self._alive[-1], (index, 0))
        return index

    def end(self) -> None:
        """Ends the step, and notes in ``persistent`` the leaves that outlive it (buffers, but not
        batches), each with a name where it is a gradient, else "".
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
        """Runs the block without recording its operators, its notes or the host's waits."""
        waits = {op: set(ops) for op, ops in self.streams.waits.items()}
        before = self.recording, waits, dict(self.notes)
        self.recording = False
        try:
            yield
        finally:
            self.recording, self.streams.waits, self.notes = before

    def note_size(self, storage: Any, size: int) -> None:
        """Notes that the memory behind a tensor was freed (size 0) or allocated again."""
        source = self._sources.get(storage._cdata)
        if size == 0 and source is not None:
            self.lifetimes.until[source] = len(self.records) - 1
            self.lifetimes.forget(storage)
        self._sources[storage._cdata] = None

    def add_parameter(self, tensor: Tensor, states: Sequence[Tensor]) -> None:
        """Records a parameter as a leaf; reading one of its states counts as reading it."""
        self.devices.place(tensor, is_host=False)  # FSDP moves parameters to the GPU itself
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
        if func.namespace == "c10d":  # functional calls return new tensors instead
            self._note_memory(outputs)
        message = self._message(name, arguments, inputs, outputs)
        if len(message.group) == 1 and message.kind != "p2p":
            self._note_copies(inputs, outputs)
            return
        # Synchronous calls run in the current stream, as in PyTorch with NCCL. Sends, receives and
        # functional collectives are always asynchronous.
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
        """Records a collective of a single rank: a copy, unless input and output are the same."""
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
        """Issues a call: to the current stream if ``at_once``, else to the stream of its
        communicator, after everything issued to the current stream so far.
        """
        names = self._communicators.setdefault(message.group, {})
        number = names.setdefault(message.name, len(names))
        streams, name = self.streams, _short(message.group) + "'" * number
        if self._batch is not None:
            # The calls of a batch start together; the end of the batch waits for each.
            before = streams.of(name).frontier | streams.current.frontier
            self.issued[index] = name, frozenset(before)
            self._batch.append(index)
        elif at_once:
            self.issued[index] = streams.issue(index)
        else:
            # Messages outside of a batch use a separate communicator for each pair of ranks.
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
        """The replacements that link the works which process groups return to the calls' records,
        for ``work.wait()``.
        """
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
"""The methods of process groups that communicate."""


# Private, but functional collectives call it themselves.
resolve: Any = vars(dist.distributed_c10d)["_resolve_process_group"]


def _group(arguments: dict[str, Any]) -> Any:
    """The process group of a call, which the arguments hold or name."""
    if "process_group" in arguments:
        return dist.ProcessGroup.unbox(arguments["process_group"])
    name = arguments.get("group_name")
    return resolve(name) if isinstance(name, str) else name


def _spec(tensor: Tensor) -> TensorSpec:
    """The spec of a tensor that an op makes: where the tensor is a part of a larger memory, the
    spec of the whole.
    """
    size = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    spec = TensorSpec.of(tensor)
    return TensorSpec((size,), (1,), tensor.dtype) if size > tensor.numel() > 0 else spec


def in_kernel(tensor: Any) -> bool:
    """Whether PyTorch is computing shapes of fake tensors, whose device is then ``meta``."""
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
    """A short name of a group: the number of ranks, the first and the last rank."""
    return f"{len(group)} ranks, {group[0]} to {group[-1]}"
