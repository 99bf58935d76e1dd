"""Collectives of tensor parallelism beside products: closed forms of what is left of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from hybrid_steps import DENSE, EXPERTS, SMALL, boxes, lowered
from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveModel
from simdev.ground.errors import InputError
from simdev.lowering.hybrid.durations import Timings
from simdev.nouns.models.large import Transformer, layer, shard_of
from simdev.nouns.models.large.kernels import Kernel
from simdev.nouns.models.large.roles import TENSOR
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.search.plan import choices_of
from worlds.costs import SPEC

TP = 4
WIDTHS = {"float8": Fraction(1), "mxfp8": Fraction(33, 32), "nvfp4": Fraction(9, 16)}
"""Bytes of a number with its share of a scale."""
LATENT = replace(
    EXPERTS, kv_heads=8, kv_latent=64, rotary_width=16, head_width=48, value_width=32,
    shared_experts=0,
)  # fmt: skip
TAKEN = Fraction(16, 132)
"""The share of the multiprocessors that a reduce_scatter takes from the product beside it."""
HIDDEN = {
    "F": [("qkv", TP), ("projection", 4), ("up", TP), ("down", 4)],
    "B": [("projection dx", TP), ("qkv dw", None), ("down dx", TP), ("up dw", None)],
}
"""By action the products beside the collectives of a dense layer, and in how many pieces (None: at
once with them).
"""


def lengths(model: Transformer, action: str, number: int = 0, **fields: Any) -> list[int]:
    """The ps of the collectives of tp in an action's layer, but for what is gathered again."""
    p = Parallelism(**{"tp": TP, "tensor_overlap": False, **fields})
    tasks, plan = lowered(model, p, cluster=boxes(TP, p.pp))
    names, wanted = tasks.tasks.name, f"{action}/layer_{number}/"
    rows = [i for i in (plan.role == TENSOR).nonzero()[0].tolist() if names[i].startswith(wanted)]
    return [int(tasks.tasks.duration[i]) for i in rows]


def products(model: Transformer, action: str, **fields: Any) -> list[int]:
    """The ps of the products in HIDDEN."""
    p = Parallelism(tp=TP, **fields)
    timings = Timings(CollectiveModel(boxes(TP, 1)), CostModel(specs=(SPEC,)))
    block = layer(shard_of(model, p), 0)
    loads = block.forward + block.backward + block.weight
    return [
        timings.load_ps("gpu", tuple(load for load in loads if load.kind == name))
        for name, _ in HIDDEN[action]
    ]


@pytest.mark.parametrize("action", ["F", "B"])
def test_what_products_do_not_hide_is_left(action: str) -> None:
    """Behind a slow network all but the pieces of the product that the collective goes on beside;
    beside long products nothing of a ring, and of a sum what its product is slower for it, and
    forward the last split.
    """
    name, slow = f"0{action}0", {"message_latency": 1}
    each = products(DENSE, action)
    whole = lengths(DENSE, name, **slow)[-4:]
    left = lengths(DENSE, name, tp_comm_overlap=True, **slow)[-4:]
    for before, after, product, (_, parts) in zip(whole, left, each, HIDDEN[action], strict=True):
        share = 1 if parts is None else Fraction(parts - 1, parts)
        assert before - after == int(product * share) > 0
    long, many = replace(DENSE, hidden=8192, head_width=1024, inner=32768), {"microbatch": 64}
    whole, left = (lengths(long, name, tp_comm_overlap=flag, **many) for flag in (False, True))
    assert min(products(long, action, **many)) > 2 * max(whole)
    kept = (Fraction(1, 4) + Fraction(3, 4) * TAKEN) if action == "F" else TAKEN
    assert left[-2:] == [int(length * kept) for length in whole[-3::2]]
    assert left[:-2] == whole[:-4]  # what is gathered again


def test_recomputation_overlaps_like_the_forward() -> None:
    again = {"tp_comm_overlap": True, "message_latency": 1}
    forward = lengths(DENSE, "0F0", **again)
    assert lengths(DENSE, "0B0", recompute="full", **again)[:4] == forward
    modules = {"recompute": "selective", "recompute_modules": ("mlp",)}
    assert lengths(DENSE, "0B0", **modules, **again)[:2] == forward[2:]


def test_a_split_backward_has_no_gradient_of_weights_to_sum_beside() -> None:
    pipeline = {"pp": 2, "schedule": "ZB-H1", "microbatches": 4, "message_latency": 1}
    whole, left = (
        lengths(DENSE, "0I0", tp_comm_overlap=flag, **pipeline)[-4:] for flag in (False, True)
    )
    assert whole[1::2] == left[1::2]
    assert whole[0] > left[0]
    assert whole[2] > left[2]


def test_experts_and_latents_do_not_overlap() -> None:
    """Beside experts attention's collectives are hidden alone, and with latents the one behind its
    projection and the one before the gradient of that.
    """
    for model, hidden in ((EXPERTS, {"F": [0, 1], "B": [0, 1]}), (LATENT, {"F": [1], "B": [0]})):
        number = model.dense_layers
        for action, some in hidden.items():
            count = len(lengths(model, "0F0", number))
            whole, left = (
                lengths(model, f"0{action}0", number, tp_comm_overlap=flag, message_latency=1)
                for flag in (False, True)
            )
            pairs = zip(whole[-count:], left[-count:], strict=True)
            assert [i for i, (before, after) in enumerate(pairs) if before != after] == some


