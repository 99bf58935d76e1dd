"""Builders of training steps: published counts, the backward, and what lowering and strategies rest
on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_table import DOCS, END, PARAMETERS, PRODUCTS, START, forward_products, one_sample, table
from simdev import models
from simdev.cluster import Cluster
from simdev.costs import CostModel, Profile, Row, op_key
from simdev.errors import InputError
from simdev.files import read_scenario
from simdev.files.cluster import read_preset
from simdev.files.device import read_device
from simdev.files.graph import read_graph, write_graph
from simdev.files.profile import read_profile
from simdev.graph import Graph
from simdev.report import run
from simdev.scenario import Scenario
from simdev.semantics import (
    boxes,
    input_regions,
    op_class,
    op_semantics,
    op_work,
    operand_shapes,
    output_regions,
    semantics_of,
    splits,
    stored_region,
)
from simdev.semantics import flops as shard_flops
from simdev.semantics.traits import LEAF_ROLES as LEAVES
from simdev.strategy import Strategy
from simdev.structure import op_splits, weights_of

ROOT = Path(__file__).parents[2]

# Every builder at a size that is quick to ask many questions about.
SMALL: dict[str, dict[str, Any]] = {
    "lenet": {},
    "alexnet": {},
    "vgg-16": {},
    "resnet-50": {},
    "wresnet-50": {},
    "inception-v3": {"auxiliary": True},
    "nasnet-mobile": {},
    "nasnet-large": {},
    "rnnlm": {"length": 4},
    "rnntc": {"length": 4},
    "nmt": {"length": 4},
    "gnmt": {"length": 4},
    "transformer-base": {"length": 16, "layers": 2},
    "bert-base": {"length": 32, "layers": 2},
    "gpt2-small": {"length": 32, "layers": 2},
    "gpt3-175b": {"length": 32, "layers": 2, "fused": False},
    "llama2-70b": {"length": 32, "layers": 2},
    "llama3-8b": {"length": 32, "layers": 2, "fused": False},
}


@cache
def small(name: str) -> Graph:
    return models.build(name, batch=4, **SMALL[name])


@pytest.fixture(params=SMALL)
def graph(request: pytest.FixtureRequest) -> Graph:
    return small(request.param)


def flops(graph: Graph, phase: str, classes: tuple[str, ...]) -> int:
    chosen = (
        i for i, op in enumerate(graph.ops) if op.phase == phase and op_class(op.kind) in classes
    )
    return sum(op_work(graph, i).flops for i in chosen)


def updates(graph: Graph) -> Iterator[tuple[int, int]]:
    """(position of the parameter, position of its update)."""
    for i, op in enumerate(graph.ops):
        if op.phase == "update":
            yield graph.resolve(op.inputs[0])[0], i


# Published counts


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    published, within, _ = PARAMETERS[name]
    assert models.parameter_count(one_sample(name)) == pytest.approx(published, rel=within, abs=0)


def test_the_auxiliary_head_of_inception_has_its_parameters() -> None:
    """torchvision: 27,161,264 with both heads."""
    assert models.parameter_count(models.inception_v3(batch=1, auxiliary=True)) == 27_161_264


def test_other_published_sizes() -> None:
    """Merity et al. 2016, table 1: Zaremba's large LSTM has 66 M.

    BERT at 16-bit has as many as at 32.
    """
    zaremba = models.rnnlm(batch=1, length=35, hidden=1500)
    assert models.parameter_count(zaremba) == pytest.approx(66e6, rel=0.005)
    halves = models.bert(batch=1, length=16, dtype="float16", optimizer="mixed-adam")
    assert models.parameter_count(halves) == 336_226_108


@pytest.mark.parametrize(
    ("hidden", "gigabytes"), [(4096, 14.4 - 8.4), (6144, 32.1 - 18.6), (8192, 57.0 - 33.0)]
)
def test_four_more_lstm_layers_weigh_what_tofu_prints(hidden: int, gigabytes: float) -> None:
    """Tofu, table 2, RNN-10 less RNN-6: 3 W in GB (2^30) of 4-byte weights."""
    counts = [
        models.parameter_count(models.rnnlm(batch=1, length=1, hidden=hidden, layers=n))
        for n in (6, 10)
    ]
    assert 3 * 4 * (counts[1] - counts[0]) / 2**30 == pytest.approx(gigabytes, abs=0.01)


@pytest.mark.parametrize("depth", [50, 101, 152])
@pytest.mark.parametrize("widen", [4, 6, 8, 10])
def test_wide_resnets_weigh_what_tofu_prints(depth: int, widen: int) -> None:
    """Tofu, table 2: 3 W in GB (2^30)."""
    printed = {
        50: (4.2, 9.6, 17.1, 26.7),
        101: (7.8, 17.1, 30.6, 47.7),
        152: (10.5, 23.4, 41.7, 65.1),
    }
    count = models.parameter_count(models.resnet(batch=1, depth=depth, widen=widen, size=64))
    assert 3 * 4 * count / 2**30 == pytest.approx(printed[depth][(widen - 4) // 2], rel=0.025)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("alexnet", 0.714),
        ("vgg-16", 15.470),
        ("vgg-19", 19.632),
        ("resnet-50", 4.089),
        ("resnet-101", 7.801),
        ("resnet-152", 11.514),
        ("inception-v3", 5.713),
        ("nasnet-mobile", 0.564),
    ],
)
def test_multiply_adds_of_a_forward_are_the_published_ones(name: str, billions: float) -> None:
    """torchvision's weights pages, to their last digit; NASNet: table 2 of the paper (564 M)."""
    assert forward_products(name) / 2e9 == pytest.approx(billions, abs=0.0005)


