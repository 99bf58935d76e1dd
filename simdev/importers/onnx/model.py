"""An ONNX model with all its shapes: symbolic dimensions given numbers, what only computes shapes
computed.

Shapes come from ``onnx.shape_inference``. Exported models compute the shapes of their reshapes
while they run (Shape, Gather, Concat, ..): such nodes are evaluated here by ``onnx.reference`` and
are no ops of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...semantics.dtype import known
from ..source import Source, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

CONTROL = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "Optional", "SequenceConstruct", "SequenceAt"}
)
SMALL = 2**16  # elements of a constant that is worth knowing: those of shapes are few
ROUNDS = 8
NEVER_LARGER = frozenset(
    {
        "Add", "Cast", "Ceil", "Concat", "Constant", "Div", "Equal", "Floor", "Gather", "Identity",
        "Max", "Min", "Mod",
        "Mul", "Neg", "Not", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt",
        "Squeeze", "Sub",
        "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Operators whose output is bounded by their small inputs: they may be evaluated before their
shapes are known.
"""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a value looks like."""

    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Model:
    """The nodes of a model that do something, in order, with the looks of all values.

    ``known`` holds the small values that no input changes, ``weights`` are the initializers,
    ``inputs`` those of the batch. Each node is onnx's own message.
    """

    name: str
    nodes: tuple[Any, ...]
    specs: Mapping[str, Spec]
    inputs: tuple[str, ...]
    weights: frozenset[str]
    known: Mapping[str, Array] = field(repr=False)
    opset: int = 0


def is_model(source: Source) -> bool:
    """Whether a file that is no text begins as a model: its version first, or its producer."""
    head = source.head
    return (
        head[:1] == b"\x08"
        and 1 <= (head[1] if len(head) > 1 else 0) <= 20
        and head[2:3] in b"\x12\x1a\x22\x2a\x3a\x42"
    )


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

    Raises InputError with every problem: dimensions without a number, control flow, shapes that
    cannot be told.
    """
    if not message.graph.node:
        raise InputError("not an ONNX model: its graph has no nodes")
    graph = message.graph
    if not all(isinstance(text, str) for text in _texts(graph)):
        raise InputError("damaged: a name in it is no text")
    problems = list(_control_flow(graph))
    if problems:
        raise InputError(problems)
    if message.functions:
        from onnx.inliner import inline_local_functions

        message = inline_local_functions(message)
        graph = message.graph
    weights = frozenset(one.name for one in graph.initializer)
    inputs = [one for one in graph.input if one.name not in weights]
    _set_dims(inputs, dims or {})
    del graph.value_info[:]  # what was said of other sizes
    for one in graph.output:
        one.ClearField("type")
    known = {one.name: array for one in graph.initializer if (array := _small(one)) is not None}
    message = _inferred(message, known)
    specs = {name: spec for name, spec in _specs(message.graph) if spec is not None}
    nodes = tuple(
        node
        for node in message.graph.node
        if not all(name in known for name in node.output if name)
    )
    missing = [
        f"node {_title(node)}: the shape of its output {name} cannot be told"
        for node in nodes
        for name in node.output
        if name and name not in specs and _is_read(name, message.graph)
    ]
    if missing:
        raise InputError(missing)
    opset = next((one.version for one in message.opset_import if one.domain in ("", "ai.onnx")), 0)
    return Model(
        graph.name or "onnx", nodes, specs, tuple(one.name for one in inputs), weights, known, opset
    )


def _title(node: Any) -> str:
    return f"{node.name or node.output[0]} ({node.op_type})"


def _is_read(name: str, graph: Any) -> bool:
    return any(name in node.input for node in graph.node) or any(
        name == one.name for one in graph.output
    )


def _texts(graph: Any) -> Iterator[object]:
    """Everything in a graph that must be text: protobuf hands on bytes where it is not."""
    yield graph.name
    for node in graph.node:
        yield from (node.op_type, node.name, node.domain, *node.input, *node.output)
        yield from (one.name for one in node.attribute)
    for one in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        yield one.name
    for one in graph.input:
        yield from (dim.dim_param for dim in one.type.tensor_type.shape.dim)


