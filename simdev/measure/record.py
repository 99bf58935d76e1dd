"""Records a training step as the operators that PyTorch dispatches, forward and backward, on fake
tensors.

``Recorder`` works below autograd, so it sees the operators of forward and backward in program
order, exactly as the eager step runs them. A *record* is one operator that was dispatched. A tensor
is identified by its storage; its *source* is the record that made it and the index of the output.
An operator whose outputs share the storage of its inputs is a view: it gets no record, and its
readers read the tensor behind it. An operator that writes in place becomes the source of the
storage.

``simdev/measure/tracing.py`` runs a whole step under the recorder and
``simdev/measure/traces/replay.py`` single calls of a trace; ``Writer`` of
``simdev/measure/capture.py`` makes ops and rows of the records. A ``Call`` can be run again:
``operators.py``, ``timers.py`` and ``profiles.py`` do so to time it. Tables in ``kinds.py`` say
which operators allocate, wait or copy to the host, and how each is named. Nothing here
raises InputError. Tests: ``tests/measure/test_capture.py``, ``test_lifetimes.py``,
``test_any_models.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..nouns.semantics import traits_of
from .kinds import (
    ALLOCATIONS,
    OPERAND_ORDER,
    SIZES_TO_HOST,
    VALUES_TO_HOST,
    aten_name,
    attributes,
    dtype_name,
    kind_of,
    named_arguments,
    schema_of,
)

# Which modules are running when an operator is dispatched.

Instance = tuple[tuple[str, int], ...]
"""The modules around an operator, outermost first. Each is a qualified name and the index of this
call of the module, counted within one call of the module around it.
"""


@dataclass
class Scopes:
    """The modules that are running now, and those that ran when each autograd node was made.

    ``names`` maps the ``id`` of a module to its qualified name; ``recomputing`` is set while a
    checkpoint runs its forward again; ``autocast`` is the dtype of mixed precision (None: off).
    """

    names: Mapping[int, str]
    stack: list[Instance] = field(default_factory=list)
    counts: dict[tuple[Instance, str], int] = field(default_factory=dict)
    of_node: dict[int, Instance] = field(default_factory=dict)
    recomputing: bool = False
    autocast: str | None = None

    @property
    def current(self) -> Instance:
        """The innermost call of a module that is running."""
        return self.stack[-1] if self.stack else ()

    def enter(self, module: nn.Module, *_: Any) -> None:
        """Notes that a module's forward begins."""
        self._note_autocast()
        name = self.names.get(id(module))
        around = self.current
        if name is None:
            self.stack.append(around)
            return
        index = self.counts.get((around, name), 0)
        if self.recomputing:
            # A forward that a checkpoint runs again is the same call of the module, not a new one.
            index = max(0, index - 1)
        else:
            self.counts[around, name] = index + 1
        self.stack.append((*around, (name, index)))

    def _note_autocast(self) -> None:
        # Read here, where modules are called: below autograd, where operators are recorded,
        # autocast is always off.
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self.autocast = dtype_name(torch.get_autocast_dtype(device))

    def leave(self, *_: Any) -> None:
        """Notes that a module's forward ends."""
        self.stack.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the forward of all modules."""
        from torch.nn.modules import module

        before = module.register_module_forward_pre_hook(self.enter)
        # A checkpoint leaves the modules that it runs again by an exception, once it has enough.
        after = module.register_module_forward_hook(self.leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def new_node(self) -> int | None:
        """The number of the autograd node of the operator being dispatched; None where an earlier
        operator already belongs to this node.
        """
        # Autograd numbers a node just before it dispatches its op, so the first op dispatched
        # afterwards belongs to that number.
        number = torch._C._autograd._get_sequence_nr() - 1
        return None if number in self.of_node else number

    def at_dispatch(self, phase: str) -> Instance:
        """The modules to which the operator being dispatched belongs. In the backward these are the
        modules whose forward made its autograd node.
        """
        # A module that runs within the backward is recomputed (checkpoint), and makes new nodes.
        if phase == "forward" or self.current:
            number = self.new_node()
            if number is not None:
                self.of_node[number] = self.current
            return self.current
        node = torch._C._current_autograd_node()
        return () if node is None else self.of_node.get(node._sequence_nr(), ())


# How long the memory of tensors lives while a step runs on fake tensors.
# Python may keep tensors for longer than operators read them: a list of all states in a module's
# forward keeps them until the forward returns. Fake tensors are freed when real ones would be, so
# the recorder can observe the end of each.

Source = tuple[int, int]
"""The record that made a tensor, and the index of the output: (record, output)."""

# Returns the number of references to a storage. The function is private to PyTorch, so a version
# may lack it; then no end of a lifetime is known.
USERS: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Lifetimes:
    """When the memory of tensors was freed.

    ``until`` maps a source to the last record before its memory was freed; memory that was not
    freed during the step has no entry.
    """

    def __init__(self) -> None:
        self.until: dict[Source, int] = {}
        self._live: dict[int, tuple[Source | None, Any]] = {}

    def note(self, storage: Any, source: Source | None) -> None:
        """Notes that a storage now holds the output ``source``; the caller keeps one reference to
        the storage.

        The tensor that the storage held before lived in the same memory, so no end is noted for it.
        """
        self._live[storage._cdata] = source, storage

    def forget(self, storage: Any) -> None:
        """Stops watching a storage that the step is given: it outlives the step."""
        self._live.pop(storage._cdata, None)

    def settle(self, last: int) -> None:
        """Notes the storages that nobody refers to any more: each lived until record ``last``."""
        if USERS is None:
            return
        dead = [
            key for key, users in zip(self._live, map(USERS, self._live), strict=True) if users <= 1
        ]
        for key in dead:
            source, _ = self._live.pop(key)
            if source is not None:
                self.until[source] = last


# The tensors of a forward pass that autograd keeps for the backward.


def saved_tensors(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pairs (number of an autograd node, a tensor that it keeps) for all nodes behind a value."""
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # Nodes of PyTorch's C++ keep each tensor under a name; those of a Function written in
        # Python keep one tuple.
        names = [
            name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"
        ]
        for leaf in tree_leaves([getattr(node, name) for name in names if not _packed(node, name)]):
            if isinstance(leaf, Tensor):
                yield node._sequence_nr(), leaf
        stack.extend(before for before, _ in node.next_functions)


