"""Builders at any size, and with bad sizes."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_graphs import flops
from model_table import DOCS, PRODUCTS
from simdev.ground.errors import InputError
from simdev.nouns import models
from simdev.nouns.semantics import flops as shard_flops
from simdev.nouns.semantics import input_regions, op_semantics, semantics_of, splits


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 9),
    layers=st.integers(1, 3),
    groups=st.integers(1, 3),
    each=st.integers(1, 3),
    size=st.integers(1, 4),
    fused=st.booleans(),
)
def test_llamas_of_any_size(
    batch: int, length: int, layers: int, groups: int, each: int, size: int, fused: bool
) -> None:
    width = groups * each * size
    dims = {
        "length": length,
        "layers": layers,
        "width": width,
        "inner": 7,
        "heads": groups * each,
        "kv_heads": groups,
    }
    graph = models.llama(batch, vocabulary=11, fused=fused, **dims)
    narrow = groups * size
    layer = 2 * width + 2 * width**2 + 2 * width * narrow + 3 * 7 * width
    assert models.parameter_count(graph) == 2 * 11 * width + width + layers * layer
    single = models.llama(1, vocabulary=11, fused=fused, **dims)
    for phase in ("forward", "backward"):
        assert flops(graph, phase, PRODUCTS) == batch * flops(single, phase, PRODUCTS)


@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 5),
    hidden=st.integers(1, 6),
    layers=st.integers(2, 4),
)
def test_translators_of_any_unrolling(batch: int, length: int, hidden: int, layers: int) -> None:
    for build in (models.nmt, models.gnmt):
        graph = build(batch, length, hidden, layers, vocabulary=11)
        cells = sum(op.kind == "lstm_cell" for op in graph.ops)
        assert cells == length * (2 * layers + (build is models.gnmt))
        once = build(batch, 1, hidden, layers, vocabulary=11)
        assert models.parameter_count(graph) == models.parameter_count(once)
        for i in range(len(graph.ops)):
            op_semantics(graph, i)


@settings(max_examples=10, deadline=None)
@given(
    batch=st.integers(1, 3),
    size=st.integers(33, 130),
    classes=st.integers(1, 12),
    widen=st.integers(1, 2),
)
def test_resnets_of_any_size(batch: int, size: int, classes: int, widen: int) -> None:
    graph = models.resnet(batch, 50, widen, classes, size)
    assert models.parameter_count(graph) < models.parameter_count(
        models.resnet(1, 50, widen + 1, classes, 64)
    )
    images = graph.ops[graph.index["images"]].outputs[0]
    assert images.bytes == 4 * prod((batch, 3, size, size))
    for i in range(len(graph.ops)):
        op_semantics(graph, i)


@pytest.mark.parametrize(
    ("name", "dims", "reason"),
    [
        ("resnet-51", {}, 'model: there is none called "resnet-51"; perhaps resnet-50'),
        ("resnet-50", {"layers": 3}, "layers: no such size; resnet has batch, depth, "),
        ("resnet-50", {"depth": 34}, "depth: must be 50, 101 or 152, got 34"),
        ("vgg-16", {"depth": 11}, "depth: must be 16 or 19, got 11"),
        ("resnet-50", {"batch": 0}, "batch: must be a whole number >= 1, got 0"),
        ("resnet-50", {"batch": True}, "batch: must be a whole number >= 1, got True"),
        ("resnet-50", {"batch": 2.0}, "batch: must be a whole number >= 1, got 2.0"),
        ("gpt2-small", {"dropout": 1}, "dropout: must be true or false, got 1"),
        ("alexnet", {"size": 40}, 'size: too small: at "conv_5" no window of \\[3, 3\\] fits'),
        ("gpt2-small", {"heads": 7}, "heads: 7 do not divide the width 768"),
        ("gpt2-small", {"length": 2000}, "length: 2000 tokens, but the model knows 1024 positions"),
        ("llama2-7b", {"kv_heads": 3}, "kv_heads: 3 do not divide the 32 heads"),
        (
            "llama2-7b",
            {"dtype": "float32"},
            "optimizer: mixed-adam keeps masters of parameters of 2 bytes, not of float32",
        ),
        ("lenet", {"dtype": "int8"}, "dtype: must be one of bfloat16, "),
        ("lenet", {"dtype": 32}, "dtype: must be a name, got 32"),
        ("lenet", {"optimizer": "lamb"}, "optimizer: must be one of sgd, momentum, "),
        ("nasnet-mobile", {"filters": 2}, "filters: must be at least 4"),
        ("lenet", {"batch": 10**18}, "has more than 1152921504606846976 bytes"),
    ],
)
def test_bad_questions_get_a_reason(name: str, dims: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        models.build(name, **dims)


def test_all_wrong_sizes_are_told_at_once() -> None:
    with pytest.raises(InputError) as error:
        models.build("gnmt", batch=-1, length="20", colour=3)
    assert len(error.value.problems) == 3


def test_names_are_those_of_the_table() -> None:
    assert models.names() == tuple(models.MODELS)
    assert len(set(models.names())) == 36
    assert {"resnet-101", "inception-v3", "gnmt-8", "gpt3-175b", "llama2-70b"} <= set(
        models.names()
    )


def test_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCS.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for source in text.split("```python\n")[1:]:
        exec(compile(source.partition("```")[0], "models.md", "exec"), names)
    count, parameters = capsys.readouterr().out.split()
    assert f"# {count} {parameters}" in text


def test_attention_over_positions_first_is_attention() -> None:
    """The same work and splits as over heads first, each region with heads and positions
    exchanged.
    """
    q, k, y = (2, 4, 6, 8), (2, 2, 10, 8), (2, 4, 6, 8)
    first = semantics_of("attention", {}, [q, k, k], [y, (2, 4, 6)])
    turned = [(shape[0], shape[2], shape[1], shape[3]) for shape in (q, k, k, y)]
    second = semantics_of("flash_attention", {}, turned[:3], [turned[3], (2, 4, 6)])
    half = {"h": (0, 1), "s": (2, 5)}
    assert shard_flops(first, half) == shard_flops(second, half)
    for one, other in zip(input_regions(first, half), input_regions(second, half), strict=True):
        assert one is not None
        assert other == (one[0], one[2], one[1], one[3])


def test_an_einsum_reads_and_sums_by_its_letters() -> None:
    scores = semantics_of(
        "einsum", {"equation": "bshd,bthd->bhst"}, [(2, 6, 4, 8), (2, 10, 4, 8)], [(2, 4, 6, 10)]
    )
    assert shard_flops(scores, {}) == 2 * 2 * 4 * 6 * 10 * 8
    kinds = {split.axis: split.kind for split in splits(scores)}
    assert kinds == {
        "b": "sample",
        "h": "attribute",
        "s": "attribute",
        "t": "attribute",
        "d": "reduction",
    }
    assert input_regions(scores, {"h": (1, 3)}) == (
        ((0, 2), (0, 6), (1, 3), (0, 8)),
        ((0, 2), (0, 10), (1, 3), (0, 8)),
    )


@pytest.mark.parametrize(
    "equation", ["ij,jk", "ijjk->ik", "ii,ij->j", "ij,jk->il", "ij,jk->ikk", "i,jk->ik"]
)
def test_an_einsum_that_makes_no_sense_is_an_error(equation: str) -> None:
    with pytest.raises(InputError, match="equation"):
        semantics_of("einsum", {"equation": equation}, [(2, 3), (3, 4)], [(2, 4)])
