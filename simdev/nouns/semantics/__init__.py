"""The computation of each kind of op as index expressions, from which its work, its splits and the
regions of its shards follow. This package is the only place that lists kinds: a new kind is
registered in a family of ``kinds``.

The cost ladder uses work and keys; partitioning (``simdev/lowering/partition``) and the searches
over splits use splits and regions. Frameworks' names of kinds are translated elsewhere: PyTorch's
in ``simdev/measure/kinds.py``, ONNX's in ``simdev/formats``.
"""

from .description import (
    ALL,
    Access,
    Axis,
    Box,
    ByExtents,
    Call,
    Description,
    Index,
    Interval,
    Output,
    Region,
    axes,
    per,
)

# Importing a family registers its kinds.
from .kinds import elementwise, lists, movement, product, reduction, windows  # noqa: F401
from .regions import (
    Along,
    Shard,
    Shards,
    along,
    extents,
    input_region,
    input_regions,
    output_regions,
    shard_of,
    shards_of,
    volume,
)
from .registry import (
    OP_CLASSES,
    Kind,
    Semantics,
    Traits,
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
from .splits import Split, boxes, effects_of, output_axes, parts_of, require_degrees, splits, steps
from .views import (
    BatchView,
    Samples,
    batch_region,
    parted_strides,
    row_strides,
    samples_seen,
    sliced_strides,
    stored_region,
)
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

# Taken before a user can register kinds.
SHIPPED = tuple(kinds())
"""The kinds that ship with simdev, sorted."""

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
