"""Steps of large models: engines, symmetry, checker and memory agree whatever is combined; wrong
input is named.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev.check import check
from simdev.cli import main
from simdev.cluster import Cluster
from simdev.collectives import CollectiveModel
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.files import read_cluster
from simdev.lowering.hybrid import lower_hybrid
from simdev.models.large import Transformer, classifier, layer, shard_of
from simdev.models.large.roles import DATA, EXPERT, HOST, PIPELINE, RECOMPUTE, TENSOR
from simdev.report import analyze, run
from simdev.report.figures import chart_of, draw_gantt
from simdev.report.measures.training import BUBBLE, TERMS, tiles
from simdev.scenario import Outcome, load_scenario
from simdev.strategy.parallelism import Parallelism
from simdev.taskgraph import Coded, Lazy
from specs import SPEC

SMALL = Transformer(
    "small", 8, 256, 8, 512, 1000, 128, kv_heads=4, gated=True, bias=False, norm="rms", tied=False
)
DENSE = Transformer("dense", 8, 256, 8, 1024, 1000, 128)
EXPERTS = replace(
    SMALL, name="experts", experts=8, top_k=2, expert_inner=256, shared_experts=1, dense_layers=1
)


@cache
def boxes(devices: int, nodes: int, nics: int = 0) -> Cluster:
    """Nodes of so many devices on a switch, with a NIC for each device or fewer."""
    names = [f"gpu:{i}" for i in range(devices)]
    attach = (
        [[name for j, name in enumerate(names) if j % nics == i] for i in range(nics)]
        if nics
        else names
    )
    node = {
        "name": "boxes", "queues": "link",
        "devices": [{"name": name, "memory": "1 GiB", "transit": False} for name in names]
        + [{"name": "s:0", "kind": "switch"}],
        "links": [
            {"ends": [name, "s:0"], "bandwidth": "100 GB/s", "latency": "2 us",
            "hold_latency": False} for name in names
        ],
    }  # fmt: skip
    if nodes == 1:
        return read_cluster(node)
    return read_cluster(
        node
        | {
            "nodes": nodes,
            "network": {
                "attach": attach,
                "bandwidth": "10 GB/s",
                "latency": "9 us",
                "hold_latency": False,
            },
        }
    )


def cluster_for(count: int, nics: int = 0) -> Cluster:
    return boxes(min(count, 4), max(count // 4, 1), nics)


def lowered(
    model: Transformer, p: Parallelism, symmetry: bool = True, cluster: Cluster | None = None
):
    cluster = cluster or cluster_for(p.devices)
    return lower_hybrid(model, p, CollectiveModel(cluster), {"gpu": SPEC}, symmetry)


def report_of(
    model: Transformer, p: Parallelism, symmetry: bool = True, cluster: Cluster | None = None
):
    task_graph, plan = lowered(model, p, symmetry, cluster)
    return analyze(Outcome(simulate(task_graph, "simpy"), large=plan))


DEGREES = [
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 2),
    (2, 2, 1),
    (4, 1, 2),
    (2, 2, 2),
    (1, 4, 2),
    (4, 2, 1),
    (1, 1, 4),
]


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[Transformer, Parallelism]:
    dp, tp, pp = draw(st.sampled_from(DEGREES))
    model = draw(st.sampled_from([SMALL, DENSE, EXPERTS]))
    ep = draw(st.sampled_from([n for n in (1, 2, 4) if dp % n == 0])) if model.experts else 1
    schedule, chunks = draw(
        st.sampled_from(
            [("1F1B", 1), ("GPipe", 1), ("ZB-H1", 1), ("ZB-H2", 1), ("Interleaved1F1B", 2)]
        )
        if pp > 1
        else st.just(("1F1B", 1))
    )
    offload = draw(
        st.sampled_from([(), ("activations",), ("optimizer",), ("activations", "optimizer")])
    )
    return model, Parallelism(
        dp=dp, tp=tp, pp=pp, ep=ep, schedule=schedule, chunks=chunks, offload=offload,
        microbatches=draw(st.sampled_from([2, 4])), microbatch=draw(st.integers(1, 2)),
        zero=draw(st.integers(0, 3)),
        prefetch=draw(st.integers(0, 2)), overlap=draw(st.booleans()), flash=draw(st.booleans()),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        sequence_parallel=draw(st.booleans()),
        host_bandwidth="20 GB/s", gradient_bytes=draw(st.sampled_from([2, 4])),
    )  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(parallelisms(), st.sampled_from([0, 1, 2]))
def test_one_device_stands_for_all_that_are_alike(
    case: tuple[Transformer, Parallelism], nics: int
) -> None:
    """Collapsed or not: the same step, the same parts of its time, the same peaks, valid by the
    checker.
    """
    model, p = case
    cluster = cluster_for(p.devices, nics)
    one, every = report_of(model, p, cluster=cluster), report_of(model, p, False, cluster)
    assert one.training.large.collapsed
    assert not every.training.large.collapsed
    assert one.step_ps == every.step_ps
    assert one.training.large.counted == every.training.large.counted == len(every.trace.start)
    for short, long in zip(one.training.stages, every.training.stages, strict=True):
        assert (short.device, short.layers, dict(short.terms)) == (
            long.device,
            long.layers,
            dict(long.terms),
        )
        assert short.memory.peak == long.memory.peak
        assert sum(short.terms.values()) == one.step_ps
    for report in (one, every):
        assert report.bubble == pytest.approx(report.training.terms[BUBBLE] / report.seconds)
    assert one.exposed == pytest.approx(every.exposed)
    assert len({memory.peak for memory in every.trace.memory}) <= p.pp
    for report in (one, every):
        assert check(report.trace.task_graph, report.trace) == ()
    assert len(set(every.trace.task_graph.tasks.name)) == len(every.trace.start)
    buffers = every.trace.task_graph.buffers
    assert len(set(buffers.name)) == len(buffers)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(parallelisms())
def test_engines_agree(case: tuple[Transformer, Parallelism]) -> None:
    pytest.importorskip("numba")
    task_graph, _ = lowered(*case, symmetry=False)
    one, other = simulate(task_graph, "simpy"), simulate(task_graph, "compiled")
    assert (one.start == other.start).all()
    assert (one.finish == other.finish).all()


def test_devices_that_differ_are_not_collapsed() -> None:
    """Three NICs for four devices: the groups of dp do not all have one to themselves."""
    cluster, p = boxes(4, 2, 3), Parallelism(dp=2, tp=4, microbatches=2)
    report = report_of(SMALL, p, cluster=cluster)
    assert not report.training.large.collapsed
    assert "slower links" in report.training.large.why
    assert report.training.large.why in str(report)
    assert check(report.trace.task_graph, report.trace) == ()
    fast = report_of(SMALL, p)
    assert report.step_ps > fast.step_ps


def test_what_is_not_alike_decides() -> None:
    """With three NICs the step takes as long as with two, where every group shares one: all wait
    for the slowest.
    """
    p = Parallelism(dp=2, tp=4, microbatches=2)
    assert (
        report_of(SMALL, p, cluster=boxes(4, 2, 3)).step_ps
        == report_of(SMALL, p, cluster=boxes(4, 2, 2)).step_ps
    )


def test_alone_everything_follows_everything() -> None:
    """One device: the step is the sum of its tasks; twice the microbatches, twice the time but for
    the update.
    """
    one, two = (report_of(DENSE, Parallelism(microbatches=m)) for m in (3, 6))
    assert one.step_ps == int(one.trace.task_graph.tasks.duration.sum())
    update = one.training.stages[0].terms["update"]
    assert two.step_ps - update == 2 * (one.step_ps - update)
    assert one.bubble == one.exposed == 0


def test_roles_are_there_when_asked_for() -> None:
    def roles(**changes: object) -> set[int]:
        p = Parallelism(**{"dp": 2, "tp": 2, "pp": 2, "microbatches": 2, **changes})
        return set(lowered(EXPERTS, p)[1].role.tolist())

    assert {TENSOR, DATA, PIPELINE} <= roles()
    assert EXPERT not in roles()
    assert EXPERT in roles(ep=2)
    assert TENSOR not in roles(tp=1)
    assert DATA not in roles(dp=1)
    assert PIPELINE not in roles(pp=1)
    assert RECOMPUTE in roles(recompute="full")
    assert RECOMPUTE not in roles(recompute="selective")
    assert HOST in roles(offload=("optimizer",), host_bandwidth="20 GB/s")


def test_zero_shares_out_what_it_says() -> None:
    """A dense model on 4 replicas: 2 + 4 + 12 bytes a parameter throughout, shared out from the
    last on.
    """

    def held(zero: int) -> tuple[int, ...]:
        task_graph, _ = lowered(DENSE, Parallelism(dp=4, zero=zero, microbatches=2))
        buffers = task_graph.buffers
        rows = [i for i in range(len(buffers)) if buffers.filler[i] < 0]
        return tuple(int(buffers.bytes[i]) for i in rows)

    whole = held(0)
    count = whole[0] // 2
    # rows of the embedding are padded
    assert count == DENSE.parameters() + (1024 - 1000) * DENSE.hidden
    assert whole == (2 * count, 4 * count, 12 * count)
    assert held(1) == (2 * count, 4 * count, 12 * count // 4)
    ends = DENSE.hidden * (1024 + DENSE.length) + DENSE.norm_parameters()
    layers = count - ends
    assert held(2) == (2 * count, 4 * (layers // 4 + ends), 3 * count)
    assert held(3) == (2 * (layers // 4 + ends), 4 * (layers // 4 + ends), 3 * count)


def test_memory_falls_with_each_technique() -> None:
    def peak(**changes: object) -> int:
        p = Parallelism(
            **{
                "microbatches": 2,
                "microbatch": 4,
                "flash": False,
                "tp": 2,
                "sequence_parallel": False,
                **changes,
            }
        )
        return report_of(DENSE, p).training.stages[0].memory.peak

    assert (
        peak() > peak(sequence_parallel=True) > peak(sequence_parallel=True, recompute="selective")
    )
    assert peak(recompute="selective") > peak(recompute="full")
    assert peak(flash=True) < peak()
    assert peak(offload=("activations",), host_bandwidth="1 TB/s") < peak()
    assert peak(offload=("optimizer",), host_bandwidth="1 TB/s") < peak()
    assert peak(dp=2, zero=3) < peak(dp=2, zero=2) < peak(dp=2, zero=1) < peak(dp=2, zero=0)


def test_prefetch_hides_what_zero_3_gathers() -> None:
    """Nothing ahead: every gather waits for the layer before; one ahead: gathers run beside layers,
    at more memory.
    """
    eager, waiting = (
        report_of(DENSE, Parallelism(dp=4, zero=3, microbatches=2, prefetch=n)) for n in (1, 0)
    )
    assert eager.step_ps < waiting.step_ps
    assert eager.training.terms["data"] < waiting.training.terms["data"]


def test_replicas_share_the_adapter_that_they_send_through() -> None:
    """Four replicas send an activation at once: over one adapter it takes four times as long as
    over four.
    """
    p = Parallelism(dp=4, pp=2, microbatches=4)

    def sent(nics: int) -> int:
        report = report_of(SMALL, p, cluster=boxes(4, 2, nics))
        (duration,) = set(
            report.trace.task_graph.tasks.duration[report.training.large.role == PIPELINE].tolist()
        )
        return int(duration)

    size = 2 * SMALL.length * SMALL.hidden
    # 100 ps a byte at 10 GB/s
    assert [sent(nics) for nics in (4, 2, 1)] == [size * 100 * n for n in (1, 2, 4)]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_bytes_are_those_of_the_papers(sequence_parallel: bool, tp: int) -> None:
    """By rank: tp sends 8 b s h (t - 1) / t numbers a layer and microbatch, pp 2 b s h bytes a
    border, way and microbatch (a share of them where the sequence is split), dp 4 bytes of gradient
    and 2 of each parameter.
    """
    m, b = 4, 2
    p = Parallelism(
        dp=2, tp=tp, pp=2, microbatches=m, microbatch=b, sequence_parallel=sequence_parallel
    )
    task_graph, plan = lowered(SMALL, p, cluster=boxes(4, tp))
    tasks, bsh = task_graph.tasks, b * SMALL.length * SMALL.hidden
    inside = np.array(["/layer_" in name for name in tasks.name])
    tensor = tasks.bytes[(plan.role == TENSOR) & inside]
    over = 1 if sequence_parallel else 2  # an all_reduce is two passes over the ring
    assert tensor.sum() * over * (tp - 1) // tp // 2 == SMALL.layers * m * 8 * bsh * (tp - 1) // tp
    assert tasks.bytes[plan.role == PIPELINE].sum() == 2 * m * 2 * bsh // (
        tp if sequence_parallel else 1
    )
    shard = shard_of(SMALL, p)
    layers = SMALL.layers * sum(shard.layer_parameters(0))
    assert tasks.bytes[plan.role == DATA].sum() == 6 * (
        layers + shard.embedding_parameters + shard.classifier_parameters
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_flops_are_shared_out(tp: int) -> None:
    """What all ranks of tp compute is what the model needs; the backward twice that (without scores
    made again).
    """
    for model in (SMALL, DENSE, EXPERTS):
        shard = shard_of(model, Parallelism(tp=tp, flash=False))
        blocks = [layer(shard, number) for number in range(model.layers)]
        ends = classifier(shard)
        padded = 2 * shard.words * model.hidden * (shard.vocabulary * tp - model.vocabulary)
        forward = (
            sum(load.flops for block in (*blocks, ends) for load in block.forward) * tp - padded
        )
        backward = (
            sum(
                load.flops for block in (*blocks, ends) for load in (*block.backward, *block.weight)
            )
            * tp
        )
        assert 3 * forward == model.flops(1)
        assert backward - 2 * padded == 2 * forward


def test_offload_moves_the_input_where_nothing_else_is_kept() -> None:
    """Full recomputation keeps a layer's input alone; offloaded, that goes, received from another
    rank or not.
    """
    told = {
        "recompute": "full",
        "microbatches": 8,
        "microbatch": 4,
        "schedule": "GPipe",
        "host_bandwidth": "1 TB/s",
    }
    for pp in (1, 2):
        kept, moved = (
            report_of(DENSE, Parallelism(dp=2, pp=pp, offload=offload, **told))
            for offload in ((), ("activations",))
        )
        inputs = DENSE.layers // pp * 8 * 2 * 4 * DENSE.length * DENSE.hidden
        for before, after in zip(kept.training.stages, moved.training.stages, strict=True):
            assert 0.6 * inputs < before.memory.peak - after.memory.peak < inputs


def test_a_tied_table_holds_up_both_ends() -> None:
    """Nothing else is sent at the end of the step: what either end waits for is the gradient of the
    other.
    """
    report = report_of(DENSE, Parallelism(pp=2, microbatches=2, overlap=False))
    plan, trace = report.training.large, report.trace
    (tie,) = np.flatnonzero((plan.role == PIPELINE) & (plan.microbatch < 0))
    for rank in range(2):
        label, start, finish = tiles(trace, plan, rank)
        here = (start <= trace.start[tie]) & (trace.start[tie] < finish)
        assert [TERMS[one] for one in label[here]] == ["pipeline"]


def test_selective_recomputation_without_effect_is_told() -> None:
    p = Parallelism(recompute="selective", microbatches=2)
    assert 'recompute "selective" changes nothing' in str(report_of(DENSE, p))
    assert "changes nothing" not in str(report_of(DENSE, replace(p, flash=False)))


def test_the_chart_shows_every_microbatch_and_all_time() -> None:
    report = report_of(DENSE, Parallelism(tp=2, pp=2, microbatches=4, recompute="full"))
    chart = chart_of(report)
    ax = draw_gantt(chart)
    assert sorted(text.get_text() for text in ax.texts) == sorted(
        str(i) for i in range(4) for _ in range(4)
    )
    for row in chart.rows:
        drawn = int((row.finish - row.start).sum())
        # gaps that could not be seen are drawn over
        assert report.step_ps <= drawn < 1.3 * report.step_ps
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {
        "forward and recompute",
        "backward",
        "tensor, exposed",
        "bubble",
        "microbatches",
    } <= set(legend)


def test_pipeline_meets_its_closed_form() -> None:
    """Equal stages, transfers that take no time: the step is (m + p - 1) / m of a rank's work, and
    its ends.
    """
    free = read_cluster(
        {"name": "free", "queues": "parallel", "devices": [{"name": f"gpu:{i}"} for i in range(4)],
         "links": {"all_to_all": {"bandwidth": "1000 PB/s"}}}
    )  # fmt: skip
    model = replace(DENSE, vocabulary=1, tied=False)
    m, p = 8, 4
    report = report_of(model, Parallelism(pp=p, microbatches=m), cluster=free)
    tasks, plan = report.trace.task_graph.tasks, report.training.large
    layers = [
        int(tasks.duration[(plan.role == role) & (tasks.source == 1)].sum()) // m for role in (0, 1)
    ]
    ideal = (m + p - 1) * sum(layers)
    first, last = (report.training.stages[rank].terms for rank in (0, -1))
    ends = first["update"] + last["forward"] + last["backward"]
    assert ideal <= report.step_ps <= ideal + ends
    assert report.training.stages[1].terms[BUBBLE] >= (p - 1) * sum(layers)


def test_tiles_tile() -> None:
    report = report_of(EXPERTS, Parallelism(dp=2, tp=2, pp=2, ep=2, microbatches=4))
    for rank in range(2):
        label, start, finish = tiles(report.trace, report.training.large, rank)
        assert start[0] == 0
        assert finish[-1] == report.step_ps
        assert (start[1:] == finish[:-1]).all()
        assert (label[1:] != label[:-1]).all()
        assert set(label.tolist()) <= set(range(len(TERMS)))


def test_a_table_of_ones_own_is_the_schedule(tmp_path) -> None:
    """GPipe written down is GPipe by name."""
    table = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    own = report_of(DENSE, Parallelism(pp=2, microbatches=2, table=table))
    named = report_of(DENSE, Parallelism(pp=2, microbatches=2, schedule="GPipe"))
    assert own.step_ps == named.step_ps
    (tmp_path / "own.csv").write_text(table)
    scenario = {
        "version": 1, "graph": {"model": "llama2-7b", "layers": 4},
        "cluster": {"preset": "dgx-h100"},
        "strategy": {"pipeline": {"dp": 4, "pp": 2, "microbatches": 2, "table": "own.csv"}},
    }  # fmt: skip
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    assert load_scenario(tmp_path / "scenario.json").strategy.pipeline.table == table


BAD = [
    ({"microbatches": 0}, "microbatches: must be a whole number from 1 to 1,048,576, got 0"),
    (
        {"microbatches": 650_000, "tp": 4},
        "microbatches: the step lowers to more than 10,000,000 tasks",
    ),
    ({"dp": 2}, "= 2 devices"),
    ({"ep": 2, "dp": 4}, "ep: dense has no experts"),
    ({"tp": 16}, "tp: 16 does not divide heads 8 of dense"),
    ({"tp": 3}, "tp: 3 does not divide heads 8, inner 1024, length 128 of dense"),
    ({"pp": 16, "microbatches": 16}, "stage 8 would be without op"),
    ({"stage_layers": (8, 0), "pp": 2}, "stage_layers[1]: a stage needs one layer at least, got 0"),
    ({"stage_layers": (4, 3), "pp": 2}, "stage_layers: tell of 7 layers"),
    ({"zero": 4}, "zero: must be 0, 1, 2 or 3, got 4"),
    ({"recompute": "all"}, "recompute: must be one of none, selective, full"),
    ({"offload": ("optimizer",)}, "host_bandwidth: offload needs"),
    ({"schedule": "2F2B"}, "schedule: must be one of"),
    ({"schedule": "PipeDream", "pp": 2, "microbatches": 2}, "PipeDream has no step"),
    (
        {"pp": 2, "microbatches": 1, "table": "0F0,0B0\n1B0,1F0\n"},
        "table: rank 1, slot 0: 1B0 stands before 1F0",
    ),
    (
        {"pp": 2, "microbatches": 2, "table": "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"},
        "table: deadlock",
    ),
    ({"pp": 2, "microbatches": 1, "table": "0F0,0B0\n"}, "pp: is 2, but the table has 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_bad_input_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        lowered(DENSE, Parallelism(**changes), cluster=boxes(4, 1))
    assert message in str(caught.value)


def test_unknown_devices_are_named() -> None:
    with pytest.raises(InputError, match='no datasheet tells of devices of kind "gpu"'):
        lower_hybrid(DENSE, Parallelism(tp=4), CollectiveModel(boxes(4, 1)), {})


def test_one_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of the guide: 64 GPUs, one of each rank simulated, the time of each rank tiled by
    its terms.
    """
    line = (
        "simulate --model llama3-70b --cluster dgx-h100 --nodes 8 --dp 4 --tp 8 --pp 2 "
        "--microbatches 16 --json --check"
    )
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    training = found["training"]
    assert training["devices"] == 64
    assert training["symmetry"]["copies"] == 32
    assert training["symmetry"]["collapsed"]
    assert 0.3 < training["mfu"] < 0.6
    for stage in training["stages"]:
        assert sum(stage["terms_s"].values()) == pytest.approx(found["step_time_s"])
        assert stage["peak_bytes"] < stage["capacity_bytes"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--model llama3-8b --cluster dgx-h100 --dp 3", "= 3 devices, but the cluster"),
        ("--model llama3-8b --cluster dgx-h100 --tp 8 --microbatches 0", "--microbatches: must be"),
        ("--model lama --cluster dgx-h100", '--model: no large model called "lama"'),
        ("--model llama3-8b --cluster dgx-h10", 'did you mean "dgx-h100"'),
        ("--model llama3-8b", "--cluster: is needed"),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 3",
            "--tp: 3 does not divide heads 32, kv_heads 8",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --schedule x",
            "--schedule: must be one of GPipe",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --length 99999999",
            "--length: must be a whole number from 1 to",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --chunks 2 --csv a.csv",
            "--chunks: the table tells it",
        ),
        ("--model llama3-8b --cluster= --tp 8", '--cluster: must be a path, got ""'),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --offload optimizer --host-bandwidth 1B/s",
            "--host-bandwidth: a task of the step takes more than 53 days",
        ),
        ("some.json --tp 8", "--tp: goes with --model"),
        ("some.json --model llama3-8b --cluster dgx-h100", "some.json is the scenario"),
    ],
)
def test_bad_lines_exit_2(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *line.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_file_with_a_pipeline_is_simulated(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = {"version": 1, "pipeline": {"dp": 2, "tp": 4, "microbatches": 4, "zero": 3}}
    scenario = {
        "version": 1, "graph": {"model": "llama2-7b", "layers": 4, "length": 1024},
        "cluster": "dgx-a100-80",
        "strategy": "strategy.json",
    }  # fmt: skip
    (tmp_path / "strategy.json").write_text(json.dumps(strategy))
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    saved, drawn = tmp_path / "run.json.gz", tmp_path / "gantt.png"
    arguments = [
        "simulate",
        str(tmp_path / "scenario.json"),
        "--save",
        str(saved),
        "--gantt",
        str(drawn),
        "--json",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["training"]["model"] == "llama2-7b"
    assert drawn.stat().st_size > 10_000
    assert main(["check", str(saved)]) == 0
    (tmp_path / "strategy.json").write_text(
        json.dumps({"version": 1, "pipeline": {"dp": 2, "tpp": 4}})
    )
    assert main(["simulate", str(tmp_path / "scenario.json")]) == 2
    assert "strategy.json: pipeline.tpp: unknown key" in capsys.readouterr().err


STEP = {
    "version": 1, "graph": {"model": "llama2-7b", "layers": 2, "length": 512},
    "cluster": "dgx-a100-80",
    "strategy": {"pipeline": {"dp": 2, "tp": 4}},
}  # fmt: skip
WRONG = [
    ({"graph": {"model": "llama2-7b", "name": "mine"}}, "graph.name: is no size of a large model"),
    (
        {"graph": {"model": "llama2-7b", "layers": 2**24}},
        "graph.layers: must be a whole number from 1 to 16,384",
    ),
    ({"graph": {"model": "mixtral"}}, 'graph.model: no large model called "mixtral"'),
    ({"cluster": "dgx"}, "cluster: neither a file nor a preset"),
    ({"devices": [{"kind": "x"}]}, "devices[0].flops: missing"),
    (
        {"strategy": {"pipeline": None, "version": 1}},
        "strategy.pipeline: must be an object, got null",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8}, "placement": {"a": "b"}}},
        "strategy.placement: a pipeline stands alone",
    ),
    (
        {"strategy": "data-parallel", "graph": {"model": "mixtral-8x7b"}},
        "strategy: mixtral-8x7b is a large model by",
    ),
    (
        {"options": {"memory": {"model": "outputs_only"}}},
        "options.memory: that of llama2-7b is counted tensor by tensor",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "table": ""}}},
        "strategy.pipeline.table: must be the path",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "table": "t", "schedule": "1F1B"}}},
        "strategy.pipeline.schedule: the table",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "microbatch": 0}}},
        "strategy.pipeline.microbatch: must be",
    ),
    ({"strategy": {"pipeline": {"tp": 6}}}, "strategy.pipeline.tp: 6 does not divide heads 32"),
    ({"strategy": {"pipeline": {"tp": 4}}}, "dp x tp x pp: 1 x 4 x 1 = 4 devices"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=[told[:24] for _, told in WRONG])
