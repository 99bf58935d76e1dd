"""Laws of split strategies, on random splits of small training graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import Oracle
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, TRANSFERS
from simdev.nouns.taskgraph import COLLECTIVE
from simdev.oracle import cost_of
from worlds.costs import COSTS
from worlds.sharded import Case, make_case, require_flops, require_made_once, require_sent
from worlds.tape import drawn


@settings(max_examples=80)
@given(drawn(make_case))
def test_what_is_sent_is_what_is_needed_and_not_there(case: Case) -> None:
    require_sent(case)


@settings(max_examples=40)
@given(drawn(make_case))
def test_every_element_is_made_once_and_no_work_is_lost(case: Case) -> None:
    require_made_once(case)
    require_flops(case)


@pytest.mark.parametrize("queues", QUEUES)
@settings(max_examples=7)
@given(st.data())
def test_engines_agree_and_the_checker_accepts(queues: str, data: st.DataObject) -> None:
    """The checker replays memory as well; with every way to send a tensor to several readers."""
    case = data.draw(drawn(make_case, (queues,), TRANSFERS))
    trace = simulate(case.task_graph, "simpy")
    compiled = simulate(case.task_graph, "compiled")
    assert np.array_equal(trace.start, compiled.start)
    assert np.array_equal(trace.finish, compiled.finish)
    assert check(case.task_graph, trace) == ()
    assert Oracle(case.graph, case.cluster, COSTS)(case.strategy) == cost_of(trace)


@settings(max_examples=60)
@given(drawn(make_case, QUEUES))
def test_buckets_send_what_collectives_of_each_gradient_send(case: Case) -> None:
    """And engines, checker and oracle take them."""
    alone, together = (replace(case.strategy, sync=sync) for sync in ("all-reduce", "bucketed"))
    one, other = (
        lower(case.graph, case.cluster, COSTS, strategy) for strategy in (alone, together)
    )
    sizes = [
        sum(
            size
            for size, kind in zip(graph.tasks.bytes.tolist(), graph.tasks.kind, strict=True)
            if kind == COLLECTIVE
        )
        for graph in (one, other)
    ]
    assert sizes[0] == sizes[1]
    trace = simulate(other, "simpy")
    assert np.array_equal(trace.finish, simulate(other, "compiled").finish)
    assert check(other, trace) == ()
    assert Oracle(case.graph, case.cluster, COSTS)(together) == cost_of(trace)


@settings(max_examples=40)
@given(drawn(make_case, tuple(queues for queues in QUEUES if queues != "fair")))
def test_the_short_path_knows_views(case: Case) -> None:
    """A graph of shards is a graph: the oracle's kernels give its step time and every peak, views
    included.
    """
    oracle = Oracle(case.found.graph, case.cluster, COSTS)
    has_rings = any(op.kind == "all_reduce" for op in case.found.graph.ops)
    assert (oracle.evaluator("fifo") is None) == has_rings
    assert oracle(case.found.placement) == cost_of(simulate(case.task_graph, "simpy"))
