"""The software that runs the layers of a large model: which passes over memory it fuses.

``transformer`` names the software of a model and ``work`` counts the kernels of a layer by it. A
new software is a row of SOFTWARE.

- "megatron": Megatron-core with NVIDIA's Transformer Engine. Scale, mask and softmax, bias and
  activation, bias, dropout and addition are one kernel each (``megatron/core/fusions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Software:
    """How a software runs the kernels of a layer.

    ``fused``: the passes over memory between products are fused into one kernel each.
    """

    fused: bool = True


SOFTWARE: Final[Mapping[str, Software]] = {"megatron": Software()}
DEFAULT_SOFTWARE: Final = "megatron"
