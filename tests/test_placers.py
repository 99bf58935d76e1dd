"""Graph preparation and the list placers: what they promise, and Baechi's own results on its measured GNMT graph."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from measured_gnmt import cluster, gnmt, golden
from simdev import Oracle
from simdev.cluster import Cluster, Device
from simdev.errors import InputError
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared
from simdev.profile import CostModel
from simdev.search import METHODS, confirm, prepare, search
from simdev.search.baechi import earliest_first, topological_fill
from simdev.search.baechi.favourite import Relaxed, favourites, relaxed
from simdev.search.instance import Instance
from simdev.search.kernels.compiling import Columns
from simdev.search.lists import clock_of, lists_of
from simdev.search.memory import held_of
from simdev.search.prepare import Grouped, adjust, colocate, coplace, forward, fuse, mates, pair
from strategies import UNIT, Tape, drawn, op, worlds

pytest.importorskip("scipy")
OTHERS = ("dnn-ip", "dnn-contiguous", "dnn-latency", "pipedream")
PLACERS = [name for name, method in METHODS.items() if name not in OTHERS and not method.splits]


def groups_of(graph: Graph) -> list[list[str]]:
    return [[graph.ops[i].name for i in members] for members in graph.groups.values() if len(members) > 1]


def two(memory: int | None = None, queues: str = "half-duplex") -> Cluster:
    return Cluster.all_to_all("two", [Device(f"g{d}", memory=memory) for d in range(2)], queues, bandwidth=UNIT)


# Graph preparation


def test_tensorflow_classes_are_united_over_ops_that_declare_several():
    ops = [
        op("a", 1, attrs={"_class": ["loc:@x"]}),
        op("b", 1, attrs={"_class": ["loc:@x", "loc:@y"]}),
        op("c", 1, attrs={"_class": ["loc:@y"]}),
        op("d", 1, attrs={"_class": ["loc:@e"]}),
        op("e", 1),
        op("f", 1),
    ]
    found = colocate(Graph("tf", tuple(ops))).graph
    assert groups_of(found) == [["a", "b", "c"], ["d", "e"]]
    assert found.ops[5].colocate is None


def test_united_groups_take_the_shortest_then_first_name():
    ops = [
        op("a", 1, colocate="long"),
        op("b", 1, colocate="long", attrs={"_class": ["loc:@c"]}),
        op("c", 1, colocate="zz"),
    ]
    assert {one.colocate for one in colocate(Graph("g", tuple(ops))).graph.ops} == {"zz"}


def test_an_op_with_one_consumer_joins_it():
    """a is read twice by b (one consumer), b by c and d, c by d alone."""
    ops = [
        Op("a", outputs=(Tensor(1), Tensor(1)), time="1 ps"),
        op("b", 1, "a:0", "a:1"),
        op("c", 1, "b"),
        op("d", 1, "b", "c"),
    ]
    assert groups_of(coplace(Graph("g", tuple(ops))).graph) == [["a", "b"], ["c", "d"]]


def test_co_placement_may_leave_control_inputs_out():
    ops = [op("a", 1), op("b", 1, "a"), op("c", 1, control_inputs=("a",))]
    graph = Graph("g", tuple(ops))
    assert groups_of(coplace(graph).graph) == []
    assert groups_of(coplace(graph, control=False).graph) == [["a", "b"]]


def training() -> Graph:
    """Two layers with names as builders give them, their backward and an update."""
    ops = [
        op("w", 1, kind="parameter", param_bytes=4, size=4),
        op("l1/matmul", 2, "w", size=1),
        op("l2/relu", 1, "l1/matmul", size=1),
        op("grad/l2/relu_backward", 1, "l2/relu", phase="backward", size=1),
        op("grad/l1/matmul_1", 2, "grad/l2/relu_backward", "w", phase="backward", size=4),
        op("update/w", 1, "w", "grad/l1/matmul_1", phase="update", attrs={"forward": "w"}),
    ]
    return Graph("training", tuple(ops))


def test_backward_ops_go_with_their_forward_ops():
    graph = training()
    assert [graph.ops[i].name for i in mates(graph)] == ["w", "l1/matmul", "l2/relu", "l2/relu", "l1/matmul", "w"]
    assert groups_of(pair(graph).graph) == [
        ["w", "l1/matmul", "grad/l1/matmul_1", "update/w"],  # parameters go with what reads them first
        ["l2/relu", "grad/l2/relu_backward"],
    ]


def test_forward_placement_plans_forward_ops_and_brings_the_others_back():
    found = forward(training())
    assert [one.name for one in found.graph.ops] == ["w", "l1/matmul", "l2/relu"]
    assert found.back([0, 1, 0]).tolist() == [0, 1, 0, 0, 1, 0]
    instance = Instance(Prepared(training(), two(), CostModel()), found)
    assert instance.duration[:, 0].tolist() == [1, 2, 1]  # the forward pass only
    assert held_of(instance).persistent.tolist() == [4, 0, 0]


def test_forward_placement_refuses_what_has_no_forward_op():
    with pytest.raises(InputError, match='the forward op of "b" cannot be told'):
        forward(Graph("g", (op("a", 1), op("b", 1, phase="backward"))))


def test_fusion_leaves_what_could_close_a_cycle():
    r"""All one group but c: a -> b -> d and a -> c -> d. Fusing a with d would close a cycle; a with b is safe."""
    ops = [
        op("a", 1, size=2, colocate="g", workspace_bytes=5),
        op("b", 2, "a", size=3, colocate="g"),
        op("c", 3, "a", size=4),
        op("d", 4, "b", "c", "a", colocate="g"),
    ]
    found = fuse(Graph("g", tuple(ops)))
    assert [one.name for one in found.graph.ops] == ["a", "c", "d"]
    assert found.runs == ((0, 1), (2,), (3,))
    first = found.graph.ops[0]
    assert (first.seconds_on("gpu"), [t.bytes for t in first.outputs], first.workspace_bytes) == (
        Fraction(3, 10**12),
        [2, 3],
        5,
    )
    assert found.graph.ops[2].inputs == ("a:0", "a:1", "c:0")
    assert found.back([0, 1, 0]).tolist() == [0, 0, 1, 0]


def test_a_fused_op_needs_the_peak_of_what_it_holds_inside():
    """a (8) -> b (1) -> c: while b runs, 8 + 1 bytes and its workspace of 2 are held."""
    ops = [op("a", 1, size=8), op("b", 1, "a", size=1, workspace_bytes=2), op("c", 1, "b", size=4)]
    found = fuse(Graph("g", tuple(replace(one, colocate="all") for one in ops)))
    assert (len(found.graph.ops), found.graph.ops[0].workspace_bytes) == (1, 11)


@pytest.mark.parametrize(("rule", "where"), [("first", 0), ("most", 1), ("largest", 2), ("sum", 1)])
def test_co_adjustment_moves_a_group_to_one_device(rule, where):
    ops = [op(f"o{i}", 1, colocate="all") for i in range(4)]
    found = adjust(Graph("g", tuple(ops)), rule, weights=[1, 4, 4, 6])
    assert all(one.colocate is None for one in found.graph.ops)
    assert found.back([0, 1, 1, 2]).tolist() == [where] * 4


def test_co_adjustment_refuses_unknown_rules_and_must_be_last():
    graph = training()
    with pytest.raises(InputError, match="rule: must be one of first, most"):
        adjust(graph, "least")
    with pytest.raises(InputError, match='"adjust" must be the last'):
        prepare(graph, ["adjust", "fuse"])


def dag(tape: Tape) -> Graph:
    """Up to 9 ops in some groups; sizes and times full of ties, zeros among them."""
    count = 2 + tape.number(8)
    ops = []
    for i in range(count):
        before = [f"o{j}" for j in tape.some(3, i)] if i else []
        group = tape.pick(None, None, "x", "y")
        fields = {"param_bytes": tape.pick(0, 0, 2), "workspace_bytes": tape.pick(0, 0, 3)}
        ops.append(op(f"o{i}", tape.pick(1, 2, 5, 0), *before, size=tape.pick(1, 0, 4), colocate=group, **fields))
    return Graph("dag", tuple(ops))


@given(drawn(dag))
def test_every_preparation_keeps_the_graph_and_its_groups(graph):
    for names in (["colocate"], ["coplace"], ["coplace", "fuse"], ["fuse"], ["pair", "fuse"], ["forward"], ["adjust"]):
        found = prepare(graph, names)
        assert sorted(i for members in found.members for i in members) == list(range(len(graph.ops)))
        devices = np.arange(len(found.graph.ops)) % 3
        for members in found.graph.groups.values():
            devices[list(members)] = devices[members[0]]
        placed = found.back(devices)
        for members in graph.groups.values():
            assert len(set(placed[list(members)].tolist())) == 1


@given(drawn(dag))
def test_fusing_keeps_what_is_between_nodes(graph):
    """Fused or not, the instance that placers read has the same edges; the sum of times stays."""
    found = fuse(graph)
    fused = Instance(Prepared(found.graph, two(), CostModel()), Grouped.of(found.graph))
    seen = Instance(Prepared(graph, two(), CostModel()), found)
    assert fused.edges == seen.edges
    assert fused.duration.tolist() == seen.duration.tolist()
    assert held_of(fused).made.tolist() == held_of(seen).made.tolist()


def test_preparations_after_a_fusion_of_nothing_keep_the_order_of_operands():
    """``fuse`` lists operands anew; what is placed are ops of the graph as it was given."""
    ops = [op("x", 1, size=1), op("y", 1, size=2), op("z", 1, "y", "x", "y", control_inputs=("x",))]
    graph = Graph("g", tuple(ops))
    for names in (["fuse", "pair"], ["fuse", "colocate", "coplace"], ["forward", "fuse", "pair"]):
        found = prepare(graph, names)
        assert found.original == graph
        assert [one.inputs for one in found.colocated.ops] == [one.inputs for one in ops]


def test_ops_that_are_placed_freely_are_those_of_the_graph():
    graph = training()
    for names in (["fuse", "adjust"], ["forward", "adjust"], ["pair", "fuse", "adjust"]):
        with pytest.raises(InputError, match='"adjust" places single ops; it follows neither "fuse" nor "forward"'):
            prepare(graph, names)
    found = prepare(graph, ["pair", "adjust"])
    assert len(found.graph.ops) == len(graph.ops)
    assert groups_of(found.original) == groups_of(pair(graph).graph)


def test_co_placement_leaves_alone_what_a_collective_reads():
    """It stands on its rank, wherever others do."""
    ops = [op("a", 1, size=4), op("b", 1, size=4)]
    ops.append(Op("r", "reduce", inputs=("a", "b"), outputs=(Tensor(4),), attrs={"ranks": ["g0", "g1"]}))
    assert groups_of(coplace(Graph("g", (*ops, op("c", 1, "r")))).graph) == [["r", "c"]]


def test_the_expert_keeps_the_groups_of_a_preparation():
    oracle = Oracle(training(), two())
    found = search(oracle, "expert", prepare=["coplace"])
    assert confirm(oracle, found) == ()


# Brute force


@settings(max_examples=12)
@given(drawn(dag))
def test_no_placer_beats_the_optimum(graph):
    oracle = Oracle(graph, two())
    best = min(oracle(list(one)).step_ps for one in product(range(2), repeat=len(oracle.groups)))
    for method in PLACERS:
        found = search(oracle, method, 100)
        assert found.cost.step_ps >= best
    assert search(oracle, "annealing", 500).cost.step_ps <= best * 1.2


@settings(max_examples=15)
@given(drawn(dag))
def test_placers_find_room_where_there_is_room(graph):
    """With the least memory in which some placement fits, methods that look on find one that fits."""
    free = Oracle(graph, two())
    peaks = [max(free(list(one)).peaks) for one in product(range(2), repeat=len(free.groups))]
    tight = Oracle(graph, two(memory=max(min(peaks) * 5 // 4, 1)))
    for method in ("m-topo", "m-etf", "m-sct", "heft", "critical-path", "greedy"):
        found = search(tight, method, 500)
        if found.cost.feasible:
            assert confirm(tight, found) == ()
        seen = [point.memory_excess for point in found.points]
        assert seen == sorted(seen, reverse=True)
    assert search(tight, "annealing", 1000).cost.feasible


@settings(max_examples=30)
@given(worlds(policies=("fifo",)))
def test_placers_answer_on_any_cluster(world):
    """Any queues and transfers, switches, staging hosts: each answer is what the reference engine says."""
    oracle = Oracle(world.graph, world.cluster)
    for method in ("round-robin", "heft", "critical-path", "m-topo", "m-etf", "m-sct", "annealing"):
        found = search(oracle, method, 20)
        assert confirm(oracle, found) == ()


# Baechi


def instance_of(ops: list[Op], machine: Cluster) -> Instance:
    graph = Graph("g", tuple(ops))
    return Instance(Prepared(graph, machine, CostModel()), Grouped.of(graph))


def test_m_etf_starts_the_earliest_first():
    """a -> b, c: c moves to the idle device, since sending a takes 2 and waiting for b 5."""
    ops = [op("a", 1, size=2), op("b", 5, "a"), op("c", 4, "a")]
    assert earliest_first(instance_of(ops, two()), [-1, -1]).tolist() == [0, 0, 1]
    near = [replace(ops[0], outputs=(Tensor(9),)), *ops[1:]]
    assert earliest_first(instance_of(near, two()), [-1, -1]).tolist() == [0, 0, 0]


def test_m_etf_places_a_group_with_its_first_op():
    ops = [op("a", 5, colocate="x"), op("b", 5), op("c", 1, "b", colocate="x", size=1)]
    assert earliest_first(instance_of(ops, two()), [-1, -1]).tolist() == [0, 1, 0]


def test_m_etf_keeps_to_the_memory():
    ops = [op("a", 1, param_bytes=4), op("b", 9, param_bytes=4), op("c", 1, "a", param_bytes=4, size=1)]
    assert earliest_first(instance_of(ops, two()), [-1, -1]).tolist() == [0, 1, 0]
    assert earliest_first(instance_of(ops, two()), [4, 9]).tolist() == [0, 1, 1]


def test_m_sct_runs_the_favourite_child_before_what_is_not_urgent():
    """b ends at 3 on device 1; x and f could start there then, x on device 0 at 5. m-ETF takes x, m-SCT f."""
    ops = [op("a", 2, size=1), op("b", 3, size=2), op("x", 4, "b", size=1), op("f", 9, "a", "b")]
    instance = instance_of(ops, two(queues="parallel"))
    assert earliest_first(instance, [-1, -1]).tolist() == [0, 1, 1, 0]
    assert earliest_first(instance, [-1, -1], np.array([-1, 3, -1, -1])).tolist() == [0, 1, 0, 1]


def test_favourites_are_repaired_in_the_order_of_the_edges():
    ops = [op("a", 1), op("b", 1), op("c", 1, "a", "b"), op("d", 1, "b")]
    instance = instance_of(ops, two())
    assert instance.edges == ((0, 2), (1, 2), (1, 3))
    assert favourites(instance, np.array([0.0, 0.0, 1.0])).tolist() == [-1, 2, -1, -1]
    assert favourites(instance, np.array([0.0, 0.05, 0.1])).tolist() == [-1, 3, -1, -1]
    assert favourites(instance, np.array([0.2, 1.0, 1.0])).tolist() == [-1] * 4


def test_the_relaxed_program_delays_one_of_two_children():
    """a (1) -> b (4), c (4) over 2: one child may follow at once, half of each in the relaxation: 1 + 2 / 2 + 4."""
    ops = [op("a", 1, size=2), op("b", 4, "a"), op("c", 4, "a")]
    found = relaxed(instance_of(ops, two()))
    assert found.solved
    assert found.makespan_ps == pytest.approx(6)
    assert found.delayed.sum() == pytest.approx(1)


def test_m_topo_fills_one_device_after_the_other():
    ops = [op(f"o{i}", 1, *([f"o{i - 1}"] if i else []), param_bytes=2, size=1) for i in range(6)]
    instance = instance_of(ops, two())
    # Persistent 12, outputs 5 that are read, one op's own 1: a share of 17 // 2 + 1 = 9 bytes, three ops of 3.
    assert topological_fill(instance, [-1, -1]).tolist() == [0, 0, 0, 1, 1, 1]
    assert topological_fill(instance, [6, -1]).tolist() == [0, 0, 1, 1, 1, 1]


def test_without_numba_the_clock_and_the_splits_are_the_same():
    """In another process, where numba cannot be found."""
    code = """
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, *rest: None if name == "numba" else real(name, *rest)
import sys
sys.path[:0] = ["tests"]
from test_placers import plain_answers
print(plain_answers())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(plain_answers())


