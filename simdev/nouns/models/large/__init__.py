"""Large language models by their sizes alone: parameters, work and memory of a layer's shard,
without a graph. ``transformer`` has the sizes, ``released`` published models, ``shard`` the part of
one device and its memory, ``work`` its kernels, ``roles`` further columns of its tasks.

``simdev/lowering/hybrid`` lowers them, and ``simdev/search/plan`` bounds and searches their
parallelism.
"""

from __future__ import annotations

from .kernels import Block
from .released import LARGE, from_config, large_model, resized
from .shard import (
    Footprint,
    Shard,
    all_buckets,
    buckets_of,
    footprint,
    modules_again,
    shard_of,
    uses_flash,
)
from .transformer import Transformer
from .work import classifier, copied, embedding, layer, stops_early, update, whole_again

__all__ = [
    "LARGE",
    "Block",
    "Footprint",
    "Shard",
    "Transformer",
    "all_buckets",
    "buckets_of",
    "classifier",
    "copied",
    "embedding",
    "footprint",
    "from_config",
    "large_model",
    "layer",
    "modules_again",
    "resized",
    "shard_of",
    "stops_early",
    "update",
    "uses_flash",
    "whole_again",
]
