"""Runs programs of torch.export as modules, without running code from their archives.

A program is a list of calls of PyTorch's operators. Only ATen operators that make tensors or sizes
are called, and arithmetic on sizes. Each call runs inside the modules in which it was recorded, so
a recorder that watches modules sees the modules of the exported program.

``programs`` runs it. ``simdev.files.program`` reads the archive and checks its parts.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby, takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ..files.program import Node, SavedProgram, TensorMeta, extent_of, inner_graph, the_one
from ..ground.errors import InputError, prefixed
from .kinds import dtype_name
from .tracing import NEEDS_VALUES, reason_of

DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64,
    6: torch.float16, 7: torch.float32, 8: torch.float64, 9: torch.complex32,
    10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
    28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip
"""Dtypes by their numbers in the format."""
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "_operator.add": operator.add, "_operator.sub": operator.sub, "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv, "_operator.truediv": operator.truediv,
    "_operator.mod": operator.mod, "_operator.neg": operator.neg, "_operator.pos": operator.pos,
    "_operator.eq": operator.eq, "_operator.ne": operator.ne, "_operator.lt": operator.lt,
    "_operator.le": operator.le, "_operator.gt": operator.gt, "_operator.ge": operator.ge,
    "_operator.and_": operator.and_, "_operator.or_": operator.or_, "_operator.pow": math.pow,
    "math.trunc": math.trunc, "math.ceil": math.ceil, "math.floor": math.floor,
    "torch.sym_not": operator.not_, "torch.sym_int": int, "torch.sym_float": float,
    "torch.sym_max": max, "torch.sym_min": min, "torch.sym_sqrt": math.sqrt,
    "torch.sym_ite": lambda test, yes, no: yes if test else no,
}  # fmt: skip
"""Functions that programs apply to sizes, by name."""
MODES: Mapping[str, Callable[..., AbstractContextManager[Any]]] = {
    "torch.ops.higher_order.wrap_with_set_grad_enabled": torch.set_grad_enabled,
    "torch.ops.higher_order.wrap_with_autocast": torch.autocast,
}
"""Calls that run an inner graph in a mode, by name, with the mode."""
SIZES = frozenset(
    {"sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "item", "_local_scalar_dense"}
)
"""Operators that return numbers instead of tensors."""
OUTSIDE = frozenset({"from_file"})
"""Operators that read more than their arguments, such as files: they are refused."""
CUTS = re.compile(r"(unsafe_)?(split|chunk)|unbind|tensor_split|[hvd]split|lstm|gru|rnn_\w+")
"""Operators that make a tensor, or a call, for each part of an extent."""
MAX_NUMBER, MAX_PARTS, MAX_NESTED = 2**63, 2**16, 64
_ATEN = re.compile(r"torch\.ops\.aten\.(_?[a-z]\w*)\.(\w+)")

Values = dict[str, Any]
"""The values of a graph, tensors and numbers, by name."""
Stack = Sequence[tuple[str, str]]
"""The calls of modules around a node, outermost first: (id of the call, name of the module)."""


class _Part(nn.Module):
    """A stand-in for a module of a program: runs any given work, so that module hooks fire."""

    def forward(self, work: Callable[[], Any]) -> Any:
        """Runs the calls that were recorded in the module; returns their results."""
        return work()


class Exported:
    """A saved program that runs on fake tensors, and so without memory.

    ``module`` holds its parameters and buffers, ``inputs`` are fake tensors like those that it was
    exported with, and ``names`` the arguments' names. Raises InputError where the program holds
    something that cannot be called.
    """

    def __init__(self, program: SavedProgram) -> None:
        self.module = _Part()
        self._mode = FakeTensorMode()
        self._program = program
        self._shared: dict[object, Tensor] = {}
        self._given: Values = {}
        self._state: dict[str, tuple[nn.Module, str]] = {}
        self._held_as: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        inputs: dict[str, Tensor] = {}
        for name in program.modules:
            self.part(name)
        for index, spec in enumerate(program.signature["input_specs"]):
            with _within(f"input_specs[{index}]"):
                inputs |= self._take(*the_one(spec))
        # Parameters that no call reads belong to the module too.
        for name in program.state:
            self._hold(name)
        for index, spec in enumerate(program.signature["output_specs"]):
            with _within(f"output_specs[{index}]"):
                self._note_copy(*the_one(spec))
        self.names, self.inputs = tuple(inputs), tuple(inputs.values())
        self._calls = _Calls(program.graph["nodes"], self.part, self.copies)

    def run(self, *tensors: Tensor) -> tuple[Any, ...]:
        """The outputs of the program for these inputs."""
        outputs: tuple[Any, ...] = self.module(partial(self._run, tensors))
        return outputs

    def fitting(self, given: Sequence[Any]) -> tuple[Tensor, ...]:
        """The tensors among the given inputs. Raises InputError where they do not fit the exported
        program: another dtype, or another size in a dimension that is not dynamic.
        """
        tensors = tuple(leaf for leaf in tree_leaves(tuple(given)) if isinstance(leaf, Tensor))
        if len(tensors) != len(self.names):
            raise InputError(f"inputs: must hold {len(self.names)} tensors, got {len(tensors)}")
        for name, tensor in zip(self.names, tensors, strict=True):
            meta = self._program.graph["tensor_values"][name]
            sizes = [size.get("as_int") for size in meta["sizes"]]
            fits = len(sizes) == tensor.dim() and all(
                size in (None, extent) for size, extent in zip(sizes, tensor.shape, strict=True)
            )
            if not fits or tensor.dtype != DTYPES[meta["dtype"]]:
                raise InputError(
                    f"inputs: {name}: was exported with another shape or dtype than "
                    f"{list(tensor.shape)} of {dtype_name(tensor.dtype)}"
                )
        return tensors

    def _run(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        values = self._given | dict(zip(self.names, tensors, strict=True))
        # Read anew in each run, because ``functional_call`` may exchange the parameters.
        for name, (module, last) in self._state.items():
            values[name] = {**module._parameters, **module._buffers}[last]
        outputs = self._program.graph["outputs"]
        self._calls.run(values, set(_names(outputs)))
        kinds = [the_one(spec)[0] for spec in self._program.signature["output_specs"]]
        return tuple(
            _value(argument, values)
            for kind, argument in zip(kinds, outputs, strict=True)
            if not kind.endswith("_mutation")
        )

    def part(self, name: str) -> nn.Module:
        """The module of a qualified name; the number of a call (``body@1``) is ignored."""
        module: nn.Module = self.module
        for part in filter(None, name.partition("@")[0].split(".")):
            module = module._modules.setdefault(part, _Part()) or module
        return module

    def _take(self, kind: str, spec: Mapping[str, Any]) -> dict[str, Tensor]:
        """Notes an input of the graph. Returns its tensor by name where the program's caller passes
        it, else nothing.
        """
        match kind:
            case "parameter" | "buffer":
                name = spec["arg"]["name"]
                self._state[name] = self._hold(spec[f"{kind}_name"])
                self._held_as[spec[f"{kind}_name"]] = name
            case "tensor_constant":
                payload = self._payload(spec["tensor_constant_name"])
                self._given[spec["arg"]["name"]] = self._tensor(payload["tensor_meta"])
            case "constant_input":
                self._given[spec["name"]] = the_one(spec["value"])[1]
            case "user_input":
                given, value = the_one(spec["arg"])
                graph = self._program.graph
                if given == "as_tensor":
                    return {value["name"]: self._tensor(graph["tensor_values"][value["name"]])}
                if "as_name" in (value if isinstance(value, dict) else ()):
                    name = value["as_name"]
                    self._given[name] = extent_of(graph["sym_int_values"][name])
            case _:
                raise InputError(f"{kind}: an input that simdev cannot follow")
        return {}

    def _payload(self, name: str) -> Mapping[str, Any]:
        payloads = self._program.state, self._program.constants
        if not any(name in kept for kept in payloads):
            raise InputError(f'"{name}" is neither among the weights nor among the constants')
        return next(kept[name] for kept in payloads if name in kept)

    def _hold(self, name: str) -> tuple[nn.Module, str]:
        """The module that holds a parameter or buffer, and its name there; creates it if needed."""
        owner, _, last = name.rpartition(".")
        module, payload = self.part(owner), self._payload(name)
        held = module._parameters if payload["is_param"] else module._buffers
        if last not in held:
            # Parameters that share a file of values are one tensor.
            meta = payload["tensor_meta"]
            looks = str((payload["path_name"], meta["sizes"], meta["strides"], payload["is_param"]))
            if looks not in self._shared:
                self._shared[looks] = self._tensor(meta, payload["is_param"])
            held[last] = self._shared[looks]  # type: ignore[assignment]
        return module, last

    def _tensor(self, meta: TensorMeta, parameter: bool = False) -> Tensor:
        with self._mode:
            tensor = torch.empty_strided(
                [extent_of(size) for size in meta["sizes"]],
                [extent_of(stride) for stride in meta["strides"]],
                dtype=_of(DTYPES, meta["dtype"], "dtype"),
                device=_device(meta["device"]),
            )
            if parameter:
                return nn.Parameter(tensor, meta["requires_grad"])
            return tensor.requires_grad_(meta["requires_grad"])

    def _note_copy(self, kind: str, spec: Mapping[str, Any]) -> None:
        """Notes an output that is the new value of an input: it is copied into that input."""
        if kind.endswith("_mutation"):
            name = spec[f"{kind.removesuffix('_mutation')}_name"]
            self.copies[spec["arg"]["name"]] = self._held_as.get(name, name)
        elif kind not in ("user_output", "loss_output"):
            raise InputError(f"{kind}: an output that simdev cannot follow")


class _Calls:
    """The calls of one graph, each run inside the modules in which it was recorded.

    A value is freed when Python would free it: after its last reader or, where that reader runs
    inside a module that received the value from outside, when the outermost such module returns.
    ``part`` finds modules by name; ``copies`` maps a value to the one that it is copied into as
    soon as it is made.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        part: Callable[[str], nn.Module],
        copies: Mapping[str, str],
        around: Stack = (),
    ) -> None:
        self.nodes, self.part, self.copies = nodes, part, copies
        self.stacks = [around]
        for node in nodes:
            self.stacks.append(_stack(node, self.stacks[-1]))
        # In an inner graph every call lists the modules around the whole graph too: ``depth`` of
        # them are running already.
        levels = zip(*self.stacks, strict=False)
        self.depth = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
        self.stacks = self.stacks[1:]

    def run(self, values: Values, kept: Collection[str]) -> None:
        """Runs all calls, adding their results to ``values``; frees all values but the ``kept``."""
        kept = {*kept, *self.copies.values()}
        made = dict.fromkeys(values, -1)
        last: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for name in _names(node["outputs"]):
                if name in made:
                    raise InputError(f'nodes[{index}]: makes "{name}", which was there before')
                made[name] = last[name] = index
            last |= dict.fromkeys(_names(node["inputs"]), index)
        dying: list[list[str]] = [[] for _ in self.nodes]
        for name, index in last.items():
            if name in made and name not in kept:
                dying[index].append(name)
        self._run(values, made, dying, -1, range(len(self.nodes)), self.depth)

    def _run(
        self,
        values: Values,
        made: Mapping[str, int],
        dying: Sequence[Sequence[str]],
        begin: int,
        calls: Sequence[int],
        depth: int,
    ) -> None:
        """Runs consecutive ``calls``, which all lie inside the same ``depth`` modules; the
        innermost of these began with the call ``begin``. ``made`` maps a value to the call that
        made it (-1: an input), ``dying`` lists for each call the values that no later call reads.
        """
        for _, group in groupby(
            calls, key=lambda call: self.stacks[call][depth : depth + 1] or call
        ):
            first, *_ = together = list(group)
            new: list[str] = []
            if depth < len(self.stacks[first]):
                module = self.part(self.stacks[first][depth][1])
                module(partial(self._run, values, made, dying, first, together, depth + 1))
            else:
                with _within(f"nodes[{first}] ({self.nodes[first]['target']})"):
                    self._call(self.nodes[first], values, self.stacks[first])
                new += _names(self.nodes[first]["outputs"])
            for name in (name for call in together for name in dying[call]):
                # A value from before the module around lives until that module returns.
                if begin <= made[name] <= first:
                    values.pop(name, None)
            for name in filter(self.copies.__contains__, new):
                values[name] = values[self.copies[name]].copy_(values[name])

    def _call(self, node: Node, values: Values, stack: Stack) -> None:
        target = node["target"]
        if target in MODES:
            result = self._inner(node, values, stack)
        elif target in ARITHMETIC:
            result = ARITHMETIC[target](
                *(_number(_value(a["arg"], values)) for a in node["inputs"])
            )
            _number(result)
        else:
            func = _operator(target)
            if not func._schema.returns:
                return  # an assertion about values, which are not known
            arguments = {a["name"]: _value(a["arg"], values) for a in node["inputs"]}
            _refuse_many_parts(func, arguments)
            result = func(**arguments)
        _bind(node["outputs"], result, values)

    def _inner(self, node: Node, values: Values, stack: Stack) -> Any:
        """The outputs of an inner graph called in a mode. The node's inputs are the mode's
        settings, the graph, and the graph's inputs.
        """
        kinds = [the_one(a["arg"])[0] for a in node["inputs"]]
        place = kinds.index("as_graph")
        graph = inner_graph(the_one(node["inputs"][place]["arg"])[1]["graph"])
        settings, given = node["inputs"][:place], node["inputs"][place + 1 :]
        inner: Values = {}
        for argument, value in zip(graph["inputs"], given, strict=True):
            _bind([argument], _value(value["arg"], values), inner)
        with MODES[node["target"]](*(_value(a["arg"], values) for a in settings)):
            calls = _Calls(graph["nodes"], self.part, {}, stack)
            calls.run(inner, set(_names(graph["outputs"])))
        return tuple(_value(argument, inner) for argument in graph["outputs"])


