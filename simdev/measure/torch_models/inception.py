"""Inception-V3, without auxiliary head (Szegedy et al., "Rethinking the Inception Architecture",
2015).

Names of blocks are those of the field (mixed_5b ... mixed_7c). Every convolution is convolution,
batch norm and ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from .images import image_batch

Size = int | tuple[int, int]
Layer = tuple[int, Size] | tuple[int, Size, int]
"""Channels out, kernel, stride (1). Padding keeps the extent at stride 1 and is none at stride 2.
"""


class ConvUnit(nn.Module):
    """Convolution, batch norm, ReLU."""

    def __init__(
        self, channels: int, out: int, kernel: Size, stride: int = 1, padding: Size = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to (N, out, H', W')."""
        out: torch.Tensor = self.relu(self.bn(self.conv(x)))
        return out


def _chain(
    channels: int, layers: Sequence[Layer], pool: nn.Module | None = None
) -> tuple[nn.Sequential, int]:
    """Units one after another, behind a pooling where given; returns the channels that leave."""
    chain = nn.Sequential()
    if pool is not None:
        chain.add_module("pool", pool)
    for i, (out, kernel, *rest) in enumerate(layers):
        stride = rest[0] if rest else 1
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if stride == 1 else 0
        name = "conv" if len(layers) == 1 else f"conv_{i}"
        chain.add_module(name, ConvUnit(channels, out, kernel, stride, padding))
        channels = out
    return chain, channels


class Mixed(nn.Module):
    """Branches beside one another over the same input, joined by channels."""

    def __init__(
        self, channels: int, branches: Mapping[str, Sequence[Layer]], pool: nn.Module
    ) -> None:
        super().__init__()
        self.out = 0
        for name, layers in branches.items():
            branch, out = _chain(channels, layers, pool if name == "branch_pool" else None)
            self.add_module(name, branch)
            self.out += out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to (N, out, H', W')."""
        return torch.cat([branch(x) for branch in self.children()], 1)


class SplitEnd(nn.Module):
    """A branch that ends in a 1x3 and a 3x1 convolution beside each other."""

    def __init__(self, channels: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.stem, middle = _chain(channels, layers)
        self.conv1x3 = ConvUnit(middle, 384, (1, 3), padding=(0, 1))
        self.conv3x1 = ConvUnit(middle, 384, (3, 1), padding=(1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, H, W) to (N, 768, H, W)."""
        x = self.stem(x)
        return torch.cat([self.conv1x3(x), self.conv3x1(x)], 1)


def _average() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1)


def _mixed_5(channels: int, pooled: int) -> Mixed:
    branches: dict[str, list[Layer]] = {
        "branch1x1": [(64, 1)],
        "branch5x5": [(48, 1), (64, 5)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3)],
        "branch_pool": [(pooled, 1)],
    }
    return Mixed(channels, branches, _average())


def _mixed_6(channels: int, width: int) -> Mixed:
    row: Size = (1, 7)
    column: Size = (7, 1)
    branches: dict[str, list[Layer]] = {
        "branch1x1": [(192, 1)],
        "branch7x7": [(width, 1), (width, row), (192, column)],
        "branch7x7dbl": [(width, 1), (width, column), (width, row), (width, column), (192, row)],
        "branch_pool": [(192, 1)],
    }
    return Mixed(channels, branches, _average())


def _reduce_5(channels: int) -> Mixed:
    branches: dict[str, list[Layer]] = {
        "branch3x3": [(384, 3, 2)],
        "branch3x3dbl": [(64, 1), (96, 3), (96, 3, 2)],
        "branch_pool": [],
    }
    return _with_pool(channels, branches)


def _reduce_6(channels: int) -> Mixed:
    branches: dict[str, list[Layer]] = {
        "branch3x3": [(192, 1), (320, 3, 2)],
        "branch7x7x3": [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)],
        "branch_pool": [],
    }
    return _with_pool(channels, branches)


def _with_pool(channels: int, branches: Mapping[str, Sequence[Layer]]) -> Mixed:
    return Mixed(channels, branches, nn.MaxPool2d(3, stride=2))


def _mixed_7(channels: int) -> Mixed:
    mixed = Mixed(channels, {"branch1x1": [(320, 1)]}, _average())
    mixed.add_module("branch3x3", SplitEnd(channels, [(384, 1)]))
    mixed.add_module("branch3x3dbl", SplitEnd(channels, [(448, 1), (384, 3)]))
    pool, out = _chain(channels, [(192, 1)], _average())
    mixed.add_module("branch_pool", pool)
    mixed.out += 2 * 768 + out
    return mixed


def _stem() -> list[tuple[str, nn.Module]]:
    return [
        ("conv2d_1a", ConvUnit(3, 32, 3, stride=2)),
        ("conv2d_2a", ConvUnit(32, 32, 3)),
        ("conv2d_2b", ConvUnit(32, 64, 3, padding=1)),
        ("maxpool_3a", nn.MaxPool2d(3, stride=2)),
        ("conv2d_3b", ConvUnit(64, 80, 1)),
        ("conv2d_4a", ConvUnit(80, 192, 3)),
        ("maxpool_5a", nn.MaxPool2d(3, stride=2)),
    ]


def _blocks() -> list[tuple[str, nn.Module]]:
    """The mixed blocks, each fed the channels that leave the one before."""
    makers: list[tuple[str, Callable[[int], nn.Module]]] = [
        ("mixed_5b", lambda channels: _mixed_5(channels, 32)),
        ("mixed_5c", lambda channels: _mixed_5(channels, 64)),
        ("mixed_5d", lambda channels: _mixed_5(channels, 64)),
        ("mixed_6a", _reduce_5),
        ("mixed_6b", lambda channels: _mixed_6(channels, 128)),
        ("mixed_6c", lambda channels: _mixed_6(channels, 160)),
        ("mixed_6d", lambda channels: _mixed_6(channels, 160)),
        ("mixed_6e", lambda channels: _mixed_6(channels, 192)),
        ("mixed_7a", _reduce_6),
        ("mixed_7b", _mixed_7),
        ("mixed_7c", _mixed_7),
    ]
    found, channels = [], 192
    for name, make in makers:
        block = make(channels)
        found.append((name, block))
        channels = int(block.out)  # type: ignore[arg-type]
    return found


def inception_v3(
    batch: int = 32, classes: int = 1000, size: int = 299
) -> tuple[nn.Module, tuple[torch.Tensor, ...], Callable[..., torch.Tensor]]:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``."""
    module = nn.Sequential()
    head: list[tuple[str, nn.Module]] = [
        ("avgpool", nn.AdaptiveAvgPool2d(1)),
        ("dropout", nn.Dropout(0.5)),
        ("flatten", nn.Flatten()),
        ("fc", nn.Linear(2048, classes)),
    ]
    for name, part in [*_stem(), *_blocks(), *head]:
        module.add_module(name, part)

    return module, *image_batch(batch, classes, size)
