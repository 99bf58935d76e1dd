"""Strategies from and to JSON, with their policies of synchronisation and their pipelines.

An object is a bare placement, like ``{"matmul_1": "gpu:0"}``, where it has no ``version`` and no
object under a key of the format. It is a strategy, though, where all of its keys are keys of the
format and ``short`` names a short form.

FlexFlow's strategy files (its text format since 2021) are read into configurations. They are words
separated by white space: the number of ops; then for each op its name, the type of device (0 GPU,
1 CPU), the number of dimensions, the degree of each (innermost first, the sample last), the number
of device ids, and the ids. Without ids the first devices are used. An op that the file leaves out
is data parallel over all devices, as in FlexFlow.

Scenarios, ``simdev search`` and the server read and write strategies here. A new field is a field
of its noun (``nouns/strategy``) and a key of StrategyShape, read in ``_parts`` and written in
``_split_object``; ``keys_of`` takes over the fields of Sync, Parallelism and Order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Required

from typing_extensions import TypedDict

from ..ground.errors import InputError, collecting, refuse, within
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.semantics import op_semantics, output_axes, traits_of
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
from ..nouns.structure import op_splits, weights_of
from .collectives import choice_object, read_choice
from .reading import PathLike, label, located, read_text, shown
from .shape import Fields, Format, Priority, keys_of, opened
from .writing import changed_fields, write_text

# The keys of a strategy's file and their meanings.


@keys_of(Order)
class OrderShape(TypedDict, total=False):
    """The order in queues.

    - ``policy``: ``fifo`` by readiness, ``program``: devices run in program order,
      ``priority``: smaller first, or ``fixed``.
    - ``priority``: a number by op, default 0; a transfer takes the smallest priority of its
      consumers.
    - ``sequence``: by queue, the exact sequence that it serves; other queues stay fifo.
    """

    policy: Required[str]
    priority: dict[str, Priority]


@keys_of(Configuration)
class ConfigurationShape(TypedDict, total=False):
    """How an op is split.

    - ``split``: parts by axis; ``sample`` is the sample axis.
    - ``devices``: the devices of the parts, in order.
    - ``time``: ``divided``: a part takes its share of the op's time.
    """


@keys_of(Sync)
class SyncShape(TypedDict, total=False):
    """A policy of synchronisation; ``simdev.nouns.strategy.Sync`` tells its keys."""

    servers: Any
    aggregation: Any


@keys_of(Parallelism)
class PipelineShape(TypedDict, total=False):
    """Parallelism; ``simdev.nouns.strategy.Parallelism`` tells its keys."""


@keys_of(Loader)
class LoaderShape(TypedDict, total=False):
    """The loader, which makes the batch.

    - ``device``: the device where it runs.
    - ``time``: the time that each batch takes.
    """


class StrategyShape(TypedDict, total=False):
    """Devices and order of ops. Keys that name ops may also name groups, modules or patterns.

    - ``placement``: op, group, module or pattern to device; for every op where nothing is split.
    - ``order``: ``fifo`` (default), ``program``, or an object.
    - ``partition``: op, group or pattern to how it is split.
    - ``tensors``: ``op:output`` to parts by dimension: how the tensor is stored.
    - ``sync``: ``all-reduce`` (default), ``parameter-server`` or ``sharded``; or an object: a
      policy of steps that follow one another.
    - ``short``: a short form, like ``data-parallel``.
    - ``devices``: the devices of the short form; default all.
    - ``collectives``: how collective ops run, except where an op says it itself.
    - ``accumulate``: microbatches of a step; default 1.
    - ``loader``: the host that makes the batch.
    - ``pipeline``: stages over the ops of a graph, or the parallelism of a large model; without
      other fields.
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

    The path of a pipeline's table is relative to the file, in an object to ``folder``. Raises
    InputError with every problem at once.
    """
    folder = os.path.dirname(source) if isinstance(source, (str, os.PathLike)) else folder
    with opened(source) as (value, _):
        if isinstance(value, dict) and is_bare(value):
            value = {"placement": value}
        problems: list[str] = []
        # Where the whole object is faulty, the parts with readers of their own are read all the
        # same, so that every problem is reported at once.
        fields, is_whole = value, True
        try:
            fields = FORMAT.checked(value)
        except InputError as error:
            if not isinstance(value, dict) or error.problems[0].startswith("version"):
                raise
            problems, is_whole = list(error.problems), False
        parts = _parts(fields, folder, is_whole, problems)
        refuse(problems)
        return Strategy(fields.get("placement", {}), **parts)


def _parts(fields: Mapping[str, Any], folder: str, is_whole: bool, problems: list[str]) -> Fields:
    """The parts of a strategy without its placement; only those with readers of their own unless
    ``is_whole`` (the whole object has its shape). Problems are added to ``problems``.
    """
    parts: Fields = {}

    def read(name: str, reader: Callable[[Any], Any]) -> None:
        if name in fields:
            with collecting(problems):
                parts[name] = reader(fields[name])

    read("order", _order)
    if is_whole:
        read("partition", _partition)
        read("tensors", _tensors)
    read("sync", _sync)
    if is_whole:
        read("short", _short)
        read("devices", lambda names: _devices(names, fields.get("short")))
        read("accumulate", int)
        read("loader", lambda loader: Loader(**loader))
    read("collectives", read_choice)
    read("pipeline", lambda pipeline: _pipeline(pipeline, folder))
    return parts


def _partition(value: Mapping[str, Any]) -> dict[str, Configuration]:
    partition, problems = {}, list[str]()
    for key, configuration in value.items():
        with collecting(problems, f'partition["{key}"].'):
            partition[key] = Configuration(**configuration)
    refuse(problems)
    return partition


def _tensors(value: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    refuse(
        f'tensors["{key}"]["{dimension}"]: must be the number of a dimension'
        for key, degrees in value.items()
        for dimension in degrees
        if not (dimension.isdecimal() and dimension.isascii())
    )
    return {key: {int(k): degree for k, degree in value[key].items()} for key in value}


def _short(value: str) -> str:
    if value not in SHORT_FORMS:
        raise InputError(f"short: must be one of {', '.join(SHORT_FORMS)}, got {shown(value)}")
    return value


def _devices(value: list[str], short: Any) -> tuple[str, ...]:
    if value and short not in SHORT_FORMS:
        raise InputError("devices: go with a short form; a configuration names its own")
    return tuple(value)


def is_bare(value: Fields) -> bool:
    """Whether the object of a strategy is a placement alone."""
    # An op may be named like a key, so keys alone do not decide: their values do too.
    is_strategy = set(value) <= StrategyShape.__annotations__.keys()
    if is_strategy and (value.get("short") in SHORT_FORMS or "pipeline" in value):
        return False
    if "version" in value or any(isinstance(value.get(key), dict) for key in FORMAT.keys):
        return False
    return not (set(value) == {"order"} and value["order"] in POLICIES)


def _order(value: Any) -> Order:
    if isinstance(value, str):
        return Order(value)
    if not isinstance(value, dict):
        raise InputError(f"order: must be the name of a policy or an object, got {shown(value)}")
    fields = ORDER.validated(value)
    sequence = {queue: tuple(entries) for queue, entries in fields.get("sequence", {}).items()}
    return Order(fields["policy"], fields.get("priority", {}), sequence)


def _sync(value: Any) -> str | Sync:
    """The synchronisation of gradients: one of SYNCS, a policy (from its name or object), or ""
    where nothing is given: the default, which depends on the short form. Raises InputError.
    """
    if value is None:
        return ""
    if isinstance(value, str) and value in (*SYNCS, *POLICY_NAMES):
        return sync_of(value)
    if not isinstance(value, Mapping):
        raise InputError(no_sync(shown(value)))
    settings = SYNC.validated(value)
    if "servers" in settings:
        settings["servers"] = _servers(settings["servers"])
    return sync_policy(settings.pop("policy"), **settings)


def _servers(value: Any) -> str | tuple[str, ...]:
    """The way to spread servers (a text), or the names of their machines, from {"machine":
    "host:0"} or {"machine": ["host:0", "host:1"]}.
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


