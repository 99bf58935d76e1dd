"""Plans as launch configurations: what is written parses back to the plan, and what a framework has
no way to do is refused by its name, with nothing written.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.commands.plan import LAUNCHES
from simdev.formats.launch import FRAMEWORKS, launch_of
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import even_layers
from simdev.nouns.models.large import LARGE, Transformer, large_model
from simdev.nouns.models.large.precision import PRECISIONS
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.search.plan.space import PLANNED, Space, choices_of

DENSE = large_model("llama3-8b", layers=8)
EXPERTS = large_model("deepseek-v3", layers=10)
FURTHER = large_model("deepseek-v3", layers=11, mtp=1)
NUMBERS = {
    "tensor": "tensor-model-parallel-size", "pipeline": "pipeline-model-parallel-size",
    "context": "context-parallel-size", "expert": "expert-model-parallel-size",
    "expert_tensor": "expert-tensor-parallel-size", "each": "micro-batch-size",
    "batch": "global-batch-size", "chunks": "num-virtual-stages-per-pipeline-rank",
    "round": "microbatch-group-size-per-virtual-pipeline-stage",
    "again": "recompute-num-layers", "layers": "num-layers", "hidden": "hidden-size",
    "inner": "ffn-hidden-size", "heads": "num-attention-heads", "groups": "num-query-groups",
    "length": "seq-length", "positions": "max-position-embeddings", "vocabulary": "vocab-size",
    "experts": "num-experts", "top_k": "moe-router-topk", "expert_inner": "moe-ffn-hidden-size",
    "shared": "moe-shared-expert-intermediate-size", "q_latent": "q-lora-rank",
    "kv_latent": "kv-lora-rank", "head": "qk-head-dim", "rotary": "qk-pos-emb-head-dim",
    "value": "v-head-dim", "channels": "kv-channels", "skip": "window-attn-skip-freq",
    "first": "num-layers-at-start-in-bf16", "last": "num-layers-at-end-in-bf16",
    "further": "mtp-num-layers", "instances": "num-distributed-optimizer-instances",
    "router_groups": "moe-router-num-groups", "router_top": "moe-router-group-topk",
}  # fmt: skip
TEXTS = {
    "layout": "pipeline-model-parallel-layout", "granularity": "recompute-granularity",
    "method": "recompute-method", "norm": "normalization", "sharded":
    "data-parallel-sharding-strategy", "outer": "outer-dp-sharding-strategy",
    "cp_way": "cp-comm-type", "fp8": "fp8-recipe",
    "fp8_format": "fp8-format", "fp4": "fp4-recipe", "fp4_format": "fp4-format",
    "position": "position-embedding-type", "dispatcher": "moe-token-dispatcher-type",
    "backend": "attention-backend", "checkpoint": "ckpt-format", "freq": "moe-layer-freq",
    "dropout": "attention-dropout", "dropout2": "hidden-dropout", "window": "window-size",
    "flex": "moe-flex-dispatcher-backend", "graphs": "cuda-graph-impl",
    "softmax": "softmax-type", "score": "moe-router-score-function", "fraction":
    "optimizer-offload-fraction", "exp": "exp-avg-dtype", "exp2": "exp-avg-sq-dtype",
}  # fmt: skip
SWITCHES = (
    "sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce",
    "overlap-param-gather", "use-megatron-fsdp", "grad-reduce-in-bf16", "swiglu", "bf16",
    "group-query-attention", "disable-bias-linear", "untie-embeddings-and-output-weights",
    "multi-latent-attention", "moe-grouped-gemm", "moe-router-enable-expert-bias",
    "no-scatter-gather-tensors-in-pipeline", "fp8-param-gather", "add-qkv-bias", "qk-layernorm",
    "first-last-layers-bf16", "optimizer-cpu-offload", "use-precision-aware-optimizer",
    "tp-comm-overlap", "overlap-moe-expert-parallel-comm",
)  # fmt: skip


def parsed(text: str) -> argparse.Namespace:
    """Megatron's arguments as argparse reads them; what is not known fails."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, option in NUMBERS.items():
        parser.add_argument(f"--{option}", dest=name, type=int)
    for name, option in TEXTS.items():
        parser.add_argument(f"--{option}", dest=name)
    for option in SWITCHES:
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--recompute-modules", nargs="*", default=[])
    parser.add_argument("--cuda-graph-scope", nargs="*", default=[])
    return parser.parse_args(shlex.split(text))


