"""Arguments of Megatron-LM's ``pretrain_gpt.py`` for a plan, an option a line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from ...ground.errors import refuse
from ...nouns.models.large import Transformer, modules_again, uses_flash
from ...nouns.models.large.software import dispatcher_of, graphs_of
from ...nouns.schedules import round_of
from ...nouns.strategy.parallelism import Parallelism
from .launch import (
    LINEAR,
    NARROW,
    Launch,
    gathers_again,
    is_interleaved,
    of_1f1b,
    size_problems,
    software_note,
    stage_layers,
)

Option = tuple[str, ...]

PRECISIONS: Mapping[str, tuple[Option, ...]] = {
    "bfloat16": (),
    # A scale for each tensor from its present values (``Float8CurrentScaling``).
    "float8": (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise"), ("--fp8-param-gather",)),
    "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8"), ("--fp8-param-gather",)),
    "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
DISPATCHERS: Mapping[str, tuple[Option, ...]] = {
    "alltoall": (("--moe-token-dispatcher-type", "alltoall"),),
    "deepep": (
        ("--moe-token-dispatcher-type", "flex"),
        ("--moe-flex-dispatcher-backend", "deepep"),
    ),
    "hybridep": (
        ("--moe-token-dispatcher-type", "flex"),
        ("--moe-flex-dispatcher-backend", "hybridep"),
    ),
}
GRAPHS: Mapping[str, tuple[Option, ...]] = {
    "none": (),
    "partial": (
        ("--cuda-graph-impl", "transformer_engine"),
        ("--cuda-graph-scope", "attn", "moe_router", "moe_preprocess"),
    ),
    "full": (("--cuda-graph-impl", "local"), ("--cuda-graph-scope", "full_iteration")),
}
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""The tensors that Megatron's FSDP shards, by level of ZeRO."""
STATES: Mapping[int, tuple[Option, ...]] = {
    12: (),
    8: (
        ("--use-precision-aware-optimizer",),
        ("--exp-avg-dtype", "bf16"),
        ("--exp-avg-sq-dtype", "bf16"),
    ),
}
"""Options by the optimizer's bytes for a parameter: a master copy and two moments."""


def megatron(model: Transformer, p: Parallelism) -> Launch:
    """The arguments of a plan. Raises InputError."""
    refuse(_problems(model, p))
    parts = (
        _degrees(model, p), _stages(model, p), _replicas(p), _memory(model, p), _sizes(model),
        _attention(model, p), _experts(model, p), _precision(model),
        GRAPHS[graphs_of(model.runs_on, p)],
    )  # fmt: skip
    lines = (shlex.join(option) for part in parts for option in part)
    return Launch("\n".join(lines) + "\n", tuple(_notes(model, p)))


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    yield from of_1f1b(p)
    if is_interleaved(p) and p.microbatches < p.pp:
        yield f"chunks: {p.microbatches} microbatches are fewer than pp {p.pp}"
    if _is_sharded(p) and p.pp > 1:
        yield f"zero: {p.zero} beside a pipeline; --set zero=0,1 or --set pp=1 leaves it out"
    if _is_sharded(p) and not gathers_again(p) and p.zero == 3:
        yield "reshard_after_forward: false; --set zero=2 keeps parameters, too"
    if p.ep_comm_overlap and p.ep > 1:
        yield from _overlap_problems(model, p)
    if _reduced(p) not in (2, 4) or (p.zero < 2 and p.gradient_bytes != _reduced(p)):
        yield f"reduce_bytes: {_reduced(p)} of gradients kept in {p.gradient_bytes}"
    if p.state_bytes not in STATES:
        yield f"state_bytes: {p.state_bytes}"
    if "activations" in p.offload:
        yield "offload: activations, by cpu_offloading_num_layers of its TransformerConfig alone"
    for module in sorted(modules_again(model, p) & {"mlp_act", "per_op"}):
        yield f"recompute_modules: {module}"
    if model.experts and p.tp > 1 and not p.sequence_parallel:
        yield "sequence_parallel: experts beside tp need it"
    yield from size_problems(model, ("post_norms", "joint_norms", *NARROW, *LINEAR))


