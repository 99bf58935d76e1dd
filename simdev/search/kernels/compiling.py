"""Compiled where numba is there, plain Python elsewhere: the same functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", bound=tuple[Any, ...])
COMPILED = find_spec("numba") is not None


def kernel(function: F) -> F:
    """A compiled kernel, or the plain function."""
    if not COMPILED:
        return function
    from ...jit import jit

    return jit(function)


def part(function: F) -> F:
    """A function that kernels call."""
    if not COMPILED:
        return function
    from ...jit import jitable

    return jitable(function)


def opener(shape: type[T]) -> Callable[[Any], T]:
    """For kernels: what opens the handle of a ``Columns`` as its named tuple."""
    if not COMPILED:
        return lambda row: row
    from ...jit import opener as opener_of_words

    return opener_of_words(shape)


class Columns:
    """A named tuple of columns, and the handle by which kernels read and write it.

    Plain Python is handed lists, which it indexes faster than arrays.
    """

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.row = row
        self.handle: Any = None
        if COMPILED:
            from ...jit import Table

            self.handle = Table.of(row).words
        else:
            made = (value.tolist() if isinstance(value, np.ndarray) else value for value in row)
            self.handle = type(row)(*made)

    def array(self, name: str) -> Any:
        """A column as it is by now."""
        return np.asarray(getattr(self.row if COMPILED else self.handle, name))
