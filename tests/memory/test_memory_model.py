"""Memory as frameworks count it: rounding, the allocator's replay, training state, reserves, and
who must agree.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad.scenarios import CLUSTER, GRAPH, scenario
from peers import PEERS
from simdev import Oracle, load_scenario, run
from simdev.check import check
from simdev.cli import main
from simdev.cluster import QUEUES, TRANSFERS, Cluster, Device
from simdev.costs import CostModel
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.files import read_run, write_run
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import lower
from simdev.memory import (
    NCCL_GROUP,
    NCCL_PAIR,
    OPTIMIZERS,
    MemoryModel,
    state_bytes,
    with_training_state,
)
from simdev.report import analyze
from simdev.report.measures.footprint import Allocator, AllocatorUse, allocator_use
from simdev.scenario import Outcome
from simdev.strategy import Strategy
from simdev.trace import Trace
from strategies import Tape, World, drawn, make_world, op

KiB, MiB = 2**10, 2**20
PYTORCH = MemoryModel(rounding="pytorch")


# Rounding


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


# The allocator, by hand


def serve(allocator: Allocator, *sizes: int) -> list[int]:
    return [allocator.allocate(size) for size in sizes]


def levels(allocator: Allocator) -> tuple[int, int, int]:
    return allocator.requested, allocator.allocated, allocator.reserved


def test_small_requests_share_segments_of_two_mebibytes() -> None:
    allocator = Allocator()
    serve(allocator, 1)
    assert levels(allocator) == (1, 512, 2 * MiB)
    serve(allocator, MiB)  # the rest is 1 MiB - 512 now
    assert levels(allocator) == (MiB + 1, MiB + 512, 2 * MiB)
    serve(allocator, MiB)
    assert levels(allocator) == (2 * MiB + 1, 2 * MiB + 512, 4 * MiB)
    serve(allocator, MiB - 512)  # the rest of the first segment, to the byte
    assert allocator.reserved == 4 * MiB


def test_large_requests_come_from_twenty_mebibytes_or_from_segments_of_their_own() -> None:
    allocator = Allocator()
    serve(allocator, MiB + 1)  # one byte too large for a small segment
    assert levels(allocator) == (MiB + 1, MiB + 512, 20 * MiB)
    serve(allocator, 10 * MiB)  # fits into the rest of 19 MiB - 512
    assert allocator.reserved == 20 * MiB
    serve(allocator, 10 * MiB - 512)  # does not fit into 9 MiB - 512, and is under 10 MiB
    assert allocator.reserved == 40 * MiB
    serve(allocator, 11 * MiB)
    assert allocator.reserved == 52 * MiB


def test_a_large_block_is_split_where_more_than_a_mebibyte_is_left() -> None:
    allocator = Allocator()
    serve(allocator, 19 * MiB)
    assert levels(allocator) == (19 * MiB, 20 * MiB, 20 * MiB)
    allocator = Allocator()
    serve(allocator, 19 * MiB - 512)
    assert levels(allocator) == (19 * MiB - 512, 19 * MiB - 512, 20 * MiB)


def test_freed_neighbours_merge() -> None:
    allocator = Allocator()
    first, second, third = serve(allocator, 4 * MiB, 4 * MiB, 4 * MiB)
    for address in (first, third, second):
        allocator.free(address)
    assert levels(allocator) == (0, 0, 20 * MiB)
    serve(allocator, 20 * MiB)
    assert allocator.reserved == 20 * MiB


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    allocator = Allocator()
    large, small = serve(allocator, 60 * MiB, 40 * MiB)
    allocator.free(large)
    allocator.free(small)
    assert serve(allocator, 40 * MiB, 60 * MiB) == [small, large]
    assert allocator.reserved == 100 * MiB


def test_for_want_of_memory_idle_segments_are_given_back() -> None:
    allocator = Allocator(40 * MiB)
    (address,) = serve(allocator, 30 * MiB)
    allocator.free(address)
    serve(allocator, 40 * MiB)
    assert (allocator.reserved, allocator.flushes, allocator.failures) == (40 * MiB, 1, 0)


def test_a_segment_in_use_is_not_given_back() -> None:
    """30 of 40 MiB are free, and yet 30 cannot be served: this is fragmentation."""
    allocator = Allocator(40 * MiB)
    first, second = serve(allocator, 20 * MiB, 20 * MiB)
    allocator.free(first)
    allocator.free(second)
    serve(allocator, 10 * MiB)
    serve(allocator, 30 * MiB)
    assert (allocator.flushes, allocator.failures) == (1, 1)


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = Allocator(expandable=True)
    serve(allocator, 1)
    assert allocator.reserved == 2 * MiB
    # 15 MiB of the first page and 3 of the second
    first, second = serve(allocator, 5 * MiB, 18 * MiB)
    assert allocator.reserved == 2 * MiB + 40 * MiB
    assert second == first + 5 * MiB
    assert allocator.allocated == 512 + 23 * MiB
    allocator.free(first)
    allocator.free(second)
    assert serve(allocator, 40 * MiB) == [first]
    assert allocator.reserved == 2 * MiB + 40 * MiB


def test_expandable_pages_in_between_are_unmapped_and_mapped_again() -> None:
    allocator = Allocator(80 * MiB, expandable=True)
    first, middle, last = serve(allocator, 20 * MiB, 40 * MiB, 20 * MiB)
    allocator.free(middle)
    (far,) = serve(allocator, 40 * MiB)
    assert far == middle
    allocator.free(far)
    allocator.free(last)
    assert allocator.reserved == 80 * MiB
    serve(allocator, 60 * MiB)
    assert (allocator.reserved, allocator.flushes) == (80 * MiB, 0)
    assert first == min(first, middle, last)


# The allocator against another one, written the long way


@dataclass
class Plain:
    """The same rules over plain lists of [size, state] blocks, searched from the front each
    time.
    """

    limit: float = float("inf")
    expandable: bool = False
    segments: dict[bool, list[list[list[Any]]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    live: dict[int, tuple[bool, list[Any], int]] = field(default_factory=dict)
    count: int = 0
    flushes: int = 0
    failures: int = 0

    def mapped(self) -> list[list[Any]]:
        return [
            b for small in (True, False) for s in self.segments[small] for b in s if b[1] != "hole"
        ]

    @property
    def reserved(self) -> int:
        return sum(block[0] for block in self.mapped())

    @property
    def allocated(self) -> int:
        return sum(block[0] for block in self.mapped() if block[1] == "used")

    def reach(self, segment: list[list[Any]], at: int) -> int:
        after = segment[at + 1] if at + 1 < len(segment) else [0, "used"]
        return int(segment[at][0] + (after[0] if after[1] == "hole" else 0))

    def find(self, small: bool, need: int) -> tuple[list[list[Any]], int] | None:
        fits = [
            (block[0], s, at)
            for s, segment in enumerate(self.segments[small])
            for at, block in enumerate(segment)
            if block[1] == "free" and block[0] >= need
        ]
        fits.sort()
        while (
            self.expandable
            and len(fits) > 1
            and self.reach(self.segments[small][fits[1][1]], fits[1][2])
            < self.reach(self.segments[small][fits[0][1]], fits[0][2])
        ):
            fits.pop(0)
        return (self.segments[small][fits[0][1]], fits[0][2]) if fits else None

    def grow(self, small: bool, need: int, limit: float) -> tuple[list[list[Any]], int] | None:
        if not self.expandable:
            own = -(-need // (2 * MiB)) * 2 * MiB
            size = 2 * MiB if small else 20 * MiB if need < 10 * MiB else own
            if self.reserved + size > limit:
                return None
            self.segments[small].append([[size, "free"]])
            return self.segments[small][-1], 0
        return self.extend(small, need, limit)

    def extend(self, small: bool, need: int, limit: float) -> tuple[list[list[Any]], int] | None:
        page = 2 * MiB if small else 20 * MiB
        if not self.segments[small]:
            self.segments[small].append([[2**50 * page, "hole"]])
        segment = self.segments[small][0]
        for at, block in enumerate(segment):
            if block[1] != "hole":
                continue
            begin = at - 1 if at and segment[at - 1][1] == "free" else at
            end, room = begin, 0
            while end < len(segment) and segment[end][1] != "used" and room < need:
                room, end = room + segment[end][0], end + 1
            if room < need:
                continue
            parts, have, fresh = [list(one) for one in segment[begin:end]], 0, 0
            kept: list[list[Any]] = []
            for size, state in parts:
                take = min(size, -(-(need - have) // page) * page) if state == "hole" else size
                have, fresh = have + take, fresh + (take if state == "hole" else 0)
                if take < size:
                    kept = [[size - take, "hole"]]
            if self.reserved + fresh > limit:
                return None
            segment[begin:end] = [[have, "free"], *kept]
            return segment, begin
        raise AssertionError

    def tidy(self) -> None:
        for small in (True, False):
            for segment in self.segments[small]:
                at = 0
                while at + 1 < len(segment):
                    if segment[at][1] == segment[at + 1][1] != "used":
                        segment[at][0] += segment.pop(at + 1)[0]
                    else:
                        at += 1

    def release(self) -> None:
        for small in (True, False):
            page = 2 * MiB if small else 20 * MiB
            if not self.expandable:
                self.segments[small] = [
                    s for s in self.segments[small] if len(s) > 1 or s[0][1] != "free"
                ]
                continue
            for segment in self.segments[small]:
                made: list[list[Any]] = []
                at = 0
                for size, state in segment:
                    start, end = -(-at // page) * page, (at + size) // page * page
                    whole = state == "free" and start < end
                    if whole:
                        pieces = [
                            [start - at, "free"],
                            [end - start, "hole"],
                            [at + size - end, "free"],
                        ]
                        made += [piece for piece in pieces if piece[0]]
                    at += size
                    if not whole:
                        made.append([size, state])
                used = [block for block in segment if block[1] == "used"]
                segment[:] = [used.pop(0) if block[1] == "used" else block for block in made]
        self.tidy()

    def allocate(self, size: int) -> int:
        need = -(-size // 512) * 512
        small = need <= MiB
        found = self.find(small, need) or self.grow(small, need, self.limit)
        if found is None:
            self.flushes += 1
            self.release()
            found = self.grow(small, need, self.limit)
        if found is None:
            self.failures += 1
            found = self.grow(small, need, float("inf"))
        assert found is not None
        segment, at = found
        self.tidy()
        block = segment[at]
        rest = block[0] - need
        if rest >= (512 if small or self.expandable else MiB + 1):
            block[0] = need
            segment.insert(at + 1, [rest, "free"])
        block[1] = "used"
        self.tidy()
        self.count += 1
        self.live[self.count] = small, block, size
        return self.count

    def free(self, handle: int) -> None:
        self.live.pop(handle)[1][1] = "free"
        self.tidy()


SIZES = (
    1,
    512,
    700,
    100 * KiB,
    MiB - 512,
    MiB,
    MiB + 1,
    3 * MiB,
    9 * MiB,
    10 * MiB,
    19 * MiB,
    21 * MiB,
    50 * MiB,
)
STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from(SIZES), st.integers(0, 99)), max_size=60)


@settings(max_examples=300)
@given(STEPS, st.booleans(), st.sampled_from([None, 64 * MiB, 130 * MiB]))
def test_the_allocator_equals_one_written_the_long_way(
    steps: list[tuple[bool, int, int]], expandable: bool, limit: int | None
) -> None:
    quick = Allocator(limit, expandable)
    plain = Plain(float("inf") if limit is None else limit, expandable)
    live: list[tuple[int, int]] = []
    for frees, size, pick in steps:
        if frees and live:
            address, handle = live.pop(pick % len(live))
            quick.free(address)
            plain.free(handle)
        else:
            live.append((quick.allocate(size), plain.allocate(size)))
        assert quick.requested <= quick.allocated <= quick.reserved
        assert (quick.allocated, quick.reserved) == (plain.allocated, plain.reserved)
        assert (quick.flushes, quick.failures) == (plain.flushes, plain.failures)


@given(STEPS, st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_equal_frees_is_irrelevant(
    steps: list[tuple[bool, int, int]], expandable: bool, order: random.Random
) -> None:
    """Whatever is freed at one moment leaves the same free blocks, in any order."""
    sizes, after = [size for _, size, _ in steps], [size for frees, size, _ in steps if frees]
    found = []
    for shuffled in (False, True):
        allocator = Allocator(None, expandable)
        addresses = serve(allocator, *sizes)
        leaving = [
            address for address, (frees, _, _) in zip(addresses, steps, strict=True) if not frees
        ]
        if shuffled:
            order.shuffle(leaving)
        for address in leaving:
            allocator.free(address)
        found.append((serve(allocator, *after), levels(allocator)))
    assert found[0] == found[1]


@given(STEPS, st.booleans())
def test_a_second_round_of_the_same_requests_reserves_nothing(
    steps: list[tuple[bool, int, int]], expandable: bool
) -> None:
    allocator, sizes = Allocator(None, expandable), [size for _, size, _ in steps]
    for address in serve(allocator, *sizes):
        allocator.free(address)
    before = allocator.reserved
    serve(allocator, *sizes)
    assert allocator.reserved == before


def test_the_replay_equals_the_counters_of_a_cuda_device() -> None:
    """The same random requests, served by PyTorch itself: peaks of torch.cuda.memory_stats, to the
    byte.
    """
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved():
        pytest.skip("needs a process that holds no CUDA memory yet")
    draw, allocator = random.Random(4), Allocator()
    live: list[tuple[Any, int]] = []
    for _ in range(2000):
        if live and draw.random() < 0.5:
            tensor, address = live.pop(draw.randrange(len(live)))
            del tensor
            allocator.free(address)
        else:
            size = draw.choice(
                [draw.randint(1, 4 * KiB), draw.randint(1, MiB), draw.randint(MiB, 64 * MiB)]
            )
            live.append(
                (torch.empty(size, dtype=torch.uint8, device="cuda"), allocator.allocate(size))
            )
        stats = torch.cuda.memory_stats()
        told = tuple(
            stats[f"{name}_bytes.all.current"] for name in ("requested", "allocated", "reserved")
        )
        assert levels(allocator) == told


# Training state


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


# Reserves


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


# The options, and who must agree


def traced(world: World, memory: MemoryModel, engine: str = "simpy") -> Trace:
    task_graph = lower(world.graph, world.cluster, CostModel(), world.strategy, memory)
    return simulate(task_graph, engine)


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
    limited = tuple(replace(device, memory=limit) for device in world.cluster.devices)
    return world.but(cluster=replace(world.cluster, devices=limited)), make_model(tape)


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
    world = World.of([op("a", 1, size=5), op("b", 1, "a")], pair(), [0, 1])
    trace = traced(world, PYTORCH)
    buffers = trace.task_graph.buffers
    assert buffers.requested is not None
    less = replace(trace.task_graph, buffers=replace(buffers, requested=buffers.requested - 1))
    assert {fault.rule for fault in check(less, simulate(less, "simpy"))} == {"bytes"}


def pair(memory: int | None = None) -> Cluster:
    return Cluster.all_to_all(
        "two", [Device("g0", memory=memory), Device("g1", memory=memory)], bandwidth=10**12
    )


# Placeto's way


def test_outputs_only_counts_outputs_until_the_last_consumer_anywhere_is_done() -> None:
    """a(1) writes 7 bytes for b(5) on the other device: they stay at a's device until b has
    finished.
    """
    held = {"param_bytes": 100, "state_bytes": 100, "workspace_bytes": 100}
    world = World.of(
        [op("a", 1, size=7, **held), op("b", 5, "a", size=2), op("c", 1, "a")], pair(), [0, 1, 0]
    )
    first, second = traced(world, MemoryModel(model="outputs_only")).memory
    # sent from 1 to 8, b until 13
    assert (first.time.tolist(), first.level.tolist()) == ([0, 13], [7, 0])
    assert (second.time.tolist(), second.level.tolist()) == ([8, 13], [2, 0])


def test_the_example_of_the_docs_is_an_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
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
    from test_conformance_placeto import cluster, simdev_graph

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


# Files, command line and Report


def asked(memory: Any, **changes: Any) -> str:
    return scenario(options={"memory": memory}, **changes)


def test_the_default_report_is_as_ever() -> None:
    report = run(load_scenario(json.loads(scenario())))
    assert report.footprint is None
    assert "memory" not in report.to_json()
    assert "allocator" not in str(report)
    assert analyze(Outcome(report.trace)).to_json().keys() == report.to_json().keys()


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
    from simdev.serve.state import ServerState

    value = json.loads(asked({"rounding": "pytorch"}))
    loaded = ServerState().load(value)
    assert loaded.oracle({"*": "gpu:0"}).peaks == (512, 0)
    assert ServerState().load(json.loads(scenario())).handle != loaded.handle


def test_a_session_counts_memory_the_same_way() -> None:
    ops = [op("a", 1, size=5), op("b", 1, "a", size=3)]
    for memory in (PYTORCH, MemoryModel(model="outputs_only"), MemoryModel(context=2000)):
        oracle = Oracle(Graph("g", tuple(ops)), pair(1500), memory=memory)
        session = oracle.session([0, 0])
        proposed = session.propose("b", "g1")
        world = World.of(ops, pair(1500), [0, 1])
        trace = traced(world, memory)
        assert (proposed.peaks, proposed.feasible) == (
            tuple(one.peak for one in trace.memory),
            trace.feasible,
        )


def test_an_empty_device_holds_nothing() -> None:
    world = World.of([op("a", 1, size=5)], pair(), [0])
    (_, idle) = allocator_use(traced(world, PYTORCH))
    assert idle == AllocatorUse("g1", 0, 0, 0, 0, 0, None)
    assert np.array_equal(traced(world, PYTORCH).memory[1].level, [])
