"""Traits: what holds for every op of a kind, whatever its shapes.

A kind's registration tells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...ground.frozen import FrozenDict

Leaf = Literal["constant", "input", "parameter"]
LEAF_ROLES: tuple[Leaf, ...] = ("constant", "input", "parameter")
Linear = Literal["sum", "scale"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What every op of a kind is. Fields that are None are those of the kind's class.

    - ``leaf``: it computes nothing and stands for a tensor that is there: a weight (``parameter``),
      what a step is given (``input``) or what never changes (``constant``).
    - ``view``: its outputs are its operand's memory under other indices.
    - ``linear``: partial results may pass through it, for a sum of its results is the result of the
      sum: ``sum``, in all operands at once, where no number is added; ``scale``, in its one
      operand, times a number. Views are linear.
    - ``linear_in``: the operand in which alone it is linear, of a kind that makes a weight's
      gradient: partial results of that operand become partial gradients, which are added up once.
    - ``backward_of``: the forward kind through which it goes back; where none is told, what stands
      before "_backward" in its name.
    - ``own_statistics``: it goes back by the statistics that the forward op took of the same part
      of the batch, as data-parallel training does.
    - ``drawn``: it draws random numbers: drawing them again elsewhere costs less than sending them.
    - ``combines``: the reduction whose partial results it combines (``sum``, ``max``, ``min`` or
      ``prod``).
    - ``transposes``: by operand the attribute that tells it to be read as transposed.
    - ``positive``: its operands are positive where it is used: on others it takes paths of its own.
    - ``pointwise``: each element of its outputs is made of the elements at its place (Tofu folds
      runs of these).
    - ``layer``: it computes by itself, so that SOAP configures it; other kinds follow what they
      read.
    - ``weighted``: a layer with weights: its backward follows the gradient that comes to it.
    - ``whole_samples``: cut along its samples only, under one weird trick: it needs whole channels,
      or would move more than it saves.
    - ``computes``: what slows it down slows its arithmetic; other kinds pass over memory.
    - ``defaults``: attributes that mean the same where they are not told; keys of profiles leave
      them out.
    """

    leaf: Leaf | None = None
    view: bool = False
    linear: Linear | None = None
    linear_in: int | None = None
    backward_of: str | None = None
    own_statistics: bool = False
    drawn: bool = False
    combines: str | None = None
    transposes: tuple[str, ...] = ()
    positive: bool = False
    # None: as the class of the kind has it, so that a kind registered in a class needs no traits.
    pointwise: bool | None = None
    layer: bool | None = None
    weighted: bool | None = None
    whole_samples: bool | None = None
    computes: bool | None = None
    defaults: Mapping[str, Any] = FrozenDict()

    def within(self, op_class: str) -> Traits:
        """These traits, with those of a class where they are left open."""
        of_class = _BY_CLASS[op_class]
        named: dict[str, Any] = {name: name in of_class for name in _OF_CLASSES}
        return replace(self, **{k: v for k, v in named.items() if getattr(self, k) is None})


_OF_CLASSES = ("pointwise", "layer", "weighted", "whole_samples", "computes")
_BY_CLASS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("layer", "weighted", "computes"),
    "conv": ("layer", "weighted", "whole_samples", "computes"),
    "attention": ("layer", "whole_samples", "computes"),
    "norm": ("whole_samples",),
    "softmax": ("layer", "whole_samples"),
    "elementwise": ("pointwise",),
    "reduction": ("whole_samples",),
    "pooling": ("layer", "whole_samples"),
    "embedding": ("layer", "weighted", "whole_samples"),
    "recurrent": ("layer", "whole_samples", "computes"),
    "data_movement": (),
    "optimizer": ("pointwise",),
    "other": (),
}
OP_CLASSES = tuple(_BY_CLASS)
OPEN = Traits()
"""Nothing is told: all as the class of the kind has it."""
UNKNOWN = OPEN.within("other")
"""Those of a kind that nobody registered."""
