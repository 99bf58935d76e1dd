"""Devices that run alike are simulated once: the answers are those of the full expansion."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from replicated import costs, expanded, figures, net, reduced, world
from simdev import Scenario, load_scenario, oracle_of, run
from simdev.commands import main
from simdev.lowering.symmetry import Expanded, Symmetry
from simdev.nouns.cluster import Cluster, Device, Host, Link
from simdev.nouns.strategy import Collectives, Configuration, Loader, Strategy
from simdev.report import Report
from simdev.report.page import what_ifs
from worlds.scenarios import lenet, written
from worlds.tape import TAPE, Tape

tapes = st.binary(min_size=TAPE, max_size=TAPE)
MANY = 20
GRAPH = net(Tape(b"\2\1\1\1\2\1"), 2 * MANY)


def star(*devices: Device, queues: str = "link", **cluster: Any) -> Cluster:
    """Devices around a switch; the fourth hangs on a slower link."""
    links = [
        Link((device.name, "switch"), "1 GB/s" if i == 3 else "10 GB/s")
        for i, device in enumerate(devices)
    ]
    return Cluster("star", (*devices, Device("switch", "switch")), tuple(links), queues, **cluster)


def gpus(count: int = MANY, **fields: Any) -> list[Device]:
    return [
        replace(Device(f"gpu:{i}", "v100", memory=10**6), **(fields if i == 5 else {}))
        for i in range(count)
    ]


def scenario(cluster: Cluster, **strategy: Any) -> Scenario:
    return Scenario(GRAPH, cluster, costs(), Strategy(short="data-parallel", **strategy))


@settings(max_examples=12, deadline=None, phases=(Phase.reuse, Phase.generate))
@given(tapes)
def test_a_report_is_that_of_all_devices(content: bytes) -> None:
    question = world(content)
    few = reduced(question)
    if not isinstance(few, str):
        assert figures(few) == figures(expanded(question))


@pytest.mark.parametrize(
    ("fields", "simulated"),
    [
        ({}, 4),
        ({"kind": "p4000"}, 5),
        ({"memory": 2000}, 5),
        ({"gap": "3 us"}, 5),
        ({"node": 7}, 4),
    ],
)
def test_only_what_differs_is_simulated_beside_them(fields: dict[str, Any], simulated: int) -> None:
    question = scenario(star(*gpus(**fields)))
    few, every = run(question), run(replace(question, symmetry=False))
    assert isinstance(few.symmetry, Symmetry)
    assert few.symmetry.to_json(few.trace.task_graph)["simulated"] == simulated
    assert few.symmetry.counted(few.trace.task_graph) == len(every.trace.task_graph.tasks)
    assert figures(few) == figures(every)
    assert few.feasible == ("memory" not in fields)


def test_devices_with_a_host_each_run_alike() -> None:
    question = scenario(star(*gpus(), host=Host("eager")))
    few, every = run(question), run(replace(question, symmetry=False))
    assert isinstance(few.symmetry, Symmetry)
    assert figures(few) == figures(every)


def test_an_axis_in_one_part_is_no_cut() -> None:
    names = tuple(gpu.name for gpu in gpus())
    configured = {"head/linear": Configuration({"m": MANY, "n": 1}, names)}
    assert isinstance(run(scenario(star(*gpus()), partition=configured)).symmetry, Symmetry)


def test_switches_may_stand_between_devices() -> None:
    first, *rest = gpus()
    devices = (Device("spare", "p4000"), first, Device("between", "switch"), *rest)
    links = [Link((gpu.name, "between"), "1 GB/s") for gpu in (first, *rest)]
    names = tuple(gpu.name for gpu in (first, *rest))
    question = scenario(Cluster("mixed", devices, tuple(links)), devices=names)
    few, every = run(question), run(replace(question, symmetry=False))
    assert isinstance(few.symmetry, Symmetry)
    assert figures(few) == figures(every)


def test_tasks_are_those_of_the_same_name_and_place_among_all() -> None:
    question = scenario(star(*gpus(kind="p4000")))
    few, every = (_tasks(run(there)) for there in (question, replace(question, symmetry=False)))
    assert len(few) < len(every)
    assert few.items() <= every.items()
    assert few["x#5"][0] == "gpu:5"


def _tasks(report: Report) -> dict[str, tuple[str, int, int]]:
    graph, trace = report.trace.task_graph, report.trace
    places = [graph.devices[device] for device in graph.tasks.source.tolist()]
    times = zip(places, trace.start.tolist(), trace.finish.tolist(), strict=True)
    return dict(zip(graph.tasks.name, times, strict=True))


def test_the_oracle_scores_them_as_all_devices() -> None:
    question = scenario(star(*gpus(memory=2000)))
    few, every = (
        oracle_of(replace(question, symmetry=on))("data-parallel") for on in (True, False)
    )
    assert few == every
    assert few.step_ps == run(question).step_ps
    assert not few.feasible


@pytest.mark.parametrize(
    ("cluster", "strategy", "why"),
    [
        (star(*gpus(), host=Host(threads="node")), {}, "devices of a node share a host"),
        (star(*gpus(), queues="fair"), {}, "links are shared at max-min rates"),
        (star(*gpus(beside_copies=1.5)), {}, "transfers and computing slow each other"),
        (star(*gpus()), {"placement": {"loss*": "gpu:3"}}, "some ops are placed by themselves"),
        (star(*gpus()), {"sync": "parameter-server"}, '"grad/.*" goes from one replica to'),
        (star(*gpus()), {"sync": "sharded"}, '"grad/.*" goes from one replica to another'),
        (
            star(*gpus()),
            {"loader": Loader("gpu:0", "1 ms")},
            "a loader feeds all devices",
        ),
        (
            star(*gpus()),
            {"collectives": Collectives(cost="expanded")},
            "collectives run as their messages",
        ),
        (
            star(*gpus()),
            {"partition": {"head/linear": Configuration({"n": 2}, ("gpu:0", "gpu:1"))}},
            "ops are split over different devices",
        ),
    ],
)
def test_where_devices_share_more_all_are_simulated(
    cluster: Cluster, strategy: dict[str, Any], why: str
) -> None:
    report = run(scenario(cluster, **strategy))
    assert isinstance(report.symmetry, Expanded)
    assert re.match(why, report.symmetry.why), report.symmetry.why
    assert f"Every device was simulated: {report.symmetry.why}." in str(report)


def test_what_ifs_ask_about_single_devices() -> None:
    question = scenario(star(*gpus(kind="p4000")))
    answers = [
        what_ifs(run(there), None, there) for there in (question, replace(question, symmetry=False))
    ]
    assert answers[0] == answers[1]


def test_few_replicas_and_whole_ops_are_simulated_one_by_one() -> None:
    few = replace(scenario(star(*gpus(10))), strategy=Strategy(short="data-parallel"))
    assert run(few).symmetry is None
    assert run(scenario(star(*gpus()), devices=("gpu:1", "gpu:2"))).symmetry is None
    whole = replace(scenario(star(*gpus())), strategy=Strategy({"*": "gpu:3"}))
    assert run(whole).symmetry is None


def test_it_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question: dict[str, Any] = {
        "version": 1,
        "graph": {"model": "lenet", "batch": 24},
        "cluster": {"preset": "dgx-h100", "nodes": 3},
        "strategy": {"version": 1, "short": "data-parallel"},
    }
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(question))
    reports = []
    for options in ([], ["--no-symmetry"], ["--check"]):
        assert main(["simulate", str(path), "--json", *options]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    few, every, checked = reports
    assert few["symmetry"]["replicas"] == 24
    assert "symmetry" not in every
    assert checked == every
    assert few["devices"] == every["devices"]
    assert few["links"] == every["links"]
    off = load_scenario(question | {"options": {"symmetry": False}})
    assert run(off).symmetry is None
    assert "4 devices stand for 52, of which 24 run alike" in str(run(load_scenario(path)))


def files(folder: Path) -> list[str]:
    """Files of a scenario that symmetry makes smaller, and of the same without symmetry."""
    question = lenet({"preset": "flexflow-p100", "nodes": 5}, 20)
    options = {"few": {}, "every": {"symmetry": False}}
    return [
        str(written(folder / f"{name}.json", question | {"options": chosen}))
        for name, chosen in options.items()
    ]


def test_what_pairs_tasks_simulates_every_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, every = files(tmp_path)
    trace, page = str(tmp_path / "trace.json"), str(tmp_path / "page.html")
    assert isinstance(run(load_scenario(few)).symmetry, Symmetry)
    assert main(["simulate", few, "--trace", trace]) == 0
    notes = json.loads(Path(trace).read_text(encoding="utf-8"))["otherData"]["notes"]
    assert "of which 20 run alike" in notes[0]
    assert main(["report", few, "-o", page]) == 0
    assert "What if" in Path(page).read_text(encoding="utf-8")
    answers = []
    capsys.readouterr()
    for question in (few, every):
        assert main(["calibrate", question, trace, "--fit", "gap", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert all(residual["residual_s"] == 0 for residual in answers[0]["residuals"])


def test_work_by_kind_is_that_of_all_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, every = files(tmp_path)
    assert main(["compare", few, every, "--json"]) == 0
    sheets = {sheet["title"]: sheet for sheet in json.loads(capsys.readouterr().out)["sheets"]}
    rows = sheets["Work by kind of task"]["rows"]
    assert rows
    assert all(a == b for _, a, b, *_ in rows)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 64, 512])
def test_resnet_50_is_that_of_all_devices(count: int) -> None:
    question = load_scenario(
        {
            "version": 1,
            "graph": {"model": "resnet-50", "batch": 32 * count},
            "cluster": {"preset": "dgx-h100"} | ({"nodes": count // 8} if count > 8 else {}),
            "strategy": {"version": 1, "short": "data-parallel"},
        }
    )
    few = reduced(question)
    assert not isinstance(few, str)
    assert figures(few) == figures(expanded(question, "compiled"))
