"""The documented commands on Chakra traces, as they are written; execution traces of PyTorch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from foreign import ALL_REDUCE, COLL, COMP, node, write
from simdev import load_scenario
from simdev.commands import main
from simdev.report import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "importers.md").read_text()
SECTION = PAGE[PAGE.index("## Chakra traces") : PAGE.index("## Clusters and collectives")]
COMMANDS = re.findall(r"^    simdev (import .*)$", SECTION, re.MULTILINE)


def ranks(folder: Path, **host: bool) -> None:
    """Two ranks of a step: what the host does, a computation, an all-reduce, a computation."""
    for rank in range(2):
        write(
            folder / f"trace.{rank}.et",
            node(0, COMP, us=30, **host),
            node(1, COMP, (0,), us=100),
            node(2, COLL, (1,), comm_type=ALL_REDUCE, comm_size=10**6),
            node(3, COMP, (2,), us=50),
        )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("host", [{}, {"is_cpu_op": True}], ids=["gpu alone", "with host"])
def test_the_documented_commands_run(command, host, tmp_path, monkeypatch, capsys):
    pytest.importorskip("google.protobuf")
    monkeypatch.chdir(tmp_path)
    ranks(tmp_path, **host)
    assert main(shlex.split(command)) == 0, capsys.readouterr().err
    scenario = load_scenario("step.json")
    (collective,) = [op for op in scenario.graph.ops if op.kind == "all_reduce"]
    assert len(collective.attrs["ranks"]) == (8 if "--cluster" in command else 2)
    assert 180 < run(scenario).step_ps / 10**6 < 500
    assert bool(host) == any(device.name == "cpu:1" for device in scenario.cluster.devices)


def test_there_are_documented_commands():
    assert len(COMMANDS) == 2


def test_more_ranks_than_the_cluster_has_devices_are_refused(tmp_path, capsys):
    pytest.importorskip("google.protobuf")
    ranks(tmp_path)
    command = ["import", str(tmp_path / "trace.0.et"), "-o", str(tmp_path / "s.json")]
    assert main([*command, "--devices", "9", "--cluster", "dgx-a100-80"]) == 2
    assert "--cluster: 8 devices for 9 ranks" in capsys.readouterr().err


def test_an_execution_trace_of_pytorch_is_told_from_chakras(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from torch.profiler import ExecutionTraceObserver

    path = str(tmp_path / "et.json")
    observer = ExecutionTraceObserver().register_callback(path)
    observer.start()
    torch.ones(3).add(1)
    observer.stop()
    observer.unregister_callback()
    assert main(["import", path, "-o", str(tmp_path / "s.json")]) == 2
    printed = capsys.readouterr().err
    assert "an execution trace of PyTorch (ExecutionTraceObserver), which tells no times" in printed
