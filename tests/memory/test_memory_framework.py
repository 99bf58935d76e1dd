"""Memory as PyTorch's counter tells it: scratch memory, updates, workspaces, steps in a row."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from memory_graphs import KiB, MiB, traced
from simdev import Oracle
from simdev.costs import CostModel, DeviceSpec, Profile
from simdev.execution.check import check
from simdev.execution.scenario import Scenario, execute
from simdev.files import read_graph, read_profile, write_graph
from simdev.ground.errors import InputError
from simdev.lowering import Prepared, lower_prepared
from simdev.lowering.prepare import BLAS_WORKSPACE, LT_WORKSPACE, cuda_kinds
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import MemoryModel
from simdev.nouns.strategy import Order, Strategy
from simdev.report import analyze
from simdev.report.measures.footprint import AllocatorUse, allocator_use
from worlds.costs import row_of
from worlds.scenarios import World, make_world
from worlds.tape import Tape, drawn

PYTORCH = MemoryModel(framework="pytorch")


def row(kind: str, scratch: int, device: str = "h100", **fields: Any) -> dict[str, Any]:
    times = {"p10": 1000, "p50": 1000, "p90": 1000, "min": 1000, "n": 9}
    return row_of(kind, makes=[[256]], dev=device, t_ns=times, ws=scratch, **fields)


def profile(*rows: dict[str, Any], **device: str) -> Profile:
    return read_profile({"header": {"device": device}, "rows": list(rows)})


def costs(*rows: dict[str, Any], **device: str) -> CostModel:
    return CostModel((profile(*rows, **(device or {"torch": "2.11", "cuda": "13.0"})),))


def gpu(kind: str = "h100") -> Cluster:
    return Cluster("c", (Device("g", kind),))


def made(name: str, kind: str, **fields: Any) -> Op:
    return Op(name, kind, outputs=(Tensor(KiB, (256,), "float32"),), **fields)


def test_profiles_that_pytorch_measured_by_cuda_are_counted_its_way() -> None:
    graph = Graph("g", (made("a", "shift"),))
    by_cuda = Prepared(graph, gpu(), costs(row("shift", 5000)))
    assert by_cuda.memory.is_pytorch
    assert by_cuda.graph.ops[0].workspace_bytes == 5000
    by_cpu = Prepared(graph, gpu(), costs(row("shift", 5000), torch="2.11"))
    assert by_cpu.memory == MemoryModel()
    assert by_cpu.graph is graph
    refused = Prepared(graph, gpu(), costs(row("shift", 5000)), MemoryModel(framework="none"))
    assert refused.graph is graph


def test_the_kinds_that_cuda_measured_are_those_of_its_rows() -> None:
    both = CostModel(
        (
            profile(row("shift", 1), torch="2.11", cuda="13.0"),
            profile(row("shift", 1, device="cpu"), torch="2.11"),
        )
    )
    assert cuda_kinds(both) == {"h100"}


def test_what_a_graph_says_of_scratch_memory_stays() -> None:
    graph = Graph("g", (made("a", "shift", workspace_bytes=7),))
    assert Prepared(graph, gpu(), costs(row("shift", 5000))).graph.ops[0].workspace_bytes == 7


def batched(batch: int) -> Graph:
    out = Tensor(KiB, (batch, 8), "float32")
    return Graph(
        "g",
        (Op("x", "input", outputs=(out,), time=0), Op("a", "turn", inputs=("x",), outputs=(out,))),
    )


@pytest.mark.parametrize(("batch", "size"), [(32, 5000), (64, 10_000), (8, 1250), (100, 12_500)])
def test_scratch_memory_of_another_batch_is_in_proportion(batch: int, size: int) -> None:
    rows = [
        row("turn", scratch, **{"in": [[samples, 8]], "dt": ["float32"], "out": [[samples, 8]]})
        for samples, scratch in ((32, 5000), (400, 50_000), (64, 10_000))
    ]
    # Of a batch of 100 the row of 64 is the nearest: not quite in line with that of 400.
    expected = round(10_000 * 100 / 64) if batch == 100 else size
    graph = Prepared(batched(batch), gpu(), costs(*rows)).graph
    assert graph.ops[1].workspace_bytes == expected
    other = Prepared(
        batched(batch), gpu(), costs(row("turn", 7, **{"in": [[3, 9]], "dt": ["float32"]}))
    )
    assert other.graph.ops[1].workspace_bytes == 0


def training(*sizes: int, kind: str = "adam_update") -> Graph:
    """Weights of so many bytes, their gradients, then their updates; Adam keeps two states."""
    weights = [
        Op(f"w{i}", "parameter", param_bytes=size, state_bytes=2 * size, time=0,
           outputs=(Tensor(size, (size // 4,), "float32"),))
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    gradients = [
        Op(f"g{i}", "back", "backward", (f"w{i}",), outputs=(Tensor(size),), time="1 us")
        for i, size in enumerate(sizes)
    ]
    updates = [
        Op(f"u{i}", kind, "update", (f"w{i}", f"g{i}"), time="1 us") for i in range(len(sizes))
    ]
    return Graph("training", (*weights, *gradients, *updates))


def test_the_updates_of_adam_need_room_beside_all_gradients() -> None:
    prepared = Prepared(training(40 * KiB, 24 * KiB, 4 * KiB), gpu(), CostModel(), PYTORCH)
    # Two temporaries each, and the second of the update before: 80, 40 + 48, 24 + 8.
    spaces = [op.workspace_bytes for op in prepared.graph.ops[-3:]]
    assert spaces == [88 * KiB, 88 * KiB, 32 * KiB]
    assert list(prepared.costed.updating.values()) == [80 * KiB, 48 * KiB, 8 * KiB]
    plain = Prepared(training(40 * KiB, kind="other"), gpu(), CostModel(), PYTORCH)
    assert plain.graph.ops[-1].workspace_bytes == 0


def peak_of(graph: Graph, cluster: Cluster, memory: MemoryModel = PYTORCH) -> int:
    strategy = Strategy({op.name: "g" for op in graph.ops}, Order("program"))
    return (
        execute(Scenario(graph, cluster, CostModel(), strategy, memory=memory)).trace.memory[0].peak
    )


def test_the_peak_of_a_step_that_its_updates_decide() -> None:
    sizes = 40 * KiB, 24 * KiB, 4 * KiB
    # Parameters, two states and gradients of each, and the most that two updates in a row hold.
    assert peak_of(training(*sizes), gpu()) == 4 * sum(sizes) + 88 * KiB


def products(*phases: str, bias: bool = False) -> Graph:
    ops = [Op(f"x{i}", "input", outputs=(Tensor(KiB),), time=0) for i in range(3)]
    for i, phase in enumerate(phases):
        kind = "linear" if bias else "matmul"
        inputs = ("x0", "x1", "x2") if bias else ("x0", "x1")
        ops.append(Op(f"p{i}", kind, phase, inputs, outputs=(Tensor(KiB),), time="1 us"))
    return Graph("products", tuple(ops))


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        (products(), (0, 0, 0)),
        (products("forward"), (BLAS_WORKSPACE, 0, 0)),
        (products("forward", "backward"), (BLAS_WORKSPACE, BLAS_WORKSPACE, 0)),
        (products("forward", bias=True), (BLAS_WORKSPACE, 0, LT_WORKSPACE)),
    ],
)
def test_each_thread_that_computes_products_has_a_workspace(
    graph: Graph, sizes: tuple[int, ...]
) -> None:
    assert Prepared(graph, gpu(), CostModel(), PYTORCH).reserves == ((0, 0, *sizes),)
    assert Prepared(graph, gpu("switch"), CostModel(), PYTORCH).reserves == ((0,) * 5,)
    assert Prepared(graph, gpu("epyc-cpu"), CostModel(), PYTORCH).reserves == ((0,) * 5,)
    assert Prepared(graph, gpu(), CostModel()).reserves == ((0,) * 5,)


def test_a_datasheet_tells_how_large_workspaces_are() -> None:
    spec = DeviceSpec("h100", {"float32": Fraction(10**13)}, Fraction(10**12), blas_workspace=MiB)
    prepared = Prepared(products("forward"), gpu(), CostModel(specs=(spec,)), PYTORCH)
    assert prepared.reserves == ((0, 0, MiB, 0, 0),)


def test_workspaces_are_held_throughout_and_inside_the_allocator() -> None:
    world = World.of(products("forward").ops, gpu(), [0] * 4)
    trace = traced(world, PYTORCH)
    assert trace.memory[0].at_peak["workspace"] == BLAS_WORKSPACE
    (use,) = allocator_use(trace, steady=True)
    assert use.outside == 0
    assert use.between == BLAS_WORKSPACE + 2 * KiB  # and what is read of the batch, which stays


def test_steps_in_a_row_replayed_by_hand() -> None:
    """Weights of 2 and 1 MiB: states come with the first update and stay, gradients go before the
    next step, and the second half of an update's temporaries waits for the next update's.
    """
    graph = training(2 * MiB, MiB)
    world = World.of(graph.ops, gpu(), [0] * len(graph.ops), Order("program"))
    (use,) = allocator_use(traced(world, PYTORCH), steady=True)
    assert use == AllocatorUse(
        "g",
        requested=9 * MiB + 3 * MiB + 4 * MiB,
        allocated=9 * MiB + 3 * MiB + 4 * MiB,
        # 2 MiB tensors lie in segments of 20 MiB, those of 1 MiB by twos in segments of 2 MiB.
        reserved=20 * MiB + 6 * MiB,
        outside=0,
        flushes=0,
        failed=None,
        between=9 * MiB,
    )


def test_the_second_update_holds_what_the_first_one_left() -> None:
    graph = training(2 * MiB, 2 * MiB)
    world = World.of(graph.ops, gpu(), [0] * len(graph.ops), Order("program"))
    (use,) = allocator_use(traced(world, PYTORCH), steady=True)
    # The second makes two temporaries while the first one's last is still there.
    assert use.allocated == 3 * 4 * MiB + 4 * MiB + 3 * 2 * MiB


def test_states_take_the_room_that_the_first_step_left_behind() -> None:
    """They are made with the first update. So they split the 30 MiB that the activations of the
    first step have held, and those of the second step need room of their own.
    """
    weight = Tensor(12 * MiB, (3 * MiB,), "float32")
    ops = (
        Op("w", "parameter", param_bytes=12 * MiB, state_bytes=24 * MiB, time=0, outputs=(weight,)),
        Op("f", inputs=("w",), outputs=(Tensor(30 * MiB),), time="1 us"),
        Op("g", "back", "backward", ("f",), outputs=(Tensor(12 * MiB),), time="1 us"),
        Op("u", "adam_update", "update", ("w", "g"), time="1 us"),
    )
    world = World.of(ops, gpu(), [0] * 4, Order("program"))
    (use,) = allocator_use(traced(world, PYTORCH), steady=True)
    weights, gradient, temporaries = 12 * MiB, 12 * MiB, 2 * 12 * MiB
    assert use.reserved == weights + gradient + temporaries + 2 * 30 * MiB


def test_a_source_that_takes_time_computes_and_is_no_batch() -> None:
    """The batch stays from step to step; noise that is drawn in each step does not."""
    ops = (
        Op("x", "input", outputs=(Tensor(MiB),), time=0),
        Op("noise", outputs=(Tensor(2 * MiB),), time="1 us"),
        Op("sum", inputs=("x", "noise"), outputs=(Tensor(MiB),), time="1 us"),
    )
    world = World.of(ops, gpu(), [0] * 3, Order("program"))
    (use,) = allocator_use(traced(world, PYTORCH), steady=True)
    assert use.between == MiB


def make_case(tape: Tape) -> World:
    world = make_world(tape, ("fifo", "priority", "program"), QUEUES, TRANSFERS)
    kinds = ("op", "matmul", "adam_update", "linear")
    return world.with_ops(
        lambda one: replace(
            one,
            kind=tape.pick(*kinds),
            phase=tape.pick("forward", "backward", "update"),
            outputs=tuple(Tensor(tensor.bytes * 700) for tensor in one.outputs),
            releases=tuple(f"o{tape.number(8)}:{tape.number(2)}" for _ in range(tape.number(3))),
        )
    )


@settings(max_examples=150)
@given(drawn(make_case))
def test_oracle_and_checker_agree_on_what_pytorch_counts(world: World) -> None:
    trace = traced(world, PYTORCH)
    assert not check(trace.task_graph, trace)
    assert trace.start.tolist() == traced(world, MemoryModel()).start.tolist()
    oracle = Oracle(world.graph, world.cluster, order=world.strategy.order, memory=PYTORCH)
    cost = oracle(dict(world.strategy.placement))
    assert cost.peaks == tuple(memory.peak for memory in trace.memory)


def test_the_report_tells_allocated_and_reserved_beside_the_peak() -> None:
    graph = training(2 * MiB, MiB)
    strategy = Strategy({op.name: "g" for op in graph.ops}, Order("program"))
    report = analyze(execute(Scenario(graph, gpu(), CostModel(), strategy, memory=PYTORCH)))
    told = report.to_json()["memory"]
    assert told["options"] == {"framework": "pytorch"}
    assert told["allocator"]["g"]["between_steps_bytes"] == 9 * MiB
    device = report.to_json()["devices"]["g"]
    assert device["allocated_bytes"] == told["allocator"]["g"]["allocated_bytes"]
    assert device["reserved_bytes"] == told["allocator"]["g"]["reserved_bytes"]


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(InputError, match="framework: must be one of auto, none, pytorch"):
        MemoryModel(framework="jax")


def test_a_run_of_lowered_tasks_keeps_what_updates_ask_for() -> None:
    prepared = Prepared(training(40 * KiB, 24 * KiB), gpu(), CostModel(), PYTORCH)
    placement = {op.name: "g" for op in prepared.graph.ops}
    buffers = lower_prepared(prepared, Strategy(placement)).buffers
    spaces = [i for i, name in enumerate(buffers.name) if name.startswith("workspace of u")]
    assert buffers.requested_bytes[spaces].tolist() == [80 * KiB, 48 * KiB]
    assert buffers.bytes[spaces].tolist() == [88 * KiB, 88 * KiB]


def chain(**releases: str) -> Graph:
    """a -> b -> c -> d, each of 1 KiB; ``releases`` tells what the program holds until some."""
    names = "abcd"
    ops = [
        Op(name, inputs=tuple(names[i - 1 : i]) if i else (), time="1 us", outputs=(Tensor(KiB),),
           releases=tuple(releases.get(name, "")))
        for i, name in enumerate(names)
    ]  # fmt: skip
    return Graph("chain", tuple(ops))


def test_what_the_program_holds_lives_longer_than_its_readers() -> None:
    assert peak_of(chain(), gpu()) == 2 * KiB
    assert peak_of(chain(c="a"), gpu()) == 3 * KiB
    assert peak_of(chain(d="ab"), gpu()) == 4 * KiB
    # The contract counts by readers alone.
    assert peak_of(chain(d="ab"), gpu(), MemoryModel()) == 2 * KiB


def test_a_holder_is_the_last_op_that_depends_on_the_tensor() -> None:
    ops = (*chain().ops, Op("e", time="1 us", releases=("a",)))
    assert Graph("g", ops).holders == {(0, 0): 3}
    # What is not there (ops were fused, say) lives as its readers say.
    assert chain(d="x").holders == {}


def test_files_keep_what_ops_release(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    write_graph(chain(c="a"), path)
    assert read_graph(path) == chain(c="a")
    with pytest.raises(InputError, match=r'ops\[0\].releases\[0\]: no op named "x"'):
        read_graph({"name": "g", "ops": [{"name": "a", "releases": ["x"]}]})
