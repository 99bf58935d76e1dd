"""DeepSpeed's JSON for a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...ground.errors import refuse
from ...nouns.models.large import Transformer, modules_again
from ...nouns.strategy.parallelism import Parallelism
from .launch import (
    NARROW,
    Launch,
    of_1f1b,
    setting_problems,
    size_problems,
    software_note,
    stage_layers,
)

TYPES = {2: "bf16", 4: "fp32"}
"""The names of types by the bytes of a number."""


def deepspeed(model: Transformer, p: Parallelism) -> Launch:
    """The configuration of a plan. Raises InputError."""
    refuse(_problems(model, p))
    value: dict[str, Any] = {
        "train_batch_size": p.samples,
        "train_micro_batch_size_per_gpu": p.microbatch,
        "gradient_accumulation_steps": p.microbatches,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": TYPES[p.gradient_bytes]},
        "communication_data_type": TYPES[p.reduced_bytes],
        "zero_optimization": _zero(p),
    }
    if p.pp > 1:
        every = int(p.recompute == "full")
        value["pipeline"] = {"stages": p.pp, "activation_checkpoint_interval": every}
    elif p.recompute == "full":
        value["activation_checkpointing"] = {"cpu_checkpointing": "activations" in p.offload}
    if p.tp > 1:
        value["tensor_parallel"] = {"autotp_size": p.tp}
    return Launch(json.dumps(value, indent=2) + "\n", tuple(_notes(model, p)))


def _zero(p: Parallelism) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": p.zero, "overlap_comm": p.overlap}
    if p.zero >= 2:
        zero |= {"contiguous_gradients": True, "reduce_bucket_size": p.bucket}
    if p.dp_replicate > 1:
        zero |= {"mics_shard_size": p.sharers[0], "mics_hierarchical_params_gather": False}
    if "optimizer" in p.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return zero


def _problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    if p.chunks > 1:
        yield f"chunks: {p.chunks} stages a rank; --set chunks=1 leaves them out"
    else:
        yield from of_1f1b(p)
    if p.pp > 1 and p.zero >= 2:
        yield f"zero: {p.zero} beside a pipeline; --set zero=0,1 leaves it out"
    if p.dp_replicate > 1 and p.zero < 3:
        yield f"dp_replicate: {p.dp_replicate} beside ZeRO {p.zero}; --set zero=3 has MiCS"
    if p.zero == 3 and not p.reshard_after_forward and p.replicas > 1:
        yield "reshard_after_forward: false; --set zero=2 keeps parameters, too"
    if p.cp > 1:
        yield f"cp: {p.cp}; --set cp=1 leaves it out"
    if p.ep > 1 or p.is_folded:
        yield f"ep: {p.ep}, for it is an argument of its MoE layers; --set ep=1 leaves it out"
    yield from _tensor_problems(p)
    yield from _memory_problems(model, p)
    if model.precision != "bfloat16":
        yield f"precision: {model.precision}, which is a setting of the model"
    yield from setting_problems(model, p)
    yield from size_problems(model, NARROW)


def _tensor_problems(p: Parallelism) -> Iterator[str]:
    if p.tp == 1:
        return
    if p.sequence_parallel:
        yield "sequence_parallel: beside tp; --set sequence_parallel=false leaves it out"
    if p.pp > 1:
        yield f"tp: {p.tp} beside a pipeline"
    if p.zero == 3:
        yield f"tp: {p.tp} beside ZeRO 3"


def _memory_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    if modules_again(model, p):
        yield f"recompute: {p.recompute}; --set recompute=none,full leaves it out"
    if p.recompute_layers is not None:
        yield f"recompute_layers: {p.recompute_layers}"
    if p.offload_layers is not None:
        yield f"offload_layers: {p.offload_layers}"
    if "activations" in p.offload and (p.recompute != "full" or p.pp > 1):
        yield "offload: of activations that are no checkpoints of full recomputation"
    if "optimizer" in p.offload and not p.zero:
        yield "offload: of the optimizer without ZeRO"
    for name in ("gradient_bytes", "reduced_bytes"):
        if getattr(p, name) not in TYPES:
            yield f"{name}: {getattr(p, name)}"
    if p.state_bytes != 12:
        yield f"state_bytes: {p.state_bytes}"


def _notes(model: Transformer, p: Parallelism) -> Iterator[str]:
    yield from software_note(model, "deepspeed")
    yield f"for {p.devices:,} processes; the model's sizes are the program's"
    if p.pp > 1:
        counts = ", ".join(map(str, stage_layers(model, p)))
        yield f"PipelineModule deals out the layers; simulated were {counts}"
    elif p.recompute == "full":
        yield "the program wraps each layer in deepspeed.checkpointing.checkpoint"
    if p.dp_replicate > 1:
        yield "the program makes the model within deepspeed.zero.MiCS_Init"
    if "optimizer" in p.offload:
        yield "the update runs on the host there, and was simulated on the device"
