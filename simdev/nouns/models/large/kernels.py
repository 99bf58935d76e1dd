"""The kernels of a layer's shard, one by one: products, casts, norms and passes over memory, as
loads of the roofline, each with a similar op of profiles (``Like``); and blocks of kernels, forward
and backward. ``work`` puts the blocks of whole layers together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any

from ...semantics.keys import Load, profile_key
from .precision import PRECISIONS
from .shard import Shard

# The dtype of the published models' training; master copies and states count in the update.
DTYPE = PRECISIONS[0]
FORWARD, BACKWARD = "fwd", "bwd"
Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class Like:
    """An op of a profile: operands of DTYPE, then others with their dtypes, and its outputs.

    ``moved`` are its bytes; a similar kernel takes time in proportion to its own bytes (0: the same
    time).
    """

    kind: str
    operands: Sequence[Shape]
    outputs: Sequence[Shape]
    phase: str = FORWARD
    attrs: Mapping[str, Any] | None = None
    moved: int = 0
    others: Sequence[tuple[Shape, str]] = ()

    def key(self) -> str:
        """The profile key, without a device."""
        operands = [*self.operands, *(shape for shape, _ in self.others)]
        dtypes = [DTYPE] * len(self.operands) + [dtype for _, dtype in self.others]
        attrs = self.attrs or {}
        return profile_key(self.kind, attrs, operands, dtypes, self.outputs, self.phase, "")


@dataclass(frozen=True, slots=True)
class Kernel(Load):
    """The work of a kernel, and the measured op that is similar to it (None: there is none).

    The kernel takes ``share`` of that op's time. ``attains`` is the share of the peak FLOP/s that
    it reaches (0: its class's). A kernel with ``launches`` computes nothing: it is the time for
    which the device waits for this number of launches of its host.
    """

    # Kernels are compared by their work, from which the similar op follows.
    op: Like | None = field(default=None, compare=False, repr=False)
    share: float = 1.0
    attains: float = 0.0
    launches: int = 0

    @property
    def like(self) -> str:
        """The kind of the similar op, "" where there is none."""
        return "" if self.op is None else self.op.kind

    @property
    def key(self) -> str:
        """The profile key, without a device, of the similar op; "" where there is none."""
        return "" if self.op is None else self.op.key()


Loads = tuple[Kernel, ...]


def kernel_of(
    name: str, op_class: str, read: int, written: int, flops: int = 0, like: Like | None = None,
    dtype: str = DTYPE, part: float = 1.0, attains: float = 0.0,
) -> Loads:  # fmt: skip
    """One kernel with these bytes and FLOPs; without FLOPs it is bound by memory. It takes ``part``
    of the time of the op ``like``, or a share by its bytes where ``like.moved`` is given.
    """
    if like is not None and like.moved:
        part = (read + written) / like.moved
    sizes = flops, read, written
    return (Kernel(name, op_class, dtype, *sizes, "", op=like, share=part, attains=attains),)


def pass_like(kind: str, shape: Shape, operands: int, phase: str = FORWARD) -> Like:
    """A pass over tensors of one shape that reads all operands and writes one."""
    return Like(kind, [shape] * operands, [shape], phase, moved=(operands + 1) * 2 * prod(shape))


@dataclass(frozen=True, slots=True)
class Block:
    """The loads of one layer and microbatch: forward, gradient of the input, gradient of the
    weights.

    ``again`` holds the loads that selective recomputation repeats before the backward.
    """

    forward: Loads
    backward: Loads
    weight: Loads = ()
    again: Loads = ()

    def __add__(self, other: Block) -> Block:
        return Block(*(getattr(self, part) + getattr(other, part) for part in _PARTS))

    def times(self, count: int) -> Block:
        """The block repeated ``count`` times."""
        return Block(*(getattr(self, part) * count for part in _PARTS))

    def repeated(self, is_again: bool) -> Block:
        """The block; where ``is_again``, its forward is also recomputed before the backward."""
        return replace(self, again=self.forward) if is_again else self


_PARTS = [field.name for field in fields(Block)]


def passes_of(s: Shard, name: str, count: int) -> Block:
    """The kernels of an operation over ``count`` numbers, from the software's own table."""

    def once(kind: str, way: tuple[int, int]) -> Loads:
        read, written = way
        return kernel_of(kind, "elementwise", read * count, written * count) if any(way) else ()

    ways = s.software.passes[name]
    return Block(once(name, ways.forward), once(f"{name} dx", ways.backward))


def gemm(
    name: str, read: int, written: int, flops: int, operands: Sequence[Shape], made: Shape,
    turned: str = "", phase: str = BACKWARD,
) -> Loads:  # fmt: skip
    """A product of matrices, or of stacks of them, with the similar measured op; ``turned`` is the
    operand that is read as transposed ("a", "b", or none).
    """
    kind = "matmul" if len(made) == 2 else "batch_matmul"
    attrs = {f"transpose_{turned}": True} if turned else None
    like = Like(kind, operands, [made], phase, attrs)
    return kernel_of(name, "gemm", read, written, flops, like)


def product_of(s: Shard, name: str, m: int, k: int, n: int) -> Block:
    """The product (m, k) x (k, n) and both gradients; the gradient of the weights is added to its
    sum.
    """
    flops, x, w, y, g = 2 * m * k * n, 2 * m * k, 2 * k * n, 2 * m * n, s.gradient_bytes * k * n
    left, right, made = [m, k], [n, k], [m, n]
    return Block(
        gemm(name, x + w, y, flops, [left, right], made, "b", FORWARD),
        gemm(f"{name} dx", y + w, x, flops, [made, right], left),
        gemm(f"{name} dw", x + y + g, g, flops, [made, left], right, "a"),
    )


def linears(s: Shard, name: str, m: int, k: int, widths: Sequence[int]) -> Block:
    """The products of one input with weights of these widths: one product for all, or separate
    products and a sum of the gradients of the input.
    """
    if not s.software.plain:
        return linear(s, name, m, k, sum(widths), "input")
    block = linear(s, name, m, k, widths[0], "input")
    for width in widths[1:]:
        block += linear(s, name, m, k, width, "input", False) + passes_of(s, "gradients", m * k)
    return block


def linear(
    s: Shard, name: str, m: int, k: int, n: int, joined: str = "", is_first: bool = True
) -> Block:
    """A product in the layer's precision. ``joined``: where the sequence is split, tp gathers the
    product's "input", or the gradient of its "output"; ``is_first``: no earlier product has the
    same input.

    In a narrow precision, the input and the gradient of the output are cast here, weights in the
    update.
    """
    if not s.is_narrow:
        return product_of(s, name, m, k, n)
    flops, g = 2 * m * k * n, s.gradient_bytes * k * n
    x, w, y = (s.size_of(count) for count in (m * k, k * n, m * n))

    def part(suffix: str, read: int, written: int) -> Loads:
        return kernel_of(f"{name}{suffix}", "gemm", read, written, flops, dtype=s.format.dtype)

    def cast(suffix: str, width: int, way: str) -> Loads:
        if joined == way and s.gathers_narrow(way == "output"):
            return _narrowed_rows(s, f"{name}{suffix} cast", width)
        return narrowed(s, f"{name}{suffix} cast", m * width)

    made = cast("", k, "input") if is_first else ()
    turned = kernel_of(f"{name} weights", "data_movement", w, w) * s.software.scales_apart
    return Block(
        made[:2] + part("", x + w, 2 * m * n),
        cast(" dy", n, "output") + turned + part(" dx", y + w, 2 * m * k),
        # Separate columns are made for the gradient of the weights.
        made[2:] + part(" dw", x + y + g, g),
    )


def narrowed(s: Shard, name: str, count: int) -> Loads:
    """The cast of a tensor of ``count`` numbers along rows and along columns in one pass (NVIDIA's
    Transformer Engine, ``cast_transpose``; ``quantize_mxfp8``; in 4 bits, with the rotation of the
    columns for the gradient of the weights, ``row_cast_col_hadamard_transform_cast_fusion``).

    In 4 bits the tensor also has a scale: a pass before the cast finds the largest of its elements,
    and of the rotated ones (``hadamard_transform_amax``).
    """
    apart = s.software.scales_apart
    amax = kernel_of(f"{name} amax", "elementwise", 2 * count, 0) if s.format.amax or apart else ()
    if apart:
        return amax + kernel_of(name, "elementwise", 2 * count, s.size_of(count)) * 2
    return amax + kernel_of(name, "elementwise", 2 * count, 2 * s.size_of(count))


def _narrowed_rows(s: Shard, name: str, width: int) -> Loads:
    """The cast of a split sequence before it is gathered. Columns with their own scales are cast in
    the same pass, others from the gathered tensor.
    """
    count, size = s.rows * width, s.size_of(s.tokens * width)
    if s.format.is_blocked:
        return narrowed(s, name, count)
    rows = kernel_of(name, "elementwise", 2 * count, s.size_of(count))
    return narrowed(s, name, count)[:1] + rows + kernel_of(name, "elementwise", size, size)


def norm(s: Shard, count: int = 0, width: int = 0) -> Block:
    """A norm of the tokens, or of ``count`` rows of another width.

    The measured backward includes the gradients of scale and shift, which are one more pass over
    the input and its gradient. Norms of heads have no similar measured op: a thread block of
    PyTorch's norm takes one row, however narrow (rows of 120 reach 0.13 of an H100's bandwidth,
    rows of 2,048 0.72), a block of Transformer Engine's several rows (recalled).
    """
    count, width = count or s.rows, width or s.model.hidden
    if "norm" in s.software.passes:
        return passes_of(s, "norm", count * width)
    x, rows, scale, row = 2 * count * width, [count, width], [width], [count, 1]
    kind, parts = ("layer_norm", 2) if s.model.norm == "layer" else ("fused_rms_norm", 1)
    attrs, weights = {"normalized_shape": scale}, [scale] * parts
    once = Like(kind, [rows, *weights], [rows, *[row] * parts], FORWARD, attrs, 2 * x)
    others = [(row, "float32")] * parts + [(scale, DTYPE)] * parts
    made = [rows, *weights]
    back = Like(f"{kind}_backward", [rows, rows], made, BACKWARD, attrs, 5 * x, others)
    ahead, behind = (once, back) if width > s.model.head_width else (None, None)
    return Block(
        kernel_of("norm", "norm", x, x, like=ahead),
        kernel_of("norm dx", "norm", 2 * x, x, like=behind),
        kernel_of("norm dw", "norm", 2 * x, 0, like=behind),
    )


def residual(s: Shard) -> Block:
    """Bias, dropout and addition; the gradient is dropped out and added to the skip's."""
    x, masked = s.rows_bytes, s.model.dropout
    if "residual" in s.software.passes and not masked:
        return passes_of(s, "residual", s.rows * s.model.hidden)
    mask, shape = x // 2 if masked else 0, [s.rows, s.model.hidden]
    add, back = pass_like("add", shape, 2), pass_like("add", shape, 2, BACKWARD)
    drop = pass_like("mul", shape, 2, BACKWARD)
    dropout = kernel_of("dropout dx", "elementwise", x + mask, x, like=drop) * masked
    backward = kernel_of("residual dx", "elementwise", 2 * x, x, like=back) + dropout
    return Block(kernel_of("residual", "elementwise", 2 * x, x + mask, like=add), backward)
