"""Placeto's way to count memory; files, command line and Report."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bad.scenarios import CLUSTER, GRAPH, scenario
from memory_graphs import PYTORCH, MiB, asked, traced
from peers import PEERS
from simdev import Oracle, load_scenario, run
from simdev.commands import main
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.execution.scenario import Outcome
from simdev.ground.errors import InputError
from simdev.lowering import lower
from simdev.nouns.graph import Graph
from simdev.nouns.memory import NCCL_PAIR, MemoryModel
from simdev.nouns.strategy import Strategy
from simdev.report import analyze
from simdev.report.measures.footprint import AllocatorUse, allocator_use
from worlds.clusters import joined
from worlds.graphs import op
from worlds.scenarios import World


def test_outputs_only_counts_outputs_until_the_last_consumer_anywhere_is_done() -> None:
    """a(1) writes 7 bytes for b(5) on the other device: they stay at a's device until b has
    finished.
    """
    held = {"param_bytes": 100, "state_bytes": 100, "workspace_bytes": 100}
    world = World.of(
        [op("a", 1, size=7, **held), op("b", 5, "a", size=2), op("c", 1, "a")], joined(2), [0, 1, 0]
    )
    first, second = traced(world, MemoryModel(model="outputs_only")).memory
    # sent from 1 to 8, b until 13
    assert (first.time.tolist(), first.level.tolist()) == ([0, 13], [7, 0])
    assert (second.time.tolist(), second.level.tolist()) == ([8, 13], [2, 0])


def test_the_example_of_the_docs_is_an_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "memory.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    MemoryModel(**json.loads(example))


def test_outputs_only_stands_alone() -> None:
    with pytest.raises(InputError, match="outputs_only"):
        MemoryModel(model="outputs_only", rounding="pytorch")


def test_peaks_of_placeto() -> None:
    """Its probes: 216 of 225 peaks are equal.

    The rest differ by what it does otherwise: it cuts times to whole microseconds and frees one
    earlier, applies additions before releases, and so counts outputs that live for no time.
    """
    from worlds.placeto import cluster, simdev_graph

    with gzip.open(PEERS / "placeto_sim" / "probes.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    equal = total = 0
    for record in records:
        graph = simdev_graph(record, list(range(len(record["nodes"]))), {})
        for one in record["placements"]:
            placement = {node.name: f"d{one['place'][int(node.name[2:])]}" for node in graph.ops}
            memory = MemoryModel(model="outputs_only")
            trace = simulate(
                lower(graph, cluster(record), CostModel(), Strategy(placement), memory), "simpy"
            )
            equal += [device.peak for device in trace.memory] == one["peak_bytes"]
            total += 1
    assert (equal, total) == (216, 225)


def test_the_default_report_is_as_ever() -> None:
    report = run(load_scenario(json.loads(scenario())))
    assert report.footprint is None
    assert "memory" not in report.to_json()
    assert "allocator" not in str(report)
    # Samples by second are the scenario's; a trace alone tells all else.
    alone = analyze(Outcome(report.trace)).to_json().keys()
    assert alone | {"throughput"} == report.to_json().keys()


def test_the_report_tells_what_memory_was_counted() -> None:
    options = {
        "rounding": "pytorch",
        "optimizer": "adam",
        "context": "1 kB",
        "communication": {"gpu": "nccl"},
    }
    report = run(load_scenario(json.loads(asked(options))))
    found = report.to_json()["memory"]
    assert found["options"] == options
    assert found["allocator"]["gpu:0"] == {
        "requested_bytes": 8,
        "allocated_bytes": 512,
        "reserved_bytes": 2 * MiB,
        "outside_bytes": 1000 + NCCL_PAIR,
        "flushes": 0,
        "failed": None,
    }
    text, page = str(report), report._repr_html_()
    for told in (
        "Held at the peak",
        "PyTorch's caching allocator, peaks",
        "rounding pytorch, optimizer adam",
    ):
        assert told in text
        assert told.replace("'", "&#x27;") in page
    assert max(map(len, text.splitlines())) < 120
    json.dumps(report.to_json(), allow_nan=False)


def test_the_report_tells_where_the_allocator_fails() -> None:
    """1.5 MiB and 512 bytes need a segment of 20 MiB, and 21 MiB are there beside another segment
    of 2 MiB.
    """
    graph = {
        "ops": [{"name": "a", "time": "1 us", "outputs": [{"bytes": 8}, {"bytes": 1_500_000}]}]
    }
    cluster = {"devices": [{"name": "gpu:0", "memory": "21 MiB"}]}
    report = run(
        load_scenario(json.loads(asked({"rounding": "pytorch"}, graph=graph, cluster=cluster)))
    )
    assert report.feasible  # the bytes fit; that the allocator would need more is told beside it
    assert report.footprint is not None
    (use,) = report.footprint.allocators
    assert use == AllocatorUse(
        "gpu:0", 1_500_008, 512 + 1_500_160, 22 * MiB, 0, 1, (0, "a:1", 1_500_000)
    )
    assert "gpu:0: at 0 ps its allocator cannot serve 1.43 MiB for a:1" in str(report)


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_the_command_line_honours_the_options(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba")
    monkeypatch.chdir(tmp_path)
    small = CLUSTER | {"devices": [{"name": "gpu:0", "memory": 500}]}
    Path("s.json").write_text(scenario(cluster=small))
    Path("r.json").write_text(asked({"rounding": "pytorch"}, cluster=small))
    assert main(["simulate", "s.json", "--engine", engine]) == 0
    capsys.readouterr()
    assert (
        main(["simulate", "r.json", "--engine", engine, "--check", "--json", "--save", "run.json"])
        == 1
    )
    assert json.loads(capsys.readouterr().out)["memory_excess_bytes"] == 12
    assert main(["check", "run.json"]) == 0


@pytest.mark.parametrize(
    ("memory", "lines"),
    [
        ({"rounding": "512"}, ['rounding: must be one of none, pytorch, got "512"']),
        ({"roundin": "none"}, ['roundin: unknown key; did you mean "rounding"?']),
        (
            {"optimizer": "adagrad", "model": "all"},
            [
                'model: must be one of full, outputs_only, got "all"',
                (
                    "optimizer: must be one of sgd, momentum, adam, mixed-momentum, "
                    'mixed-adam, got "adagrad"'
                ),
            ],
        ),
        ({"gradients": 3}, ["gradients: must be 0, 1 or 2 copies, got 3"]),
        ({"gradients": True}, ["gradients: must be a whole number, got true"]),
        ({"expandable": True}, ['expandable: means something only with "rounding": "pytorch"']),
        (
            {"context": "0.6 GBs"},
            ['context: has the unknown unit "GBs" in "0.6 GBs"; write it like "80 GiB"; or "cuda"'],
        ),
        (
            {"context": "nccl"},
            ['context: must be a number or a string like "80 GiB", got "nccl"; or "cuda"'],
        ),
        (
            {"communication": {"gpu": -1}},
            ['communication["gpu"]: must not be negative, got -1; or "nccl"'],
        ),
    ],
)
def test_broken_options_are_refused(
    memory: dict[str, Any], lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.json").write_text(asked(memory))
    with pytest.raises(InputError) as error:
        load_scenario("f.json")
    assert str(error.value).splitlines() == [f"f.json: options.memory.{line}" for line in lines]


def test_a_dtype_that_mixed_precision_cannot_use_names_the_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = {"ops": [GRAPH["ops"][0] | {"param_bytes": 8}]}
    Path("f.json").write_text(asked({"optimizer": "mixed-adam", "dtype": "float32"}, graph=graph))
    assert main(["simulate", "f.json"]) == 2
    assert 'f.json: ops[0]: "a" has parameters of float32' in capsys.readouterr().err


def test_a_served_scenario_is_asked_with_its_memory(tmp_path: Path) -> None:
    from simdev.commands.server.state import ServerState

    value = json.loads(asked({"rounding": "pytorch"}))
    loaded = ServerState().load(value)
    assert loaded.oracle({"*": "gpu:0"}).peaks == (512, 0)
    assert ServerState().load(json.loads(scenario())).handle != loaded.handle


def test_a_session_counts_memory_the_same_way() -> None:
    ops = [op("a", 1, size=5), op("b", 1, "a", size=3)]
    for memory in (PYTORCH, MemoryModel(model="outputs_only"), MemoryModel(context=2000)):
        oracle = Oracle(Graph("g", tuple(ops)), joined(2, memory=1500), memory=memory)
        session = oracle.session([0, 0])
        proposed = session.propose("b", "g1")
        world = World.of(ops, joined(2, memory=1500), [0, 1])
        trace = traced(world, memory)
        assert (proposed.peaks, proposed.feasible) == (
            tuple(one.peak for one in trace.memory),
            trace.feasible,
        )


def test_an_empty_device_holds_nothing() -> None:
    world = World.of([op("a", 1, size=5)], joined(2), [0])
    (_, idle) = allocator_use(traced(world, PYTORCH))
    assert idle == AllocatorUse("g1", 0, 0, 0, 0, 0, None)
    assert np.array_equal(traced(world, PYTORCH).memory[1].level, [])