def _pipeline(value: Any, folder: str) -> Parallelism:
    """The pipeline of a strategy; a table's path is relative to ``folder``. Raises InputError."""
    if not isinstance(value, Mapping):
        hint = '; write {"pp": 4, "microbatches": 16}' if isinstance(value, str) else ""
        raise InputError(f"pipeline: must be an object, got {shown(value)}{hint}")
    fields = PIPELINE.validated(value)
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
        # A table is a file of its own: its problems name that file.
        prefix = "pipeline." if error.file is None else f"pipeline.table: {error.file}: "
        raise InputError(prefix + problem for problem in error.problems) from None


def _table(fields: Mapping[str, Any], folder: str) -> str:
    """The text of the schedule that a pipeline names."""
    # The table has both; a different value beside it would be ignored silently.
    for name in ("schedule", "chunks"):
        if name in fields:
            raise InputError(f"{name}: the table tells it; give one of them")
    path = fields["table"]
    if not path or "\0" in path:
        raise InputError(f"table: must be the path of a schedule, got {shown(path)}")
    return read_text(located(path, folder))


def write_strategy(strategy: Strategy, path: PathLike) -> None:
    """Write a strategy. Raises OSError where it cannot write, InputError for a pipeline's table."""
    text = json.dumps(strategy_object(strategy), ensure_ascii=False, indent=1)
    write_text(path, text + "\n")


