"""The software that runs the layers of a large model: which passes over memory it fuses.

``transformer`` names the software of a model and ``work`` counts the kernels of a layer by it. A
new software is a row of SOFTWARE.

- "megatron": Megatron-core with NVIDIA's Transformer Engine. Scale, mask and softmax, bias and
  activation, bias, dropout and addition are one kernel each (``megatron/core/fusions``).
- "torchtitan": PyTorch eager, as of torchtitan in December 2024 (``torchtitan/models/llama``,
  ``parallelize_llama.py``; recalled, not re-read): FSDP2, each op a kernel of its own.
- "torchtitan-compiled": the same with ``torch.compile`` of each block. Inductor fuses what lies
  between products, but has no complex numbers (rotary) and was not used for the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ....ground.frozen import FrozenDict


class Passes(NamedTuple):
    """Bytes that the kernels of an operation read and write for each number of its tensor, forward
    and backward.
    """

    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Software:
    """How a software runs the kernels of a layer.

    - ``passes``: by operation what its kernels move; those left out are counted in ``work``.
    - ``plain``: as a module of PyTorch is written. Queries, keys, values, gate and value are
      products of their own; keys and values are repeated for the heads that share them; what tp
      gathers and scatters along the sequence is put in order by a pass, for NCCL joins the ranks'
      parts along the first dimension. Gradients are freed and not set to zero, and recomputation
      stops before the last product of a layer, which no backward reads (``torch.utils.checkpoint``,
      ``early_stop``; compiled it is dead code).
    - ``attention``: the shares of the peak FLOP/s that fused attention reaches, forward and
      backward (None: those of the device).
    - ``fsdp``: FSDP2 copies parameters out of the buffer in which they were gathered, and gradients
      into the float32 buffer from which they are reduced; float8 weights are gathered as such; the
      parameters of embedding and classifier, which are those of the root, stay gathered until
      their backward is over.
    - ``scales_apart``: float8 with a scale for a tensor as it is now (torchao). One pass looks for
      the largest element, one makes the rows narrow and one the columns; a split sequence is made
      narrow before it is gathered. Weights are turned for the gradient of the input
      (``torch._scaled_mm`` sums along rows alone).
    - ``keeps_outputs``: recomputation "per_op" keeps a layer's last product, too.
    - ``loss_bytes``: of workspace for each score, beside the float32 number that is saved; by tp 1
      and above.
    """

    passes: Mapping[str, Passes] = FrozenDict()
    plain: bool = False
    attention: tuple[float, float] | None = None
    fsdp: bool = False
    scales_apart: bool = False
    keeps_outputs: bool = False
    loss_bytes: tuple[int, int] = (2, 2)


# In the order in which PyTorch runs them; bfloat16 is 2 bytes, float32 4.
_LOSS = Passes(
    # To float32; log_softmax: largest, sum, output, three reads of a row that no cache holds.
    (2 + 3 * 4, 4 + 4),
    # nll: zeros; log_softmax: sum, then output, each from output and gradient; to bfloat16.
    (2 * 8 + 4, 4 + 4 + 2),
)
# To float32, times complex numbers (which a cache holds), to bfloat16: both ways alike.
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
    "sum": Passes((0, 0), (4, 2)),
    "loss": _LOSS,
    # Norm and clipping of the gradient; AdamW op by op over all parameters (``foreach``): decay,
    # both moments in two ops each but the first, root, bias, epsilon, quotient.
    "update": Passes((4 + 4 + 4 + 8 + 4 + 8 + 4 + 4 + 4 + 12, 9 * 4), (0, 0)),
}
_COMPILED = _EAGER | {
    # The gradients of input and of weight.
    "norm": Passes((2, 2), (4 + 4, 2)),
    "activation": Passes((4, 2), (6, 4)),
    # Within the norm's backward.
    "sum": Passes((0, 0), (2, 0)),
}

# FlashAttention-2, PyTorch's default on H100 then, causal, heads of 128, 8,192 tokens: about 365
# and 295 of 989 TFLOP/s (FlashAttention-3, arXiv 2407.08608, figures 5 and 6; recalled).
_FLASH_2 = 0.37, 0.30
# Float32 scores beside those that log_softmax puts out: forward its input, in bfloat16 too;
# backward the gradients of output and input. With scores split by tp (``loss_parallel``)
# difference, exponential and output are tensors each, beside both inputs.
_LOSS_BYTES = 8, 14

SOFTWARE: Final[Mapping[str, Software]] = {
    "megatron": Software(),
    "torchtitan": Software(_EAGER, True, _FLASH_2, True, True, True, _LOSS_BYTES),
    "torchtitan-compiled": Software(_COMPILED, True, _FLASH_2, True, True, False, _LOSS_BYTES),
}
DEFAULT_SOFTWARE: Final = "megatron"