def test_multiply_adds_of_the_large_nasnet() -> None:
    """Zoph et al., table 2: 23.8 B."""
    assert forward_products("nasnet-large") / 2e9 == pytest.approx(23.8, abs=0.05)


def test_the_first_classifier_of_vgg_has_the_gradient_of_optcnn() -> None:
    """OptCNN, figure 2: 411,041,792 bytes."""
    graph = small("vgg-16")
    assert graph.ops[graph.index["fc_6/fc/weight"]].param_bytes == 411_041_792


def test_operations_of_gpt_are_the_formula_of_megatron() -> None:
    """Narayanan et al., SC'21, section 5.1: 96 B s L h^2 (1 + s/6h + V/16Lh), the layers' forward
    run twice.
    """
    b, s, n, h, v = 2, 64, 3, 128, 1000
    graph = models.gpt(b, s, n, h, 4, v, fused=False)
    forward, logits = flops(graph, "forward", ("gemm",)), 2 * b * s * h * v
    expected = 96 * b * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
    assert 2 * forward - logits + flops(graph, "backward", ("gemm",)) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("fused", [False, True])
def test_activations_of_a_gpt_layer_are_the_formula_of_korthikanti(fused: bool) -> None:
    """Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h) bytes a layer, scores included.

    The layer norms keep two numbers of 4 bytes a row besides; fused, the scores go and a number of
    4 bytes a row of them stays.
    """
    b, s, h, a = 2, 128, 256, 8
    graph = models.gpt(b, s, 3, h, a, 100, fused=fused, dtype="bfloat16", optimizer="mixed-adam")
    assert kept(graph, "layer_1/") == s * b * h * 34 + 2 * 8 * s * b + (
        4 * a * s * b if fused else 5 * a * s**2 * b
    )


def kept(graph: Graph, prefix: str) -> int:
    """Bytes of the forward's tensors under a prefix that the backward reads."""
    read = {
        tensor
        for i, op in enumerate(graph.ops)
        if op.phase == "backward"
        for tensor in graph.reads[i]
    }
    return sum(
        graph.ops[p].outputs[k].bytes
        for p, k in read
        if graph.ops[p].phase == "forward"
        and graph.ops[p].kind not in LEAVES
        and graph.ops[p].name.startswith(prefix)
    )


def test_the_table_of_models_is_that_of_the_builders() -> None:
    text = DOCS.read_text(encoding="utf-8")
    written = text[text.index(START) : text.index(END) + len(END)]
    assert written == table(), "python tests/model_table.py writes the table again"


# The backward


