"""A scenario with several fields set; the global batch of a large model stays what it was.

Replicas and microbatches are ways to spread a batch, so plans can be compared only while that
stays. Who sets ``microbatches`` or ``global_batch`` tells another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any

from ...ground.errors import prefixed
from ...ground.units import is_count
from ...nouns.strategy.parallelism import MOST, microbatches_of
from .fields import Read, opened, parse_path, with_field

SPREAD = ("dp", "microbatch")
BATCH = ("microbatches", "global_batch")


def with_fields(
    document: Mapping[str, Any], settings: Mapping[str, Any], folder: str, read: Read
) -> Mapping[str, Any]:
    """The scenario with other values at several paths, a whole part before its fields.

    Where ``dp`` or ``microbatch`` of its pipeline is set, and neither ``microbatches`` nor
    ``global_batch``, microbatches follow from the batch that it had. Raises InputError.
    """
    paths = sorted(settings, key=len)
    spread = {name: path for path in paths if (name := _of_pipeline(path)) in (*SPREAD, *BATCH)}
    for path in paths:
        if path not in spread.values():
            document = with_field(document, path, settings[path], folder, read)
    if not spread:
        return document
    before = _pipeline(document, folder, read)
    for path in spread.values():
        document = with_field(document, path, settings[path], folder, read)
    return _with_batch(document, before, spread)


def _of_pipeline(path: str) -> str:
    """The field of a pipeline that a path leads to; "" where it leads elsewhere."""
    steps = parse_path(path)
    is_field = len(steps) == 3 and steps[:2] == ("strategy", "pipeline")
    return str(steps[2]) if is_field else ""


def _pipeline(document: Mapping[str, Any], folder: str, read: Read) -> Mapping[str, Any]:
    """What a scenario says of its pipeline, wherever that stands."""
    part = document.get("strategy", {})
    if not isinstance(part, (str, dict)):
        return {}
    strategy = opened("strategy", part, ("pipeline",), lambda n: read(os.path.join(folder, n)))
    pipeline = strategy.get("pipeline") if isinstance(strategy, Mapping) else None
    return pipeline if isinstance(pipeline, Mapping) else {}


def _with_batch(
    document: Mapping[str, Any], before: Mapping[str, Any], spread: Mapping[str, str]
) -> Mapping[str, Any]:
    """The scenario, whose pipeline was another before the fields in ``spread`` were set."""
    pipeline = dict(document["strategy"]["pipeline"])
    given = [name for name in BATCH if name in spread]
    if given:
        # What the scenario says of the other goes with the batch that it had.
        pipeline = {k: v for k, v in pipeline.items() if k in given or k not in BATCH}
    elif "global_batch" not in pipeline:
        was, now = (_counts(part) for part in (before, pipeline))
        if was is None or now is None:
            return document  # what is no count is told by who reads it
        with prefixed("strategy.pipeline."):
            pipeline["microbatches"] = microbatches_of(prod(was), *now[:2])
    return {**document, "strategy": {**document["strategy"], "pipeline": pipeline}}


def _counts(pipeline: Mapping[str, Any]) -> list[int] | None:
    """Replicas, samples of a microbatch and microbatches; None where any is no count."""
    counts = [pipeline.get(name, 1) for name in (*SPREAD, BATCH[0])]
    return counts if all(is_count(count) and 0 < count <= MOST for count in counts) else None