def _control_flow(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if node.op_type in CONTROL and node.domain in ("", "ai.onnx"):
            yield f"node {_title(node)}: what runs depends on values, so the model is no one graph"


def _set_dims(inputs: list[Any], dims: Mapping[str, int]) -> None:
    """Gives every symbolic dimension of the inputs its number.

    Raises InputError where one is left, or not there.
    """
    problems, unused = [], set(dims)
    wrong = [
        f"--dim: {name}: must be at least 1, got {value}"
        for name, value in dims.items()
        if value < 1
    ]
    if wrong:
        raise InputError(wrong)
    for one in inputs:
        for axis, dim in enumerate(one.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name = dim.dim_param or f"{one.name}.{axis}"
            if name in dims:
                unused.discard(name)
                dim.dim_value = dims[name]
            else:
                problems.append(
                    f"input {one.name}: dimension {axis} has no number: tell it by --dim {name}=N"
                )
    problems += [f"--dim: {name}: no dimension of an input is called so" for name in sorted(unused)]
    if problems:
        raise InputError(problems)


def _small(tensor: Any) -> Array | None:
    """The values of a small initializer; None of a large one, or where they lie elsewhere."""
    import onnx

    count = 1
    for extent in tensor.dims:
        count *= extent
    if count > SMALL or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (TypeError, ValueError, KeyError):
        return None  # a type of elements, or bytes, that onnx itself cannot read


def _inferred(message: Any, known: dict[str, Array]) -> Any:
    """The model with its shapes; fills ``known`` with what no input changes. Raises InputError."""
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
        before = len(known)
        _evaluate(message.graph, known)
        if len(known) == before:
            return message
        have = {one.name for one in message.graph.initializer}
        made = {name for node in message.graph.node for name in node.output}
        # A value that is known lets the inference see through the Reshape that reads it.
        new = [name for name in known if name not in have and name in made]
        left = [node for node in message.graph.node if not set(node.output) & set(new)]
        message.graph.initializer.extend(
            onnx.numpy_helper.from_array(known[name], name) for name in new
        )
        del message.graph.node[:]
        message.graph.node.extend(left)
    return message


def _evaluate(graph: Any, known: dict[str, Array]) -> None:
    """Adds to ``known`` the outputs of nodes whose inputs are known, and of those that only ask for
    a shape.
    """
    import numpy as np

    specs = dict(_specs(graph))
    for node in graph.node:
        if all(name in known for name in node.output if name):
            continue
        spec = specs.get(node.input[0]) if node.input else None
        if node.op_type == "Shape" and spec is not None:
            told = {one.name: one.i for one in node.attribute}
            shape = np.array(spec.shape, np.int64)
            known[node.output[0]] = shape[told.get("start", 0) : told.get("end", len(shape))]
        elif node.op_type == "Size" and spec is not None:
            known[node.output[0]] = np.array(int(np.prod(spec.shape, dtype=np.int64)))
        elif node.op_type == "Identity" and spec is not None and "float" in spec.dtype:
            continue  # a weight under a second name is still the one weight
        elif all(name in known for name in node.input if name) and _is_small(node, specs):
            known |= _run(node, known)


def _is_small(node: Any, specs: Mapping[str, Spec | None]) -> bool:
    if node.op_type.startswith(("Random", "Bernoulli", "Multinomial")):
        return False
    for name in filter(None, node.output):
        spec = specs.get(name)
        if spec is None and node.op_type not in NEVER_LARGER:
            return False
        count = 1
        for extent in spec.shape if spec else ():
            count *= extent
        if count > SMALL:
            return False
    return True


def _run(node: Any, known: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one node by onnx's reference implementation; nothing where it has none."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    feeds = {name: known[name] for name in node.input if name}
    try:
        found = ReferenceEvaluator(node).run(None, feeds)
    except Exception:
        # The reference runs what a foreign model says: whatever goes wrong, the node stays an op of
        # the step.
        return {}
    made = {
        name: one
        for name, one in zip(node.output, found, strict=False)
        if name and isinstance(one, np.ndarray)
    }
    return made if all(one.size <= SMALL for one in made.values()) else {}


def _specs(graph: Any) -> Iterator[tuple[str, Spec | None]]:
    """(name, looks) of every value; None where its shape is not known in full."""
    for tensor in graph.initializer:
        yield tensor.name, Spec(tuple(tensor.dims), dtype_name(tensor.data_type))
    for one in (*graph.input, *graph.value_info, *graph.output):
        tensor = one.type.tensor_type
        dims = tensor.shape.dim
        whole = tensor.HasField("shape") and all(
            dim.HasField("dim_value") and dim.dim_value >= 0 for dim in dims
        )
        yield (
            one.name,
            Spec(tuple(dim.dim_value for dim in dims), dtype_name(tensor.elem_type))
            if whole
            else None,
        )


def dtype_name(number: int) -> str:
    """The name of a type of elements as simdev writes it: ``float32``, ``float8_e4m3fn``."""
    import onnx

    name = (
        onnx.TensorProto.DataType.Name(number).lower()
        if number in onnx.TensorProto.DataType.values()
        else "float"
    )
    return known(name) or "float32"
