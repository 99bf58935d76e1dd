"""The software that runs the layers of a large model: the passes over memory that it fuses, its way
to send tokens to experts, and the part of a step that it replays as CUDA graphs.

``transformer`` names the software of a model. By these, ``work`` counts the kernels of a layer and
the launches of its host, ``shard`` the bytes of sent tokens, and ``simdev/lowering/hybrid`` their
times. A new software is a row of SOFTWARE, a new way to send tokens a row of DISPATCHERS.

- "megatron": Megatron-core with NVIDIA's Transformer Engine. Scale, mask and softmax, bias and
  activation, bias, dropout and addition are one kernel each (``megatron/core/fusions``).
- "megatron-bridge": Megatron-core as NVIDIA's recipes for measured runs set it (Megatron-Bridge,
  ``perf_recipes``).
- "torchtitan": PyTorch eager, as of torchtitan in autumn 2024 (``models/llama/model.py``,
  ``models/norms.py``, ``parallelize_llama.py``, ``train.py``): FSDP2, each op a separate kernel.
- "torchtitan-compiled": the same with ``torch.compile`` of each block. Inductor fuses the ops
  between products, but has no complex numbers (rotary) and was not used for the loss.
- "deepspeed-0.3": the kernels of "megatron" with ZeRO 3 as DeepSpeed had it in 2021, before a
  later release gathered several weights into one tensor (``runtime/zero/partition_parameters.py``,
  ``_allgather_param`` and ``_reduce_scatter_gradient``; recalled, not re-read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from ....ground.frozen import FrozenDict
from ...strategy.parallelism import Parallelism


class Passes(NamedTuple):
    """Bytes that the kernels of an operation read and write for each number of its tensor, forward
    and backward.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Software:
    """The properties of a software that change the kernels of a layer.

    - ``passes``: the bytes moved by the kernels of an operation; for other operations ``work``
      counts them.
    - ``plain``: layers run as a plain module of PyTorch. Queries, keys, values, gate and value are
      separate products; keys and values are repeated for the heads that share them; a pass puts
      parts that tp gathers or scatters along the sequence in order, since NCCL joins the ranks'
      parts along the first dimension. Gradients are freed instead of set to zero, and recomputation
      stops before the last product of a layer, whose output no backward reads
      (``torch.utils.checkpoint``, ``early_stop``; compiled it is dead code).
    - ``attention``: the shares of the peak FLOP/s that fused attention reaches, forward and
      backward (None: the device's shares).
    - ``fsdp``: FSDP2 copies parameters out of the buffer in which they were gathered, and gradients
      into the float32 buffer from which they are reduced; float8 weights are gathered as such; the
      parameters of embedding and classifier, which belong to the root, stay gathered until the end
      of their backward.
    - ``scales_apart``: float8 with the current scale of a tensor (torchao). One pass finds the
      largest element, one casts the rows and one the columns; a split sequence is cast before it is
      gathered. Weights are transposed for the gradient of the input (``torch._scaled_mm`` sums
      along rows alone).
    - ``keeps_outputs``: recomputation "per_op" keeps a layer's last product, too.
    - ``loss_bytes``: bytes of workspace for each score, with tp 1 and with more, beside its saved
      ``score_bytes``.
    - ``sums_beside``: with a split sequence, the sum of the gradient of a product's input overlaps
      the gradient of its weights (``Parallelism.tensor_overlap``).
    - ``by_weight``: with ZeRO 3 every weight is gathered, and its gradient reduced, by a separate
      collective on a list of all ranks' parts, which the host copies one by one.
    - ``dispatcher`` and ``graphs`` are the defaults of ``Parallelism.token_dispatcher`` and
      ``Parallelism.cuda_graphs``. ``is_counted``: the device waits for the host's launches of
      layers with experts.
    """

    passes: Mapping[str, Passes] = FrozenDict()
    plain: bool = False
    attention: tuple[float, float] | None = None
    fsdp: bool = False
    scales_apart: bool = False
    keeps_outputs: bool = False
    loss_bytes: tuple[int, int] = (2, 2)
    score_bytes: int = 4
    dispatcher: str = "alltoall"
    graphs: str = "none"
    is_counted: bool = False
    by_weight: bool = False
    sums_beside: bool = True


