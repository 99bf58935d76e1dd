"""Small graphs of every builder that the tests of models share."""

from __future__ import annotations

from functools import cache
from typing import Any

from simdev.nouns import models
from simdev.nouns.graph import Graph
from simdev.nouns.semantics import op_class, op_work

# Every builder at a small size, for quick tests.
SMALL: dict[str, dict[str, Any]] = {
    "lenet": {},
    "alexnet": {},
    "vgg-16": {},
    "resnet-50": {},
    "wresnet-50": {},
    "inception-v3": {"auxiliary": True},
    "nasnet-mobile": {},
    "nasnet-large": {},
    "enas-images": {},
    "enas-words": {"length": 2},
    "rnnlm": {"length": 4},
    "rnntc": {"length": 4},
    "nmt": {"length": 4},
    "gnmt": {"length": 4},
    "transformer-base": {"length": 16, "layers": 2},
    "bert-base": {"length": 32, "layers": 2},
    "gpt2-small": {"length": 32, "layers": 2},
    "gpt3-175b": {"length": 32, "layers": 2, "fused": False},
    "llama2-70b": {"length": 32, "layers": 2},
    "llama3-8b": {"length": 32, "layers": 2, "fused": False},
}


@cache
def small(name: str) -> Graph:
    return models.build(name, batch=4, **SMALL[name])


def flops(graph: Graph, phase: str, classes: tuple[str, ...]) -> int:
    chosen = (
        i for i, op in enumerate(graph.ops) if op.phase == phase and op_class(op.kind) in classes
    )
    return sum(op_work(graph, i).flops for i in chosen)
