"""torchtitan's TOML for a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

from ...ground.errors import refuse
from ...nouns.models.large import LARGE, Transformer, modules_again
from ...nouns.strategy.parallelism import Parallelism
from .launch import (
    LINEAR,
    NARROW,
    Launch,
    gathers_again,
    setting_problems,
    size_problems,
    software_note,
    stage_layers,
)

SCHEDULES = {
    "1F1B": "1F1B", "GPipe": "GPipe", "Interleaved1F1B": "Interleaved1F1B",
    "InterleavedZeroBubble": "InterleavedZeroBubble", "DualPipeV": "DualPipeV",
}  # fmt: skip
"""Schedules of torch.distributed.pipelining, by their names here."""
SINGLE = "1F1B", "GPipe"
"""Schedules with a single stage on each rank."""
CONVERTERS: Mapping[str, dict[str, Any]] = {
    "bfloat16": {},
    "float8": {"quantize.linear.float8": {"enable_fsdp_float8_all_gather": True}},
    "mxfp8": {"quantize.linear.mx": {"recipe_name": "mxfp8_cublas"}},
}
"""The converter of a model's linear layers by precision, and its settings."""
FLAVORS = {
    "llama3-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"),
    "llama3-405b": ("llama3", "405B"), "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"), "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-32b": ("qwen3", "32B"), "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"), "gpt-oss-120b": ("gpt_oss", "120b"),
}  # fmt: skip
"""torchtitan's models and flavors, by their names here."""


def torchtitan(model: Transformer, p: Parallelism) -> Launch:
    """The configuration of a plan. Raises InputError."""
    refuse(_problems(model, p))
    converters = CONVERTERS[model.precision]
    tables = {
        "model": _model(model, list(converters)),
        "training": _training(model, p),
        "parallelism": _parallelism(model, p),
        "activation_checkpoint": _again(model, p),
        "compile": {"enable": p.tp_comm_overlap or model.runs_on == "torchtitan-compiled"},
        **converters,
    }
    return Launch(_toml(tables), tuple(_notes(model, p)))


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables as TOML; their values are written in the same way in JSON."""
    texts = []
    for name, table in tables.items():
        lines = (f"{key} = {json.dumps(value)}" for key, value in table.items())
        texts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(texts)


def _model(model: Transformer, converters: list[str]) -> dict[str, Any]:
    name, flavor = FLAVORS[model.name] if _is_flavor(model) else ("", "")
    value: dict[str, Any] = {"name": name, "flavor": flavor} if name else {}
    return value | ({"converters": converters} if converters else {})


def _is_flavor(model: Transformer) -> bool:
    """Whether torchtitan has a model of exactly these sizes."""
    released = LARGE.get(model.name)
    if model.name not in FLAVORS or released is None:
        return False
    return (model.layers, model.parameters()) == (released.layers, released.parameters())


def _again(model: Transformer, p: Parallelism) -> dict[str, Any]:
    if modules_again(model, p) == {"per_op"}:
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": "full" if p.recompute == "full" else "none"}


def _training(model: Transformer, p: Parallelism) -> dict[str, Any]:
    # A pipeline cuts the local batch into microbatches; without one, batches are accumulated.
    local = p.microbatch * (p.microbatches if p.pp > 1 else 1)
    sizes = {"local_batch_size": local, "global_batch_size": p.samples, "seq_len": model.length}
    return {**sizes, "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}


def _parallelism(model: Transformer, p: Parallelism) -> dict[str, Any]:
    replicate = p.dp if p.zero == 0 else p.dp_replicate
    value: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": p.dp // replicate,
        "tensor_parallel_degree": p.tp,
        "pipeline_parallel_degree": p.pp,
        "context_parallel_degree": p.cp,
    }
    if p.tp_comm_overlap and p.tp > 1:
        value["enable_async_tensor_parallel"] = True
    if model.experts:
        value |= {"expert_parallel_degree": p.ep, "expert_tensor_parallel_degree": p.expert_tp}
    if p.zero >= 2:
        value["fsdp_reshard_after_forward"] = "always" if gathers_again(p) else "never"
    if p.cp > 1:
        ways = {"all_gather": "allgather", "ring": "alltoall"}
        value["context_parallel_rotate_method"] = ways[p.context]
    if p.pp > 1:
        value["pipeline_parallel_schedule"] = _schedule(p)
        value["pipeline_parallel_microbatch_size"] = p.microbatch
        value["module_fqns_per_model_part"] = _modules(model, p)
    return value


def _schedule(p: Parallelism) -> str:
    return "Interleaved1F1B" if p.chunks > 1 and p.schedule == "1F1B" else SCHEDULES[p.schedule]


def _modules(model: Transformer, p: Parallelism) -> list[list[str]]:
    """The modules of each stage, by their names in torchtitan's models."""
    borders = pairwise(accumulate(stage_layers(model, p), initial=0))
    stages = [[f"layers.{layer}" for layer in range(*each)] for each in borders]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "output"]
    return stages


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    yield from _schedule_problems(p)
    yield from _replica_problems(p)
    yield from _expert_problems(model, p)
    if p.tp > 1 and not p.sequence_parallel:
        yield "sequence_parallel: false beside tp"
    if modules_again(model, p) - {"per_op"} or p.recompute_layers is not None:
        yield f"recompute: {p.recompute} by modules or layers; --set recompute=none,full"
    for target in p.offload:
        yield f"offload: {target}"
    for name, least in (("gradient_bytes", 4), ("state_bytes", 12)):
        if getattr(p, name) != least:
            yield f"{name}: {getattr(p, name)}"
    if model.precision not in CONVERTERS:
        yield f"precision: {model.precision}"
    yield from setting_problems(model, p)
    yield from size_problems(model, (*NARROW, *LINEAR, "mtp"))


