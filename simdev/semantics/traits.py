"""Traits: what holds for every op of a kind, whatever its shapes.

A kind's registration tells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

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
    pointwise: bool | None = None
    layer: bool | None = None
    weighted: bool | None = None
    whole_samples: bool | None = None

    def within(self, op_class: str) -> Traits:
        """These traits, with those of a class where nothing is told."""
        own = _BY_CLASS[op_class]
        return replace(
            self,
            pointwise=own.pointwise if self.pointwise is None else self.pointwise,
            layer=own.layer if self.layer is None else self.layer,
            weighted=own.weighted if self.weighted is None else self.weighted,
            whole_samples=own.whole_samples if self.whole_samples is None else self.whole_samples,
        )


def _of_class(
    pointwise: bool = False,
    layer: bool = False,
    weighted: bool = False,
    whole_samples: bool = False,
) -> Traits:
    return Traits(pointwise=pointwise, layer=layer, weighted=weighted, whole_samples=whole_samples)


_BY_CLASS: Mapping[str, Traits] = {
    "gemm": _of_class(layer=True, weighted=True),
    "conv": _of_class(layer=True, weighted=True, whole_samples=True),
    "attention": _of_class(layer=True, whole_samples=True),
    "norm": _of_class(whole_samples=True),
    "softmax": _of_class(layer=True, whole_samples=True),
    "elementwise": _of_class(pointwise=True),
    "reduction": _of_class(whole_samples=True),
    "pooling": _of_class(layer=True, whole_samples=True),
    "embedding": _of_class(layer=True, weighted=True, whole_samples=True),
    "recurrent": _of_class(layer=True, whole_samples=True),
    "data_movement": _of_class(),
    "optimizer": _of_class(pointwise=True),
    "other": _of_class(),
}
OP_CLASSES = tuple(_BY_CLASS)
UNKNOWN = Traits().within("other")
"""Those of a kind that nobody registered."""
