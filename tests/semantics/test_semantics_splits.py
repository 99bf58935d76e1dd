"""How ops may be split: the golden numbers of Tofu, the words of SOAP, boxes of shards."""

from __future__ import annotations

import pytest

from op_examples import examples, semantics_of_example
from simdev.ground.errors import InputError
from simdev.nouns.semantics import (
    Access,
    Call,
    Description,
    Output,
    Shard,
    axes,
    boxes,
    input_regions,
    op_class,
    output_axes,
    parts_of,
    per,
    register,
    semantics_of,
    shard_of,
    splits,
    steps,
    work,
)
from simdev.nouns.semantics.registry import Semantics


def cases_of(semantics: Semantics) -> dict[str, int]:
    """Tofu's cases by axis: 1, an output is put together along a dimension; 2, it is reduced."""
    return {split.axis: 2 if split.kind == "reduction" else 1 for split in splits(semantics)}


def halves(semantics: Semantics, axis: str) -> list[Shard]:
    size = next(split.size for split in splits(semantics) if split.axis == axis)
    return [shard_of(semantics, {axis: part}) for part in parts_of(size, 2)]


# Tofu: golden numbers


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, ()), (8, (2, 2, 2)), (6, (3, 2)), (12, (3, 2, 2)), (7, (7,))]
)
def test_steps_are_factors_the_largest_first(workers: int, expected: tuple[int, ...]) -> None:
    assert steps(workers) == expected


def tofu_conv1d(call: Call) -> Description:
    """The paper's example: out[b, co, x] = Sum over ci, dx of data[b, ci, x + dx] * filters[ci, co,
    dx].
    """
    b, co, x = axes("b co x", call.outputs[0])
    ci, dx = axes("ci dx", (call.inputs[1][0], call.inputs[1][2]))
    return Description(
        outputs=(Output((b, co, x), over=(ci, dx)),),
        inputs=(Access((b, ci, x + dx)), Access((ci, co, dx))),
        flops=(per(2, b, co, x, ci, dx),),
    )


def shift_two(call: Call) -> Description:
    (i,) = axes("i", call.outputs[0])
    return Description((Output((i,)),), (Access((i + 2,)),), (per(1, i),))


@pytest.fixture
def own_kinds() -> None:
    register("tofu_conv1d", tofu_conv1d, "conv", operands="data, filters", outputs="out")
    register("shift_two", shift_two)


@pytest.mark.usefixtures("own_kinds")
def test_conv1d_has_the_strategies_of_the_paper() -> None:
    semantics = semantics_of("tofu_conv1d", {}, [(8, 4, 34), (4, 6, 3)], [(8, 6, 32)])
    assert cases_of(semantics) == {"b": 1, "co": 1, "x": 1, "ci": 2, "dx": 2}
    first, second = halves(semantics, "x")
    assert first.needs == (((0, 8), (0, 4), (0, 18)), ((0, 4), (0, 6), (0, 3)))  # 16 + a halo of 2
    assert second.needs[0] == ((0, 8), (0, 4), (16, 34))
    assert [shard.needs[0] for shard in halves(semantics, "ci")] == [
        ((0, 8), (0, 2), (0, 34)),
        ((0, 8), (2, 4), (0, 34)),
    ]
    assert [shard.needs[1] for shard in halves(semantics, "co")] == [
        ((0, 4), (0, 3), (0, 3)),
        ((0, 4), (3, 6), (0, 3)),
    ]
    assert [shard.needs[0] for shard in halves(semantics, "dx")] == [
        ((0, 8), (0, 4), (0, 33)),
        ((0, 8), (0, 4), (2, 34)),
    ]


def test_the_shipped_conv1d_has_the_strategies_of_the_paper() -> None:
    assert cases_of(semantics_of_example("conv1d")) == {"n": 1, "k": 1, "p": 1, "c": 2, "r": 2}


@pytest.mark.usefixtures("own_kinds")
def test_shift_two_reads_two_further() -> None:
    semantics = semantics_of("shift_two", {}, [(12,)], [(10,)])
    first, second = halves(semantics, "i")
    assert (first.makes, first.needs) == ((((0, 5),),), (((2, 7),),))  # [0, 4] reads [2, 6]
    assert (second.makes, second.needs) == ((((5, 10),),), (((7, 12),),))


def test_a_reversed_index_swaps_the_ends_of_its_interval() -> None:
    def reverse(call: Call) -> Description:
        (i,) = axes("i", call.outputs[0])
        return Description((Output((i,)),), (Access((9 - i,)),))

    register("reverse", reverse)
    semantics = semantics_of("reverse", {}, [(10,)], [(10,)])
    assert input_regions(semantics, {"i": (0, 3)}) == (((7, 10),),)


