"""NASNet-A (Zoph et al., "Learning transferable architectures for scalable image recognition",
2018).

The cells are those of the paper's figure 4, the network around them (stem of two reductions, three
groups of normal cells) that of its ImageNet networks. Left out: the auxiliary head and scheduled
drop path.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ...nouns.models.convolutional import JOINED, NORMAL, REDUCTION, Pair
from .batches import TrainingStep, image_step


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=0.001)


def _separable(channels: int, out: int, kernel: int, stride: int) -> nn.Sequential:
    """ReLU, depthwise and pointwise convolution, batch norm; twice, the stride in the first."""
    layers = nn.Sequential()
    for i, (inner, step) in enumerate(((channels, stride), (out, 1))):
        depthwise = nn.Conv2d(inner, inner, kernel, step, kernel // 2, groups=inner, bias=False)
        layers.add_module(f"relu_{i}", nn.ReLU())
        layers.add_module(f"depthwise_{i}", depthwise)
        layers.add_module(f"pointwise_{i}", nn.Conv2d(inner, out, 1, bias=False))
        layers.add_module(f"bn_{i}", _norm(out))
    return layers


def _squeeze(channels: int, out: int) -> nn.Sequential:
    """ReLU, 1x1 convolution, batch norm: brings a state to the width of the cell."""
    conv = nn.Conv2d(channels, out, 1, bias=False)
    return nn.Sequential(OrderedDict(relu=nn.ReLU(), conv=conv, bn=_norm(out)))


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

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, out, H / 2, W / 2), rounded up."""
        x = self.relu(x)
        return self.bn(torch.cat([self.even(self.pool(x)), self.odd(self.pool(self.shift(x)))], 1))


def _operation(name: str, channels: int, out: int, stride: int) -> nn.Module:
    kind, _, kernel = name.partition("_")
    if kind == "separable":
        return _separable(channels, out, int(kernel), stride)
    if kind == "average":
        return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
    return nn.MaxPool2d(3, stride, padding=1) if kind == "max" else nn.Identity()


class Cell(nn.Module):
    """Five pairs of operations over the cell's two inputs and the results of its earlier pairs.

    ``widths`` are the channels of the last state and of the one before it; ``before`` brings the
    latter to the shape of the cell.
    """

    def __init__(
        self, pairs: tuple[Pair, ...], widths: tuple[int, int], out: int, before: nn.Module
    ) -> None:
        super().__init__()
        self.squeeze = _squeeze(widths[0], out)
        self.before = before
        inner = [out, widths[1] if isinstance(before, nn.Identity) else out, *[out] * len(pairs)]
        self.pairs: list[tuple[nn.Module, int, nn.Module, int]] = []
        for i, (left, a, right, b) in enumerate(pairs):
            # The stride belongs to what reads the cell's inputs: its own states are halved already.
            sides = [
                _operation(name, inner[state], out, 2 if pairs is REDUCTION and state < 2 else 1)
                for name, state in ((left, a), (right, b))
            ]
            self.add_module(f"left_{i}", sides[0])
            self.add_module(f"right_{i}", sides[1])
            self.pairs.append((sides[0], a, sides[1], b))
        self.joined = JOINED[pairs]
        self.channels = out * len(self.joined)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """The input of the cell and that of the one before to (N, channels, H', W')."""
        states = [self.squeeze(x), self.before(before)]
        for left, a, right, b in self.pairs:
            states.append(left(states[a]) + right(states[b]))
        return torch.cat([states[i] for i in self.joined], 1)


class NasNet(nn.Module):
    """Stem, cells, classifier.

    With ``skip`` the first cell after a reduction takes as its second input not the reduction's
    input but the state one earlier.
    """

    def __init__(self, stem: int, filters: int, repeats: int, skip: bool, classes: int) -> None:
        super().__init__()
        self.conv_0 = nn.Sequential(nn.Conv2d(3, stem, 3, stride=2, bias=False), _norm(stem))
        self.cells: list[tuple[Cell, int]] = []  # with the place of the older state, from the end
        # (channels, halvings) of all states so far, from which the next cell takes its shape.
        self._shapes = [(stem, 0), (stem, 0)]
        self._add_cell("stem_0", filters // 4, REDUCTION)
        self._add_cell("stem_1", filters // 2, REDUCTION)
        for group in range(3):
            if group:
                self._add_cell(f"reduction_{group}", filters * 2**group, REDUCTION)
            for i in range(repeats):
                skips = skip and group > 0 and i == 0
                name = f"cell_{group * repeats + i}"
                self._add_cell(name, filters * 2**group, NORMAL, -3 if skips else -2)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(self._shapes[-1][0], classes)

    def _add_cell(self, name: str, out: int, pairs: tuple[Pair, ...], older: int = -2) -> None:
        (channels, halvings), (older_channels, older_halvings) = (
            self._shapes[-1],
            self._shapes[older],
        )
        before: nn.Module = nn.Identity()
        if older_halvings != halvings:
            before = Halve(older_channels, out)
        elif name != "stem_0":
            before = _squeeze(older_channels, out)
        cell = Cell(pairs, (channels, older_channels), out, before)
        self.add_module(name, cell)
        self.cells.append((cell, older))
        self._shapes.append((cell.channels, halvings + (pairs is REDUCTION)))

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 3, H, W) to scores (N, classes)."""
        states = [self.conv_0(images)] * 2
        for cell, older in self.cells:
            states.append(cell(states[-1], states[older]))
        return self.fc(self.dropout(self.avgpool(self.relu(states[-1])).flatten(1)))


def nasnet_mobile(batch: int = 128, classes: int = 1000, size: int = 224) -> TrainingStep:
    """NASNet-A (4 @ 1056), on images of 3 x ``size`` x ``size``."""
    return image_step(NasNet(32, 44, 4, False, classes), batch, classes, size)


def nasnet_large(batch: int = 16, classes: int = 1000, size: int = 331) -> TrainingStep:
    """NASNet-A (6 @ 4032), on images of 3 x ``size`` x ``size``."""
    return image_step(NasNet(96, 168, 6, True, classes), batch, classes, size)
