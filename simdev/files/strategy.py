"""Strategies from and to JSON.

An object without ``version`` whose values are all texts is a bare placement, ``{"matmul_1":
"gpu:0"}``. So is one that has neither ``version`` nor an object under a key of the format. An
object whose ``short`` names a short form and that has no key beside those of the format is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..strategy import (
    POLICIES,
    SHORT_FORMS,
    Collectives,
    Configuration,
    Order,
    Strategy,
    Sync,
    default_sync,
)
from .collectives import choice_object, read_choice
from .paths import shown
from .pipeline import KEYS as PIPELINE_KEYS
from .pipeline import pipeline_object, read_pipeline
from .reading import PathLike
from .shape import STRICT, Priority, read_shape, validate
from .source import opened
from .sync import read_sync, sync_object
from .writing import write_text


@with_config(STRICT)
class _OrderShape(TypedDict, total=False):
    policy: Required[str]
    priority: dict[str, Priority]
    sequence: dict[str, list[str]]


@with_config(STRICT)
class _ConfigurationShape(TypedDict, total=False):
    split: dict[str, int]
    devices: list[str]
    time: str | None


@with_config(STRICT)
class _StrategyShape(TypedDict, total=False):
    placement: dict[str, str]
    order: Any
    partition: dict[str, _ConfigurationShape]
    tensors: dict[str, dict[str, int]]
    sync: Any
    short: str
    devices: list[str]
    collectives: Any
    accumulate: int
    pipeline: Any
    provenance: dict[str, Any]


_KEYS = frozenset(
    {
        *_StrategyShape.__annotations__,
        *_ConfigurationShape.__annotations__,
        *PIPELINE_KEYS,
        "version",
    }
)


@cache
def _adapters() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    return TypeAdapter(_StrategyShape), TypeAdapter(_OrderShape)


def read_strategy(source: PathLike | Mapping[str, Any], folder: str = "") -> Strategy:
    """The strategy of a file, or of an object already parsed; the version may be left out.

    A pipeline's table is relative to the file, in an object to ``folder``. Raises InputError with
    every problem at once.
    """
    folder = os.path.dirname(source) if isinstance(source, (str, os.PathLike)) else folder
    with opened(source) as (value, _):
        if isinstance(value, dict) and is_bare(value):
            value = {"placement": value}
        problems: list[str] = []
        try:
            shaped = read_shape(_adapters()[0], value, _KEYS, False, "a strategy or a placement")
        except InputError as error:
            if not isinstance(value, dict) or any(
                problem.startswith("version") for problem in error.problems
            ):
                raise
            problems, shaped = list(error.problems), value
            read_sync(value.get("sync"), problems)
        order = _order(shaped.get("order", "fifo"), problems)
        fields = {} if shaped is value else _split_fields(shaped, problems)
        if "collectives" in shaped:
            fields["collectives"] = _collectives(shaped["collectives"], problems)
        if "accumulate" in shaped:
            fields["accumulate"] = shaped["accumulate"]
        if "pipeline" in shaped:
            fields["pipeline"] = read_pipeline(shaped["pipeline"], folder, problems)
        if problems:
            raise InputError(problems)
        return Strategy(shaped.get("placement", {}), order, **fields)


def _split_fields(shaped: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """What a strategy tells of splits, with what is wrong with it."""
    found: dict[str, Any] = {
        "partition": {},
        "tensors": {},
        "devices": tuple(shaped.get("devices", ())),
    }
    for key, one in shaped.get("partition", {}).items():
        try:
            found["partition"][key] = Configuration(**one)
        except InputError as error:
            problems += [f'partition["{key}"].{problem}' for problem in error.problems]
    for key, one in shaped.get("tensors", {}).items():
        found["tensors"][key] = {}
        for dimension, degree in one.items():
            if not dimension.isdecimal() or not dimension.isascii():
                problems.append(
                    f'tensors["{key}"]["{dimension}"]: must be the number of a dimension'
                )
            else:
                found["tensors"][key][int(dimension)] = degree
    found["sync"] = read_sync(shaped.get("sync"), problems)
    short = shaped.get("short")
    if short is not None and short not in SHORT_FORMS:
        problems.append(f"short: must be one of {', '.join(SHORT_FORMS)}, got {shown(short)}")
    found["short"] = short if short in SHORT_FORMS else None
    if found["devices"] and found["short"] is None:
        problems.append("devices: go with a short form; a configuration names its own")
    return found if not problems else {}


def _collectives(value: Any, problems: list[str]) -> Collectives:
    try:
        return read_choice(value)
    except InputError as error:
        problems.extend(error.problems)
        return Collectives()


def is_bare(value: dict[str, Any]) -> bool:
    """Whether the object of a strategy is a placement alone."""
    if value.get("short") in SHORT_FORMS and set(value) <= _StrategyShape.__annotations__.keys():
        return False
    if "version" in value or any(isinstance(value.get(key), dict) for key in _KEYS):
        return False
    only_order = set(value) == {"order"} and value["order"] in POLICIES
    return not only_order


def _order(value: Any, problems: list[str]) -> Order:
    try:
        if isinstance(value, str):
            return Order(value)
        if not isinstance(value, dict):
            raise InputError(
                f"order: must be the name of a policy or an object, got {shown(value)}"
            )
        shaped = validate(_adapters()[1], value, frozenset(_OrderShape.__annotations__), "order.")
        sequence = {queue: tuple(entries) for queue, entries in shaped.get("sequence", {}).items()}
        return Order(shaped["policy"], shaped.get("priority", {}), sequence)
    except InputError as error:
        problems.extend(error.problems)
        return Order()


def write_strategy(strategy: Strategy, path: PathLike) -> None:
    """Write a strategy. Raises OSError where it cannot write, InputError for a pipeline's table."""
    order = strategy.order
    told: Any = order.policy
    if order.policy == "priority":
        told = {"policy": order.policy, "priority": dict(order.priority)}
    elif order.policy == "fixed":
        told = {
            "policy": order.policy,
            "sequence": {queue: list(entries) for queue, entries in order.sequence.items()},
        }
    found = {"version": 1, "placement": dict(strategy.placement), "order": told} | _split_object(
        strategy
    )
    write_text(path, json.dumps(found, ensure_ascii=False, indent=1) + "\n")


def _split_object(strategy: Strategy) -> dict[str, Any]:
    """What is split, as far as anything is."""
    found: dict[str, Any] = {}
    if strategy.partition:
        found["partition"] = {
            key: _configuration_object(one) for key, one in strategy.partition.items()
        }
    if strategy.tensors:
        found["tensors"] = {
            key: {str(d): n for d, n in one.items()} for key, one in strategy.tensors.items()
        }
    if strategy.sync != default_sync(strategy.short):
        found["sync"] = (
            sync_object(strategy.sync) if isinstance(strategy.sync, Sync) else strategy.sync
        )
    if strategy.short is not None:
        found |= {"short": strategy.short, "devices": list(strategy.devices)}
    if strategy.collectives != Collectives():
        found["collectives"] = choice_object(strategy.collectives)
    if strategy.accumulate != 1:
        found["accumulate"] = strategy.accumulate
    if strategy.pipeline is not None:
        found["pipeline"] = pipeline_object(strategy.pipeline)
    return found


def _configuration_object(one: Configuration) -> dict[str, Any]:
    found: dict[str, Any] = {"split": dict(one.split)}
    if one.devices:
        found["devices"] = list(one.devices)
    if one.time is not None:
        found["time"] = one.time
    return found
