"""Dtypes by name: the bits of an element, and the other names that ops and datasheets have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

BITS: Final[Mapping[str, int]] = {
    "float64": 64,
    "float32": 32,
    "tfloat32": 32,  # 19 bits count in the arithmetic, 32 are stored
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float4": 4,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "uint8": 8,
    "bool": 8,
}
"""Bits of an element as it is stored."""

ALIASES: Final[Mapping[str, str]] = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "int": "int32",
    "long": "int64",
}
"""Other names of these dtypes."""

_DIGITS = re.compile(r"[0-9]+")


def bits_of(dtype: str | None) -> int:
    """Bits of one element: "float32" and None 32, "bf16" 16, "bool" 8; of another name its first number, else 32."""
    if dtype is None:
        return 32
    known = BITS.get(ALIASES.get(dtype, dtype))
    if known is not None:
        return known
    digits = _DIGITS.search(dtype)
    return int(digits[0]) if digits else 32
