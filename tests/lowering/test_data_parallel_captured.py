"""Captured steps under data parallelism: what is seen through views is followed like what is
not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from simdev import Oracle, Scenario, Strategy, run
from simdev.costs import CostModel
from simdev.files import read_graph, read_preset
from simdev.files.device import read_device
from simdev.lowering import partition
from simdev.measure.capture import capture
from simdev.nouns.graph import Graph
from simdev.report import Report

V100, COSTS = read_preset("c4140-4x-v100"), CostModel(specs=(read_device("v100"),))
WORDS, IMAGES = (32, 64, 256), (48, 3, 32, 32)
FEW_WORDS = (32, 8, 256)  # a recurrent layer has ops for each
HEADS = 4
PARALLEL = Strategy(short="data-parallel")


class Model(nn.Module):
    """Layers and what is done with them."""

    def __init__(self, call: Callable[..., torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self, x)


def attention(
    cut: Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, ...]], **layers: nn.Module
) -> Model:
    def call(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = cut(m, x)
        y = functional.scaled_dot_product_attention(q, k, v)
        return m.o(y.transpose(1, 2).reshape(x.shape))

    return Model(call, **layers, o=nn.Linear(256, 256))


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def joint(cut: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> Model:
    return attention(lambda m, x: tuple(map(heads, cut(m.qkv(x)))), qkv=nn.Linear(256, 768))


def unbound(m: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return m.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)


def gated(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate, up = m.a(x).chunk(2, -1)
    return m.b(functional.silu(gate) * up)


def pooled(pool: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    layers = {"c": nn.Conv2d(3, 64, 3, padding=1), "n": nn.BatchNorm2d(64), "l": nn.Linear(64, 10)}
    return Model(lambda m, x: m.l(pool(functional.relu(m.n(m.c(x))))), **layers)


def stacked(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    both = torch.stack((m.a(x), m.b(x)))
    return m.c(both[0] * both[1])


SEPARATE = attention(
    lambda m, x: (heads(m.q(x)), heads(m.k(x)), heads(m.v(x))),
    **{n: nn.Linear(256, 256) for n in "qkv"},
)
THREE = {name: nn.Linear(256, 256) for name in "abc"}
MODELS = {
    "separate": SEPARATE,
    "chunk": joint(lambda x: x.chunk(3, -1)),
    "split": joint(lambda x: x.split(256, -1)),
    "slice": joint(lambda x: (x[..., :256], x[..., 256:512], x[..., 512:])),
    "unbind": attention(unbound, qkv=nn.Linear(256, 768)),
    "swiglu": Model(gated, a=nn.Linear(256, 2048), b=nn.Linear(1024, 256)),
    "swiglu of two": Model(
        lambda m, x: m.b(functional.silu(m.g(x)) * m.u(x)),
        g=nn.Linear(256, 1024),
        u=nn.Linear(256, 1024),
        b=nn.Linear(1024, 256),
    ),
    "mean": pooled(lambda x: x.mean((2, 3))),
    "pool": pooled(lambda x: functional.adaptive_avg_pool2d(x, 1).flatten(1)),
    "token": Model(
        lambda m, x: m.b(functional.relu(m.a(x))[:, 0]),
        a=nn.Linear(256, 256),
        b=nn.Linear(256, 256),
    ),
    "stack": Model(stacked, **THREE),
    "multi-head": Model(
        lambda m, x: m.a(x, x, x, need_weights=False)[0],
        a=nn.MultiheadAttention(256, HEADS, batch_first=True),
    ),
    "sequence first": Model(
        lambda m, x: m.b(m.a(x).transpose(0, 1).reshape(-1, 256)).view(64, 32, 256).transpose(0, 1),
        a=nn.Linear(256, 256),
        b=nn.Linear(256, 256),
    ),
    "chunks of the batch": Model(
        lambda m, x: m.b(torch.cat([m.a(part) for part in x.chunk(2)])),
        a=nn.Linear(256, 256),
        b=nn.Linear(256, 256),
    ),
    **{
        name: Model(
            lambda m, x: m.l(m.r(x)[0]), r=kind(256, 256, batch_first=True), l=nn.Linear(256, 256)
        )
        for name, kind in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN))
    },
    **{
        name: Model(
            (lambda m, x: m.e(x))
            if first
            else (lambda m, x: m.e(x.transpose(0, 1)).transpose(0, 1)),
            e=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(256, HEADS, 512, batch_first=first),
                1,
                enable_nested_tensor=False,
            ),
        )
        for name, first in (("encoder", True), ("encoder, sequence first", False))
    },
    "product": Model(lambda m, x: m.c(m.a(x) * m.b(x)), **THREE),
}


@cache
def graph_of(name: str) -> Graph:
    few = FEW_WORDS if name in ("lstm", "gru", "rnn") else WORDS
    shape = IMAGES if name in ("mean", "pool") else few
    step = torch.randn(shape), torch.zeros(shape[0], dtype=torch.int64)

    def loss(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = model(x)
        return functional.cross_entropy(scores if scores.dim() == 2 else scores.mean(1), labels)

    return read_graph(capture(MODELS[name], step, loss, name=name).graph)


@cache
def report_of(name: str) -> Report:
    return run(Scenario(graph_of(name), V100, COSTS, PARALLEL))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_whole_and_only_gradients_are_sent(name: str) -> None:
    graph = graph_of(name)
    shards = partition(graph, V100, PARALLEL, COSTS)
    parts = Counter(origin.op for origin in shards.origins.values() if origin.role == "shard")
    assert [op for op, count in parts.items() if count == 1] == []
    updated = [graph.ops[graph.index[op.inputs[0]]] for op in graph.ops if op.phase == "update"]
    gradients = sum(weight.outputs[0].bytes for weight in updated)
    rest = report_of(name).transfer_bytes - 2 * 3 * gradients  # beside a ring of four
    assert 0 <= rest < 1000  # the loss


@pytest.mark.parametrize("name", ["chunk", "split", "slice", "unbind"])
def test_joint_projections_are_as_fast_as_separate_ones(name: str) -> None:
    """Of the same weights, in fewer products; before, the rest of the layer ran on the first device
    alone.
    """
    sent = report_of("separate").transfer_bytes
    # the loss is added up differently
    assert report_of(name).transfer_bytes == pytest.approx(sent, abs=1000)
    assert report_of(name).step_ps <= 1.05 * report_of("separate").step_ps


@pytest.mark.parametrize(("name", "other"), [("swiglu", "swiglu of two"), ("stack", "product")])
def test_what_is_cut_apart_again_costs_little_more(name: str, other: str) -> None:
    assert report_of(name).step_ps <= 1.2 * report_of(other).step_ps


@pytest.mark.parametrize(
    "name",
    [
        *("chunk", "swiglu", "mean", "stack", "multi-head", "sequence first"),
        *("chunks of the batch", "lstm", "encoder, sequence first"),
    ],
)
def test_the_oracle_sees_through_views_too(name: str) -> None:
    oracle = Oracle(graph_of(name), V100, COSTS)
    assert (
        oracle(PARALLEL).step_ps == oracle.session(PARALLEL).cost.step_ps == report_of(name).step_ps
    )


def test_gradients_of_two_steps_are_added_up_before_they_are_sent() -> None:
    """A bias of an unrolled cell: its gradients are [1, n] where they are made, and [n] where they
    are added.
    """

    def call(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m.l(m.c(x[:, 1], m.c(x[:, 0])))

    model = Model(call, c=nn.GRUCell(256, 128), l=nn.Linear(128, 10))
    captured = capture(model, (torch.randn(WORDS),), lambda m, x: m(x).sum())
    shards = partition(read_graph(captured.graph), V100, PARALLEL, COSTS)
    assert not [name for name, origin in shards.origins.items() if origin.role == "sum"]


def test_what_stays_whole_is_listed_with_its_share_of_the_step() -> None:
    """Sums along the batch need all of it: the report says so."""

    def call(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m.b(m.a(x).cumsum(0))

    model = Model(call, a=nn.Linear(256, 256), b=nn.Linear(256, 256))
    captured = capture(model, (torch.randn(WORDS),), lambda m, x: m(x).sum())
    report = run(Scenario(read_graph(captured.graph), V100, COSTS, PARALLEL))
    rows = {one["op"]: one for one in report.to_json()["whole"]}
    assert "cumsum" in rows
    share = rows["cumsum"]["time_s"] / report.seconds
    assert 0 < share < 1
    assert rows["cumsum"]["share"] == pytest.approx(share)
    assert not {one.op for one in report.splits} & rows.keys()
    assert "Stays whole although it computes" in str(report)
    whole = sum(one.summed_ps for one in report.whole) / report.step_ps
    first = next(line for line in report.lines() if "is not split" in line)
    assert first.startswith(f"{whole:.0%} of the step is not split: ")
    assert "cumsum 5.2%" in first
    assert "whole" not in report_of("chunk").to_json()


def test_a_part_of_the_batch_writes_the_gradient_of_its_part_of_each_slice() -> None:
    """Half of the batch of 32: of 8 samples of a worker it is the first or last 4."""
    shards = partition(graph_of("chunks of the batch"), V100, PARALLEL, COSTS).graph
    ops = [op.attrs for op in shards.ops if op.kind == "slice_backward"]
    places = {(op["input_sizes"][0], op["start"], min(op["end"], 8)) for op in ops}
    assert places <= {(8, 0, 4), (8, 4, 8)}