def test_every_op_is_described(graph: Graph) -> None:
    """Kinds, operands, attributes and outputs fit the semantics, and an op writes the bytes of its
    outputs.
    """
    for i, op in enumerate(graph.ops):
        written = op_work(graph, i).bytes_written
        if op.phase != "update" and op.kind not in (*LEAVES, "split", "select"):
            assert written == sum(tensor.bytes for tensor in op.outputs), op.name


def test_every_parameter_has_one_gradient_and_one_update(graph: Graph) -> None:
    updated = dict(updates(graph))
    assert len(updated) == sum(op.phase == "update" for op in graph.ops)
    for i, op in enumerate(graph.ops):
        if op.kind != "parameter":
            assert (op.param_bytes, op.state_bytes, op.grad_bytes) == (0, 0, 0)
            continue
        assert op.param_bytes == op.outputs[0].bytes
        assert (i in updated) == (not op.name.endswith(("running_mean", "running_var")))
        if i in updated:
            update = graph.ops[updated[i]]
            assert (update.name, update.colocate) == (f"update/{op.name}", op.colocate)
            parameter, gradient = operand_shapes(graph, updated[i])
            assert parameter == gradient == op.outputs[0].shape
            producer = graph.ops[graph.resolve(update.inputs[1])[0]]
            assert producer.phase == "backward"


@pytest.mark.parametrize("name", SMALL)
def test_products_of_the_backward_are_twice_those_of_the_forward(name: str) -> None:
    """But for layers that read the batch itself, which have no gradient of their input."""
    graph = small(name)
    first = 0
    for i, op in enumerate(graph.ops):
        reads_batch = any(graph.ops[p].kind == "input" for p, k in graph.reads[i] if k >= 0)
        if op.phase == "forward" and op_class(op.kind) == "conv" and reads_batch:
            first += op_work(graph, i).flops
    classes = ("gemm", "conv")
    assert flops(graph, "backward", classes) == 2 * flops(graph, "forward", classes) - first


@pytest.mark.parametrize("name", ["rnnlm", "gnmt", "gpt2-small", "llama2-70b"])
def test_the_backward_does_about_twice_the_work_of_the_forward(name: str) -> None:
    """LSTM cells and fused attention included, which have pointwise parts and scores that are
    computed again.
    """
    graph = small(name)
    assert 1.9 < flops(graph, "backward", PRODUCTS) / flops(graph, "forward", PRODUCTS) < 2.3


def test_the_backward_follows_the_forward_it_needs() -> None:
    """Program order is an order of execution: an op reads only what stands before it."""
    for name in SMALL:
        graph = small(name)
        assert all(producer < i for i, reads in enumerate(graph.reads) for producer, _ in reads)


def test_gradients_of_several_readers_are_added_up() -> None:
    """The shared matrix of the Transformer: two embeddings and the classifier; steps of an LSTM
    share their weights.
    """
    graph = small("transformer-base")
    position = next(
        update
        for parameter, update in updates(graph)
        if graph.ops[parameter].name == "embedding/weight"
    )
    assert Counter(leaves_of_sum(graph, graph.ops[position].inputs[1])) == {
        "matmul": 1,
        "embedding_backward": 2,
    }
    graph = small("rnnlm")
    name = "layer_1/from_state"
    position = next(
        update for parameter, update in updates(graph) if graph.ops[parameter].name == name
    )
    assert leaves_of_sum(graph, graph.ops[position].inputs[1]) == ["lstm_cell_backward_weight"] * 4


def leaves_of_sum(graph: Graph, reference: str) -> list[str]:
    op = graph.ops[graph.resolve(reference)[0]]
    if op.kind != "add":
        return [op.kind]
    return [kind for text in op.inputs for kind in leaves_of_sum(graph, text)]


@pytest.mark.parametrize(
    ("optimizer", "dtype", "states", "kind"),
    [
        ("sgd", "float32", 0, "sgd_update"),
        ("momentum", "float32", 4, "sgd_momentum_update"),
        ("adam", "float32", 8, "adam_update"),
        ("adam", "bfloat16", 4, "adam_update"),
        ("mixed-momentum", "float16", 8, "sgd_momentum_update"),
        ("mixed-adam", "bfloat16", 12, "adam_update"),
    ],
)
def test_updates_follow_the_optimizer(optimizer: str, dtype: str, states: int, kind: str) -> None:
    graph = models.lenet(batch=2, dtype=dtype, optimizer=optimizer)
    assert {op.kind for op in graph.ops if op.phase == "update"} == {kind}
    assert sum(op.state_bytes for op in graph.ops) == states * models.parameter_count(graph)


