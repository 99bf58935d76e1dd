"""Profiles from and to JSON lines: an optional header line, then one measured operator a line.

A row's key is made of ``op``, ``attrs``, ``in``, ``dt``, ``out``, ``phase`` and ``dev``, exactly as
the key of an op of a graph is. ``acc`` and all other fields are details that do not distinguish
rows. Rows with ``coll`` (collectives) are only checked to be objects of version 1; fits of
collectives read them. ``costs/rows.py`` has the nouns, ``measure`` writes such files, and keys are
made in ``nouns/semantics/keys.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, PlainValidator, with_config
from typing_extensions import TypedDict

from ..costs import Profile, Row, profile_key
from ..costs.roofline import LAUNCH_GAP
from ..costs.rows import fields_of, object_at
from ..ground.errors import InputError, collecting, refuse, within
from ..ground.units import MAX_PS, PS_PER_SECOND, decimal_text, exact, parse_time
from ..nouns.models.large.precision import PRECISIONS
from .examples import examples_folder
from .reading import PathLike, label, read_json_lines, shown
from .shape import VERSION, Extent, Fields, Format, plain
from .writing import write_text

NS_PER_SECOND = 10**9
MOST_LAUNCHES = int(MAX_PS / (LAUNCH_GAP * PS_PER_SECOND))
_Phase = Literal["fwd", "bwd", "bwd_input", "bwd_weight", "opt"]


def _exact(value: Any, noun: str) -> Fraction:
    if isinstance(value, (bool, str)):
        raise ValueError(f"must be {noun}, got {shown(value)}")
    return exact(value)


def _nanoseconds(value: Any) -> Fraction:
    time = _exact(value, "a number of nanoseconds")
    if not 0 <= time <= MAX_PS // 1000:
        raise ValueError(f"must be from 0 to 53 days in nanoseconds, got {shown(value)}")
    return time


def _error(value: Any) -> float:
    error = float(_exact(value, "a number"))
    if error < 0:
        raise ValueError(f"must not be negative, got {shown(value)}")
    return error


def _number(value: Any) -> Any:
    if _exact(value, "a number >= 0") < 0:
        raise ValueError(f"must be a number >= 0, got {shown(value)}")
    return value


def _count(value: Any) -> int:
    count = _exact(value, "a whole number >= 0")
    if count.denominator != 1 or not 0 <= count <= MAX_PS:
        raise ValueError(f"must be a whole number >= 0, got {shown(value)}")
    return int(count)


def _launches(value: Any) -> int:
    count = _count(value)
    # Each launch has a gap after it; together the gaps must not exceed the longest time of an op.
    if count > MOST_LAUNCHES:
        raise ValueError(f"must be at most {MOST_LAUNCHES}, 53 days of gaps; got {shown(value)}")
    return count


def _seconds(value: Any) -> Fraction:
    return parse_time(_number(value))


_Time = Annotated[Fraction, PlainValidator(_nanoseconds)]


@with_config(ConfigDict(strict=True, extra="allow"))
class _TimesShape(TypedDict, total=False):
    p50: Required[_Time]


class _RowShape(TypedDict, total=False):
    """A row of a profile. Fields of type ``Any`` are carried along and not interpreted.

    - ``op``: the op's kind.
    - ``attrs``: its attributes.
    - ``dt``: dtypes of the operands.
    - ``in``: shapes of the operands as executed, null where unknown.
    - ``acc``: the dtype in which it accumulates; does not distinguish rows.
    - ``out``: shapes of the outputs.
    - ``dev``: the kind of device.
    - ``phase``: the phase of the step that it belongs to.
    - ``t_ns``: nanoseconds as measured around the op; simdev uses the median ``p50``.
    - ``src``: ``measured`` (default), or how the time was made: ``interpolated``, ``fitted``,
      ``scaled``, ``roofline`` or another name.
    - ``rel_err``: the expected relative error.
    - ``kernel_ns``: the time of a GPU's kernels.
    - ``launches``: the number of these kernels.
    - ``host_ns``: the time that the host needs for a bare call.
    - ``host_step_ns``: the time that the host needs for the op in a real step.
    - ``flops``: the number of its floating-point operations.
    - ``ws``: bytes of scratch memory.
    """

    op: Required[str]
    attrs: dict[str, Any]
    dt: list[str | None]
    acc: str | None
    out: Required[list[list[Extent] | None]]
    dev: Required[str]
    phase: Required[_Phase]
    t_ns: Required[_TimesShape]
    src: str
    rel_err: Annotated[float, PlainValidator(_error)] | None
    meth: str
    host_ns: _Time | None
    host_step_ns: _Time | None
    kernel_ns: _Time | None
    flops: Annotated[Any, PlainValidator(_number)] | None
    br: Any
    bw: Any
    out_bytes: Any
    saved: Any
    ws: Annotated[int, PlainValidator(_count)] | None
    launches: Annotated[int, PlainValidator(_launches)] | None
    batch: Any
    note: Any


# "in" is a keyword of Python, so a class cannot have a field of this name.
_InShape = TypedDict("_InShape", {"in": Required[list[list[Extent] | None]]}, total=False)


class _WholeRow(_RowShape, _InShape, total=False):
    """A row with its operands."""


@with_config(ConfigDict(strict=True, extra="allow"))
class _PhaseShape(TypedDict):
    """The host's time in one phase of a measured step, and the number of ops that share it."""

    host_s: Annotated[Fraction, PlainValidator(_seconds)]
    ops: Annotated[int, PlainValidator(_count)]