def _stack(node: Node, before: Stack) -> Stack:
    """The calls of modules around a node, outermost first; ``before``, the stack of the previous
    node, where this node does not name them.
    """
    text = node["metadata"].get("nn_module_stack")
    if text is None:
        return before
    entries = [(*entry.split(",", 2), "")[:2] for entry in text.split(";")]
    if len(entries) > MAX_NESTED:
        raise InputError(f"modules nest more than {MAX_NESTED} deep")
    return [(key, name) for key, name in entries if name]


def _names(value: Any) -> Iterator[str]:
    """The names of values in arguments, at any depth, without those inside an inner graph."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ("as_name", "as_tensor"):
                yield part if isinstance(part, str) else part["name"]
            elif key in ("as_tensors", "as_nested_tensors"):
                yield from (each["name"] for each in _flat(part))
            elif key != "graph":
                yield from _names(part)
    elif isinstance(value, list):
        for part in value:
            yield from _names(part)


def _flat(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in nested lists."""
    for part in value if isinstance(value, list) else [value]:
        yield from _flat(part) if isinstance(part, list) else [part]


def _value(argument: Mapping[str, Any], values: Values) -> Any:
    """The value of an argument. Raises InputError for a name that no earlier call made."""
    kind, value = the_one(argument)
    if kind in PLAIN:
        return value
    if kind not in ARGUMENTS:
        raise InputError(f"{kind}: an argument that simdev cannot follow")
    return ARGUMENTS[kind](value, values)


