"""The kernels of large models, and the measured ops of profiles that they are like.

A product takes as long as the same product: the addition of a gradient to its sum hides behind its
arithmetic. A fused pass over memory takes as long as the plain op that is like it, by the bytes
that both move. Measured attention is causal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...semantics.keys import Load, profile_key
from .shard import Shard
from .transformer import PRECISIONS

# The training that these models are published with; masters and states count in the update.
DTYPE, NARROW = PRECISIONS
FORWARD, BACKWARD = "fwd", "bwd"
Shape = Sequence[int]


@dataclass(frozen=True, slots=True)
class Like:
    """An op of a profile: operands of DTYPE, then others with their dtypes, and its outputs.

    ``moved`` are its bytes, by which a kernel like it takes longer or shorter (0: it takes as
    long).
    """

    kind: str
    operands: Sequence[Shape]
    outputs: Sequence[Shape]
    phase: str = FORWARD
    attrs: Mapping[str, Any] | None = None
    moved: int = 0
    others: Sequence[tuple[Shape, str]] = ()

    def key(self) -> str:
        """Its profile key, of no device."""
        operands = [*self.operands, *(shape for shape, _ in self.others)]
        dtypes = [DTYPE] * len(self.operands) + [dtype for _, dtype in self.others]
        attrs = self.attrs or {}
        return profile_key(self.kind, attrs, operands, dtypes, self.outputs, self.phase, "")


@dataclass(frozen=True, slots=True)
class Kernel(Load):
    """The work of a kernel, and the measured op that it is like (None: there is none).

    It takes ``share`` of that op's time.
    """

    # What it is like follows from what it is: kernels are compared by their work.
    op: Like | None = field(default=None, compare=False, repr=False)
    share: float = 1.0

    @property
    def like(self) -> str:
        """The kind of the op that it is like, "" where there is none."""
        return "" if self.op is None else self.op.kind

    @property
    def key(self) -> str:
        """The profile key, of no device, of the op that it is like; "" where there is none."""
        return "" if self.op is None else self.op.key()


Loads = tuple[Kernel, ...]


def kernel(
    name: str, op_class: str, read: int, written: int, flops: int = 0, like: Like | None = None,
    dtype: str = DTYPE, part: float = 1.0,
) -> Kernel:  # fmt: skip
    """Work in bytes and FLOPs; without FLOPs it is bound by memory. ``part`` of the op that it is
    like.
    """
    if like is None:
        return Kernel(name, op_class, dtype, flops, read, written, "")
    share = (read + written) / like.moved if like.moved else part
    return Kernel(name, op_class, DTYPE, flops, read, written, "", op=like, share=share)


def products(m: int, k: int, n: int) -> tuple[Like, Like, Like]:
    """(m, k) x (k, n), the gradient of its input and that of its weights."""
    return (
        Like("matmul", [[m, k], [n, k]], [[m, n]], attrs={"transpose_b": True}),
        Like("matmul", [[m, n], [n, k]], [[m, k]], BACKWARD),
        Like("matmul", [[m, n], [m, k]], [[n, k]], BACKWARD, {"transpose_a": True}),
    )


def norms(s: Shard, count_of_rows: int, width: int) -> tuple[Like, Like]:
    """A norm and its backward, which is one op with the gradients of scale and shift."""
    rows, scale, row = [count_of_rows, width], [width], [count_of_rows, 1]
    is_layer = s.model.norm == "layer"
    count = 2 if is_layer else 1
    kind = "layer_norm" if is_layer else "fused_rms_norm"
    attrs, x = {"normalized_shape": scale}, 2 * count_of_rows * width
    forward = Like(kind, [rows, *[scale] * count], [rows, *[row] * count], FORWARD, attrs, 2 * x)
    others = [(row, "float32")] * count + [(scale, DTYPE)] * count
    outputs = [rows, *[scale] * count]
    back = Like(f"{kind}_backward", [rows, rows], outputs, BACKWARD, attrs, 5 * x, others)
    return forward, back


def plain(kind: str, shape: Shape, operands: int, phase: str = FORWARD) -> Like:
    """A pass over tensors of one shape: it reads them all and writes one."""
    size = 2
    for extent in shape:
        size *= extent
    return Like(kind, [shape] * operands, [shape], phase, moved=(operands + 1) * size)


def attention(s: Shard) -> tuple[Like, Like]:
    """cuDNN's, causal, with the keys of all heads, as PyTorch runs it; and its backward."""
    m, kind = s.model, "scaled_dot_product_cudnn_attention"
    rows = [s.samples, m.heads // s.tp, m.length]
    each, value, row = [*rows, m.head_width], [*rows, m.value_head], [*rows, 1]
    once: dict[str, Any] = {"is_causal": True, "compute_log_sumexp": True}
    again: dict[str, Any] = {"is_causal": True, "max_q": m.length, "max_k": m.length}
    scalars: list[tuple[Shape, str]] = [([], "int64"), ([], "int64")]
    forward = Like(kind, [each, each, value], [value, row, [], []], attrs=once)
    others = [(row, "float32"), *scalars]
    read, made = [value, each, each, value, value], [each, each, value]
    back = Like(f"{kind}_backward", read, made, BACKWARD, again, others=others)
    return forward, back


def unfused(s: Shard) -> dict[str, Like]:
    """The products, softmax and dropout that make attention with all its scores."""
    matrices = s.model.heads // s.tp * s.samples
    length, turned = s.model.length, {"transpose_b": True}
    rows, wide = [matrices, length, length], [matrices, length, s.model.head_width]
    value = [matrices, length, s.model.value_head]
    size, kind = 2 * s.scores, "batch_matmul"
    turned_rows = {"transpose_a": True}
    dims: dict[str, Any] = {"dim": -1}
    softmax = [rows, rows], [rows], BACKWARD, {**dims, "input_dtype": DTYPE}, 3 * size
    return {
        "scores": Like(kind, [wide, wide], [rows], attrs=turned),
        "softmax": Like("softmax", [rows], [rows], attrs=dims, moved=2 * size),
        "dropout": plain("mul", rows, 2),
        "context": Like(kind, [rows, value], [value]),
        "context dx": Like(kind, [value, value], [rows], BACKWARD, turned),
        "context dv": Like(kind, [rows, value], [value], BACKWARD, turned_rows),
        "dropout dx": plain("mul", rows, 2, BACKWARD),
        "softmax dx": Like("softmax_backward", *softmax),
        "scores dq": Like(kind, [rows, wide], [wide], BACKWARD),
        "scores dk": Like(kind, [rows, wide], [wide], BACKWARD, turned_rows),
    }
