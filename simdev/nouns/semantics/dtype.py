"""Dtypes: their names, the bits of an element, and the datasheet's peak at which each is computed.

Files and frameworks write a dtype in several ways ("half", "FP16", "torch.float16"). ``canonical``
is the only rule: ignoring case and a framework's prefix, it accepts a known name or an alias and
refuses anything else.

Readers of files, importers and datasheets (``simdev/costs/roofline.py``) use it. A new dtype or
alias is added only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from ...ground.errors import InputError

BITS: Final[Mapping[str, int]] = {
    "float64": 64,
    "float32": 32,
    # Only 19 bits count in the arithmetic, but 32 are stored and moved.
    "tfloat32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float4": 4,
    "complex128": 128,
    "complex64": 64,
    "complex32": 32,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "uint4": 4,
    "bool": 8,
    # A reference to a text, whose length is not in the graph.
    "string": 64,
}
"""Bits of a stored element, by canonical name."""

ALIASES: Final[Mapping[str, str]] = {
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "fp4": "float4",
    "float4e2m1": "float4",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "u8": "uint8",
    "boolean": "bool",
}
"""Other names of these dtypes, in lower case."""

PREFIXES: Final = ("torch.", "numpy.", "np.", "jax.numpy.", "jnp.", "tf.")

PARAMETERS: Final = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
)
"""The dtypes that parameters may have."""

PEAKS: Final = (
    *("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "float4"),
    *("int32", "int8", "int4"),
)
"""The dtypes of the peaks in a datasheet."""

# A narrow float that a card cannot compute is widened, in the order of the least loss.
_NARROW = ("bfloat16", "float16", "float32")
_WHOLE = ("int32", "float32")
STAND_INS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("tfloat32", "float16", "bfloat16", "complex64", "bool"), ("float32",)),
    **{name: ("float8", *_NARROW) for name in BITS if name.startswith("float8_")},
    "float8": _NARROW,
    "float4": ("float8", *_NARROW),
    "complex128": ("float64",),
    "complex32": ("float16", "float32"),
    **dict.fromkeys(("int64", "int16", "uint64", "uint32", "uint16"), _WHOLE),
    "int32": ("float32",),
    "int8": _WHOLE,
    "uint8": ("int8", *_WHOLE),
    "int4": ("int8", *_WHOLE),
    "uint4": ("int4", "int8", *_WHOLE),
}
"""For each dtype the peaks used where a datasheet has none for it; the first that the datasheet has
counts.

Narrower floats are widened where no unit computes them, and integers run on the vector units like
float32. Nothing replaces a missing float64 or float32: float64 is from 1/2 to 1/64 of float32,
depending on the card.
"""


# Called for every tensor of every file, with a few dozen different names.
@lru_cache(1024)
def known(name: str) -> str | None:
    """The canonical name of a dtype; None for an unknown name."""
    short = name.strip().lower()
    short = next(
        (short.removeprefix(prefix) for prefix in PREFIXES if short.startswith(prefix)), short
    )
    dtype = ALIASES.get(short, short)
    return dtype if dtype in BITS else None


def canonical(name: str) -> str:
    """The canonical name of a dtype: "float16" for "FP16", "half" and "torch.float16".

    Raises InputError for an unknown name.
    """
    dtype = known(name)
    if dtype is None:
        raise InputError(no_dtype(name))
    return dtype


def no_dtype(name: str) -> str:
    """The message about an unknown dtype."""
    return f'no dtype "{name[:40]}"; there are {", ".join(BITS)}'


def bits_of(dtype: str | None) -> int:
    """Bits of one element: "float32" and None 32, "bf16" 16, "bool" 8.

    Raises InputError for an unknown name.
    """
    # A missing dtype is float32, the default of every framework that simdev reads.
    return 32 if dtype is None else BITS[canonical(dtype)]