def _values(arguments: Sequence[Mapping[str, Any]], values: Values) -> list[Any]:
    return [_value(each, values) for each in arguments]


def _tensors(arguments: Sequence[Any], values: Values) -> list[Any]:
    return [
        _tensors(each, values) if isinstance(each, list) else _known(each["name"], values)
        for each in arguments
    ]


def _known(name: str, values: Values) -> Any:
    if name not in values:
        raise InputError(f'reads "{name}", which no call before it makes')
    return values[name]


def _of(table: Mapping[int, Any], number: Any, noun: str) -> Any:
    if number not in table:
        raise InputError(f"no {noun} has the number {number}")
    return table[number]


def _device(device: Mapping[str, Any]) -> torch.device:
    index = device.get("index")
    return torch.device(device["type"]) if index is None else torch.device(device["type"], index)


def _number(value: Any) -> Any:
    """The value, if it is a number of bounded size: powers of powers of sizes would never end."""
    if not isinstance(value, (bool, int, float)) or abs(value) > MAX_NUMBER:
        raise InputError("must be a number up to 2^63")
    return value


def _bind(outputs: Sequence[Mapping[str, Any]], result: Any, values: Values) -> None:
    """Adds the results of a call to ``values`` under the names of its outputs. Raises InputError
    where the numbers of results and of names differ.
    """
    if len(outputs) == 1:
        kind, value = the_one(outputs[0])
        if kind == "as_none":
            return
        if kind == "as_tensors":
            outputs, result = [{"as_tensor": each} for each in value], result
        elif not isinstance(result, (tuple, list)):
            names = list(_names(outputs))
            values |= dict.fromkeys(names, result)
            return
    made = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(made) != len(outputs):
        raise InputError(f"makes {len(made)} values, and {len(outputs)} have names")
    for output, each in zip(outputs, made, strict=True):
        _bind([output], each, values)


