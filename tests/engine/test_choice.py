"""Which engine executes: the named one does, and large graphs go to compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from simdev.execution import engine
from simdev.ground.errors import DeadlockError
from worlds.programs import T, program


@pytest.mark.parametrize("name", engine.ENGINES)
def test_the_named_engine_executes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else engines would agree because one of them answered twice."""
    module = {"simpy": "simpy_engine"}.get(name, name)
    answer = np.array([7]), np.array([9])
    monkeypatch.setattr(f"simdev.execution.engine.{module}.execute", lambda graph: answer)
    trace = engine.simulate(program([T("a", 2)]), name)
    assert (trace.start.tolist(), trace.finish.tolist(), trace.engine) == ([7], [9], name)
    for other in set(engine.ENGINES) - {name}:
        assert engine.simulate(program([T("a", 2)]), other).finish.tolist() == [2]


def test_large_graphs_are_compiled() -> None:
    assert engine.choose("auto", engine.WORTH_COMPILING) == "compiled"
    assert engine.choose("auto", engine.WORTH_COMPILING - 1) == "simpy"
    assert [engine.choose(name, 1) for name in engine.ENGINES] == list(engine.ENGINES)


def test_a_deadlock_names_only_what_did_not_run() -> None:
    """b waits for c, which comes after it in the queue; a, which began at 0, is over."""
    tasks = [T("a", 2), T("b", 1, "q", "a c"), T("c", 1, "q")]
    with pytest.raises(DeadlockError) as caught:
        engine.simulate(program(tasks, sequence={"q": "b c"}))
    assert '"b" waits for "c"' in str(caught.value)
    assert 'for "a"' not in str(caught.value)
