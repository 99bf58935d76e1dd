"""Datasheets of kinds of device from JSON, and those shipped beside the package."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Required

from typing_extensions import TypedDict

from ..costs import DeviceSpec, Efficiency
from ..errors import InputError
from .paths import PRESETS, meant, shipped
from .reading import PathLike
from .shape import Bandwidth, Flops, Format, OptionalBytes, Seconds, Share

DEVICE_PRESETS = PRESETS / "devices"


class _EfficiencyShape(TypedDict, total=False):
    compute: Share
    memory: Share
    overhead: Seconds


class _MeasuredShape(TypedDict, total=False):
    flops: dict[str, Flops]
    memory_bandwidth: Bandwidth


class _DeviceShape(TypedDict, total=False):
    kind: Required[str]
    name: str
    family: str
    flops: Required[dict[str, Flops]]
    memory_bandwidth: Required[Bandwidth]
    memory: OptionalBytes
    launch: Seconds
    blas_workspace: OptionalBytes
    launch_gap: Seconds
    dispatch: Seconds
    efficiency: dict[str, _EfficiencyShape]
    measured: _MeasuredShape
    ports: dict[str, int]
    provenance: dict[str, Any]


_SPEC = (
    *("kind", "name", "flops", "memory_bandwidth", "memory", "blas_workspace"),
    *("launch", "launch_gap", "dispatch", "provenance"),
)
FORMAT = Format(_DeviceShape, "a device")


def read_device(source: PathLike | Mapping[str, Any]) -> DeviceSpec:
    """The datasheet of a file, of a shipped kind (by name), or of an object already parsed.

    Raises InputError.
    """
    if isinstance(source, str) and source in device_names():
        source = DEVICE_PRESETS / f"{source}.json"
    # A kind that is misspelt would be told to be no file, which helps nobody.
    elif (
        isinstance(source, str)
        and not source.endswith((".json", ".json.gz"))
        and not Path(source).exists()
    ):
        hint = meant(source, device_names(), f"there are {', '.join(device_names())}")
        raise InputError(f'neither a file nor a kind of device: "{source}"; {hint}')
    with FORMAT.opened(source) as fields:
        return _spec(fields)


def device_names() -> tuple[str, ...]:
    """The kinds of device whose datasheets are shipped with simdev."""
    return shipped(DEVICE_PRESETS)


@cache
def device_presets() -> tuple[DeviceSpec, ...]:
    """Every datasheet shipped with simdev, by kind."""
    return tuple(map(read_device, device_names()))


def _spec(fields: dict[str, Any]) -> DeviceSpec:
    # What was measured, its family and its ports are for the tests of presets alone.
    given = {key: fields[key] for key in _SPEC if key in fields}
    efficiency, problems = {}, []
    for op_class, shares in fields.get("efficiency", {}).items():
        try:
            efficiency[op_class] = Efficiency(**shares)
        except InputError as error:
            problems += [f"efficiency.{op_class}.{problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    return DeviceSpec(**given, efficiency=efficiency)
