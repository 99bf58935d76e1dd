"""Strategies from and to JSON.

An object without ``version`` whose values are all texts is a bare placement, ``{"matmul_1": "gpu:0"}``. So is one
that has neither ``version`` nor an object under a key of the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..strategy import POLICIES, Order, Strategy
from .paths import at, shown
from .reading import PathLike
from .shape import STRICT, Priority, read_shape, validate
from .source import opened
from .writing import write_text

LATER = ("partition", "sync", "pipeline")


@with_config(STRICT)
class _OrderShape(TypedDict, total=False):
    policy: Required[str]
    priority: dict[str, Priority]
    sequence: dict[str, list[str]]


@with_config(STRICT)
class _StrategyShape(TypedDict, total=False):
    placement: dict[str, str]
    order: Any
    partition: Any
    sync: Any
    pipeline: Any
    provenance: dict[str, Any]


_KEYS = frozenset({*_StrategyShape.__annotations__, "version"})


@cache
def _adapters() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    return TypeAdapter(_StrategyShape), TypeAdapter(_OrderShape)


def read_strategy(source: PathLike | Mapping[str, Any]) -> Strategy:
    """The strategy of a file, or of an object already parsed; the version may be left out.

    Raises InputError with every problem at once.
    """
    with opened(source) as (value, _):
        if isinstance(value, dict) and _is_bare(value):
            value = {"placement": value}
        problems: list[str] = []
        try:
            shaped = read_shape(_adapters()[0], value, _KEYS, False, "a strategy or a placement")
        except InputError as error:
            if not isinstance(value, dict) or any(problem.startswith("version") for problem in error.problems):
                raise
            problems, shaped = list(error.problems), value
        problems += [at(key, "not supported by this version of simdev") for key in LATER if shaped.get(key)]
        order = _order(shaped.get("order", "fifo"), problems)
        if problems:
            raise InputError(problems)
        return Strategy(shaped.get("placement", {}), order)


def _is_bare(value: dict[str, Any]) -> bool:
    if "version" in value or any(isinstance(value.get(key), dict) for key in _KEYS):
        return False
    only_order = set(value) == {"order"} and value["order"] in POLICIES
    return not only_order


def _order(value: Any, problems: list[str]) -> Order:
    try:
        if isinstance(value, str):
            return Order(value)
        if not isinstance(value, dict):
            raise InputError(f"order: must be the name of a policy or an object, got {shown(value)}")
        shaped = validate(_adapters()[1], value, frozenset(_OrderShape.__annotations__), "order.")
        sequence = {queue: tuple(entries) for queue, entries in shaped.get("sequence", {}).items()}
        return Order(shaped["policy"], shaped.get("priority", {}), sequence)
    except InputError as error:
        problems.extend(error.problems)
        return Order()


def write_strategy(strategy: Strategy, path: PathLike) -> None:
    """Write a strategy. Raises OSError where it cannot write."""
    order = strategy.order
    told: Any = order.policy
    if order.policy == "priority":
        told = {"policy": order.policy, "priority": dict(order.priority)}
    elif order.policy == "fixed":
        told = {"policy": order.policy, "sequence": {queue: list(entries) for queue, entries in order.sequence.items()}}
    found = {"version": 1, "placement": dict(strategy.placement), "order": told}
    write_text(path, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
