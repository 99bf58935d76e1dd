"""An ONNX model with all its shapes: symbolic dimensions get numbers, and nodes that only compute
shapes are evaluated.

Shapes come from ``onnx.shape_inference``. Exported models compute the shapes of their reshapes
while they run (Shape, Gather, Concat, ..): such nodes are evaluated here by ``onnx.reference`` and
are no ops of the step.

``onnx_graph`` builds on it. Only this module decides which operators count as shape arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, refuse
from ..nouns.semantics.dtype import known as known_dtype
from .imported import Source, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

CONTROL = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "Optional", "SequenceConstruct", "SequenceAt"}
)
RANDOM = ("Random", "Bernoulli", "Multinomial")
SMALL = 2**16  # elements: the values of larger constants are not kept, for shapes have few
ROUNDS = 8
NEVER_LARGER = frozenset(
    {
        "Add", "Cast", "Ceil", "Concat", "Constant", "Div", "Equal", "Floor", "Gather", "Identity",
        "Max", "Min", "Mod", "Mul", "Neg", "Not", "ReduceProd", "ReduceSum", "Reshape", "Slice",
        "Split", "Sqrt", "Squeeze", "Sub", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators whose output is bounded by their small inputs: they may be evaluated before their
shapes are known.
"""
DOMAINS = ("", "ai.onnx")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueType:
    """The shape of a value and the type of its elements."""

    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Model:
    """The nodes of a model that do work, in order, with the types of all values.

    ``known`` has the small values that do not depend on inputs, ``weights`` the names of
    initializers, ``inputs`` the names of the batch's inputs. Each node is onnx's own message.
    """

    name: str
    nodes: tuple[Any, ...]
    types: Mapping[str, ValueType]
    inputs: tuple[str, ...]
    weights: frozenset[str]
    known: Mapping[str, Array] = field(repr=False)
    opset: int = 0


def is_model(source: Source) -> bool:
    """Whether a file that is no text begins as a model: its version first, or its producer."""
    head = source.head
    # The tag of ir_version (1 to 20), then the tag of one of the fields 2 to 8.
    version = int.from_bytes(head[1:2], "big")
    return head[:1] == b"\x08" and 1 <= version <= 20 and head[2:3] in b"\x12\x1a\x22\x2a\x3a\x42"


def parse_model(source: Source) -> Any:
    """The message of a model, without the data of weights that lie in files of their own.

    Raises InputError.
    """
    require("onnx", "onnx", "an ONNX model")
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        if source.data is not None:
            return onnx.load_model_from_string(source.data)
        return onnx.load(source.path, load_external_data=False)
    except DecodeError:
        raise InputError("not an ONNX model: damaged, or cut off") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None


def read_model(message: Any, dims: Mapping[str, int] | None = None) -> Model:
    """The model of a message. ``dims`` gives numbers to its symbolic dimensions by name ("batch").

    Raises InputError with every problem: dimensions without a number, control flow, unknown shapes.
    """
    message = _inlined(message)
    graph = message.graph
    weights = frozenset(tensor.name for tensor in graph.initializer)
    inputs = [value for value in graph.input if value.name not in weights]
    _set_dims(inputs, dims or {})
    # Stored shapes, perhaps for other sizes, would override the inference.
    del graph.value_info[:]
    for value in graph.output:
        value.ClearField("type")
    small = [(tensor.name, _small(tensor)) for tensor in graph.initializer]
    known = {name: array for name, array in small if array is not None}
    message = _inferred(message, known)
    types = {name: type_ for name, type_ in _types(message.graph) if type_ is not None}
    nodes = tuple(node for node in message.graph.node if _made(node) - known.keys())
    read = {name for node in message.graph.node for name in node.input}
    read |= {value.name for value in message.graph.output}
    missing = [
        f"node {_title(node)}: the shape of its output {name} cannot be told"
        for node in nodes
        for name in node.output
        if name and name not in types and name in read
    ]
    refuse(missing)
    versions = [entry.version for entry in message.opset_import if entry.domain in DOMAINS]
    names = tuple(value.name for value in inputs)
    opset = versions[0] if versions else 0
    return Model(graph.name or "onnx", nodes, types, names, weights, known, opset)


def _inlined(message: Any) -> Any:
    """The model with its functions inlined. Raises InputError where it is no single graph."""
    graph = message.graph
    if not graph.node:
        raise InputError("not an ONNX model: its graph has no nodes")
    if not all(isinstance(text, str) for text in _texts(graph)):
        raise InputError("damaged: a name in it is no text")
    problems = [
        f"node {_title(node)}: what runs depends on values, so the model is no one graph"
        for node in graph.node
        if node.op_type in CONTROL and node.domain in DOMAINS
    ]
    refuse(problems)
    if not message.functions:
        return message
    from onnx.inliner import inline_local_functions

    return inline_local_functions(message)


def _title(node: Any) -> str:
    return f"{node.name or node.output[0]} ({node.op_type})"


