"""Loops of the placers that are compiled where numba is installed, and run as plain Python
elsewhere, from one source.

Kernels take named tuples of flat columns (arrays where compiled, else lists) and allocate nothing.
They live in this folder because ``ground.jit.KERNELS`` names it: machine code is cached by a hash
of the sources in the folders named there.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", bound=tuple[Any, ...])
COMPILED = find_spec("numba") is not None
if COMPILED:
    from ...ground import jit


def kernel(function: F) -> F:
    """A compiled kernel, or the plain function."""
    return jit.jit(function) if COMPILED else function


def part(function: F) -> F:
    """A function that kernels call."""
    return jit.jitable(function) if COMPILED else function


def opener(shape: type[T]) -> Callable[[Any], T]:
    """A function for kernels that opens the handle of a ``Columns`` as its named tuple."""
    return jit.opener(shape) if COMPILED else lambda row: row


class Columns:
    """A named tuple of columns, and the handle by which kernels read and write it."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.row = row
        self.handle: Any = None
        if COMPILED:
            self.handle = jit.Table.of(row).words
        else:
            # Plain Python indexes lists faster than arrays.
            lists = (value.tolist() if isinstance(value, np.ndarray) else value for value in row)
            self.handle = type(row)(*lists)

    def array(self, name: str) -> Any:
        """The current values of a column."""
        return np.asarray(getattr(self.row if COMPILED else self.handle, name))
