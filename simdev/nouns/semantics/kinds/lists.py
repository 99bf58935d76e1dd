"""Ops on lists of tensors, each read and written whole: the copies that FSDP makes around its
messages, and the passes of optimizers over all parameters at once (``torch._foreach_*``, fused).

Every tensor in a list has its own shape, so these ops are not split. Where a list is written in
place, the operands include the old tensors that are read, and the outputs are the new ones. The
meaning of the lists, and the part of a buffer that FSDP writes, are in PyTorch
(``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``).
"""

from __future__ import annotations

from math import prod

from ..description import ALL, Access, Axis, Call, Describer, Description, Output, Shape, per
from ..registry import Traits
from . import register_each

FOREACH = {
    0: "foreach_zero",
    1: "foreach_abs foreach_add foreach_div foreach_maximum foreach_mul foreach_neg foreach_pow "
    "foreach_reciprocal foreach_sqrt foreach_sub",
    2: "amp_foreach_non_finite_check_and_unscale foreach_norm",
    3: "foreach_addcdiv foreach_addcmul foreach_lerp",
    4: "fused_sgd",
    7: "fused_adagrad",
    13: "fused_adam",
    14: "fused_adamw",
}
"""Kinds by their operations for each element of the first list, as for a single tensor
(``elementwise``).
"""


def lists(operations: int) -> Describer:
    """Describer of an op that reads all operands and writes all outputs, with this number of
    operations for each element of the outputs, or of the operands where outputs are numbers.
    """

    def describe(call: Call) -> Description:
        made = sum(map(prod, call.outputs))
        numbers = not any(call.outputs)
        count = sum(map(prod, call.inputs)) if numbers else made
        flops = (per(operations, Axis("element", count, split=False)),) if operations else ()
        outputs = tuple(Output(_whole(shape)) for shape in call.outputs)
        return Description(outputs, _reads(call), flops, sample=None)

    return describe


def all_gather_copy_in(call: Call) -> Description:
    """Copies operands side by side into this rank's part of a buffer; the outputs are that part and
    the buffer, which share memory.
    """
    count = sum(map(prod, call.inputs))
    part = Axis("i", count, split=False) + int(call.attrs.get("rank", 0)) * count
    first, *rest = call.outputs
    if len(first) != 1:
        raise ValueError(f"the buffer has {len(first)} dimensions, and not one")
    # The rest of the buffer is not written: a single element stands for it.
    outputs = (Output((part,)), *(Output((0,) * len(shape)) for shape in rest))
    return Description(outputs, _reads(call), sample=None)


def _whole(shape: Shape) -> tuple[None, ...]:
    return (ALL,) * len(shape)


def _reads(call: Call) -> tuple[Access, ...]:
    return tuple(Access(_whole(shape)) for shape in call.inputs)


PACKS = Traits(packs=True)
for _names, _describe, _outputs, _attributes in (
    ("foreach_copy split_with_sizes_copy chunk_cat", lists(0), "y0, y1, ..", ""),
    ("all_gather_copy_in", all_gather_copy_in, "part, buffer", "rank"),
):
    _words = "x0, x1, ..", _outputs, _attributes
    register_each(_names, _describe, "data_movement", *_words, PACKS)
for _count, _names in FOREACH.items():
    register_each(_names, lists(_count), "other", "x0, x1, ..", "y0, y1, ..")