def _made(node: Any) -> set[str]:
    """The names of a node's outputs; those left out are empty."""
    return set(filter(None, node.output))


def _texts(graph: Any) -> Iterator[object]:
    """Everything in a graph that must be text: protobuf hands on bytes where it is not."""
    yield graph.name
    for node in graph.node:
        yield from (node.op_type, node.name, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for value in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        yield value.name
    for value in graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _set_dims(inputs: Sequence[Any], dims: Mapping[str, int]) -> None:
    """Gives every symbolic dimension of the inputs its number.

    Raises InputError where one is left, or not there.
    """
    problems = [
        f"--dim: {name}: must be at least 1, got {value}"
        for name, value in dims.items()
        if value < 1
    ]
    refuse(problems)
    unused = set(dims)
    for value in inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name = dim.dim_param or f"{value.name}.{axis}"
            unused.discard(name)
            if name in dims:
                dim.dim_value = dims[name]
            else:
                problems.append(
                    f"input {value.name}: dimension {axis} has no number: tell it by --dim {name}=N"
                )
    problems += [f"--dim: {name}: no dimension of an input is called so" for name in sorted(unused)]
    refuse(problems)


def _small(tensor: Any) -> Array | None:
    """The values of a small initializer; None where it is large or in another file."""
    import onnx

    if prod(tensor.dims) > SMALL or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (TypeError, ValueError, KeyError):
        return None  # a type of elements, or bytes, that onnx itself cannot read


def _inferred(message: Any, known: dict[str, Array]) -> Any:
    """The model with its shapes; ``known`` gets values that no input changes. Raises InputError."""
    import onnx

    for _ in range(ROUNDS):
        try:
            message = onnx.shape_inference.infer_shapes(message, data_prop=True)
        except onnx.shape_inference.InferenceError as error:
            raise InputError(f"shapes do not fit: {str(error).splitlines()[0]}") from None
        except ValueError as error:
            raise InputError(
                f"too large for onnx's shape inference: save its weights as external data ({error})"
            ) from None
        graph, before = message.graph, len(known)
        _evaluate(graph, known)
        if len(known) == before:
            break
        # With a known value the inference can resolve the Reshape that reads it.
        made = {name for node in graph.node for name in node.output}
        new = (known.keys() & made) - {tensor.name for tensor in graph.initializer}
        left = [node for node in graph.node if not _made(node) & new]
        graph.initializer.extend(
            onnx.numpy_helper.from_array(known[name], name) for name in known if name in new
        )
        del graph.node[:]
        graph.node.extend(left)
    return message


def _evaluate(graph: Any, known: dict[str, Array]) -> None:
    """Adds to ``known`` the outputs of nodes whose inputs are known, and of nodes that only read a
    shape.
    """
    import numpy as np

    types = dict(_types(graph))
    for node in graph.node:
        if _made(node) <= known.keys():
            continue
        type_ = types.get(node.input[0]) if node.input else None
        if node.op_type == "Shape" and type_ is not None:
            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            shape = np.array(type_.shape, np.int64)
            known[node.output[0]] = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
        elif node.op_type == "Size" and type_ is not None:
            known[node.output[0]] = np.array(prod(type_.shape))
        elif node.op_type == "Identity" and type_ is not None and "float" in type_.dtype:
            continue  # a weight under a second name is still the one weight
        elif set(filter(None, node.input)) <= known.keys() and _is_small(node, types):
            known |= _run(node, known)


def _is_small(node: Any, types: Mapping[str, ValueType | None]) -> bool:
    if node.op_type.startswith(RANDOM):
        return False
    made = [types.get(name) for name in _made(node)]
    if None in made and node.op_type not in NEVER_LARGER:
        return False
    return all(prod(type_.shape) <= SMALL for type_ in made if type_ is not None)


def _run(node: Any, known: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one node by onnx's reference implementation; nothing where it has none."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    feeds = {name: known[name] for name in node.input if name}
    try:
        values = ReferenceEvaluator(node).run(None, feeds)
    except Exception:
        # The reference runs a foreign model's node: on any error the node stays an op of the step.
        return {}
    outputs = zip(node.output, values, strict=False)
    made = {name: value for name, value in outputs if name and isinstance(value, np.ndarray)}
    return made if all(value.size <= SMALL for value in made.values()) else {}


def _types(graph: Any) -> Iterator[tuple[str, ValueType | None]]:
    """(name, type) of every value; None where its shape is not known in full."""
    for tensor in graph.initializer:
        yield tensor.name, ValueType(tuple(tensor.dims), dtype_name(tensor.data_type))
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        whole = tensor.HasField("shape") and min(dims, default=0) >= 0
        yield value.name, ValueType(tuple(dims), dtype_name(tensor.elem_type)) if whole else None


def dtype_name(number: int) -> str:
    """The name of a type of elements as simdev writes it: ``float32``, ``float8_e4m3fn``."""
    import onnx

    types = onnx.TensorProto.DataType
    name = types.Name(number) if number in types.values() else ""
    return known_dtype(name.lower()) or "float32"
