"""Placing as Gymnasium environments: ``simdev/Placement-v0`` places one group after another,
``simdev/Improve-v0`` changes a whole placement group by group.

Importing this package registers both: ``gymnasium.make("simdev/Improve-v0", oracle=oracle)``. Their
arguments are those of ``PlacementEnv`` and ``ImproveEnv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import gymnasium

from ...ground.errors import InputError
from .improve import ImproveEnv
from .placement import PlacementEnv

__all__ = ["IDS", "ImproveEnv", "PlacementEnv", "make_improve", "make_placement"]

IDS = ("simdev/Placement-v0", "simdev/Improve-v0")
"""What ``gymnasium.make`` knows the environments by."""


def make_placement(**arguments: Any) -> PlacementEnv:
    """``simdev/Placement-v0``. Raises InputError for arguments that are not those of it."""
    _check(IDS[0], PlacementEnv, arguments)
    return PlacementEnv(**arguments)


def make_improve(**arguments: Any) -> ImproveEnv:
    """``simdev/Improve-v0``. Raises InputError for arguments that are not those of it."""
    _check(IDS[1], ImproveEnv, arguments)
    return ImproveEnv(**arguments)


def _check(name: str, kind: type[object], arguments: Mapping[str, Any]) -> None:
    known = signature(kind).parameters
    wrong = [f"{each}: no such argument" for each in arguments if each not in known]
    if "oracle" not in arguments:
        wrong.append("oracle: missing, like oracle_of(scenario)")
    if wrong:
        raise InputError(f"{name}: {'; '.join(wrong)}; there are {', '.join(known)}")


for place, function in zip(IDS, (make_placement, make_improve), strict=True):
    if place not in gymnasium.registry:
        gymnasium.register(place, entry_point=f"{__name__}:{function.__name__}")