def _schedule_problems(p: Parallelism) -> Iterator[str]:
    known = ",".join(SCHEDULES)
    if p.table is not None:
        yield "table: is no file here"
    elif p.schedule not in SCHEDULES:
        yield f"schedule: {p.schedule}; --set schedule={known} leaves it out"
    elif p.pp > 1 and p.chunks == 1 and p.schedule not in SINGLE:
        yield f"schedule: {p.schedule} of one chunk"
    elif p.pp == 1 and (p.schedule not in ("1F1B", "Interleaved1F1B") or p.chunks > 1):
        yield f"schedule: {p.schedule} x {p.chunks} of a single rank"


def _replica_problems(p: Parallelism) -> Iterator[str]:
    if max(p.sharers) == 1:
        return
    if p.zero == 1:
        yield "zero: 1, for FSDP shares out gradients too; --set zero=2,3 leaves it out"
    if p.zero == 0 and p.tp * p.pp * p.cp > 1:
        yield "zero: 0 beside other degrees; --set zero=2,3 leaves it out"


def _expert_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    if not model.experts or p.ep == 1:
        return
    # Experts take the ranks of cp, and of tp where they are whole, and some of the shards.
    inner = p.cp * (p.tp if p.is_folded else 1)
    if p.ep % inner:
        yield f"ep: {p.ep} is no multiple of the {inner} ranks of cp and tp"
    if p.expert_tp not in (1, p.tp):
        yield f"etp: {p.expert_tp}, neither 1 nor tp"


def _notes(model: Transformer, p: Parallelism) -> Iterator[str]:
    yield from software_note(model, "torchtitan")
    yield f"for {p.devices:,} processes"
    if not _is_flavor(model):
        yield f"[model] has no flavor of the sizes of {model.name}"
    if max(p.sharers) > 1 and p.reduced_bytes != 4:
        yield (
            f"gradients are reduced in float32 there, and were simulated in {p.reduced_bytes} "
            "bytes; --set reduce_bytes=4 simulates that"
        )
