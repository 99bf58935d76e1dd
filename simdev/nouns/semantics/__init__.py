"""What each kind of op computes, in index expressions, from which follow its work, its splits and
the regions of its shards.
"""

from . import kinds as _kinds  # noqa: F401  (it registers them)
from .description import ALL, Access, ByExtents, Call, Description, Output, axes, per
from .grids import Along, Shards, along, shards_of
from .index import Axis, Box, Index, Interval, Region
from .regions import Shard, extents, input_region, input_regions, output_regions, shard_of, volume
from .registry import (
    Kind,
    Semantics,
    adder_of,
    backward_of,
    is_described,
    kinds,
    op_class,
    redescribed,
    register,
    semantics_of,
    statistics_of,
    traits_of,
)
from .samples import BatchView, Samples, batch_region, samples_seen
from .splits import Split, boxes, effects_of, output_axes, parts_of, require_degrees, splits, steps
from .traits import OP_CLASSES, Traits
from .views import parted_strides, row_strides, sliced_strides, stored_region
from .work import (
    Work,
    flops,
    is_linear,
    op_semantics,
    op_work,
    operand_dtypes,
    operand_shapes,
    shard_work,
    whole_bytes,
    work,
)

# Taken before anybody can register kinds of their own.
SHIPPED = tuple(kinds())
"""The kinds that are there without registering any, sorted."""

__all__ = [
    "ALL",
    "OP_CLASSES",
    "SHIPPED",
    "Access",
    "Along",
    "Axis",
    "BatchView",
    "Box",
    "ByExtents",
    "Call",
    "Description",
    "Index",
    "Interval",
    "Kind",
    "Output",
    "Region",
    "Samples",
    "Semantics",
    "Shard",
    "Shards",
    "Split",
    "Traits",
    "Work",
    "adder_of",
    "along",
    "axes",
    "backward_of",
    "batch_region",
    "boxes",
    "effects_of",
    "extents",
    "flops",
    "input_region",
    "input_regions",
    "is_described",
    "is_linear",
    "kinds",
    "op_class",
    "op_semantics",
    "op_work",
    "operand_dtypes",
    "operand_shapes",
    "output_axes",
    "output_regions",
    "parted_strides",
    "parts_of",
    "per",
    "redescribed",
    "register",
    "require_degrees",
    "row_strides",
    "samples_seen",
    "semantics_of",
    "shard_of",
    "shard_work",
    "shards_of",
    "sliced_strides",
    "splits",
    "statistics_of",
    "steps",
    "stored_region",
    "traits_of",
    "volume",
    "whole_bytes",
    "work",
]
