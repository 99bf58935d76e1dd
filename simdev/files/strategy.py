"""Strategies from and to JSON, with their policies of synchronisation and their pipelines.

An object without ``version`` whose values are all texts is a bare placement, ``{"matmul_1":
"gpu:0"}``. So is one that has neither ``version`` nor an object under a key of the format. An
object whose ``short`` names a short form and that has no key beside those of the format is none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Required

from typing_extensions import TypedDict

from ..ground.errors import InputError
from ..nouns.strategy import (
    POLICIES,
    POLICY_NAMES,
    SHORT_FORMS,
    SYNCS,
    Collectives,
    Configuration,
    Loader,
    Order,
    Parallelism,
    Strategy,
    Sync,
    default_sync,
    no_sync,
    sync_of,
    sync_policy,
)
from .collectives import choice_object, read_choice
from .paths import shown
from .reading import PathLike, read_text
from .shape import Bandwidth, Bytes, Format, OptionalBytes, Priority, Seconds, opened
from .writing import changed_fields, time_text, write_text

# The keys of a strategy's file, and what they mean.


class OrderShape(TypedDict, total=False):
    """The order in queues.

    - ``policy``: ``fifo`` by readiness, ``program``: devices run in program order,
      ``priority``: smaller first, or ``fixed``.
    - ``priority``: by op, 0 where nothing is said; a transfer takes the smallest of its
      consumers.
    - ``sequence``: by queue exactly what it serves; other queues stay fifo.
    """

    policy: Required[str]
    priority: dict[str, Priority]
    sequence: dict[str, list[str]]


class ConfigurationShape(TypedDict, total=False):
    """How an op is split.

    - ``split``: parts by axis; ``sample`` is the sample axis.
    - ``devices``: of the parts, in order.
    - ``time``: ``divided``: a part takes its share of the op's time.
    """

    split: dict[str, int]
    devices: list[str]
    time: str | None


class SyncShape(TypedDict, total=False):
    """A policy of synchronisation; ``simdev.nouns.strategy.Sync`` tells its keys."""

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
    every: int | None


class PipelineShape(TypedDict, total=False):
    """Parallelism; ``simdev.nouns.strategy.Parallelism`` tells its keys."""

    dp: int
    tp: int
    pp: int
    ep: int
    cp: int
    context: str
    microbatches: int
    microbatch: int
    global_batch: int | None
    schedule: str
    chunks: int
    table: str | None
    stage_layers: list[int]
    stages: list[list[str] | str]
    ranks: list[str]
    zero: int
    prefetch: int
    in_flight: int
    bucket: int
    reduce_bytes: int | None
    message_latency: Seconds
    overlap: bool
    recompute: str
    recompute_modules: list[str]
    flash: bool | None
    sequence_parallel: bool
    tensor_overlap: bool
    scatter_gather: bool
    offload: list[str]
    host_bandwidth: Bandwidth
    gradient_bytes: int
    state_bytes: int


class LoaderShape(TypedDict, total=False):
    """What makes the batch.

    - ``device``: where.
    - ``time``: of each batch.
    """

    device: Required[str]
    time: Seconds


class StrategyShape(TypedDict, total=False):
    """Where and in which order ops run; keys that name ops may be groups, modules or patterns.

    - ``placement``: op, group, module or pattern to device; of every op where nothing is split.
    - ``order``: ``fifo`` (default), ``program``, or an object.
    - ``partition``: op, group or pattern to how it is split.
    - ``tensors``: ``op:output`` to parts by dimension: how the tensor is stored.
    - ``sync``: ``all-reduce`` (default), ``parameter-server`` or ``sharded``; or an object: a
      policy of steps that follow one another.
    - ``short``: a short form, like ``data-parallel``.
    - ``devices``: of the short form; default all.
    - ``collectives``: how collective ops run that do not say it themselves.
    - ``accumulate``: microbatches of a step; default 1.
    - ``loader``: the host that makes the batch.
    - ``pipeline``: stages over the ops of a graph, or the parallelism of a large model; stands
      alone.
    - ``provenance``: where it comes from, in any form.
    """

    placement: dict[str, str]
    order: Any
    partition: dict[str, ConfigurationShape]
    tensors: dict[str, dict[str, int]]
    sync: Any
    short: str
    devices: list[str]
    collectives: Any
    accumulate: int
    loader: LoaderShape
    pipeline: Any
    provenance: dict[str, Any]


ORDER = Format(OrderShape, prefix="order.")
SYNC = Format(SyncShape, prefix="sync.")
PIPELINE = Format(PipelineShape, prefix="pipeline.")
FORMAT = Format(StrategyShape, "a strategy or a placement", parts=(PIPELINE,))


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
        # Where the whole has not its shape, the parts that are read by themselves are tried all the
        # same, so that every problem is told at once.
        is_readable = True
        try:
            fields = FORMAT.checked(value)
        except InputError as error:
            if not isinstance(value, dict) or error.problems[0].startswith("version"):
                raise
            problems, fields, is_readable = list(error.problems), value, False
        read: dict[str, Any] = {"order": _order(fields.get("order", "fifo"), problems)}
        if not is_readable:
            read_sync(fields.get("sync"), problems)
        else:
            read |= _split_fields(fields, problems)
        if "collectives" in fields:
            read["collectives"] = _collectives(fields["collectives"], problems)
        if "accumulate" in fields:
            read["accumulate"] = fields["accumulate"]
        if is_readable and "loader" in fields:
            read["loader"] = Loader(**fields["loader"])
        if "pipeline" in fields:
            read["pipeline"] = read_pipeline(fields["pipeline"], folder, problems)
        if problems:
            raise InputError(problems)
        return Strategy(fields.get("placement", {}), **read)


def _split_fields(fields: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """What a strategy says of splits; what is wrong joins ``problems``."""
    partition, tensors = {}, dict[str, dict[int, int]]()
    for key, configuration in fields.get("partition", {}).items():
        try:
            partition[key] = Configuration(**configuration)
        except InputError as error:
            problems += [f'partition["{key}"].{problem}' for problem in error.problems]
    for key, degrees in fields.get("tensors", {}).items():
        tensors[key] = {}
        for dimension, degree in degrees.items():
            if dimension.isdecimal() and dimension.isascii():
                tensors[key][int(dimension)] = degree
            else:
                problems.append(
                    f'tensors["{key}"]["{dimension}"]: must be the number of a dimension'
                )
    sync, short = read_sync(fields.get("sync"), problems), fields.get("short")
    devices = tuple(fields.get("devices", ()))
    if short is not None and short not in SHORT_FORMS:
        problems.append(f"short: must be one of {', '.join(SHORT_FORMS)}, got {shown(short)}")
    if devices and short not in SHORT_FORMS:
        problems.append("devices: go with a short form; a configuration names its own")
    return {
        "partition": partition,
        "tensors": tensors,
        "sync": sync,
        "short": short,
        "devices": devices,
    }


def _collectives(value: Any, problems: list[str]) -> Collectives:
    try:
        return read_choice(value)
    except InputError as error:
        problems.extend(error.problems)
        return Collectives()


def is_bare(value: dict[str, Any]) -> bool:
    """Whether the object of a strategy is a placement alone."""
    # An op may have the name of a key: what the keys hold, and what stands beside them, decides.
    is_strategy = set(value) <= StrategyShape.__annotations__.keys()
    if is_strategy and (value.get("short") in SHORT_FORMS or "pipeline" in value):
        return False
    if "version" in value or any(isinstance(value.get(key), dict) for key in FORMAT.keys):
        return False
    return not (set(value) == {"order"} and value["order"] in POLICIES)


def _order(value: Any, problems: list[str]) -> Order:
    try:
        if isinstance(value, str):
            return Order(value)
        if not isinstance(value, dict):
            raise InputError(
                f"order: must be the name of a policy or an object, got {shown(value)}"
            )
        fields = ORDER.validated(value)
        sequence = {queue: tuple(entries) for queue, entries in fields.get("sequence", {}).items()}
        return Order(fields["policy"], fields.get("priority", {}), sequence)
    except InputError as error:
        problems.extend(error.problems)
        return Order()


def read_sync(value: Any, problems: list[str]) -> str | Sync:
    """How gradients are added up: one of SYNCS, the policy of a name or an object, or "" where
    nothing is given.

    What is wrong joins ``problems``.
    """
    # The default depends on the short form, which only the strategy knows.
    if value is None:
        return ""
    try:
        if isinstance(value, str) and value in (*SYNCS, *POLICY_NAMES):
            return sync_of(value)
        if not isinstance(value, Mapping):
            raise InputError(no_sync(shown(value)))
        settings = SYNC.validated(value)
        if "servers" in settings:
            settings["servers"] = _servers(settings["servers"])
        return sync_policy(settings.pop("policy"), **settings)
    except InputError as error:
        problems.extend(error.problems)
        return SYNCS[0]


def _servers(value: Any) -> str | tuple[str, ...]:
    """A way to spread servers, or the machines: {"machine": "host:0"}, {"machine": ["host:0",
    "host:1"]}.
    """
    if isinstance(value, str):
        return value
    is_machine = isinstance(value, Mapping) and set(value) == {"machine"}
    names = value["machine"] if is_machine else None
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            'sync.servers: must be "sharded", "star" or {"machine": NAME}, got ' + shown(value)
        )
    return tuple(names)


def read_pipeline(value: Any, folder: str, problems: list[str]) -> Parallelism | None:
    """The pipeline of a strategy; a table's path is relative to ``folder``.

    What is wrong joins ``problems``.
    """
    try:
        if not isinstance(value, Mapping):
            hint = '; write {"pp": 4, "microbatches": 16}' if isinstance(value, str) else ""
            raise InputError(f"pipeline: must be an object, got {shown(value)}{hint}")
        fields = PIPELINE.validated(value)
    except InputError as error:
        problems.extend(error.problems)
        return None
    try:
        if fields.get("table") is not None:
            fields["table"] = _table(fields, folder)
        pipeline = Parallelism(**fields)
        # Parallelism cannot tell a 1 that was written from its default.
        if fields.get("microbatches", pipeline.microbatches) != pipeline.microbatches:
            follows = f"{pipeline.microbatches:,} follow from global_batch; give one of them"
            raise InputError(f"microbatches: {fields['microbatches']}, but {follows}")
        return pipeline
    except InputError as error:
        # A table is a file of its own: its problems are told of it.
        prefix = "pipeline." if error.file is None else f"pipeline.table: {error.file}: "
        problems.extend(prefix + problem for problem in error.problems)
        return None


def _table(fields: Mapping[str, Any], folder: str) -> str:
    """The text of the schedule that a pipeline names."""
    # A table says both; one that differed would be believed without a word.
    for name in ("schedule", "chunks"):
        if name in fields:
            raise InputError(f"{name}: the table tells it; give one of them")
    path = fields["table"]
    if not path or "\0" in path:
        raise InputError(f"table: must be the path of a schedule, got {shown(path)}")
    return read_text(os.path.normpath(os.path.join(folder, path)))


def write_strategy(strategy: Strategy, path: PathLike) -> None:
    """Write a strategy. Raises OSError where it cannot write, InputError for a pipeline's table."""
    text = json.dumps(strategy_object(strategy), ensure_ascii=False, indent=1)
    write_text(path, text + "\n")


