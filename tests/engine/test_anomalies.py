"""Anomalies of list scheduling, each reproduced with its whole timeline, and the tiny worlds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.strategy import Order
from worlds.clusters import UNIT
from worlds.graphs import op
from worlds.programs import starts
from worlds.scenarios import World

# The anomaly museum: what is no law. Each case has the whole timeline before and after the change


@dataclass(frozen=True)
class Exhibit:
    """Ops with their durations; edges "02" (op0 -> op2); devices and output bytes of the ops; 1
    byte takes 1 ps.
    """

    durations: tuple[int, ...]
    edges: str
    devices: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    queues: str = "link"
    priority: tuple[int, ...] = ()
    bandwidth: int = 1
    latency: int = 0

    def world(self) -> World:
        sizes = self.sizes or (0,) * len(self.durations)
        ops = [
            op(
                f"op{i}",
                ps,
                *(f"op{a}" for a, b in self.edges.split() if int(b) == i),
                size=sizes[i],
            )
            for i, ps in enumerate(self.durations)
        ]
        priority = {f"op{i}": value for i, value in enumerate(self.priority)}
        devices = [Device(f"d{i}") for i in range(max(self.devices) + 1)]
        cluster = Cluster.all_to_all(
            "museum",
            devices,
            self.queues,
            bandwidth=self.bandwidth * UNIT,
            latency=f"{self.latency} ps",
        )
        return World.of(
            ops, cluster, self.devices, Order("priority", priority) if priority else Order()
        )

    def timeline(self) -> str:
        """The step, then every task in the order of start, finish, id; x(2,0) is the transfer of
        op2 to d0.
        """
        world = self.world()
        names = [
            re.sub(r"op(\d+):0>d(\d+)", r"x(\1,\2)", name) for name in world.task_graph.tasks.name
        ]
        trace = world.trace
        spans = trace.start.tolist(), trace.finish.tolist()
        rows = sorted(zip(*spans, range(len(names)), strict=True))
        return f"{world.step}: " + " ".join(
            f"{names[i]} [{start},{finish})" for start, finish, i in rows
        )


@dataclass(frozen=True)
class Anomaly:
    """What gets better, why the step gets longer, and the timelines before and after."""

    note: str
    base: Exhibit
    change: dict[str, object]
    before: str
    after: str


MUSEUM = {
    "a faster link": Anomaly(
        (
            "AN1: op1 reaches d1 early, op4 is queued there before op2, and the longest "
            "tail starts later"
        ),
        Exhibit((5, 1, 5, 4, 1), "02 03 13 14 23", (1, 0, 1, 0, 1), (2, 4, 1, 3, 2)),
        {"bandwidth": 2},
        (
            "15: op1 [0,1) op0 [0,5) x(1,1) [1,5) x(0,0) [5,7) op2 [5,10) op4 [10,11) "
            "x(2,0) [10,11) op3 [11,15)"
        ),
        (
            "16: op1 [0,1) op0 [0,5) x(1,1) [1,3) op4 [5,6) x(0,0) [5,6) op2 [6,11) x(2,0) "
            "[11,12) op3 [12,16)"
        ),
    ),
    "a faster op": Anomaly(
        "AN2: op2 is ready together with op3 now and goes first by its id, and op4 waits for op3",
        Exhibit((5, 4, 6, 4, 6), "02 04 12 13 14 34", (0, 1, 0, 0, 1), (6, 0, 5, 1, 4)),
        {"durations": (4, 4, 6, 4, 6)},
        (
            "18: op1 [0,4) op0 [0,5) x(1,0) [4,4) op3 [5,9) x(0,1) [5,11) op2 [9,15) "
            "x(3,1) [11,12) op4 [12,18)"
        ),
        (
            "21: op0 [0,4) op1 [0,4) x(1,0) [4,4) op2 [4,10) x(0,1) [4,10) op3 [10,14) "
            "x(3,1) [14,15) op4 [15,21)"
        ),
    ),
    "fewer dependencies": Anomaly(
        "AN3: op2 need not wait any more, and takes d1 before op1, whose tensor op3 waits for",
        Exhibit((2, 5, 3, 2), "01 03 12 13", (1, 1, 1, 0), (3, 1, 3, 5)),
        {"edges": "01 03 13"},
        "10: op0 [0,2) x(0,0) [2,5) op1 [2,7) x(1,0) [7,8) op2 [7,10) op3 [8,10)",
        "13: op0 [0,2) op2 [2,5) x(0,0) [2,5) op1 [5,10) x(1,0) [10,11) op3 [11,13)",
    ),
    "a faster op before a shared channel": Anomaly(
        "op1 sends first now, and keeps the channel that the longer op3 waits for",
        Exhibit((3, 3, 1, 5), "03 12", (0, 1, 0, 1), (2, 2, 0, 3), "half-duplex"),
        {"durations": (3, 2, 1, 5)},
        "10: op0 [0,3) op1 [0,3) x(0,1) [3,5) x(1,0) [5,7) op3 [5,10) op2 [7,8)",
        "11: op1 [0,2) op0 [0,3) x(1,0) [2,4) op2 [4,5) x(0,1) [4,6) op3 [6,11)",
    ),
    "fewer dependencies, one device": Anomaly(
        "op2 overtakes op1 on d0, and op1's transfer and the remote op3 come late",
        Exhibit((1, 4, 5, 4), "01 12 13", (0, 0, 0, 1), (1, 3, 3, 3), "half-duplex"),
        {"edges": "01 13"},
        "12: op0 [0,1) op1 [1,5) x(1,1) [5,8) op2 [5,10) op3 [8,12)",
        "17: op0 [0,1) op2 [1,6) op1 [6,10) x(1,1) [10,13) op3 [13,17)",
    ),
    "a smaller tensor": Anomaly(
        "x(0,0) arrives while op1 runs: op2 now stands before op3, whose large transfer goes last",
        Exhibit((3, 5, 5, 2, 1), "02 04 13 24 34", (1, 0, 0, 0, 1), (3, 0, 5, 4, 1)),
        {"sizes": (1, 0, 5, 4, 1)},
        (
            "18: op0 [0,3) op1 [0,5) x(0,0) [3,6) op3 [5,7) x(3,1) [7,11) op2 [7,12) "
            "x(2,1) [12,17) op4 [17,18)"
        ),
        (
            "20: op0 [0,3) op1 [0,5) x(0,0) [3,4) op2 [5,10) op3 [10,12) x(2,1) [10,15) "
            "x(3,1) [15,19) op4 [19,20)"
        ),
    ),
    "no latency": Anomaly(
        "op3 is ready before op1 and runs first; op1's large transfer starts later",
        Exhibit((3, 4, 2, 3, 5), "01 14 23", (0, 0, 1, 0, 1), (2, 5, 0, 4, 4), latency=1),
        {"latency": 0},
        "18: op2 [0,2) op0 [0,3) x(2,0) [2,3) op1 [3,7) op3 [7,10) x(1,1) [7,13) op4 [13,18)",
        "20: op2 [0,2) op0 [0,3) x(2,0) [2,2) op3 [3,6) op1 [6,10) x(1,1) [10,15) op4 [15,20)",
    ),
    "transfers that never wait": Anomaly(
        "without the queue x(1,1) arrives first, and op3 runs before op2, on which op4 waits",
        Exhibit((2, 1, 3, 4, 2), "02 12 13 14 24", (0, 0, 1, 1, 0), (4, 1, 5, 4, 4)),
        {"queues": "parallel"},
        (
            "17: op0 [0,2) op1 [2,3) x(0,1) [2,6) x(1,1) [6,7) op2 [7,10) op3 [10,14) "
            "x(2,0) [10,15) op4 [15,17)"
        ),
        (
            "18: op0 [0,2) op1 [2,3) x(0,1) [2,6) x(1,1) [3,4) op3 [4,8) op2 [8,11) x(2,0) "
            "[11,16) op4 [16,18)"
        ),
    ),
    "a faster op under priorities": Anomaly(
        "op3 is ready when d1 falls idle, not a round later, and goes before op1 by its priority",
        Exhibit(
            (5, 3, 5, 2, 2), "03 14 23", (1, 1, 0, 1, 0), (4, 3, 0, 0, 1), "link", (0, 2, 0, 1, 2)
        ),
        {"durations": (5, 3, 4, 2, 2)},
        "13: op0 [0,5) op2 [0,5) x(2,1) [5,5) op1 [5,8) op3 [8,10) x(1,0) [8,11) op4 [11,13)",
        "15: op2 [0,4) op0 [0,5) x(2,1) [4,4) op3 [5,7) op1 [7,10) x(1,0) [10,13) op4 [13,15)",
    ),
    "a faster link under priorities": Anomaly(
        "op3 arrives while d0 is idle and starts, just before the more urgent op2 is ready",
        Exhibit(
            (1, 3, 5, 1, 1), "03 12 24", (1, 0, 0, 0, 1), (4, 1, 0, 4, 3), "link", (2, 2, 1, 0, 1)
        ),
        {"bandwidth": 2},
        "9: op0 [0,1) op1 [0,3) x(0,0) [1,5) op2 [3,8) x(2,1) [8,8) op3 [8,9) op4 [8,9)",
        "10: op0 [0,1) op1 [0,3) x(0,0) [1,3) op3 [3,4) op2 [4,9) x(2,1) [9,9) op4 [9,10)",
    ),
    "fewer dependencies under priorities": Anomaly(
        "op1 need not wait for op0 and goes before it, by its priority",
        Exhibit((3, 1, 1), "01 02", (1, 1, 0), (0, 4, 4), "link", (2, 1, 0)),
        {"edges": "02"},
        "4: op0 [0,3) x(0,0) [3,3) op1 [3,4) op2 [3,4)",
        "5: op1 [0,1) op0 [1,4) x(0,0) [4,4) op2 [4,5)",
    ),
    "transfers that never wait, under equal priorities": Anomaly(
        (
            "x(1,1) comes no longer a round after x(0,1): op2 is ready with op3 and goes "
            "first, and op4 waits for op3"
        ),
        Exhibit(
            (1, 3, 4, 2, 3),
            "02 03 12 14 34",
            (0, 0, 1, 1, 0),
            (5, 0, 5, 0, 3),
            "half-duplex",
            (0, 1, 1, 1, 1),
        ),
        {"queues": "parallel"},
        (
            "12: op0 [0,1) op1 [1,4) x(0,1) [1,6) x(1,1) [6,6) op3 [6,8) x(3,0) [8,8) op4 "
            "[8,11) op2 [8,12)"
        ),
        (
            "15: op0 [0,1) op1 [1,4) x(0,1) [1,6) x(1,1) [4,4) op2 [6,10) op3 [10,12) "
            "x(3,0) [12,12) op4 [12,15)"
        ),
    ),
    "a faster op beside fair links": Anomaly(
        "op1 sends while x(0,1) does: both end late, and x(2,1) with them",
        Exhibit((5, 4, 1, 4), "03 13 23", (0, 0, 0, 1), (4, 1, 1, 2), "fair"),
        {"durations": (5, 3, 1, 4)},
        "15: op0 [0,5) op1 [5,9) x(0,1) [5,9) op2 [9,10) x(1,1) [9,10) x(2,1) [10,11) op3 [11,15)",
        "16: op0 [0,5) op1 [5,8) x(0,1) [5,11) op2 [8,9) x(1,1) [8,11) x(2,1) [9,12) op3 [12,16)",
    ),
    "a smaller tensor on fair links": Anomaly(
        "x(2,1) ends first now: op4 runs before op1, whose transfer op3 waits for",
        Exhibit((4, 4, 1, 5, 3), "01 13 23 24", (0, 1, 0, 0, 1), (4, 3, 4, 5, 5), "fair"),
        {"sizes": (4, 3, 2, 5, 5)},
        (
            "23: op0 [0,4) op2 [4,5) x(0,1) [4,11) x(2,1) [5,12) op1 [11,15) op4 [15,18) "
            "x(1,0) [15,18) op3 [18,23)"
        ),
        (
            "24: op0 [0,4) op2 [4,5) x(0,1) [4,10) x(2,1) [5,9) op4 [9,12) op1 [12,16) "
            "x(1,0) [16,19) op3 [19,24)"
        ),
    ),
}


@pytest.mark.parametrize("name", MUSEUM)
def test_the_anomaly_is_reproduced_exactly(name):
    anomaly = MUSEUM[name]
    better = replace(anomaly.base, **anomaly.change)
    assert (anomaly.base.timeline(), better.timeline()) == (anomaly.before, anomaly.after)
    assert better.world().step > anomaly.base.world().step


def test_an_idle_op_of_no_length_can_cost_time():
    """It takes one round of g0, so that b's tensor reaches g2 a round after v's, and c stands
    behind the longer d.
    """
    ops = [
        op("a", 2),
        op("s", 1),
        op("b", 0, "s"),
        op("c", 1, "b"),
        op("u", 2),
        op("v", 0, "u"),
        op("d", 3, "v"),
    ]
    ops.append(op("e", 5, "c"))
    cluster = Cluster.all_to_all(
        "four", [Device(f"g{d}") for d in range(4)], "parallel", bandwidth=UNIT
    )
    placement = [0, 1, 0, 2, 3, 3, 2, 3]
    assert World.of(ops, cluster, placement).step == 8
    assert World.of([*ops, op("idle", 0)], cluster, [*placement, 0]).step == 11


def test_an_idle_op_of_no_length_waits_for_a_gap():
    """The gap of a last op does not count in the step, but an op that stands behind it does."""
    cluster = Cluster("one", (Device("g0", gap="1 ps"),))
    assert World.of([op("a", 1)], cluster, [0]).step == 1
    assert World.of([op("a", 1), op("idle", 0)], cluster, [0, 0]).step == 2


# The tiny worlds of conftest.py


def test_a_chain(chain):
    assert (starts(chain.trace), chain.step) == ({"a": 0, "b": 1, "c": 3}, 6)


def test_a_diamond(diamond):
    assert (starts(diamond.trace), diamond.step) == ({"a": 0, "b": 1, "c": 3, "d": 6}, 7)


def test_two_gpus(two_gpus):
    """The transfers follow one another in the send queue: [1, 3) and [3, 4)."""
    assert (starts(two_gpus.trace), two_gpus.step) == (
        {"a": 0, "b": 1, "c": 4, "a:0>gpu:1": 1, "b:0>gpu:1": 3},
        6,
    )


def test_a_pipeline_of_four_stages(pipeline):
    """(m + p - 1)(f + b) of GPipe, and six transfers on the way: m = 2, p = 4, f = 1, b = 2."""
    assert pipeline.step == (2 + 4 - 1) * (1 + 2) + 6
