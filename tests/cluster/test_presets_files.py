"""Settings of presets, repeated nodes, devices and clusters as files; the verb and its pictures."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from preset_files import ROOT
from simdev.commands import main
from simdev.files import (
    preset_names,
    read_cluster,
    read_device,
    read_preset,
    read_scenario,
    write_cluster,
)
from simdev.ground.errors import InputError
from simdev.ground.units import parse_flops
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.report.figures.cluster import cluster_figure, cluster_picture
from worlds.scenarios import written


def test_a_scenario_names_a_preset_with_settings(tmp_path: Path) -> None:
    question = {
        "version": 1,
        "graph": {"ops": []},
        "strategy": {},
        "cluster": {"preset": "p3-4x-p4000", "nodes": 8},
    }
    written(tmp_path / "s.json", question)
    assert (
        sum(device.runs_ops for device in read_scenario(tmp_path / "s.json").cluster.devices) == 8
    )
    settings = {
        "version": 1,
        "preset": "dgx-h100",
        "nodes": 2,
        "network": "100 Gbit/s",
        "queues": "fair",
    }
    written(tmp_path / "c.json", settings)
    cluster = read_cluster(tmp_path / "c.json")
    assert cluster == read_preset("dgx-h100", 2, network="100 Gbit/s", queues="fair")
    assert cluster.queues == "fair"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"preset": "dgx-h10"}, 'preset: no preset "dgx-h10"; did you mean "dgx-h100"?'),
        ({"preset": "dgx-h100", "nodes": 0}, "nodes: must be > 0, got 0"),
        (
            {"preset": "dgx-h100", "nodes": 10**6},
            "nodes: 1000000 make more than 100000 devices or 1000000 links",
        ),
        ({"preset": "dgx-h100", "nodes": -1}, "nodes: must be a whole number, got -1"),
        ({"preset": "dgx-h100", "nodes": 2.5}, "nodes: must be a whole number, got 2.5"),
        ({"preset": "dgx-h100", "nodes": "2 kB"}, 'nodes: must be a whole number, got "2 kB"'),
        ({"preset": "dgx-h100", "node": 2}, 'node: unknown key; did you mean "nodes"?'),
        ({"preset": "dgx-h100", "network": "5 GB"}, 'network: has the unknown unit "GB"'),
        (
            {"preset": "4x-rtx-2080", "nodes": 2},
            "nodes: several nodes need a network that joins them",
        ),
        (
            {"preset": "4x-rtx-2080", "network": 1},
            "network: the preset has none whose bandwidth could be set",
        ),
        ({"preset": "dgx-h100", "queues": "serial"}, "queues: must be one of parallel"),
        ({"preset": 5}, "preset: must be text, got 5"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_cluster(settings)
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


NODE: dict[str, Any] = {
    "device_kinds": {"a": {"memory": "2 GB", "gap": "1 us"}},
    "devices": [{"name": "gpu:0", "kind": "a"}, {"name": "gpu:1", "kind": "a", "memory": "1 GB"}],
    "link_kinds": {"wire": {"bandwidth": "8 GB/s", "latency": "2 us", "lanes": 3}},
    "links": [{"ends": ["gpu:0", "gpu:1"], "kind": "wire", "latency": "1 us"}],
    "nodes": 2,
    "network": {"attach": [["gpu:0", "gpu:1"]], "bandwidth": "8 Gbit/s", "latency": "10 us"},
}


def test_kinds_hold_what_their_devices_and_links_share() -> None:
    cluster = read_cluster({**NODE, "nodes": 1})
    assert [(d.memory, d.gap) for d in cluster.devices] == [
        (2 * 10**9, Fraction(1, 10**6)),
        (10**9, Fraction(1, 10**6)),
    ]
    assert cluster.links == (Link(("gpu:0", "gpu:1"), "8 GB/s", "1 us", kind="wire", lanes=3),)


def test_any_file_may_repeat_its_node() -> None:
    cluster = read_cluster(NODE)
    assert [device.name for device in cluster.devices] == [
        "gpu:0",
        "gpu:1",
        "nic:0",
        "gpu:2",
        "gpu:3",
        "nic:1",
        "network",
    ]
    assert [device.node for device in cluster.devices] == [0, 0, 0, 1, 1, 1, 2]
    short = {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": 1}},
    }
    assert len(read_cluster({**NODE, **short}).links) == 2 * (1 + 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"network": {**NODE["network"], "attach": ["gpu:7"]}},
            'network.attach[0]: no device named "gpu:7"',
        ),
        (
            {"network": {**NODE["network"], "attach": [[]]}},
            "network.attach[0]: must name devices, each once",
        ),
        (
            {"network": {**NODE["network"], "attach": []}},
            "network.attach: must name at least one device",
        ),
        (
            {"nodes": 1, "network": {**NODE["network"], "attach": ["x"]}},
            'network.attach[0]: no device named "x"',
        ),
        (
            {"network": {**NODE["network"], "efficiency": 1.5}},
            "network.efficiency: must be at most 1, got 1.5",
        ),
        (
            {"network": {**NODE["network"], "efficiency": 0}},
            "network.efficiency: must be a share > 0",
        ),
        (
            {"devices": [{"name": "gpu"}], "links": []},
            'devices[0].name: must end in ":" and a number',
        ),
        ({"devices": [{"name": "gpu:0", "node": 1}], "links": []}, "devices[0].node: must be 0"),
        ({"link_kinds": {"wire": {"latency": 1}}}, "links[0].bandwidth: missing"),
        (
            {"link_kinds": {"wire": {"bandwith": 1}}},
            'link_kinds.wire.bandwith: unknown key; did you mean "bandwidth"?',
        ),
        ({"nodes": 1.5}, "nodes: must be a whole number"),
        ({"collectives": "h100"}, 'collectives: no tables "h100"; there are those of a100-sxm'),
    ],
)
def test_broken_nodes_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_cluster({**NODE, **changes})
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


@pytest.mark.parametrize("name", preset_names())
def test_clusters_come_back_with_their_provenance(name: str, tmp_path: Path) -> None:
    cluster = read_preset(name)
    write_cluster(cluster, tmp_path / "c.json")
    back = read_cluster(tmp_path / "c.json")
    assert back == cluster
    assert back.provenance == cluster.provenance
    assert back.provenance
    assert back.collectives == cluster.collectives


def test_provenance_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="provenance: cannot be written as JSON"):
        write_cluster(Cluster("c", (Device("d"),), provenance={"x": object()}), tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_flops_are_read_with_units() -> None:
    assert parse_flops("67 TFLOP/s") == 67 * 10**12
    assert parse_flops("2.5 PFLOP/s") == parse_flops(25 * 10**14)
    for wrong in ("67 TFLOPS", "67 TB/s", 0, -1, "1e22", True):
        with pytest.raises(ValueError, match=r"must be|unknown unit"):
            parse_flops(wrong)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"flops": {"float32": "67 TB/s"}}, 'flops.float32: has the unknown unit "TB/s"'),
        ({"flops": {}}, "flops: must name the peak of one dtype at least"),
        ({"memory_bandwidth": None}, "memory_bandwidth: must be a number or a text with a unit"),
        (
            {"efficiency": {"gemm": {"compute": 5}}},
            "efficiency.gemm.compute: must be a share > 0 and at most 4",
        ),
        (
            {"efficiency": {"gemm": {"overhead": "2 s"}}},
            "efficiency.gemm.overhead: must be from 0 to 1 second",
        ),
        (
            {"efficiency": {"gemm": {"float32": {"compute": 5}}}},
            "efficiency.gemm.float32.compute: must be a share > 0 and at most 4",
        ),
        ({"efficiency": {"gemm": {"float32": 3}}}, "efficiency.gemm.float32: must be an object"),
        (
            {"efficiency": {"gemm": {"float23": {"compute": 0.5}}}},
            'efficiency.gemm: no dtype "float23"; there are float64, float32',
        ),
        (
            {
                "flops": {"float32": "1 TFLOP/s", "bfloat16": "2 TFLOP/s"},
                "efficiency": {"gemm": {"compute": 0.5}},
            },
            "efficiency.gemm: of which dtype?",
        ),
        (
            {"efficiency": {"gemm": {"any": {"compute": 0.5, "dtype": "float32"}}}},
            'efficiency.gemm.dtype: it is the dtype of its key, "any"',
        ),
        ({"measured": {"flops": {"float32": 3}}}, "sustained.float32: must be from 10^6"),
        ({"flop": {}}, 'flop: unknown key; did you mean "flops"?'),
        ({"kind": 3}, "kind: must be text, got 3"),
    ],
)
def test_broken_devices_are_refused(changes: dict[str, Any], problem: str) -> None:
    whole = {"kind": "x", "flops": {"float32": "1 TFLOP/s"}, "memory_bandwidth": "1 TB/s"}
    with pytest.raises(InputError) as error:
        read_device(whole | changes)
    assert any(one.startswith(problem) for one in error.value.problems), error.value.problems


def test_devices_are_found_by_kind_or_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        '{"version": 1, "kind": "x", "flops": {"float32": 1e12}, "memory_bandwidth": 2e9}'
    )
    spec = read_device(tmp_path / "x.json")
    assert (spec.kind, spec.flops, spec.memory_bandwidth, spec.memory) == (
        "x",
        {"float32": 10**12},
        2 * 10**9,
        None,
    )
    known = read_device("h100-sxm").efficiency_of("gemm", "bfloat16")
    assert known is not None
    assert known.compute == Fraction(79, 100)
    with pytest.raises(
        InputError,
        match=r'neither a file nor a kind of device: "h100-sx"; did you mean "h100-sxm"\?',
    ):
        read_device("h100-sx")


def test_the_verb_lists_shows_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clusters"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(
        preset_names()
    )
    assert main(["clusters", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(preset_names())
    assert main(["clusters", "l40s-8x", "--nodes", "2", "-o", str(tmp_path / "l.svg")]) == 0
    told = capsys.readouterr().out
    assert re.search(r"2 x socket +1\.4 GB/s", told)
    assert re.search(r"all_reduce +8 +22\.6 us +2\.1 GB/s +1\.5 GB/s +1\.4 GB/s", told)
    assert re.search(r"links\.root\.bandwidth +5\.2 GB/s +fitted +2026-09 +NCCL", told)
    assert "gpu:15" in (tmp_path / "l.svg").read_text()
    assert main(["clusters", "p3-4x-p4000", "--network", "4 Gbit/s", "--json"]) == 0
    (tmp_path / "p3.json").write_text(capsys.readouterr().out)
    assert read_cluster(tmp_path / "p3.json") == read_preset("p3-4x-p4000", network="4 Gbit/s")
    assert main(["clusters", str(tmp_path / "p3.json")]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["clusters", "dgx-h10"], 'no preset "dgx-h10"; did you mean "dgx-h100"?'),
        (["clusters", "--nodes", "2"], "NAME: missing, and --nodes needs it"),
        (
            ["clusters", "dgx-h100", "-o", "x.gif"],
            "--output: x.gif: the name must end in .png or .svg or .pdf",
        ),
        (
            ["clusters", "dgx-h100", "-o", "nowhere/x.png"],
            "--output: cannot write nowhere/x.png: no such file",
        ),
        (["clusters", "dgx-h100", "--nodes", "0"], "--nodes: must be > 0, got 0"),
        (["clusters", "missing.json"], "missing.json: no such file"),
        (
            ["clusters", "c.json", "--nodes", "2"],
            "--nodes, --gpus, --network: are settings of a preset, not of a file",
        ),
    ],
)
def test_the_verb_refuses_with_one_message(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(problem)
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_picture_holds_every_device_shown_and_no_box_lies_on_another() -> None:
    for name, nodes in (
        ("dgx-1v", 1),
        ("gb200-nvl72", 1),
        ("dgx-h100", 2),
        ("l40s-8x", 3),
        ("tofu-8x-k80", None),
    ):
        cluster = read_preset(name, nodes)
        picture = cluster_picture(cluster)
        assert {box.name for box in picture.boxes} == set(cluster.index)
        drawn = [box for box in picture.boxes if box.label]
        for i, a in enumerate(drawn):
            for b in drawn[i + 1 :]:
                assert abs(a.x - b.x) >= (a.width + b.width) / 2 - 0.01 or abs(a.y - b.y) > 0.5, (
                    name,
                    a.name,
                    b.name,
                )


def test_a_picture_of_many_nodes_tells_how_many_it_leaves_out() -> None:
    picture = cluster_picture(read_preset("flexflow-k80"))
    assert (len(picture.panels), picture.hidden) == (2, 14)
    assert sum(not box.switch for box in picture.boxes) == 8


def test_a_rack_is_drawn_by_columns() -> None:
    picture = cluster_picture(read_preset("gb200-nvl72"))
    assert len(picture.wires) == 18
    assert len({box.x for box in picture.boxes if not box.switch}) == 18


def test_hostile_names_are_drawn_as_text() -> None:
    devices = (Device("<script>alert(1)</script>", "$\\alpha$"), Device("b:0", "層"))
    figure = cluster_figure(
        Cluster("$x", devices, (Link(("<script>alert(1)</script>", "b:0"), 1, kind="$\\frac"),))
    )
    figure.canvas.draw()  # type: ignore[attr-defined]
    assert cluster_figure(Cluster("one", (Device("only"),))) is not None


def test_what_the_page_of_clusters_shows_works(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "reference" / "clusters.md").read_text(encoding="utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    counts = [
        sum(d.runs_ops for d in read_cluster(one.get("cluster", one)).devices) for one in blocks[1:]
    ]
    assert counts == [64, 8, 8]
    assert blocks[0]["cluster"] in preset_names()
    for source in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(source, "clusters.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["2.11 ms table measured", "4.68 ms hierarchical roofline"]
    assert all(f"`{line}`" in page for line in printed)
