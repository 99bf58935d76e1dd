"""Traces of several ranks: what NCCL ran is a collective of all, in a stream of its own, and never
computation. Times are worked out by hand.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from kineto import MATRIX, kernel, launch, nccl, of_rank, operator, span, trace
from simdev import (
    Cluster,
    CostModel,
    Device,
    Graph,
    Scenario,
    Strategy,
    load_scenario,
    run,
)  # fmt: skip
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Host
from simdev.nouns.strategy import Collectives

torch = pytest.importorskip("torch")

from kineto import simulated_us  # noqa: E402
from simdev.measure import trace_ranks, trace_step  # noqa: E402

GLOO = Path(__file__).with_name("gloo")
"""Real traces of two processes on a CPU, two steps of each: tests/measure/gloo/README.md."""


def ddp(first=100, reduced=200, **more):
    """A product, an all-reduce of a MB beside another product, and one that waits for both; the
    first kernel takes so many us, the all-reduce so many behind it.
    """
    done = 10 + first
    return [
        operator("aten::mm", 0, 8, MATRIX, 1),
        launch(5, 1),
        kernel(10, first, 1),
        span("record_param_comms", 10, 8, **{"Collective name": "allreduce"}),
        span("cudaStreamWaitEvent", 11, 1, "cuda_runtime"),
        launch(14, 2),
        nccl(done, reduced, 2, **more),
        operator("aten::mm", 20, 8, MATRIX, 3),
        launch(22, 3),
        kernel(done, 50, 3),
        span("cudaStreamWaitEvent", 30, 1, "cuda_runtime"),
        operator("aten::mm", 32, 8, MATRIX, 4),
        launch(34, 4),
        kernel(done + max(reduced, 50), 20, 4),
    ]


def imported(tmp_path, *texts, options=("--bandwidth", "1 GB/s")):
    """The scenario that the command makes of the traces of ranks."""
    files = [tmp_path / f"rank{i}.json" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    out = tmp_path / "step.json"
    assert main(["import", *map(str, files), *options, "-o", str(out)]) == 0
    return load_scenario(out)


def microseconds(scenario) -> Fraction:
    return Fraction(run(scenario).step_ps, 10**6)


def test_a_rank_alone_keeps_its_streams_apart_and_its_step_comes_out_again():
    step = trace_step(of_rank(0, *ddp()), "h100-sxm")
    products, (reduction,) = (
        [op for op in step.graph.ops if (op.kind == kind)] for kind in ("matmul", "all_reduce")
    )
    assert [op.stream for op in products] == [None] * 3
    assert (reduction.stream, reduction.seconds_on("h100-sxm")) == ("20", Fraction(200, 10**6))
    assert reduction.control_inputs == (products[0].name,)
    assert products[1].control_inputs == (products[0].name,)
    assert set(products[2].control_inputs) == {products[1].name, reduction.name}
    assert [float(op.seconds_on("h100-sxm")) * 1e6 for op in products] == [100, 50, 20]
    assert simulated_us(step) == 10 + 100 + 200 + 20


def test_ranks_meet_in_one_collective_that_the_network_carries(tmp_path):
    """The first product of rank 1 takes 150 us: rank 0 waits for it within the kernel."""
    scenario = imported(
        tmp_path, of_rank(0, *ddp(100, 250)), of_rank(1, *ddp(150, 200)),
        options=("--bandwidth", "10 GB/s"),
    )  # fmt: skip
    (reduction,) = [op for op in scenario.graph.ops if op.kind == "all_reduce"]
    assert reduction.attrs == {"ranks": ("gpu:0", "gpu:1")}
    assert [tensor.bytes for tensor in reduction.outputs] == [10**6] * 2
    places = scenario.strategy.placement
    assert places["rank 1/matmul"] == "gpu:1"
    # A ring of two sends half of it twice: 100 us at 10 GB/s. The second product takes 50.
    assert microseconds(scenario) == 10 + 150 + 100 + 20
    # Or with the time of the trace, least of both: that of rank 1, for whom rank 0 waited.
    given = replace(scenario.strategy, collectives=Collectives(cost="given"))
    assert microseconds(replace(scenario, strategy=given)) == 10 + 150 + 200 + 20


def test_a_kernel_waits_only_where_the_trace_shows_it(tmp_path):
    """Without the call that makes its stream wait, and with the all-reduce over in time, the last
    product does not wait for a network that is slower.
    """
    events = [
        event
        for event in ddp(100, 30)
        if event["name"] != "cudaStreamWaitEvent" or event["ts"] < 30
    ]
    scenario = imported(tmp_path, *(of_rank(rank, *events) for rank in range(2)))
    last = scenario.graph.ops[scenario.graph.index["rank 0/matmul_2"]]
    assert last.control_inputs == ("rank 0/matmul_1",)
    assert microseconds(scenario) == 10 + 100 + 1000


@pytest.mark.parametrize(
    ("name", "nelems", "kind", "read", "made"),
    [
        ("_allgather_base", (100, 200), "all_gather", [400, 400], [800, 800]),
        ("_reduce_scatter_base", (200, 100), "reduce_scatter", [800, 800], [400, 400]),
        ("all_to_allv", (100, 100), "all_to_all", [400, 400], [400, 400]),
        ("broadcast", (100, 100), "broadcast", [400], [400]),
    ],
)
def test_sizes_come_from_the_traces_own_arguments(tmp_path, name, nelems, kind, read, made):
    texts = [of_rank(rank, *ddp(name=name, nelems=nelems)) for rank in range(2)]
    scenario = imported(tmp_path, *texts)
    position = next(i for i, op in enumerate(scenario.graph.ops) if op.kind == kind)
    assert [tensor.bytes for tensor in scenario.graph.operands[position]] == read
    assert [tensor.bytes for tensor in scenario.graph.ops[position].outputs] == made
    assert microseconds(scenario) > 110


def test_a_group_of_many_ranks_is_read_from_the_head_and_stands_for_them(tmp_path):
    """A list of more than 30 ranks is cut. Of 32 ranks one is there: its all-reduce takes as long
    as that of all, 2 x 31/32 of a MB at 1 GB/s.
    """
    groups = [{"pg_name": "0", "ranks": list(range(32))}]
    ranks = {"Process Group Ranks": "[0, 1, 2, ..., 31]", "Group size": 32}
    text = of_rank(0, *ddp(**ranks), world_size=32, pg_config=groups)
    options = ("--devices", "32", "--bandwidth", "1 GB/s")
    scenario = imported(tmp_path, text, options=options)
    (group,) = scenario.strategy.collectives.groups.values()
    assert len(group) == 32
    assert microseconds(scenario) == 10 + 100 + Fraction(2 * 31 * 10**6, 32) / 1000 + 20


def pipeline(rank):
    """A batch of a send and a receive in one kernel, recorded message by message."""
    peer = {"Dst Rank": 1 - rank, "Src Rank": 1 - rank}
    cut = {key: value for key, value in nccl(0, 1, 9)["args"].items() if key != "stream"}
    batch = nccl(110, 90, 2)
    batch["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    batch["args"] = {name: batch["args"][name] for name in ("device", "stream", "correlation")}
    return [
        operator("aten::mm", 0, 8, MATRIX, 1),
        launch(5, 1),
        kernel(10, 100, 1),
        *(
            span("record_param_comms", at, 2, **{**cut, **peer, "Collective name": name})
            for name, at in (("recv", 10), ("send", 13))
        ),
        span("nccl:coalesced", 16, 8, "user_annotation"),
        launch(18, 2),
        batch,
        operator("aten::mm", 40, 8, MATRIX, 3),
        launch(42, 3),
        kernel(200, 50, 3),
    ]


def test_a_batch_of_messages_in_one_kernel_is_each_of_them(tmp_path):
    texts = [of_rank(rank, *pipeline(rank)) for rank in range(2)]
    scenario = imported(tmp_path, *texts)
    messages = [op for op in scenario.graph.ops if op.kind == "p2p"]
    assert sorted(op.attrs["ranks"] for op in messages) == [
        ("gpu:0", "gpu:1"),
        ("gpu:1", "gpu:0"),
    ]
    # A MB at 1 GB/s each way at once.
    assert microseconds(scenario) == 10 + 100 + 1000 + 50


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (
            [of_rank(0, *ddp()), of_rank(0, *ddp())],
            "rank1.json: is of rank 0, as rank0.json",
        ),
        (
            [of_rank(0, *ddp()), of_rank(1, *ddp(name="_allgather_base"))],
            "rank 1, all_gather: all_gather of 1000000 bytes, but all_reduce of 1000000 bytes on "
            "rank 0, all_reduce",
        ),
        (
            [of_rank(0, *ddp()), of_rank(1, *ddp()[:3])],
            'rank 1: takes no part in the collectives of the group "0"; all_reduce of 1000000 '
            "bytes of rank 0, all_reduce waits for it",
        ),
        (
            [
                of_rank(0, *ddp(), span("ProfilerStep#1", 0, 900, "user_annotation")),
                of_rank(1, *ddp()),
            ],
            "rank1.json: rank 1 has 0 steps, but rank 0 (rank0.json) has 1",
        ),
    ],
    ids=("twice", "kinds", "missing", "steps"),
)
def test_ranks_that_do_not_fit_together_are_refused(texts, problem):
    files = {f"rank{i}.json": text for i, text in enumerate(texts)}
    with pytest.raises(InputError) as caught:
        trace_ranks(files).joined("step", ["gpu:0", "gpu:1"])
    assert problem in str(caught.value)


def test_the_rank_comes_from_the_files_name_where_the_trace_does_not_tell_it():
    texts = {f"it_3/rank{rank}_trace.json": trace(*ddp()) for rank in (1, 0)}
    assert sorted(trace_ranks(texts).steps) == [0, 1]
    with pytest.raises(InputError, match=r"a\.json: tells no rank"):
        trace_ranks({"a.json": trace(*ddp()), "b.json": trace(*ddp())})


PARTS = ("compute", "reduce", "wait")


def random_run(seed, slower=1):
    """Spans of two ranks that compute, reduce and wait in one random order with random times, and
    when all is done; ``slower`` is by how much their network is.
    """
    draw = random.Random(seed)
    parts = ["compute", *draw.choices(PARTS, (6, 3, 2), k=draw.randint(4, 14)), "compute"]
    ranks = [[span("begin", 0, 1, "user_annotation")] for _ in range(2)]
    now, computed, reduced, awaited = ([0, 0] for _ in range(4))
    for number, part in enumerate(parts, start=1):
        lengths, gaps = ([draw.randint(5, 120) for _ in range(2)] for _ in range(2))
        starts = [0, 0]
        length = slower * draw.randint(5, 150)
        for rank, events in enumerate(ranks):
            at = now[rank] + gaps[rank]
            now[rank] = at + 8
            if part == "compute":
                start = max(at + 5, computed[rank], awaited[rank])
                computed[rank] = start + lengths[rank]
                events += [operator("aten::mm", at, 6, MATRIX, number), launch(at + 3, number)]
                events.append(kernel(start, lengths[rank], number))
                continue
            name = "wait" if part == "wait" else "allreduce"
            events.append(span("record_param_comms", at, 7, **{"Collective name": name}))
            events.append(span("cudaStreamWaitEvent", at + 1, 1, "cuda_runtime"))
            awaited[rank] = reduced[rank] if part == "wait" else awaited[rank]
            if part == "reduce":
                events.append(launch(at + 4, number))
                starts[rank] = max(at + 6, reduced[rank], computed[rank])
        if part == "reduce":
            reduced = [max(starts) + length] * 2
            for events, start in zip(ranks, starts, strict=True):
                events.append(nccl(start, max(starts) + length - start, number))
    return ranks, max(computed + reduced)


@pytest.mark.parametrize("seed", range(20))
def test_random_runs_come_out_again_and_on_another_network_too(seed):
    """Whoever comes early waits within its kernel; with the network five times slower the step is
    what the same machine takes then.
    """
    ranks, done = random_run(seed)
    steps = trace_ranks({f"rank{i}": of_rank(i, *events) for i, events in enumerate(ranks)})
    names = ["gpu:0", "gpu:1"]
    devices = [Device(name, "h100-sxm", host=Host()) for name in names]
    cluster = Cluster.all_to_all("two", devices, bandwidth="1 GB/s")
    joined = steps.joined("step", names)
    strategy = Strategy(joined.placement, collectives=Collectives(cost="given"))

    def step(slower: int) -> Fraction:
        ops = (
            replace(op, time=op.time * slower) if "ranks" in op.attrs else op
            for op in joined.graph.ops
        )
        graph = Graph("step", tuple(ops))
        return microseconds(Scenario(graph, cluster, CostModel(()), strategy))

    assert step(1) == done
    assert step(5) == random_run(seed, slower=5)[1]


REAL = {
    "ddp": {"all_reduce": [38440]},
    "fsdp": {
        "all_gather": [16640, 2580, 2580, 16640],
        "reduce_scatter": [5160, 33280],
    },
    "pipe": {"p2p": [16384, 16384]},
}
"""Bytes that a rank gives, worked out from the model: layers of 64 x 128 and 128 x 10 with bias in
float32, a batch of 32.
"""


@pytest.mark.parametrize("scheme", REAL)
def test_real_traces_of_gloo_tell_what_each_scheme_sends(scheme, tmp_path):
    texts = [
        gzip.decompress(file.read_bytes()).decode() for file in sorted(GLOO.glob(scheme + "*"))
    ]
    assert len(texts) == 2
    scenario = imported(tmp_path, *texts, options=("--bandwidth", "1000 GB/s"))
    sent: dict[str, list[int]] = {}
    for op, operands in zip(scenario.graph.ops, scenario.graph.operands, strict=True):
        if "ranks" in op.attrs:
            sent.setdefault(op.kind, []).append(operands[0].bytes)
    assert sent == REAL[scheme]
    # With a network that takes no time, the step is what its hosts and operators take.
    steps = json.loads((tmp_path / "step.json").read_text())["provenance"]["step"].values()
    least = max(step["host_s"] for step in steps) * 10**6
    most = max(step["step_s"] for step in steps) * 10**6
    assert least <= microseconds(scenario) <= 1.02 * most
    # With the communication's own times it is the traced step.
    given = replace(scenario.strategy, collectives=Collectives(cost="given"))
    assert microseconds(replace(scenario, strategy=given)) == pytest.approx(most, rel=0.05)


def predicted_op(name, phase="forward", kind="matmul", **fields):
    return {"name": name, "phase": phase, "kind": kind, **fields}


def test_a_real_run_is_told_beside_the_predicted_step_by_module(tmp_path, capsys):
    """Predicted: products of 80, 50 and 20 us, an all-reduce of 1,000 us; traced are 100 us and an
    all-reduce of 200 us behind it. The trace knows the kinds and their order alone.
    """
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in range(2):
        (traces / f"rank{rank}.json").write_text(of_rank(rank, *ddp()))
    ops, places = [], {}
    for rank in range(2):
        layers = ("layers/0/fc", "80 us"), ("layers/1/fc", "50 us"), ("head/fc", "20 us")
        for i, (name, time) in enumerate(layers):
            name = f"rank {rank}/{name}"
            waits = {"inputs": [f"sum:{rank}"]} if i == 2 else {}
            out = {"outputs": [{"bytes": 10**6}]} if i == 0 else {}
            ops.append(predicted_op(name, time=time, **waits, **out))
            places[name] = f"gpu:{rank}"
    ranks = ["gpu:0", "gpu:1"]
    read = [f"rank {rank}/layers/0/fc" for rank in range(2)]
    outputs = [{"bytes": 10**6}] * 2
    ops.append(
        predicted_op("sum", kind="all_reduce", inputs=read, outputs=outputs, attrs={"ranks": ranks})
    )
    cluster = {
        "devices": [{"name": name, "kind": "h100-sxm"} for name in ranks],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
        "queues": "device",
    }
    scenario = {
        "version": 1,
        "graph": {"version": 1, "ops": ops},
        "cluster": {"version": 1, "name": "two", **cluster},
        "strategy": {"version": 1, "placement": places | {"sum": "gpu:0"}},
    }
    (tmp_path / "predicted.json").write_text(json.dumps(scenario))
    assert main(["compare", str(tmp_path / "predicted.json"), str(traces), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["b"] == "traces, traced 330 us"
    sheets = {sheet["title"]: sheet["rows"] for sheet in compared["sheets"]}
    assert sheets["Ops by module"] == [
        ["(none)", 1_000_000_000, 200_000_000, -800_000_000, -0.8],
        ["layers/0", 160_000_000, 200_000_000, 40_000_000, 0.25],
        ["layers/1", 100_000_000, 100_000_000, 0, 0],
        ["head", 40_000_000, 40_000_000, 0, 0],
    ]
    assert [row[0] for row in sheets["Ops by kind"]] == [
        "collective all_reduce",
        "forward matmul",
    ]
    changed = [row[0] for row in sheets["Tasks that changed most"]]
    assert changed[:3] == ["sum", "rank 0/layers/0/fc", "rank 1/layers/0/fc"]
    assert dict(row[:3:2] for row in sheets["The step"])["step time"] == "330 us"
