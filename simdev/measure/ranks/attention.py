"""Runs attention on tensors of the CPU with the kernels that PyTorch chooses on a GPU.

PyTorch chooses a kernel of ``scaled_dot_product_attention`` by the device. For fake tensors of the
CPU it would choose one that no GPU has, and that policies of activation checkpointing for GPUs do
not know. This module chooses as PyTorch does on a GPU (aten/src/ATen/native/transformers/cuda/
sdp_utils.cpp): FlashAttention for two-byte types without a mask and up to 256 values a head, else
the memory-efficient kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .streams import Streams

_of_cpus: Any = torch.nn.functional.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)
FLASH_HEAD = 256
"""The greatest width of a head that FlashAttention supports."""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` by a kernel of the script's devices."""
    if Streams.running.on_cpu:
        settings = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        mixed: Tensor = _of_cpus(query, key, value, attn_mask, dropout_p, **settings)
        return mixed
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
    is_flash = query.dtype in _HALF and attn_mask is None and query.shape[-1] <= FLASH_HEAD
    if is_flash:
        call: Any = torch.ops.aten._scaled_dot_product_flash_attention
        mixed = call(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return mixed
    call = torch.ops.aten._scaled_dot_product_efficient_attention
    needs = any(x.requires_grad for x in (query, key, value))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2]).to(query.dtype)
    out = call(query, key, value, attn_mask, needs, dropout_p, is_causal, scale=scale)
    return out[0]  # type: ignore[no-any-return]
