"""Parallelism: how the training step of a Transformer is spread by data, tensor, pipeline and
expert parallelism.

``simdev/lowering/hybrid`` lowers it for large models and ``simdev/lowering/stages.py`` for graphs;
``simdev/search/plan/space.py`` tries its fields. A field that changes bytes or times needs a rule
in ``simdev/nouns/models/large/shard.py``, in the passes, and in the bounds of
``simdev/search/plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

from ...ground.errors import InputError, collecting, refuse
from ...ground.frozen import freeze
from ...ground.units import (
    Bandwidth,
    Seconds,
    Slowdown,
    flag_problems,
    is_count,
    range_problems,
    unlisted,
    unread,
    written,
)

RECOMPUTES = ("none", "selective", "full")
MODULES = (
    "core_attn", "layernorm", "mla_up_proj", "mlp", "mlp_act", "moe", "moe_act", "per_op",
    "shared_experts",
)  # fmt: skip
"""Modules that selective recomputation may compute again: Megatron-core's names, and our
``mlp_act`` and ``per_op``.
"""
CONTEXTS = ("all_gather", "ring")
OFFLOADS = ("activations", "optimizer")
DISPATCHERS = ("alltoall", "deepep", "hybridep")
GRAPHS = ("none", "partial", "full")
"""Senders of tokens to experts, and the parts of a step in CUDA graphs (models/large/software)."""
# The largest value of any degree: a larger number is a mistake, and slow to check.
MOST = 2**20
DEGREES = ("dp", "cp", "tp", "pp", "ep")
MAY_BE_NONE = ("etp", "global_batch", "offload_layers", "recompute_layers", "reduce_bytes")
COUNTS = (
    *DEGREES, "dp_replicate", "etp", "microbatches", "microbatch", "global_batch", "chunks",
)  # fmt: skip
FLAGS = (
    "overlap", "flash", "sequence_parallel", "tensor_overlap", "tp_comm_overlap", "scatter_gather",
    "ep_comm_overlap", "reshard_after_forward",
)  # fmt: skip
OF_GRAPHS = ("pp", "microbatches", "schedule", "chunks", "table", "stages", "ranks")
"""The fields that the pipeline of a graph with ops may have."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The degrees of parallelism of dp x cp x tp x pp devices, and the means to make the step fit.
    Raises InputError.

    - ``dp`` replicas, ``cp`` parts of every sample's tokens, ``tp`` parts of every matrix, ``pp``
      ranks of the pipeline; ``ep`` parts of the experts, spread over the dp x cp devices that have
      the same parameters. Ranks are numbered tp first, then cp, then dp (``ep`` consecutive ranks
      of dp x cp share the experts), then pp.
    - ``etp`` parts of every expert's matrices (None: tp; Megatron-core's
      ``expert_tensor_parallel_size``). Where it is not tp, attention and experts have grids of
      their own (MoE Parallel Folding, arXiv 2504.14960): the dp x cp x tp devices of a rank of the
      pipeline are numbered etp first, then ep, then the replicas of the experts (Megatron-core,
      ``RankGenerator``, order tp-cp-ep-dp-pp), and each sends its own tokens.
    - ``context``: keys and values go to the other parts of a sample either all at once before
      attention ("all_gather", Llama 3, section 3.3.2), or around a "ring" during attention (Liu et
      al. 2023).
    - ``microbatches`` of each replica in a step (gradient accumulation), of ``microbatch`` samples
      each; left out, the number follows from ``global_batch``, the samples of a step.
    - ``schedule``: a name of simdev.nouns.schedules with ``chunks`` stages a rank, or ``table``, a
      schedule as CSV text. ``stage_layers`` is the number of layers of each stage (default: as even
      as possible). The first and the last stage may have none; by default they have none where
      there are one or two stages more than layers.
    - A graph with ops, which is one microbatch, takes only the fields of the pipeline
      (``OF_GRAPHS``). ``stages`` are the patterns of the forward ops of each stage, or the names of
      the first op of each stage after the first (none: as even as possible); ``ranks`` is the
      device of each rank (none: the first workers). ``pp`` follows from these where it is left out.
    - ``zero``: 0, all replicas hold everything; 1, optimizer state is sharded; 2, gradients too
      (reduced every microbatch); 3, parameters too (gathered for each use, ``prefetch`` buckets
      ahead). A bucket of ZeRO 2 and 3 is a layer, the embedding or the classifier; a layer of more
      than ``bucket`` parameters is cut into equal buckets. ``overlap``: gradients are reduced
      during the backward (else after it), with ZeRO 2 and 3 at most ``in_flight`` buckets at once
      (else none): the backward waits for more.
    - ``dp_replicate``: the number of groups of dp / dp_replicate consecutive replicas. ZeRO shards
      within each group; then the shards of a gradient are summed over the groups (HSDP of PyTorch,
      ``fully_shard`` on a mesh of two dimensions; Megatron-core's
      ``--num-distributed-optimizer-instances``). ``reshard_after_forward``: ZeRO 3 gathers a bucket
      again for the backward; else, on a single rank of the pipeline, it stays gathered from the
      forward on.
    - ``reduce_bytes``: bytes of each gradient while it is sent between replicas (None: 2, as of a
      parameter, with ZeRO 2 and 3, else ``gradient_bytes``). ``message_latency``: seconds that are
      added to every collective and transfer.
    - ``recompute``: "selective" computes ``recompute_modules`` again for the backward, "full" whole
      layers. Names of modules are Megatron-core's (``--recompute-modules``). "core_attn" is
      everything between queries, keys, values and the projection; "layernorm" the outputs of a
      layer's two norms; "mla_up_proj" queries, keys and values from their latents; "mlp", "moe" and
      "shared_experts" everything after their input; "moe_act" the output of the experts'
      activation; "mlp_act" (ours) the output of other activations, as in xformers'
      ``SwiGLUFusedOp``; "per_op" everything but attention and every second product (torchtitan's
      ``selective_ac_option = "op"``).
    - ``recompute_layers``: the number of layers of each stage, from its first, that "full" computes
      again (None: all). Megatron-LM calls it ``--recompute-num-layers`` with ``--recompute-method
      block``. Its ``uniform`` with 1 layer is None here; with more, which keeps one input for
      several layers, it is not supported.
    - ``flash``: attention is one op that keeps no scores (None: as usual in the year of the model;
      Megatron-LM has it since 2023).
    - ``sequence_parallel``: tensors that tp leaves whole are split along the sequence (Korthikanti
      et al. 2022). An all_reduce then becomes an all_gather and a reduce_scatter, and the input of
      a product is gathered again for the gradient of its weights. ``tensor_overlap``: this gather
      overlaps the gradient of the input (section 4.2.2 there), and the sum of the input's gradient
      overlaps the gradient of the weights, where the backward is not split (Transformer Engine,
      ``module/linear.py``; Megatron-LM, ``LinearWithGradAccumulationAndAsyncCommunication``;
      recalled). For it Megatron-LM makes kernels begin in order (CUDA_DEVICE_MAX_CONNECTIONS of 1).
      ``scatter_gather``: where tensors are not split along the sequence, each rank of tp sends only
      its share of a tensor to the next rank of the pipeline, where the ranks gather it (Narayanan
      et al. 2021, section 4.1).
    - ``tp_comm_overlap`` (Megatron-LM's ``--tp-comm-overlap``; PyTorch's async TP is much like it):
      the other collectives of a split sequence overlap products, too, in the forward and before the
      gradient of the input, for attention and MLPs. Collectives of latents, experts, embedding and
      classifier never overlap.
    - ``token_dispatcher`` sends tokens to their experts: "alltoall", "deepep" or "hybridep";
      ``cuda_graphs`` says which part of a step is replayed as CUDA graphs: "none", "partial"
      (layers without their experts) or "full" (None: as the model's software does).
      ``ep_comm_overlap``: tokens of one microbatch are sent while another is computed
      (Megatron-Core's ``--overlap-moe-expert-parallel-comm``).
    - ``slowdown``: how many times longer computing and collectives take while they share a device
      (1: they do not slow each other; at most 2), like ``Collectives.slowdown``: NCCL's kernels
      occupy some of the multiprocessors.
    - ``offload``: "activations" or "optimizer" to host memory, over ``host_bandwidth`` (bytes/s,
      each way). ``offload_layers``: the number of layers of each stage, from its first, whose
      activations are offloaded (None: all), as Megatron-core's ``cpu_offloading_num_layers``.
    - ``gradient_bytes`` and ``state_bytes``: bytes of gradient and of optimizer state for each
      parameter of 2 bytes. By default gradients are added up in float32, and Adam keeps a master
      copy and two moments (ZeRO, section 3.1).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    etp: int | None = None
    context: str = CONTEXTS[0]
    microbatches: int = 1
    microbatch: int = 1
    global_batch: int | None = None
    schedule: str = "1F1B"
    chunks: int = 1
    table: str | None = None
    stage_layers: tuple[int, ...] = ()
    stages: tuple[tuple[str, ...] | str, ...] = ()
    ranks: tuple[str, ...] = ()
    zero: int = 1
    dp_replicate: int = 1
    reshard_after_forward: bool = True
    prefetch: int = 1
    in_flight: int = 1
    bucket: int = 500_000_000
    reduce_bytes: int | None = None
    message_latency: Seconds = 0
    overlap: bool = True
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = MODULES[:1]
    recompute_layers: int | None = None
    flash: bool | None = None
    sequence_parallel: bool = True
    tensor_overlap: bool = True
    tp_comm_overlap: bool = False
    scatter_gather: bool = False
    token_dispatcher: str | None = None
    cuda_graphs: str | None = None
    ep_comm_overlap: bool = False
    slowdown: Slowdown = 1
    offload: tuple[str, ...] = ()
    offload_layers: int | None = None
    host_bandwidth: Bandwidth | None = None
    gradient_bytes: int = 4
    state_bytes: int = 12

    def __post_init__(self) -> None:
        freeze(self, "offload", "recompute_modules", "stage_layers", "stages", "ranks")
        if self.pp == 1:
            object.__setattr__(self, "pp", self._implied_ranks())
        problems = list(self._problems())
        if not problems and self.global_batch is not None:
            with collecting(problems):
                self._share_out(self.global_batch)
        refuse([*problems, *unread(self)])

    def _share_out(self, batch: int) -> None:
        """Sets ``microbatches`` from the global batch. Raises InputError."""
        count = microbatches_of(batch, self.dp, self.microbatch)
        if self.microbatches not in (1, count):
            spread = f"dp {self.dp} x microbatches {self.microbatches} x microbatch"
            reason = f"is not {spread} {self.microbatch} = {self.samples:,}; tell one of them"
            raise InputError(f"global_batch: {batch:,} {reason}")
        object.__setattr__(self, "microbatches", count)

    def _problems(self) -> Iterator[str]:
        problems = list(self._count_problems())
        yield from problems
        if not problems:
            problems = list(self._expert_problems())
            yield from problems
        if not problems and self.dp_replicate > 1:
            yield from self._replicate_problems()
        yield from unlisted(self, context=CONTEXTS, recompute=RECOMPUTES)
        for name in FLAGS:
            if name != "flash" or self.flash is not None:
                yield from flag_problems(name, getattr(self, name))
        yield from self._overlap_problems()
        yield from self._module_problems()
        unknown = next((target for target in self.offload if target not in OFFLOADS), None)
        if unknown is not None:
            yield f'offload: must be of {", ".join(OFFLOADS)}, got "{unknown}"'
        if self.offload_layers is not None and OFFLOADS[0] not in self.offload:
            yield "offload_layers: go with offload of activations"
        if self.offload and unknown is None and self.host_bandwidth is None:
            yield 'host_bandwidth: offload needs what PCIe reaches to host memory, like "51 GB/s"'

    def _overlap_problems(self) -> Iterator[str]:
        for name, known in (("token_dispatcher", DISPATCHERS), ("cuda_graphs", GRAPHS)):
            if getattr(self, name) is not None:
                yield from unlisted(self, **{name: known})
        if self.tp_comm_overlap and not self.sequence_parallel:
            # Megatron-LM refuses it, too: an all_reduce cannot overlap a product.
            yield "tp_comm_overlap: needs sequence_parallel"
        if self.ep_comm_overlap and self.recompute == RECOMPUTES[2]:
            yield 'ep_comm_overlap: does not go with recompute "full", as in Megatron-Core'

    def _expert_problems(self) -> Iterator[str]:
        if not self.is_folded:
            if self.replicas % self.ep:
                degrees = f"dp {self.dp}" if self.cp == 1 else f"dp x cp {self.replicas}"
                reason = "the experts are shared out over replicas"
                yield f"ep: {self.ep} does not divide {degrees}; {reason}"
            return
        parts, devices = self.ep * self.expert_tp, self.replicas * self.tp
        if devices % parts:
            reason = f"{parts} parts of the experts do not divide dp x cp x tp {devices}"
            yield f"etp: ep {self.ep} x etp {self.expert_tp} = {reason}"
        if self.tp > 1 and not self.sequence_parallel:
            # Each rank of tp would send the same tokens; Megatron-core refuses it, too.
            reason = "needs sequence_parallel: ranks of tp send tokens of their own"
            yield f"etp: {self.expert_tp} beside tp {self.tp} {reason}"

    def _replicate_problems(self) -> Iterator[str]:
        shards = self.dp // self.dp_replicate
        if self.dp % self.dp_replicate:
            yield f"dp_replicate: {self.dp_replicate} does not divide dp {self.dp}"
        elif self.expert_replicas % self.dp_replicate:
            reason = f"does not divide the {self.expert_replicas} replicas of the experts"
            yield f"dp_replicate: {self.dp_replicate} {reason}"
        elif not self.zero or max(self.sharers) == 1:
            reason = f"zero {self.zero} shares nothing out among {shards} replicas"
            yield f"dp_replicate: {self.dp_replicate} of dp {self.dp}: {reason}"

    def _module_problems(self) -> Iterator[str]:
        unknown = next((name for name in self.recompute_modules if name not in MODULES), None)
        if unknown is not None:
            yield f'recompute_modules: must be of {", ".join(MODULES)}, got "{unknown}"'
        elif self.recompute_modules != MODULES[:1] and self.recompute != RECOMPUTES[1]:
            yield f'recompute_modules: go with recompute "selective", got "{self.recompute}"'
        elif "per_op" in self.recompute_modules and len(self.recompute_modules) > 1:
            yield "recompute_modules: per_op goes alone: it tells what of all ops is made again"
        elif not self.recompute_modules:
            yield 'recompute_modules: are none; recompute "none" says so'
        if self.recompute_layers is not None and self.recompute != RECOMPUTES[2]:
            yield f'recompute_layers: go with recompute "full", got "{self.recompute}"'

    def _implied_ranks(self) -> int:
        """The number of ranks by the devices or stages that are named; 1 where none are."""
        if self.ranks or not self.stages or self.table is not None:
            return len(self.ranks) or 1
        # A wrong count is reported with the other problems; here it must not divide by zero.
        chunks = self.chunks if is_count(self.chunks) and self.chunks else 1
        stages = len(self.stages) + any(isinstance(stage, str) for stage in self.stages)
        return -(-stages // chunks)

    def of_large_models(self) -> list[str]:
        """The fields set here that have a meaning for a large model alone."""
        return [
            field.name
            for field in fields(self)
            if field.name not in OF_GRAPHS and getattr(self, field.name) != field.default
        ]

    def _count_problems(self) -> Iterator[str]:
        for name in COUNTS:
            yield from self._out_of_range(name, 1, MOST)
        if not (is_count(self.zero) and self.zero <= 3):
            yield f"zero: must be 0, 1, 2 or 3, got {written(self.zero)}"
        yield from self._size_problems()
        if len({type(stage) for stage in self.stages}) > 1:
            yield "stages: are lists of patterns, or all names of the ops with which they begin"
        if self.ranks and len(self.ranks) != self.pp:
            yield f"ranks: names {len(self.ranks)} devices, pp is {self.pp}"
        for stage, count in enumerate(self.stage_layers):
            # The first and the last have the embedding and the classifier (Llama 3, section 3.3.2).
            is_end = stage in (0, len(self.stage_layers) - 1)
            if not (is_count(count) and (count or is_end)):
                reason = f"a stage needs one layer at least, got {written(count)}"
                yield f"stage_layers[{stage}]: {reason}"

    def _size_problems(self) -> Iterator[str]:
        for name, least, most in (
            ("prefetch", 0, MOST), ("in_flight", 0, MOST), ("bucket", 1, 2**62),
            ("gradient_bytes", 0, 8), ("reduce_bytes", 0, 8), ("state_bytes", 0, 64),
            ("recompute_layers", 0, MOST), ("offload_layers", 0, MOST),
        ):  # fmt: skip
            yield from self._out_of_range(name, least, most)

    def _out_of_range(self, name: str, least: int, most: int) -> Iterator[str]:
        value = getattr(self, name)
        if value is not None or name not in MAY_BE_NONE:
            yield from range_problems(name, value, least, most)

    @property
    def degrees(self) -> dict[str, int]:
        """The number of parts of each kind, by the name of the degree."""
        return {name: getattr(self, name) for name in DEGREES}

    @property
    def devices(self) -> int:
        """The number of devices used."""
        return self.replicas * self.tp * self.pp

    @property
    def replicas(self) -> int:
        """The number of devices that have the same part of the parameters."""
        return self.dp * self.cp

    @property
    def expert_tp(self) -> int:
        """The number of parts of every expert's matrices."""
        return self.tp if self.etp is None else self.etp

    @property
    def is_folded(self) -> bool:
        """Whether experts have a separate grid of ranks."""
        return self.expert_tp != self.tp

    @property
    def expert_replicas(self) -> int:
        """The number of devices that have the same part of the experts."""
        return self.replicas * self.tp // (self.ep * self.expert_tp)

    @property
    def sharers(self) -> tuple[int, int]:
        """The numbers of devices that shard the parameters of all layers, and of experts."""
        return self.replicas // self.dp_replicate, self.expert_replicas // self.dp_replicate

    @property
    def reduces_by_bucket(self) -> bool:
        """Whether gradients are reduced every microbatch; never where no device shares them."""
        return self.zero >= 2 and max(self.sharers) > 1

    @property
    def samples(self) -> int:
        """The samples of a step: the global batch."""
        return self.dp * self.microbatches * self.microbatch

    @property
    def reduced_bytes(self) -> int:
        """The bytes of each gradient while it is sent between replicas.

        FSDP and DeepSpeed reduce in the type of the parameters (``MixedPrecisionPolicy``,
        ``communication_data_type``), Megatron-LM in the type of the sums.
        """
        if self.reduce_bytes is not None:
            return self.reduce_bytes
        return 2 if self.zero >= 2 else self.gradient_bytes

    def layers_again(self, stages: Iterable[Sequence[int]]) -> frozenset[int]:
        """The layers that full recomputation computes again, given the layers of each stage."""
        if self.recompute != RECOMPUTES[2]:
            return frozenset()
        return frozenset(layer for layers in stages for layer in layers[: self.recompute_layers])

    def layers_offloaded(self, stages: Iterable[Sequence[int]]) -> frozenset[int]:
        """The layers whose activations are offloaded, given the layers of each stage."""
        if OFFLOADS[0] not in self.offload:
            return frozenset()
        return frozenset(layer for layers in stages for layer in layers[: self.offload_layers])

    @property
    def host_rate(self) -> Fraction:
        """Bytes per second to host memory, each way."""
        return Fraction(self.host_bandwidth or 1)


def degrees_over_one(degrees: Mapping[str, int | None]) -> list[str]:
    """The degrees over 1, and etp where it is given, as people write them: "dp 2", "tp 4"."""
    known = {name: degrees.get(name, 1) for name in (*DEGREES, "dp_replicate")}
    texts = [f"{name} {count}" for name, count in known.items() if count != 1]
    return texts + [f"etp {etp}" for etp in [degrees.get("etp")] if etp is not None]


def microbatches_of(batch: int, dp: int, microbatch: int) -> int:
    """The microbatches of a replica for this global batch, in samples. Raises InputError."""
    count, over = divmod(batch, dp * microbatch)
    if over:
        spread = f"dp {dp} x microbatch {microbatch} = {dp * microbatch:,}"
        raise InputError(f"global_batch: {batch:,} samples are no multiple of {spread}")
    return count
