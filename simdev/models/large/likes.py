"""The kernels of large models, and the measured ops of profiles that they are like.

A product takes as long as the same product: the addition of a gradient to its sum hides behind its
arithmetic. A fused pass over memory takes as long as the plain op that is like it, by the bytes
that both move. Measured attention is causal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...costs import profile_key
from ...costs.roofline import Load
from .shard import Shard

# The training that these models are published with; masters and states count in the update.
DTYPE = "bfloat16"
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
    name: str, op_class: str, read: int, written: int, flops: int = 0, like: Like | None = None
) -> Kernel:
    """Work in bytes and FLOPs; without FLOPs it is bound by memory."""
    if like is None:
        return Kernel(name, op_class, DTYPE, flops, read, written, "")
    share = (read + written) / like.moved if like.moved else 1.0
    return Kernel(name, op_class, DTYPE, flops, read, written, "", op=like, share=share)


def products(m: int, k: int, n: int) -> tuple[Like, Like, Like]:
    """(m, k) x (k, n), the gradient of its input and that of its weights."""
    return (
        Like("matmul", [[m, k], [n, k]], [[m, n]], attrs={"transpose_b": True}),
        Like("matmul", [[m, n], [n, k]], [[m, k]], BACKWARD),
        Like("matmul", [[m, n], [m, k]], [[n, k]], BACKWARD, {"transpose_a": True}),
    )


def norms(s: Shard) -> tuple[Like, Like]:
    """A norm and its backward, which is one op with the gradients of scale and shift."""
    rows, scale, row = [s.rows, s.model.hidden], [s.model.hidden], [s.rows, 1]
    is_layer = s.model.norm == "layer"
    count = 2 if is_layer else 1
    kind = "layer_norm" if is_layer else "fused_rms_norm"
    attrs, x = {"normalized_shape": scale}, s.rows_bytes
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
    samples, heads = s.words // m.length, m.heads // s.tp
    each, row = [samples, heads, m.length, m.head_width], [samples, heads, m.length, 1]
    once: dict[str, Any] = {"is_causal": True, "compute_log_sumexp": True}
    again: dict[str, Any] = {"is_causal": True, "max_q": m.length, "max_k": m.length}
    scalars: list[tuple[Shape, str]] = [([], "int64"), ([], "int64")]
    forward = Like(kind, [each] * 3, [each, row, [], []], attrs=once)
    others = [(row, "float32"), *scalars]
    back = Like(f"{kind}_backward", [each] * 5, [each] * 3, BACKWARD, again, others=others)
    return forward, back


def unfused(s: Shard) -> dict[str, Like]:
    """The products, softmax and dropout that make attention with all its scores."""
    matrices = s.model.heads // s.tp * (s.words // s.model.length)
    length, turned = s.model.length, {"transpose_b": True}
    rows, wide = [matrices, length, length], [matrices, length, s.model.head_width]
    size, kind = 2 * s.scores, "batch_matmul"
    weight = Like(kind, [rows, wide], [wide], BACKWARD, {"transpose_a": True})
    dims: dict[str, Any] = {"dim": -1}
    softmax = [rows, rows], [rows], BACKWARD, {**dims, "input_dtype": DTYPE}, 3 * size
    return {
        "scores": Like(kind, [wide, wide], [rows], attrs=turned),
        "softmax": Like("softmax", [rows], [rows], attrs=dims, moved=2 * size),
        "dropout": plain("mul", rows, 2),
        "context": Like(kind, [rows, wide], [wide]),
        "context dx": Like(kind, [wide, wide], [rows], BACKWARD, turned),
        "context dv": weight,
        "dropout dx": plain("mul", rows, 2, BACKWARD),
        "softmax dx": Like("softmax_backward", *softmax),
        "scores dq": Like(kind, [rows, wide], [wide], BACKWARD),
        "scores dk": weight,
    }
