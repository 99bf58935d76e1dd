"""The software that runs the layers of a large model: which passes over memory it fuses, how it
sends tokens to their experts, and which part of a step it replays as CUDA graphs.

``transformer`` names the software of a model. ``work`` counts the kernels of a layer and the
launches of its host by it, ``shard`` the bytes of sent tokens, ``simdev/lowering/hybrid`` their
times. A new software is a row of SOFTWARE, a new way to send tokens one of DISPATCHERS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ...strategy.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class Software:
    """How a software runs the kernels of a layer.

    ``fused``: the passes over memory between products are fused into one kernel each.
    ``fused_loss``: the loss is one kernel that reads scores of 16 bits and writes their gradient
    in place. ``grouped`` is the share of a single product's rate that the products of all experts
    of a device reach together. ``dispatcher`` and ``graphs`` are
    what it uses where a strategy does not tell them (``Parallelism.token_dispatcher``,
    ``cuda_graphs``). ``launches``: what its host launches for experts holds the device up.
    """

    fused: bool = True
    fused_loss: bool = False
    grouped: Fraction = Fraction(1)
    dispatcher: str = "alltoall"
    graphs: str = "none"
    launches: bool = False


# MXFP8 products of DeepSeek-V3's experts, one stream each: 2,672 TFLOP/s on a GB200, of the 3,500
# that single large products reach (Megatron-LM, deepseek-v3-gb200-optimization.md, section 1).
GROUPED: Final = Fraction(76, 100)

SOFTWARE: Final[Mapping[str, Software]] = {
    # Megatron-LM by its defaults: scale, mask and softmax, bias and activation, bias, dropout and
    # addition are one kernel each (``megatron/core/fusions``).
    "megatron": Software(),
    # Megatron-Core as NVIDIA's recipes for measured runs set it (Megatron-Bridge, perf_recipes).
    "megatron-bridge": Software(True, True, GROUPED, "hybridep", "partial", True),
}
DEFAULT_SOFTWARE: Final = "megatron"


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """How tokens get to their experts and back.

    ``once``: a token goes once to each device that has some of its experts, and once over the
    network to each node; else once for each expert, sorted by expert before it is sent. ``rate``
    is the share of the bandwidth between two devices of a node that it reaches (None: it takes as
    long as an all_to_all). ``overhead`` seconds pass beside each way where a host launches it.
    """

    once: bool = False
    rate: Fraction | None = None
    overhead: Fraction = Fraction(0)


DISPATCHERS: Final[Mapping[str, Dispatcher]] = {
    # NCCL's all_to_all.
    "alltoall": Dispatcher(),
    # DeepEP, docs/README_Hybrid-EP.md, "Performance Results" (MIT): on B200 and GB200 the kernels
    # alone move 543 to 750 GB/s over 8 to 36 ranks, 644 in the mean, of 770 between two devices;
    # calls from PyTorch take 0.15 to 0.2 ms more than the kernel.
    "hybridep": Dispatcher(True, Fraction(84, 100), Fraction(17, 100_000)),
    # The same page: DeepEP with 24 multiprocessors, over 8 to 16 ranks, by calls from PyTorch
    # 339 to 513 GB/s, 440 in the mean.
    "deepep": Dispatcher(True, Fraction(57, 100)),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What sends the tokens of a step to experts, and what is replayed as CUDA graphs."""

    software: Software
    dispatcher: Dispatcher
    graphs: str


def setting_of(software: str, parallelism: Parallelism) -> Setting:
    """The setting of a strategy, else of the software that runs it."""
    runs = SOFTWARE[software]
    name = parallelism.token_dispatcher or runs.dispatcher
    return Setting(runs, DISPATCHERS[name], parallelism.cuda_graphs or runs.graphs)
