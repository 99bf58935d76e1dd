"""Calibration where steps follow one another: a period is compared with a period."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from simdev import Scenario
from simdev.costs import CostModel
from simdev.execution.period import step_time_ps
from simdev.execution.scenario import execute
from simdev.files import write_run
from simdev.ground.errors import InputError
from simdev.measure.calibrate import Measured, calibrate, calibration_text, read_measured
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.trace import Trace
from simdev.report.export import export_chrome_trace

MS = 10**9


def repeated(host: Host | None = None) -> Scenario:
    """An op of 2 ms sends for 1 ms to another of 3 ms, which the next step overlaps."""
    ops = (
        Op("first", outputs=(Tensor(1_000_000),), time="2 ms", host_time="10 us"),
        Op("second", inputs=("first",), outputs=(Tensor(1),), time="3 ms", host_time="10 us"),
    )
    devices = [Device("gpu:0", "gpu", host=host), Device("gpu:1", "gpu", host=host)]
    cluster = Cluster.all_to_all("c", devices, bandwidth="1 GB/s")
    strategy = Strategy({"first": "gpu:0", "second": "gpu:1"})
    return Scenario(Graph("g", ops), cluster, CostModel(), strategy, steps="repeated")


@pytest.mark.parametrize("written", [write_run, export_chrome_trace])
@pytest.mark.parametrize("host", [None, Host()])
def test_the_period_of_simulated_steps_is_the_period(
    tmp_path: Path, host: Host | None, written: Callable[[Trace, Path], None]
) -> None:
    scenario = repeated(host)
    trace = execute(scenario).trace
    assert trace.end_ps > 3 * step_time_ps(trace)
    written(trace, tmp_path / "trace.json")
    calibration = calibrate(scenario, read_measured(tmp_path / "trace.json"))
    period = step_time_ps(trace) / 10**12
    assert calibration.steps_s == (period,)
    assert calibration.before_s == calibration.fitted_s == period
    assert all(residual.residual_s == 0 for residual in calibration.residuals)
    # Tasks of later steps are tasks.
    assert not calibration.strangers
    assert "no task" not in calibration_text(calibration)


def test_the_period_of_steps_told_apart_by_time_is_the_mean_of_the_later_ones() -> None:
    """Ends at 6, 9, 13, 16 ms: of 3, 4 and 3 ms the last is left out, and the first half too."""
    ends = [6, 9, 13, 16]
    spans = {
        "first": tuple(((end - 6) * MS, (end - 4) * MS) for end in ends),
        "first:0>gpu:1": tuple(((end - 4) * MS, (end - 3) * MS) for end in ends),
        "second": tuple(((end - 3) * MS, end * MS) for end in ends),
    }
    assert calibrate(repeated(), Measured(spans)).steps_s == (4e-3,)


def test_fewer_than_three_steps_tell_no_period() -> None:
    measured = Measured({"first": ((0, 2 * MS),), "second": ((3 * MS, 6 * MS),)}, "one.json")
    with pytest.raises(InputError) as error:
        calibrate(repeated(), measured)
    assert str(error.value) == (
        "one.json: the steps of the scenario follow one another, and the trace holds 1: "
        "no fewer than 3 tell a period"
    )