# In PyTorch's order of kernels; bfloat16 has 2 bytes, float32 4.
_LOSS = Passes(
    # To float32; log_softmax: largest, sum, output, three reads of a row that no cache holds.
    (2 + 3 * 4, 4 + 4),
    # nll: zeros; log_softmax: the gradient's sum, then the output from both; to bfloat16.
    (4 + 8 + 4, 4 + 4 + 2),
)
# To float32, times complex numbers (which a cache holds), to bfloat16; the same in the backward.
_ROTARY = Passes((2 + 4 + 4, 4 + 4 + 2), (2 + 4 + 4, 4 + 4 + 2))
_EAGER = {
    "norm": Passes(
        # To float32, square, mean, times the root, to bfloat16, times the weight.
        (2 + 4 + 4 + 4 + 4 + 2, 4 + 4 + 4 + 2 + 2),
        # The weight's input, the weight, its sum; to float32; the product's input, the root, its
        # sum; the mean; the square: power, double, product; both gradients added; to bfloat16.
        (2 + 4 + 2 + 2 + 4 + 8 + 4 + 4 + 4 + 8 + 8 + 4, 2 + 2 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + 2),
    ),
    "rotary": _ROTARY,
    # SiLU, product; gradients of both factors, of SiLU.
    "activation": Passes((2 + 4, 2 + 2), (4 + 4 + 4, 2 + 2 + 2)),
    "residual": Passes((4, 2), (4, 2)),
    # The gradients of one input of several products.
    "gradients": Passes((0, 0), (4, 2)),
    "loss": _LOSS,
    # Norm and clipping of the gradient; AdamW op by op over all parameters (``foreach``): decay,
    # two ops for each moment except for the first, root, bias, epsilon, quotient.
    "update": Passes((4 + 4 + 4 + 8 + 4 + 8 + 4 + 4 + 4 + 12, 9 * 4), (0, 0)),
}
_COMPILED = _EAGER | {
    # The gradients of input and of weight.
    "norm": Passes((2, 2), (4 + 4, 2)),
    "activation": Passes((4, 2), (6, 4)),
    # Within the norm's backward.
    "gradients": Passes((0, 0), (2, 0)),
}

# FlashAttention-2, then PyTorch's default on H100, causal, heads of 128, 8,192 tokens: forward 333
# of 989 TFLOP/s (FlashAttention-3, arXiv 2407.08608, figure 5), backward 288 (the only known figure
# of a causal backward: Dao-AILab/flash-attention, pull request 1791, which has 284 forward).
_FLASH_2 = 0.337, 0.291
# Float32 scores beside the outputs of log_softmax: forward its input, in bfloat16 too; backward the
# gradients of output and input. With scores split by tp (``loss_parallel``) difference, exponential
# and output are separate tensors, beside both inputs.
_LOSS_BYTES = 8, 14
# The scores are read once, and in the backward their gradient replaces them (Transformer Engine,
# ``triton/cross_entropy.py``).
_FUSED_LOSS = Passes((2, 0), (2, 2))