def _operator(target: str) -> Any:
    """The operator of a name. Raises InputError unless it is an ATen operator that makes tensors or
    sizes from its arguments alone.
    """
    parts = _ATEN.fullmatch(target)
    name, overload = parts.groups() if parts else ("", "")
    func = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if (
        not isinstance(func, torch._ops.OpOverload)
        or name in OUTSIDE
        or not torch._C._dispatch_has_kernel(func.name())  # TorchScript has more, with effects
    ):
        raise InputError("no operator of ATen that simdev can follow")
    returned = [str(each.type) for each in func._schema.returns]
    if not all("Tensor" in each for each in returned) and name not in SIZES:
        raise InputError("makes neither tensors nor sizes")
    return func


def _refuse_many_parts(func: Any, arguments: Mapping[str, Any]) -> None:
    """Raises InputError where an operator would cut a tensor into more than MAX_PARTS parts, which
    could exhaust the memory.
    """
    cut = next((value for value in arguments.values() if isinstance(value, Tensor)), None)
    if cut is None or not CUTS.fullmatch(func._schema.name.removeprefix("aten::")):
        return
    counts = [arguments[name] for name in ("chunks", "sections") if name in arguments]
    parts = counts[0] if counts else max(cut.shape, default=1)
    if isinstance(size := arguments.get("split_size"), int):
        parts = cut.shape[arguments.get("dim", 0)] // max(1, size)
    if parts > MAX_PARTS and "split_sizes" not in arguments:
        raise InputError(f"cuts a tensor in more than {MAX_PARTS} parts")


