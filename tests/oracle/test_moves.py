"""Moves equal whole evaluations, from wherever they are simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import common
from simdev.nouns.cluster import QUEUES, TRANSFERS
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.oracle import Oracle
from simdev.oracle.placements.moves import FIRST, SAVED


def with_weights(graph: Graph, grouped: bool) -> Graph:
    """Every second op reads a weight of its own, all of them roots, some of no length; in groups
    where that is asked for.
    """
    ops: list[Op] = []
    for i in range(0, len(graph.ops), 2):
        name, time = f"w{i}", "0 us" if i % 10 == 0 else "3 us"
        group = f"group{i}" if grouped else None
        ops.append(Op(name, outputs=(Tensor(400_000),), time=time, colocate=group))
    for i, op in enumerate(graph.ops):
        group = f"group{i - i % 2}" if grouped and i % 6 < 3 else None
        weight = () if i % 2 else (f"w{i}",)
        ops.append(replace(op, inputs=(*weight, *op.inputs), colocate=group))
    return Graph("with weights", tuple(ops))


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("queues", [queues for queues in QUEUES if queues != "fair"])
@pytest.mark.parametrize("grouped", [False, True])
def test_moves_along_a_walk_equal_whole_evaluations(
    monkeypatch: pytest.MonkeyPatch, queues: str, transfer: str, grouped: bool
):
    """Also where so many are accepted that whole evaluations would be preferred."""
    for share in ("FEW", "SEVERAL"):
        monkeypatch.setattr(f"simdev.oracle.session.{share}", 2.0)
    prepared = common.layered(120, 4, queues, seed=5)
    cluster = replace(prepared.cluster, transfer=transfer)
    oracle = Oracle(with_weights(prepared.graph, grouped), cluster, cache=0)
    rng, units = np.random.default_rng(1), len(oracle.groups)
    placement = oracle.placement(rng.integers(0, 4, units)).copy()
    session, rows = oracle.session(placement), []
    for group, device, luck in zip(
        rng.integers(0, units, 250).tolist(),
        rng.integers(0, 4, 250).tolist(),
        rng.random(250).tolist(),
        strict=True,
    ):
        members = list(oracle.groups[group])
        before, placement[members] = placement[members[0]], device
        expected, kept = oracle.step_ps(placement), session.cost
        assert session.propose(group, device).step_ps == expected
        assert session._replayed
        if oracle.graph.ops[members[0]].inputs:
            rows.append(session._moves.base.columns.rows[FIRST])  # type: ignore[union-attr]
        if expected <= kept.step_ps or luck < 0.05:
            assert session.accept().step_ps == expected
        else:
            placement[members] = before
    saved = session._moves.base.columns.rows[SAVED]  # type: ignore[union-attr]
    # Weights come first: moves do not begin where what they read does.
    if queues == "parallel" and transfer != "multicast" and not grouped:
        assert np.median(rows) > saved / 3
