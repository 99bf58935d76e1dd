"""The sizes of built models beside the published counts; the site shows this table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from simdev.nouns.graph import Graph
from simdev.nouns.models import MODELS, build, parameter_count
from simdev.nouns.semantics import op_class, op_work

DOCS = Path(__file__).parent.parent / "docs" / "reference" / "models.md"
PRODUCTS = ("gemm", "conv", "attention", "recurrent")

# (parameters, allowed relative difference, source). 0: the number is exact and unambiguous.
PARAMETERS = {
    "lenet": (61_706, 0, "its layers: 156 + 2,416 + 48,120 + 10,164 + 850"),
    "alexnet": (61_100_840, 0, "torchvision"),
    "vgg-16": (138_357_544, 0, "torchvision"),
    "vgg-19": (143_667_240, 0, "torchvision; P3"),
    "resnet-50": (25_557_032, 0, "torchvision"),
    "resnet-101": (44_549_160, 0, "torchvision"),
    "resnet-152": (60_192_808, 0, "torchvision"),
    "wresnet-50": (4.2 * 2**30 / 12, 0.03, "Tofu, table 2: 4.2 GB of 3 W"),
    "wresnet-101": (7.8 * 2**30 / 12, 0.03, "Tofu, table 2: 7.8 GB of 3 W"),
    "wresnet-152": (10.5 * 2**30 / 12, 0.03, "Tofu, table 2: 10.5 GB of 3 W"),
    "inception-v3": (27_161_264 - 3_326_696, 0, "torchvision, less its auxiliary head"),
    "nasnet-mobile": (5_289_978, 0, "Keras, trainable; the paper: 5.3 M"),
    "nasnet-large": (88_753_150, 0, "Keras, trainable; the paper: 88.9 M"),
    "gnmt-8": (278e6, 0.015, "Shazeer et al. 2017, table 2: 278 M; PipeDream's profile: 1,111 MB"),
    "transformer-base": (65e6, 0.035, "Vaswani et al., table 3: 65 M"),
    "transformer-big": (213e6, 0.01, "Vaswani et al., table 3: 213 M"),
    "bert-base": (110_106_428, 0, "Hugging Face, BertForPreTraining"),
    "bert-large": (336_226_108, 0, "Hugging Face, BertForPreTraining; the paper: 340 M"),
    "gpt2-small": (124_439_808, 0, "Hugging Face"),
    "gpt2-medium": (354_823_168, 0, "Hugging Face"),
    "gpt2-large": (774_030_080, 0, "Hugging Face"),
    "gpt2-xl": (1_557_611_200, 0, "Hugging Face"),
    "gpt3-175b": (175e9, 0.003, "Brown et al., table 2.1: 175.0 B"),
    "llama2-7b": (6_738_415_616, 0, "Hugging Face"),
    "llama2-13b": (13_015_864_320, 0, "Hugging Face"),
    "llama2-70b": (68_976_648_192, 0, "Hugging Face"),
    "llama3-8b": (8_030_261_248, 0, "Hugging Face"),
    "llama3-70b": (70_553_706_496, 0, "Hugging Face"),
}


@cache
def one_sample(name: str) -> Graph:
    """The step of a model at batch 1."""
    return build(name, batch=1)


@cache
def forward_products(name: str) -> int:
    """The floating-point operations of the products, convolutions, attentions and LSTM cells of the
    forward, for one sample.
    """
    graph = one_sample(name)
    forward = [
        i
        for i, op in enumerate(graph.ops)
        if op.phase == "forward" and op_class(op.kind) in PRODUCTS
    ]
    return sum(op_work(graph, i).flops for i in forward)


def _published(name: str) -> str:
    if name not in PARAMETERS:
        return ""
    _, within, source = PARAMETERS[name]
    return f" ({source})" if not within else f" ({source}, within {within:.1%})"


def _sizes(name: str) -> str:
    sizes = MODELS[name].sizes
    told = [f"{size} {value}" for size, value in sizes.items() if type(value) is int]
    return ", ".join([*told, sizes["dtype"], sizes["optimizer"]])


def _billions(count: int) -> str:
    return f"{count / 1e9:,.0f}" if count >= 10**12 else f"{count / 1e9:.4g}"


def rows() -> Iterator[tuple[str, ...]]:
    """For each model: name, builder and sizes, ops, parameters (published), forward GFLOP."""
    for name, model in MODELS.items():
        graph = one_sample(name)
        yield (
            f"``{name}``",
            f"``{model.build.__name__}``: {_sizes(name)}",
            f"{len(graph.ops):,}",
            f"{parameter_count(graph):,}{_published(name)}",
            _billions(forward_products(name)),
        )
