"""Baechi's own simulator on its measured GNMT graph (peers/baechi_gnmt) against simdev.

``parallel`` is the same model up to rounding: Baechi rounds every transfer to a microsecond. Its
sequential mode is near ``half-duplex`` but not the same: it books a channel when an op is popped
from one global list, possibly before transfers that are ready earlier, and lets the two ends of a
transfer run at different times; simdev serves transfers when they are ready and holds both ends
together.
"""

from __future__ import annotations

import pytest

from benchmarks import common
from simdev.execution.engine import simulate
from simdev.lowering.build import build
from worlds.measured_gnmt import golden

PLACEMENTS = ["single", "random4_seed0", "block4", "m_etf"]


def step_us(queues: str, placement: str) -> float:
    prepared, place = common.gnmt(queues), golden()[placement]["placement"]
    task_graph = build(prepared, [place[int(op.name[2:])] for op in prepared.graph.ops]).task_graph
    return simulate(task_graph, "simpy").end_ps / 1e6


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parallel_agrees_to_the_rounding_of_transfers(placement):
    peer = golden()[placement]["parallel_makespan_us"]
    mine = step_us("parallel", placement)
    print(f"{placement}: parallel {mine:.3f} us, Baechi {peer} us ({mine / peer - 1:+.5%})")
    assert mine == pytest.approx(peer, rel=2e-4)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_half_duplex_is_near_the_sequential_mode(placement):
    peer = golden()[placement]["sequential_makespan_us"]
    mine = step_us("half-duplex", placement)
    print(
        f"{placement}: half-duplex {mine:.3f} us, Baechi sequential {peer} us "
        f"({mine / peer - 1:+.2%})"
    )
    assert 0.955 <= mine / peer <= 1.185
