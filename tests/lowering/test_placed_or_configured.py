"""A configuration that changes nothing changes nothing: an op in one part on a device is an op that
is placed there, whatever it reads of its operands.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings

from op_examples import examples
from simdev import Oracle
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.nouns.strategy import Configuration, Order, Strategy
from worlds.costs import COSTS
from worlds.graphs import leaf, tensor
from worlds.scenarios import make_world
from worlds.split_graphs import DEVICES, cluster, graphs
from worlds.tape import Tape, drawn

Question = tuple[Graph, Cluster, CostModel, Strategy, Strategy]
"""With a strategy that places every op, and one that configures some of these instead."""


@cache
def models() -> tuple[Graph, ...]:
    small = {"batch": 4, "length": 3, "hidden": 16, "vocabulary": 40}
    return build("lenet", batch=4), build("rnnlm", **small), build("gnmt-2", **small)


def configured(tape: Tape, strategy: Strategy) -> Strategy:
    """Some ops configured in place of placed: in one part, on their device."""
    names = [name for name in strategy.placement if tape.pick(False, True)]
    return replace(
        strategy,
        placement={n: d for n, d in strategy.placement.items() if n not in names},
        partition={n: Configuration(devices=(strategy.placement[n],)) for n in names},
    )


def make_question(tape: Tape) -> Question:
    """Random graphs of ops that nobody knows, small graphs with their backward, and models."""
    which = tape.number(5)
    if which < 2:
        world = make_world(tape, ("fifo", "priority", "program"), QUEUES, TRANSFERS)
        graph, own, costs, strategy = world.graph, world.cluster, CostModel(), world.strategy
    else:
        graph, costs = tape.pick(*(models() if which == 2 else graphs())), COSTS
        own = replace(cluster(tape.pick(*QUEUES)), transfer=tape.pick(*TRANSFERS))
        group: dict[str, str] = {}
        placement = {
            op.name: group.setdefault(op.colocate or op.name, f"gpu:{tape.number(DEVICES)}")
            for op in graph.ops
        }
        priority = Order("priority", {op.name: tape.number(3) for op in graph.ops})
        strategy = Strategy(placement, tape.pick(Order(), Order("program"), priority))
    return graph, own, costs, strategy, configured(tape, strategy)


def answer(graph: Graph, own: Cluster, costs: CostModel, strategy: Strategy) -> list[object]:
    """Tasks, buffers and trace."""
    task_graph = lower(graph, own, costs, strategy)
    trace = simulate(task_graph)
    columns = [
        getattr(table, field.name)
        for table in (task_graph.tasks, task_graph.buffers)
        for field in fields(table)
    ]
    plain = [c.tolist() if isinstance(c, np.ndarray) else repr(c) for c in columns]
    return [plain, trace.start.tolist(), trace.finish.tolist(), trace.end_ps]


@settings(max_examples=1000, deadline=None)
@given(drawn(make_question))
def test_an_op_in_one_part_is_an_op_that_is_placed(question: Question) -> None:
    *asked, plain, some = question
    assert answer(*asked, some) == answer(*asked, plain)


@settings(max_examples=100, deadline=None)
@given(drawn(make_question))
def test_the_oracle_says_so_too(question: Question) -> None:
    graph, own, costs, plain, some = question
    oracle = Oracle(graph, own, costs)
    expected = oracle(plain)
    assert oracle(some) == expected
    assert oracle.session(some).cost.step_ps == expected.step_ps


SHARES = {"all_gather_copy_in": (None, 0)}
"""Kinds with outputs that are the memory of an earlier one."""


@pytest.mark.parametrize("kind", examples())
def test_ops_of_all_kinds_read_what_they_read_where_they_are_placed(kind: str) -> None:
    call = examples()[kind]
    leaves = [leaf(f"x{i}", *shape) for i, shape in enumerate(call.inputs)]
    shares = SHARES.get(kind, (None,) * len(call.outputs))
    made = tuple(
        Tensor(4 * prod(shape), shape, "float32", view_of)
        for shape, view_of in zip(call.outputs, shares, strict=True)
    )
    names = tuple(op.name for op in leaves)
    op = Op("op", kind, inputs=names, outputs=made, attrs=call.attrs, time="3 us")
    graph = Graph(kind, (*leaves, op))
    place = {name: f"gpu:{1 + i % 2}" for i, name in enumerate(names)} | {"op": "gpu:0"}
    without = {name: device for name, device in place.items() if name != "op"}
    some = Strategy(without, partition={"op": Configuration(devices=("gpu:0",))})
    assert answer(graph, cluster(), COSTS, some) == answer(graph, cluster(), COSTS, Strategy(place))


def pooled(batch: int = 4) -> Graph:
    """A pool, and what looks at shapes: its backward, ones like the loss, zeros of another
    shape.
    """
    window = {"kernel_size": [2, 2], "stride": [2, 2]}
    x, y, loss = tensor(batch, 2, 8, 8), tensor(batch, 2, 4, 4), tensor()
    return Graph(
        "pooled",
        (
            leaf("x", batch, 2, 8, 8),
            Op("act", "relu", inputs=("x",), outputs=(x,)),
            Op("pool", "avg_pool2d", inputs=("act",), outputs=(y,), attrs=window),
            Op("state", "zeros", inputs=("act",), outputs=(tensor(2, 4, 4),)),
            Op("sum", "add", inputs=("pool", "state"), outputs=(y,)),
            Op("loss", "sum", inputs=("sum",), outputs=(loss,)),
            Op("one", "ones_like", "backward", ("loss",), outputs=(loss,)),
            Op("dsum", "mul", "backward", ("sum", "one"), outputs=(y,)),
            Op(
                "dact",
                "avg_pool2d_backward",
                "backward",
                ("dsum", "act"),
                outputs=(x,),
                attrs=window,
            ),
        ),
    )


def test_shapes_are_read_where_parts_are_and_send_nothing() -> None:
    """The pool's backward reads its part, ones like a loss in partial results that of its own
    device, zeros of another shape any part: as workers of data parallelism do.
    """
    devices = tuple(f"gpu:{d}" for d in range(DEVICES))
    strategy = Strategy(partition={"x": Configuration({"d0": DEVICES}, devices)})
    task_graph = lower(pooled(), cluster(), COSTS, strategy)
    tasks = task_graph.tasks
    assert set(tasks.kind) == {"forward", "backward"}
    place = {name: task for task, name in enumerate(tasks.name)}
    for d in range(DEVICES):
        behind = tasks.successors[place[f"act#{d}"]].tolist()
        assert {place[f"dact#{d}"], place[f"pool#{d}"], place[f"state#{d}"]} <= set(behind)
        assert place[f"one#{d}"] in tasks.successors[place[f"loss#{d}"]].tolist()
    session = Oracle(pooled(), cluster(), COSTS).session(strategy)
    assert session.cost.step_ps == simulate(task_graph).end_ps
