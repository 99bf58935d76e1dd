"""What dispatching costs, fitted to phases, to a whole step and to a trace."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.execution.scenario import graph_of, load_scenario
from simdev.ground.errors import InputError
from simdev.measure.calibrate import calibrate_host, read_host_times
from simdev.nouns.graph import Op
from worlds.scenarios import question, written

US = Fraction(1, 10**6)


def op(name: str, host_us: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "time": "2 us", "host_time": f"{host_us} us", **fields}


def scenario(tmp_path: Path, host_us: int = 10, device: str = "gpu") -> Path:
    """Three ops forward and one backward on a GPU that waits for its host."""
    ops = [op(name, host_us) for name in "abc"] + [op("d", 2 * host_us, phase="backward")]
    cluster = {"devices": [{"name": "gpu", "kind": device}], "host": {"mode": "eager"}}
    strategy = {"placement": {"*": "gpu"}, "order": "program"}
    value = question({"ops": ops}, cluster, strategy, options={"steps": "repeated"})
    return written(tmp_path / "s.json", value)


def host_us(ops: tuple[Op, ...]) -> list[float]:
    return [float(op.host_seconds_on("gpu") or 0) * 1e6 for op in ops]


def test_phases_are_scaled_to_those_that_were_measured(tmp_path: Path) -> None:
    times = read_host_times(
        written(tmp_path / "measured.json", {"host_ms": {"forward": 0.06, "backward": 0.01}})
    )
    found = calibrate_host(load_scenario(scenario(tmp_path)), times)
    assert host_us(graph_of(found.scenario).ops) == pytest.approx([20, 20, 20, 10])
    assert found.phases["forward"] == pytest.approx((60e-6, 30e-6, 60e-6))
    assert found.step_s[1:] == pytest.approx((50e-6, 70e-6))


def test_one_factor_brings_the_step_to_its_time(tmp_path: Path) -> None:
    times = read_host_times(written(tmp_path / "measured.json", {"wall_s": 75e-6}))
    found = calibrate_host(load_scenario(scenario(tmp_path)), times)
    assert host_us(graph_of(found.scenario).ops) == pytest.approx([15, 15, 15, 30], rel=1e-3)
    assert found.step_s[2] == pytest.approx(75e-6, rel=1e-3)


def test_dispatches_of_a_trace_tell_their_ops(tmp_path: Path) -> None:
    events = [
        {"name": f"dispatch {name}", "ph": "X", "ts": ts, "dur": dur}
        for name, ts, dur in (("a", 0, 7), ("b", 10, 8), ("a", 100, 9))
    ]
    times = read_host_times(written(tmp_path / "measured.json", {"traceEvents": events}))
    found = calibrate_host(load_scenario(scenario(tmp_path)), times)
    assert host_us(graph_of(found.scenario).ops) == pytest.approx([8, 8, 10, 20])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"host_ms": {"forwards": 1}}, "must be an object of times by phase"),
        ({"host_s": {"forward": -1}}, r"host_s\.forward: must be a number above 0"),
        ({"wall_s": "7 ms"}, "wall_s: "),
        ({"wall_s": 1e30}, "wall_s: is larger than 53 days"),
        ({"wall_s": 5e6}, "wall_s: is larger than 53 days"),
        ({"host_ms": {"forward": 5e9}}, r"host_ms\.forward: is larger than 53 days"),
        ({"host_ms": {"forward": True}}, r"host_ms\.forward: must be a number, got True"),
        ({"host_ms": {}}, "host_ms: tells the time of no phase"),
        ({"host_s": {}, "wall_s": 1}, "host_s: tells the time of no phase"),
        ({"host_ms": None}, "host_ms: must be an object of times by phase .*, got null"),
        ({"host_ms": {"forward": 1}, "host_s": {"forward": 1}}, "host_ms, host_s: the same times"),
        ({"traceEvents": [{"name": "a", "ph": "X", "ts": 0, "dur": 1}]}, "tells no host"),
    ],
)
def test_files_that_tell_no_host_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_host_times(written(tmp_path / "measured.json", value))


def test_what_tells_nothing_of_the_host_is_refused(tmp_path: Path) -> None:
    given = load_scenario(scenario(tmp_path))
    for value, message in (
        ({"wall_s": 5e-6}, "the devices alone need longer"),
        ({"wall_s": 75}, "64 times slower take less"),
        ({"host_ms": {"update": 1}}, r"measured\.json: host_ms\.update: no op of this phase"),
        (
            {"traceEvents": [{"name": "dispatch z", "ph": "X", "ts": 0, "dur": 1}]},
            'measured.json: no span "dispatch OP" bears the name of an op: the trace has '
            '"dispatch z", the scenario the op "a"',
        ),
    ):
        with pytest.raises(InputError, match=message):
            calibrate_host(given, read_host_times(written(tmp_path / "measured.json", value)))
    bare = load_scenario(scenario(tmp_path, host_us=0))
    with pytest.raises(InputError, match="no device has a host of which anything is known"):
        calibrate_host(bare, read_host_times(written(tmp_path / "measured.json", {"wall_s": 1})))


@pytest.mark.parametrize(
    ("mode", "message"),
    [("graph", "hosts that replay graphs dispatch no ops"), ("none", "no device has a host")],
)
@pytest.mark.parametrize("value", [{"wall_s": 75e-6}, {"host_s": {"forward": 1e-4}}])
def test_hosts_that_dispatch_no_ops_are_refused(
    tmp_path: Path, mode: str, message: str, value: Any
) -> None:
    path = scenario(tmp_path)
    path.write_text(path.read_text().replace('"eager"', f'"{mode}"'))
    with pytest.raises(InputError, match=message):
        calibrate_host(
            load_scenario(path), read_host_times(written(tmp_path / "measured.json", value))
        )


def test_the_command_writes_a_scenario_that_lasts_as_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = written(tmp_path / "measured.json", {"host_ms": {"forward": 0.06, "backward": 0.01}})
    out = tmp_path / "out.json"
    files = [str(scenario(tmp_path)), str(measured)]
    assert main(["calibrate", *files, "--fit", "host", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "forward" in text
    assert "+0.00%" in text
    assert main(["simulate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(70e-6)
