"""The software that runs the layers of a large model: which passes over memory it fuses.

``transformer`` names the software of a model and ``work`` counts the kernels of a layer by it. A
new software is a row of SOFTWARE.

- "megatron": Megatron-core with NVIDIA's Transformer Engine. Scale, mask and softmax, bias and
  activation, bias, dropout and addition are one kernel each (``megatron/core/fusions``).
- "deepspeed-0.3": the same kernels with ZeRO 3 as DeepSpeed had it in 2021, before its release 0.5
  gathered several weights into one tensor (``runtime/zero/partition_parameters.py``,
  ``_allgather_param`` and ``_reduce_scatter_gradient``; recalled, not re-read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Software:
    """How a software runs the kernels of a layer.

    ``fused``: the passes over memory between products are fused into one kernel each.
    ``by_weight``: with ZeRO 3 every weight is gathered, and its gradient reduced, by a collective
    of its own, of a list of all ranks' parts that the host copies one by one.
    """

    fused: bool = True
    by_weight: bool = False


SOFTWARE: Final[Mapping[str, Software]] = {
    "megatron": Software(),
    "deepspeed-0.3": Software(by_weight=True),
}
DEFAULT_SOFTWARE: Final = "megatron"