def plain_answers() -> list[object]:
    ops = [op(f"o{i}", 1 + i % 4, *([f"o{i - 2}"] if i > 1 else []), size=i % 3, param_bytes=1) for i in range(12)]
    oracle = Oracle(Graph("g", tuple(ops)), two(memory=24))
    found = [search(oracle, method) for method in ("m-etf", "m-sct", "dnn-contiguous")]
    return [(one.strategy.placement, one.cost.step_ps, one.objectives) for one in found]


def test_preparation_of_gnmt_gives_baechis_counts():
    graph = gnmt()
    assert len(Oracle(graph, cluster("parallel")).groups) == 1617
    grouped = prepare(graph, ["coplace"])
    assert len(Oracle(grouped.colocated, cluster("parallel")).groups) == 569
    fused = prepare(graph, ["coplace", "fuse"])
    instance = Instance(Prepared(graph, cluster("parallel"), CostModel()), fused)
    assert (len(fused.graph.ops), len(instance.edges)) == (576, 2212)


def test_m_etf_on_gnmt_places_every_op_as_baechi_does():
    """Baechi's clock says 134618 us, with transfers rounded to whole microseconds."""
    graph = gnmt()
    grouped = prepare(graph, ["coplace", "fuse"])
    instance = Instance(Prepared(graph, cluster("half-duplex"), CostModel()), grouped)
    assert grouped.back(earliest_first(instance, [-1] * 4)).tolist() == golden()["m_etf"]["placement"]
    row = lists_of(instance, [-1] * 4)
    lists, clock = Columns(row), Columns(clock_of(row))
    from simdev.search.kernels.clock import schedule

    assert schedule(lists.handle, clock.handle) / 1e6 == pytest.approx(134618, rel=1e-4)


