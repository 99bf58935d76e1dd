"""Floating-point operations of a call by closed form; 0 where no form is written (a multiply-add counts two)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

Shape = Sequence[int]


def flops_of(row: Mapping[str, Any]) -> int:
    """FLOPs of a profile row: products and convolutions by their formula, everything else 0.

    Both halves of a convolution's backward cost what the forward does.
    """
    kind, shapes, outputs, attrs = row["op"], row["in"], row["out"], row["attrs"]
    if kind in ("matmul", "batch_matmul", "linear"):
        inner = shapes[0][-2] if attrs.get("transpose_a") else shapes[0][-1]
        return 2 * int(prod(outputs[0])) * int(inner)
    if kind.startswith("conv") and "transpose" not in kind and kind != "concat":
        return _convolution(kind, shapes, outputs)
    return 0


def _convolution(kind: str, shapes: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    # 2 N K P Q C R S: every element of the convolution's output sums over a filter's C R S elements.
    if kind.endswith("backward_input"):
        made, weight = shapes[0], shapes[1]
    elif kind.endswith("backward_weight"):
        made, weight = shapes[0], outputs[0]
    else:
        made, weight = outputs[0], shapes[1]
    return 2 * prod(made) * prod(weight[1:])