class _HostShape(TypedDict, total=False):
    phases: dict[str, _PhaseShape]


ROW = Format(_WholeRow)
_HOST = Format(_HostShape, prefix="host.")


def shipped_rows(kinds: Iterable[str]) -> tuple[Profile, ...]:
    """The shipped profiles that large models use by default on these kinds of device: first the
    grids (profiles/DEVICE/grids), then the steps (profiles/DEVICE) with rows in the precision of
    large models' kernels.
    """
    return tuple(profile for kind in kinds for profile in _shipped_profiles(kind))


def shipped_paths(kind: str) -> list[Path]:
    """The profiles that ship for a kind of device: grids first, then steps of models."""
    folder = examples_folder() / "profiles"
    paths = [*sorted(folder.glob("*/grids/*.jsonl")), *sorted(folder.glob("*/*.jsonl"))]
    # Names are compared, not globbed: a kind from a cluster file may hold any characters.
    return [path for path in paths if kind and kind == _measured_on(path)]


@cache
def _shipped_profiles(kind: str) -> tuple[Profile, ...]:
    profiles = map(read_profile, shipped_paths(kind))
    return tuple(
        profile for profile in profiles if any(f'"{PRECISIONS[0]}"' in key for key in profile.rows)
    )


def _measured_on(path: Path) -> str:
    """The kind of device in the name of a profile's file: NAME.KIND.jsonl."""
    return path.name.removesuffix(".jsonl").partition(".")[2]


def read_profile(source: PathLike | Mapping[str, Any]) -> Profile:
    """The profile of a file of JSON lines, or of an object ``{"header": {...}, "rows": [...]}``.

    A file that ships is read once a process while it stays unchanged: each scenario of a captured
    step reads all shipped profiles of its device. Raises InputError with every problem at once,
    each with its line.
    """
    if isinstance(source, (str, os.PathLike)):
        written = _written(source)
        return _profile_of_lines(source) if written is None else _kept(*written)
    unknown = [f"{key}: unknown key" for key in source if key not in ("header", "rows")]
    if unknown or not isinstance(source.get("rows"), list):
        raise InputError(unknown or "rows: must be a list of rows, beside an optional header")
    head = [("header", source["header"], ())] if "header" in source else []
    return _profile(head + [(f"rows[{i}]", row, ()) for i, row in enumerate(source["rows"])])


def _written(source: PathLike) -> tuple[Path, int, int] | None:
    """The file of a shipped profile, its time of change (ns) and its size; else None."""
    with suppress(InputError, OSError, ValueError):
        path = Path(source).resolve()
        if path.is_relative_to((examples_folder() / "profiles").resolve()):
            return path, path.stat().st_mtime_ns, path.stat().st_size
    return None


@cache
def _kept(path: Path, _time_ns: int, _bytes: int) -> Profile:
    return _profile_of_lines(path)


