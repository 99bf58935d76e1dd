"""The verbs that models are written with, each with the rule of its gradient beside it.

Sums and products of values are written with + and *. The parameters of a layer are at the scope
``name``. Statistics of normalisations are float32 whatever the dtype of the tensor, as in PyTorch's
kernels.

Attention takes heads in the layout of the projections, (b, s, heads, d). Fused, it is one op
(FlashAttention) that keeps one number for each row of scores; otherwise it is two products with a
softmax between them, and the scores are kept, as in papers before FlashAttention.

The builders of ``convolutional``, ``recurrent`` and ``transformers`` call the verbs. Kinds and
their attributes are described in ``simdev/nouns/semantics/kinds``. A change of recorded attributes
changes the keys by which the ops' rows are looked up in profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...ground.errors import InputError
from .backward import Gradients, OutputGradients, gradient, gradient_of_all, gradients_of
from .builder import Call, Shape, StepBuilder, Value, record

# Inputs of a step, and the loss of its scores.


def images(step: StepBuilder, batch: int, size: int, channels: int = 3) -> Value:
    """A batch of images (n, channels, size, size)."""
    return step.input("images", batch, channels, size, size)


def tokens(step: StepBuilder, name: str, batch: int, length: int) -> Value:
    """A batch of token numbers (n, t)."""
    return step.input(name, batch, length, dtype="int64")


def prediction_loss(scores: Value) -> Value:
    """The cross entropy of scores (.., classes) with the batch's labels."""
    return cross_entropy(scores, scores.step.input("labels", *scores.shape[:-1], dtype="int64"))


# Pointwise.


def relu(x: Value) -> Value:
    """The positive part."""
    return record("relu", x)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return record("tanh", x)


def sigmoid(x: Value) -> Value:
    """The logistic function."""
    return record("sigmoid", x)


def gelu(x: Value, approximate: bool = False) -> Value:
    """Gaussian error linear unit; ``approximate``: by a tanh, as in GPT-2."""
    attrs: dict[str, Any] = {"approximate": "tanh"} if approximate else {}
    return record("gelu", x, **attrs)


def silu(x: Value) -> Value:
    """The sigmoid times its argument."""
    return record("silu", x)


def scale(x: Value) -> Value:
    """The product with a constant."""
    return record("mul", x)


def dropout(x: Value, on: bool = True) -> Value:
    """Some elements set to zero by a mask that the backward needs; ``on`` False returns x."""
    if not on:
        return x
    return x.step.record("dropout", [x], [x.shape_dtype, (x.shape, "bool")], train=True)[0]


@gradient("relu", "sigmoid", "tanh")
def _by_output(call: Call, dy: Value) -> Gradients:
    yield call.inputs[0], record(f"{call.kind}_backward", dy, call.outputs[0])


