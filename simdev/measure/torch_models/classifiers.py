"""Classifiers: NASNet-A, a small perceptron, AlexNet, VGG-19, ResNet-50 and Inception-V3. The sizes
of cells and blocks are those of ``simdev.nouns.models.convolutional``, which builds the same graphs
without PyTorch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...nouns.models.convolutional import BLOCKS, JOINED, MIXED_7, NORMAL, REDUCTION, Pair
from .batches import TrainingStep, image_step

# NASNet-A (Zoph et al., "Learning transferable architectures for scalable image recognition",
# 2018).
#
# The cells are those of the paper's figure 4; the network around them (a stem of two reductions,
# three groups of normal cells) is that of its ImageNet networks. The auxiliary head and scheduled
# drop path are left out.


def _named(**parts: nn.Module) -> nn.Sequential:
    """A sequence of modules with these names."""
    return nn.Sequential(OrderedDict(parts))


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
    return _named(relu=nn.ReLU(), conv=conv, bn=_norm(out))


class Halve(nn.Module):
    """Halves a state's extent and brings it to the width of a cell: two subsampled grids, one pixel
    apart, make half of the channels each.
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
            # Only operations on the cell's inputs have the stride: its own states are halved.
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
        """The cell's input and the previous cell's input to (N, channels, H', W')."""
        states = [self.squeeze(x), self.before(before)]
        for left, a, right, b in self.pairs:
            states.append(left(states[a]) + right(states[b]))
        return torch.cat([states[i] for i in self.joined], 1)


class NasNet(nn.Module):
    """Stem, cells, classifier.

    With ``skip``, the second input of the first cell after a reduction is the state before the
    reduction's input.
    """

    def __init__(self, stem: int, filters: int, repeats: int, skip: bool, classes: int) -> None:
        super().__init__()
        self.conv_0 = nn.Sequential(nn.Conv2d(3, stem, 3, stride=2, bias=False), _norm(stem))
        self.cells: list[tuple[Cell, int]] = []  # with the index of the older state, from the end
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


def mlp(batch: int = 32, width: int = 256, layers: int = 3, classes: int = 10) -> TrainingStep:
    """Classifies ``batch`` rows of ``width`` features through ``layers`` hidden layers.

    It is measured in seconds: a model to try the tool with.
    """
    module = nn.Sequential()
    for i in range(layers):
        module.add_module(f"layer_{i}", nn.Sequential(nn.Linear(width, width), nn.ReLU()))
    module.add_module("classifier", nn.Linear(width, classes))

    def loss(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(module(features), labels)

    return module, (torch.randn(batch, width), torch.randint(classes, (batch,))), loss


ALEXNET = {
    "conv_1": (3, 64, 11, 4, 2),
    "conv_2": (64, 192, 5, 1, 2),
    "conv_3": (192, 384, 3, 1, 1),
    "conv_4": (384, 256, 3, 1, 1),
    "conv_5": (256, 256, 3, 1, 1),
}
"""Channels in and out, kernel, stride and padding of each convolution."""


def alexnet(batch: int = 256, classes: int = 1000, size: int = 224) -> TrainingStep:
    """AlexNet in its one-column form, without groups and response normalization.

    Krizhevsky, "One weird trick for parallelizing convolutional networks", 2014: the form that the
    papers on parallelization use.
    """
    convolutions: dict[str, nn.Module] = {}
    for name, numbers in ALEXNET.items():
        convolutions[name] = block = _named(conv=nn.Conv2d(*numbers), relu=nn.ReLU())
        if name not in ("conv_3", "conv_4"):
            block.add_module("pool", nn.MaxPool2d(3, stride=2))
    module = _named(
        **convolutions,
        avgpool=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(),
        fc_6=nn.Sequential(nn.Dropout(0.5), nn.Linear(256 * 36, 4096), nn.ReLU()),
        fc_7=nn.Sequential(nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU()),
        fc_8=nn.Linear(4096, classes),
    )
    return image_step(module, batch, classes, size)


VGG_BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and number of 3x3 convolutions of each block, configuration E of the paper's table 1."""


def vgg_19(batch: int = 64, classes: int = 1000, size: int = 224) -> TrainingStep:
    """VGG-19 on images whose ``size`` is a multiple of 32.

    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
    2015.
    """
    blocks: dict[str, nn.Module] = {}
    channels = 3
    for number, (out, count) in enumerate(VGG_BLOCKS, 1):
        parts: dict[str, nn.Module] = {}
        for i in range(count):
            parts[f"conv_{i}"] = nn.Conv2d(channels, out, 3, padding=1)
            parts[f"relu_{i}"] = nn.ReLU()
            channels = out
        blocks[f"block_{number}"] = _named(**parts, pool=nn.MaxPool2d(2))
    features = channels * (size // 32) ** 2
    module = _named(
        **blocks,
        flatten=nn.Flatten(),
        fc_6=nn.Sequential(nn.Linear(features, 4096), nn.ReLU(), nn.Dropout(0.5)),
        fc_7=nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5)),
        fc_8=nn.Linear(4096, classes),
    )
    return image_step(module, batch, classes, size)


