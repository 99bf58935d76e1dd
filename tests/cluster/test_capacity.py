"""The memory of devices of which a file tells none: that of their kind's datasheet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simdev
from simdev.commands import main
from simdev.files import read_cluster, read_device, write_cluster
from simdev.files.device import device_names
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device
from simdev.search.sweep import sweep
from worlds.scenarios import written

LINKS = {"all_to_all": {"bandwidth": "400 GB/s"}}
MINE = {"kind": "mine", "flops": {"bfloat16": "1 PFLOP/s"}, "memory_bandwidth": "1 TB/s"}


def gpus(*kinds: str, **more: Any) -> dict[str, Any]:
    devices = [{"name": f"gpu:{i}", "kind": kind, **more} for i, kind in enumerate(kinds)]
    return {"devices": devices, "links": LINKS if len(kinds) > 1 else []}


def memories(cluster: Cluster) -> list[Any]:
    return [device.memory for device in cluster.devices if device.runs_ops]


def of_large(cluster: Any, **more: Any) -> dict[str, Any]:
    graph = {"model": "llama3.2-1b", "layers": 2, "length": 512}
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": {"tp": 2}}} | more


@pytest.mark.parametrize("kind", device_names())
def test_a_device_by_its_kind_alone_has_the_memory_of_its_datasheet(
    kind: str, tmp_path: Path
) -> None:
    """By hand in an object, a file, a scenario, on several machines, links listed or all alike."""
    capacity = read_device(kind).memory
    written(tmp_path / "c.json", {"version": 1, **gpus(kind, kind)})
    network = {"attach": ["gpu:0"], "bandwidth": "10 GB/s"}
    doors = [
        gpus(kind),
        gpus(kind, kind),
        gpus(kind, kind, memory=None),
        gpus(kind) | {"device_kinds": {kind: {"transit": False}}},
        gpus(kind) | {"nodes": 2, "network": network},
        tmp_path / "c.json",
    ]
    for door in doors:
        assert set(memories(read_cluster(door))) == {capacity}, door
    for cluster in (gpus(kind, kind), str(tmp_path / "c.json")):
        scenario = simdev.load_scenario(of_large(cluster))
        assert memories(scenario.cluster) == [capacity] * 2


def test_a_limit_is_what_the_file_says_and_no_limit_is_asked_for(tmp_path: Path) -> None:
    of_kind = {
        "device_kinds": {"h100-sxm": {"memory": "unlimited"}, "k80": {"memory": "unlimited"}}
    }
    assert memories(read_cluster(gpus("h100-sxm", memory="1 GB"))) == [10**9]
    assert memories(read_cluster(gpus("h100-sxm", memory="unlimited"))) == [None]
    assert memories(read_cluster(gpus("h100-sxm") | of_kind)) == [None]
    assert memories(read_cluster(gpus("h100-sxm", memory="2 GB") | of_kind)) == [2 * 10**9]
    assert memories(read_cluster(gpus("gpu"))) == [None]
    for memory in ("lots", True, -1, [1]):
        with pytest.raises(InputError, match=r"devices\[0\].memory: "):
            read_cluster(gpus("h100-sxm", memory=memory))


def test_datasheets_of_a_scenario_go_first(tmp_path: Path) -> None:
    """The datasheets of a scenario come before those that ship, and each scenario has its own."""
    cluster = gpus("mine", "mine") | {"version": 1}
    written(tmp_path / "c.json", cluster)
    questions = []
    for memory in ("3 GB", "5 GB", None):
        sheet = MINE | ({} if memory is None else {"memory": memory})
        for door in (cluster, str(tmp_path / "c.json")):
            questions.append(of_large(door, devices=sheet))
    wanted = [3 * 10**9, 3 * 10**9, 5 * 10**9, 5 * 10**9, None, None]
    assert [memories(simdev.load_scenario(q).cluster)[0] for q in questions] == wanted
    rows = sweep(questions, n_jobs=1)
    assert list(rows["feasible"]) == [False, False, True, True, True, True]
    other = of_large(gpus("h100-sxm", "h100-sxm"), devices=MINE | {"kind": "h100-sxm"})
    assert memories(simdev.load_scenario(other).cluster) == [None, None]


def test_a_cluster_is_written_as_it_is(tmp_path: Path) -> None:
    """In Python None is unlimited, whatever the kind."""
    devices = (Device("a", "h100-sxm"), Device("b", "h100-sxm", "1 GB"), Device("c", "switch"))
    cluster = Cluster("mine", devices, ())
    assert memories(cluster) == [None, 10**9]
    write_cluster(cluster, tmp_path / "c.json")
    assert read_cluster(tmp_path / "c.json").devices == devices


def test_a_large_model_does_not_fit_where_datasheets_say_so() -> None:
    wide = {"graph": {"model": "llama3-70b"}, "strategy": {"pipeline": {"tp": 2}}}
    limited, free = (
        simdev.run(simdev.load_scenario(wide | {"cluster": gpus(*["h100-sxm"] * 2, **more)}))
        for more in ({}, {"memory": "unlimited"})
    )
    assert not limited.feasible
    assert free.feasible
    assert limited.step_ps == free.step_ps


def test_the_best_plan_of_a_mixed_cluster_fits_its_devices() -> None:
    options = {"microbatch": [8], "recompute": "none", "zero": 0, "tp": 1, "schedule": "1F1B"}
    peaks = []
    for more in ({}, {"memory": "unlimited"}):
        cluster = gpus("a100-80", "h100-sxm", **more)
        plans = simdev.plan("llama3.2-3b", cluster, 32, options=options, top=1)
        peaks.append([*plans["peak_bytes"], plans.attrs["counts"]["least_bytes"]])
    (limited, free) = peaks
    assert free[0] > 80 * 2**30
    assert len(limited) == 1  # no plan, for the least of them needs more than a device has
    assert limited[0] > 80 * 2**30


def test_an_import_asks_for_no_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "g.json", tmp_path / "s.json"
    nodes = [{"id": "a", "op": "MatMul", "time": 0.001}, {"id": "b", "op": "MatMul", "time": 0.001}]
    written(source, {"directed": True, "nodes": nodes, "links": [{"source": "a", "target": "b"}]})
    for memory, wanted in (([], read_device("v100").memory), (["--memory", "unlimited"], None)):
        line = ["import", "--format", "networkx", str(source), "--device", "v100", *memory]
        assert main([*line, "-o", str(out)]) == 0, capsys.readouterr().err
        assert memories(simdev.load_scenario(str(out)).cluster) == [wanted]