def test_a_parameter_that_the_loss_does_not_need_is_an_error() -> None:
    from simdev.models.backward import training_graph
    from simdev.models.builder import StepBuilder
    from simdev.models.ops import cross_entropy, linear

    step = StepBuilder("odd", "float32", "sgd")
    x = step.input("x", 2, 3)
    linear(x, 4, "unused")
    loss = cross_entropy(linear(x, 5, "used"), step.input("labels", 2, dtype="int64"))
    with pytest.raises(InputError, match='does not depend on the parameter "unused/weight"'):
        training_graph(loss)


# What profiles, lowering and strategies rest on


def test_inception_finds_its_measured_rows() -> None:
    """Kinds, attributes and shapes are those of captured graphs: nearly every op has its row,
    nearly all time.
    """
    profile = read_profile(ROOT / "profiles" / "inception-v3.epyc-1core.jsonl")
    captured = read_graph(ROOT / "profiles" / "graphs" / "inception-v3-b16.json")
    found, total = measured(models.inception_v3(batch=16), profile), measured(captured, profile)
    assert (len(found), found.count(None)) == (1030, 14)
    assert None not in total
    assert seconds(found) > 0.998 * seconds(total)


def measured(graph: Graph, profile: Profile) -> list[Row | None]:
    """The measured row of every op that takes time."""
    keys = (
        op_key(graph, i, "epyc-1core")
        for i, op in enumerate(graph.ops)
        if op.kind not in (*LEAVES, "split")
    )
    return [profile.rows.get(key) for key in keys]


def seconds(rows: list[Row | None]) -> float:
    return float(sum(row.seconds for row in rows if row is not None))


@pytest.mark.parametrize("name", ["alexnet", "resnet-50", "transformer-big"])
def test_ops_are_those_that_pytorch_runs(name: str) -> None:
    """An independent author of the same step: its parameters, and its convolutions, products of
    weights and norms.
    """
    pytest.importorskip("torch")
    from simdev.measure.capture import capture
    from simdev.measure.torch_models import MODELS

    dims = {"batch": 2, "layers": 1, "length": 20} if name == "transformer-big" else {"batch": 2}
    module, inputs, loss = MODELS[name].build(**dims)
    captured = read_graph(capture(module, inputs, loss, "sgd-momentum", name).graph)
    built = models.build(name, **dims)
    assert models.parameter_count(built) == sum(
        parameter.numel() for parameter in module.parameters()
    )
    kinds = ("conv2d", "batch_norm", "layer_norm", "relu", "max_pool2d", "linear", "embedding")
    ours, theirs = (telling(graph, kinds) for graph in (built, captured))
    assert ours == theirs


def telling(graph: Graph, kinds: tuple[str, ...]) -> Counter[str]:
    """Keys of the ops that do the work and have one form in PyTorch, without how their operands
    lie.
    """
    found: Counter[str] = Counter()
    for i, op in enumerate(graph.ops):
        if op.kind.startswith(kinds):
            key = json.loads(op_key(graph, i, "any"))
            key[3].pop("strides", None)
            found[json.dumps(key)] += 1
    return found


@pytest.mark.parametrize("name", SMALL)
def test_halves_of_a_batch_need_nothing_of_each_other(name: str) -> None:
    """Data parallelism moves gradients of weights and nothing else: views never hide whose sample
    an element is.
    """
    graph = small(name)
    weights = weights_of(graph)
    made: dict[tuple[int, int], Any] = {}
    for i, op in enumerate(graph.ops):
        axis = next((split.axis for split in sample_splits(graph, i, weights)), None)
        if axis is None:
            continue
        half = boxes(op_semantics(graph, i), {axis: 2})[0]
        needs = input_regions(op_semantics(graph, i), half)
        for text, need, shape in zip(op.inputs, needs, operand_shapes(graph, i), strict=True):
            source = graph.resolve(text)
            if need is not None and source in made:
                stored = graph.ops[source[0]].outputs[source[1]].shape or ()
                region = stored_region(need, shape or (), stored)
                inside = (
                    a >= c and b <= d for (a, b), (c, d) in zip(region, made[source], strict=True)
                )
                assert all(inside), (op.name, text)
        made |= {
            (i, k): region
            for k, region in enumerate(output_regions(op_semantics(graph, i), half))
            if region
        }
    assert len(made) > len(graph.ops) / 3