def _packed(node: Any, name: str) -> bool:
    """Whether hooks keep something else in place of a saved tensor.

    Reading such a tensor would recompute it (checkpoints) or fetch it from elsewhere (offloading).
    """
    raw = getattr(node, f"_raw{name}" if name.startswith("_") else "_raw_saved_tensors", None)
    return any(getattr(saved, "unpack_hook", None) is not None for saved in tree_leaves(raw))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and stride (in elements) and dtype of a tensor, without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The spec of a tensor."""
        return cls(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())), tensor.dtype)

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder in the arguments of a call for its tensor of this index."""

    index: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call that can be repeated on other tensors.

    ``args`` and ``kwargs`` hold a ``Slot`` in place of each tensor; ``specs`` describes the input
    tensors, in the order of the slots' indices, and ``made`` the outputs.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    specs: tuple[TensorSpec, ...]
    made: tuple[TensorSpec, ...]

    def bind(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arguments of the call, with these tensors in the slots."""

        def fill(value: Any) -> Any:
            return tensors[value.index] if isinstance(value, Slot) else value

        return tree_map(fill, self.args), tree_map(fill, dict(self.kwargs))


@dataclass(frozen=True, slots=True)
class Record:
    """One operator as it was dispatched.

    ``operands`` are the indices of the call's tensors that are data inputs, ``sources`` their
    producers as (record, output). ``instance`` names the modules around the operator; in the
    backward the modules around its forward op.
    """

    kind: str
    phase: str
    attrs: Mapping[str, Any]
    call: Call
    operands: tuple[int, ...]
    sources: tuple[tuple[int, int], ...]
    outputs: tuple[TensorSpec, ...]
    instance: Instance


@dataclass(frozen=True, slots=True)
class Dispatched:
    """An operator as PyTorch runs it: its arguments by name, the tensors among them, its output
    tensors, and the modules around it.
    """

    func: Any
    arguments: Mapping[str, Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    instance: Instance


class UntoldBufferError(Exception):
    """Raised for an operator with a buffer whose size only the library that runs it knows.

    An example is the workspace of a recurrent layer: as a fake tensor it has no bytes.
    """


class Recorder(TorchDispatchMode):
    """Fills ``records`` with every operator that is dispatched while it is active.

    The caller sets ``phase`` while it runs the step. ``blocking`` holds the records for which the
    host waits. ``convert`` makes a fake tensor of a real one; it serves tensors that the step takes
    from attributes or closures rather than from parameters, buffers and inputs. With ``exact``,
    UntoldBufferError is raised where a fake tensor hides the size of a buffer.
    """

    def __init__(
        self,
        scopes: Scopes,
        convert: Callable[[Tensor], Tensor] | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scopes = scopes
        self.convert = convert
        self.exact = exact
        self.phase = "forward"
        self.records: list[Record] = []
        self.saved: dict[int, int] = {}
        self.blocking: set[int] = set()
        self._sources: dict[int, tuple[int, int] | None] = {}
        self._of_node: dict[int, int] = {}
        self._met: dict[int, tuple[Tensor, Tensor | None]] = {}
        # Keeps storages alive: otherwise a new storage could get the number of a freed one.
        self._alive: list[Any] = []
        self.lifetimes = Lifetimes()

    def add_leaf(self, kind: str, tensor: Tensor) -> int:
        """Records a tensor that the step is given (kind ``parameter`` or ``input``); returns the
        record's index.
        """
        spec = TensorSpec.of(tensor)
        self.records.append(
            Record(kind, "forward", {}, Call(None, (), {}, (), ()), (), (), (spec,), ())
        )
        self._note_source(tensor, (len(self.records) - 1, 0))
        self.lifetimes.forget(self._alive[-1])
        return len(self.records) - 1

    def note_saved(self, value: Tensor) -> None:
        """Fills ``saved`` with the bytes that each record's autograd node keeps for the backward.

        Parameters do not count. A tensor that several operators keep counts for each of them.
        """
        kept: dict[int, dict[int, int]] = {}
        for node, tensor in saved_tensors(value):
            index, storage = self._of_node.get(node), key_of(tensor)
            source = self._sources.get(storage)
            if index is not None and not (
                source is not None and traits_of(self.records[source[0]].kind).leaf == "parameter"
            ):
                # An expanded tensor has less memory behind it than its elements would take.
                size = min(TensorSpec.of(tensor).bytes, tensor.untyped_storage().nbytes())
                sizes = kept.setdefault(index, {})
                sizes[storage] = max(sizes.get(storage, 0), size)
        self.saved = {index: sum(sizes.values()) for index, sizes in kept.items()}

    def source_of(self, tensor: Tensor) -> tuple[int, int]:
        """The (record, output) that made a tensor; a tensor never seen before is recorded as an
        input of the step.
        """
        source = self._sources.get(key_of(tensor))
        return source if source is not None else (self.add_leaf("input", tensor), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and records it."""
        self.lifetimes.settle(len(self.records) - 1)
        args, kwargs = self._converted(func, args, kwargs or {})
        result = func(*args, **kwargs)
        # Operators of ``prim`` query a tensor's device or layout; no device runs them.
        if func.namespace == "prim":
            return result
        instance = self._instance()
        outputs = tensors_in(result)
        if self.exact and any(map(_untold, outputs)):
            raise UntoldBufferError(aten_name(func))
        arguments = named_arguments(func, args, kwargs)
        inputs = tensors_in(list(arguments.values()))
        if aten_name(func) in ALLOCATIONS:
            for output in outputs:
                self._note_source(output, None)
        elif aten_name(func) in VALUES_TO_HOST:
            self._note_wait()
        elif outputs and not is_view(written(func, arguments), inputs, outputs):
            self._record_operator(Dispatched(func, arguments, inputs, outputs, instance), result)
            if aten_name(func) in SIZES_TO_HOST or _leaves_device(inputs, outputs):
                self._note_wait()
        return result

    def _instance(self) -> Instance:
        """The modules of the operator being dispatched; also notes its autograd node."""
        node = self.scopes.new_node() if self.phase == "forward" else None
        if node is not None:
            self._of_node[node] = len(self.records)
        return self.scopes.at_dispatch(self.phase)

    def _note_wait(self) -> None:
        """Marks the last record as blocking: the host waits there for everything dispatched."""
        if not traits_of(self.records[-1].kind).leaf:
            self.blocking.add(len(self.records) - 1)

    def _converted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The arguments with a fake tensor in place of each real tensor: always the same fake
        tensor for the same real one.
        """
        # Tensors made of literals stay real: a step may read their values.
        if self.convert is None or aten_name(func).startswith("lift_fresh"):
            return args, kwargs

        def fake(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
                return value
            if value.is_leaf:
                self._met.setdefault(id(value), (value, value.grad))
            return self.convert(value)  # type: ignore[misc]

        return tree_map(fake, (args, kwargs))

    def forget_gradients(self) -> None:
        """Restores the gradients that the converted real tensors had before the step."""
        for tensor, gradient in self._met.values():
            if isinstance(tensor.grad, FakeTensor):
                tensor.grad = gradient

    def _record(self, kind: str, op: Dispatched, operands: Sequence[int]) -> None:
        # Memory that is reserved but not yet written is no input, not even of an op that writes it
        # in place.
        chosen = tuple(
            i for i in operands if self._sources.get(key_of(op.inputs[i]), ()) is not None
        )
        sources = tuple(self.source_of(op.inputs[i]) for i in chosen)
        call = call_of(op.func, op.arguments, op.inputs, op.outputs)
        attrs = attributes(op.func, op.arguments)
        self.records.append(
            Record(kind, self.phase, attrs, call, chosen, sources, call.made, op.instance)
        )
        for index, output in enumerate(op.outputs):
            self._note_source(output, (len(self.records) - 1, index))

    def _record_operator(self, op: Dispatched, result: Any) -> None:
        name = aten_name(op.func)
        if name == "convolution_backward":
            self._record_conv_backward(op, result)
            return
        # Tensors that are only written (``out=``) stand last, and are no operands.
        count = len(op.inputs) - len(schema_of(op.func).outs)
        operands = OPERAND_ORDER.get(name, range(count))
        self._record(kind_of(op.func, op.arguments), op, operands)

    def _record_conv_backward(self, op: Dispatched, result: Sequence[Tensor | None]) -> None:
        """Records the backward of a convolution as two operators: the gradient of the input and the
        gradient of the weight.

        Each has only the two operands that it computes with; it needs just the shape of the third.
        """
        wanted, kind = op.arguments["output_mask"], kind_of(op.func, op.arguments)
        for part, mask, operands in (
            ("input", (True, False, False), (0, 2)),
            ("weight", (False, True, True), (0, 1)),
        ):
            both = [a and b for a, b in zip(mask, wanted, strict=True)]
            if any(both):
                outputs = [
                    gradient
                    for gradient, on in zip(result, both, strict=True)
                    if on and gradient is not None
                ]
                arguments = {**op.arguments, "output_mask": both}
                half = replace(op, arguments=arguments, outputs=outputs)
                self._record(f"{kind}_{part}", half, operands)

    def _note_source(self, tensor: Tensor, source: tuple[int, int] | None) -> None:
        self._sources[key_of(tensor)] = source
        self._alive.append(tensor.untyped_storage())
        self.lifetimes.note(self._alive[-1], source)


def call_of(
    func: Any,
    arguments: Mapping[str, Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> Call:
    """The call with slots in place of its tensors, indexed in the order of ``inputs``."""
    count = 0

    def cut(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, Tensor):
            return value
        count += 1
        return Slot(count - 1)

    # Only the schema says which arguments must be given by name.
    keywords = schema_of(func).keywords
    filled = {name: tree_map(cut, value) for name, value in arguments.items()}
    args = tuple(value for name, value in filled.items() if name not in keywords)
    kwargs = {name: value for name, value in filled.items() if name in keywords}
    return Call(
        func, args, kwargs, tuple(map(TensorSpec.of, inputs)), tuple(map(TensorSpec.of, outputs))
    )


def written(func: Any, arguments: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that an operator writes, one per storage. Operators that only
    change the shape (tagged inplace_view) write none.
    """
    if torch.Tag.inplace_view in func.tags:
        return []
    names = schema_of(func).written
    leaves = tree_leaves([value for name, value in arguments.items() if name in names])
    return list({key_of(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among the leaves of nested arguments or results."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def is_view(writes: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether an operator is a view, which computes nothing: all of its outputs lie in the memory
    of its inputs, and it writes no tensor in place (``writes`` is empty).
    """
    behind = set(map(key_of, inputs))
    return not writes and all(key_of(tensor) in behind for tensor in outputs)


def _leaves_device(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether an operator copies from a device to the host."""
    return any(t.device.type != "cpu" for t in inputs) and outputs[0].device.type == "cpu"


def _untold(output: Tensor) -> bool:
    """Whether a fake tensor is a buffer of unknown size: such a workspace has dtype uint8 and, as a
    fake tensor, no elements.
    """
    return output.dtype == torch.uint8 and output.shape == (0,)


def key_of(tensor: Tensor) -> int:
    """The identity of the storage behind a tensor."""
    return int(tensor.untyped_storage()._cdata)
