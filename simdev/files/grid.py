"""The grids of sweeps from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required

from typing_extensions import TypedDict

from ..ground.errors import InputError
from .paths import shown
from .reading import PathLike
from .shape import Format


class _GridShape(TypedDict, total=False):
    """A grid.

    - ``grid``: values by field, like ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"]}``, or a list
      of such objects.
    - ``name``, ``about``: what it is.
    """

    name: str
    about: str
    grid: Required[Any]


GRID = Format(_GridShape, "a grid")


def read_grid(path: PathLike) -> tuple[Mapping[str, list[Any]], ...]:
    """Products of values by field, ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"]}``, one after
    another.

    Raises InputError with every problem at once.
    """
    with GRID.opened(path) as fields:
        grid = fields["grid"]
        products = grid if isinstance(grid, list) else [grid]
        problems = [
            problem
            for i, product in enumerate(products)
            for problem in _grid_problems(product, f"grid[{i}]" if grid is products else "grid")
        ]
        if problems or not products:
            raise InputError(problems or "grid: must not be empty")
        return tuple(products)


def _grid_problems(product: Any, at: str) -> list[str]:
    if not isinstance(product, dict):
        return [
            f"{at}: must be an object of lists, or a list of such objects, got {shown(product)}"
        ]
    return [
        f'{at}["{field}"]: must be a list of values, got {shown(values)}'
        for field, values in product.items()
        if not isinstance(values, list)
    ]
