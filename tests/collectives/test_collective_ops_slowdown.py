"""Computation that shares its device with a collective; bad input of collective ops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_ops import (
    collective,
    lowered,
    mesh,
    two_nodes,
)
from simdev.costs import CostModel
from simdev.execution.scenario import Scenario, load_scenario
from simdev.files import read_strategy, write_strategy
from simdev.files.collectives import read_collectives
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, lower
from simdev.nouns.cluster import QUEUES, Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Collectives, Strategy
from simdev.nouns.taskgraph import COLLECTIVE
from simdev.nouns.trace import Trace
from simdev.report import run
from worlds.task_graphs import judged


def beside(
    work: int, sending: int, cost: str = "closed", slowdown: object = "1.3", queues: str = "link"
) -> Trace:
    """``work`` seconds of computation on one of two ranks, beside an all-reduce of so many
    seconds.
    """
    ops, place = collective("c", "all_reduce", ["g0", "g1"], sending, cost=cost)
    graph = Graph("two", (*ops, Op("work", time=work)))
    choice = Collectives(slowdown=slowdown)  # type: ignore[arg-type]
    cluster = mesh(2, queues, latency=0, bandwidth=1)
    return judged(
        lower(graph, cluster, CostModel(), Strategy(place | {"work": "g0"}, collectives=choice))
    )


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize(
    ("work", "sending", "step"), [(10, 6, "11.8"), (5, 12, "13.5"), (4, 4, "5.2"), (3, 0, "3")]
)
def test_g7_overlap_slows_both(work: int, sending: int, step: str, cost: str) -> None:
    trace = beside(work, sending, cost)
    assert abs(trace.end_ps - Fraction(step) * 10**12) <= 2  # every slowed task rounds up
    assert beside(work, sending, cost, 1).end_ps == max(work, sending) * 10**12
    assert beside(work, sending, cost, queues="parallel").end_ps == trace.end_ps


def test_nothing_slows_what_shares_no_device() -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1"], 6)
    graph = Graph("apart", (*ops, Op("work", time=10)))
    strategy = Strategy(place | {"work": "g2"}, collectives=Collectives(slowdown=2))  # type: ignore[arg-type]
    trace = judged(lower(graph, mesh(3, "link", latency=0, bandwidth=1), CostModel(), strategy))
    assert trace.end_ps == 10 * 10**12


@pytest.mark.parametrize(
    ("works", "sending", "ends"),
    [
        # each is slowed to 4 s, and the collective by 4 s twice
        ("work 2, rest 3, work 2", 20, (11, 24)),
        ("work 2, rest 3, work 2", 4, (9, 6)),  # it ends between the two: the second runs alone
        (
            "work 2, rest 3, work 2",
            6,
            (10, 9),
        ),  # it ends 2 s after the second began
        ("rest 3, work 2, rest 1, work 1", 4, (8, 5)),  # it begins alone, and ends amid the first
    ],
)
def test_stretches_that_lie_apart_slow_each_for_itself(
    works: str, sending: int, ends: tuple[int, int]
) -> None:
    """An all-reduce of two devices beside works of one in a row, with rests (on a third), at half
    speed together.
    """
    ops, place = collective("c", "all_reduce", ["g0", "g1"], sending)
    row = [part.split() for part in works.split(", ")]
    for i, (what, took) in enumerate(row):
        ops.append(Op(f"w{i}", control_inputs=(f"w{i - 1}",) if i else (), time=int(took)))
        place[f"w{i}"] = "g0" if what == "work" else "g2"
    strategy = Strategy(place, collectives=Collectives(slowdown=2))
    cluster = mesh(3, "link", latency=0, bandwidth=1)
    trace = judged(lower(Graph("apart", tuple(ops)), cluster, CostModel(), strategy))
    finish = dict(zip(trace.task_graph.tasks.name, trace.finish.tolist(), strict=True))
    assert (finish[f"w{len(row) - 1}"], finish["c"]) == tuple(end * 10**12 for end in ends)


def together(trace: Trace, tasks: Sequence[int], others: Sequence[int]) -> Iterator[int]:
    """For each task the ps that it runs beside any of the others, counted between all starts and
    finishes.
    """
    marks = sorted({*trace.start.tolist(), *trace.finish.tolist()})
    for task in tasks:
        yield sum(
            end - begin
            for begin, end in pairwise(marks)
            if trace.start[task] <= begin < trace.finish[task]
            and any(trace.start[one] <= begin < trace.finish[one] for one in others)
        )


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["g0", "g1", "g2"]), st.integers(1, 9)), min_size=1, max_size=5
    ),
    st.lists(
        st.tuples(st.permutations(["g0", "g1", "g2"]), st.integers(1, 9)), min_size=1, max_size=3
    ),
    st.sampled_from(["closed", "expanded"]),
    st.sampled_from(["1.1", "1.3", "2"]),
)
def test_slowed_durations_are_those_under_rates(
    works: list[tuple[str, int]], sums: list[tuple[list[str], int]], cost: str, slowdown: str
) -> None:
    """Alone d, slowed for o: each task lasts d + ceil((k - 1) / k x o)."""
    ops, place = (
        [Op(f"w{i}", time=time) for i, (_, time) in enumerate(works)],
        {f"w{i}": on for i, (on, _) in enumerate(works)},
    )
    for i, (ranks, size) in enumerate(sums):
        own, where = collective(f"c{i}", "all_reduce", ranks[:2], 2 * size, cost=cost)
        ops, place = [*ops, *own], place | where
    graph, cluster = Graph("many", tuple(ops)), mesh(3, "link", latency=0, bandwidth=1)
    plain = lower(graph, cluster, CostModel(), Strategy(place))
    trace = judged(
        lower(
            graph, cluster, CostModel(), Strategy(place, collectives=Collectives(slowdown=slowdown))
        )
    )  # type: ignore[arg-type]
    tasks = trace.task_graph.tasks
    on: dict[int, set[str]] = {}
    for task, kind in enumerate(tasks.kind):
        if kind == COLLECTIVE:
            ends = (int(tasks.source[task]), int(tasks.destination[task]))
            on[task] = {f"g{end}" for end in ends}
    share = 1 - 1 / Fraction(slowdown)
    for i, (device, _) in enumerate(works):
        (slow,) = together(trace, [i], [task for task, devices in on.items() if device in devices])
        assert tasks.duration[i] == plain.tasks.duration[i] - (
            -slow * share.numerator // share.denominator
        )
    for task, devices in on.items():
        (slow,) = together(
            trace, [task], [i for i, (device, _) in enumerate(works) if device in devices]
        )
        assert tasks.duration[task] == plain.tasks.duration[task] - (
            -slow * share.numerator // share.denominator
        )


@pytest.mark.parametrize(
    ("kind", "changes", "attrs", "problem"),
    [
        (
            "all_reduce",
            {},
            {"algorithm": "star"},
            r"ops\[3\]\.attrs\.algorithm: must be one of auto, ring, tree, hier.*, got \"star\"",
        ),
        (
            "all_reduce",
            {},
            {"cost": 3},
            r"ops\[3\]\.attrs\.cost: must be one of auto, closed, table, expanded, given, got 3",
        ),
        (
            "broadcast",
            {},
            {"chunks": 0},
            r"ops\[1\]\.attrs\.chunks: must be a whole number > 0, at most 2\^60, got 0",
        ),
        (
            "all_to_all",
            {},
            {"algorithm": "tree"},
            r'ops\[3\]: "c": algorithm: all_to_all has no tree algorithm',
        ),
        ("all_reduce", {}, {"cost": "table"}, r'ops\[3\]: "c": cost: "table" needs tables'),
        (
            "all_reduce",
            {"outputs": (Tensor(600),) * 2},
            {},
            r"ops\[3\]\.inputs: 3 ranks need as many inputs and outputs",
        ),
        (
            "all_gather",
            {"outputs": (Tensor(599),) * 3},
            {},
            r"ops\[3\]\.outputs: each must have the 600 bytes of all inputs together",
        ),
        (
            "reduce_scatter",
            {"outputs": (Tensor(1),) * 3},
            {},
            r"ops\[3\]\.inputs: each must have the 3 bytes of all outputs together",
        ),
        (
            "broadcast",
            {"outputs": (Tensor(600),) * 3},
            {},
            r"ops\[1\]\.inputs: broadcast of 3 ranks has 1 inputs and 2 outputs",
        ),
        (
            "reduce",
            {"outputs": (Tensor(600),) * 3},
            {},
            r"ops\[3\]\.inputs: reduce of 3 ranks has 3 inputs and 1 outputs",
        ),
        ("p2p", {}, {}, r"ops\[1\]\.attrs\.ranks: p2p joins two, got 3"),
        (
            "all_to_all",
            {"outputs": (Tensor(5),) * 3},
            {},
            r"ops\[3\]\.inputs: all inputs and outputs must have the same bytes",
        ),
        (
            "all_reduce",
            {},
            {"ranks": ["g0", "g1", "g7"]},
            r'ops\[3\]\.attrs\.ranks\[2\]: no device that runs ops is named "g7"',
        ),
        (
            "all_reduce",
            {},
            {"ranks": [["g0"], "g1", "g2"]},
            r"ops\[3\]\.attrs\.ranks: must name two devices at least",
        ),
    ],
)
def test_bad_collective_ops(
    kind: str, changes: dict[str, Any], attrs: dict[str, Any], problem: str
) -> None:
    ops, place = collective("c", kind, ["g0", "g1", "g2"], 600)
    ops[-1] = replace(ops[-1], attrs=dict(ops[-1].attrs) | attrs, **changes)
    with pytest.raises(InputError, match=problem):
        lower(Graph("bad", tuple(ops)), mesh(3, "link"), CostModel(), Strategy(place))


def test_an_op_that_names_no_ranks_is_told_to() -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1", "g2"], 600)
    ops[-1] = replace(ops[-1], attrs={})
    with pytest.raises(
        InputError, match=r'no time for "c" .*a collective names its devices in attrs\.ranks'
    ):
        lower(Graph("bad", tuple(ops)), mesh(3, "link"), CostModel(), Strategy(place))


def test_a_chain_of_a_billion_chunks_is_counted_not_walked() -> None:
    """n + k - 2 rounds of one byte; as lists of rounds they would not fit into memory."""
    cluster = mesh(3, "link", bandwidth=10**12, latency=0)
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    chosen = prepared.of(prepared.graph, Collectives(chunks=10**12))
    found = chosen.communicators.ring("broadcast", range(3), 10**12)
    assert found.duration_ps == 10**12 + 1


def test_groups_that_do_not_match_are_named() -> None:
    with pytest.raises(
        InputError, match="hierarchical needs equally many ranks on each node; there are 4, 1"
    ):
        lowered(two_nodes(4, "link"), "all_reduce", 500, 5, algorithm="hierarchical")
    with pytest.raises(
        InputError, match=r'"c": a collective sends from "g0" to "g1", but no route joins them'
    ):
        lowered(Cluster("apart", (Device("g0"), Device("g1"))), "all_reduce", 500)
    with pytest.raises(InputError, match=r'"c": an? .* takes more than 53 days'):
        lowered(mesh(2, "link", bandwidth=1), "all_reduce", 10**8)
    with pytest.raises(
        InputError, match=r"an all-reduce of \d+ bytes over 8 ranks takes more than 53 days"
    ):
        lowered(mesh(8, "link", bandwidth=1), "all_reduce", 3 * 10**6 * 8)
    with pytest.raises(InputError, match=r"slowdown: not under fair links"):
        beside(10, 6, queues="fair")


def test_an_expansion_too_large_is_refused() -> None:
    cluster = mesh(64, "link")
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    ring = prepared.communicators.ring("broadcast", range(64), 2**30, cost="expanded")
    assert ring.expanded
    with pytest.raises(InputError, match=r"cost: expanded makes more than 5000000 messages"):
        lowered(cluster, "broadcast", 2**30, cost="expanded", chunks=100_000)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], r"collectives: must be an object, got a list"),
        ({"algorithm": "rings"}, r"collectives\.algorithm: must be one of auto, ring, tree"),
        ({"cost": "guess"}, r"collectives\.cost: must be one of auto, closed, table, expanded"),
        ({"chunks": -1}, r"collectives\.chunks: must be a whole number > 0"),
        ({"slowdown": 0.5}, r"collectives\.slowdown: must be from 1 to 2, got 0.5"),
        ({"slowdown": "fast"}, r"collectives\.slowdown: must be a number"),
        (
            {"tables": "h200"},
            r'collectives\.tables: none are shipped as "h200"; there are those of a100-sxm',
        ),
        (
            {
                "tables": {
                    "version": 1,
                    "tables": [{"collective": "all_reduce", "ranks": 1, "anchors": []}],
                }
            },
            r"tables\[0\]\.ranks",
        ),
        (
            {"algorithms": "ring"},
            r'collectives\.algorithms: unknown key; did you mean "algorithm"\?',
        ),
    ],
)
def test_bad_choices_in_a_strategy(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_strategy({"version": 1, "placement": {"a": "g0"}, "collectives": value})


def test_choices_survive_a_file(tmp_path: Path) -> None:
    tables = read_collectives("h100-sxm")
    for choice in (
        Collectives(),
        Collectives("tree", "expanded", (), 7, Fraction(13, 10)),
        Collectives("auto", "table", tables),
    ):
        strategy = Strategy({"a": "g0"}, collectives=choice)
        write_strategy(strategy, tmp_path / "strategy.json")
        assert read_strategy(tmp_path / "strategy.json") == strategy
    with pytest.raises(InputError, match="collectives: must be Collectives"):
        Strategy({"a": "g0"}, collectives="ring")  # type: ignore[arg-type]


def test_the_page_on_collectives_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "collectives.md").read_text()
    (question,) = (
        json.loads(source) for source in re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    )
    steps = []
    for cost in ("expanded", "closed"):
        question["strategy"]["collectives"]["cost"] = cost
        steps.append(run(load_scenario(question)).step_ps)
    assert steps[0] == steps[1]
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(source, "collectives.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(
        r"^    (\w+ [\d.]+ ms, holds \d+ queues)$", page, re.MULTILINE
    )


@pytest.mark.parametrize("queues", QUEUES)
def test_a_collective_is_exposed_on_every_rank(queues: str) -> None:
    """Ranks between the first and the last wait for it too."""
    names = ["g0", "g1", "g2", "g3"]
    ops, place = collective("c", "all_reduce", names, 4000)
    report = run(Scenario(Graph("one", tuple(ops)), mesh(4, queues), CostModel(), Strategy(place)))
    exposed = {device.exposed_ps for device in report.devices}
    assert len(exposed) == 1
    assert exposed.pop() > 0