def sample_splits(graph: Graph, position: int, weights: Any) -> list[Any]:
    op = graph.ops[position]
    if op.kind in ("parameter", "constant") or op.phase == "update":
        return []
    return [
        split
        for split in op_splits(graph, position, weights)
        if split.kind == "sample" and split.size % 2 == 0
    ]


def test_names_tell_the_layer(graph: Graph) -> None:
    for op in graph.ops:
        layer = models.layer_of(op.name)
        assert layer or op.kind in ("input", "constant"), op.name
        assert not layer.startswith(("grad", "update"))
        assert "@" not in layer
        prefix = {"forward": "", "backward": "grad/", "update": "update/"}[op.phase]
        assert op.name.startswith(prefix)


def test_layers_of_examples() -> None:
    names = {
        "layer_3/attention/query/linear": "layer_3/attention/query",
        "grad/layer_3/attention/query/matmul_1": "layer_3/attention/query",
        "update/layer_3/attention/query/weight": "layer_3/attention/query",
        "encoder/layer_0@7/lstm_cell": "encoder/layer_0",
        "words": "",
    }
    assert {name: models.layer_of(name) for name in names} == names
    known = small("gpt2-small").index
    assert {name.replace("layer_3", "layer_1") for name in list(names)[:3]} <= set(known)


def test_building_is_deterministic_and_survives_its_file(tmp_path: Path) -> None:
    for name in ("resnet-50", "gnmt", "llama2-70b"):
        graph = models.build(name, batch=4, **SMALL[name])
        assert graph.ops == small(name).ops
        write_graph(graph, tmp_path / "graph.json")
        assert read_graph(tmp_path / "graph.json") == graph


@cache
def one_gpu() -> tuple[Cluster, CostModel]:
    return read_preset("dgx-a100-80"), CostModel((), (read_device("a100-80"),))


def test_every_model_simulates_on_one_device(graph: Graph) -> None:
    cluster, costs = one_gpu()
    report = run(Scenario(graph, cluster, costs, Strategy({"*": "gpu:0"}), engine="simpy"))
    assert report.step_ps == report.devices[0].busy_ps > 0
    assert report.devices[0].memory.peak > sum(op.param_bytes + op.state_bytes for op in graph.ops)


def test_layers_are_placed_by_patterns() -> None:
    """A pipeline by layers: what a device gets is told by names alone."""
    graph = small("gpt2-small")
    halves = {
        f"{prefix}layer_{i}/*": f"gpu:{i}" for prefix in ("", "grad/", "update/") for i in range(2)
    }
    cluster, costs = one_gpu()
    report = run(
        Scenario(graph, cluster, costs, Strategy({"*": "gpu:0", **halves}), engine="simpy")
    )
    assert report.devices[1].busy_ps > 0
    activations = 4 * 4 * 32 * 768
    assert report.transfer_bytes == 2 * 2 * activations


def test_a_scenario_names_a_model() -> None:
    parts = {"version": 1, "cluster": "dgx-a100-80", "strategy": {"placement": {"*": "gpu:0"}}}
    found = read_scenario({**parts, "graph": {"model": "lenet", "batch": 8}})
    assert found.graph == models.lenet(batch=8)
    with pytest.raises(InputError) as error:
        read_scenario({**parts, "graph": {"model": "lenet", "batch": 0, "depth": 5}})
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        "graph.depth",
        "graph.batch",
    ]


# Any size


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


# Errors


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
        ("gpt2-small", {"length": 2000}, "length: 2000 words, but the model knows 1024 positions"),
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
    assert len(set(models.names())) == 36 - 2
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


# The kinds that only models use


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
