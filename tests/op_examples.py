"""An example of every kind of op: tests check the kind's laws on it, and the site shows it."""

from __future__ import annotations

from typing import Any

from simdev.nouns.semantics import Call, Kind, Semantics, kinds, semantics_of

_LAYER = [(6, 8, 10), (16, 10), (16, 4), (16,), (16,), (8, 4), (8, 4)]


def call(inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], **attrs: Any) -> Call:
    return Call(attrs, tuple(inputs), tuple(outputs))


def _spatial(rank: int) -> dict[str, Call]:
    """Convolutions and pools of 12 positions, kernel 3, stride 2, padding 1: 6 windows a
    dimension.
    """
    read, made, kernel = (12,) * rank, (6,) * rank, (3,) * rank
    how = {"stride": [2] * rank, "padding": [1] * rank, "dilation": [1] * rank}
    window = {"kernel_size": [3] * rank, "stride": [2] * rank, "padding": [1] * rank}
    x, y, weight, flipped = (8, 4, *read), (8, 6, *made), (6, 4, *kernel), (4, 6, *kernel)
    # A transposed convolution works in reverse: from 6 positions to 11.
    wide = (8, 6, *(11,) * rank)
    narrow = (8, 4, *made)
    pooled = (8, 4, *made)
    small = (8, 4, *(4,) * rank)
    calls = {
        "conv": call([x, weight, (6,)], [y], **how),
        "conv_backward_input": call([y, weight], [x], **how),
        "conv_backward_weight": call([y, x], [weight, (6,)], **how),
        "conv_transpose": call([narrow, flipped, (6,)], [wide], **how),
        "conv_transpose_backward_input": call([wide, flipped], [narrow], **how),
        "conv_transpose_backward_weight": call([wide, narrow], [flipped, (6,)], **how),
        "avg_pool": call([x], [pooled], **window),
        "avg_pool_backward": call([pooled, x], [x], **window),
        "max_pool": call([x], [pooled, pooled], **window),
        "max_pool_backward": call([pooled, x, pooled], [x], **window),
        "adaptive_avg_pool": call([x], [small], output_size=[4] * rank),
        "adaptive_avg_pool_backward": call([small, x], [x]),
        "adaptive_max_pool": call([x], [small, small], output_size=[4] * rank),
        "adaptive_max_pool_backward": call([small, x, small], [x]),
    }
    return {
        name.replace("_backward", f"{rank}d_backward") if "_b" in name else f"{name}{rank}d": value
        for name, value in calls.items()
    }


def _attention() -> dict[str, Call]:
    q, k, v, y, lse = (8, 4, 6, 10), (8, 2, 12, 10), (8, 2, 12, 14), (8, 4, 6, 14), (8, 4, 6)
    names = [
        "attention",
        *(name for name in kinds() if name.startswith("scaled_dot") and "backward" not in name),
    ]
    forward = {name: call([q, k, v], [y, lse]) for name in names}
    return forward | {f"{name}_backward": call([y, q, k, v, y, lse], [q, k, v]) for name in names}


