"""Runs kernels as plain Python: memory views stand for the pointers of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simdev.ground import jit
from simdev.ground.jit import Table


def interpret() -> None:
    """Makes modules that are imported from now on define plain functions in place of kernels."""
    replaced: dict[str, Callable[..., Any]] = {
        "jit": lambda function: function,
        "jitable": lambda *functions: functions[0],
        "opener": lambda shape: lambda words: words if isinstance(words, tuple) else None,
        "bare": _view,
        "lowest": lambda bits: (bits & -bits).bit_length() - 1,
    }
    for name, function in replaced.items():
        setattr(jit, name, function)
    checked = Table.of
    Table.of = classmethod(lambda cls, columns: Table(columns, _opened(checked(columns).columns)))


def compile_anew() -> None:
    """Disables the cache of kernels on disk, which would not notice changed functions."""
    jit.cache_folder = lambda: None


def _opened(columns: Any) -> Any:
    return type(columns)._make(map(_view, columns))


def _view(value: Any) -> Any:
    """A flat memory view: its items are Python numbers, which are faster than NumPy's."""
    return memoryview(value.reshape(-1)) if isinstance(value, np.ndarray) else int(value)
