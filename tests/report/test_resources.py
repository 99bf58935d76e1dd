"""What a large model's step gains where a resource of its machines is twice as fast."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.execution.changes import FLOPS, HOSTS, LINKS, MEMORY, NETWORK, RESOURCES
from simdev.execution.scenario import Scenario, load_scenario
from simdev.report import run
from simdev.report.page import Subject, run_data, what_ifs
from worlds.scenarios import GPT, pipelined

NAMES = [LINKS, NETWORK, MEMORY, FLOPS, HOSTS]


def asked(cluster: Any = "dgx-h100", graph: Any = (), **pipeline: Any) -> tuple[Scenario, int]:
    """A scenario of a large model, and its step time in ps."""
    scenario = load_scenario(pipelined(GPT | dict(graph), cluster, **pipeline))
    return scenario, run(scenario).step_ps


def steps(scenario: Scenario) -> dict[str, int]:
    return {name: run(change(scenario, 2)).step_ps for name, change in RESOURCES.items()}


def test_one_node_waits_for_its_links_and_neither_for_a_network_nor_for_hosts() -> None:
    scenario, now = asked(tp=8, microbatches=2)
    faster = steps(scenario)
    assert list(faster) == NAMES
    assert faster[NETWORK] == faster[HOSTS] == now
    assert all(now / 2 < faster[name] < now for name in (LINKS, MEMORY, FLOPS))


def test_a_network_between_nodes_is_apart_from_the_links_inside() -> None:
    scenario, now = asked({"preset": "dgx-h100", "nodes": 2}, dp=4, pp=4)
    faster = steps(scenario)
    assert faster[NETWORK] < now
    by_hand = replace(
        scenario.cluster,
        links=tuple(
            replace(link, bandwidth=2 * Fraction(link.bandwidth))
            if link.kind in ("nic", "network")
            else link
            for link in scenario.cluster.links
        ),
    )
    assert run(replace(scenario, cluster=by_hand)).step_ps == faster[NETWORK]


def test_hosts_count_where_they_dispatch_or_keep_states() -> None:
    hosted = {"preset": "dgx-h100", "host": {"mode": "eager"}}
    times = {"host_time": {"forward": "20 ms", "backward": "20 ms"}}
    dispatched, now = asked(hosted, times, tp=8)
    assert now / 2 <= steps(dispatched)[HOSTS] < 0.6 * now
    graphed, now = asked({"preset": "dgx-h100", "host": {"mode": "graph"}}, tp=8)
    assert steps(graphed)[HOSTS] == now - 5 * 10**6  # half of a launch of 10 us
    offload = {"offload": ["optimizer"], "host_bandwidth": "10 GB/s"}
    offloaded, now = asked(tp=8, global_batch=4, **offload)
    twice, _ = asked(tp=8, global_batch=4, **offload | {"host_bandwidth": "20 GB/s"})
    assert steps(offloaded)[HOSTS] == run(twice).step_ps < now


def test_twice_the_memory_and_arithmetic_is_a_device_of_such_a_datasheet() -> None:
    scenario, _ = asked(dp=8)
    faster = steps(scenario)
    (spec,) = scenario.costs.specs
    sheet = replace(spec, memory_bandwidth=2 * spec.memory_bandwidth)
    by_hand = replace(scenario, costs=replace(scenario.costs, specs=(sheet,)))
    assert run(by_hand).step_ps == faster[MEMORY]


def test_measured_collectives_keep_the_time_of_their_smallest_message() -> None:
    scenario, now = asked(tp=8)
    tiny, then = asked("dgx-h100", {"length": 8, "layers": 1}, tp=8)
    gains = [1 - steps(s)[LINKS] / ps for s, ps in ((scenario, now), (tiny, then))]
    assert gains[0] > gains[1] >= 0


def test_a_report_has_them_beside_devices_and_queues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(pipelined(GPT, tp=8)))
    assert main(["report", str(file), "--json", "-o", str(tmp_path / "page.html")]) == 0
    figures = json.loads(capsys.readouterr().out)
    cases = {case["name"]: case for case in figures["what_if"] if case["kind"] == "resource"}
    assert sorted(cases) == sorted(NAMES)
    assert cases[NETWORK]["gain"] == 0.0
    assert cases[NETWORK]["step_s"] == figures["step_time_s"]
    scenario = load_scenario(str(file))
    subject = Subject("s", run(scenario), scenario)
    sheets = run_data(subject, what_ifs(subject.report, scenario=scenario))["sheets"]
    first, second = (sheet for sheet in sheets if sheet["title"].startswith("What if"))
    assert "no change" in first["note"]
    assert {row[0].partition(" (")[0] for row in first["rows"]} == set(NAMES)
    assert "links inside nodes (nvlink)" in {row[0] for row in first["rows"]}
    assert {row[0] for row in second["rows"]} >= {"phase", "device"}
    assert main(["report", str(tmp_path / "results.csv"), "--json"]) == 2
    assert "--json prints the figures of one step" in capsys.readouterr().err