def _named() -> dict[str, Call]:
    rows = (8, 6, 10)
    grid = (8, 4, 6, 6)
    return {
        "linear": call([(8, 6, 10), (12, 10), (12,)], [(8, 6, 12)], transpose_b=True),
        "matmul": call([(8, 10), (10, 12)], [(8, 12)]),
        "batch_matmul": call([(8, 4, 6, 10), (8, 4, 10, 12)], [(8, 4, 6, 12)]),
        "baddbmm": call([(8, 6, 12), (8, 6, 10), (8, 10, 12)], [(8, 6, 12)]),
        "bilinear": call([(8, 6), (8, 10), (12, 6, 10), (12,)], [(8, 12)]),
        "bilinear_backward_input": call([(8, 12), (8, 6), (8, 10), (12, 6, 10)], [(8, 6), (8, 10)]),
        "bilinear_backward_weight": call([(8, 12), (8, 6), (8, 10)], [(12, 6, 10), (12,)]),
        "mv": call([(8, 10), (10,)], [(8,)]),
        "dot": call([(10,), (10,)], [()]),
        "embedding": call([(12, 10), (8, 6)], [(8, 6, 10)]),
        "embedding_backward": call(
            [(8, 6, 10), (8, 6)], [(12, 10)], num_weights=12, padding_idx=-1
        ),
        "batch_norm": call([grid, (4,), (4,), (4,), (4,)], [grid, (4,), (4,)], training=True),
        "batch_norm_backward": call(
            [grid, grid, (4,), (4,), (4,), (4,), (4,)], [grid, (4,), (4,)], train=True
        ),
        "layer_norm": call(
            [rows, (10,), (10,)], [rows, (8, 6, 1), (8, 6, 1)], normalized_shape=[10]
        ),
        "layer_norm_backward": call(
            [rows, rows, (8, 6, 1), (8, 6, 1), (10,), (10,)],
            [rows, (10,), (10,)],
            normalized_shape=[10],
        ),
        "rms_norm": call([rows, (10,)], [rows, (8, 6, 1)], normalized_shape=[10]),
        "rms_norm_backward": call(
            [rows, rows, (8, 6, 1), (10,)], [rows, (10,)], normalized_shape=[10]
        ),
        "fused_rms_norm": call([rows, (10,)], [rows, (8, 6, 1)], normalized_shape=[10]),
        "fused_rms_norm_backward": call(
            [rows, rows, (8, 6, 1), (10,)], [rows, (10,)], normalized_shape=[10]
        ),
        "group_norm": call([grid, (4,), (4,)], [grid, (8, 2), (8, 2)], N=8, C=4, HxW=36, group=2),
        "group_norm_backward": call(
            [grid, grid, (8, 2), (8, 2), (4,)], [grid, (4,), (4,)], N=8, C=4, HxW=36, group=2
        ),
        "mkldnn_rnn_layer": call(_LAYER, [(6, 8, 4), (8, 4), (8, 4), (0,)]),
        "mkldnn_rnn_layer_backward": call(
            [*_LAYER, (6, 8, 4), (8, 4), (8, 4), (6, 8, 4), (0,)],
            [(6, 8, 10), (16, 10), (16, 4), (16,), (16,), (8, 4), (8, 4)],
        ),
        "lstm_cell": call(
            [(8, 6), (8, 10), (8, 10), (4, 10, 6), (4, 10, 10), (4, 10)],
            [(8, 10), (8, 10), (8, 4, 10)],
        ),
        "lstm_cell_backward_input": call(
            [(8, 10), (8, 10), (8, 10), (8, 10), (8, 4, 10), (4, 10, 6), (4, 10, 10)],
            [(8, 6), (8, 10), (8, 10), (8, 4, 10)],
        ),
        "lstm_cell_backward_weight": call(
            [(8, 4, 10), (8, 6), (8, 10)], [(4, 10, 6), (4, 10, 10), (4, 10)]
        ),
        "nll_loss": call([(8, 12), (8,)], [(), ()], reduction=1),
        "nll_loss_backward": call([(), (8, 12), (8,), ()], [(8, 12)], reduction=1),
        "cross_entropy": call([(8, 12), (8,)], [(), (8,)], reduction=1),
        "cross_entropy_backward": call([(), (8, 12), (8,), (8,)], [(8, 12)], reduction=1),
        "dropout": call([(8, 6)], [(8, 6), (8, 6)]),
        "concat": call([(8, 4, 6), (8, 8, 6)], [(8, 12, 6)], dim=1),
        "stack": call([(8, 6), (8, 6)], [(2, 8, 6)], dim=0),
        "split": call([(8, 12)], [(8, 4), (8, 8)], dim=1),
        "chunk": call([(8, 12)], [(8, 6), (8, 6)], dim=1),
        "split_with_sizes": call([(8, 12)], [(8, 4), (8, 8)], dim=1),
        "slice": call([(8, 12)], [(8, 4)], dim=1, start=2, end=10, step=2),
        "select": call([(8, 12, 6)], [(8, 6)], dim=1, index=3),
        "reshape": call([(8, 6, 10)], [(48, 10)], shape=[48, 10]),
        "view": call([(48, 10)], [(8, 6, 10)], size=[8, 6, 10]),
        "flatten": call([(8, 4, 6)], [(8, 24)]),
        "unflatten": call([(8, 24)], [(8, 4, 6)]),
        "squeeze": call([(8, 1, 6)], [(8, 6)]),
        "unsqueeze": call([(8, 6)], [(8, 1, 6)]),
        "transpose": call([(8, 6, 10)], [(8, 10, 6)], dim0=1, dim1=2),
        "t": call([(8, 6)], [(6, 8)]),
        "permute": call([(8, 6, 10)], [(10, 8, 6)], dims=[2, 0, 1]),
        "expand": call([(8, 1, 10)], [(8, 6, 10)], size=[8, 6, 10]),
        "pad": call([(8, 6)], [(8, 10)], pad=[1, 3]),
        "constant_pad_nd": call([(8, 6)], [(8, 10)], pad=[1, 3]),
        "repeat": call([(8, 6)], [(8, 12)], repeats=[1, 2]),
        "gather": call([(8, 12), (8, 6)], [(8, 6)], dim=1),
        "select_backward": call([(8, 6)], [(8, 12, 6)], input_sizes=[8, 12, 6], dim=1, index=3),
        "slice_backward": call(
            [(8, 4)], [(8, 12)], input_sizes=[8, 12], dim=1, start=2, end=10, step=2
        ),
        "index_add": call([(12, 6), (8,), (8, 6)], [(12, 6)], dim=0),
        "index_select": call([(12, 6), (8,)], [(8, 6)], dim=0),
        "gather_backward": call([(8, 4, 6), (8, 4, 6)], [(8, 12, 6)], dim=1),
        "einsum": call(
            [(8, 6, 4, 10), (8, 12, 4, 10)], [(8, 4, 6, 12)], equation="bshd,bthd->bhst"
        ),
        "flash_attention": call(
            [(8, 6, 4, 10), (8, 12, 2, 10), (8, 12, 2, 14)], [(8, 6, 4, 14), (8, 4, 6)]
        ),
        "flash_attention_backward": call(
            [
                (8, 6, 4, 14),
                (8, 6, 4, 10),
                (8, 12, 2, 10),
                (8, 12, 2, 14),
                (8, 6, 4, 14),
                (8, 4, 6),
            ],
            [(8, 6, 4, 10), (8, 12, 2, 10), (8, 12, 2, 14)],
        ),
        "rotary_embedding": call([(8, 6, 4, 10)], [(8, 6, 4, 10)]),
        "foreach_copy": call([(8, 6), (4,)], [(52,)]),
        "split_with_sizes_copy": call([(4, 8)], [(4, 6), (4, 2)], dim=1),
        "chunk_cat": call([(8, 6), (5,)], [(4, 14)], dim=0, num_chunks=4),
        "all_gather_copy_in": call([(6,), (2,)], [(32,), (32,)], rank=1),
    }


