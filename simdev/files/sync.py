"""Synchronisation policies from and to JSON: ``{"policy": "p3", "aggregation": "0.8 GB/s"}``
(docs/sync.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..strategy import PRESETS, SYNCS, Sync, sync_policy
from .paths import shown
from .shape import STRICT, Bytes, OptionalBytes, Seconds, validate
from .writing import rate_text, time_text


@with_config(STRICT)
class _SyncShape(TypedDict, total=False):
    policy: Required[str]
    transport: str
    slice_parameters: int | None
    even_parameters: int | None
    bucket: OptionalBytes
    priority: str
    credit: OptionalBytes
    credit_rule: str
    servers: Any
    server_order: str
    aggregation: Any
    reply: str
    overlap: bool
    message: Seconds
    hold: str
    segment: Bytes
    spread: str


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_SyncShape)


def read_sync(value: Any, problems: list[str]) -> str | Sync:
    """How gradients are added up: one of SYNCS, the object of a policy, or "" where nothing is
    told.

    What is wrong joins ``problems``.
    """
    if value is None:
        return ""  # the strategy's own default
    if isinstance(value, str) and value in SYNCS:
        return value
    try:
        if not isinstance(value, Mapping):
            choice = f"sync: must be one of {', '.join(SYNCS)}, or an object with a policy"
            policy = (
                f'; write {{"policy": "{value}"}}'
                if isinstance(value, str) and value in PRESETS
                else ""
            )
            raise InputError(f"{choice}, got {shown(value)}{policy}")
        shaped = dict(validate(_adapter(), value, frozenset(_SyncShape.__annotations__), "sync."))
        if "servers" in shaped:
            shaped["servers"] = _servers(shaped["servers"])
        return sync_policy(shaped.pop("policy"), **shaped)
    except InputError as error:
        problems.extend(error.problems)
        return SYNCS[0]


def _servers(value: Any) -> str | tuple[str, ...]:
    """A way to spread servers, or the machines: {"machine": "host:0"}, {"machine": ["host:0",
    "host:1"]}.
    """
    if isinstance(value, str):
        return value
    machine = (
        value.get("machine") if isinstance(value, Mapping) and set(value) == {"machine"} else None
    )
    names = [machine] if isinstance(machine, str) else machine
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        told = 'must be "sharded", "star" or {"machine": NAME}'
        raise InputError(f"sync.servers: {told}, got {shown(value)}")
    return tuple(names)


def sync_object(sync: Sync) -> dict[str, Any]:
    """A policy with what differs from its preset, as JSON."""
    found: dict[str, Any] = {"policy": sync.policy}
    for name, value in sync.settings.items():
        if name == "servers" and not isinstance(value, str):
            value = {"machine": list(value)}
        elif isinstance(value, Fraction):
            value = time_text(value) if name == "message" else rate_text(value)
        found[name] = value
    return found
