"""Updates of one parameter by its gradient, elementwise and in place, with their state tensors.

Operations an element are those of PyTorch's single-tensor updates.
"""

from __future__ import annotations

from ..description import Access, Call, Describer, Description, Output, per
from ..registry import register
from ..traits import Traits
from .common import numbered

UPDATES = {
    "sgd_update": (0, 2),
    "sgd_momentum_update": (1, 4),
    "adam_update": (2, 13),
    "adamw_update": (2, 14),
    "adagrad_update": (1, 7),
    "rmsprop_update": (1, 9),
}
"""State tensors a parameter, operations an element."""


def _update(states: int, operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.inputs[0])
        given = len(call.inputs) - 2  # state tensors that the graph tells as operands
        written = () if call.outputs else (0,)
        return Description(
            outputs=tuple(Output(points) for _ in call.outputs),
            inputs=tuple(Access(points) for _ in call.inputs),
            flops=(per(operations, *points),),
            parameters=(0, 1, *range(2, len(call.inputs))),
            sample=None,
            updated=(*written, *range(2, len(call.inputs))),
            states=max(0, states - given),
        )

    return describe


for _name, (_states, _count) in UPDATES.items():
    register(
        _name,
        _update(_states, _count),
        "optimizer",
        traits=Traits(positive=_name == "adam_update"),
        operands="parameter, gradient",
        outputs="none (in place); the parameter's state_bytes hold the state",
    )
