"""NASNet-A (Zoph et al., "Learning transferable architectures for scalable image recognition",
2018).

The cells are those of the paper's figure 4, the frame (stem of two reductions, three groups of
normal cells) that of its ImageNet networks. Left out: the auxiliary head and scheduled drop path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .images import image_batch

Pair = tuple[str, int, str, int]
"""Two operations whose results are added, each with the state it reads: 0 this cell's input, 1 the
one before, 2 ...
"""

NORMAL: tuple[Pair, ...] = (
    ("separable_5", 0, "separable_3", 1),
    ("separable_5", 1, "separable_3", 1),
    ("average_3", 0, "identity", 1),
    ("average_3", 1, "average_3", 1),
    ("separable_3", 0, "identity", 0),
)
NORMAL_JOINED = (1, 2, 3, 4, 5, 6)
REDUCTION: tuple[Pair, ...] = (
    ("separable_5", 0, "separable_7", 1),
    ("max_3", 0, "separable_7", 1),
    ("average_3", 0, "separable_5", 1),
    ("identity", 3, "average_3", 2),
    ("separable_3", 2, "max_3", 0),
)
REDUCTION_JOINED = (3, 4, 5, 6)
"""States that no pair reads leave the cell, joined by channels."""


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.001)


class Separable(nn.Sequential):
    """ReLU, depthwise and pointwise convolution, batch norm; twice, the stride in the first."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        for i, (inner, step) in enumerate(((channels, stride), (out, 1))):
            depthwise = nn.Conv2d(inner, inner, kernel, step, kernel // 2, groups=inner, bias=False)
            self.add_module(f"relu_{i}", nn.ReLU())
            self.add_module(f"depthwise_{i}", depthwise)
            self.add_module(f"pointwise_{i}", nn.Conv2d(inner, out, 1, bias=False))
            self.add_module(f"bn_{i}", _norm(out))


class Squeeze(nn.Sequential):
    """ReLU, 1x1 convolution, batch norm: brings a state to the width of the cell."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(channels, out, 1, bias=False)
        self.bn = _norm(out)


class Halve(nn.Module):
    """Brings a state to the width and half the extent of a cell: two grids, a pixel apart, of half
    the channels.
    """

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(1, stride=2)
        self.shift = nn.ZeroPad2d((-1, 1, -1, 1))
        self.even = nn.Conv2d(channels, out // 2, 1, bias=False)
        self.odd = nn.Conv2d(channels, out - out // 2, 1, bias=False)
        self.bn = _norm(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to (N, out, H / 2, W / 2), rounded up."""
        x = self.relu(x)
        found: torch.Tensor = self.bn(
            torch.cat([self.even(self.pool(x)), self.odd(self.pool(self.shift(x)))], 1)
        )
        return found


def _operation(name: str, channels: int, out: int, stride: int) -> nn.Module:
    kind, _, kernel = name.partition("_")
    if kind == "separable":
        return Separable(channels, out, int(kernel), stride)
    if kind == "average":
        return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    return nn.MaxPool2d(3, stride, padding=1) if kind == "max" else nn.Identity()


class Cell(nn.Module):
    """Five pairs of operations over the states of this cell and the one before."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        joined: Sequence[int],
        widths: tuple[int, int],
        out: int,
        before: nn.Module,
    ) -> None:
        super().__init__()
        stride = 2 if pairs is REDUCTION else 1
        self.squeeze = Squeeze(widths[0], out)
        self.before = before
        inner = [out, widths[1] if isinstance(before, nn.Identity) else out]
        for i, (left, a, right, b) in enumerate(pairs):
            for side, name, state in (("left", left, a), ("right", right, b)):
                made = _operation(
                    name, inner[state] if state < 2 else out, out, stride if state < 2 else 1
                )
                self.add_module(f"{side}_{i}", made)
        self.states = [(a, b) for _, a, _, b in pairs]
        self.joined = tuple(joined)
        self.channels = out * len(joined)

    def forward(self, x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The input of the cell and that of the one before to (N, channels, H', W')."""
        states = [self.squeeze(x), self.before(before)]
        for i, (a, b) in enumerate(self.states):
            left: Any = self.get_submodule(f"left_{i}")
            right: Any = self.get_submodule(f"right_{i}")
            states.append(left(states[a]) + right(states[b]))
        return torch.cat([states[i] for i in self.joined], 1)


class NasNet(nn.Module):
    """Stem, cells, classifier.

    ``skip``: a cell behind a reduction reads, as the one before, what stood before that.
    """

    def __init__(self, stem: int, filters: int, repeats: int, skip: bool, classes: int) -> None:
        super().__init__()
        self.conv_0 = nn.Sequential(nn.Conv2d(3, stem, 3, stride=2, bias=False), _norm(stem))
        self.skip = skip
        # (channels, halvings) of the last two states, from which the next cell takes its shape.
        self._shapes = [(stem, 0), (stem, 0)]
        self._order: list[str] = []
        self._cell("stem_0", filters // 4, reduce=True)
        self._cell("stem_1", filters // 2, reduce=True)
        for group in range(3):
            if group:
                self._cell(f"reduction_{group}", filters * 2**group, reduce=True)
            for i in range(repeats):
                self._cell(f"cell_{group * repeats + i}", filters * 2**group, reduce=False)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(self._shapes[-1][0], classes)

    def _cell(self, name: str, out: int, reduce: bool) -> None:
        (channels, halved), older = self._shapes[-1], self._older()
        before: nn.Module = nn.Identity()
        if older[1] != halved:
            before = Halve(older[0], out)
        elif name != "stem_0":
            before = Squeeze(older[0], out)
        pairs, joined = (REDUCTION, REDUCTION_JOINED) if reduce else (NORMAL, NORMAL_JOINED)
        cell = Cell(pairs, joined, (channels, older[0]), out, before)
        self.add_module(name, cell)
        self._order.append(name)
        self._shapes.append((cell.channels, halved + reduce))

    def _older(self) -> tuple[int, int]:
        skipping = self.skip and self._order and self._order[-1].startswith("reduction")
        return self._shapes[-3 if skipping else -2]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images (N, 3, H, W) to scores (N, classes)."""
        states = [self.conv_0(images)] * 2
        for i, name in enumerate(self._order):
            skipping = self.skip and i and self._order[i - 1].startswith("reduction")
            states.append(self.get_submodule(name)(states[-1], states[-3 if skipping else -2]))
        scores: torch.Tensor = self.fc(self.dropout(self.avgpool(self.relu(states[-1])).flatten(1)))
        return scores


def nasnet_mobile(
    batch: int = 128, classes: int = 1000, size: int = 224
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """NASNet-A (4 @ 1056), on images of 3 x ``size`` x ``size``."""
    return NasNet(32, 44, 4, False, classes), *image_batch(batch, classes, size)


def nasnet_large(
    batch: int = 16, classes: int = 1000, size: int = 331
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """NASNet-A (6 @ 4032), on images of 3 x ``size`` x ``size``."""
    return NasNet(96, 168, 6, True, classes), *image_batch(batch, classes, size)
