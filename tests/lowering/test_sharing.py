"""What shares a device or a link: copies both ways at once, and computing beside copies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.scenario import Scenario
from simdev.files import read_cluster
from simdev.files.cluster import write_cluster
from simdev.ground.errors import InputError
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import TRANSFER
from simdev.oracle import Oracle
from simdev.report import run

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "profiles/h100/measured/overlap.json").read_text())
SIZE = MEASURED["bytes"]


def host_and_gpu(queues: str, both_ways: object = 1, beside_copies: object = 1) -> Cluster:
    """A GPU and its host, joined as measured: 512 MiB take 9.7458 ms."""
    rate = SIZE / (MEASURED["h2d"] * 1e-3)
    gpu = Device("gpu", "h100-sxm", beside_copies=beside_copies)  # type: ignore[arg-type]
    link = Link(("cpu", "gpu"), rate, both_ways=both_ways)  # type: ignore[arg-type]
    return Cluster("pair", (Device("cpu", "host-cpu"), gpu), (link,), queues)


def graph_of(ops: Iterable[tuple[str, float, str]]) -> tuple[Graph, dict[str, str]]:
    """Ops that take so many ms on their device, and send SIZE bytes to the other where they say
    ``>``, with their placement.
    """
    nodes, places = [], {}
    for name, ms, device in ops:
        sends = device.endswith(">")
        nodes.append(Op(name, outputs=(Tensor(SIZE),) if sends else (), time=ms * 1e-3))
        places[name] = device.rstrip(">")
        if sends:
            nodes.append(Op(f"{name} there", inputs=(name,), time=0))
            places[f"{name} there"] = "gpu" if places[name] == "cpu" else "cpu"
    return Graph("g", tuple(nodes)), places


def step_ms(cluster: Cluster, *ops: tuple[str, float, str]) -> float:
    """The step time of such ops, as checker and oracle confirm it."""
    graph, places = graph_of(ops)
    report = run(Scenario(graph, cluster, CostModel(), Strategy(places)))
    assert check(report.trace.task_graph, report.trace) == ()
    assert Oracle(graph, cluster)(places).step_ps == report.step_ps
    return report.step_ps / 1e9


@pytest.mark.parametrize("queues", [queues for queues in QUEUES if queues != "half-duplex"])
def test_copies_both_ways_at_once_take_as_long_as_measured(queues: str) -> None:
    copies = ("up", 0, "cpu>"), ("down", 0, "gpu>")
    factor = MEASURED["both"] / MEASURED["h2d"]
    assert step_ms(host_and_gpu(queues), *copies) == pytest.approx(MEASURED["h2d"], rel=1e-6)
    both = step_ms(host_and_gpu(queues, both_ways=f"{factor:.4f}"), *copies)
    assert both == pytest.approx(MEASURED["both"], rel=1e-4)
    # One way alone is as fast as ever, and half duplex serves one after the other anyway.
    alone = step_ms(host_and_gpu(queues, both_ways="1.15"), ("up", 0, "cpu>"))
    assert alone == pytest.approx(MEASURED["h2d"], rel=1e-6)


def test_a_kernel_beside_a_copy_takes_as_long_as_measured() -> None:
    kernel, copy = MEASURED["memory_bound"], MEASURED["h2d"]
    # max(c, d) + (k - 1) min(c, d), the one that is longer first
    factor = 1 + (MEASURED["memory_and_h2d"] - max(kernel, copy)) / min(kernel, copy)
    cluster = host_and_gpu("link", beside_copies=f"{factor:.5f}")
    ops = ("batch", 0, "cpu>"), ("kernel", kernel, "gpu")
    assert step_ms(cluster, *ops) == pytest.approx(MEASURED["memory_and_h2d"], rel=1e-4)
    assert step_ms(host_and_gpu("link"), *ops) == pytest.approx(kernel, rel=1e-6)


def test_what_begins_later_is_slowed_for_the_overlap_alone() -> None:
    cluster = host_and_gpu("link", both_ways=2)
    copy = MEASURED["h2d"]
    # Down begins when up is half done: at half speed up needs another copy, down is half done then.
    found = step_ms(cluster, ("up", 0, "cpu>"), ("down", copy / 2, "gpu>"))
    assert found == pytest.approx(2 * copy, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["cpu>", "gpu>", "gpu"])), max_size=6),
    st.sampled_from(["device", "link", "parallel"]),
)
def test_every_task_lasts_as_long_as_what_it_runs_beside_says(
    ops: list[tuple[int, str]], queues: str
) -> None:
    """D = d + (1 - 1 / k) x the time beside the other side, counted interval by interval."""
    graph, places = graph_of((f"op{i}", ms, device) for i, (ms, device) in enumerate(ops))
    cluster = host_and_gpu(queues, both_ways="1.25", beside_copies="1.1")
    trace = run(Scenario(graph, cluster, CostModel(), Strategy(places))).trace
    tasks, alone = (
        trace.task_graph.tasks,
        lower(graph, cluster, CostModel(), Strategy(places)).tasks,
    )
    ends = list(zip(trace.start.tolist(), trace.finish.tolist(), strict=True))
    sends = [kind == TRANSFER for kind in tasks.kind]

    def beside(row: int, others: list[int]) -> int:
        marks = sorted({time for pair in ends for time in pair})
        return sum(
            b - a
            for a, b in pairwise(marks)
            if ends[row][0] <= a < ends[row][1]
            and any(ends[other][0] <= a < ends[other][1] for other in others)
        )

    for row in range(len(tasks)):
        here = [r for r in range(len(tasks)) if not sends[r] and tasks.source[r] == 1]
        copies = [r for r in range(len(tasks)) if sends[r]]
        back = [r for r in copies if tasks.source[r] != tasks.source[row]]
        longer = 0.0
        if sends[row]:
            longer = beside(row, back) * 0.2 + beside(row, here) * (1 - 1 / 1.1)
        elif tasks.source[row] == 1:
            longer = beside(row, copies) * (1 - 1 / 1.1)
        assert abs(int(tasks.duration[row] - alone.duration[row]) - longer) <= 2


def test_files_tell_of_it(tmp_path: Path) -> None:
    cluster = host_and_gpu("link", both_ways="1.15", beside_copies="1.02")
    write_cluster(cluster, tmp_path / "c.json")
    assert read_cluster(tmp_path / "c.json") == cluster
    written = json.loads((tmp_path / "c.json").read_text())
    assert (written["links"][0]["both_ways"], written["devices"][1]["beside_copies"]) == (
        "1.15",
        "1.02",
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"both_ways": 0.9}, r"both_ways: must be from 1 to 2, got 0\.9"),
        ({"both_ways": 1.2, "duplex": "half"}, "both_ways: only a full-duplex link has two ways"),
        ({"both_ways": "much"}, "both_ways"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], problem: str) -> None:
    link = {"ends": ["a", "b"], "bandwidth": "1 GB/s", **change}
    with pytest.raises(InputError, match=problem):
        read_cluster({"devices": [{"name": "a"}, {"name": "b"}], "links": [link]})


def test_under_fair_links_computing_beside_copies_is_refused() -> None:
    with pytest.raises(InputError, match=r"beside_copies, collectives\.slowdown: not under fair"):
        step_ms(host_and_gpu("fair", beside_copies="1.1"), ("b", 0, "cpu>"), ("k", 1, "gpu"))
