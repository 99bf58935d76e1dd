"""Calls into solvers that do not listen, and programs that trouble them."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from math import inf

import pytest

from forks import ring
from simdev import Oracle
from simdev.ground.errors import SimdevError
from simdev.nouns.graph import Graph
from simdev.search import search, solver
from simdev.search.maxload.placers import integer_program, latency_program
from simdev.search.maxload.problem import MaxLoadProblem
from simdev.search.solver import attended
from waiting import HANGS

# Calls that do not listen


def test_what_a_call_returns_or_raises_comes_through():
    assert attended(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        attended(lambda: 1 / 0)


def test_a_call_that_goes_on_is_waited_for_no_more(monkeypatch):
    monkeypatch.setattr(solver, "GRACE", 0.0)
    monkeypatch.setattr(solver, "LOOK", 0.01)
    going_on = threading.Event()
    assert attended(lambda: going_on.wait(HANGS), seconds=0.02) is None
    going_on.set()


def test_an_interrupt_ends_the_wait(monkeypatch):
    monkeypatch.setattr(solver, "LOOK", 0.01)
    going_on = threading.Event()

    def call() -> None:
        signal.raise_signal(signal.SIGINT)
        going_on.wait(HANGS)

    # A parent in the background may have it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            attended(call)
    finally:
        signal.signal(signal.SIGINT, before)
        going_on.set()


# The solver's trouble

TROUBLING = MaxLoadProblem(  # on which HiGHS 1.12 ends with "Solve error" after its presolve
    on_accelerator=(53.11042367293892, 61.63051579580237, 1.0),
    on_cpu=(inf,) * 3,
    cost=(0.0001, 0.0, 0.0),
    size=(0, 2, 3),
    readers=((), (2,), ()),
    backward=(False,) * 3,
    group=(0, 1, 2),
    accelerators=(0, 1, 2),
    cpus=(),
    capacity=12,
)


def test_a_program_that_troubles_the_solver_is_solved_all_the_same():
    pytest.importorskip("scipy")
    found = latency_program(TROUBLING, 20)
    assert found.failure is None
    assert found.value_ms == pytest.approx(62.63051579580237)


def test_a_solver_that_fails_is_told_of(monkeypatch):
    optimize = pytest.importorskip("scipy.optimize")
    failed = optimize.OptimizeResult(status=4, x=None, mip_dual_bound=None, message="Solve error")
    monkeypatch.setattr(optimize, "milp", lambda *args, **options: failed)
    assert "Solve error" in latency_program(TROUBLING, 20).failure
    assert "Solve error" in integer_program(TROUBLING, 20).failure
    assert "Solve error" in search(ring(), "dnn-ip").details["solver"]
    alone = ring(4, 2, memory=40, size=0)
    ops = [
        replace(one, param_bytes=held)
        for one, held in zip(alone.graph.ops, (30, 20, 10, 20), strict=True)
    ]
    with pytest.raises(SimdevError, match="Solve error"):
        search(Oracle(Graph("held", tuple(ops)), alone.cluster), "dnn-ip")