def test_bad_files_exit_2(
    changes: dict[str, object], told: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(STEP | changes))
    assert main(["simulate", str(file), "--save", str(tmp_path / "run.json")]) == 2
    assert capsys.readouterr().err.startswith(f"{file}: {told}")
    assert [one.name for one in tmp_path.iterdir()] == ["s.json"]


def test_standard_input_may_hold_a_pipeline(
    monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(text: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return main(["simulate", "-", "--json"])

    assert asked(json.dumps(STEP)) == 0
    assert json.loads(capsys.readouterr().out)["training"]["model"] == "llama2-7b"
    assert asked(json.dumps(STEP | {"strategy": {"pipeline": {"tp": 6}}})) == 2
    assert capsys.readouterr().err.startswith("<stdin>: strategy.pipeline.tp: 6 does not divide")
    assert asked('"s.json"') == 2
    assert "<stdin>: must be an object (a scenario)" in capsys.readouterr().err


def test_inputs_are_not_written_over(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = "0F0,0B0\n"
    (tmp_path / "t.json").write_text(table)
    line = "simulate --model llama2-7b --cluster dgx-a100-80 --tp 8 --csv t.json --save t.json"
    assert main(line.split()) == 2
    assert "--save: t.json is the input t.json too" in capsys.readouterr().err
    (tmp_path / "s.json").write_text(
        json.dumps(STEP | {"strategy": {"pipeline": {"tp": 8, "table": "t.json"}}})
    )
    assert main(["simulate", "s.json", "--save", "t.json"]) == 2
    assert (tmp_path / "t.json").read_text() == table


def test_run_is_what_the_line_runs() -> None:
    scenario = {
        "graph": {"model": "mixtral-8x7b", "layers": 4, "length": 1024}, "cluster": "dgx-h100",
        "strategy": {"pipeline": {"dp": 8, "ep": 8, "microbatches": 2}},
    }  # fmt: skip
    report = run(load_scenario(scenario))
    assert report.feasible
    assert report.training.terms["expert"] > 0
    assert sum(report.training.terms.values()) == pytest.approx(report.seconds)
    assert "One device stands for the 8" in str(report)
    assert np.isclose(
        report.training.mfu, report.training.large.model.flops(16) / (report.seconds * 8 * 989e12)
    )


def test_names_are_made_when_asked_for() -> None:
    made: list[int] = []
    names = Lazy(5, lambda i: made.append(i) or f"task {i}")
    assert len(names) == 5
    assert not made
    assert (names[1], names[-1], names[3:]) == ("task 1", "task 4", ("task 3", "task 4"))
    assert made == [1, 4, 3, 4]
    assert list(names) == [f"task {i}" for i in range(5)]
    assert names == tuple(names)
    assert names != tuple(names)[1:]
    with pytest.raises(IndexError):
        names[5]
    kinds = Coded(np.array([1, 0, 1], np.uint8), ("forward", "transfer"))
    assert tuple(kinds) == ("transfer", "forward", "transfer")