def test_only_a_split_sequence_overlaps() -> None:
    reason = "tp_comm_overlap: needs sequence_parallel"
    with pytest.raises(InputError, match=reason):
        Parallelism(tp=2, tp_comm_overlap=True, sequence_parallel=False)
    with pytest.raises(InputError, match=reason):
        choices_of({"tp_comm_overlap": True, "sequence_parallel": False})
    with pytest.raises(InputError, match="tp_comm_overlap: must be true or false, got 1"):
        Parallelism(tp_comm_overlap=1)  # type: ignore[arg-type]
    one, other = (
        lowered(DENSE, Parallelism(tp_comm_overlap=flag))[0].tasks for flag in (False, True)
    )
    assert (one.duration == other.duration).all()


def test_gradients_of_inputs_are_summed_beside_those_of_weights() -> None:
    """By ``tensor_overlap`` alone: behind a slow network all but the product is left, beside long
    products what these are slower for it. What is gathered of gradients is left whole.
    """
    each, slow = products(DENSE, "B"), {"message_latency": 1}
    whole, left = (lengths(DENSE, "0B0", tensor_overlap=flag, **slow) for flag in (False, True))
    hidden = [before - after for before, after in zip(whole, left, strict=True)]
    assert hidden[2:] == [0, each[1], 0, each[3]]
    long, many = replace(DENSE, hidden=8192, head_width=1024, inner=32768), {"microbatch": 64}
    whole, left = (lengths(long, "0B0", tensor_overlap=flag, **many) for flag in (False, True))
    # What is gathered again is hidden.
    _, _, one, summed, other, last = whole
    assert left == [one, int(summed * TAKEN), other, int(last * TAKEN)]


def test_sums_of_2022_go_on_alone() -> None:
    older = replace(DENSE, software="megatron-2022")
    split, whole = {"tensor_overlap": True}, {"tensor_overlap": True, "sequence_parallel": False}
    sums = lengths(DENSE, "0B0")[3::2]
    assert lengths(older, "0B0", **split)[3::2] == sums
    assert lengths(DENSE, "0B0", **split)[3::2] != sums
    # Nor does an all_reduce.
    assert lengths(DENSE, "0B0", **whole) == lengths(older, "0B0", sequence_parallel=False)


def test_a_split_backward_sums_gradients_of_inputs_before_it_ends() -> None:
    pipeline = {"pp": 2, "schedule": "ZB-H1", "microbatches": 4}
    whole, left = (
        lengths(DENSE, "0I0", tensor_overlap=flag, **pipeline)[-4:] for flag in (False, True)
    )
    assert whole == left


@pytest.mark.parametrize("precision", WIDTHS)
def test_a_narrow_sequence_is_gathered_narrow(precision: str) -> None:
    """Inputs along rows, gradients along rows and along columns where these have scales of their
    own; sums in 16 bits. PyTorch's torchao leaves gradients as they are.
    """
    narrow = replace(SMALL, precision=precision)
    count = DENSE.length * SMALL.hidden
    rows, ways = int(count * WIDTHS[precision]), 1 if precision == "float8" else 2
    s = shard_of(narrow, Parallelism(tp=TP))
    assert s.joined_bytes(2 * count) == rows
    assert s.joined_bytes(2 * count, is_gradient=True) == rows * ways
    for other in (SMALL, replace(narrow, wide_first=1)):
        wide = shard_of(other, Parallelism(tp=TP)).of_layer(0)
        assert wide.joined_bytes(2 * count, is_gradient=True) == 2 * count
    whole = shard_of(narrow, Parallelism(tp=TP, sequence_parallel=False))
    assert whole.joined_bytes(2 * count) == 2 * count
    if precision == "float8":
        theirs = shard_of(replace(narrow, software="torchtitan"), Parallelism(tp=TP))
        assert theirs.joined_bytes(2 * count) == rows
        assert theirs.joined_bytes(2 * count, is_gradient=True) == 2 * count


@pytest.mark.parametrize("precision", WIDTHS)
def test_what_is_gathered_narrow_is_made_so_by_each_rank(precision: str) -> None:
    """A share of the tokens of what is gathered; columns with a common scale are made of all."""
    s = shard_of(replace(SMALL, precision=precision), Parallelism(tp=TP))
    block, width = layer(s, 0), WIDTHS[precision]
    one, look = s.tokens * s.model.hidden, 0 if precision == "mxfp8" else 2

    def moved(name: str, loads: tuple[Kernel, ...]) -> int:
        return sum(load.read + load.written for load in loads if load.kind.startswith(name))

    blocked = precision != "float8"
    share = Fraction(one, TP) * (look + 2 + width * (1 + blocked))
    turned = 0 if blocked else 2 * one * width
    assert moved("up cast", block.forward) == share
    assert moved("up cast", block.weight) == turned
    assert moved("down dy cast", block.backward) == share + turned
    inner = s.tokens * s.model.inner // TP
    assert moved("down cast", block.forward) == inner * (look + 2 + 2 * width)
    assert moved("up dy cast", block.backward) == 2 * inner * (look + 2 + 2 * width)