def strategy_object(strategy: Strategy) -> Fields:
    """A strategy as JSON that ``read_strategy`` reads. Raises InputError for a pipeline's table."""
    order = strategy.order
    fields: Fields = {
        "version": 1,
        "placement": dict(strategy.placement),
        "order": order.policy if order == Order(order.policy) else changed_fields(order, "policy"),
    }
    return fields | _split_object(strategy)


def _split_object(strategy: Strategy) -> Fields:
    """The fields of a strategy that differ from their defaults, without placement and order."""
    fields: Fields = {}
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
    # The default of the short form is left out, so that a file read again is the same strategy.
    if sync != default_sync(strategy.short):
        fields["sync"] = sync_object(sync) if isinstance(sync, Sync) else sync
    if strategy.short is not None:
        fields |= {"short": strategy.short, "devices": list(strategy.devices)}
    if strategy.collectives != Collectives():
        fields["collectives"] = choice_object(strategy.collectives)
    if strategy.accumulate != 1:
        fields["accumulate"] = strategy.accumulate
    if strategy.loader is not None:
        fields["loader"] = changed_fields(strategy.loader, "time")
    if strategy.pipeline is not None:
        fields["pipeline"] = pipeline_object(strategy.pipeline)
    return fields


def sync_object(sync: Sync) -> Fields:
    """A policy of synchronisation as JSON: its name and the settings unlike its preset's."""
    fields = changed_fields(sync, *sync.settings)
    fields = {name: fields[name] for name in ("policy", *sync.settings)}
    if "servers" in fields and not isinstance(sync.servers, str):
        fields["servers"] = {"machine": list(sync.servers)}
    return fields


def pipeline_object(pipeline: Parallelism) -> Fields:
    """The settings of a pipeline that differ from the defaults, as JSON.

    Raises InputError for a pipeline with a table, which is a file beside the strategy's.
    """
    if pipeline.table is not None:
        raise InputError(
            "pipeline.table: a schedule of one's own is a file; name it in the strategy's "
            "file by hand"
        )
    return changed_fields(pipeline)


SUFFIXES = (".txt", ".strategy")
"""Endings of the files that are read as FlexFlow's; all others are JSON."""
GPU, CPU = 0, 1


def read_flexflow_strategy(path: PathLike, graph: Graph, cluster: Cluster) -> Strategy:
    """The strategy of a FlexFlow file for the forward ops of a graph; backward ops follow their
    forward ops.

    Device id i is the i-th device of the cluster that runs ops and has the type of the entry.
    (Kinds that begin with "cpu" are CPUs; where all devices are CPUs, or none is, both types mean
    all devices.) Raises InputError with the file's name.
    """
    with within(label(path)):
        return _strategy(_Words(read_text(path).split()), graph, cluster)


