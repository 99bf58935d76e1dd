"""Scenario and run: the question as a value, the answer as a Report; and the front door of the
package.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import simdev
from bad.profiles import ROW
from bad.scenarios import CLUSTER, GRAPH, scenario
from simdev import CostModel, Graph, InputError, Op, Scenario, Strategy, load_scenario, run
from simdev.costs import Profile, Row
from simdev.execution.engine import ENGINES
from simdev.execution.scenario import execute
from simdev.files import read_cluster


def test_a_scenario_of_three_inline_parts() -> None:
    """a and b take 1 us each; 8 bytes at 1 GB/s take 8 ns between them."""
    found = load_scenario(
        {"version": 1, "graph": GRAPH, "cluster": CLUSTER, "strategy": {"a": "gpu:0", "b": "gpu:1"}}
    )
    assert (found.graph.name, found.cluster.name, found.engine) == ("graph", "cluster", "auto")
    report = run(found)
    assert report.step_ps == 2_008_000
    assert report.costs == {"given": 1.0}
    assert report.feasible


def test_a_scenario_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(
        scenario(options={"engine": "simpy"}, name="small", provenance={"by": "hand"})
    )
    found = load_scenario(tmp_path / "s.json")
    assert found.engine == "simpy"
    assert run(found).engine == "simpy"
    assert run(found).step_ps == 2_000_000


def test_scenarios_are_values() -> None:
    found = load_scenario(json.loads(scenario()))
    assert found == load_scenario(json.loads(scenario()))
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_the_same_answer(engine: str) -> None:
    found = load_scenario(json.loads(scenario(options={"engine": engine})))
    assert run(found).step_ps == 2_000_000


def test_an_engine_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdev.execution.engine.ENGINES", ("simpy",))
    message = (
        r'^options\.engine: "compiled" is not available in this version of simdev; there '
        r"are auto, simpy$"
    )
    with pytest.raises(InputError, match=message):
        load_scenario(json.loads(scenario(options={"engine": "compiled"})))


def test_rungs_share_the_op_time() -> None:
    """3 us measured, 1 us from a model, 4 us given in the graph."""
    bare = ROW | {"in": [], "dt": [], "out": [], "dev": "gpu"}
    rows = [
        bare | {"op": "m", "t_ns": {"p50": 3000}},
        bare | {"op": "f", "t_ns": {"p50": 1000}, "src": "model:mine"},
    ]
    ops = [{"name": "a", "kind": "m"}, {"name": "b", "kind": "f"}, {"name": "c", "time": "4 us"}]
    parts = json.loads(
        scenario(graph={"ops": ops}, profile=[{"rows": rows[:1]}, {"rows": rows[1:]}])
    )
    outcome = execute(load_scenario(parts))
    assert outcome.rungs == {"given": 0.5, "measured": 0.375, "fitted": 0.125}
    assert outcome.trace.end_ps == 8_000_000


def test_the_first_profile_that_knows_an_op_answers() -> None:
    rows = [
        ROW | {"in": [], "dt": [], "out": [], "dev": "gpu", "t_ns": {"p50": median}}
        for median in (1000, 9000)
    ]
    parts = json.loads(
        scenario(
            graph={"ops": [{"name": "a", "kind": "matmul"}]},
            profile=[{"rows": [one]} for one in rows],
        )
    )
    assert run(load_scenario(parts)).step_ps == 1_000_000


def test_an_empty_graph_takes_no_time() -> None:
    report = run(load_scenario(json.loads(scenario(graph={"ops": []}, strategy={}))))
    assert (report.step_ps, report.costs, report.feasible) == (0, {}, True)


def test_a_step_that_does_not_fit_is_an_answer() -> None:
    cluster = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 5}]}
    report = run(load_scenario(json.loads(scenario(cluster=cluster))))
    assert not report.feasible
    assert report.memory_excess == 3
    with pytest.raises(simdev.ground.errors.OutOfMemoryError):  # type: ignore[attr-defined]
        report.require_feasible()


def test_a_scenario_can_be_made_without_files() -> None:
    graph = Graph("g", (Op("a", "matmul"),))
    key = '["gpu","matmul","fwd",{},[],[],[]]'
    costs = CostModel((Profile.of_rows({}, [Row(key, simdev.ground.units.parse_time("7 us"))]),))  # type: ignore[attr-defined]
    found = Scenario(graph, read_cluster(CLUSTER), costs, Strategy({"a": "gpu:1"}))
    assert run(found).step_ps == 7_000_000


def test_the_front_door_opens_every_name() -> None:
    opened = [name for name in simdev.__all__ if name != "__version__"]
    assert 12 <= len(opened) <= 21  # few enough to read at a glance
    for name in opened:
        assert getattr(simdev, name).__module__.startswith("simdev."), name
    assert set(simdev.__all__) <= set(dir(simdev))
    assert simdev.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = simdev.nothing  # type: ignore[attr-defined]


def test_importing_simdev_loads_nothing_that_is_slow_to_load() -> None:
    code = "import sys, simdev; print(*sys.modules, sep='\\n')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    loaded = set(result.stdout.split())
    assert not loaded & {
        "numpy",
        "pandas",
        "simpy",
        "networkx",
        "matplotlib",
        "pydantic",
        "scipy",
        "numba",
        "torch",
    }
    assert {name for name in loaded if name.startswith("simdev")} == {
        "simdev",
        "simdev.ground",
        "simdev.ground.registry",
        "simdev.ground.version",
    }
