"""What an operator is measured on: random tensors made on the device, or those of a real step where
random ones would not do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..nouns.semantics import op_class, traits_of
from .kinds import aten_name, kind_of, named_arguments
from .record import Call, Slot, TensorSpec
from .timers import Thunk

INPUT_SETS = 3
# Inputs of this size push themselves out of the caches: one set of them is enough.
SINGLE_SET_BYTES = 64 * 2**20
# Whole numbers that random ones stand for: their range is known, or nothing hangs on them.
_KNOWN = frozenset(
    {
        "embedding",
        "embedding_dense_backward",
        "nll_loss_forward",
        "nll_loss_backward",
        "_to_copy",
        "clone",
        "copy_",
        "cat",
    }
)
_TAKES_ANY = frozenset({"elementwise", "attention", "norm", "pooling", "softmax"})
_DRAWN = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def needs_real(call: Call) -> bool:
    """Whether random tensors would make a call fail, or crash: indices and opaque buffers (the
    workspace of a recurrent layer) have values that only a real step has, and of operators that are
    not PyTorch's own nothing is known.
    """
    if not hasattr(call.func, "_schema"):
        return False
    if call.func.namespace != "aten":
        return True
    whole = any(
        not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype == torch.bool)
        for spec in call.specs
    )
    if not whole or _name(call) in _KNOWN:
        return False
    kind = kind_of(call.func, named_arguments(call.func, call.args, call.kwargs))
    return op_class(kind) not in _TAKES_ANY


def thunks(call: Call, device: str) -> list[Thunk]:
    """The call on its input sets: one is enough where it is larger than the caches."""
    sets = INPUT_SETS if sum(spec.bytes for spec in call.specs) < SINGLE_SET_BYTES else 1
    return [thunk_on(call, make_inputs(call, device, seed)) for seed in range(sets)]


def thunk_on(call: Call, tensors: list[Tensor]) -> Thunk:
    """The call on these tensors."""
    args, kwargs = call.bind(tensors)
    return partial(call.func, *args, **kwargs)


def make_inputs(call: Call, device: str, seed: int) -> list[Tensor]:
    """One set of tensors for a call, on a device; the same seed makes the same values.

    Random normal floats, and whole numbers within the range that the call can take. Zeros would
    flatter: random values draw more power, and an index that repeats stays in the cache.
    """
    # Made where they are used: on the host one thread needs seconds for what a GPU makes in
    # milliseconds.
    generator = torch.Generator(device).manual_seed(seed)
    bound, positive = _index_bound(call), traits_of(_name(call)).positive
    tensors = [_make(spec, bound, positive, generator, device) for spec in call.specs]
    if _name(call) == "max_pool2d_with_indices_backward":
        _true_indices(call, tensors)
    return tensors


def _make(
    spec: TensorSpec, bound: int, positive: bool, generator: torch.Generator, device: str
) -> Tensor:
    # The memory behind the tensor: with stride 0 smaller than the tensor, with gaps larger.
    extent = 1 + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride, strict=True))
    extent = extent if 0 not in spec.shape else 0
    where: dict[str, Any] = {"generator": generator, "device": device}
    if spec.dtype == torch.bool:
        memory = torch.rand(extent, **where) < 0.5
    elif spec.dtype.is_floating_point or spec.dtype.is_complex:
        drawn = spec.dtype if spec.dtype in _DRAWN else torch.float32
        memory = torch.randn(extent, dtype=drawn, **where)
        # A root of a negative number takes a path of its own, fifteen times slower, that no real
        # step takes.
        memory = (memory.abs() if positive else memory).to(spec.dtype)
    else:
        memory = torch.randint(bound, (extent,), **where).to(spec.dtype)
    return memory.as_strided(spec.shape, spec.stride)


def _index_bound(call: Call) -> int:
    """Indices run from 0 to this, exclusive."""
    name = _name(call)
    if name in ("nll_loss_forward", "nll_loss_backward"):
        # The scores are the operand of two extents, the classes its last; the backward reads the
        # loss's gradient first.
        return max(1, next(spec.shape for spec in call.specs if len(spec.shape) >= 2)[1])
    if name == "embedding_dense_backward":
        return max(1, int(named_arguments(call.func, call.args, call.kwargs)["num_weights"]))
    floats = (spec.shape for spec in call.specs if spec.dtype.is_floating_point and spec.shape)
    shape = next(floats, (1,))
    return max(1, shape[0] if name == "embedding" else min(shape))


def _true_indices(call: Call, tensors: list[Tensor]) -> None:
    """Where the maxima really are: random places would be scattered as no pooling scatters them."""
    arguments = named_arguments(call.func, call.args, call.kwargs)
    pooled = arguments["self"]
    _, indices = torch.ops.aten.max_pool2d_with_indices(
        tensors[pooled.index] if isinstance(pooled, Slot) else pooled,
        *(arguments[n] for n in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
    )
    tensors[arguments["indices"].index] = indices


def _name(call: Call) -> str:
    if hasattr(call.func, "_schema"):
        return aten_name(call.func)
    return str(getattr(call.func, "__name__", ""))
