"""The C++ event loop of the benchmarks gives the oracle's step times."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import common, event_loop
from simdev.lowering import Prepared
from simdev.nouns.taskgraph import Ints
from simdev.oracle import Cost, Oracle
from simdev.oracle.placements.judging import BANKS, PROVEN

OPS = 200


@pytest.fixture(scope="module")
def loop() -> ctypes.CDLL:
    if event_loop.compiler() is None:
        pytest.skip("no C++ compiler")
    library = event_loop.library()
    assert library is not None
    return library


@pytest.mark.parametrize("queues", ["half-duplex", "parallel"])
@pytest.mark.parametrize("devices", [2, 5, 64])
def test_the_loop_equals_the_oracle(loop: ctypes.CDLL, queues: str, devices: int) -> None:
    prepared = common.layered(OPS, devices, queues, seed=devices)
    placements = common.random_placements(prepared, 10)
    most = sorted(totals(event_loop.with_memory(prepared, 1), one)[1] for one in placements)
    prepared = event_loop.with_memory(prepared, most[5])
    oracle, verdicts = event_loop.never_cached(prepared), set()
    peer = event_loop.EventLoop(loop, prepared)
    for placement in placements:
        assert peer.step_ps(placement) == oracle.step_ps(placement)
        proven = totals(prepared, placement)[0]
        assert peer.fit(placement) == (1 if proven else -1) * oracle.step_ps(placement)
        verdicts.add(proven)
    assert verdicts == {0, 1}


def totals(prepared: Prepared, placement: Ints) -> tuple[int, int]:
    """Whether the oracle's totals prove that a placement fits, and the largest of a device."""
    compiled = event_loop.never_cached(prepared).evaluator("fifo")
    assert compiled is not None
    assert isinstance(compiled.cost(placement), Cost)
    counted, shape = compiled._rooms.room.totals.columns, (BANKS, -1)
    total, most = counted.total.reshape(shape).sum(0), counted.most.reshape(shape).max(0)
    return int(counted.cell[PROVEN]), int((total + most).max())


def test_walks_are_of_one_op(loop: ctypes.CDLL) -> None:
    prepared = common.layered(OPS, 4, "parallel")
    oracle, start = Oracle(prepared.graph, prepared.cluster), common.random_placements(prepared)[0]
    blocks = list(event_loop.walked_blocks(oracle, start, 2, seed=0))
    assert [len(block) for block in blocks] == [common.PLACEMENTS] * 2
    assert (blocks[0][0] != start).sum() == 1
    assert oracle.step_ps(blocks[1][-1]) < oracle.step_ps(start)


def test_what_it_does_not_know_is_refused(loop: ctypes.CDLL) -> None:
    prepared = common.layered(OPS, 4, "parallel")
    multicast = replace(prepared.cluster, transfer="multicast")
    with pytest.raises(ValueError, match="no gaps"):
        event_loop.EventLoop(loop, Prepared(prepared.graph, multicast, prepared.costs))


def test_without_a_compiler_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(event_loop, "compiler", lambda: None)
    assert event_loop.run(event_loop.QUICK, said.append) == []
    assert said == ["skipped: no C++ compiler ($CXX, c++, g++, clang++)"]
