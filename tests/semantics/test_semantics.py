"""What ops compute: laws over all kinds, closed forms, vocabulary and errors."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from op_examples import call, semantics_of_example
from simdev.ground.errors import InputError
from simdev.nouns.semantics import (
    ALL,
    OP_CLASSES,
    Access,
    Call,
    Description,
    Output,
    axes,
    boxes,
    flops,
    input_regions,
    kinds,
    op_class,
    output_regions,
    register,
    semantics_of,
    shard_of,
    shard_work,
    splits,
    volume,
    work,
)
from simdev.nouns.semantics.dtype import bits_of

NAMES = sorted(kinds())


# Laws over all kinds


@pytest.mark.parametrize("kind", NAMES)
def test_shards_do_the_work_of_the_op_and_make_every_element_once(kind: str) -> None:
    semantics = semantics_of_example(kind)
    for split in splits(semantics):
        parts = boxes(semantics, {split.axis: 2}, even=False)
        total = flops(semantics, {})
        done = sum(flops(semantics, box) for box in parts)
        assert total - len(parts) < done <= total, split.axis
        for i, effect in enumerate(split.effects):
            made = [output_regions(semantics, box)[i] for box in parts]
            sizes = [volume(region) for region in made if region is not None]
            whole = prod(semantics.outputs[i])
            if effect == "concatenate":
                assert sum(sizes) == whole
                assert disjoint([region for region in made if region is not None])
            else:
                assert sizes == [whole] * len(parts)


def disjoint(regions: list[tuple[tuple[int, int], ...]]) -> bool:
    return all(
        any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(first, second, strict=True))
        for i, first in enumerate(regions)
        for second in regions[:i]
    )


@pytest.mark.parametrize("kind", NAMES)
def test_the_parts_together_read_what_the_op_reads(kind: str) -> None:
    semantics = semantics_of_example(kind)
    whole = input_regions(semantics, {})
    for split in splits(semantics):
        for i, region in enumerate(whole):
            parts = [
                input_regions(semantics, box)[i]
                for box in boxes(semantics, {split.axis: 2}, even=False)
            ]
            regions = [part for part in parts if part is not None]
            if region is None:
                assert regions == []
                continue
            for d, (start, stop) in enumerate(region):
                assert (
                    min(part[d][0] for part in regions),
                    max(part[d][1] for part in regions),
                ) == (
                    start,
                    stop,
                )


@pytest.mark.parametrize("kind", NAMES)
def test_a_shard_is_an_op_of_its_kind_again(kind: str) -> None:
    """The shard's own shapes and attributes are described by the same kind, with as much work."""
    semantics = semantics_of_example(kind)
    for split in splits(semantics):
        if _reaches_beyond(kind, split.axis):
            continue
        box = boxes(semantics, {split.axis: 2}, even=False)[0]
        shard = shard_of(semantics, box)
        again = semantics_of(shard.kind, shard.attrs, shard.inputs, shard.outputs)
        done, wanted = flops(again, {}), flops(semantics, box)
        if op_class(kind) in ("conv", "pooling") and kind.endswith(
            ("d_backward", "_backward_input")
        ):
            assert done >= wanted  # windows at the edge of the part are read whole
        else:
            assert wanted <= done <= wanted + len(semantics.description.flops)


def _reaches_beyond(kind: str, axis: str) -> bool:
    """Shards whose operands do not tell their kind everything: a kernel that shrank, partial
    lookups, windows.
    """
    if kind.startswith("conv"):
        return axis in ("r", "s", "t") or (
            "transpose" in kind and axis in ("o", "p", "q", "d", "h", "w")
        )
    adaptive = kind.startswith("adaptive") and axis in ("o", "p", "q", "d", "h", "w")
    looked_up = (
        axis in ("v", "c") and op_class(kind) not in ("conv", "pooling", "norm")
    ) or kind == "index_add"
    return adaptive or looked_up


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_not_kept_does_the_same_work(kind: str) -> None:
    """Semantics for one question, as costs ask them, and those that are kept; lists written as
    tuples are lists.
    """
    kept = semantics_of_example(kind)
    attrs = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in kept.attrs.items()
    }
    dtypes = ["float16"] * len(kept.inputs)
    assert work(kind, attrs, kept.inputs, kept.outputs, dtypes) == shard_work(kept, {}, dtypes)


