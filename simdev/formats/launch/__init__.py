"""Plans as launch configurations of the frameworks that train: Megatron-LM's arguments,
torchtitan's TOML, DeepSpeed's JSON.

``simdev plan --export`` calls ``launch_of``. A framework is a module here and a row of FRAMEWORKS.
A field of the plan is refused where a framework has no equivalent. A note names each field that the
framework treats differently from the simulation. Options are recalled from each framework's code,
which was not read again: Megatron-LM ``megatron/training/arguments.py``, torchtitan
``torchtitan/config/job_config.py``, DeepSpeed ``deepspeed/runtime/config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ground.errors import InputError
from ...nouns.models.large import Transformer
from ...nouns.strategy.parallelism import Parallelism
from .deepspeed import deepspeed
from .launch import Exporter, Launch
from .megatron import megatron
from .torchtitan import torchtitan

FRAMEWORKS: Mapping[str, Exporter] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
}


def launch_of(framework: str, model: Transformer, parallelism: Parallelism) -> Launch:
    """The configuration by which a framework trains a model under a plan. Raises InputError with
    everything that the framework cannot do.
    """
    try:
        return FRAMEWORKS[framework](model, parallelism)
    except InputError as error:
        raise InputError(
            f"{framework} has no way to do this: {p}" for p in error.problems
        ) from None


__all__ = ["FRAMEWORKS", "Launch", "launch_of"]
