"""What shards need against what PyTorch's own kernels really read, and shards run by PyTorch as
they are told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from op_examples import semantics_of_example
from simdev.nouns.semantics import Region, parts_of, semantics_of, shard_of, splits, volume

torch = pytest.importorskip("torch")
f, grad = torch.nn.functional, torch.nn.grad

HOW = {"stride": 2, "padding": 1}


def _lstm_cell(x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, bias: Any) -> tuple[Any, ...]:
    gates = torch.einsum("ni,gdi->ngd", x, w_ih) + torch.einsum("nj,gdj->ngd", h, w_hh) + bias
    i, f, g, o = (gates[:, k] for k in range(4))
    new = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * new.tanh(), new, gates


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "conv1d": lambda x, w, b: f.conv1d(x, w, b, **HOW),
    "conv2d": lambda x, w, b: f.conv2d(x, w, b, **HOW),
    "conv3d": lambda x, w, b: f.conv3d(x, w, b, **HOW),
    "conv2d_backward_input": lambda y, w: grad.conv2d_input((8, 4, 12, 12), w, y, **HOW),
    "conv2d_backward_weight": lambda y, x: (
        grad.conv2d_weight(x, (6, 4, 3, 3), y, **HOW),
        y.sum((0, 2, 3)),
    ),
    "conv_transpose1d": lambda x, w, b: f.conv_transpose1d(x, w, b, **HOW),
    "conv_transpose2d": lambda x, w, b: f.conv_transpose2d(x, w, b, **HOW),
    "avg_pool2d": lambda x: f.avg_pool2d(x, 3, **HOW),
    "adaptive_avg_pool2d": lambda x: f.adaptive_avg_pool2d(x, 4),
    "linear": f.linear,
    "matmul": torch.matmul,
    "batch_matmul": torch.matmul,
    "baddbmm": torch.baddbmm,
    "mv": torch.mv,
    "dot": torch.dot,
    "softmax": lambda x: torch.softmax(x, 2),
    "log_softmax": lambda x: torch.log_softmax(x, 2),
    "layer_norm": lambda x, w, b: f.layer_norm(x, [10], w, b),
    "rms_norm": lambda x, w: f.rms_norm(x, [10], w),
    "group_norm": lambda x, w, b: f.group_norm(x, 2, w, b),
    "sum": lambda x: x.sum(2),
    "mean": lambda x: x.mean(2),
    "cumsum": lambda x: x.cumsum(2),
    "concat": lambda *x: torch.cat(x, 1),
    "stack": lambda *x: torch.stack(x),
    "split": lambda x: x.split([4, 8], 1),
    "slice": lambda x: x[:, 2:10:2],
    "select": lambda x: x[:, 3],
    "reshape": lambda x: x.reshape(48, 10),
    "view": lambda x: x.view(8, 6, 10),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (4, 6)),
    "transpose": lambda x: x.transpose(1, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x.expand(8, 6, 10),
    "pad": lambda x: f.pad(x, [1, 3]),
    "repeat": lambda x: x.repeat(1, 2),
    "add": torch.add,
    "mul": torch.mul,
    "mse_loss": f.mse_loss,
    "attention": lambda q, k, v: f.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    ),
    "lstm_cell": _lstm_cell,
}


@pytest.mark.parametrize("kind", sorted(FUNCTIONS))
def test_pytorchs_outputs_depend_on_the_regions_and_on_no_more(kind: str) -> None:
    """The gradient of a part of an output is nonzero inside of the region, up to its ends, and zero
    outside.
    """
    semantics = semantics_of_example(kind)
    torch.manual_seed(0)
    operands = [
        torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in semantics.inputs
    ]
    made = FUNCTIONS[kind](*operands)
    made = made if isinstance(made, tuple) else (made,)
    assert tuple(made[0].shape) == semantics.outputs[0]
    for split in splits(semantics):
        if split.kind == "reduction":
            continue
        for part in parts_of(split.size, 2):
            shard = shard_of(semantics, {split.axis: part})
            total = sum(
                output[tuple(slice(*interval) for interval in region)].square().sum()
                for output, region in zip(made, shard.makes, strict=False)
                if region is not None
            )
            gradients = torch.autograd.grad(total, operands, allow_unused=True, retain_graph=True)
            for gradient, region in zip(gradients, shard.needs, strict=True):
                assert support(gradient) == (region if region is None or volume(region) else None)


def support(gradient: Any) -> Region | None:
    """The smallest box of the nonzero elements."""
    if gradient is None or not gradient.any():
        return None
    places = gradient.nonzero()
    if not gradient.dim():
        return ()
    first, last = places.min(0).values.tolist(), places.max(0).values.tolist()
    return tuple((a, b + 1) for a, b in zip(first, last, strict=True))


@pytest.mark.parametrize(
    "box", [{"p": (0, 3)}, {"q": (2, 5)}, {"p": (1, 6), "q": (0, 2)}, {"n": (0, 1)}, {"k": (3, 6)}]
)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (2, 3, 2), (3, 0, 1), (1, 2, 2)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_shard_of_a_convolution_runs_as_it_is_told(
    box: dict[str, tuple[int, int]], stride: int, padding: int, dilation: int, groups: int
) -> None:
    """Its operands, as executed and with its own attributes, make exactly its output's shape."""
    attrs = {
        "stride": [stride] * 2,
        "padding": [padding] * 2,
        "dilation": [dilation] * 2,
        "groups": groups,
    }
    x, weight = (2, 4, 23, 23), (6, 4 // groups, 3, 3)
    y = convolved(x, weight, attrs)
    shard = shard_of(semantics_of("conv2d", attrs, [x, weight], [y]), box)
    assert convolved(*shard.inputs, shard.attrs) == shard.outputs[0]
    shard = shard_of(semantics_of("conv2d_backward_weight", attrs, [y, x], [weight]), box)
    assert convolved(shard.inputs[1], shard.outputs[0], shard.attrs) == shard.inputs[0]
    turned = {{"p": "h", "q": "w", "k": "c"}.get(name, name): part for name, part in box.items()}
    turned |= {"c": (0, 2)} if "c" in turned else {}
    shard = shard_of(semantics_of("conv2d_backward_input", attrs, [y, weight], [x]), turned)
    assert convolved(shard.outputs[0], shard.inputs[1], shard.attrs) == shard.inputs[0]


def convolved(x: tuple[int, ...], weight: tuple[int, ...], attrs: Any) -> tuple[int, ...]:
    """The shape that PyTorch's convolution makes."""
    return tuple(
        f.conv2d(torch.empty(x, device="meta"), torch.empty(weight, device="meta"), **attrs).shape
    )