@gradient("gelu", "silu")
def _by_input(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record(f"{call.kind}_backward", dy, x, **call.attrs)


@gradient("dropout")
def _dropout(call: Call, dy: Value) -> Gradients:
    yield call.inputs[0], record("dropout_backward", dy, call.outputs[1])


@gradient("add")
def _add(call: Call, dy: Value) -> Gradients:
    for x in call.inputs:
        if x.trained:
            yield x, _summed(dy, x.shape)


@gradient("mul")
def _mul(call: Call, dy: Value) -> Gradients:
    if len(call.inputs) == 1:
        yield call.inputs[0], scale(dy)
        return
    for x, other in zip(call.inputs, call.inputs[::-1], strict=True):
        if x.trained:
            yield x, _summed(dy * other, x.shape)


def _summed(dy: Value, shape: Shape) -> Value:
    """A gradient summed over the dimensions that were broadcast from an operand of this shape."""
    # Broadcasting aligns shapes at their ends.
    aligned = (1,) * (len(dy.shape) - len(shape)) + shape
    dims = [i for i, extent in enumerate(dy.shape) if aligned[i] != extent]
    return (total(dy, dims) if dims else dy).view(*shape)


def total(x: Value, dims: list[int]) -> Value:
    """The sum over some dimensions, which remain with extent 1."""
    kept = tuple(1 if i in dims else extent for i, extent in enumerate(x.shape))
    return record("sum", x, shape=kept, dim=dims, keepdim=True)


# Rows and channels: normalisations, softmax, the loss of a classifier.


def batch_norm(x: Value, name: str = "bn") -> Value:
    """(n, c, h, w) normalised by channel, over batch and positions."""
    channels = x.shape[1]
    with x.step.scope(name):
        trained = [x.step.parameter(part, channels) for part in ("weight", "bias")]
        running = [x.step.buffer(part, channels) for part in ("running_mean", "running_var")]
        statistics = [((channels,), "float32")] * 2
        outputs = [x.shape_dtype, *statistics]
        return x.step.record("batch_norm", [x, *trained, *running], outputs, training=True)[0]


def layer_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) normalised by row."""
    return _row_norm("layer_norm", x, name, ("weight", "bias"))


def rms_norm(x: Value, name: str = "norm") -> Value:
    """(.., width) divided by the root mean square of each row."""
    return _row_norm("rms_norm", x, name, ("weight",))


def _row_norm(kind: str, x: Value, name: str, parts: tuple[str, ...]) -> Value:
    """A norm of rows with one statistic a row for each parameter: mean and deviation, or the root
    mean square.
    """
    width = x.shape[-1]
    with x.step.scope(name):
        trained = [x.step.parameter(part, width) for part in parts]
        outputs = [x.shape_dtype, *[((*x.shape[:-1], 1), "float32")] * len(parts)]
        return x.step.record(kind, [x, *trained], outputs, normalized_shape=[width])[0]


def softmax(x: Value, dim: int) -> Value:
    """Weights that sum to 1 along a dimension."""
    return record("softmax", x, dim=dim)


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean over all rows of minus the log-probability of the label.

    Logits are (.., classes), labels (..).
    """
    rows = prod(logits.shape[:-1])
    with logits.step.scope("loss"):
        chances = record("log_softmax", logits.view(rows, logits.shape[-1]), dim=1)
        # The loss, and the sum of the labels' weights by which its backward divides.
        outputs = [((), logits.dtype)] * 2
        return logits.step.record("nll_loss", [chances, labels.view(rows)], outputs, reduction=1)[0]


@gradient("batch_norm")
def _batch_norm(call: Call, dy: Value) -> Gradients:
    (x, weight, bias, *running), (_, *statistics) = call.inputs, call.outputs
    operands = dy, x, weight, *running, *statistics
    return gradients_of((x, weight, bias), "batch_norm_backward", operands, train=True)


@gradient("layer_norm", "rms_norm")
def _row_norm_backward(call: Call, dy: Value) -> Gradients:
    (x, *trained), (_, *statistics) = call.inputs, call.outputs
    operands = dy, x, *statistics, *trained
    return gradients_of(call.inputs, f"{call.kind}_backward", operands, **call.attrs)


@gradient("softmax", "log_softmax")
def _softmax(call: Call, dy: Value) -> Gradients:
    (x,), (y,) = call.inputs, call.outputs
    yield x, record(f"{call.kind}_backward", dy, y, **call.attrs, input_dtype=x.dtype)


@gradient("nll_loss")
def _nll_loss(call: Call, dy: Value) -> Gradients:
    (chances, labels), (_, weight) = call.inputs, call.outputs
    operands = dy, chances, labels, weight
    yield (chances, record("nll_loss_backward", *operands, shape=chances.shape, **call.attrs))


# Products with weights and with each other; attention; rows looked up in a table.


def linear(x: Value, features: int, name: str, bias: bool = True) -> Value:
    """(.., k) to (.., features) by a new weight; ``name`` is its scope."""
    with x.step.scope(name):
        weight = x.step.parameter("weight", features, x.shape[-1])
        return linear_by(x, weight, x.step.parameter("bias", features) if bias else None)