PLAIN = frozenset({"as_int", "as_bool", "as_string", "as_ints", "as_bools", "as_strings"})
"""Kinds of arguments that hold their value directly."""
ARGUMENTS: Mapping[str, Callable[[Any, Values], Any]] = {
    "as_none": lambda value, values: None,
    "as_name": _known,
    "as_tensor": lambda value, values: _known(value["name"], values),
    "as_tensors": _tensors,
    "as_nested_tensors": _tensors,
    "as_optional_tensor": _value,
    "as_optional_tensors": _values,
    "as_sym_int": _value,
    "as_sym_ints": _values,
    "as_sym_float": _value,
    "as_sym_floats": _values,
    "as_sym_bool": _value,
    "as_sym_bools": _values,
    "as_float": lambda value, values: float(value),
    "as_floats": lambda value, values: [float(each) for each in value],
    "as_complex": lambda value, values: complex(value["real"], value["imag"]),
    "as_scalar_type": lambda value, values: _of(DTYPES, value, "dtype"),
    "as_memory_format": lambda value, values: _of(MEMORY_FORMATS, value, "memory format"),
    "as_layout": lambda value, values: _of({7: torch.strided}, value, "layout"),
    "as_device": lambda value, values: _device(value),
}
"""Readers of the arguments that name or encode a value, by the argument's kind."""


@contextmanager
def _within(place: str) -> Iterator[None]:
    """Turns any error in a part of a program into an InputError that names the place, except errors
    that mean that the program depends on values.
    """
    try:
        with prefixed(f"{place}: "):
            yield
    except (InputError, *NEEDS_VALUES):
        raise
    except Exception as error:
        # The program's contents are passed to PyTorch, which may raise any exception.
        raise InputError(f"{place}: {reason_of(error)}") from None
