"""The keys of a strategy's file, and what they mean."""

from __future__ import annotations

from typing import Any, Required

from typing_extensions import TypedDict

from .shape import Bandwidth, Bytes, OptionalBytes, Priority, Seconds


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
