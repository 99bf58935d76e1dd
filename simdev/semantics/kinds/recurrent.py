"""One step of an LSTM as one op, and its backward in two halves.

gates[n, g, d] = Sum over i of x[n, i] * w_ih[g, d, i] + Sum over j of h[n, j] * w_hh[g, d, j] +
bias[g, d], for the four gates g; then c' = f c + i g and h' = o tanh(c'). The weights are [4, d, i]
and [4, d, j], gate first, so that a split along d is one block of each; the sums stay whole, for
what follows them is not linear.
"""

from __future__ import annotations

from ..description import Access, Call, Description, Output, axes, per
from ..registry import register

# four activations of 1 to 4 operations, two tanh, and the products and sums, bias included
_POINTWISE = 25
_POINTWISE_BACKWARD = 32


def lstm_cell(call: Call) -> Description:
    """h', c' (and the gates, where a third output keeps them) from x, h, c, w_ih, w_hh and the
    biases.
    """
    x, h, _, inner, _ = call.inputs[:5]
    n, d = axes("n d", (x[0], inner[1]))
    g, i, j = axes("g i j", (inner[0], x[1], h[1]), split=False)
    return Description(
        outputs=(Output((n, d)), Output((n, d)), *(Output((n, g, d)) for _ in call.outputs[2:])),
        inputs=(
            Access((n, i)),
            Access((n, j)),
            Access((n, d)),
            Access((g, d, i)),
            Access((g, d, j)),
            *(Access((g, d)) for _ in call.inputs[5:]),
        ),
        flops=(per(2, n, g, d, i), per(2, n, g, d, j), per(_POINTWISE, n, d)),
        parameters=tuple(range(3, len(call.inputs))),
    )


def backward_input(call: Call) -> Description:
    """dx, dh, dc and dgates from dh', dc', c, c', gates, w_ih, w_hh: dx and dh are sums over gates
    and d.
    """
    outer, _, _, _, gates, inner, state = call.inputs
    n, d = axes("n d", outer)
    g, i, j = axes("g i j", (gates[1], inner[2], state[2]), split=False)
    return Description(
        outputs=(
            Output((n, i), over=(g, d)),
            Output((n, j), over=(g, d)),
            Output((n, d)),
            Output((n, g, d)),
        ),
        inputs=(
            *(Access((n, d)) for _ in range(4)),
            Access((n, g, d)),
            Access((g, d, i)),
            Access((g, d, j)),
        ),
        flops=(per(2, n, g, d, i), per(2, n, g, d, j), per(_POINTWISE_BACKWARD, n, d)),
        parameters=(5, 6),
    )


def backward_weight(call: Call) -> Description:
    """dw_ih, dw_hh and dbias from dgates, x, h: sums over the batch."""
    gates, x, h = call.inputs
    n, d = axes("n d", (gates[0], gates[2]))
    g, i, j = axes("g i j", (gates[1], x[1], h[1]), split=False)
    bias = (Output((g, d), over=(n,)) for _ in call.outputs[2:])
    return Description(
        outputs=(Output((g, d, i), over=(n,)), Output((g, d, j), over=(n,)), *bias),
        inputs=(Access((n, g, d)), Access((n, i)), Access((n, j))),
        flops=(per(2, n, g, d, i), per(2, n, g, d, j)),
        gradients=tuple(range(len(call.outputs))),
    )


register(
    "lstm_cell",
    lstm_cell,
    "recurrent",
    operands=(
        "x[n, i], h[n, j], c[n, d], w_ih[4, d, i], w_hh[4, d, j], bias[4, d] (none, one or two)"
    ),
    outputs="h'[n, d], c'[n, d], gates[n, 4, d] or none",
)
register(
    "lstm_cell_backward_input",
    backward_input,
    "recurrent",
    operands=(
        "dh'[n, d], dc'[n, d], c[n, d], c'[n, d], gates[n, 4, d], w_ih[4, d, i], w_hh[4, d, j]"
    ),
    outputs="dx[n, i], dh[n, j], dc[n, d], dgates[n, 4, d]",
)
register(
    "lstm_cell_backward_weight",
    backward_weight,
    "recurrent",
    operands="dgates[n, 4, d], x[n, i], h[n, j]",
    outputs="dw_ih[4, d, i], dw_hh[4, d, j], dbias[4, d] or none",
)