SOFTWARE: Final[Mapping[str, Software]] = {
    "megatron": Software(),
    # By Korthikanti et al. (section 4.2.2) the second gather overlaps, no sum does.
    "megatron-2022": Software(sums_beside=False),
    "megatron-bridge": Software(
        {"loss": _FUSED_LOSS},
        loss_bytes=(0, 0),
        score_bytes=2,
        dispatcher="hybridep",
        graphs="partial",
        is_counted=True,
    ),
    # Inductor finds no product before the sum of several gradients that is scattered.
    "torchtitan": Software(
        _EAGER, True, _FLASH_2, True, True, True, _LOSS_BYTES, sums_beside=False
    ),
    "torchtitan-compiled": Software(
        _COMPILED, True, _FLASH_2, True, True, False, _LOSS_BYTES, sums_beside=False
    ),
    "deepspeed-0.3": Software(by_weight=True),
}
DEFAULT_SOFTWARE: Final = "megatron"
OLDER_SOFTWARE: Final = "megatron-2022"


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """A way to send tokens to their experts and back.

    ``once``: a token is sent once to each device that has some of its experts, and once over the
    network to each node; else once for each expert, sorted by expert before it is sent. ``rate`` is
    the share of the bandwidth between two devices of a node that is reached (None: the time of an
    all_to_all), ``wide_rate`` the share over more than MEASURED_RANKS of them. Each way takes
    ``overhead`` seconds more where a host launches it. ``needs`` is the dtype that came with
    NVIDIA's first GPUs that can run it ("": runs on all devices).
    """

    once: bool = False
    rate: Fraction | None = None
    overhead: Fraction = Fraction(0)
    wide_rate: Fraction | None = None
    needs: str = ""

    def rate_over(self, ranks: int) -> Fraction | None:
        """The reached share of the bandwidth between two devices, over ``ranks`` of a node."""
        return self.wide_rate if self.wide_rate and ranks > MEASURED_RANKS else self.rate


MEASURED_RANKS: Final = 8  # the most over which an all_to_all of NCCL was measured in one node
DISPATCHERS: Final[Mapping[str, Dispatcher]] = {
    # NCCL's all_to_all. Over 32 ranks of a rack it moved about as much as DeepEP then, 400 GB/s
    # there and 190 back: DeepEP did not make a run faster (Megatron-LM,
    # docs/discussions/deepseek-v3-gb200-optimization, section 2.2.1): 258 of 770 GB/s.
    "alltoall": Dispatcher(wide_rate=Fraction(335, 1000)),
    # DeepEP, docs/README_Hybrid-EP.md, "Performance Results" (MIT): on B200 and GB200 the kernels
    # alone move 543 to 750 GB/s over 8 to 36 ranks, 644 in the mean, of 770 between two devices;
    # calls from PyTorch take 0.15 to 0.2 ms more than the kernel. It copies by TMA, first in
    # Hopper.
    "hybridep": Dispatcher(True, Fraction(84, 100), Fraction(17, 100_000), needs="float8"),
    # The same page: DeepEP with 24 multiprocessors, over 8 to 16 ranks, by calls from PyTorch
    # 339 to 513 GB/s, 440 in the mean. It needs Ampere at least (docs/legacy.md, "Requirements").
    "deepep": Dispatcher(True, Fraction(57, 100), needs="tfloat32"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The dispatcher of a step's tokens, and the part of the step replayed as CUDA graphs."""

    software: Software
    dispatcher: Dispatcher
    graphs: str

    @property
    def holds_up(self) -> bool:
        """Whether devices wait for the hosts of layers with experts."""
        return self.software.is_counted and self.graphs != "full"


def setting_of(software: str, parallelism: Parallelism) -> Setting:
    """The setting that a strategy gives, else the software's default."""
    dispatcher = DISPATCHERS[dispatcher_of(software, parallelism)]
    return Setting(SOFTWARE[software], dispatcher, graphs_of(software, parallelism))


def dispatcher_of(software: str, parallelism: Parallelism) -> str:
    """The name of the dispatcher of tokens to experts."""
    return parallelism.token_dispatcher or SOFTWARE[software].dispatcher


def graphs_of(software: str, parallelism: Parallelism) -> str:
    """The part of a step replayed as CUDA graphs."""
    return parallelism.cuda_graphs or SOFTWARE[software].graphs
