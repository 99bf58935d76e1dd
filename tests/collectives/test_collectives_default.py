"""One default of collectives: the fastest, with measured tables where they ship, by every door."""

from __future__ import annotations

from fractions import Fraction

import pytest

from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES, collective_model
from simdev.files import read_preset
from simdev.lowering import Prepared
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Collectives

MIB = 2**20
KINDS = [kind for kind in COLLECTIVES if kind != "p2p"]


def op_ps(preset: str, nodes: int, kind: str, ranks: int, size: int, **choice: str) -> int:
    cluster = read_preset(preset, nodes)
    prepared = Prepared(Graph("none", ()), cluster, CostModel(), collectives=Collectives(**choice))  # type: ignore[arg-type]
    devices = [i for i, device in enumerate(cluster.devices) if device.runs_ops][:ranks]
    return prepared.communicators.ring(kind, devices, size).duration_ps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("preset", "nodes", "ranks"), [("dgx-h100", 1, 8), ("dgx-h100", 2, 16), ("dgx-1v", 2, 16)]
)
def test_an_op_takes_what_a_large_model_takes(
    kind: str, preset: str, nodes: int, ranks: int
) -> None:
    cluster = read_preset(preset, nodes)
    model, devices = collective_model(cluster), cluster.workers[:ranks]
    for size in (1, 3 * MIB, 256 * MIB):
        assert op_ps(preset, nodes, kind, ranks, size) == model.cost(kind, devices, size).ps


def test_an_all_reduce_over_two_boxes() -> None:
    """256 MiB over two DGX-H100: 2.39 ms as the large models have it, 14.39 ms by one ring."""
    there = "dgx-h100", 2, "all_reduce", 16, 256 * MIB
    assert op_ps(*there) == 2_393_638_777
    assert op_ps(*there, algorithm="ring") == 14_394_375_840


def test_inside_a_node_the_shipped_table_counts_unless_a_closed_form_is_meant() -> None:
    there = "dgx-h100", 1, "all_reduce", 8, 256 * MIB
    (table,) = (
        t
        for t in collective_model(read_preset("dgx-h100")).tables
        if (t.collective, t.ranks) == ("all_reduce", 8)
    )
    assert Fraction(op_ps(*there), 10**12) == pytest.approx(table.seconds(256 * MIB), rel=1e-9)
    assert op_ps(*there, cost="table") == op_ps(*there)
    assert op_ps(*there, cost="closed") != op_ps(*there)
    assert op_ps(*there, algorithm="ring") == op_ps(*there, algorithm="ring", cost="closed")