def linear_by(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """(.., k) to (.., n) by a weight (n, k) and perhaps a bias (n); without a bias a ``matmul``."""
    *lead, inner = x.shape
    rows, features = prod(lead), weight.shape[0]
    kind, biases = ("matmul", ()) if bias is None else ("linear", (bias,))
    operands = x.view(rows, inner), weight, *biases
    return record(kind, *operands, shape=(rows, features), transpose_b=True).view(*lead, features)


def einsum(equation: str, a: Value, b: Value) -> Value:
    """The product of two tensors in einsum notation, like "bshd,bthd->bhst"."""
    first, second, product = _letters(equation)
    sizes = dict(zip(first + second, a.shape + b.shape, strict=True))
    return record("einsum", a, b, shape=tuple(map(sizes.__getitem__, product)), equation=equation)


def _letters(equation: str) -> list[str]:
    return equation.replace("->", ",").split(",")


def split_heads(x: Value, count: int) -> Value:
    """(b, s, width) as (b, s, count, width / count). Raises InputError where that is no integer."""
    *lead, width = x.shape
    if width % count:
        raise InputError(f"heads: {count} do not divide the width {width}")
    return x.view(*lead, count, width // count)


def flat(x: Value) -> Value:
    """(n, ..) seen as (n, product of the rest)."""
    return x.view(x.shape[0], prod(x.shape[1:]))


def attend(
    q: Value, k: Value, v: Value, causal: bool = False, fused: bool = True, drop: bool = False
) -> Value:
    """Queries (b, s, h, d) over keys and values (b, t, g, d), g a divisor of h, to (b, s, h, d).

    ``drop``: dropout of the weights (a fused kernel keeps only its seed). Without ``fused``,
    scaling and the causal mask are part of the softmax, as in its fused kernels (Megatron-LM), and
    save no work.
    """
    (batch, length, count, size), groups = q.shape, k.shape[2]
    if fused:
        outputs = [q.shape_dtype, ((batch, count, length), "float32")]
        attrs = {"is_causal": True} if causal else {}
        return q.step.record("flash_attention", (q, k, v), outputs, **attrs)[0]
    scores = einsum("bsgjd,btgd->bgjst", q.view(batch, length, groups, count // groups, size), k)
    weights = dropout(softmax(scores, -1), drop)
    return einsum("bgjst,btgd->bsgjd", weights, v).view(*q.shape)


def rotary(x: Value) -> Value:
    """Each head rotated by its position (Su et al., "RoFormer", 2021)."""
    return record("rotary_embedding", x)


def embedding(tokens: Value, count: int, width: int, name: str = "embedding") -> Value:
    """Token numbers (..) to rows (.., width) of a new table; ``name`` is its scope."""
    return embedding_by(tokens, table(tokens, count, width, name), name)


def table(tokens: Value, count: int, width: int, name: str = "embedding") -> Value:
    """A table (count, width) for ``embedding_by``, where several ops read it."""
    with tokens.step.scope(name):
        return tokens.step.parameter("weight", count, width)


def embedding_by(tokens: Value, weight: Value, name: str = "embedding") -> Value:
    """Token numbers (..) to rows (.., width) of the table."""
    with tokens.step.scope(name):
        return record("embedding", weight, tokens, shape=(*tokens.shape, weight.shape[1]))


@gradient("linear", "matmul")
def _linear(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield x, record("matmul", dy, weight, shape=x.shape)
    yield weight, record("matmul", dy, x, shape=weight.shape, transpose_a=True)
    # A product cannot sum, so the gradient of the bias is a separate op.
    for b in bias:
        yield b, total(dy, [0]).view(*b.shape)


@gradient("einsum")
def _einsum(call: Call, dy: Value) -> Gradients:
    a, b = call.inputs
    first, second, product = _letters(call.attrs["equation"])
    yield a, einsum(f"{product},{second}->{first}", dy, b)
    yield b, einsum(f"{product},{first}->{second}", dy, a)


@gradient("flash_attention")
def _attention(call: Call, dy: Value) -> Gradients:
    operands = dy, *call.inputs, *call.outputs
    return gradients_of(call.inputs, "flash_attention_backward", operands, **call.attrs)


@gradient("rotary_embedding")
def _rotary(call: Call, dy: Value) -> Gradients:
    # The transpose of a rotation is a rotation, so the backward costs the same.
    yield call.inputs[0], rotary(dy)


@gradient("embedding")
def _embedding(call: Call, dy: Value) -> Gradients:
    weight, tokens = call.inputs
    # Dense, as PyTorch's default: rows of unused tokens are zeros, which are written, too.
    attrs = {"num_weights": weight.shape[0], "padding_idx": -1}
    yield weight, record("embedding_backward", dy, tokens, shape=weight.shape, **attrs)


# Joining, splitting, choosing elements; long short-term memory, one op for each step of time.


def concat(parts: Sequence[Value], dim: int) -> Value:
    """Tensors side by side along a dimension."""
    whole = sum(part.shape[dim] for part in parts)
    return record("concat", *parts, shape=_with(parts[0].shape, dim, whole), dim=dim)


def split(x: Value, parts: int, dim: int) -> tuple[Value, ...]:
    """``parts`` equal parts along a dimension."""
    return _split(x, [x.shape[dim] // parts] * parts, dim)


def select(x: Value, dim: int, index: int) -> Value:
    """One slice along a dimension, which is dropped."""
    return record("select", x, shape=x.shape[:dim] + x.shape[dim + 1 :], dim=dim, index=index)


def gather(x: Value, index: Value, dim: int) -> Value:
    """Elements looked up along a dimension by an index of the result's shape."""
    return record("gather", x, index, shape=index.shape, dim=dim)


def zeros(x: Value, *shape: int) -> Value:
    """A state before the first step: zeros of the dtype of x."""
    return x.step.record("zeros", (), [(shape, x.dtype)], size=list(shape))[0]


def _split(x: Value, extents: Sequence[int], dim: int) -> tuple[Value, ...]:
    outputs = [(_with(x.shape, dim, extent), x.dtype) for extent in extents]
    return x.step.record("split", [x], outputs, dim=dim)


def _with(shape: Shape, dim: int, extent: int) -> Shape:
    return (*shape[:dim], extent, *shape[dim + 1 :])


@gradient("concat")
def _concat(call: Call, dy: Value) -> Gradients:
    dim = call.attrs["dim"]
    parts = _split(dy, [part.shape[dim] for part in call.inputs], dim)
    return zip(call.inputs, parts, strict=True)


@gradient_of_all("split")
def _split_backward(call: Call, outputs: OutputGradients) -> Gradients:
    yield call.inputs[0], concat(_filled(outputs, call.outputs), call.attrs["dim"])


def _filled(gradients: OutputGradients, outputs: Sequence[Value]) -> list[Value]:
    """The gradients of these outputs, zeros for outputs that nothing reads."""
    # At least one gradient exists, or the rule would not be called.
    like = next(dy for dy in gradients if dy is not None)
    return [
        record("zeros_like", like, shape=output.shape) if dy is None else dy
        for dy, output in zip(gradients, outputs, strict=True)
    ]


@gradient("select", "gather")
def _chosen(call: Call, dy: Value) -> Gradients:
    x, *index = call.inputs
    sizes = {} if index else {"input_sizes": list(x.shape)}
    operands = dy, *index
    yield (x, record(f"{call.kind}_backward", *operands, shape=x.shape, **call.attrs, **sizes))


State = tuple[Value, Value]
"""Output and memory of a cell, each (n, hidden)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The weights of an LSTM layer, shared by all its steps of time.

    They are (4, hidden, features), (4, hidden, hidden) and (4, hidden), for four gates. ``path`` is
    the scope of the layer; step t runs at path@t.
    """

    path: str
    from_input: Value
    from_state: Value
    bias: Value


def cell(step: StepBuilder, name: str, features: int, hidden: int) -> Cell:
    """A cell with new weights at the scope ``name``."""
    with step.scope(name):
        return Cell(
            name,
            step.parameter("from_input", 4, hidden, features),
            step.parameter("from_state", 4, hidden, hidden),
            step.parameter("bias", 4, hidden),
        )


def lstm_cell(of: Cell, x: Value, state: State | None, time: int) -> State:
    """One step of time: x (n, features) and the state before (None: zeros) to the next state."""
    batch, hidden = x.shape[0], of.bias.shape[1]
    with x.step.scope(f"{of.path}@{time}"):
        if state is None:
            start = zeros(x, batch, hidden)
            state = start, start
        # The gates are kept for the backward, as cuDNN does.
        outputs = [((batch, *extents), x.dtype) for extents in ((hidden,), (hidden,), (4, hidden))]
        operands = x, *state, of.from_input, of.from_state, of.bias
        h, c, _ = x.step.record("lstm_cell", operands, outputs)
        return h, c


def lstm(
    of: Cell, steps: Iterable[tuple[int, Value]], state: State | None = None
) -> tuple[dict[int, Value], State | None]:
    """Outputs of a layer by time, over inputs (time, x) in running order, and its last state."""
    outputs: dict[int, Value] = {}
    for time, x in steps:
        state = lstm_cell(of, x, state, time)
        outputs[time] = state[0]
    return outputs, state


@gradient_of_all("lstm_cell")
def _lstm_cell(call: Call, outputs: OutputGradients) -> Gradients:
    x, h, c, from_input, from_state, bias = call.inputs
    _, memory, gates = call.outputs
    dh, dc = _filled(outputs[:2], call.outputs[:2])
    operands = dh, dc, c, memory, gates, from_input, from_state
    *states, (_, dgates) = gradients_of((x, h, c, gates), "lstm_cell_backward_input", operands)
    yield from states
    weights = from_input, from_state, bias
    yield from gradients_of(weights, "lstm_cell_backward_weight", (dgates, x, h))


# Convolution and pooling of images (n, c, h, w).

Size = int | tuple[int, int]
"""One number for both dimensions, or (height, width)."""


def conv2d(
    x: Value,
    channels: int,
    kernel: Size,
    stride: int = 1,
    padding: Size = 0,
    groups: int = 1,
    bias: bool = False,
    name: str = "conv",
) -> Value:
    """A convolution to ``channels`` channels by a new weight; ``name`` is its scope."""
    with x.step.scope(name):
        windows, edges = _pair(kernel), _pair(padding)
        weight = x.step.parameter("weight", channels, x.shape[1] // groups, *windows)
        operands = [x, weight, *([x.step.parameter("bias", channels)] if bias else [])]
        # Attributes and their order are as in captured graphs, since keys of profiles contain them.
        attrs = {"stride": [stride, stride], "padding": edges, "dilation": [1, 1]}
        return record(
            "conv2d",
            *operands,
            shape=_windows(x, channels, windows, stride, edges),
            **attrs,
            **({"groups": groups} if groups > 1 else {}),
        )


def max_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The maximum of every window; its place is kept for the backward."""
    shape, attrs = _pool(x, kernel, stride, padding)
    return x.step.record("max_pool2d", [x], [(shape, x.dtype), (shape, "int64")], **attrs)[0]


def avg_pool2d(x: Value, kernel: int, stride: int, padding: int = 0) -> Value:
    """The mean of every window."""
    shape, attrs = _pool(x, kernel, stride, padding)
    return record("avg_pool2d", x, shape=shape, **attrs)


def global_avg_pool(x: Value) -> Value:
    """(n, c, h, w) to (n, c, 1, 1)."""
    return record("mean", x, shape=(*x.shape[:2], 1, 1), dim=[-1, -2], keepdim=True)


def pad(x: Value, left: int, right: int, top: int, bottom: int) -> Value:
    """Zeros around each image; negative numbers cut pixels off."""
    n, c, h, w = x.shape
    shape = n, c, h + top + bottom, w + left + right
    return record("constant_pad_nd", x, shape=shape, pad=[left, right, top, bottom])


def _pair(size: Size) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _pool(x: Value, kernel: int, stride: int, padding: int) -> tuple[Shape, dict[str, list[int]]]:
    """The shape and attributes of a pooling; captured graphs leave out a padding of 0."""
    attrs = {"kernel_size": _pair(kernel), "stride": _pair(stride)}
    attrs |= {"padding": _pair(padding)} if padding else {}
    return _windows(x, x.shape[1], _pair(kernel), stride, _pair(padding)), attrs


def _windows(
    x: Value, channels: int, kernel: Sequence[int], stride: int, padding: Sequence[int]
) -> Shape:
    """(n, channels, windows down, windows across). Raises InputError where no window fits."""
    spatial = zip(x.shape[2:], kernel, padding, strict=True)
    counts = [(extent + 2 * edge - size) // stride + 1 for extent, size, edge in spatial]
    if min(counts) < 1:
        where = x.step.path
        raise InputError(
            f'size: too small: at "{where}" no window of {list(kernel)} fits {list(x.shape[2:])}'
        )
    return x.shape[0], channels, *counts


@gradient("conv2d")
def _conv2d(call: Call, dy: Value) -> Gradients:
    x, weight, *bias = call.inputs
    if x.trained:
        yield (x, record("conv2d_backward_input", dy, weight, shape=x.shape, **call.attrs))
    yield from gradients_of([weight, *bias], "conv2d_backward_weight", [dy, x], **call.attrs)


@gradient("max_pool2d", "avg_pool2d")
def _pool2d(call: Call, dy: Value) -> Gradients:
    (x,), (_, *place) = call.inputs, call.outputs
    # Unlike the forward, the backward ops of PyTorch write their defaults out.
    defaults = {"dilation": [1, 1]} if place else {"count_include_pad": True}
    attrs = {"padding": [0, 0], **call.attrs, **defaults}
    yield x, record(f"{call.kind}_backward", dy, x, *place, shape=x.shape, **attrs)


@gradient("mean")
def _mean(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, record("div", dy, shape=x.shape, other=x.shape[-1] * x.shape[-2])


@gradient("constant_pad_nd")
def _pad(call: Call, dy: Value) -> Gradients:
    (x,) = call.inputs
    yield x, pad(dy, *(-extent for extent in call.attrs["pad"]))
