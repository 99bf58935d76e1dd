"""Grids of a sweep from JSON: which fields of a scenario take which values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from .paths import shown
from .reading import PathLike
from .shape import STRICT, read_shape
from .source import opened


@with_config(STRICT)
class _GridShape(TypedDict, total=False):
    name: str
    about: str
    grid: Required[Any]


_KEYS = frozenset({*_GridShape.__annotations__, "version"})


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_GridShape)


def read_grid(path: PathLike) -> tuple[Mapping[str, list[Any]], ...]:
    """Products of values by field, ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"]}``, one after
    another.

    Raises InputError with every problem at once.
    """
    with opened(path) as (value, _):
        grid = read_shape(_adapter(), value, _KEYS, True, "a grid")["grid"]
        products = grid if isinstance(grid, list) else [grid]
        problems = [
            problem
            for i, product in enumerate(products)
            for problem in _problems(product, f"grid[{i}]" if isinstance(grid, list) else "grid")
        ]
        if problems or not products:
            raise InputError(problems or "grid: must not be empty")
        return tuple(products)


def _problems(product: Any, at: str) -> list[str]:
    if not isinstance(product, dict):
        return [
            (f"{at}: must be an object of lists, or a list of such objects, got {shown(product)}")
        ]
    return [
        f'{at}["{field}"]: must be a list of values, got {shown(values)}'
        for field, values in product.items()
        if not isinstance(values, list)
    ]
