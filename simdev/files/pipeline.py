"""Pipelines of strategies from and to JSON: ``{"dp": 4, "tp": 8, "pp": 2, "microbatches": 16}``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import cache
from typing import Any

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..errors import InputError
from ..strategy import Parallelism
from .paths import shown
from .reading import read_json, read_text
from .shape import STRICT, Bandwidth, validate
from .writing import rate_text


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
    stages: list[list[str] | str]
    ranks: list[str]
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


KEYS = frozenset(_PipelineShape.__annotations__)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_PipelineShape)


def read_pipeline(value: Any, folder: str, problems: list[str]) -> Parallelism | None:
    """The pipeline of a strategy; a table's path is relative to ``folder``.

    What is wrong joins ``problems``.
    """
    if not isinstance(value, Mapping):
        problems.append(f"pipeline: must be an object, got {shown(value)}")
        return None
    try:
        shaped = dict(validate(_adapter(), value, KEYS, "pipeline."))
    except InputError as error:
        problems.extend(error.problems)
        return None
    try:
        if shaped.get("table") is not None:
            shaped["table"] = _table(shaped, folder)
        return Parallelism(**shaped)
    except InputError as error:
        if error.file is not None:
            problems.extend(
                f"pipeline.table: {error.file}: {problem}" for problem in error.problems
            )
        else:
            problems.extend(f"pipeline.{problem}" for problem in error.problems)
        return None


def _table(shaped: Mapping[str, Any], folder: str) -> str:
    """The text of the schedule that a pipeline names."""
    beside = [name for name in ("schedule", "chunks") if name in shaped]
    if beside:
        raise InputError(f"{beside[0]}: the table tells it; give one of them")
    path = shaped["table"]
    if not path or "\0" in path:
        raise InputError(f"table: must be the path of a schedule, got {shown(path)}")
    return read_text(os.path.normpath(os.path.join(folder, path)))


def table_path(strategy: Any, folder: str, read: Callable[[str], Any] = read_json) -> str | None:
    """Where the schedule lies that a strategy (an object, or the path of one) names; None where it
    names none.

    ``read`` gives the value of a file; what is wrong with it is told where the strategy is read.
    """
    if isinstance(strategy, str) and strategy.endswith((".json", ".gz")) and "\0" not in strategy:
        path = os.path.normpath(os.path.join(folder, strategy))
        try:
            strategy, folder = read(path) if os.path.isfile(path) else None, os.path.dirname(path)
        except InputError:
            return None
    pipeline = strategy.get("pipeline") if isinstance(strategy, Mapping) else None
    table = pipeline.get("table") if isinstance(pipeline, Mapping) else None
    is_path = isinstance(table, str) and table and "\0" not in table
    return os.path.normpath(os.path.join(folder, str(table))) if is_path else None


def pipeline_object(pipeline: Parallelism) -> dict[str, Any]:
    """What a strategy's file says of a pipeline: what differs from the defaults.

    Raises InputError for a table of its own, which is a file beside the strategy's.
    """
    if pipeline.table is not None:
        raise InputError(
            "pipeline.table: a schedule of one's own is a file; name it in the strategy's "
            "file by hand"
        )
    default, found = Parallelism(), dict[str, Any]()
    for field in fields(pipeline):
        value = getattr(pipeline, field.name)
        if value != getattr(default, field.name):
            found[field.name] = _plain(value)
    if pipeline.host_bandwidth is not None:
        found["host_bandwidth"] = rate_text(Fraction(pipeline.host_bandwidth))
    return found


def _plain(value: Any) -> Any:
    """Tuples as lists."""
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