@pytest.mark.parametrize("kind", NAMES)
def test_the_whole_box_is_the_op_itself(kind: str) -> None:
    semantics = semantics_of_example(kind)
    shard = shard_of(semantics, {axis.name: (0, axis.size) for axis in semantics.axes})
    assert (shard.attrs, shard.inputs, shard.outputs) == (
        semantics.attrs,
        semantics.inputs,
        semantics.outputs,
    )


# Closed forms


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans())
def test_matmul_is_2mnk(m: int, n: int, k: int, flip_a: bool, flip_b: bool) -> None:
    attrs = {"transpose_a": True} if flip_a else {}
    attrs |= {"transpose_b": True} if flip_b else {}
    first, second = ((k, m) if flip_a else (m, k)), ((n, k) if flip_b else (k, n))
    product = work("matmul", attrs, [first, second], [(m, n)], ["float32", "float32"])
    assert product is not None
    assert (product.flops, product.bytes_read, product.bytes_written) == (
        2 * m * n * k,
        4 * (m * k + n * k),
        4 * m * n,
    )


@given(
    n=st.integers(1, 4),
    channels=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    groups=st.integers(1, 3),
    size=st.tuples(st.integers(5, 20), st.integers(5, 20)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
)
def test_convolutions_are_2nkpqcrs_forward_and_each_half_of_the_backward(
    n: int,
    channels: tuple[int, int],
    groups: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
) -> None:
    inside, outside = channels[0], channels[1] * groups
    p, q = ((s - r) // stride + 1 for s, r in zip(size, kernel, strict=True))
    x, y, weight = (n, inside * groups, *size), (n, outside, p, q), (outside, inside, *kernel)
    attrs = {"stride": [stride, stride], "padding": [0, 0], "dilation": [1, 1], "groups": groups}
    expected = 2 * n * outside * p * q * inside * prod(kernel)
    for kind, operands, made in (
        ("conv2d", [x, weight], y),
        ("conv2d_backward_input", [y, weight], x),
        ("conv2d_backward_weight", [y, x], weight),
    ):
        assert flops(semantics_of(kind, attrs, operands, [made]), {}) == expected


def test_bytes_of_an_expanded_operand_count_once() -> None:
    counted = work("div", {"strides": [[8, 1, 0, 0]]}, [(4, 8, 6, 6)], [(4, 8, 6, 6)], ["float32"])
    assert counted is not None
    assert (counted.bytes_read, counted.bytes_written) == (4 * 4 * 8, 4 * 4 * 8 * 36)


def test_bytes_of_lookups_updates_and_views() -> None:
    rows = work("embedding", {}, [(16384, 512), (20, 64)], [(20, 64, 512)], ["float32", "int64"])
    assert rows is not None
    assert rows.bytes_read == 20 * 64 * (512 * 4 + 8)
    adam = work("adam_update", {}, [(100, 3), (100, 3)], [], ["float32", "float32"])
    assert adam is not None
    assert (adam.bytes_read, adam.bytes_written) == (4 * 300 * 4, 3 * 300 * 4)
    view = work("transpose", {"dim0": 0, "dim1": 1}, [(3, 4)], [(4, 3)], ["float32"])
    assert view is not None
    assert (view.flops, view.bytes_read, view.bytes_written) == (0, 0, 0)
    pool = work(
        "max_pool2d", {"kernel_size": [2, 2]}, [(1, 1, 4, 4)], [(1, 1, 2, 2)] * 2, ["float16"]
    )
    assert pool is not None
    assert pool.bytes_written == 4 * (2 + 8)  # values and int64 places
    half = work("relu", {}, [(10,)], [(10,)], ["bfloat16"], ["float32"])
    assert half is not None
    assert (half.bytes_read, half.bytes_written) == (20, 40)


def test_fsdp_packs_and_unpacks_each_element_once() -> None:
    """Weights of 6 and 2 elements: this rank writes its eight of a buffer of 32."""
    part = [(6,), (2,)]
    packed = work("all_gather_copy_in", {"rank": 1}, part, [(32,), (32,)], ["bfloat16"] * 2)
    assert packed is not None
    assert (packed.flops, packed.bytes_read) == (0, 16)
    assert packed.bytes_written == 16 + 2  # an element stands for the buffer
    apart = work("split_with_sizes_copy", {}, [(4, 8)], [(4, 6), (4, 2)], ["bfloat16"])
    assert apart is not None
    assert (apart.bytes_read, apart.bytes_written) == (64, 64)
    # Five rows make four chunks of two: what they lack is written, and not read.
    chunks = work("chunk_cat", {}, [(5, 3)], [(4, 6)], ["bfloat16"], ["float32"])
    assert chunks is not None
    assert (chunks.bytes_read, chunks.bytes_written) == (30, 96)
    # AdamW reads weights, gradients and two moments, and writes all but the gradients.
    lists = work("fused_adamw", {}, [(10,)] * 4, [(10,)] * 3, ["float32"] * 4)
    assert lists is not None
    assert (lists.bytes_read, lists.bytes_written) == (160, 120)


def test_a_shard_of_a_convolution_runs_unpadded_where_it_is_cut() -> None:
    semantics = semantics_of_example("conv2d")
    shard = shard_of(semantics, {"p": (0, 3)})
    # positions -1 to 5, one of them padding
    assert shard.needs[0] == ((0, 8), (0, 4), (0, 6), (0, 12))
    assert shard.inputs[0] == (8, 4, 7, 12)
    assert shard.attrs == {"stride": [2, 2], "padding": [0, 1], "dilation": [1, 1]}
    assert shard.outputs == ((8, 6, 3, 6),)
    assert shard_work(semantics, {"p": (0, 3)}).flops * 2 == flops(semantics, {})


def test_grouped_channels_take_their_groups_along() -> None:
    attrs = {"groups": 4, "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    semantics = semantics_of("conv2d", attrs, [(2, 8, 6, 6), (12, 2, 3, 3)], [(2, 12, 6, 6)])
    half, part = shard_of(semantics, {"k": (6, 12)}), shard_of(semantics, {"k": (3, 6)})
    assert (half.needs[0][1], half.attrs["groups"], half.inputs[1]) == ((4, 8), 2, (6, 2, 3, 3))  # type: ignore[index]
    assert (part.needs[0][1], "groups" in part.attrs) == ((2, 4), False)  # type: ignore[index]


def test_a_concat_leaves_out_what_it_does_not_touch() -> None:
    semantics = semantics_of_example("concat")
    shard = shard_of(semantics, {"d1": (6, 12)})
    assert shard.needs == (None, ((0, 8), (2, 8), (0, 6)))
    assert (shard.operands, shard.inputs, shard.outputs) == ((1,), ((8, 6, 6),), ((8, 6, 6),))


# Vocabulary


def test_every_kind_has_a_class_and_words() -> None:
    for name, kind in kinds().items():
        assert kind.op_class in OP_CLASSES
        assert kind.outputs, name


# Errors


def test_an_unknown_kind_is_no_guess() -> None:
    with pytest.raises(InputError, match='no semantics for kind "fft"'):
        semantics_of("fft", {}, [(2,)], [(2,)])
    assert work("fft", {}, [(2,)], [(2,)], ["float32"]) is None
    assert op_class("fft") == "other"


@pytest.mark.parametrize(
    ("kind", "example", "reason"),
    [
        ("matmul", call([(4, 5), (6, 7)], [(4, 7)]), 'operand 1 has 6 along "k"'),
        ("matmul", call([(4, 5)], [(4, 7)]), "does not fit"),
        ("add", call([(4, 5), (3,)], [(4, 5)]), "does not fit"),
        ("concat", call([(4, 5), (4, 5)], [(4, 11)], dim=1), "the parts have 10"),
        ("reshape", call([(4, 5)], [(4, 6)]), "has 20 elements"),
        ("permute", call([(4, 5)], [(5, 4)], dims=[1, 1]), "no order"),
        ("group_norm", call([(4, 4, 2)], [(4, 4, 2)]), "no attribute 'group'"),
        ("softmax", call([(4, 5)], [(4, 5)], dim=2), "no dimension 2"),
        (
            "conv2d",
            call([(1, 3, 8, 8), (4, 3, 3, 3)], [(1, 4, 6, 6)], stride=[1, 1, 1]),
            "stride: needs 2",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(kind: str, example: Call, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        semantics_of(kind, example.attrs, example.inputs, example.outputs)
    assert work(kind, example.attrs, example.inputs, example.outputs, []) is None


def test_an_unknown_shape_is_named() -> None:
    with pytest.raises(InputError, match="operand 1 has no shape"):
        semantics_of("add", {}, [(2,), None], [(2,)])


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(InputError, match="op_class"):
        register("mine", kinds()["relu"].describe, "magic")


@pytest.mark.parametrize("kind", ["sum", "mean", "amax", "var", "argmax", "cumsum", "softmax"])
@pytest.mark.parametrize("dim", [0, -1, [0], [-1], [], None])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_number_is_reduced_along_no_dimension(kind: str, dim: object, keepdim: bool) -> None:
    """PyTorch takes 0 and -1 for a dimension of a tensor that has none."""
    semantics = semantics_of(kind, {"dim": dim, "keepdim": keepdim}, [()], [()])
    assert semantics.read == ((),)
    assert splits(semantics) == ()
    with pytest.raises(InputError, match="no dimension 1"):
        semantics_of(kind, {"dim": [1]}, [()], [()])


def test_attributes_of_equal_value_and_other_type_are_kept_apart() -> None:
    first = semantics_of("sum", {"dim": [0], "keepdim": True}, [(2, 3)], [(1, 3)])
    second = semantics_of("sum", {"dim": [0], "keepdim": 1}, [(2, 3)], [(1, 3)])
    assert (repr(first.attrs["keepdim"]), repr(second.attrs["keepdim"])) == ("True", "1")
    assert semantics_of("sum", {"keepdim": True, "dim": [0]}, [(2, 3)], [(1, 3)]) is first


@pytest.mark.parametrize(
    ("attrs", "same"), [({"dim": -1}, {"dim": 1}), ({"dim": -2}, {"dim": 0}), ({}, {"dim": 0})]
)
def test_dimensions_count_from_either_end(attrs: dict[str, int], same: dict[str, int]) -> None:
    shapes = [(4, 4), (4, 4)], [(8, 4) if same["dim"] == 0 else (4, 8)]
    told, counted = (semantics_of("concat", each, *shapes) for each in (attrs, same))
    assert told.description == counted.description


@pytest.mark.parametrize(("dim", "shape"), [(2, (4, 4)), (-3, (4, 4)), (1, ()), (-2, ())])
def test_there_is_no_dimension_beyond_the_rank(dim: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=f"no dimension {dim} among {len(shape)}"):
        semantics_of("softmax", {"dim": dim}, [shape], [shape])


@pytest.mark.parametrize("dim", [0, -1])
def test_a_number_has_one_dimension_to_name(dim: int) -> None:
    assert semantics_of("softmax", {"dim": dim}, [()], [()]).description.inputs == (Access(()),)


def test_whole_dimensions_can_be_asked_for() -> None:
    def opaque(call: Call) -> Description:
        (b,) = axes("b", call.outputs[0][:1])
        return Description((Output((b, ALL)),), (Access((b, ALL, ALL)),))

    register("opaque", opaque)
    semantics = semantics_of("opaque", {}, [(4, 5, 5)], [(4, 5)])
    assert input_regions(semantics, {"b": (1, 2)}) == (((1, 2), (0, 5), (0, 5)),)
    assert [split.axis for split in splits(semantics)] == ["b"]


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"stride": [0, 1]}, r"stride: must be whole numbers >= 1, got \[0, 1\]"),
        ({"stride": -1}, "stride: must be whole numbers >= 1, got -1"),
        ({"stride": [1.5, 1]}, r"stride: must be whole numbers >= 1, got \[1.5, 1\]"),
        ({"stride": "no"}, "stride: must be whole numbers >= 1, got 'no'"),
        ({"dilation": [True, 1]}, "dilation: must be whole numbers >= 1"),
        ({"padding": [-1, 1]}, "padding: must be whole numbers >= 0"),
        ({"padding": [1, 1, 1]}, "padding: needs 2 values"),
        ({"padding": [2, 2]}, r"windows over \[8, 8\] make \[10, 10\], not \[8, 8\]"),
        (
            {"padding": [1, 1], "stride": [2, 2]},
            r"windows over \[8, 8\] make \[4, 4\], not \[8, 8\]",
        ),
    ],
)
def test_windows_must_be_whole_and_fit(attrs: dict[str, object], reason: str) -> None:
    x, weight, y = (4, 2, 8, 8), (6, 2, 3, 3), (4, 6, 8, 8)
    semantics_of("conv2d", {"padding": [1, 1]}, [x, weight], [y])
    with pytest.raises(InputError, match=reason):
        semantics_of("conv2d", attrs, [x, weight], [y])
    with pytest.raises(InputError, match=reason):
        semantics_of("conv2d_backward_weight", attrs, [y, x], [weight])


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *[
            (None, 32),
            ("float32", 32),
            ("tf32", 32),
            ("bf16", 16),
            ("half", 16),
            ("long", 64),
            ("bool", 8),
        ],
        *[
            ("float4", 4),
            ("float8_e4m3fn", 8),
            ("complex64", 64),
            ("torch.float16", 16),
            ("FP16", 16),
        ],
    ],
)
def test_bits_of_a_dtype(name: str | None, bits: int) -> None:
    assert bits_of(name) == bits
