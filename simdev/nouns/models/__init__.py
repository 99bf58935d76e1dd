"""Training steps of the papers' models and of today's as graphs, at any size and without PyTorch.

``build("resnet-50", batch=32)`` gives forward, backward and update; each builder is public too.
Ops, attributes and names are those of captured graphs: ``layer_3/attention/query/linear`` forward,
``grad/`` before it backward, ``update/layer_3/attention/query/weight`` for a parameter; step t of
an unrolled layer is ``layer_3@t``.

``simdev/files/scenario.py`` builds the graph of a scenario that names a model. A model is a builder
in the module of its family and a row of ``MODELS``; the same networks for PyTorch, against which
profiles are measured, are in ``simdev/measure/torch_models``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any

from ...ground.errors import InputError, refuse
from ...ground.units import text_problems
from ..graph import Graph
from ..structure import scope_of, unrolled
from .convolutional import alexnet, enas_images, inception_v3, lenet, nasnet, resnet, vgg
from .recurrent import enas_words, gnmt, nmt, rnnlm, rnntc
from .transformers import bert, gpt, llama, transformer


@dataclass(frozen=True, slots=True)
class Model:
    """A builder with the dimensions of a named model; the others keep the builder's defaults."""

    build: Callable[..., Graph]
    dims: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, Any]:
        """All dimensions: those of the name, and the builder's defaults."""
        parameters = inspect.signature(self.build).parameters
        return {name: parameter.default for name, parameter in parameters.items()} | dict(self.dims)


# Table 2.1 of Brown et al.; precision and optimizer as Megatron-LM trains that size.
_GPT3 = {
    "batch": 1,
    "length": 2048,
    "context": 2048,
    "dtype": "bfloat16",
    "optimizer": "mixed-adam",
}
_LLAMA3 = {"kv_heads": 8, "vocabulary": 128_256, "length": 8192}

MODELS: Mapping[str, Model] = {
    "lenet": Model(lenet),
    "alexnet": Model(alexnet),
    "vgg-16": Model(vgg, {"depth": 16}),
    "vgg-19": Model(vgg, {"depth": 19}),
    "resnet-50": Model(resnet, {"depth": 50}),
    "resnet-101": Model(resnet, {"depth": 101}),
    "resnet-152": Model(resnet, {"depth": 152}),
    "wresnet-50": Model(resnet, {"depth": 50, "widen": 4}),
    "wresnet-101": Model(resnet, {"depth": 101, "widen": 4}),
    "wresnet-152": Model(resnet, {"depth": 152, "widen": 4}),
    "inception-v3": Model(inception_v3),
    "nasnet-mobile": Model(nasnet),
    "nasnet-large": Model(
        nasnet, {"batch": 16, "filters": 168, "repeats": 6, "stem": 96, "skip": True, "size": 331}
    ),
    "enas-images": Model(enas_images),
    "enas-words": Model(enas_words),
    "rnnlm": Model(rnnlm),
    "rnntc": Model(rnntc),
    "nmt": Model(nmt),
    "gnmt": Model(gnmt),
    "gnmt-2": Model(gnmt, {"layers": 2, "hidden": 1024, "vocabulary": 32_000}),
    "gnmt-4": Model(gnmt, {"layers": 4, "hidden": 1024, "vocabulary": 32_000}),
    "gnmt-8": Model(gnmt, {"layers": 8, "hidden": 1024, "vocabulary": 32_000}),
    "transformer-base": Model(transformer, {"width": 512, "inner": 2048, "heads": 8}),
    "transformer-big": Model(transformer),
    "bert-base": Model(bert, {"layers": 12, "width": 768, "inner": 3072, "heads": 12}),
    "bert-large": Model(bert),
    "gpt2-small": Model(gpt),
    "gpt2-medium": Model(gpt, {"layers": 24, "width": 1024, "heads": 16}),
    "gpt2-large": Model(gpt, {"layers": 36, "width": 1280, "heads": 20}),
    "gpt2-xl": Model(gpt, {"layers": 48, "width": 1600, "heads": 25}),
    "gpt3-175b": Model(gpt, {"layers": 96, "width": 12_288, "heads": 96, **_GPT3}),
    "llama2-7b": Model(llama),
    "llama2-13b": Model(llama, {"layers": 40, "width": 5120, "inner": 13_824, "heads": 40}),
    "llama2-70b": Model(
        llama, {"layers": 80, "width": 8192, "inner": 28_672, "heads": 64, "kv_heads": 8}
    ),
    "llama3-8b": Model(llama, {"inner": 14_336, **_LLAMA3}),
    "llama3-70b": Model(
        llama, {"layers": 80, "width": 8192, "inner": 28_672, "heads": 64, **_LLAMA3}
    ),
}
"""The model of each name, in the order of the papers."""


def names() -> tuple[str, ...]:
    """The names that ``build`` knows."""
    return tuple(MODELS)


def build(name: str, /, **dims: Any) -> Graph:
    """The training step of a model: ``build("gpt2-small", batch=4, length=512)``.

    ``dims`` are the arguments of its builder (``batch``, ``dtype``, ``optimizer`` and the model's
    own); the others follow from the name or the paper. Raises InputError for an unknown name and
    for dimensions that do not fit.
    """
    refuse(text_problems("model", name))
    if name not in MODELS:
        near = get_close_matches(name, MODELS, 3) or list(MODELS)
        raise InputError(f'model: there is none called "{name}"; perhaps {", ".join(near)}')
    model = MODELS[name]
    return model.build(**{**model.dims, **dims})


def layer_of(name: str) -> str:
    """The layer that an op belongs to, by its name: "layer_3/attention/query" of
    "grad/layer_3/attention/query/matmul".

    Forward, backward and update of a layer share this name, and so do all steps of an unrolled
    layer; "" for the batch's inputs.
    """
    return unrolled(scope_of(name))


def parameter_count(graph: Graph) -> int:
    """The number of parameters that a step trains: elements written by its updates."""
    updates = (i for i, op in enumerate(graph.ops) if op.phase == "update")
    return sum(prod(graph.operands[i][0].shape or ()) for i in updates)


__all__ = [
    "MODELS",
    "Model",
    "alexnet",
    "bert",
    "build",
    "enas_images",
    "enas_words",
    "gnmt",
    "gpt",
    "inception_v3",
    "layer_of",
    "lenet",
    "llama",
    "names",
    "nasnet",
    "nmt",
    "parameter_count",
    "resnet",
    "rnnlm",
    "rnntc",
    "transformer",
    "vgg",
]
