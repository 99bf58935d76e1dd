"""Training steps to measure: functions from sizes to (module, inputs, loss).

``inputs`` are the tensors of one batch, and ``loss(module, *inputs)`` gives the scalar that the
step minimises. The defaults of a function are the sizes of its paper; ``MODELS`` holds sizes that
one CPU core measures in minutes.

A model is a function in a module here and a row of MODELS; one that ``simdev.nouns.models`` builds
without PyTorch is written there a second time, with the same names of ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .attention import bert, gpt2, gpt2_medium, transformer
from .batches import TrainingStep
from .classifiers import alexnet, inception_v3, mlp, nasnet_large, nasnet_mobile, resnet_50, vgg_19
from .recurrent import gnmt, rnnlm


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is ready to be measured: its builder, its optimizer, and its sizes on a CPU."""

    build: Callable[..., TrainingStep]
    optimizer: str
    cpu: Mapping[str, int] = field(default_factory=dict)


MODELS: dict[str, Model] = {
    "inception-v3": Model(inception_v3, "sgd-momentum", {"batch": 16}),
    "gnmt": Model(gnmt, "adam"),
    "resnet-50": Model(resnet_50, "sgd-momentum", {"batch": 16}),
    "vgg-19": Model(vgg_19, "sgd-momentum", {"batch": 4}),
    "alexnet": Model(alexnet, "sgd-momentum", {"batch": 128}),
    "nasnet-mobile": Model(nasnet_mobile, "sgd-momentum", {"batch": 16}),
    "nasnet-large": Model(nasnet_large, "sgd-momentum", {"batch": 1}),
    "rnnlm": Model(rnnlm, "sgd-momentum"),
    "transformer-big": Model(transformer, "adam", {"batch": 16}),
    "bert-large": Model(bert, "adam", {"batch": 4}),
    "gpt2-small": Model(gpt2, "adam", {"batch": 1}),
    "gpt2-medium": Model(gpt2_medium, "adam", {"batch": 1, "length": 512}),
    "mlp": Model(mlp, "sgd-momentum"),
}
"""The models that ``simdev profile --list`` shows, by name."""

__all__ = ["MODELS", "Model"]