def _overlap_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    """Reasons why ``TransformerConfig`` refuses overlap_moe_expert_parallel_comm."""
    if p.pp > 1 and p.chunks == 1:
        yield f"ep_comm_overlap: pp {p.pp} without virtual stages; --set chunks=2 has some"
    if model.mtp > 1:
        yield f"ep_comm_overlap: mtp {model.mtp}, more than 1"
    if "moe" in modules_again(model, p):
        yield "ep_comm_overlap: recompute_modules moe"


def _is_sharded(p: Parallelism) -> bool:
    """Whether Megatron's FSDP shards the tensors."""
    return p.zero in SHARDED and max(p.sharers) > 1


def _reduced(p: Parallelism) -> int:
    return p.reduced_bytes if max(p.sharers) > 1 else p.gradient_bytes


def _degrees(model: Transformer, p: Parallelism) -> Iterator[Option]:
    yield "--tensor-model-parallel-size", f"{p.tp}"
    yield "--pipeline-model-parallel-size", f"{p.pp}"
    yield "--context-parallel-size", f"{p.cp}"
    if p.cp > 1:
        yield "--cp-comm-type", "p2p" if p.context == "ring" else p.context
    if model.experts:
        yield "--expert-model-parallel-size", f"{p.ep}"
        yield "--expert-tensor-parallel-size", f"{p.expert_tp}"
    if p.tp > 1 and p.sequence_parallel:
        yield ("--sequence-parallel",)
        if p.tp_comm_overlap:
            yield ("--tp-comm-overlap",)
    elif p.tp > 1 and p.pp > 1 and not p.scatter_gather:
        yield ("--no-scatter-gather-tensors-in-pipeline",)
    yield "--micro-batch-size", f"{p.microbatch}"
    yield "--global-batch-size", f"{p.samples}"


def _stages(model: Transformer, p: Parallelism) -> Iterator[Option]:
    if p.pp == 1:
        return
    counts = stage_layers(model, p)
    if len(set(counts)) > 1 or model.mtp:
        yield "--pipeline-model-parallel-layout", _layout(model, counts)
    elif p.chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", f"{p.chunks}"
    if is_interleaved(p) and (size := round_of(p.pp, p.microbatches, p.chunks)) != p.pp:
        yield "--microbatch-group-size-per-virtual-pipeline-stage", f"{size}"


def _layout(model: Transformer, counts: Sequence[int]) -> str:
    """The layers of each stage as Megatron's text: embedding, layers, layers of multi-token
    prediction ("m"), loss.
    """
    ends = pairwise(accumulate(counts, initial=0))
    layers = model.layers - model.mtp
    stages = (
        [("t", max(min(end, layers) - first, 0)), ("m", end - max(first, layers))]
        for first, end in ends
    )
    texts = ["".join(f"{name}*{n}" for name, n in stage if n > 0) for stage in stages]
    return "E" + "|".join(texts) + "L"


def _replicas(p: Parallelism) -> Iterator[Option]:
    if max(p.sharers) == 1:
        return
    if p.zero:
        yield ("--use-distributed-optimizer",)
    if _is_sharded(p):
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", SHARDED[p.zero]
        yield "--ckpt-format", "fsdp_dtensor"
    if p.dp_replicate > 1:
        # With "optim" its FSDP would shard the optimizer's state over these groups, too.
        yield from [("--outer-dp-sharding-strategy", "no_shard")] * _is_sharded(p)
        yield "--num-distributed-optimizer-instances", f"{p.dp_replicate}"
    if p.overlap:
        yield ("--overlap-grad-reduce",)
        if p.zero == 3 and p.prefetch:
            yield ("--overlap-param-gather",)
    if _reduced(p) == 2:
        yield ("--grad-reduce-in-bf16",)


def _memory(model: Transformer, p: Parallelism) -> Iterator[Option]:
    again = modules_again(model, p)
    if p.recompute == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if p.recompute_layers is None else "block"
        yield "--recompute-num-layers", f"{1 if p.recompute_layers is None else p.recompute_layers}"
    elif again:
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *sorted(again)
    yield from STATES[p.state_bytes]
    if "optimizer" in p.offload:
        yield ("--optimizer-cpu-offload",)
        yield "--optimizer-offload-fraction", "1.0"


