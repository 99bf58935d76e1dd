"""The memo of shapes gives what PyTorch's fake tensors give: looks, memory that is shared, tensors
that are written in place.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from simdev.measure.ranks.shapes import Shapes


class Remembering(TorchDispatchMode):
    """Runs operators by a memo, and counts those that PyTorch had to be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.shapes.run(func, args, kwargs or {})


def looks(x: Any) -> Any:
    size = x.untyped_storage().nbytes()
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, x.requires_grad, size


def made(step: Any, remember: bool) -> list[Any]:
    """The looks of what two equal steps make."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        if not remember:
            return [[looks(x) for x in step()] for _ in range(2)]
        with Remembering():
            return [[looks(x) for x in step()] for _ in range(2)]


def layers() -> list[Any]:
    x = torch.randn(4, 6, 8, requires_grad=True)
    weight = torch.randn(8, 8, requires_grad=True)
    q, k = (x @ weight).chunk(2, -1)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, k)
    y = torch.nn.functional.layer_norm(torch.cat([mixed, q], -1).transpose(0, 1), (8,))
    (y[1:, ::2].float() * 2).sum().backward()
    half = y.detach().bfloat16()
    return [q, k, y, half, half.view(torch.int16), half.add_(1), x.grad, weight.grad]


def factories() -> list[Any]:
    whole, real = torch.arange(6), torch.arange(6.0)
    first = torch.full((2, 3), 1)
    return [whole, real, first, torch.full((2, 3), 1.0), *torch.max(real.view(2, 3), 1)]


def on_two_devices() -> list[Any]:
    return [torch.empty(3, device=device).detach() for device in ("meta", "cpu")]


@pytest.mark.parametrize("step", [layers, factories, on_two_devices])
def test_a_memo_makes_what_pytorch_makes(step: Any) -> None:
    assert made(step, True) == made(step, False)


def test_what_lies_in_the_same_memory_does_so_again() -> None:
    with FakeTensorMode(), Remembering():
        for _ in range(2):
            x = torch.empty(4, 4)
            behind = x.untyped_storage()._cdata
            assert x.t().untyped_storage()._cdata == behind
            assert x.mul_(2) is x
            assert (x * 2).untyped_storage()._cdata != behind
            # The gradient of a view counts the writes of its base, as autograd has it.
            version = x._version
            x.t().add_(1)
            assert x._version == version + 1


def test_what_depends_on_values_is_left_to_pytorch() -> None:
    with FakeTensorMode(), Remembering() as mode:
        for _ in range(2):
            x = torch.empty(3)
            x.resize_(5)
            assert x.shape == (5,)
        assert mode.shapes.run(torch.ops.aten.add.Tensor, (x, x), {}).shape == (5,)