def test_the_relaxed_makespan_of_gnmt_is_the_known_one():
    instance = Instance(Prepared(gnmt(), cluster("half-duplex"), CostModel()), Grouped.of(gnmt()))
    found = relaxed(instance)
    assert isinstance(found, Relaxed)
    assert found.makespan_ps / 1e9 == pytest.approx(82.8, abs=0.05)


@pytest.mark.parametrize(("queues", "mode"), [("half-duplex", "sequential"), ("parallel", "parallel")])
def test_baechi_on_gnmt_is_in_the_range_of_its_own_results(queues, mode):
    oracle = Oracle(gnmt(), cluster(queues))
    peer = golden()["m_etf"][f"{mode}_makespan_us"]
    for method in ("m-topo", "m-etf", "m-sct"):
        prepared, bare = search(oracle, method), search(oracle, method, prepare=[])
        mine = prepared.cost.step_ps / 1e6
        told = f"{method} {queues}: {mine:.0f} us, Baechi's m-ETF {peer} us ({mine / peer - 1:+.1%})"
        print(f"{told}; without preparation {bare.cost.step_ps / 1e6:.0f} us")
        assert prepared.cost.step_ps < bare.cost.step_ps
        assert mine < 1.05 * peer
        assert confirm(oracle, prepared) == ()


