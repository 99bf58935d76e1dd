"""The precisions in which a layer's products read their operands: elements, their scales, and the
passes over memory that make a tensor narrow.

``transformer`` names the precision of a model, ``shard`` counts saved bytes by it, and ``work`` the
bytes moved by kernels. A new precision is a row of FORMATS.

- "float8": a scale for a tensor, which costs no bytes worth counting.
- "mxfp8": elements of 8 bits, and for each 32 of them a scale of 8 bits, E8M0 (OCP Microscaling
  Formats, version 1.0).
- "nvfp4": elements of 4 bits, for each 16 of them a scale of 8 bits, E4M3, and for each tensor a
  scale in float32, which counts as nothing here (NVIDIA, arXiv 2509.25149, section 2).

Blocks lie along the dimension that a product sums over, so each tensor is cast along rows and along
columns (NVIDIA's Transformer Engine, ``features/low_precision_training``). No datasheet says
whether a device scales blocks in its tensor cores (NVIDIA's do from Blackwell on).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final


@dataclass(frozen=True, slots=True)
class Format:
    """The storage of the operands of products in a precision.

    ``dtype`` is the dtype at whose peak products run, ``bits`` the bits of an element with its
    share of its block's scale. ``amax``: before the cast, a separate pass finds the largest element
    of a tensor. ``cast_weights``: the cast of weights counts, once a step, as the Transformer
    Engine keeps the result for all microbatches. ``kept`` are the bits of a weight that live
    throughout beside its 16.
    """

    dtype: str
    bits: Fraction
    amax: bool = False
    cast_weights: bool = False
    kept: Fraction = Fraction(0)

    @property
    def is_blocked(self) -> bool:
        """Whether elements have scales by block, different along rows and along columns."""
        return self.bits.denominator > 1


BLOCK_8, BLOCK_4 = Fraction(8, 32), Fraction(8, 16)  # bits of a scale by element

FORMATS: Final[Mapping[str, Format]] = {
    "bfloat16": Format("bfloat16", Fraction(16)),
    # Two forms of a byte each replace the 16 bits; weights are cast in the update. The scale is the
    # tensor's current one (the Transformer Engine's ``Float8CurrentScaling``).
    "float8": Format("float8", Fraction(8), amax=True),
    # Weights, too, have two forms in place of the 16 bits (Megatron-LM's fp8_param).
    "mxfp8": Format("float8", 8 + BLOCK_8, cast_weights=True, kept=2 * BLOCK_8),
    # Two forms beside the 16 bits: Megatron-Bridge has no 4-bit parameters.
    "nvfp4": Format("float4", 4 + BLOCK_4, True, True, 2 * (4 + BLOCK_4)),
}
PRECISIONS: Final = tuple(FORMATS)