def _profile_of_lines(source: PathLike) -> Profile:
    with within(label(source)):
        return _profile((f"line {n}", *entry) for n, *entry in read_json_lines(source))


def _profile(entries: Iterable[tuple[str, Any, tuple[str, ...]]]) -> Profile:
    header: Mapping[str, Any] = {}
    rows: dict[str, Row] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for number, (place, value, faults) in enumerate(entries):
        row = None
        with collecting(problems, f"{place}: "):
            refuse(faults)
            if number == 0 and _is_header(value):
                header = plain(value)
            else:
                row = _row(value)
        if row is not None:
            # With two rows of one key their order would decide which time is used.
            if places.setdefault(row.key, place) is not place:
                problems.append(f"{place}: the same operator as {places[row.key]}")
            rows[row.key] = row
    refuse(problems)
    return Profile(header, rows)


def _is_header(value: Any) -> bool:
    if not isinstance(value, dict) or "op" in value or "coll" in value:
        return False
    _require_version(value, required=False)
    if "version" in value:
        raise InputError('has "version", as scenarios and graphs have: no profile')
    if not isinstance(value.get("header", {}), dict):
        raise InputError(f"header: must be an object, got {shown(value['header'])}")
    _require_host_times(value)
    return True


def _require_host_times(header: Fields) -> None:
    """Refuses impossible host times in a header. Other fields of a header are not checked."""
    phases = object_at(fields_of(header), "host").get("phases")
    if phases is not None:
        _HOST.validated({"phases": phases})


def _require_version(value: Fields, required: bool) -> None:
    version = value.get("v")
    if required and "v" not in value:
        raise InputError(f'v: missing; write "v": {VERSION}')
    if "v" in value and (type(version) is not int or version != VERSION):
        raise InputError(
            f"v: must be {VERSION}, the only one that this simdev reads; got {shown(version)}"
        )


def _row(value: Any) -> Row | None:
    """The row of an operator; None for a collective."""
    if not isinstance(value, dict):
        raise InputError(f"must be an object, got {shown(value)}")
    _require_version(value, required=True)
    # Profiles hold collectives too, which serve to fit tables.
    if "coll" in value:
        return None
    if "op" not in value:
        raise InputError('holds neither an operator ("op") nor a collective ("coll")')
    fields = ROW.validated({name: item for name, item in value.items() if name != "v"})
    key = profile_key(
        fields["op"],
        plain(fields.get("attrs", {})),
        fields["in"],
        fields.get("dt", ()),
        fields["out"],
        fields["phase"],
        fields["dev"],
    )
    seconds = fields["t_ns"]["p50"] / NS_PER_SECOND
    row = Row(key, seconds, fields.get("src", "measured"), fields.get("rel_err"), value)
    if row.device_seconds() * PS_PER_SECOND > MAX_PS:
        raise InputError("kernel_ns: with a gap for each of the launches it is more than 53 days")
    return row


def write_profile(profile: Profile, path: PathLike) -> None:
    """Write a profile as JSON lines: its header, if any, then its rows.

    Raises OSError where it cannot write.
    """
    lines = [json.dumps(plain(profile.header), ensure_ascii=False)] if profile.header else []
    lines += [_row_line(row) for row in profile.rows.values()]
    write_text(path, "".join(line + "\n" for line in lines))


def _row_line(row: Row) -> str:
    dev, op, phase, attrs, operands, dtypes, outputs = json.loads(row.key)
    details = plain(row.details)
    fields = {
        "v": VERSION,
        "op": op,
        "attrs": attrs,
        "in": operands,
        "dt": dtypes,
        "out": outputs,
        "dev": dev,
        "phase": phase,
        **details,
        "src": row.source,
    }
    if row.rel_err is not None:
        fields["rel_err"] = row.rel_err
    times = fields.pop("t_ns", {})
    others = [
        f", {json.dumps(name)}: {json.dumps(time)}" for name, time in times.items() if name != "p50"
    ]
    # The median must be read back exactly, and json would write it as a float.
    median = f'"t_ns": {{"p50": {decimal_text(row.seconds * NS_PER_SECOND)}{"".join(others)}}}'
    return f"{json.dumps(fields, ensure_ascii=False)[:-1]}, {median}}}"