def strategy_object(strategy: Strategy) -> dict[str, Any]:
    """A strategy as JSON, which ``read_strategy`` takes. Raises InputError for a pipeline's
    table.
    """
    order = strategy.order
    fields: dict[str, Any] = {
        "version": 1,
        "placement": dict(strategy.placement),
        "order": order.policy if order == Order(order.policy) else changed_fields(order, "policy"),
    }
    return fields | _split_object(strategy)


def _split_object(strategy: Strategy) -> dict[str, Any]:
    """What is split, as far as anything is."""
    fields: dict[str, Any] = {}
    if strategy.partition:
        fields["partition"] = {
            key: changed_fields(configuration, "split")
            for key, configuration in strategy.partition.items()
        }
    if strategy.tensors:
        fields["tensors"] = {
            key: {str(dimension): degree for dimension, degree in degrees.items()}
            for key, degrees in strategy.tensors.items()
        }
    sync = strategy.sync
    # What follows from the short form is left out, so that a file read again is the same strategy.
    if sync != default_sync(strategy.short):
        fields["sync"] = sync_object(sync) if isinstance(sync, Sync) else sync
    if strategy.short is not None:
        fields |= {"short": strategy.short, "devices": list(strategy.devices)}
    if strategy.collectives != Collectives():
        fields["collectives"] = choice_object(strategy.collectives)
    if strategy.accumulate != 1:
        fields["accumulate"] = strategy.accumulate
    if strategy.loader is not None:
        time = time_text(Fraction(strategy.loader.time))
        fields["loader"] = {"device": strategy.loader.device, "time": time}
    if strategy.pipeline is not None:
        fields["pipeline"] = pipeline_object(strategy.pipeline)
    return fields


def sync_object(sync: Sync) -> dict[str, Any]:
    """A policy with what differs from its preset, as JSON."""
    fields = changed_fields(sync, *sync.settings)
    fields = {name: fields[name] for name in ("policy", *sync.settings)}
    if "servers" in fields and not isinstance(sync.servers, str):
        fields["servers"] = {"machine": list(sync.servers)}
    return fields


def pipeline_object(pipeline: Parallelism) -> dict[str, Any]:
    """What a strategy's file says of a pipeline: what differs from the defaults.

    Raises InputError for a table of its own, which is a file beside the strategy's.
    """
    if pipeline.table is not None:
        raise InputError(
            "pipeline.table: a schedule of one's own is a file; name it in the strategy's "
            "file by hand"
        )
    return changed_fields(pipeline)
