"""Datasheets of kinds of device from JSON, and the datasheets shipped beside the package.

``datasheets`` gives every scenario the datasheets of its cost model, ``capacity_of`` gives a
cluster the memories that it leaves out. A new field is a field of DeviceSpec
(``costs/roofline.py``) and a key of ``_DeviceShape``, whose type says its unit; presets must then
name its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import PlainValidator
from typing_extensions import TypedDict

from ..costs import DeviceSpec, Efficiency, Profile
from ..ground.errors import InputError, collecting, refuse
from .reading import PRESETS, PathLike, meant, shipped, shown
from .shape import Bandwidth, Fields, Flops, Format, OptionalBytes, Seconds, Share

DEVICE_PRESETS = PRESETS / "devices"


class _EfficiencyShape(TypedDict, total=False):
    compute: Share
    memory: Share
    overhead: Seconds
    # Only in the short form: the dtype of these shares.
    dtype: str


_EFFICIENCY = Format(_EfficiencyShape, prefix=".")


def _by_dtype(value: Any) -> dict[str, Fields]:
    """Shares by dtype. The short form has its shares under its ``dtype``, or "" without one."""
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, got {shown(value)}")
    if _EFFICIENCY.keys.intersection(value):
        shares = _EFFICIENCY.validated(value)
        return {shares.pop("dtype", ""): shares}
    known, problems = {}, []
    for dtype, shares in value.items():
        if not isinstance(shares, dict):
            problems.append(f".{dtype}: must be an object, got {shown(shares)}")
            continue
        with collecting(problems, f".{dtype}"):
            known[dtype] = _EFFICIENCY.validated(shares)
    refuse(problems)
    return known


class _MeasuredShape(TypedDict, total=False):
    flops: dict[str, Flops]
    burst_flops: dict[str, Flops]
    memory_bandwidth: Bandwidth


class _DeviceShape(TypedDict, total=False):
    """A datasheet.

    - ``kind``: what clusters and profiles call the device.
    - ``name``: what it is called.
    - ``family``: the group of similar kinds that it belongs to, like ``hbm`` or ``cpu``.
    - ``measured_as``: another kind with the same chip, whose shipped rows large models use here.
    - ``flops``: peaks by dtype, dense.
    - ``memory_bandwidth``: the bandwidth of its memory.
    - ``memory``: the size of its memory.
    - ``launch``: the time that the launch of an op costs.
    - ``launch_gap``: the pause between two kernels of a stream.
    - ``dispatch``: the time in which a host dispatches a small op.
    - ``blas_workspace``: bytes of each workspace that PyTorch hands to cuBLAS.
    - ``sustained_clock``: the share of the rate of a single call that kernels near the peak
      keep when they run for long.
    - ``efficiency``: the shares of the peaks that are reached, by op class (``default`` for all
      others) and dtype.
    - ``measured``: measured rates of matrix products, in one call and over seconds, and the
      measured bandwidth.
    - ``ports``: how many links of each kind it has.
    - ``provenance``: where the numbers come from, in any form.
    """

    kind: Required[str]
    name: str
    family: str
    measured_as: str
    flops: Required[dict[str, Flops]]
    memory_bandwidth: Required[Bandwidth]
    memory: OptionalBytes
    launch: Seconds
    blas_workspace: OptionalBytes
    launch_gap: Seconds
    dispatch: Seconds
    sustained_clock: Share
    efficiency: dict[str, Annotated[dict[str, dict[str, Any]], PlainValidator(_by_dtype)]]
    measured: _MeasuredShape
    ports: dict[str, int]
    provenance: dict[str, Any]


FORMAT = Format(_DeviceShape, "a device")


def read_device(source: PathLike | Mapping[str, Any]) -> DeviceSpec:
    """The datasheet of a file, of a shipped kind (by name), or of an object already parsed.

    Raises InputError.
    """
    if isinstance(source, str) and source in device_names():
        source = DEVICE_PRESETS / f"{source}.json"
    # For a misspelt kind "no such file" would be a useless message.
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


def datasheets(
    sheets: Sequence[DeviceSpec], kinds: Iterable[str], profiles: Iterable[Profile]
) -> tuple[DeviceSpec, ...]:
    """The given datasheets, then the shipped ones of all other kinds that a cluster (``kinds``) or
    profiles name. Every scenario has these, whether read from a file or made in Python.
    """
    named = [*kinds, *(kind for profile in profiles for kind in profile.device_kinds)]
    given = {spec.kind for spec in sheets}
    # A dict and not a set: datasheets come in the order in which kinds are named.
    shipped = [_shipped(kind) for kind in dict.fromkeys(named) if kind not in given]
    return (*sheets, *(spec for spec in shipped if spec is not None))


def capacity_of(kind: str, sheets: Sequence[DeviceSpec] = ()) -> int | None:
    """Bytes of memory in the datasheet of this kind, given in ``sheets`` or shipped. None
    (unlimited) where no datasheet has a memory.
    """
    return next((s.memory for s in datasheets(sheets, [kind], ()) if s.kind == kind), None)


@cache
def _shipped(kind: str) -> DeviceSpec | None:
    return read_device(kind) if kind in device_names() else None


def _spec(fields: Fields) -> DeviceSpec:
    # Ports and measured bandwidths only serve the tests of presets.
    others = ("efficiency", "measured", "ports")
    given = {key: value for key, value in fields.items() if key not in others}
    measured, flops = fields.get("measured", {}), fields["flops"]
    efficiency: dict[str, dict[str, Efficiency]] = {}
    problems: list[str] = []
    for op_class, by_dtype in fields.get("efficiency", {}).items():
        efficiency[op_class] = known = {}
        for dtype, shares in by_dtype.items():
            place = f"efficiency.{op_class}" + (f".{dtype}" if dtype and len(by_dtype) > 1 else "")
            # The short form needs no dtype where the datasheet has only one.
            if not dtype and len(flops) != 1:
                problems.append(
                    f'{place}: of which dtype? Write "dtype": "bfloat16" beside it, or '
                    '{"bfloat16": {...}}; "any" where it holds for all'
                )
                continue
            if "dtype" in shares:
                problems.append(f'{place}.dtype: it is the dtype of its key, "{dtype}"')
                continue
            with collecting(problems, f"{place}."):
                known[dtype or next(iter(flops))] = Efficiency(**shares)
    refuse(problems)
    return DeviceSpec(
        **given,
        efficiency=efficiency,
        sustained=measured.get("flops", {}),
        burst=measured.get("burst_flops", {}),
    )
