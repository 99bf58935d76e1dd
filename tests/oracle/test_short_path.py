"""Answers of the compiled kernels themselves, which an oracle would else get from lowering."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Host, Link
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Configuration, Strategy
from simdev.oracle import cost_of
from simdev.oracle.splits.evaluator import SplitEvaluator
from worlds.clusters import devices, joined
from worlds.costs import COSTS
from worlds.graphs import op
from worlds.scenarios import World, oracle_of
from worlds.split_graphs import cluster, convolutions


def in_line() -> World:
    """Five ops, one behind the other, on three devices."""
    sizes = enumerate((2, 1, 2, 2, 0))
    ops = [op(f"o{i}", i + 1, *[f"o{i - 1}"] * (i > 0), size=size) for i, size in sizes]
    return World.of(ops, joined(3, "device"), [0] * 5)


def test_whatever_is_joined_takes_the_short_path():
    """Bytes go up alone: nobody else is refused for that."""
    links = [Link((f"g{d}", f"g{d + 1}"), 1, duplex="simplex") for d in range(2)]
    world = in_line().but(cluster=Cluster("up", tuple(devices(3)), tuple(links)))
    oracle = oracle_of(world)
    short = oracle.evaluator("fifo")
    assert short is not None
    for form in ([0, 1, 1, 2, 2], [0, 0, 0, 2, 2], [2, 2, 2, 2, 2]):
        assert short.cost(np.array(form)) == oracle.in_full(oracle.strategy(form))
    assert short.cost(np.array([0, 0, 1, 0, 0])) is None


def test_a_group_that_is_split_is_refused_where_ops_run_anywhere():
    world = in_line().with_ops(lambda one: replace(one, colocate="x" if one.name < "o2" else None))
    with pytest.raises(InputError, match='group "x" is split over g0, g1'):
        oracle_of(world)([0, 1, 1, 1, 1])


def test_peaks_may_be_looked_at_in_any_order():
    """An evaluation soon after peaks were looked at notes when everything happened. Peaks of an
    earlier answer write other notes there, which must not pass for its own.
    """
    oracle = oracle_of(in_line(), cache=0)
    second, forms = [0, 0, 1, 1, 0], ([0, 1, 2, 2, 2], [0, 0, 1, 1, 0], [2, 1, 1, 0, 2])
    answers = [oracle(form) for form in forms]
    peaks = [oracle.in_full(oracle.strategy(form)).peaks for form in forms]
    assert len(set(peaks)) == 3
    assert answers[0].peaks == peaks[0]
    noted = oracle(second)
    assert answers[2].peaks == peaks[2]
    assert noted.peaks == peaks[1]


def test_what_takes_no_time_keeps_any_limit():
    world = World.of([op("a", 0), op("b", 0)], joined(2), [0, 0])
    assert oracle_of(world).session([0, 0]).propose("b", "g1", limit=0.0) is not None


@pytest.mark.parametrize("host", [None, Host(ahead=2, threads="node"), Host()])
def test_parts_keep_the_order_of_their_devices_however_they_are_listed(host: Host | None):
    """One thread for all: which part is dispatched first is seen in the step time."""
    ops = (replace(op, host_time=f"{5 + i} us") for i, op in enumerate(convolutions().ops))
    oracle = Oracle(Graph("net", tuple(ops)), replace(cluster("device"), host=host), COSTS)
    there = "gpu:1", "gpu:0"
    batch, rows = Configuration({"n": 2}, there), Configuration({"d0": 2}, there)
    strategy = Strategy({"x": "gpu:0"}, partition={"conv1": batch, "relu1": rows, "conv2": batch})
    split = SplitEvaluator(oracle.prepared).start(strategy)
    assert split is not None
    assert split.cost() == cost_of(oracle.trace(strategy))
