"""Large models as they were really trained fit into the memory that they had, and the page tells of
them; what selective recomputation makes again, and stages without layers.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import really_run
from hybrid_steps import DENSE as SMALL
from hybrid_steps import lowered
from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.nouns.models.large import Transformer, footprint, large_model, layer, shard_of
from simdev.nouns.models.large.roles import TENSOR
from simdev.nouns.models.large.shard import stand_in_parameters
from simdev.nouns.strategy.parallelism import MODULES, Parallelism
from simdev.nouns.taskgraph import BUFFER_KINDS
from simdev.report import Report
from worlds.scenarios import pipelined

PAGE = (Path(__file__).parents[2] / "docs" / "papers" / "large-models.md").read_text()
QUICK = ("1.7B", "3.6B", "llama2-7b", "llama2-13b", "ZeRO 3 on 384")
CASES = [
    ran
    if any(part in ran.name for part in QUICK)
    else pytest.param(ran, marks=pytest.mark.slow)  # seconds each
    for ran in (*really_run.RUNS, *really_run.ZERO_3)
]
LATENT = large_model("deepseek-v2-lite", layers=3, length=512)
DENSE = large_model("llama3.2-1b", layers=2, length=512)


@pytest.mark.parametrize("ran", CASES, ids=lambda ran: ran.name)
def test_runs_that_were_really_run_are_possible(ran: really_run.Ran) -> None:
    report = really_run.simulated(ran)
    assert really_run.fits(report)
    assert "| " + " | ".join(really_run.cells(ran, report)) + " |" in PAGE


def _prints(model: Transformer, number: int, *modules: str, **more: object) -> tuple[int, int]:
    """Bytes that a layer saves, and that it makes again."""
    chosen: dict[str, object] = {"recompute": "selective", "recompute_modules": modules}
    kept = footprint(
        shard_of(model, Parallelism(**{**(chosen if modules else {}), **more})), number
    )
    return kept.saved, kept.again


@pytest.mark.parametrize("tp", [1, 2])
def test_modules_that_are_made_again_are_not_saved(tp: int) -> None:
    """Bytes by tensor of 16 bits: DeepSeek-V2-Lite's experts, and Llama's feed-forward part."""
    m, words = LATENT, LATENT.length
    rows = words // tp
    heads = 2 * words * m.heads // tp * (192 + 192 + 128)
    product = 2 * words * m.top_k * m.expert_inner // tp
    router, sent = 4 * rows * m.experts, 2 * rows * m.top_k * m.hidden
    shared = 2 * words * m.shared_experts * m.expert_inner // tp
    less = {
        "mla_up_proj": heads, "layernorm": 2 * 2 * rows * m.hidden, "moe_act": product,
        "mlp_act": shared, "shared_experts": 3 * shared,
        "moe": 3 * product + 3 * shared + router + sent, "mlp": 0, "core_attn": 0,
    }  # fmt: skip
    assert less.keys() == set(MODULES) - {"per_op"}  # of other layers, test_torchtitan.py
    before, _ = _prints(m, 1, tp=tp)
    for name, size in less.items():
        assert _prints(m, 1, name, tp=tp) == (before - size, size), name
    some = ("layernorm", "mla_up_proj", "moe_act", "mlp_act")
    assert _prints(m, 1, *some, tp=tp)[1] == sum(less[name] for name in some)
    inner = 2 * DENSE.length * DENSE.inner // tp
    for name, size in (("mlp", 3 * inner), ("mlp_act", inner), ("moe", 0), ("mla_up_proj", 0)):
        assert _prints(DENSE, 0, name, tp=tp)[1] == size, name
    scores = 2 * DENSE.length**2 * DENSE.heads // tp
    assert _prints(DENSE, 0, "core_attn", tp=tp, flash=False)[1] == scores


def test_what_is_made_again_is_computed_before_the_backward() -> None:
    def kinds(model: Transformer, number: int, *modules: str) -> list[str]:
        p = Parallelism(recompute="selective", recompute_modules=modules)
        return [kernel.kind for kernel in layer(shard_of(model, p), number).again]

    assert kinds(DENSE, 0, "layernorm") == ["norm", "norm"]
    assert (
        kinds(DENSE, 0, "mlp") == kinds(DENSE, 0, "mlp", "mlp_act") == ["up", "activation", "down"]
    )
    assert kinds(LATENT, 1, "mla_up_proj") == ["queries", "keys and values", "rotary"]
    assert kinds(LATENT, 1, "moe_act") == ["activation"] * 64
    assert len(kinds(LATENT, 1, "moe")) == 3 + 3 * 65
    assert kinds(LATENT, 0, "moe") == []
    words = LATENT.length
    for modules in (("mla_up_proj",), ("moe",), ("mlp", "shared_experts"), ("mlp", "mla_up_proj")):
        p = Parallelism(recompute="selective", recompute_modules=modules)
        blocks = [layer(shard_of(LATENT, p), number).again for number in range(3)]
        flops = sum(kernel.flops for block in blocks for kernel in block)
        assert LATENT.flops_again(1, "selective", modules) == flops > 2 * words


def _report(recompute: dict[str, object], **plan: object) -> Report:
    graph = {"model": "deepseek-v2-lite", "layers": 4, "length": 512}
    pipeline = {"tp": 2, "dp": 2, "ep": 2, "pp": 2, "microbatches": 4, **plan, **recompute}
    return run(load_scenario(pipelined(graph, **pipeline)))


def test_recomputation_costs_time_and_exchanges_and_saves_memory() -> None:
    plain, every = (
        _report({}).training,
        {"recompute": "selective", "recompute_modules": ["moe", "layernorm"]},
    )
    report = _report(every)
    again = report.training
    assert "Made again before the backward: layernorm, moe." in str(report)
    assert again.hfu > again.mfu < plain.mfu == plain.hfu
    for term in ("backward", "tensor", "expert"):
        assert again.terms[term] > plain.terms[term]
    assert again.terms["forward"] == pytest.approx(plain.terms["forward"])
    peaks = [max(stage.memory.peak for stage in each.stages) for each in (again, plain)]
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_stand_ins_of_gradients_stay(zero: int) -> None:
    """One in 16 bits for each shape of weight, where gradients are added to sums: Llama's four, of
    DeepSeek-V2-Lite's dense layer and its others nine.
    """
    wide, inner = DENSE.attention_width + 2 * DENSE.kv_width, DENSE.inner
    four = DENSE.hidden * (wide + DENSE.attention_width + 2 * inner + inner)
    assert stand_in_parameters(shard_of(DENSE, Parallelism()), range(2)) == four
    assert stand_in_parameters(shard_of(DENSE, Parallelism(tp=2)), range(2)) == four // 2
    h, heads = LATENT.hidden, LATENT.heads
    core = heads * 128 * h + h * (512 + 64) + h * heads * 192 + 512 * heads * 256
    parts = 3 * h * (LATENT.inner + LATENT.expert_inner + 2 * LATENT.expert_inner)
    assert stand_in_parameters(shard_of(LATENT, Parallelism()), range(3)) == core + parts
    for flash in (True, False):
        task_graph, _ = lowered(DENSE, Parallelism(dp=2, zero=zero, flash=flash))
        buffers = task_graph.buffers
        lasting = (buffers.filler < 0) & (buffers.kind == BUFFER_KINDS.index("workspace"))
        assert set(buffers.bytes[lasting]) == ({2 * four} if flash and zero < 2 else set())


def test_alone_a_replica_is_alike_at_every_level() -> None:
    offload = {"offload": ["activations"], "host_bandwidth": "20 GB/s", "prefetch": 0}
    for pipeline in (
        {"recompute": "full"},
        {"bucket": 100_000_000, "recompute": "full", **offload},
    ):
        graph = {"model": "llama3.2-1b", "layers": 4, "length": 512}
        plan = {"tp": 4, "pp": 2, "microbatches": 4, **pipeline}
        steps = set()
        for zero in range(4):
            strategy = {"pipeline": {**plan, "zero": zero}}
            report = run(
                load_scenario({"graph": graph, "cluster": "dgx-h100", "strategy": strategy})
            )
            steps.add((report.step_ps, *(memory.peak for memory in report.memories)))
        assert len(steps) == 1


def test_inputs_are_gathered_again_beside_products_or_before_them() -> None:
    """Two a layer and one of the classifier, in the backward of every microbatch; beside a product
    as far as they take longer.
    """

    def tensor(**changes: object) -> tuple[int, int]:
        p = Parallelism(tp=2, microbatches=3, **changes)
        task_graph, large = lowered(replace(SMALL, hidden=512), p)
        rows = large.role == TENSOR
        return int(rows.sum()), int(task_graph.tasks.duration[rows].sum())

    layers, times = SMALL.layers, 3
    count, whole = tensor(tensor_overlap=False)
    assert count == times * (10 * layers + 5)
    some, left = tensor()
    assert some <= count
    assert left < whole
    # Long products hide it all.
    assert tensor(microbatch=512)[0] == times * (8 * layers + 4)
    slow, late = (tensor(message_latency=1, tensor_overlap=flag)[1] for flag in (False, True))
    hidden = whole - left
    assert tensor(message_latency=1)[0] == count
    assert slow - late >= hidden > 0


def test_what_float8_saves_may_be_narrower() -> None:
    """Attention's output once in 12 bits, not in two bytes and in one; two inputs of an activation
    in a byte each, not in two (DeepSeek-V3, section 3.3.3).
    """
    wide = replace(LATENT, precision="float8")
    narrow, words = replace(wide, narrow_saved=True), wide.length
    output, inner = words * wide.heads * 128, words * wide.expert_inner
    for number, each in ((0, words * wide.inner), (1, inner * (wide.top_k + wide.shared_experts))):
        less = _prints(wide, number)[0] - _prints(narrow, number)[0]
        assert less == output * 3 // 2 + 2 * each
    assert _prints(replace(LATENT, narrow_saved=True), 1) == _prints(LATENT, 1)


def test_words_go_to_each_node_once() -> None:
    """DeepSeek-V3: eight experts of four of eight groups; over two nodes two copies, over eight
    four, over sixteen (two nodes a group) eight; in one node all.
    """
    m = large_model("deepseek-v3", layers=4)
    each = 2 * m.length * m.hidden
    plan = Parallelism(dp=64, ep=64)
    copies = {1: 8, 2: 2, 3: 3, 4: 4, 8: 4, 16: 8}
    sizes = {nodes: shard_of(m, plan).exchanged_bytes(nodes) for nodes in copies}
    assert sizes == {nodes: (count * each,) * 2 for nodes, count in copies.items()}
    plain = replace(m, expert_groups=0)
    assert shard_of(plain, plan).exchanged_bytes(8) == (8 * each,) * 2
    narrow = replace(m, narrow_dispatch=True)
    assert shard_of(narrow, plan).exchanged_bytes(8) == (2 * each, 4 * each)

    def exchange(**sizes: object) -> float:
        graph = {"model": "deepseek-v3", "layers": 4, **sizes}
        cluster = {"preset": "dgx-h100", "nodes": 2}
        strategy = {"pipeline": {"dp": 16, "ep": 16}}
        scenario = load_scenario({"graph": graph, "cluster": cluster, "strategy": strategy})
        return run(scenario).training.terms["expert"]

    whole = exchange(expert_groups=0)
    assert exchange(narrow_dispatch=True) < exchange() < 0.3 * whole
    reason = "top_groups: must be from 1 to the 8 groups of experts, got 9"
    with pytest.raises(InputError, match=reason):
        large_model("deepseek-v3", top_groups=9)


def test_ends_may_have_no_layers() -> None:
    """The embedding alone, and the classifier alone, on stages of their own (Llama 3)."""
    shape = {"chunks": 2, "tp": 1, "ep": 1, "dp": 4, "microbatches": 4}
    training = _report({}, stage_layers=[0, 2, 2, 0], **shape).training
    assert [stage.to_json()["layers"] for stage in training.stages] == [[[2, 3]], [[0, 1]]]
    full = _report({"recompute": "full"}, stage_layers=[0, 2, 2, 0], **shape).training
    assert all(
        a.memory.peak < b.memory.peak for a, b in zip(full.stages, training.stages, strict=True)
    )
    with pytest.raises(InputError, match=r"stage_layers\[0\]: the embedding alone has no backward"):
        _report({}, stage_layers=[0, 4], schedule="ZB-H1", tp=2)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"recompute": "selective", "recompute_modules": ["all"]}, "must be of core_attn, "),
        ({"recompute_modules": ["mlp"]}, 'go with recompute "selective", got "none"'),
        ({"recompute": "selective", "recompute_modules": []}, 'are none; recompute "none" says so'),
        ({"stage_layers": [1, 0, 1], "pp": 3}, r"stage_layers\[1\]: a stage needs one layer"),
    ],
)
def test_what_is_wrong_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Parallelism(**given)
    assert replace(Parallelism(), recompute="selective").recompute_modules == ("core_attn",)
