"""Readers of foreign formats: units, traps, refusals, and scenarios that run."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from imported import PROFILE, workload
from peers import PEERS
from simdev import load_scenario
from simdev.formats import (
    Machine,
    import_file,
    layers_scenario,
    parse_layers,
    parse_workload,
    workload_scenario,
    write_imported,
)
from simdev.ground.errors import InputError
from simdev.report import run
from worlds.scenarios import written

# PipeDream


def test_a_profile_is_read_with_its_units():
    layers = parse_layers(PROFILE)
    assert [layer.name for layer in layers] == ["node1", "node2", "node3", "node4"]
    assert layers[0].is_loader
    assert (layers[1].forward, layers[1].backward) == (Fraction("0.0015"), Fraction("0.002"))
    assert (layers[1].activations, layers[1].parameters) == ((8, 2), 3)
    assert (layers[3].description, layers[3].stage, layers[3].inputs) == (
        "Linear(a -- b)",
        1,
        ("node2", "node3"),
    )


def test_a_profile_becomes_a_step_without_its_loader():
    imported = layers_scenario(parse_layers(PROFILE), Machine(devices=2, bandwidth="1 B/s"))
    graph = imported.graph
    names = [op.name for op in graph.ops]
    assert names == [
        "node2",
        "node3",
        "node4",
        "node4/backward",
        "node3/backward",
        "node2/backward",
    ]
    ops = {op.name: op for op in graph.ops}
    assert ops["node2"].inputs == ()
    assert ops["node3"].inputs == ("node2:1",)
    assert ops["node4"].inputs == ("node2:0", "node2:1", "node3:0")
    # gradients for node2 and node3
    assert [tensor.bytes for tensor in ops["node4/backward"].outputs] == [10, 2]
    assert ops["node3/backward"].inputs == ("node4/backward:1", "node3:0", "node2:1")
    assert ops["node2/backward"].inputs == (
        "node3/backward:0",
        "node4/backward:0",
        "node2:0",
        "node2:1",
    )
    assert {op.colocate for op in graph.ops} == {"node2", "node3", "node4"}
    assert "17.972 ms of loading data" in imported.notes[0]
    assert [device.name for device in imported.cluster.devices] == ["gpu:0", "gpu:1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no layers"),
        ("a -- b", 'line 1: a layer is written "id -- description -- values"'),
        ("a -- b -- forward_compute_time=1", "line 1: backward_compute_time: missing"),
        (PROFILE.replace("8.0", "x"), "line 2: activation_size: must be bytes, got 'x'"),
        (
            PROFILE.replace("[8.0", "[-8.0"),
            "line 2: activation_size: must be a whole number of bytes >= 0, got -8.0",
        ),
        (PROFILE.replace("time=1.5", "time=nan"), "line 2: "),
        (PROFILE.replace("time=1.5", "time=-1"), "line 2: "),
        (PROFILE + "\n\tnode2 -- node9", 'line 9: no layer named "node9"'),
        (PROFILE + "\n\tnode2", "line 9: an edge is written"),
        (PROFILE + "\n" + PROFILE.splitlines()[1], 'line 9: "node2" is already told'),
        (PROFILE + "\n\tnode4 -- node2", "cycle"),
    ],
)
def test_malformed_profiles_are_refused(text, problem):
    with pytest.raises(InputError) as caught:
        layers_scenario(parse_layers(text))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("name", "layers", "forward_ms", "backward_ms", "loading_ms"),
    [
        ("vgg16", 41, 251.874, 438.633, 17.972),
        ("resnet50", 177, 201.450, 260.931, 18.962),
        ("gnmt_large", 96, 182.563, 337.890, 0),
    ],
)
def test_published_profiles_have_the_known_sums(name, layers, forward_ms, backward_ms, loading_ms):
    imported = parse_layers((PEERS / "pipedream" / name / "graph.txt").read_text())
    assert len(imported) == layers
    assert float(sum(layer.forward for layer in imported)) * 1e3 == pytest.approx(forward_ms)
    assert float(sum(layer.backward for layer in imported)) * 1e3 == pytest.approx(backward_ms)
    assert float(
        sum(layer.forward for layer in imported if layer.is_loader)
    ) * 1e3 == pytest.approx(loading_ms)


def test_a_published_profile_runs_in_the_sum_of_its_layers(tmp_path):
    imported = import_file(PEERS / "pipedream" / "vgg16" / "graph.txt", name="VGG-16")
    write_imported(imported, tmp_path / "vgg16.json")
    scenario = load_scenario(tmp_path / "vgg16.json")
    assert scenario.graph == imported.graph
    assert run(scenario).trace.end_ps / 1e12 == pytest.approx((251.874 + 438.633 - 17.972) / 1e3)


# dnn-partitioning


def parsed(value: object) -> object:
    return parse_workload(json.dumps(value))


def test_backward_edges_that_point_forwards_are_turned_round():
    imported = workload_scenario(parsed(workload()))
    ops = {op.name: op for op in imported.graph.ops}
    assert ops["y"].inputs == ("x:0",)
    assert ops["xgrad"].inputs == ("ygrad:0",)
    # a gradient has the size of what it is the gradient of
    assert ops["ygrad"].outputs[0].bytes == 8
    # joined at the loss, and with its own forward node
    assert ops["ygrad"].control_inputs == ("y",)
    assert ops["xgrad"].control_inputs == ("x",)
    assert any("reversed" in note for note in imported.notes)
    assert ops["xgrad"].attrs["max_load"] == {
        "transfer_ms": 0.75,
        "bytes": 100,
        "readers": ("ygrad",),
    }
    assert ops["x"].time == {"accelerator": Fraction("0.0015"), "cpu": Fraction("0.015")}
    assert ops["x"].param_bytes == 92
    assert ops["x"].colocate == ops["xgrad"].colocate == "class 1"


def test_proper_backward_edges_stay():
    value = workload()
    value["edges"] += [{"sourceId": 6, "destId": 8, "cost": 1, "size": 4}]
    value["edges"][1] = {"sourceId": 8, "destId": 7, "cost": 0.75, "size": 64}
    ops = {op.name: op for op in workload_scenario(parsed(value)).graph.ops}
    assert ops["ygrad"].inputs == ("y:0",)
    assert ops["xgrad"].inputs == ("ygrad:0",)
    assert ops["ygrad"].outputs[0].bytes == 64


def test_nodes_that_only_a_cpu_can_run_and_names_that_cannot_be():
    value = workload()
    value["nodes"][0] |= {"supportedOnFpga": False, "name": "x:0", "colorClass": None}
    value["nodes"][2]["colorClass"] = None
    imported = workload_scenario(parsed(value))
    assert imported.graph.ops[0].name == "node5"
    assert imported.graph.ops[0].time == {"cpu": Fraction("0.015")}
    assert imported.graph.ops[0].colocate is None
    assert dict(imported.strategy.placement) == {"*": "cpu:0"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodes": 3}, "not a dnn-partitioning workload"),
        ({"maxFPGAs": 0, "maxCPUs": 0}, "there is no device"),
        ({"maxCPUs": 2**53}, "maxFPGAs and maxCPUs: joins 9007199254740994 devices by"),
        ({"maxFPGAs": 1.5}, "maxFPGAs: must be a whole number, got 1.5"),
        ({"maxSizePerFPGA": -1}, "maxSizePerFPGA: must be a number >= 0, got -1"),
        ({"nodes": [{"id": 1}]}, "nodes[0].supportedOnFpga: must be true, false, 0 or 1, got None"),
        (
            {"nodes": [*workload()["nodes"], workload()["nodes"][0]]},
            "nodes[4].id: 5 is already that of nodes[0]",
        ),
        ({"edges": [{"sourceId": 5, "destId": 99, "cost": 0}]}, "edges[0]: no node with id 99"),
        ({"edges": [7]}, "edges[0]: must be an object"),
        (
            {"edges": [{"sourceId": 5, "destId": 6, "cost": "1"}]},
            "edges[0].cost: must be a number >= 0",
        ),
    ],
)
def test_malformed_workloads_are_refused(change, problem):
    with pytest.raises(InputError) as caught:
        parsed(workload(**change))
    assert problem in str(caught.value)


def test_a_published_workload_survives_its_scenario_file(tmp_path):
    path = PEERS / "dnn_partitioning" / "LayerGraphs" / "gnmt_training.json.gz"
    imported = import_file(path)
    write_imported(imported, tmp_path / "gnmt.json.gz")
    scenario = load_scenario(tmp_path / "gnmt.json.gz")
    assert (scenario.graph, scenario.cluster) == (imported.graph, imported.cluster)
    assert run(scenario).trace.end_ps / 1e12 == pytest.approx(0.520453, rel=1e-5)
    assert len(imported.graph.ops) == 192


# Which format


def test_the_format_is_told_from_the_file(tmp_path):
    (tmp_path / "graph.txt").write_text(PROFILE)
    written(tmp_path / "w.json", workload())
    (tmp_path / "other.txt").write_text("hello")
    assert import_file(tmp_path / "graph.txt", devices=3, memory="8 GB").source == "pipedream"
    assert import_file(tmp_path / "w.json").source == "dnn-partitioning"
    with pytest.raises(
        InputError, match=r"other\.txt: of no format that simdev knows \(pipedream, "
    ):
        import_file(tmp_path / "other.txt")
    with pytest.raises(InputError, match=r"w\.json: --devices: the file tells it itself"):
        import_file(tmp_path / "w.json", devices=3)
    with pytest.raises(InputError, match="format: must be one of pipedream, dnn-partitioning"):
        import_file(tmp_path / "w.json", "piper")
    with pytest.raises(InputError, match="no such file"):
        import_file(tmp_path / "none.txt")
