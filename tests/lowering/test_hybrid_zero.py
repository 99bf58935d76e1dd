"""ZeRO by bucket: what is in flight, what that needs, and the laws that hold on any network."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hybrid_steps import DENSE, SMALL, boxes, lowered, modules
from simdev.costs import CostModel
from simdev.costs.collectives import collective_model
from simdev.execution.engine import simulate
from simdev.files import read_cluster
from simdev.files.device import datasheets
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.cluster import Cluster
from simdev.nouns.models.large import Transformer, large_model, shard_of
from simdev.nouns.models.large.roles import DATA, PIPELINE
from simdev.nouns.strategy.parallelism import RECOMPUTES, Parallelism
from worlds.clusters import devices, star
from worlds.costs import SPEC

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "large-models.md").read_text()
A100 = CostModel(specs=datasheets((), ["a100-80"], ()))
DEGREES = [(2, 1, 1), (3, 1, 1), (4, 1, 1), (8, 1, 1), (2, 2, 1), (2, 1, 2), (2, 1, 4), (4, 2, 1)]


def starred(count: int, bandwidth: str) -> Cluster:
    """So many GPUs on one switch."""
    members = devices(count, "gpu:", memory="1 GiB", transit=False)
    return star(members, "link", bandwidth=bandwidth, hold_latency=False)


def step(
    model: Transformer, cluster: Cluster, costs: CostModel | None = None, **chosen: Any
) -> tuple[int, int]:
    """Length (ps) and the largest peak (bytes) of a step."""
    costs = costs or CostModel(specs=(SPEC,))
    task_graph, _ = lower_hybrid(model, Parallelism(**chosen), collective_model(cluster), costs)
    trace = simulate(task_graph, "compiled")
    return trace.end_ps, max(memory.peak for memory in trace.memory)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Transformer, dict[str, Any]]:
    heads = draw(st.sampled_from([2, 8]))
    model = Transformer(
        "random", draw(st.integers(1, 9)), heads * draw(st.sampled_from([16, 32])), heads,
        draw(st.sampled_from([128, 512, 1024])), draw(st.sampled_from([100, 1000, 5000])),
        draw(st.sampled_from([32, 128])), gated=draw(st.booleans()), tied=draw(st.booleans()),
        positions=draw(st.booleans()),
        **draw(st.sampled_from([{}, {}, {"experts": 8, "top_k": 2, "expert_inner": 128}])),
    )  # fmt: skip
    dp, tp, pp = draw(st.sampled_from(DEGREES))
    schedule, chunks = ("1F1B", 1)
    if pp > 1:
        schedule, chunks = draw(
            st.sampled_from([("1F1B", 1), ("GPipe", 1), ("ZB-H1", 1), ("Interleaved1F1B", 2)])
        )
    assume(pp * chunks <= model.layers)
    recompute = draw(st.sampled_from(RECOMPUTES))
    chosen = {
        "recompute_modules": draw(modules(recompute)), "tensor_overlap": draw(st.booleans()),
        "dp": dp, "tp": tp, "pp": pp, "schedule": schedule, "chunks": chunks,
        "microbatches": draw(st.sampled_from([4, 8] if pp > 1 else [1, 2, 3])),
        "recompute": recompute,
        "flash": draw(st.booleans()), "overlap": draw(st.booleans()),
        "ep": draw(st.sampled_from([1, 2])) if model.experts and dp % 2 == 0 else 1,
    }  # fmt: skip
    return model, chosen | draw(st.sampled_from([{}, {"gradient_bytes": 2}, {"reduce_bytes": 4}]))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(steps(), st.sampled_from(["1 MB/s", "100 MB/s", "10 GB/s"]), st.sampled_from([0, "1 ms"]))
def test_more_shared_out_needs_at_most_a_bucket_more(
    case: tuple[Transformer, dict[str, Any]], bandwidth: str, latency: Any
) -> None:
    """Whatever the network: what is in flight is bounded, however slow it is."""
    model, chosen = case
    cluster = starred(chosen["dp"] * chosen["tp"] * chosen["pp"], bandwidth)
    peaks = [
        step(model, cluster, zero=zero, message_latency=latency, **chosen)[1] for zero in range(4)
    ]
    shard = shard_of(model, Parallelism(**chosen))
    layers = [sum(shard.layer_parameters(layer)) for layer in range(model.layers)]
    bucket = max(*layers, shard.embedding_parameters, shard.classifier_parameters)
    for less, more in pairwise(peaks):
        assert more <= less + chosen.get("gradient_bytes", 4) * bucket


@settings(max_examples=8, deadline=None, derandomize=True)
@given(steps())
def test_a_network_without_end_makes_them_equal(case: tuple[Transformer, dict[str, Any]]) -> None:
    """What is shared out costs communication alone (and 0 updates more parameters than 1 to 3)."""
    model, chosen = case
    cluster = starred(chosen["dp"] * chosen["tp"] * chosen["pp"], "1000 PB/s")
    lengths = [step(model, cluster, zero=zero, **chosen)[0] for zero in (1, 2, 3)]
    # A message of a byte still takes a picosecond or two.
    assert max(lengths) - min(lengths) < 10**4


def test_gradients_do_not_pile_up() -> None:
    """Eight layers of Llama 2 7B on sixteen replicas at 10 Gbit/s: two buckets are there, not all,
    as the page tells.
    """
    model = large_model("llama2-7b", layers=8)
    cluster = read_cluster(
        {
            "name": "slow", "queues": "link", "nodes": 16, "links": [],
            "devices": [
                {"name": "gpu:0", "kind": "a100-80", "memory": "80 GiB", "transit": False}
            ],
            "network": {"attach": ["gpu:0"], "bandwidth": "10 Gbit/s", "latency": "10 us",
            "hold_latency": False},
        }
    )  # fmt: skip
    taken = [
        step(model, cluster, dp=16, zero=zero, microbatches=8, costs=A100) for zero in range(4)
    ]
    times, peaks = zip(*taken, strict=True)
    assert f"| s | {' | '.join(f'{ps / 1e12:.2f}' for ps in times)} |" in PAGE
    assert f"| GiB | {' | '.join(f'{size / 2**30:.1f}' for size in peaks)} |" in PAGE
    shard = shard_of(model, Parallelism())
    total = 8 * sum(shard.layer_parameters(0))
    total += shard.embedding_parameters + shard.classifier_parameters
    buckets = shard.embedding_parameters, sum(shard.layer_parameters(0))
    # Gradients of 4 bytes are shared out; two buckets of 2 bytes are there in their place.
    assert peaks[1] - peaks[2] > 4 * total * 15 // 16 - 2 * sum(buckets) - 2**20


@pytest.mark.parametrize(("overlap", "in_flight"), [(True, 0), (True, 1), (True, 3), (False, 3)])
@pytest.mark.parametrize("zero", [2, 3])
def test_so_many_are_in_flight(zero: int, overlap: bool, in_flight: int) -> None:
    """While a layer computes its gradient, at most so many others are on their way."""
    task_graph, _ = lowered(
        SMALL, Parallelism(dp=2, zero=zero, overlap=overlap, in_flight=in_flight, microbatches=2),
        cluster=starred(2, "10 MB/s"),
    )  # fmt: skip
    trace, buffers = simulate(task_graph, "simpy"), task_graph.buffers
    rows = [
        i for i, name in enumerate(buffers.name)
        if name.startswith("gradients ") and "gpu:0" in name and buffers.filler[i] >= 0
    ]  # fmt: skip
    starts = np.array([trace.start[buffers.filler[i]] for i in rows])
    ends = np.array([max(trace.finish[task] for task in buffers.readers[i]) for i in rows])
    most = max(int(((starts <= now) & (now < ends)).sum()) for now in starts)
    limit = (in_flight if overlap else 0) + 1
    # What ZeRO 3 gathers stands in the same queue, so that fewer gradients come together.
    assert most == limit if zero == 2 else 1 <= most <= limit


def test_a_large_layer_is_cut_into_buckets() -> None:
    """Equal parts: the same bytes in more messages, the same computing, less in flight."""
    chosen = {"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full"}
    cluster, size = starred(2, "100 MB/s"), sum(shard_of(SMALL, Parallelism()).layer_parameters(0))
    whole, cut = (
        lowered(SMALL, Parallelism(bucket=bucket, **chosen), cluster=cluster)
        for bucket in (size, size // 3)
    )
    counts = [int((plan.role == DATA).sum()) for _, plan in (whole, cut)]
    assert counts[1] > 3 * counts[0] - 20
    times = [
        int(graph.tasks.duration[(plan.role == 0) | (plan.role == 1)].sum())
        for graph, plan in (whole, cut)
    ]
    assert times[0] == times[1]
    peaks = [max(m.peak for m in simulate(graph, "simpy").memory) for graph, _ in (whole, cut)]
    assert peaks[1] < peaks[0]


def test_tasks_of_one_role_are_numbered_by_their_place_in_an_action() -> None:
    chosen = {"dp": 2, "zero": 3, "microbatches": 2, "recompute": "full", "bucket": 5000}
    task_graph, _ = lowered(SMALL, Parallelism(**chosen), cluster=starred(2, "100 MB/s"))
    numbers: dict[tuple[str, str], list[int]] = {}
    for text in task_graph.tasks.name:
        name, _, device = text.partition(" ")
        what, _, number = name.rpartition("_")
        key = (what, device) if number.isdigit() and not what.endswith("layer") else (name, device)
        numbers.setdefault(key, []).append(int(number) if key[0] == what else 0)
    assert max(map(len, numbers.values())) > 100
    assert all(each == list(range(len(each))) for each in numbers.values())


@pytest.mark.parametrize(("zero", "each"), [(0, 4), (1, 4), (2, 2), (3, 2)])
def test_reductions_have_the_type_that_frameworks_use(zero: int, each: int) -> None:
    """Megatron-LM's are those of its sums, FSDP's and DeepSpeed's those of the parameters."""

    def reduced(**chosen: Any) -> int:
        task_graph, plan = lowered(
            DENSE, Parallelism(dp=2, zero=zero, **chosen), cluster=boxes(2, 1)
        )
        return int(task_graph.tasks.bytes[plan.role == DATA].sum())

    assert Parallelism(zero=zero).reduced_bytes == each
    assert Parallelism(zero=zero, gradient_bytes=2).reduced_bytes == 2
    one, two = reduced(reduce_bytes=1), reduced(reduce_bytes=2)
    assert reduced() - one == (each - 1) * (two - one)


