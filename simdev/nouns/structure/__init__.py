"""What a training step is made of, told once: order, groups, layers, mates, weights with their
gradients and updates.

It reads a graph and the traits of its kinds, and knows no cluster, no strategy and no cost.
"""

from .groups import Groups, declared, regrouped, unit_of, units
from .layers import is_layer, layers_by_kind, layers_by_weight, layers_read
from .mates import mates
from .names import unrolled
from .order import before_of, components, longest_behind, order_of, readers_of, topological
from .weights import (
    TensorOf,
    Weights,
    first_made,
    hands_out_parameters,
    op_splits,
    updated,
    updates_of,
    weight_of_gradients,
    weights_of,
)

__all__ = [
    "Groups",
    "TensorOf",
    "Weights",
    "before_of",
    "components",
    "declared",
    "first_made",
    "hands_out_parameters",
    "is_layer",
    "layers_by_kind",
    "layers_by_weight",
    "layers_read",
    "longest_behind",
    "mates",
    "op_splits",
    "order_of",
    "readers_of",
    "regrouped",
    "topological",
    "unit_of",
    "units",
    "unrolled",
    "updated",
    "updates_of",
    "weight_of_gradients",
    "weights_of",
]
