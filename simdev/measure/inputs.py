"""Tensors to measure a call on: random normal floats, whole numbers within the range that the call
can take.

Zeros would flatter: random values draw more power, and an index that repeats stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..semantics import traits_of
from .kinds import aten_name, named_arguments
from .record import Call, Slot, TensorSpec


def make_inputs(call: Call, device: str, seed: int) -> list[torch.Tensor]:
    """One set of tensors for a call, on a device; the same seed makes the same values."""
    generator = torch.Generator().manual_seed(seed)
    bound, positive = _index_bound(call), traits_of(_name(call)).positive
    tensors = [_make(spec, bound, positive, generator, device) for spec in call.specs]
    if _name(call) == "max_pool2d_with_indices_backward":
        _true_indices(call, tensors)
    return tensors


def _make(
    spec: TensorSpec, bound: int, positive: bool, generator: torch.Generator, device: str
) -> torch.Tensor:
    # The memory behind the tensor: with stride 0 smaller than the tensor, with gaps larger.
    extent = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    extent = extent if 0 not in spec.shape else 0
    if spec.dtype == torch.bool:
        memory = torch.rand(extent, generator=generator) < 0.5
    elif spec.dtype.is_floating_point or spec.dtype.is_complex:
        memory = torch.randn(extent, generator=generator)
        # A root of a negative number takes a path of its own, fifteen times slower, that no real
        # step takes.
        memory = (memory.abs() if positive else memory).to(spec.dtype)
    else:
        memory = torch.randint(bound, (extent,), generator=generator).to(spec.dtype)
    # The move comes first: it would pack a tensor with gaps.
    return memory.to(device).as_strided(spec.shape, spec.stride)


def _index_bound(call: Call) -> int:
    """Indices run from 0 to this, exclusive."""
    name = _name(call)
    first = next(
        (spec.shape for spec in call.specs if spec.dtype.is_floating_point and spec.shape), (1,)
    )
    if name in ("nll_loss_forward", "nll_loss_backward"):
        # The scores are the operand of two extents, the classes its last; the backward reads the
        # loss's gradient first.
        return max(1, next(spec.shape for spec in call.specs if len(spec.shape) >= 2)[1])
    if name == "embedding_dense_backward":
        return max(1, int(named_arguments(call.func, call.args, call.kwargs)["num_weights"]))
    return max(1, first[0] if name == "embedding" else min(first))


def _true_indices(call: Call, tensors: list[torch.Tensor]) -> None:
    """Where the maxima really are: random places would be scattered as no pooling scatters them."""
    arguments = named_arguments(call.func, call.args, call.kwargs)
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    pooled = torch.ops.aten.max_pool2d_with_indices(
        _tensor(arguments["self"], tensors), *(arguments[n] for n in names)
    )
    tensors[arguments["indices"].index] = pooled[1]


def _tensor(value: Any, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[value.index] if isinstance(value, Slot) else value


def _name(call: Call) -> str:
    return (
        aten_name(call.func)
        if hasattr(call.func, "_schema")
        else str(getattr(call.func, "__name__", ""))
    )
