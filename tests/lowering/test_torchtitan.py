"""torchtitan's software: its passes over memory, recomputation by op, FSDP2, float8 of torchao and
collectives beside computing; by hand, and beside published runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.runs import Published, published, scenario_of
from hybrid_steps import EXPERTS, cluster_for, lowered
from hybrid_steps import SMALL as LEARNT
from simdev.costs import CostModel
from simdev.costs.collectives import collective_model
from simdev.execution.engine import simulate
from simdev.execution.scenario import execute, load_scenario
from simdev.files import read_device, read_preset
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import Timings, lower_hybrid
from simdev.nouns.models.large import (
    Transformer,
    footprint,
    large_model,
    layer,
    shard_of,
    whole_again,
)
from simdev.nouns.models.large.work import Kernel
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS
from worlds.costs import SPEC

SMALL = replace(LEARNT, positions=False, dropout=False, causal=True)
EAGER = replace(SMALL, software="torchtitan")
COMPILED = replace(EAGER, software="torchtitan-compiled")
PER_OP = {"recompute": "selective", "recompute_modules": ("per_op",)}
AGAIN = ["norm", "qkv", "rotary", "repeat keys", "projection", "residual", "norm", "up"]


def block(model: Transformer, **plan: object):
    shard = shard_of(model, Parallelism(**plan))  # type: ignore[arg-type]
    return shard, layer(shard, 0)


def test_eager_runs_op_by_op_and_compiled_fuses() -> None:
    """Bytes of RMS norm, SwiGLU and residual for each number, counted by hand."""
    rows, inner = SMALL.length * SMALL.hidden, SMALL.length * SMALL.inner
    for model, norm, swiglu in ((EAGER, (36, 92), (10, 18)), (COMPILED, (4, 10), (6, 10))):
        _, made = block(model)
        bytes_of = [
            {load.kind: load.read + load.written for load in part}
            for part in (made.forward, made.backward)
        ]
        for name, number, each in (
            ("norm", rows, norm), ("activation", inner, swiglu), ("residual", rows, (6, 6)),
        ):  # fmt: skip
            found = bytes_of[0][name], bytes_of[1][f"{name} dx"]
            assert found == tuple(number * one for one in each), name
    assert Counter(load.kind for load in made.forward)["qkv"] == 3
    assert Counter(load.kind for load in made.forward)["up"] == 2
    # Four key heads serve eight heads: they are read once and written twice.
    (repeat,) = (load for load in made.forward if load.kind == "repeat keys")
    assert (repeat.read, repeat.written) == (2 * 2 * 128 * 128, 2 * 2 * 128 * 256)


def test_megatron_is_as_it_was() -> None:
    _, made = block(SMALL)
    kinds = [load.kind for load in made.forward]
    assert kinds == [
        "norm", "qkv", "rotary", "attention", "projection", "residual", "norm", "up", "activation",
        "down", "residual",
    ]  # fmt: skip


def test_by_op_attention_and_every_second_product_are_kept() -> None:
    shard, made = block(EAGER, **PER_OP)
    assert [load.kind for load in made.again] == [*AGAIN, "activation"]
    assert [load.flops for load in made.again if load.op_class == "gemm"] == [
        2 * 128 * 256 * width
        for width in (128, 256, 512)  # keys, projection, gate's value
    ]
    model = replace(EAGER, layers=1)
    flops = sum(load.flops for load in made.again)
    assert model.flops_again(1, "selective", ("per_op",)) == flops
    # Input, queries, values, gate, what attention puts out and its sums; eager the last product.
    saved = 2 * 128 * (256 + 256 + 128 + 512 + 256) + 4 * 8 * 128
    assert footprint(shard, 0).saved == saved + 2 * 128 * 256
    assert footprint(block(COMPILED, **PER_OP)[0], 0).saved == saved
    # In float8, too, what products put out is kept in 16 bits.
    narrow = replace(COMPILED, precision="float8")
    assert footprint(block(narrow, **PER_OP)[0], 0).saved == saved
    with pytest.raises(InputError, match="recompute_modules: per_op is known of dense layers"):
        shard_of(EXPERTS, Parallelism(**PER_OP))  # type: ignore[arg-type]


def test_full_recomputation_stops_before_the_last_product() -> None:
    for model, last in ((EAGER, "activation"), (SMALL, "residual")):
        shard, made = block(model, recompute="full")
        assert whole_again(shard, made)[-1].kind == last
    plan = Parallelism(tp=2, recompute="full")
    for model, count in ((EAGER, 3), (SMALL, 4)):
        graph, _ = lowered(model, plan)
        names = [graph.tasks.name[task] for task in range(len(graph.tasks))]
        tensor = [name for name in names if name.startswith("0B0/layer_3/tensor")]
        # With the backward's four, and the inputs of products that Megatron gathers again.
        assert len(tensor) - 4 - 2 * (model is SMALL) == count, tensor


def rows_of(model: Transformer, **plan: object) -> dict[str, int]:
    """Bytes by name of the rows of a step on two devices."""
    p, cluster = Parallelism(dp=2, zero=3, **plan), cluster_for(2)  # type: ignore[arg-type]
    costs = CostModel(specs=[replace(SPEC, flops={**SPEC.flops, "float8": SPEC.flops["bfloat16"]})])
    tasks = lower_hybrid(model, p, collective_model(cluster), costs)[0].tasks
    return {tasks.name[task].split()[0]: int(tasks.bytes[task]) for task in range(len(tasks))}


def test_float8_is_gathered_in_bytes_and_the_root_once() -> None:
    wide, narrow = rows_of(COMPILED), rows_of(replace(COMPILED, precision="float8"))
    name = "0F0/layer_3/data"
    assert wide[name] == 2 * narrow[name] == 2 * sum(COMPILED.layer_parameters(3))
    assert wide["0F0/ends/data"] == narrow["0F0/ends/data"]
    # Embedding and classifier are gathered in the forward and not again.
    reduced = {"0B0/ends/data", "0B0/ends/data_1"}
    assert {name for name in wide if name.startswith("0B0/ends/data")} == reduced
    assert len([name for name in rows_of(SMALL) if name.startswith("0B0/ends/data")]) == 3


def test_the_root_is_kept_once_for_all_microbatches() -> None:
    plan = Parallelism(dp=2, pp=2, zero=3, microbatches=4)
    buffers = lowered(COMPILED, plan)[0].buffers
    kinds = np.asarray(buffers.kind) == BUFFER_KINDS.index("parameters")
    sizes = np.asarray(buffers.bytes)[kinds & (np.asarray(buffers.filler) >= 0)].tolist()
    shard = shard_of(COMPILED, plan)
    for parameters in (shard.embedding_parameters, shard.classifier_parameters):
        assert sizes.count(2 * parameters) == 1


def test_fsdp_keeps_what_it_gathers_into() -> None:
    """In 16 bits the root, or where that is less a layer and the one that comes: throughout."""
    few = replace(COMPILED, vocabulary=1536)
    each, sharded = 2 * sum(few.layer_parameters(0)), {"dp": 2, "zero": 3}
    root = 2 * (2 * 1536 * 256 + few.norm_parameters())
    assert each < root < 2 * each
    for model, plan, size in (
        (few, sharded, 2 * each),
        (few, sharded | {"prefetch": 0}, root),
        (few, {"zero": 3}, 0),
        (replace(few, software="megatron"), sharded, 0),
    ):
        buffers = lowered(model, Parallelism(**plan))[0].buffers  # type: ignore[arg-type]
        lasting = np.flatnonzero(np.asarray(buffers.filler) < 0)
        kept = [
            int(buffers.bytes[i]) for i in lasting if BUFFER_KINDS[buffers.kind[i]] == "workspace"
        ]
        assert set(kept) == ({size} if size else set())


def test_fsdp_copies_what_it_gathers_and_reduces() -> None:
    """2 + 2 bytes a parameter that is gathered, 2 + 4 a gradient."""
    model = collective_model(read_preset("h100-500w-8x"))
    costs = CostModel((), [read_device("h100-500w")])

    def spent(zero: int) -> float:
        """Microseconds that a layer computes, forward and backward."""
        tasks = lower_hybrid(COMPILED, Parallelism(dp=8, zero=zero), model, costs)[0].tasks
        names = [tasks.name[task].split()[0] for task in range(len(tasks))]
        some = map(names.index, ("0F0/layer_3/forward", "0B0/layer_3/backward"))
        return sum(int(tasks.duration[task]) for task in some) / 10**6

    # Three kernels: 3 us each, and bytes at 0.75 of 2.4 TB/s.
    copies = sum(COMPILED.layer_parameters(0)) * (4 + 4 + 6) / (0.75 * 2.4e6) + 3 * 3
    assert spent(3) - spent(0) == pytest.approx(copies, rel=0.01)


@pytest.mark.parametrize("narrow", [False, True])
def test_a_split_sequence_is_gathered_narrow_and_put_in_order(narrow: bool) -> None:
    model = replace(COMPILED, precision="float8") if narrow else COMPILED
    words = 2 * 128 * 256
    for overlaps in (False, True):
        _, made = block(model, tp=2, tp_comm_overlap=overlaps)
        forward, backward = (
            [load.read for load in part if load.kind in ("order", "shared part", "sum of parts")]
            for part in (made.forward, made.backward)
        )
        into = words // 2 if narrow else words
        # Beside products a half is handed out, and what was sent is added up; no product is found
        # for a sum of gradients, which is put in order as ever, nor for a gradient that is made
        # narrow behind the gather.
        assert forward == ([words // 2, words] if overlaps else [into, words]) * 2
        sent = words // 2 if overlaps and not narrow else words
        assert backward == [words, sent] * 2
    if narrow:
        casts = [load.read for load in made.forward if load.kind.startswith("qkv cast")]
        assert casts == [words // 2] * 2  # of a half of the sequence: largest, and rows


def test_attention_is_flash_attention_2_at_the_clock_of_the_cap() -> None:
    load = Kernel("attention", "attention", "bfloat16", 10**12, 0, 0, "", attains=0.37)
    for kind, cluster, clock in (
        ("h100-sxm", "dgx-h100", 1), ("h100-500w", "h100-500w-8x", 0.686 / 0.92),
    ):  # fmt: skip
        scenario = load_scenario(
            {"graph": "llama3-8b", "cluster": cluster, "strategy": {"pipeline": {"dp": 8}}}
        )
        timings = Timings(collective_model(scenario.cluster), scenario.costs)
        seconds = timings.part(kind, load).seconds
        assert seconds == pytest.approx(10**12 / (0.37 * clock * 989e12), rel=0.02)


def test_computing_is_slowed_beside_collectives() -> None:
    """On one device for all and on all devices alike; what nothing runs beside is not slowed."""
    plan = {"dp": 4, "zero": 3, "microbatches": 2}
    steps = []
    for slowdown in (1, "1.5"):
        for symmetry in (True, False):
            p = Parallelism(**plan, slowdown=slowdown)  # type: ignore[arg-type]
            trace = simulate(lowered(SMALL, p, symmetry)[0])
            steps.append(trace.end_ps)
    assert steps[0] == steps[1] < steps[2] == steps[3] <= 1.5 * steps[0]
    alone = [
        simulate(lowered(SMALL, Parallelism(microbatches=2, slowdown=s))[0]).end_ps
        for s in (1, "1.5")
    ]
    assert alone[0] == alone[1]
    with pytest.raises(InputError, match="slowdown: must be from 1 to 2, got 3"):
        Parallelism(slowdown=3)


def titan() -> list[Published]:
    return [each for each in published() if "torchtitan" in each.cell]


@pytest.mark.parametrize("number", [0, 1, 2, 7, 8])
def test_published_runs(number: int) -> None:
    """Within 6 % of the time of a step, and of the peak, which counts what PyTorch reserves and
    does not use.
    """
    run = titan()[number]
    trace = execute(load_scenario(scenario_of(run))).trace
    assert trace.end_ps / 10**12 == pytest.approx(run.seconds, rel=0.06)
    peak = max(memory.peak for memory in trace.memory) / 2**30
    assert all(memory.overflow is None for memory in trace.memory)
    if run.row["peak_gib"]:
        assert 0.94 <= peak / run.row["peak_gib"] <= 1.02


def test_a_pipeline_keeps_its_parameters_gathered() -> None:
    run = titan()[6]
    row = {**run.row, "pp": 4, "dp_shard": 8, "schedule": "Interleaved 1F1B"}
    pipeline = scenario_of(replace(run, row=row))["strategy"]["pipeline"]
    p = Parallelism(**pipeline)
    assert (p.devices, p.zero, p.microbatches, p.microbatch, p.chunks) == (256, 1, 16, 1, 2)
    assert lowered(COMPILED, Parallelism(pp=2, dp=2, microbatches=2))[1].copies == 2


def test_models_name_their_software() -> None:
    assert large_model("llama3-8b", software="torchtitan").software == "torchtitan"
    with pytest.raises(InputError, match="software"):
        large_model("llama3-8b", software="titan")