class _Words:
    """The words of a file, read one after the other."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.at = words, 0

    def text(self, expected: str) -> str:
        if self.at == len(self.words):
            raise InputError(f"ends where {expected} should stand")
        self.at += 1
        return self.words[self.at - 1]

    def number(self, expected: str) -> int:
        word = self.text(expected)
        if not (word.isascii() and word.isdecimal() and len(word) < 9):
            raise InputError(
                f"word {self.at}: {expected} must be a whole number, got {word[:40]!r}"
            )
        return int(word)

    def numbers(self, count: int, expected: str) -> list[int]:
        if count > len(self.words) - self.at:
            raise InputError(f"ends where {expected} should stand")
        return [self.number(expected) for _ in range(count)]


def _strategy(words: _Words, graph: Graph, cluster: Cluster) -> Strategy:
    partition: dict[str, Configuration] = {}
    problems: list[str] = []
    for _ in range(words.number("the number of ops")):
        name = words.text("the name of an op")
        where = f'op "{name}"'
        kind = words.number(f"the device type of {where}")
        degrees = words.numbers(
            words.number(f"the number of dimensions of {where}"), f"a dimension of {where}"
        )
        ids = words.numbers(
            words.number(f"the number of device ids of {where}"), f"a device id of {where}"
        )
        if name in partition:
            problems.append(f"{where}: stands there twice")
        with collecting(problems):
            partition[name] = _configuration(graph, cluster, name, kind, degrees, ids)
    if words.at < len(words.words):
        word = words.words[words.at][:40]
        problems.append(f"word {words.at + 1}: nothing may follow the last op, got {word!r}")
    refuse(problems)
    return Strategy(partition=partition | _data_parallel(graph, cluster, partition))


def _configuration(
    graph: Graph, cluster: Cluster, name: str, kind: int, degrees: list[int], ids: list[int]
) -> Configuration:
    """The configuration of an op. FlexFlow orders the parts of the output in row-major order: the
    innermost dimension varies fastest. Raises InputError.
    """
    if name not in graph.index:
        raise InputError(f'op "{name}": the graph has no op of this name')
    if kind not in (GPU, CPU):
        raise InputError(f'op "{name}": the device type must be 0 (GPU) or 1 (CPU), got {kind}')
    semantics = op_semantics(graph, graph.index[name])
    if not semantics.outputs:
        raise InputError(f'op "{name}": makes no tensor, so it has no dimensions to cut')
    axes = output_axes(semantics)
    if len(degrees) != len(axes):
        raise InputError(
            f'op "{name}": has {len(degrees)} dimensions here, its output has {len(axes)}'
        )
    outermost_first = list(zip(axes, reversed(degrees), strict=True))
    devices = _of_type(cluster, kind)
    problems = [
        f'op "{name}": dimension {dimension} of its output (axis "{axis}") cannot be '
        f"cut into {degree} parts"
        for dimension, (axis, degree) in enumerate(outermost_first)
        if degree < 1 or (degree > 1 and axis is None)
    ]
    if ids and len(ids) != prod(degrees):
        problems.append(f'op "{name}": has {prod(degrees)} parts and {len(ids)} device ids')
    last = len(devices) - 1
    problems += [f'op "{name}": device id {i} is not in 0..{last}' for i in ids if i > last]
    refuse(problems)
    # FlexFlow names a device for every part; here consecutive parts may share one.
    run = next((n for n in range(1, len(ids) + 1) if len(ids) % n == 0 and _in_runs(ids, n)), 1)
    split = {axis: degree for axis, degree in outermost_first if axis and degree > 1}
    return Configuration(split, tuple(devices[i] for i in ids[::run]))


def _in_runs(ids: list[int], length: int) -> bool:
    """Whether ids come in runs of this length: each run of a single device, each of another."""
    runs = [set(ids[at : at + length]) for at in range(0, len(ids), length)]
    return all(len(run) == 1 for run in runs) and len(set.union(*runs)) == len(runs)


def _of_type(cluster: Cluster, kind: int) -> list[str]:
    hosts = [device.name for device in cluster.devices if device.runs_ops and device.is_host]
    # On a cluster of CPUs alone, or of GPUs alone, both types mean all devices.
    if kind == CPU and hosts:
        return hosts
    return [cluster.devices[i].name for i in cluster.workers]


def _data_parallel(
    graph: Graph, cluster: Cluster, given: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """Configurations of the forward ops that the file leaves out: the samples of each are spread
    over all devices, where the number of devices divides them.
    """
    names, partition = tuple(_of_type(cluster, GPU)), {}
    weights = weights_of(graph)
    for position, op in enumerate(graph.ops):
        if op.name in given or op.phase != "forward" or traits_of(op.kind).leaf:
            continue
        try:
            splits = op_splits(graph, position, weights)
        except InputError:
            # FlexFlow has kinds of ops that simdev has no semantics for; such an op is not split.
            continue
        sample = next((split for split in splits if split.kind == "sample"), None)
        if sample is not None and sample.size % len(names) == 0:
            partition[op.name] = Configuration({sample.axis: len(names)}, names)
    return partition
