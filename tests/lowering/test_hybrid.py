"""Steps of large models: engines, symmetry, checker and memory agree whatever is combined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_steps import DENSE, EXPERTS, SMALL, boxes, cluster_for, lowered, modules, report_of
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.nouns.models.large import Transformer, classifier, layer, shard_of
from simdev.nouns.models.large.roles import DATA, EXPERT, HOST, PIPELINE, RECOMPUTE, TENSOR
from simdev.nouns.strategy.parallelism import RECOMPUTES, Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS
from simdev.report.measures.training import BUBBLE, TERMS, tiles

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


# Latents and experts by group, which are sent narrow.
LATENT = replace(
    EXPERTS, name="latent", kv_heads=8, kv_latent=64, rotary_width=16, head_width=48,
    value_width=32, expert_groups=2, top_groups=1, narrow_dispatch=True,
)  # fmt: skip


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[Transformer, Parallelism]:
    dp, tp, pp = draw(st.sampled_from(DEGREES))
    model = draw(st.sampled_from([SMALL, DENSE, EXPERTS, LATENT]))
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
    recompute, some = draw(st.sampled_from(RECOMPUTES)), st.sampled_from([None, 0, 1, 3])
    overlap = draw(st.booleans())
    return model, Parallelism(
        dp=dp, tp=tp, pp=pp, ep=ep, schedule=schedule, chunks=chunks, offload=offload,
        recompute=recompute, recompute_modules=draw(modules(recompute)),
        tensor_overlap=draw(st.booleans()), tp_comm_overlap=overlap,
        microbatches=draw(st.sampled_from([2, 4])), microbatch=draw(st.integers(1, 2)),
        zero=draw(st.integers(0, 3)),
        prefetch=draw(st.integers(0, 2)), overlap=draw(st.booleans()), flash=draw(st.booleans()),
        sequence_parallel=overlap or draw(st.booleans()), scatter_gather=draw(st.booleans()),
        host_bandwidth="20 GB/s", gradient_bytes=draw(st.sampled_from([2, 4])),
        in_flight=draw(st.integers(0, 2)), bucket=draw(st.sampled_from([100_000, 500_000_000])),
        message_latency=draw(st.sampled_from([0, "3 us"])),
        recompute_layers=draw(some) if recompute == "full" else None,
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
        lasting = np.flatnonzero(np.asarray(buffers.filler) < 0)
        rows = [i for i in lasting if BUFFER_KINDS[buffers.kind[i]] != "workspace"]
        return tuple(int(buffers.bytes[i]) for i in rows)

    whole = held(0)
    count = whole[0] // 2
    # rows of the embedding are padded
    assert count == DENSE.parameters() + (1024 - 1000) * DENSE.hidden
    assert whole == (2 * count, 4 * count, 12 * count)
    assert held(1) == (2 * count, 4 * count, 12 * count // 4)
    # Embedding and classifier, too.
    assert held(2) == (2 * count, 4 * count // 4, 3 * count)
    assert held(3) == (2 * count // 4, 4 * count // 4, 3 * count)


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
    """By rank: tp sends 8 b s h (t - 1) / t numbers a layer and microbatch, and where the sequence
    is split 2 more for what is gathered again, pp 2 b s h bytes a border, way and microbatch (a
    share of them), dp 4 bytes of gradient and 2 of each parameter.
    """
    m, b = 4, 2
    p = Parallelism(
        dp=2, tp=tp, pp=2, microbatches=m, microbatch=b, sequence_parallel=sequence_parallel,
        tensor_overlap=False,
    )  # fmt: skip
    task_graph, plan = lowered(SMALL, p, cluster=boxes(4, tp))
    tasks, bsh = task_graph.tasks, b * SMALL.length * SMALL.hidden
    inside = np.array(["/layer_" in name for name in tasks.name])
    tensor = tasks.bytes[(plan.role == TENSOR) & inside]
    over = 1 if sequence_parallel else 2  # an all_reduce is two passes over the ring
    count = SMALL.layers * m * (10 if sequence_parallel else 8)
    assert tensor.sum() * over * (tp - 1) // tp // 2 == count * bsh * (tp - 1) // tp
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
        padded = 2 * shard.tokens * model.hidden * (shard.vocabulary * tp - model.vocabulary)
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