def _plain(kind: Kind) -> Call:
    """The example of a kind, by its class or the names of its operands."""
    x = (8, 6, 10)
    if kind.name.endswith("_loss") or kind.name == "binary_cross_entropy_with_logits":
        return call([x, x], [()])
    if "dloss" in kind.operands:
        return call([(), x, x], [x])
    if kind.op_class == "optimizer":
        return call([x, x], [])
    if kind.name.endswith("softmax_backward"):
        return call([x, x], [x], dim=2)
    if kind.op_class in ("reduction", "softmax") or kind.name == "flip":
        along = kind.name in ("cumsum", "sort", "flip") or kind.op_class == "softmax"
        return call([x], [x if along else (8, 6)], dim=2)
    if not kind.operands:
        return call([], [x])
    return call([x, x], [x]) if kind.name.endswith("_backward") else call([x, (6, 1)], [x])


def examples() -> dict[str, Call]:
    """An example of every kind."""
    given = {**_spatial(1), **_spatial(2), **_spatial(3), **_attention(), **_named()}
    return {name: given.get(name) or _plain(kind) for name, kind in kinds().items()}


def semantics_of_example(name: str) -> Semantics:
    """The semantics of a kind's example."""
    example = examples()[name]
    return semantics_of(name, example.attrs, example.inputs, example.outputs)