@pytest.mark.usefixtures("own_kinds")
def test_an_own_kind_has_all_that_a_shipped_one_has() -> None:
    assert op_class("tofu_conv1d") == "conv"
    done = work("tofu_conv1d", {}, [(8, 4, 34), (4, 6, 3)], [(8, 6, 32)], ["float16", "float16"])
    assert done is not None
    assert (done.flops, done.bytes_read) == (
        2 * 8 * 6 * 32 * 4 * 3,
        2 * (8 * 4 * 34 + 4 * 6 * 3),
    )


# SOAP: what each split is


@pytest.mark.parametrize(
    ("kind", "expected"),
    [  # FlexFlow, table 2, and reductions beside it
        ("max_pool1d", {"n": "sample", "c": "attribute", "p": "attribute"}),
        (
            "conv1d",
            {"n": "sample", "k": "parameter", "p": "attribute", "c": "reduction", "r": "reduction"},
        ),
        (
            "conv2d",
            {
                "n": "sample",
                "k": "parameter",
                "p": "attribute",
                "q": "attribute",
                "c": "reduction",
                "r": "reduction",
                "s": "reduction",
            },
        ),
        ("linear", {"b": "sample", "m": "attribute", "n": "parameter", "k": "reduction"}),
        ("embedding", {"d0": "sample", "d1": "attribute", "d": "parameter", "v": "reduction"}),
        ("lstm_cell", {"n": "sample", "d": "parameter"}),
        ("batch_norm", {"n": "sample", "c": "parameter", "h": "attribute", "w": "attribute"}),
        ("softmax", {"d0": "sample", "d1": "attribute"}),
        ("attention", {"b": "sample", "h": "attribute", "s": "attribute"}),
        ("adam_update", {"d0": "parameter", "d1": "parameter", "d2": "parameter"}),
    ],
)
def test_splits_are_told_in_soaps_words(kind: str, expected: dict[str, str]) -> None:
    assert {split.axis: split.kind for split in splits(semantics_of_example(kind))} == expected


def test_a_graph_may_know_more_weights_than_the_kind() -> None:
    semantics = semantics_of_example("matmul")
    assert {s.axis: s.kind for s in splits(semantics)} == {
        "m": "sample",
        "n": "attribute",
        "k": "reduction",
    }
    assert {s.axis: s.kind for s in splits(semantics, parameters=[1])}["n"] == "parameter"
    assert {s.axis: s.kind for s in splits(semantics, gradients=[0])} == {
        "m": "parameter",
        "n": "parameter",
        "k": "reduction",
    }


def test_one_axis_may_do_different_things_to_different_outputs() -> None:
    by_axis = {
        split.axis: split.effects for split in splits(semantics_of_example("batch_norm_backward"))
    }
    assert by_axis["n"] == ("concatenate", "reduce", "reduce")
    assert by_axis["c"] == ("concatenate",) * 3
    weight = {
        split.axis: split.effects
        for split in splits(semantics_of_example("conv2d_backward_weight"))
    }
    # the gradient of the bias does not know input channels
    assert weight["c"] == ("concatenate", "replicate")


def test_only_the_outermost_of_merged_axes_is_split() -> None:
    call = examples()["attention"]  # two heads of q share one of k
    assert "j" not in {split.axis for split in splits(semantics_of_example("attention"))}
    (b, _, t, d), e = call.inputs[1], call.inputs[2][3]
    shared = semantics_of(
        "attention", {}, [call.inputs[0], (b, 1, t, d), (b, 1, t, e)], call.outputs
    )
    assert "j" in {split.axis for split in splits(shared)}


def test_dimensions_of_an_output_are_cut_by_their_axes() -> None:
    assert output_axes(semantics_of_example("conv2d")) == ("n", "k", "p", "q")
    assert output_axes(semantics_of_example("attention")) == ("b", "h", "s", "e")
    assert output_axes(semantics_of_example("layer_norm"), 1) == ("d0", "d1", None)


# Boxes


def test_bad_degrees_name_their_axis() -> None:
    semantics = semantics_of_example("softmax")
    with pytest.raises(InputError) as caught:
        boxes(semantics, {"d0": 3, "d1": 0, "d2": 2, "z": 2})
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        f'axis "{name}"' for name in ("d0", "d1", "d2", "z")
    ]
    assert len(boxes(semantics, {"d0": 3}, even=False)) == 3
    with pytest.raises(InputError, match="9 parts of 8"):
        boxes(semantics, {"d0": 9}, even=False)
    with pytest.raises(InputError, match='no axis "z"'):
        shard_of(semantics, {"z": (0, 1)})
    with pytest.raises(InputError, match="no part"):
        shard_of(semantics, {"d0": (4, 9)})


def test_boxes_run_through_the_last_axis_fastest() -> None:
    shards = boxes(semantics_of_example("matmul"), {"n": 2, "m": 2})
    assert shards == tuple({"m": m, "n": n} for m in ((0, 4), (4, 8)) for n in ((0, 6), (6, 12)))
    assert boxes(semantics_of_example("matmul"), {}) == ({},)
