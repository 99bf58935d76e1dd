"""What reports tell of hosts: blame, the share that launches hold, their rows, what if faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simdev.nouns.cluster import Host
from simdev.nouns.graph import Graph
from simdev.report import Report, run
from simdev.report.figures import plot_gantt
from simdev.report.measures.spans import timeline_rows
from simdev.report.whatif import what_ifs
from worlds.graphs import chain
from worlds.scenarios import alone

US = 10**6
EAGER = Host()


def row(host_us: int | None, device_us: int) -> Graph:
    """Ten ops one after another, each of so many us on the host and on its device."""
    host_time = None if host_us is None else f"{host_us} us"
    return chain(*[device_us * US] * 10, size=4, host_time=host_time)


def told(host_us: int | None, device_us: int, host: Host | None = EAGER) -> Report:
    return run(alone(row(host_us, device_us), host=host))


def test_what_a_host_holds_is_blamed_on_launches() -> None:
    report = told(10, 2)
    assert report.step_ps == 102 * US
    assert report.blame["launch"] == 100 * US
    assert report.blame["compute"] == 2 * US
    assert sum(report.blame.values()) == report.step_ps
    assert report.held == pytest.approx(100 / 102)
    assert "LAUNCHES HOLD 98% of the step" in str(report)
    (use,) = report.hosts
    assert (use.name, use.dispatches, use.busy_ps) == ("thread gpu:0", 10, 100 * US)
    figures = report.to_json()["host"]
    assert figures["threads"]["thread gpu:0"]["busy_s"] == pytest.approx(1e-4)
    assert (figures["dispatches"], figures["unknown"]) == (10, 0)


def test_a_replayed_graph_is_one_dispatch() -> None:
    figures = told(10, 2, Host("graph")).to_json()["host"]
    assert figures["dispatches"] == figures["threads"]["thread gpu:0"]["dispatches"] == 1


def test_a_host_that_keeps_ahead_is_blamed_for_its_first_launch_alone() -> None:
    report = told(2, 10)
    assert report.blame["launch"] == 2 * US
    assert "LAUNCHES HOLD" not in str(report)


def test_dispatching_is_neither_computing_nor_communication() -> None:
    report = told(10, 2)
    (device,) = report.devices
    assert (device.ops, device.busy_ps, device.exposed_ps) == (10, 20 * US, 0)
    assert report.transfer_count == 0
    assert not any(link.name.startswith("thread") for link in report.links)


def test_a_host_has_a_row_under_its_device() -> None:
    report = told(10, 2)
    rows = [(row.name, row.computes) for row in timeline_rows(report.trace)]
    assert rows == [("gpu:0", True), ("thread gpu:0", False)]
    labels = [label.get_text() for label in plot_gantt(report.trace).get_yticklabels()]
    assert any("thread gpu:0" in label for label in labels)


def test_unknown_host_times_are_told_on_the_first_screen() -> None:
    report = told(None, 2)
    assert report.step_ps == 20 * US
    assert "HOST TIMES UNKNOWN of 10 of 10 dispatches: they count 0." in "\n".join(report.lines())


@pytest.mark.parametrize(
    ("kind", "device_us", "host", "told"),
    [
        ("gpu", 2, None, True),
        ("gpu", 200, None, False),
        ("host-cpu", 2, None, False),
        ("gpu", 2, Host("graph"), False),
    ],
)
def test_short_ops_without_a_host_say_so(
    kind: str, device_us: float, host: Host | None, told: bool
) -> None:
    lines = "\n".join(run(alone(row(None, device_us), kind, host)).lines())
    assert ("NO HOST IS MODELLED: ops take 2 us on average" in lines) == told


@pytest.mark.parametrize("host", [Host(), Host(ahead=2), Host("graph", launch="40 us")])
@pytest.mark.parametrize("steps", ["once", "repeated"])
def test_hosts_twice_as_fast_are_a_run_of_the_changed_scenario(host: Host, steps: str) -> None:
    question = replace(alone(row(10, 6), host=host), steps=steps)
    answers = {(a.kind, a.name): a for a in what_ifs(run(question), scenario=question)}
    faster = replace(host, launch="20 us") if host.mode == "graph" else host
    changed = replace(alone(row(5, 6), host=faster), steps=steps)
    assert answers["hosts", "all"].step_ps == run(changed).step_ps


def test_without_hosts_nothing_is_told_of_them() -> None:
    question = alone(row(None, 200), host=None)
    report = run(question)
    assert report.hosts == ()
    assert "host" not in report.to_json()
    assert all(answer.kind != "hosts" for answer in what_ifs(report, scenario=question))