def _sizes(model: Transformer) -> Iterator[Option]:
    yield "--num-layers", f"{model.layers - model.mtp}"
    if model.mtp:
        yield "--mtp-num-layers", f"{model.mtp}"
    yield "--hidden-size", f"{model.hidden}"
    yield "--ffn-hidden-size", f"{model.inner}"
    yield "--seq-length", f"{model.length}"
    yield "--max-position-embeddings", f"{model.length}"
    yield "--vocab-size", f"{model.vocabulary}"
    yield "--position-embedding-type", "learned_absolute" if model.positions else "rope"
    yield "--normalization", "RMSNorm" if model.norm == "rms" else "LayerNorm"
    if model.gated:
        yield ("--swiglu",)
    if not model.bias:
        yield ("--disable-bias-linear",)
    if not model.tied:
        yield ("--untie-embeddings-and-output-weights",)
    if not model.dropout:
        yield "--attention-dropout", "0.0"
        yield "--hidden-dropout", "0.0"


def _attention(model: Transformer, p: Parallelism) -> Iterator[Option]:
    yield "--num-attention-heads", f"{model.heads}"
    if model.kv_latent:
        yield from _latents(model)
    elif model.attention_width != model.hidden:
        yield "--kv-channels", f"{model.head_width}"
    if model.kv_heads != model.heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", f"{model.kv_heads}"
    if model.qkv_bias and not model.bias:
        yield ("--add-qkv-bias",)
    if model.head_norms:
        yield ("--qk-layernorm",)
    if model.window:
        yield "--window-size", f"{model.window},0"
        # All layers have the window, unless every n-th layer attends to all tokens.
        yield "--window-attn-skip-freq", f"{model.global_every or model.layers + 1}"
    if model.sinks:
        yield "--softmax-type", "learnable"
    if not uses_flash(model, p):
        yield "--attention-backend", "unfused"


def _latents(model: Transformer) -> Iterator[Option]:
    yield ("--multi-latent-attention",)
    if model.query_latent:
        yield "--q-lora-rank", f"{model.query_latent}"
    yield "--kv-lora-rank", f"{model.kv_latent}"
    yield "--qk-head-dim", f"{model.head_width - model.rotary_width}"
    yield "--qk-pos-emb-head-dim", f"{model.rotary_width}"
    yield "--v-head-dim", f"{model.value_head}"


def _experts(model: Transformer, p: Parallelism) -> Iterator[Option]:
    if not model.experts:
        return
    yield from DISPATCHERS[dispatcher_of(model.runs_on, p)]
    if p.ep_comm_overlap and p.ep > 1:
        yield ("--overlap-moe-expert-parallel-comm",)
    yield "--num-experts", f"{model.experts}"
    yield "--moe-router-topk", f"{model.top_k}"
    yield "--moe-ffn-hidden-size", f"{model.expert_inner}"
    yield ("--moe-grouped-gemm",)
    if model.shared_experts:
        width = model.shared_experts * model.expert_inner
        yield "--moe-shared-expert-intermediate-size", f"{width}"
    if model.dense_layers:
        sparse = model.layers - model.mtp - model.dense_layers
        yield "--moe-layer-freq", f"([0]*{model.dense_layers}+[1]*{sparse})"
    if model.expert_groups:
        yield "--moe-router-num-groups", f"{model.expert_groups}"
        yield "--moe-router-group-topk", f"{model.top_groups}"
    if model.router_bias:
        yield "--moe-router-score-function", "sigmoid"
        yield ("--moe-router-enable-expert-bias",)


def _precision(model: Transformer) -> Iterator[Option]:
    yield ("--bf16",)
    yield from PRECISIONS[model.precision]
    if model.is_narrow and (model.wide_first or model.wide_last):
        yield ("--first-last-layers-bf16",)
        yield "--num-layers-at-start-in-bf16", f"{model.wide_first}"
        yield "--num-layers-at-end-in-bf16", f"{model.wide_last}"


def _notes(model: Transformer, p: Parallelism) -> Iterator[str]:
    yield from software_note(model, "megatron")
    yield f"for {p.devices:,} processes: --nnodes and --nproc-per-node are torchrun's"
    if p.tp > 1 and p.tensor_overlap:
        yield "CUDA_DEVICE_MAX_CONNECTIONS=1 has exchanges of tp begin before the kernels beside"
    if "optimizer" in p.offload:
        yield "the update runs on the host there, and was simulated on the device"
