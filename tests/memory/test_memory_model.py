"""Rounding, training state, reserves, the options and who must agree on them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_graphs import PYTORCH, MiB, traced
from simdev import Oracle
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.files import read_run, write_run
from simdev.ground.errors import InputError
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import (
    NCCL_GROUP,
    NCCL_PAIR,
    OPTIMIZERS,
    MemoryModel,
    state_bytes,
    with_training_state,
)
from simdev.report.measures.footprint import allocator_use
from worlds.clusters import joined, limited
from worlds.graphs import op
from worlds.scenarios import World, make_world
from worlds.tape import Tape, drawn


@pytest.mark.parametrize(
    ("size", "held"),
    [
        (0, 0),
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (MiB, MiB),
        (MiB + 1, MiB + 512),
        (10**9 + 1, 10**9 + 512),
    ],
)
def test_pytorch_rounds_up_to_512_bytes(size: int, held: int) -> None:
    assert PYTORCH.rounded(size) == held
    assert MemoryModel().rounded(size) == size


@given(st.integers(0, 2**60))
def test_rounding_is_idempotent_and_never_takes_away(size: int) -> None:
    held = PYTORCH.rounded(size)
    assert PYTORCH.rounded(held) == held
    assert 0 <= held - size < 512


def parameter(size: int, dtype: str | None = "float32") -> Op:
    return Op("w", kind="parameter", param_bytes=size, outputs=(Tensor(size, None, dtype),), time=0)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "bytes_each"),
    [
        ("sgd", "float32", 0),
        ("momentum", "float32", 4),
        ("adam", "float32", 8),
        ("adam", "bfloat16", 4),
        ("mixed-momentum", "float16", 8),
        ("mixed-adam", "bfloat16", 12),
    ],
)
def test_optimizer_state_by_dtype(optimizer: str, dtype: str, bytes_each: int) -> None:
    count, width = 1000, 2 if "16" in dtype else 4
    assert state_bytes(parameter(count * width, dtype), optimizer) == count * bytes_each


def test_mixed_precision_adam_takes_sixteen_bytes_a_parameter() -> None:
    graph = with_training_state(
        Graph("g", (parameter(2000, "float16"),)), MemoryModel(optimizer="mixed-adam", gradients=1)
    )
    (held,) = graph.ops
    assert held.param_bytes + held.grad_bytes + held.state_bytes == 16 * 1000


def test_training_state_replaces_what_the_graph_says_and_is_idempotent() -> None:
    graph = Graph(
        "g",
        (replace(parameter(8), state_bytes=99, grad_bytes=7), Op("x", time=0, workspace_bytes=3)),
    )
    for optimizer in OPTIMIZERS:
        memory = MemoryModel(optimizer=optimizer, gradients=2, dtype="bfloat16")
        if optimizer.startswith("mixed"):
            graph = replace(graph, ops=(parameter(8, None), graph.ops[1]))
        once = with_training_state(graph, memory)
        assert once.ops[0].grad_bytes == 16
        assert once.ops[0].state_bytes == state_bytes(graph.ops[0], optimizer, "bfloat16")
        assert once.ops[1] is graph.ops[1]
        assert with_training_state(once, memory) == once
    assert with_training_state(graph, MemoryModel(rounding="pytorch")) is graph


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (
            parameter(8, "float32"),
            ('"w" has parameters of float32; mixed-adam keeps masters of parameters of 2 bytes'),
        ),
        (
            Op("w", param_bytes=8, time=0),
            'the dtype of the parameters of "w" is not known; tell it by options.memory.dtype',
        ),
    ],
)
def test_mixed_precision_refuses_what_it_cannot_mean(held: Op, reason: str) -> None:
    with pytest.raises(InputError) as error:
        with_training_state(Graph("g", (held,)), MemoryModel(optimizer="mixed-adam"))
    assert error.value.problems == (f"ops[0]: {reason}",)


def devices(*kinds: str) -> Cluster:
    return Cluster("c", tuple(Device(f"d{i}", kind) for i, kind in enumerate(kinds)))


def test_reserves_go_to_the_devices_that_run_ops() -> None:
    cluster = devices("gpu", "gpu", "switch")
    memory = MemoryModel(context="cuda", communication="nccl")
    assert memory.context_bytes(cluster) == (600_000_000, 600_000_000, 0)
    assert memory.communication_bytes(cluster) == (NCCL_PAIR, NCCL_PAIR, 0)
    assert memory.communication_bytes(devices("gpu")) == (0,)
    assert memory.communication_bytes(devices(*["gpu"] * 8)) == (NCCL_GROUP,) * 8
    assert memory.communication_bytes(devices(*["gpu"] * 3)) == (NCCL_GROUP,) * 3


def test_a_reserve_can_be_told_by_kind_of_device() -> None:
    memory = MemoryModel(context={"a100": "0.5 GB", "l4": "cuda"}, communication={"cpu": 7})
    cluster = devices("a100", "l4", "cpu")
    assert memory.context_bytes(cluster) == (500_000_000, 600_000_000, 0)
    assert memory.communication_bytes(cluster) == (0, 0, 7)


def test_reserves_are_held_throughout_and_not_rounded() -> None:
    world = World.of([op("a", 1, size=5)], devices("gpu"), [0])
    trace = traced(world, MemoryModel(rounding="pytorch", context=100, communication=11))
    assert trace.memory[0].peak == 512 + 111
    assert trace.memory[0].at_peak == dict.fromkeys(trace.memory[0].at_peak, 0) | {
        "activations": 512,
        "context": 100,
        "communication": 11,
    }


def make_model(tape: Tape) -> MemoryModel:
    if tape.pick(0, 0, 0, 1):
        return MemoryModel(model="outputs_only")
    return MemoryModel(
        rounding=tape.pick("none", "pytorch"),
        optimizer=tape.pick(None, "sgd", "momentum", "adam"),
        gradients=tape.pick(None, 0, 1, 2),
        context=tape.pick(0, 3, "cuda", {"gpu": 2}),
        communication=tape.pick(0, "nccl", {"gpu": 5}),
    )


def make_case(tape: Tape) -> tuple[World, MemoryModel]:
    world = make_world(tape, ("fifo", "fifo", "priority", "program"), QUEUES, TRANSFERS)
    scale = tape.pick(1, 400, 700)
    sizes = ("param_bytes", "grad_bytes", "workspace_bytes")
    world = world.with_ops(
        lambda one: replace(
            one,
            kind=tape.pick("op", "op", "parameter"),
            outputs=tuple(Tensor(tensor.bytes * scale) for tensor in one.outputs),
            **{name: getattr(one, name) * scale for name in sizes},
        )
    )
    limit = tape.pick(None, 2048, 600_002_048)
    return world.but(cluster=limited(world.cluster, limit)), make_model(tape)


@settings(max_examples=300)
@given(drawn(make_case))
def test_oracle_engines_and_checker_agree_whatever_the_model(
    case: tuple[World, MemoryModel],
) -> None:
    world, memory = case
    trace = traced(world, memory)
    assert not check(trace.task_graph, trace)
    plain = traced(world, MemoryModel())
    assert trace.start.tolist() == plain.start.tolist()  # memory never changes timing
    oracle = Oracle(world.graph, world.cluster, order=world.strategy.order, memory=memory)
    for asked in (oracle, pickle.loads(pickle.dumps(oracle))):
        cost = asked(dict(world.strategy.placement))
        assert cost.step_ps == trace.end_ps
        assert cost.peaks == tuple(one.peak for one in trace.memory)
        assert (cost.feasible, cost.memory_excess) == (trace.feasible, trace.memory_excess)


@settings(max_examples=100)
@given(drawn(make_case))
def test_requested_allocated_reserved_never_fall(case: tuple[World, MemoryModel]) -> None:
    world, memory = case
    if memory.model != "full":
        return
    trace = traced(world, replace(memory, rounding="pytorch"))
    bare = traced(world, replace(memory, rounding="none", context=0, communication=0))
    for expandable in (False, True):
        uses = allocator_use(trace, expandable)
        for use, one, asked in zip(uses, trace.memory, bare.memory, strict=True):
            assert use.requested == asked.peak
            assert use.requested <= one.peak - use.outside <= use.allocated <= use.reserved
            assert (
                use.outside == one.at_peak["context"] + one.at_peak["communication"] or not one.peak
            )


@settings(max_examples=50)
@given(case=drawn(make_case))
def test_a_run_keeps_what_was_requested(
    case: tuple[World, MemoryModel], tmp_path_factory: Any
) -> None:
    world, memory = case
    trace, path = traced(world, memory), tmp_path_factory.mktemp("run") / "run.json"
    write_run(trace, path)
    saved = read_run(path)
    assert not check(saved.task_graph, saved.trace)
    kept, before = saved.task_graph.buffers, trace.task_graph.buffers
    assert kept.requested_bytes.tolist() == before.requested_bytes.tolist()
    assert saved.trace.memory_excess == trace.memory_excess


def test_a_received_copy_smaller_than_its_transfer_is_still_found() -> None:
    """The checker compares what is sent with what was asked for, not with what is counted."""
    world = World.of([op("a", 1, size=5), op("b", 1, "a")], joined(2), [0, 1])
    trace = traced(world, PYTORCH)
    buffers = trace.task_graph.buffers
    assert buffers.requested is not None
    less = replace(trace.task_graph, buffers=replace(buffers, requested=buffers.requested - 1))
    assert {fault.rule for fault in check(less, simulate(less, "simpy"))} == {"bytes"}
