"""Scenarios whose strategy is a pipeline: a large model by its name, spread by dp, tp, pp and ep.

{"version": 1, "graph": {"model": "llama3-70b", "length": 4096}, "cluster": {"preset": "dgx-h100", "nodes": 8},
 "strategy": {"pipeline": {"dp": 4, "tp": 8, "pp": 2, "microbatches": 16}}}
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster
from ..errors import InputError
from ..models.large import Transformer, large_model
from ..profile import DeviceSpec
from ..strategy.parallelism import Parallelism
from .cluster import preset_hint, preset_names, read_cluster, read_preset
from .device import read_device
from .paths import shown
from .reading import PathLike, label, read_json, read_text
from .scenario import ENGINES, datasheets
from .shape import STRICT, Bandwidth, read_shape


@with_config(STRICT)
class _PipelineShape(TypedDict, total=False):
    dp: int
    tp: int
    pp: int
    ep: int
    microbatches: int
    microbatch: int
    schedule: str
    chunks: int
    table: str | None
    stage_layers: list[int]
    zero: int
    prefetch: int
    overlap: bool
    recompute: str
    flash: bool
    sequence_parallel: bool
    offload: list[str]
    host_bandwidth: Bandwidth
    gradient_bytes: int
    state_bytes: int


@with_config(STRICT)
class _StrategyShape(TypedDict, total=False):
    pipeline: Required[_PipelineShape]
    provenance: dict[str, Any]


@with_config(STRICT)
class _OptionsShape(TypedDict, total=False):
    engine: str
    symmetry: bool


@with_config(STRICT)
class _TrainingShape(TypedDict, total=False):
    name: str
    graph: Required[Any]
    cluster: Required[Any]
    devices: Any
    strategy: Required[Any]
    options: _OptionsShape
    provenance: dict[str, Any]


_NAMED = re.compile(r'"strategy"\s*:\s*"([^"\\]+)"')
_KEYS = frozenset({*_TrainingShape.__annotations__, *_OptionsShape.__annotations__, *_PipelineShape.__annotations__})


@cache
def _adapters() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    return TypeAdapter(_TrainingShape), TypeAdapter(_StrategyShape)


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """What such a scenario names, read and valid."""

    model: Transformer
    cluster: Cluster
    specs: tuple[DeviceSpec, ...]
    parallelism: Parallelism
    engine: str
    symmetry: bool


def has_pipeline(source: PathLike | Mapping[str, Any]) -> bool:
    """Whether a scenario's strategy is a pipeline; false, too, where it cannot be read (and for stdin, read but once).

    Only a text that may be one is parsed: graphs can be large.
    """
    if isinstance(source, Mapping):
        return _is_pipeline(source.get("strategy"))
    path = os.fspath(source)
    try:
        text = read_text(path) if os.path.isfile(path) else ""
        named = _NAMED.search(text)
        other = os.path.join(os.path.dirname(path), named[1]) if named else ""
        if os.path.isfile(other) and '"pipeline"' in read_text(other):
            return _is_pipeline(read_json(other))
        return '"pipeline"' in text and _is_pipeline(read_json(path).get("strategy"))
    except (InputError, AttributeError, ValueError):
        return False


def _is_pipeline(strategy: Any) -> bool:
    """A text would be the device of an op of that name, in a placement alone."""
    return isinstance(strategy, Mapping) and not isinstance(strategy.get("pipeline", ""), str)


def _opened(source: PathLike | Mapping[str, Any]) -> tuple[Any, str]:
    if isinstance(source, Mapping):
        return source, ""
    path = os.fspath(source)
    return read_json(path), "" if path == "-" else os.path.dirname(path)


def read_training(source: PathLike | Mapping[str, Any]) -> TrainingParts:
    """The parts of a scenario file, or of an object already parsed. Raises InputError with every problem at once."""
    is_file = not isinstance(source, Mapping)
    file = label(source) if not isinstance(source, Mapping) else ""
    value, folder = _opened(source)
    problems: list[str] = []

    def caught(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except InputError as error:
            own = error.file or file
            problems.extend(f"{own}: {one}" if own else one for one in error.problems)
            return None

    shaped = caught(lambda: read_shape(_adapters()[0], value, _KEYS, is_file, "a scenario"))
    if shaped is None:
        raise InputError(problems)
    options = shaped.get("options", {})
    if options.get("engine", "auto") not in ENGINES:
        caught(lambda: _refuse(f"options.engine: must be one of {', '.join(ENGINES)}, got {shown(options['engine'])}"))
    model = caught(lambda: _model(shaped["graph"]))
    cluster = caught(lambda: _cluster(shaped["cluster"], folder))
    own = caught(lambda: _devices(shaped.get("devices", []), folder))
    parallelism = caught(lambda: _parallelism(shaped["strategy"], folder))
    if problems:
        raise InputError(problems)
    specs = datasheets(own, [device.kind for device in cluster.devices], ())
    return TrainingParts(
        model, cluster, specs, parallelism, options.get("engine", "auto"), options.get("symmetry", True)
    )


def _refuse(problem: str) -> None:
    raise InputError(problem)


@contextmanager
def _under(path: str) -> Iterator[None]:
    """What is wrong lies under this path of the scenario, or in the file that it names."""
    try:
        yield
    except InputError as error:
        raise error if error.file else InputError([f"{path}{one}" for one in error.problems]) from None


def _model(value: Any) -> Transformer:
    if not isinstance(value, Mapping) or "model" not in value:
        raise InputError('graph: must be {"model": NAME, ...}: a pipeline is for a large model by its name')
    with _under("graph."):
        return large_model(value["model"], **{str(key): one for key, one in value.items() if key != "model"})


def _cluster(value: Any, folder: str) -> Cluster:
    if isinstance(value, Mapping):
        with _under("cluster."):
            return read_cluster(value)
    if not isinstance(value, str) or not value:
        raise InputError(f"cluster: must be a path, a preset's name or an object, got {shown(value)}")
    path = os.path.normpath(os.path.join(folder, value))
    if os.path.exists(path):
        return read_cluster(path)
    if value in preset_names():
        return read_preset(value)
    raise InputError(f"cluster: neither a file nor a preset: {shown(value)}; {preset_hint(value)}")


def _devices(value: Any, folder: str) -> tuple[DeviceSpec, ...]:
    found = []
    for i, one in enumerate(value if isinstance(value, list) else [value]):
        with _under(f"devices[{i}]." if isinstance(value, list) else "devices."):
            found.append(read_device(os.path.join(folder, one) if _is_path(one) else one))
    return tuple(found)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.endswith((".json", ".json.gz"))


def _parallelism(value: Any, folder: str) -> Parallelism:
    if not isinstance(value, str):
        with _under("strategy."):
            return _told_parallelism(value, folder)
    path = os.path.normpath(os.path.join(folder, value))
    try:
        return _told_parallelism(read_json(path), os.path.dirname(path))
    except InputError as error:
        raise error.within(path) from None


def _told_parallelism(value: Any, folder: str) -> Parallelism:
    fields = dict(read_shape(_adapters()[1], value, _KEYS, False, "a strategy")["pipeline"])
    with _under("pipeline."):
        if fields.get("table") is not None:
            fields["table"] = _table(fields, folder)
        return Parallelism(**fields)


def _table(fields: Mapping[str, Any], folder: str) -> str:
    """The text of the schedule that a pipeline names."""
    beside = [name for name in ("schedule", "chunks") if name in fields]
    if beside:
        raise InputError(f"{beside[0]}: the table tells it; give one of them")
    if not fields["table"]:
        raise InputError("table: must be the path of a schedule, got an empty text")
    return read_text(os.path.normpath(os.path.join(folder, fields["table"])))
