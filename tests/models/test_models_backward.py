"""The backward of recorded steps, and what profiles, lowering and strategies rest on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from model_graphs import SMALL, flops, small
from model_table import PRODUCTS
from simdev.costs import CostModel, Profile, Row, op_key
from simdev.execution.scenario import Scenario
from simdev.files import read_scenario
from simdev.files.cluster import read_preset
from simdev.files.device import read_device
from simdev.files.graph import read_graph, write_graph
from simdev.files.profile import read_profile
from simdev.ground.errors import InputError
from simdev.nouns import models
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph
from simdev.nouns.semantics import (
    boxes,
    input_regions,
    op_class,
    op_semantics,
    op_work,
    operand_shapes,
    output_regions,
    stored_region,
)
from simdev.nouns.semantics.registry import LEAF_ROLES as LEAVES
from simdev.nouns.strategy import Strategy
from simdev.nouns.structure import op_splits, weights_of
from simdev.report import run

ROOT = Path(__file__).parents[2]


def updates(graph: Graph) -> Iterator[tuple[int, int]]:
    """(position of the parameter, position of its update)."""
    for i, op in enumerate(graph.ops):
        if op.phase == "update":
            yield graph.resolve(op.inputs[0])[0], i


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


def test_an_op_without_a_gradient_rule_is_refused_where_a_step_needs_it() -> None:
    from simdev.nouns.models.backward import training_graph
    from simdev.nouns.models.builder import StepBuilder, record
    from simdev.nouns.models.ops import cross_entropy, linear

    step = StepBuilder("odd", "float32", "sgd")
    cosine = record("cos", linear(step.input("x", 2, 3), 5, "used"))
    loss = cross_entropy(cosine, step.input("labels", 2, dtype="int64"))
    with pytest.raises(InputError, match='kind "cos": no gradient is known'):
        training_graph(loss)


def test_a_parameter_that_the_loss_does_not_need_is_an_error() -> None:
    from simdev.nouns.models.backward import training_graph
    from simdev.nouns.models.builder import StepBuilder
    from simdev.nouns.models.ops import cross_entropy, linear

    step = StepBuilder("odd", "float32", "sgd")
    x = step.input("x", 2, 3)
    linear(x, 4, "unused")
    loss = cross_entropy(linear(x, 5, "used"), step.input("labels", 2, dtype="int64"))
    with pytest.raises(InputError, match='does not depend on the parameter "unused/weight"'):
        training_graph(loss)


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
