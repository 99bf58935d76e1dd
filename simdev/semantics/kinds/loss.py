"""Losses and their gradients.

``reduction``: 0 none, 1 mean (default), 2 sum, as PyTorch numbers them.
"""

from __future__ import annotations

from fractions import Fraction

from ..description import Access, Call, Describer, Description, Output, per
from ..index import Axis
from ..registry import register
from ..traits import Traits
from .common import broadcast_read, numbered


def _classes(
    call: Call, operand: int, split: bool
) -> tuple[tuple[Axis, ...], Axis, tuple[Axis, ...]]:
    """Axes of logits[n, c, ..]: all of them, the classes, and those of the target."""
    shape = call.inputs[operand]
    points = numbered(shape)
    place = 1 if len(shape) > 1 else 0
    c = Axis("c", shape[place], split)
    return (*points[:place], c, *points[place + 1 :]), c, (*points[:place], *points[place + 1 :])


def _reduced(call: Call, rows: tuple[Axis, ...]) -> bool:
    return bool(int(call.attrs.get("reduction", 1))) and bool(rows)


def nll_loss(call: Call) -> Description:
    """Minus the sum over n of logp[n, target[n]].

    A class is only looked up: split along c it is a reduction.
    """
    points, c, rows = _classes(call, 0, True)
    index, over = ((), (*rows, c)) if _reduced(call, rows) else (rows, (c,))
    return Description(
        outputs=(Output(index, over), *(Output((), rows) for _ in call.outputs[1:])),
        inputs=(
            Access(points, at_most=rows),
            Access(rows),
            *(Access((c,)) for _ in call.inputs[2:]),
        ),
        flops=(per(Fraction(2, max(1, c.size)), *points),),
    )


def nll_loss_backward(call: Call) -> Description:
    """dlogp[n, c] = - dloss / count where c is target[n], else 0; of logp only the shape is
    needed.
    """
    points, c, rows = _classes(call, 1, True)
    upstream = Access(() if call.inputs[0] == () else rows)
    rest = (Access(() if shape == () else (c,)) for shape in call.inputs[3:])
    return Description(
        outputs=(Output(points),),
        inputs=(upstream, Access(points, read=False), Access(rows), *rest),
        flops=(per(Fraction(1, max(1, c.size)), *points),),
    )


def cross_entropy(call: Call) -> Description:
    """The loss from logits[n, c] and target[n], log-softmax inside: the classes stay whole, 5
    operations each.
    """
    points, _, rows = _classes(call, 0, False)
    index, over = ((), rows) if _reduced(call, rows) else (rows, ())
    # A second output is the logarithm of the sum of exponentials, kept for the backward.
    outputs = (Output(index, over), *(Output(rows) for _ in call.outputs[1:]))
    return Description(outputs, (Access(points), Access(rows)), (per(5, *points),))


def cross_entropy_backward(call: Call) -> Description:
    """Gradient dloss * (softmax(logits)[n, c] - onehot(target[n])[c]): 6 operations each, 3 with
    lse[n] given.
    """
    points, _, rows = _classes(call, 1, len(call.inputs) > 3)
    upstream = Access(() if call.inputs[0] == () else rows)
    rest = (Access(rows) for _ in call.inputs[3:])
    count = 3 if len(call.inputs) > 3 else 6
    return Description(
        (Output(points),), (upstream, Access(points), Access(rows), *rest), (per(count, *points),)
    )


def _pointwise(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.inputs[0])
        index, over = ((), points) if _reduced(call, points) else (points, ())
        reads = tuple(broadcast_read(shape, points) for shape in call.inputs)
        return Description((Output(index, over),), reads, (per(operations, *points),))

    return describe


def _pointwise_backward(operations: int) -> Describer:
    def describe(call: Call) -> Description:
        points = numbered(call.outputs[0])
        reads = tuple(broadcast_read(shape, points) for shape in call.inputs)
        return Description((Output(points),), reads, (per(operations, *points),))

    return describe


_LOSSES = {
    "mse_loss": (3, 3),
    "l1_loss": (3, 3),
    "huber_loss": (5, 5),
    "binary_cross_entropy_with_logits": (7, 6),
}
for _name, (_forward, _backward) in _LOSSES.items():
    register(
        _name,
        _pointwise(_forward),
        "elementwise",
        operands="x, target",
        outputs="loss[]",
        attributes="reduction",
    )
    register(
        f"{_name}_backward",
        _pointwise_backward(_backward),
        "elementwise",
        operands="dloss[], x, target",
        outputs="dx",
        attributes="reduction",
    )
register(
    "nll_loss",
    nll_loss,
    "reduction",
    operands="logp[n, c], target[n], class weights[c] or none",
    outputs="loss[], total_weight[]",
    attributes="reduction",
)
register(
    "nll_loss_backward",
    nll_loss_backward,
    "elementwise",
    traits=Traits(own_statistics=True),
    operands="dloss[], logp[n, c], target[n], total_weight[]",
    outputs="dlogp[n, c]",
    attributes="reduction",
)
register(
    "cross_entropy",
    cross_entropy,
    "softmax",
    operands="logits[n, c], target[n]",
    outputs="loss[], lse[n] or none",
    attributes="reduction",
)
register(
    "cross_entropy_backward",
    cross_entropy_backward,
    "softmax",
    operands="dloss[], logits[n, c], target[n], lse[n] or none",
    outputs="dlogits[n, c]",
    attributes="reduction",
)