def of_megatron(model: Transformer, p: Parallelism, text: str) -> None:
    args = parsed(text)
    assert (args.tensor, args.pipeline, args.context) == (p.tp, p.pp, p.cp)
    assert (args.each, args.batch) == (p.microbatch, p.samples)
    assert args.batch % (args.each * p.devices // (p.tp * p.pp * p.cp)) == 0
    assert args.sequence_parallel == (p.tp > 1 and p.sequence_parallel)
    assert (args.hidden, args.heads) == (model.hidden, model.heads)
    assert (args.layers, args.further or 0) == (model.layers - model.mtp, model.mtp)
    assert (args.length, args.positions, args.inner) == (model.length, model.length, model.inner)
    assert (args.groups or args.heads) == model.kv_heads
    if model.experts:
        assert (args.expert, args.expert_tensor) == (p.ep, p.expert_tp)
        assert (args.experts, args.top_k) == (model.experts, model.top_k)
        assert eval(args.freq) == [int(model.is_moe(layer)) for layer in range(args.layers)]
    counts = p.stage_layers or even_layers(model.layers, p.pp * p.chunks)
    if args.layout:
        stages = args.layout.removeprefix("E").removesuffix("L").split("|")
        layers = [[part.split("*") for part in re.findall(r"[tm]\*\d+", s)] for s in stages]
        assert tuple(sum(int(count) for _, count in stage) for stage in layers) == counts
        kinds = "".join(kind * int(count) for stage in layers for kind, count in stage)
        assert kinds == "t" * args.layers + "m" * model.mtp
    else:
        assert len(set(counts)) == 1
        assert (args.chunks or 1) == p.chunks
    assert args.use_distributed_optimizer == (p.zero > 0 and max(p.sharers) > 1)
    assert (args.instances or 1) == p.dp_replicate
    assert (args.outer is not None) == (p.dp_replicate > 1 and p.zero > 1)
    if args.overlap_moe_expert_parallel_comm:  # as Megatron-core's TransformerConfig asserts
        assert args.expert > 1
        assert args.granularity != "full"
        assert args.pipeline == 1 or args.chunks or args.layout.count("|") + 1 > args.pipeline
    again = args.granularity if args.granularity == "full" else "none"
    assert again == ("full" if p.recompute == "full" else "none")


def of_torchtitan(model: Transformer, p: Parallelism, text: str) -> None:
    value = tomllib.loads(text)
    degrees, training = value["parallelism"], value["training"]
    shard, copies = (
        degrees[f"data_parallel_{name}_degree"] for name in ("shard", "replicate")
    )  # fmt: skip
    assert shard * copies == p.dp
    assert (shard, copies) == ((1, p.dp) if p.zero == 0 else (p.dp // p.dp_replicate, copies))
    assert copies == (p.dp if p.zero == 0 else p.dp_replicate)
    if p.zero > 1:
        kept = p.zero == 2 or not p.reshard_after_forward
        assert degrees["fsdp_reshard_after_forward"] == ("never" if kept else "always")
    assert degrees["tensor_parallel_degree"] == p.tp
    assert degrees["context_parallel_degree"] == p.cp
    assert training["global_batch_size"] == p.samples
    assert training["seq_len"] == model.length
    if model.experts:
        assert degrees["expert_parallel_degree"] == p.ep
        assert degrees["expert_tensor_parallel_degree"] == p.expert_tp
    assert degrees["pipeline_parallel_degree"] == p.pp
    pieces = training["local_batch_size"] // degrees.get("pipeline_parallel_microbatch_size", 1)
    if p.pp > 1:
        assert pieces == p.microbatches
        stages = degrees["module_fqns_per_model_part"]
        assert len(stages) == p.pp * p.chunks
        layers = [int(name[7:]) for each in stages for name in each if name.startswith("layers.")]
        assert layers == list(range(model.layers))
        assert stages[0][0] == "tok_embeddings"
        assert stages[-1][-1] == "output"
    else:
        assert training["local_batch_size"] == p.microbatch
    assert value["activation_checkpoint"]["mode"] == p.recompute


def of_deepspeed(model: Transformer, p: Parallelism, text: str) -> None:
    value = json.loads(text)
    assert value["zero_optimization"]["stage"] == p.zero
    groups = p.dp // value["zero_optimization"].get("mics_shard_size", p.dp)
    assert groups == p.dp_replicate
    assert value["train_batch_size"] == p.samples
    assert value["train_micro_batch_size_per_gpu"] == p.microbatch
    assert value["gradient_accumulation_steps"] == p.microbatches
    assert p.samples == p.microbatch * p.microbatches * p.devices // (p.pp * p.tp)
    assert value.get("pipeline", {}).get("stages", 1) == p.pp
    assert value.get("tensor_parallel", {}).get("autotp_size", 1) == p.tp


READERS = {"megatron": of_megatron, "torchtitan": of_torchtitan, "deepspeed": of_deepspeed}


def drawn(model: Transformer, count: int, **settings: Any) -> list[Parallelism]:
    choices = choices_of({"schedule": list(PLANNED), **settings})
    space = Space(model, (16,), 32, choices)
    setups = list(space.setups(Counter()))
    draw = random.Random(0)
    return [
        draw.choice(plans).parallelism
        for setup in draw.choices(setups, k=count)
        if (plans := space.plans(setup))
    ]


def test_every_framework_has_its_endings() -> None:
    assert LAUNCHES.keys() == FRAMEWORKS.keys() == READERS.keys()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_what_is_exported_parses_back_or_is_refused(framework: str, model: Transformer) -> None:
    written = refused = 0
    easy = {"sequence_parallel": False, "cp": 1, "ep": 1} if framework == "deepspeed" else {}
    easy |= {"dp_replicate": [1, 2], "reshard_after_forward": [True, False]}
    easy |= {"ep_comm_overlap": [False, True]} if model.experts else {}
    for p in (*drawn(model, 600), *drawn(model, 900, zero=[0, 1, 3], schedule=["1F1B"], **easy)):
        try:
            launch = launch_of(framework, model, p)
        except InputError as error:
            refused += 1
            for problem in error.problems:
                start = f"{framework} has no way to do this: "
                assert problem.startswith(start)
                assert problem.removeprefix(start).partition(":")[0].isidentifier()
            continue
        written += 1
        READERS[framework](model, p, launch.text)
        assert any(note.startswith(f"for {p.devices:,} processes") for note in launch.notes)
    assert written > 20
    assert refused > 20


def test_arguments_of_every_large_model_are_known() -> None:
    for name in LARGE:
        for precision in PRECISIONS:
            model = large_model(name, precision=precision)
            if model.post_norms or model.joint_norms or model.linear_heads:
                with pytest.raises(InputError, match=r"(norms|heads): is a setting of the model"):
                    launch_of("megatron", model, Parallelism(dp=8))
                continue
            launch = launch_of("megatron", model, Parallelism(dp=8, flash=True))
            args = parsed(launch.text)
            assert (args.fp8 is None, args.fp4 is None) == (
                precision not in ("float8", "mxfp8"), precision != "nvfp4",
            )  # fmt: skip
            assert all(len(shlex.split(line)) for line in launch.text.splitlines())
            assert a_line_an_option(launch.text)


def a_line_an_option(text: str) -> bool:
    return all(line.startswith("--") and " --" not in line for line in text.splitlines())


PAIRS: list[tuple[str, Mapping[str, Any], str]] = [
    ("megatron", {"pp": 4, "microbatches": 8, "schedule": "ZB-H1"}, "schedule: ZB-H1"),
    ("megatron", {"dp": 2, "pp": 4, "microbatches": 8, "zero": 3}, "zero: 3 beside a pipeline"),
    ("megatron", {"dp": 2, "state_bytes": 6}, "state_bytes: 6"),
    ("megatron", {"offload": ("activations",), "host_bandwidth": 1}, "offload: activations"),
    (
        "megatron",
        {"recompute": "selective", "recompute_modules": ("mlp_act",)},
        "recompute_modules: mlp_act",
    ),
    ("megatron", {"dp": 2, "zero": 3, "reshard_after_forward": False}, "reshard_after_forward: "),
    ("torchtitan", {"pp": 4, "microbatches": 8, "schedule": "ZB-H2"}, "schedule: ZB-H2"),
    ("torchtitan", {"dp": 2, "zero": 1}, "zero: 1, for FSDP"),
    ("torchtitan", {"dp": 2, "tp": 2, "zero": 0}, "zero: 0 beside other degrees"),
    ("torchtitan", {"recompute": "full", "recompute_layers": 1}, "recompute: full by modules"),
    (
        "deepspeed",
        {"pp": 2, "microbatches": 4, "chunks": 2, "schedule": "Interleaved1F1B"},
        "chunks: 2 stages a rank",
    ),
    ("deepspeed", {"pp": 2, "dp": 2, "microbatches": 4, "zero": 2}, "zero: 2 beside a pipeline"),
    ("deepspeed", {"cp": 2}, "cp: 2"),
    ("deepspeed", {"dp": 4, "dp_replicate": 2}, "dp_replicate: 2 beside ZeRO 1"),
    ("deepspeed", {"dp": 2, "zero": 3, "reshard_after_forward": False}, "reshard_after_forward: "),
    ("deepspeed", {"tp": 2}, "sequence_parallel: beside tp"),
]


@pytest.mark.parametrize(("framework", "fields", "reason"), PAIRS)
def test_what_a_framework_cannot_do_is_refused_by_name(
    framework: str, fields: Mapping[str, Any], reason: str
) -> None:
    model = large_model("llama3-8b", layers=8)
    with pytest.raises(InputError, match=f"{framework} has no way to do this: {reason}"):
        launch_of(framework, model, Parallelism(**fields))


def test_settings_of_today_are_arguments_of_megatron() -> None:
    for p in drawn(FURTHER, 100, schedule=["1F1B", "Interleaved1F1B"], zero=1, microbatch=1):
        of_megatron(FURTHER, p, launch_of("megatron", FURTHER, p).text)
    fields = {"dp": 8, "tp": 2, "ep": 4, "etp": 1, "microbatches": 8, "tp_comm_overlap": True}
    fields |= {"token_dispatcher": "deepep", "cuda_graphs": "partial", "ep_comm_overlap": True}
    args = parsed(launch_of("megatron", EXPERTS, Parallelism(**fields)).text)
    assert args.tp_comm_overlap
    assert args.overlap_moe_expert_parallel_comm
    assert (args.dispatcher, args.flex) == ("flex", "deepep")
    assert (args.graphs, args.cuda_graph_scope[0]) == ("transformer_engine", "attn")
    for framework, name in (("torchtitan", "token_dispatcher: deepep"), ("deepspeed", "ep: 4")):
        with pytest.raises(InputError, match=name):
            launch_of(framework, EXPERTS, Parallelism(**fields, zero=3))
    for more, problem in (
        ({"pp": 2}, "pp 2 without virtual stages"),
        ({"recompute": "selective", "recompute_modules": ("moe",)}, "recompute_modules moe"),
    ):
        with pytest.raises(InputError, match=f"ep_comm_overlap: {problem}"):
            launch_of("megatron", EXPERTS, Parallelism(**fields | more))
    bridge = large_model("deepseek-v3", software="megatron-bridge")
    args = parsed(launch_of("megatron", bridge, Parallelism(dp=8, ep=8)).text)
    assert (args.flex, args.graphs) == ("hybridep", "transformer_engine")


def test_settings_of_today_are_those_of_torchtitan() -> None:
    model = large_model("llama3-8b", software="torchtitan-compiled")
    again = {"recompute": "selective", "recompute_modules": ("per_op",)}
    p = Parallelism(dp=4, tp=2, zero=3, reduce_bytes=4, tp_comm_overlap=True, **again)
    launch = launch_of("torchtitan", model, p)
    value = tomllib.loads(launch.text)
    assert value["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}
    assert value["parallelism"]["enable_async_tensor_parallel"]
    assert value["compile"]["enable"]
    assert launch.notes == ("for 8 processes",)
    with pytest.raises(InputError, match="recompute_modules: per_op"):
        launch_of("megatron", model, p)
    notes = launch_of("torchtitan", LARGE["llama3-8b"], Parallelism(dp=4, zero=3)).notes
    assert notes[0].startswith("kernels were simulated as megatron runs them")


def test_graphs_of_a_software_are_refused_with_what_leaves_them_out() -> None:
    model = large_model("llama3-8b", software="megatron-bridge")
    with pytest.raises(InputError, match="cuda_graphs: partial; --set cuda_graphs=none leaves"):
        launch_of("torchtitan", model, Parallelism(dp=8, zero=3))
    assert launch_of("torchtitan", model, Parallelism(dp=8, zero=3, cuda_graphs="none"))


def test_precisions_that_a_framework_has_not_are_refused() -> None:
    for framework, precision in (("torchtitan", "nvfp4"), ("deepspeed", "float8")):
        model = large_model("llama3-8b", precision=precision)
        with pytest.raises(InputError, match=f"precision: {precision}"):
            launch_of(framework, model, Parallelism())


def test_a_flavor_is_a_model_of_the_very_sizes() -> None:
    p = Parallelism(dp=8, zero=3)
    launch = launch_of("torchtitan", LARGE["llama3-8b"], p)
    assert tomllib.loads(launch.text)["model"] == {"name": "llama3", "flavor": "8B"}
    longer = large_model("llama3-8b", length=4096, precision="float8")
    value = tomllib.loads(launch_of("torchtitan", longer, p).text)
    assert value["model"]["converters"] == ["quantize.linear.float8"]
    assert value["quantize"]["linear"]["float8"]["enable_fsdp_float8_all_gather"]
    launch = launch_of("torchtitan", DENSE, p)
    assert tomllib.loads(launch.text)["model"] == {}
    assert any("no flavor" in note for note in launch.notes)


QUESTION = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "4"]
NARROW = ["tp=1", "schedule=1F1B", "recompute=full", "microbatch=1", "cp=1", "pp=1"]
QUESTION += [*(part for each in NARROW for part in ("--set", each)), "--length", "512"]


@pytest.mark.parametrize(("framework", "endings"), LAUNCHES.items())
def test_the_best_plan_is_exported_to_stdout_or_a_file(
    framework: str, endings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = [*QUESTION, "--set", "zero=3", "--export", framework]
    assert main(question) == 0
    printed, said = capsys.readouterr()
    assert f"{framework}: the best plan, dp 4" in said
    p = Parallelism(dp=4, zero=3, recompute="full")
    READERS[framework](large_model("llama3.2-1b", length=512), p, printed)
    file = tmp_path / f"launch{endings[0]}"
    assert main([*question, "--export-file", str(file)]) == 0
    assert "The best plans" in capsys.readouterr().out
    assert file.read_text() == printed
    assert main([*question, "--export-file", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["dp"] == 4


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    printed, said = capsys.readouterr()
    assert printed == ""
    return said


def test_what_cannot_be_exported_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "launch.toml", tmp_path / "plans"
    question = [*QUESTION, "--set", "zero=1", "--export", "torchtitan"]
    said = refused([*question, "--export-file", str(file), "-o", str(folder)], capsys)
    assert "--export: torchtitan has no way to do this: zero: 1" in said
    assert list(tmp_path.iterdir()) == []
    file.write_text("mine")
    refused([*question, "--export-file", str(file)], capsys)
    assert file.read_text() == "mine"
    text = "--export-file: "
    assert text in refused([*question, "--export-file", str(tmp_path / "a.json")], capsys)
    assert text in refused([*QUESTION, "--export-file", str(file)], capsys)
    assert "--export: " in refused([*question, "--json"], capsys)
    graph = ["plan", "gnmt", "--cluster", "dgx-1v", "--global-batch", "8", "--export", "megatron"]
    assert "--export: goes with a model by its sizes" in refused(graph, capsys)


def test_where_nothing_fits_a_file_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "launch.args"
    file.write_text("mine")
    large = ["plan", "llama3-405b", "--cluster", "nc-a100-pairs", "--global-batch", "2"]
    assert main([*large, "--export", "megatron", "--export-file", str(file)]) == 1
    assert "No plan fits" in capsys.readouterr().out
    assert file.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