def test_every_message_has_its_latency() -> None:
    """Collectives and transfers alike take as much longer as the latency says."""
    chosen = {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2}
    (plain, plan), (late, _) = (
        lowered(SMALL, Parallelism(message_latency=latency, **chosen)) for latency in (0, "7 us")
    )
    taken = [graph.tasks.duration + graph.tasks.lag for graph, _ in ((plain, 0), (late, 0))]
    sent = (plan.role >= 5) & (plan.role <= PIPELINE)
    assert set((taken[1] - taken[0])[sent].tolist()) == {7_000_000}
    assert set((taken[1] - taken[0])[~sent].tolist()) == {0}


@pytest.mark.parametrize("dp", [2, 4])
def test_a_list_of_parts_is_copied_part_by_part(dp: int) -> None:
    """DeepSpeed 0.3: a layer's four weights and both ends by themselves, in each microbatch.

    A layer is gathered to compute, to compute again and to go back, then reduced. Copies of its
    parts at 3/4 TB/s, launched in 1 us, take less than the 14.2 us of their host.
    """
    chosen = {"dp": dp, "zero": 3, "microbatches": 2, "recompute": "full"}
    cluster, model = starred(dp, "100 MB/s"), replace(SMALL, software="deepspeed-0.3")
    graph, plan = lowered(model, Parallelism(**chosen), cluster=cluster)
    sent = plan.role == DATA
    assert int(sent.sum()) == 2 * (8 * 4 * 4 + 5)
    alone = collective_model(cluster)
    sizes, taken = graph.tasks.bytes[sent].tolist(), graph.tasks.duration[sent].tolist()
    for size, ps in zip(sizes, taken, strict=True):
        assert ps == alone.cost("all_gather", range(dp), size).ps + dp * 14_200_000