def test_searches_beat_the_placers_on_gnmt():
    """One device wins under half-duplex queues, so list placers lose to it; searches begin there."""
    for queues in ("half-duplex", "parallel"):
        oracle = Oracle(gnmt(), cluster(queues))
        placed = [search(oracle, method).cost.step_ps for method in ("single", "heft", "m-topo", "m-etf")]
        for method in ("greedy", "annealing"):
            found = search(oracle, method, prepare=["coplace"])
            print(f"{method} {queues}: {found.cost.step_ps / 1e9:.1f} ms")
            assert found.cost.step_ps < min(placed)


@pytest.mark.parametrize("queues", ["half-duplex", "parallel"])
def test_every_placer_fits_gnmt_into_what_its_largest_op_leaves(queues):
    """72 % of the peak of a single device: less than a co-placement group needs. At 30 % one op alone is too large."""
    peak = max(Oracle(gnmt(), cluster(queues))([0] * 2494).peaks)
    tight = Oracle(gnmt(), cluster(queues, peak * 72 // 100))
    for method in ("round-robin", "heft", "critical-path", "m-topo", "m-etf", "m-sct"):
        found = search(tight, method)
        assert found.cost.feasible, method
        assert confirm(tight, found) == ()
    small = search(Oracle(gnmt(), cluster(queues, peak * 30 // 100)), "m-etf")
    assert not small.cost.feasible
    assert any("bytes to run, more than" in line for line in small.obstacles)