RESNET_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of bottlenecks of each stage."""
RESNET_EXPANSION = 4


def _normed(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and batch norm."""
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return _named(conv=conv, bn=nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution beside a shortcut, a convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * RESNET_EXPANSION
        self.unit_1 = _normed(channels, width, 1)
        # The paper puts the stride into the first 1x1; the field has moved it to the 3x3, at the
        # same number of parameters.
        self.unit_2 = _normed(width, width, 3, stride)
        self.unit_3 = _normed(width, out, 1)
        self.shortcut = _normed(channels, out, 1, stride) if stride > 1 or channels != out else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, 4 width, H', W')."""
        out = self.unit_3(self.relu(self.unit_2(self.relu(self.unit_1(x)))))
        return self.relu(out + (x if self.shortcut is None else self.shortcut(x)))


def resnet_50(batch: int = 64, classes: int = 1000, size: int = 224) -> TrainingStep:
    """ResNet-50 (He et al., "Deep residual learning for image recognition", 2015)."""
    stem, channels = _normed(3, 64, 7, 2), 64
    stem.add_module("relu", nn.ReLU(inplace=True))
    stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    blocks: dict[str, nn.Module] = {}
    for number, (width, count) in enumerate(RESNET_STAGES, 1):
        for i in range(count):
            stride = 2 if i == 0 and number > 1 else 1
            blocks[f"stage_{number}_{i}"] = Bottleneck(channels, width, stride)
            channels = width * RESNET_EXPANSION
    ends = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    module = _named(stem=stem, **blocks, **ends, fc=nn.Linear(channels, classes))
    return image_step(module, batch, classes, size)


Size = int | tuple[int, int]
ConvLayer = tuple[int, Size] | tuple[int, Size, int]
"""Channels out, kernel, stride (default 1). Padding keeps the extent at stride 1, and is zero at
stride 2.
"""
Branches = Mapping[str, Sequence[ConvLayer]]
"""The convolutions of each branch of a block; ``branch_pool`` begins with a pooling."""


def _conv_unit(
    channels: int, out: int, kernel: Size, stride: int = 1, padding: Size = 0
) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
    return _named(conv=conv, bn=_norm(out), relu=nn.ReLU())


def _chain(
    channels: int, layers: Sequence[ConvLayer], pool: nn.Module | None = None
) -> tuple[nn.Sequential, int]:
    """A sequence of units, after a pooling where given, and its number of output channels."""
    chain = nn.Sequential()
    if pool is not None:
        chain.add_module("pool", pool)
    for i, (out, kernel, *rest) in enumerate(layers):
        stride = rest[0] if rest else 1
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if stride == 1 else 0
        name = "conv" if len(layers) == 1 else f"conv_{i}"
        chain.add_module(name, _conv_unit(channels, out, kernel, stride, padding))
        channels = out
    return chain, channels


class SplitEnd(nn.Module):
    """A branch that ends in a 1x3 and a 3x1 convolution in parallel."""

    def __init__(self, channels: int, layers: Sequence[ConvLayer]) -> None:
        super().__init__()
        self.stem, middle = _chain(channels, layers)
        self.conv1x3 = _conv_unit(middle, 384, (1, 3), padding=(0, 1))
        self.conv3x1 = _conv_unit(middle, 384, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, 768, H, W)."""
        x = self.stem(x)
        return torch.cat([self.conv1x3(x), self.conv3x1(x)], 1)


class Mixed(nn.Module):
    """Parallel branches over the same input, concatenated to ``out`` channels.

    The branches in ``split`` have a split end. In a block that reduces the extent, the pooling
    branch has no convolutions.
    """

    def __init__(self, channels: int, branches: Branches, split: Sequence[str] = ()) -> None:
        super().__init__()
        reduces = not branches["branch_pool"]
        pool = nn.MaxPool2d(3, 2) if reduces else nn.AvgPool2d(3, stride=1, padding=1)
        self.out = 0
        branch: nn.Module
        for name, layers in branches.items():
            if name in split:
                branch, out = SplitEnd(channels, layers), 2 * 384
            else:
                branch, out = _chain(channels, layers, pool if name == "branch_pool" else None)
            self.add_module(name, branch)
            self.out += out

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, out, H', W')."""
        return torch.cat([branch(x) for branch in self.children()], 1)


def _halving(block: Branches) -> Branches:
    """The block with a stride of 2 in the last unit of each branch."""
    return {
        name: [*units[:-1], *((*unit, 2) for unit in units[-1:])] for name, units in block.items()
    }


# A block without a convolution after its pooling halves the extent.
INCEPTION_BLOCKS: dict[str, Branches] = {
    name: block if block["branch_pool"] else _halving(block) for name, block in BLOCKS.items()
}
"""The blocks of Inception-V3, by their usual names."""


def inception_v3(batch: int = 32, classes: int = 1000, size: int = 299) -> TrainingStep:
    """Inception-V3, without auxiliary head.

    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015.
    """
    stem = _named(
        conv2d_1a=_conv_unit(3, 32, 3, stride=2),
        conv2d_2a=_conv_unit(32, 32, 3),
        conv2d_2b=_conv_unit(32, 64, 3, padding=1),
        maxpool_3a=nn.MaxPool2d(3, stride=2),
        conv2d_3b=_conv_unit(64, 80, 1),
        conv2d_4a=_conv_unit(80, 192, 3),
        maxpool_5a=nn.MaxPool2d(3, stride=2),
    )
    blocks, channels = dict(stem.named_children()), 192
    for name, branches in INCEPTION_BLOCKS.items():
        split = ("branch3x3", "branch3x3dbl") if branches is MIXED_7 else ()
        blocks[name] = block = Mixed(channels, branches, split)
        channels = block.out
    module = _named(
        **blocks,
        avgpool=nn.AdaptiveAvgPool2d(1),
        dropout=nn.Dropout(0.5),
        flatten=nn.Flatten(),
        fc=nn.Linear(channels, classes),
    )
    return image_step(module, batch, classes, size)
