"""Trains a Llama of any size by FSDP2, with tensor and pipeline parallelism where asked for.

The layers, their plans and the order of the calls are those of torchtitan (github.com/pytorch/
torchtitan, models/llama3): RMSNorm, rotary embedding, causal attention with grouped heads, SwiGLU,
an untied output. It runs as it is on GPUs, ``torchrun --nproc-per-node 8 llama_fsdp.py``, and
without any under ``simdev capture llama_fsdp.py --world 8``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=4096, help="width (8B: 4096)")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=14336, help="width of the feed forward")
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1, help="sequences a data parallel rank")
    parser.add_argument("--replicate", type=int, default=1, help="replicas of the shards (HSDP)")
    parser.add_argument("--tp", type=int, default=1, help="ranks a tensor is parallel over")
    parser.add_argument("--pp", type=int, default=1, help="pipeline ranks")
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages a rank")
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--microbatches", type=int, default=1, help="of a pipeline")
    parser.add_argument("--accumulate", type=int, default=1, help="batches a step")
    parser.add_argument("--ac", choices=("none", "full", "selective"), default="selective")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--reshard", choices=("default", "always", "never"), default="default")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


# The model.


def rotation(dim: int, length: int, theta: float = 500000.0) -> torch.Tensor:
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim)
    angles = torch.outer(torch.arange(length, device=frequencies.device), frequencies).float()
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turns = turns[: x.shape[1]].view(1, x.shape[1], 1, pairs.shape[-1])
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, o: argparse.Namespace) -> None:
        super().__init__()
        self.head, self.repeats = o.dim // o.heads, o.heads // o.kv_heads
        self.wq = nn.Linear(o.dim, o.dim, bias=False)
        self.wk = nn.Linear(o.dim, o.kv_heads * self.head, bias=False)
        self.wv = nn.Linear(o.dim, o.kv_heads * self.head, bias=False)
        self.wo = nn.Linear(o.dim, o.dim, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        # -1: tensor parallelism leaves a rank some of the heads.
        q, k, v = (w(x).view(batch, length, -1, self.head) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (self.repeated(t) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))

    def repeated(self, x: torch.Tensor) -> torch.Tensor:
        if self.repeats == 1:
            return x
        batch, length, heads, head = x.shape
        x = x[:, :, :, None, :].expand(batch, length, heads, self.repeats, head)
        return x.reshape(batch, length, heads * self.repeats, head)


class FeedForward(nn.Module):
    def __init__(self, o: argparse.Namespace) -> None:
        super().__init__()
        self.w1 = nn.Linear(o.dim, o.hidden, bias=False)
        self.w2 = nn.Linear(o.hidden, o.dim, bias=False)
        self.w3 = nn.Linear(o.dim, o.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, o: argparse.Namespace) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(o), FeedForward(o)
        self.attention_norm = nn.RMSNorm(o.dim, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(o.dim, eps=1e-5)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """A stage of the model, of ``stages``; one alone is the whole model."""

    def __init__(self, o: argparse.Namespace, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        first, end = (o.layers * s // stages for s in (stage, stage + 1))
        self.head, self.length = o.dim // o.heads, o.seq
        self.tok_embeddings = nn.Embedding(o.vocab, o.dim) if stage == 0 else None
        self.register_buffer("turns", rotation(self.head, self.length), persistent=False)
        self.layers = nn.ModuleDict({str(i): Block(o) for i in range(first, end)})
        last = stage == stages - 1
        self.norm = nn.RMSNorm(o.dim, eps=1e-5) if last else None
        self.output = nn.Linear(o.dim, o.vocab, bias=False) if last else None

    def init_weights(self) -> None:
        with torch.device(self.turns.device):
            self.turns = rotation(self.head, self.length)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                nn.init.ones_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        for layer in self.layers.values():
            h = layer(h, self.turns)
        h = self.norm(h) if self.norm is not None else h
        return self.output(h) if self.output is not None else h


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


# How it is spread.


def spread(model: Llama, mesh, o: argparse.Namespace) -> Llama:
    if o.tp > 1:
        split_tensors(model, mesh["tp"])
    for name, block in model.layers.items():
        block = checkpointed(block, o.ac)
        if o.compile:
            block = torch.compile(block, backend="inductor", fullgraph=True)
        model.layers[name] = block
    if mesh["dp_replicate", "dp_shard"].size() > 1:
        shard(model, mesh, o)
    return model


def split_tensors(model: Llama, mesh) -> None:
    ends = {
        "tok_embeddings": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(
        model, mesh, {k: v for k, v in ends.items() if getattr(model, k) is not None}
    )
    whole = Replicate()
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(whole, None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(whole,)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    for block in model.layers.values():
        parallelize_module(block, mesh, plan)


SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops.aten.max.default,
}


def checkpointed(block: nn.Module, mode: str) -> nn.Module:
    if mode == "none":
        return block
    if mode == "full":
        return checkpoint_wrapper(block, preserve_rng_state=False)

    def contexts():
        counts = defaultdict(int)

        def policy(context, func, *args, **kwargs):
            counts[context.is_recompute] += func == torch.ops.aten.mm.default
            second = func == torch.ops.aten.mm.default and counts[context.is_recompute] % 2 == 0
            saves = func in SAVED and not second
            return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(block, context_fn=contexts, preserve_rng_state=False)


def shard(model: Llama, mesh, o: argparse.Namespace) -> None:
    dims = ("dp_replicate", "dp_shard") if o.replicate > 1 else "dp_shard"
    settings = {
        "mesh": mesh[dims],
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    # A pipeline would gather the parameters again for every microbatch.
    reshards = o.reshard == "always" or (o.reshard == "default" and o.pp == 1)
    if model.tok_embeddings is not None:
        fully_shard(model.tok_embeddings, **settings, reshard_after_forward=reshards)
    for block in model.layers.values():
        fully_shard(block, **settings, reshard_after_forward=reshards)
    if model.output is not None:
        # They are needed again at once.
        last = [model.norm, model.output]
        fully_shard(last, **settings, reshard_after_forward=o.reshard == "always")
    fully_shard(model, **settings)


# The loop.


def clip(parameters: list[nn.Parameter], mesh, o: argparse.Namespace) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients, 2.0, False, True)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if o.pp > 1:
        norm **= 2.0
        dist.all_reduce(norm, op=dist.ReduceOp.SUM, group=mesh["pp"].get_group())
        norm **= 0.5
    nn.utils.clip_grads_with_norm_(parameters, 1.0, norm, True)


def main() -> None:
    o = options()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    shards = dist.get_world_size() // (o.pp * o.replicate * o.tp)
    names = ("pp", "dp_replicate", "dp_shard", "tp")
    mesh = init_device_mesh("cuda", (o.pp, o.replicate, shards, o.tp), mesh_dim_names=names)

    stages = o.pp * o.stages
    mine = range(mesh["pp"].get_local_rank(), stages, o.pp)
    if o.schedule in ("ZBVZeroBubble", "DualPipeV"):
        mine = (mine[0], stages - 1 - mine[0])
    models = []
    for stage in mine:
        with torch.device("meta"):
            model = Llama(o, stage, stages)
        model = spread(model, mesh, o)
        model.to_empty(device=device)
        with torch.no_grad():
            model.init_weights()
        models.append(model.train())

    parameters = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=8e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, **{o.optimizer: True}
    )
    step = stepping(models, mine, mesh, o)
    for number in range(o.steps):
        optimizer.zero_grad()
        for _ in range(o.accumulate):
            tokens = torch.randint(0, o.vocab, (o.batch, o.seq + 1), device=device)
            inputs, labels = tokens[:, :-1], tokens[:, 1:]
            with loss_parallel() if o.tp > 1 else contextlib.nullcontext():
                loss = step(inputs, labels)
        clip(parameters, mesh, o)
        optimizer.step()
        if number % 10 == 0 and loss is not None and dist.get_rank() == 0:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def stepping(models: list[nn.Module], mine: Sequence[int], mesh, o: argparse.Namespace):
    if o.pp == 1:
        return partial(plain_step, models[0], o.accumulate)
    stages, device = o.pp * o.stages, torch.device("cuda", torch.cuda.current_device())
    parts = [
        PipelineStage(model, stage, stages, device, group=mesh["pp"].get_group())
        for model, stage in zip(models, mine, strict=True)
    ]
    kind = get_schedule_class(o.schedule)
    schedule = kind(
        parts if issubclass(kind, PipelineScheduleMulti) else parts[0],
        n_microbatches=o.microbatches,
        loss_fn=loss_of,
        scale_grads=False,
    )
    return partial(pipeline_step, schedule, 0 in mine, stages - 1 in mine)


def plain_step(model: nn.Module, parts: int, inputs: torch.Tensor, labels: torch.Tensor):
    loss = loss_of(model(inputs), labels) / parts
    loss.backward()
    return loss.detach()


def pipeline_step(schedule, first: bool, last: bool, inputs: torch.Tensor, labels: torch.Tensor):
    losses = [] if last else None
    target = {"target": labels, "losses": losses} if last else {}
    schedule.step(*([inputs] if first else []), **target)
    return torch.mean(torch.stack(losses)) if last else None


if __name__ == "__main__":
    main()
