"""The page of a step tells what waits for hosts apart from bubbles, counts the devices that others
stand for, and says what the estimate rests on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simdev.execution.scenario import load_scenario
from simdev.report import Report, run
from simdev.report.page import Subject, read_subject, run_data

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


def hosted(ops: int = 20) -> Report:
    """A chain of ops of 1 us, each dispatched in 10 us."""
    chain = [
        {"name": f"op{i}", "time": "1 us", "host_time": "10 us"}
        | ({"inputs": [f"op{i - 1}"]} if i else {})
        | {"outputs": [{"bytes": 0}]}
        for i in range(ops)
    ]
    device = {"name": "gpu:0", "kind": "t4", "host": {"mode": "eager"}}
    parts = {"graph": {"ops": chain}, "cluster": {"devices": [device]}, "strategy": {"*": "gpu:0"}}
    return run(load_scenario(parts))


def test_a_device_that_waits_for_its_host_has_no_bubble() -> None:
    report = hosted()
    use = report.working[0]
    # The last op runs once everything is dispatched; each other runs beside the next dispatch.
    assert (report.step_ps, use.busy_ps, use.hosted_ps) == (201_000_000, 20_000_000, 181_000_000)
    assert (report.bubble, report.hosted) == (0, pytest.approx(181 / 201))
    assert report.idle == pytest.approx(report.bubble + report.exposed + report.hosted)
    assert "Bubble 0.0%, waiting for hosts 90.0%" in str(report)
    facts = dict(run_data(Subject("s", report), tables=False)["facts"])
    assert facts["waiting for hosts"] == "90.0%"


def test_the_page_says_what_the_estimate_rests_on() -> None:
    report = hosted()
    lines = [line for line in report.lines() if line.startswith(("Rests on", "LAUNCHES"))]
    assert len(lines) == 2
    assert set(lines) <= set(run_data(Subject("s", report), tables=False)["notes"])


def test_the_page_counts_the_devices_that_others_stand_for() -> None:
    subject = read_subject(str(SCENARIOS / "llama3-70b-64x-h100.json"))
    facts = dict(run_data(subject, tables=False)["facts"])
    assert facts["devices that compute"] == "64 of 64"
    assert facts["ops"].endswith(" on the 2 that stand for all")
