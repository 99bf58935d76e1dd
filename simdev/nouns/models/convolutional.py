"""Chains of convolutions: LeNet-5, AlexNet, VGG and ResNet.

LeNet-5: LeCun et al., "Gradient-based learning applied to document recognition", 1998, in the
field's form: every map of the second convolution reads all of the first, and a softmax ends it;
61,706 parameters. AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional networks",
2014, the one-column form that the papers on parallelization use, without groups and response
normalization; 61,100,840. VGG: Simonyan and Zisserman, "Very deep convolutional networks for
large-scale image recognition", 2014, configurations D and E of table 1; 138,357,544 and
143,667,240. ResNet: He et al., "Deep residual learning for image recognition", 2015; 25,557,032,
44,549,160 and 60,192,808 for 50, 101 and 152 layers.
"""

from __future__ import annotations

from ...ground.errors import InputError
from .builder import StepBuilder, Value
from .ops import (
    avg_pool2d,
    batch_norm,
    conv2d,
    dropout,
    flat,
    global_avg_pool,
    linear,
    max_pool2d,
    relu,
    tanh,
)
from .training import images, model, prediction_loss

ALEXNET = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Channels, kernel, stride, padding."""
# Convolutions of AlexNet, counted from 1, that a pooling follows.
POOLED = (1, 2, 5)
VGG_CHANNELS = (64, 128, 256, 512, 512)
VGG = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Number of 3x3 convolutions of each block, by depth."""
RESNET = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Bottlenecks of each stage, by depth."""
# A bottleneck puts out four times the channels of its 3x3 convolution (table 1).
EXPANSION = 4


@model("lenet-b{batch}", "momentum")
def lenet(step: StepBuilder, batch: int = 64, classes: int = 10, size: int = 32) -> Value:
    """Classifies ``batch`` gray images of ``size`` x ``size`` into ``classes``."""
    x = images(step, batch, size, channels=1)
    for i, channels in enumerate((6, 16), 1):
        with step.scope(f"conv_{i}"):
            x = avg_pool2d(tanh(conv2d(x, channels, 5, bias=True)), 2, 2)
    x = flat(x)
    for i, features in enumerate((120, 84), 3):
        with step.scope(f"block_{i}"):
            x = tanh(linear(x, features, "fc"))
    return prediction_loss(linear(x, classes, "fc_5"))


@model("alexnet-b{batch}", "momentum")
def alexnet(step: StepBuilder, batch: int = 256, classes: int = 1000, size: int = 224) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size`` into ``classes``."""
    x = images(step, batch, size)
    for i, (channels, kernel, stride, padding) in enumerate(ALEXNET, 1):
        with step.scope(f"conv_{i}"):
            x = relu(conv2d(x, channels, kernel, stride, padding, bias=True))
            if i in POOLED:
                x = max_pool2d(x, 3, 2)
    # Dropout before the layer here and behind it in VGG: each as its paper has it.
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = relu(linear(dropout(x), 4096, "fc"))
    return prediction_loss(linear(x, classes, "fc_8"))


@model("vgg-{depth}-b{batch}", "momentum")
def vgg(
    step: StepBuilder, batch: int = 64, depth: int = 16, classes: int = 1000, size: int = 224
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 16 or 19."""
    if depth not in VGG:
        raise InputError(f"depth: must be 16 or 19, got {depth}")
    x = images(step, batch, size)
    for block, (channels, count) in enumerate(zip(VGG_CHANNELS, VGG[depth], strict=True), 1):
        with step.scope(f"block_{block}"):
            for i in range(count):
                x = relu(conv2d(x, channels, 3, padding=1, bias=True, name=f"conv_{i}"))
            x = max_pool2d(x, 2, 2)
    x = flat(x)
    for i in (6, 7):
        with step.scope(f"fc_{i}"):
            x = dropout(relu(linear(x, 4096, "fc")))
    return prediction_loss(linear(x, classes, "fc_8"))


@model("resnet-{depth}-b{batch}", "momentum")
def resnet(
    step: StepBuilder,
    batch: int = 64,
    depth: int = 50,
    widen: int = 1,
    classes: int = 1000,
    size: int = 224,
) -> Value:
    """Classifies ``batch`` images of 3 x ``size`` x ``size``; ``depth`` 50, 101 or 152.

    ``widen`` multiplies the channels of every convolution: the WResNet of Tofu (Wang et al.,
    EuroSys 2019, section 7).
    """
    if depth not in RESNET:
        raise InputError(f"depth: must be 50, 101 or 152, got {depth}")
    if widen > 1:
        step.name = f"wresnet-{depth}-{widen}-b{batch}"
    x = images(step, batch, size)
    with step.scope("stem"):
        x = max_pool2d(relu(batch_norm(conv2d(x, 64 * widen, 7, 2, 3))), 3, 2, 1)
    for stage, count in enumerate(RESNET[depth], 1):
        for i in range(count):
            stride = 2 if i == 0 and stage > 1 else 1
            with step.scope(f"stage_{stage}_{i}"):
                x = _bottleneck(x, 64 * widen * 2 ** (stage - 1), stride)
    with step.scope("head"):
        x = global_avg_pool(x)
    return prediction_loss(linear(flat(x), classes, "fc"))


def _bottleneck(x: Value, width: int, stride: int) -> Value:
    """1x1, 3x3 and 1x1 convolution beside a shortcut, a convolution where the shape changes."""
    out = EXPANSION * width
    y = relu(_unit(x, width, 1, 1, "unit_1"))
    # The paper has the stride in the first 1x1; the field moved it here, at equal parameters.
    y = relu(_unit(y, width, 3, stride, "unit_2"))
    y = _unit(y, out, 1, 1, "unit_3")
    shortcut = x if stride == 1 and x.shape[1] == out else _unit(x, out, 1, stride, "shortcut")
    return relu(y + shortcut)


def _unit(x: Value, channels: int, kernel: int, stride: int, name: str) -> Value:
    with x.step.scope(name):
        return batch_norm(conv2d(x, channels, kernel, stride, kernel // 2))