def test_a_list_takes_as_long_as_the_datasheet_tells_of_dispatches() -> None:
    model, cluster = replace(SMALL, software="deepspeed-0.3"), starred(4, "100 MB/s")
    longest = []
    for seconds in (Fraction(5, 10**6), Fraction(20, 10**6)):
        costs = CostModel(specs=(replace(SPEC, dispatch=seconds),))
        graph, plan = lower_hybrid(
            model, Parallelism(dp=4, zero=3), collective_model(cluster), costs
        )
        longest.append(graph.tasks.duration[plan.role == DATA])
    assert set((longest[1] - longest[0]).tolist()) == {4 * 15_000_000}


def test_a_list_of_large_parts_takes_as_long_as_its_bytes() -> None:
    """Two parts of a classifier of 64 MB are read and written at 3/4 TB/s, launched in 1 us."""
    model = replace(DENSE, layers=1, hidden=2**15, vocabulary=1024, software="deepspeed-0.3")
    size = shard_of(model, Parallelism()).classifier_parameters * 2
    graphs = (
        lowered(
            replace(model, software=name), Parallelism(dp=2, zero=3), cluster=starred(2, "1 PB/s")
        )
        for name in ("megatron", "deepspeed-0.3")
    )
    whole, listed = (int(g.tasks.duration[g.tasks.bytes == size].max()) for g, _ in graphs)
    copies = 2 * (size / 0.75e12 + 1e-6)
    assert (listed - whole) / 1e12 == pytest.approx(copies, rel=1e-6)
    assert copies > 2 * 14.2e-6


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_only_what_zero_3_sends_is_a_list(zero: int) -> None:
    cluster = starred(4, "100 MB/s")
    models = SMALL, replace(SMALL, software="deepspeed-0.3")
    taken = [step(model, cluster, dp=4, zero=zero, microbatches=2) for model in models]
    assert taken[0] == taken[1]
    alone = [step(model, starred(1, "1 GB/s"), zero=3) for model in models]
    assert alone[0] == alone[1]
