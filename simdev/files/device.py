"""Datasheets of kinds of device from JSON, and those shipped beside the package."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..costs import DeviceSpec, Efficiency
from ..errors import InputError
from .reading import PathLike
from .shape import STRICT, Bandwidth, Flops, OptionalBytes, Seconds, Share, read_shape
from .source import opened

DEVICE_PRESETS = Path(__file__).parent.parent / "presets" / "devices"


@with_config(STRICT)
class _EfficiencyShape(TypedDict, total=False):
    compute: Share
    memory: Share
    overhead: Seconds


@with_config(STRICT)
class _MeasuredShape(TypedDict, total=False):
    flops: dict[str, Flops]
    memory_bandwidth: Bandwidth


@with_config(STRICT)
class _DeviceShape(TypedDict, total=False):
    kind: Required[str]
    name: str
    family: str
    flops: Required[dict[str, Flops]]
    memory_bandwidth: Required[Bandwidth]
    memory: OptionalBytes
    launch: Seconds
    efficiency: dict[str, _EfficiencyShape]
    measured: _MeasuredShape
    ports: dict[str, int]
    provenance: dict[str, Any]


_KEYS = frozenset({*_DeviceShape.__annotations__, *_EfficiencyShape.__annotations__, "version"})
_SPEC = ("kind", "name", "flops", "memory_bandwidth", "memory", "launch", "provenance")


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_DeviceShape)


def read_device(source: PathLike | Mapping[str, Any]) -> DeviceSpec:
    """The datasheet of a file, of a shipped kind (by name), or of an object already parsed.

    Raises InputError.
    """
    if isinstance(source, str) and source in device_names():
        source = DEVICE_PRESETS / f"{source}.json"
    elif (
        isinstance(source, str)
        and not source.endswith((".json", ".json.gz"))
        and not Path(source).exists()
    ):
        close = get_close_matches(source, device_names(), 1)
        hint = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(device_names())}"
        raise InputError(f'neither a file nor a kind of device: "{source}"; {hint}')
    with opened(source) as (value, is_file):
        return _spec(read_shape(_adapter(), value, _KEYS, is_file, "a device"))


def device_names() -> tuple[str, ...]:
    """The kinds of device whose datasheets are shipped with simdev."""
    return tuple(sorted(path.stem for path in DEVICE_PRESETS.glob("*.json")))


@cache
def device_presets() -> tuple[DeviceSpec, ...]:
    """Every datasheet shipped with simdev, by kind."""
    return tuple(map(read_device, device_names()))


def _spec(shaped: dict[str, Any]) -> DeviceSpec:
    known = {key: shaped[key] for key in _SPEC if key in shaped}
    efficiency, problems = {}, []
    for op_class, one in shaped.get("efficiency", {}).items():
        try:
            efficiency[op_class] = Efficiency(**one)
        except InputError as error:
            problems += [f"efficiency.{op_class}.{problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return DeviceSpec(**known, efficiency=efficiency)
