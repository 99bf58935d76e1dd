"""What PyTorch holds on a GPU beside the tensors of a step.

Scratch memory of operators is what the rows of a profile tell (``ws``), or in proportion what they
tell of another batch. An update makes
temporaries, and all updates run behind the backward while every gradient is there (they go when
``zero_grad`` drops them), so a step needs room for the largest temporaries beside all gradients.
cuBLAS gets a workspace from each thread that calls it: the program's in the forward, autograd's in
the backward. They are kept from the first product on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..costs import CostModel, op_key
from ..costs.rows import fields_of, object_at
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.semantics import op_class

WORKSPACES = ("cuBLAS workspace", "cuBLAS workspace of autograd", "cuBLASLt workspace")

# Bytes of a workspace where no datasheet tells it: :4096:2:16:8 in CUBLAS_WORKSPACE_CONFIG's terms,
# PyTorch's default but for GPUs of compute capability 9.0 (aten/src/ATen/cuda/CublasHandlePool.cpp,
# parseChosenWorkspaceSize, as in PyTorch 2.11).
BLAS_WORKSPACE = 2 * 4096 * 2**10 + 8 * 16 * 2**10
# The same file, parseCUDABlasLtWorkspaceSize; addmm with a bias as a row goes to cuBLASLt
# (aten/src/ATen/native/cuda/Blas.cpp, isInputCompliesAddmmCudaLt).
LT_WORKSPACE = 2**20

# Temporaries of an update in sizes of its parameter where no row tells them, and how many of them a
# variable of PyTorch's loop keeps until the next update has made its own:
# ``denom = (exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)`` in torch/optim/adam.py,
# _single_tensor_adam.
TEMPORARIES = {"adam_update": 2}
KEPT = {"adam_update": 1}


def cuda_kinds(costs: CostModel) -> frozenset[str]:
    """The kinds of device that PyTorch measured by CUDA, as headers of profiles tell."""
    kinds = set[str]()
    for profile in costs.profiles:
        device = object_at(fields_of(profile.header), "device")
        if device.get("cuda") and device.get("torch"):
            kinds.update(profile.device_kinds)
    return frozenset(kinds)


def with_scratch(graph: Graph, costs: CostModel) -> tuple[Graph, Mapping[int, int]]:
    """The graph with the scratch memory of its ops, and what updates need themselves, in bytes by
    position: their ``workspace_bytes`` are the most that any of those from there on needs.

    What the graph says itself stays, but for updates.
    """
    rows = _Rows(costs)
    needed = [op.workspace_bytes or rows.scratch(graph, i) for i, op in enumerate(graph.ops)]
    updating = {i: needed[i] or _temporaries(graph, i) for i in _updates(graph)}
    most = 0
    for i, space in reversed(list(zip(updating, _with_kept(graph, updating), strict=True))):
        needed[i] = most = max(most, space)
    ops = [
        op if op.workspace_bytes == size else replace(op, workspace_bytes=size)
        for op, size in zip(graph.ops, needed, strict=True)
    ]
    return replace(graph, ops=tuple(ops)), updating


def _updates(graph: Graph) -> list[int]:
    return [i for i, op in enumerate(graph.ops) if op.phase == "update"]


class _Rows:
    """The scratch memory that rows tell, by key and by what is alike but for the batch."""

    def __init__(self, costs: CostModel) -> None:
        self.kinds, self.by_key = sorted(cuda_kinds(costs)), dict[str, int]()
        self.alike: dict[str, list[tuple[list[int], int]]] = {}
        prefixes = tuple(json.dumps([kind])[:-1] for kind in self.kinds)
        for profile in reversed(costs.profiles):
            for key, row in profile.rows.items():
                size = row.details.get("ws")
                if isinstance(size, int) and key.startswith(prefixes):
                    self.by_key[key] = size
                    if size:
                        pattern, extents = _pattern(key)
                        self.alike.setdefault(pattern, []).append((extents, size))

    def scratch(self, graph: Graph, position: int) -> int:
        """The most of an op in bytes on any of the kinds; where no row is its own, in proportion to
        the nearest of those that differ in their batch alone.
        """
        keys = [op_key(graph, position, kind) for kind in self.kinds]
        measured = [self.by_key[key] for key in keys if key in self.by_key]
        return max(measured or map(self._in_proportion, keys), default=0)

    def _in_proportion(self, key: str) -> int:
        pattern, extents = _pattern(key)
        near = []
        for others, size in self.alike.get(pattern, ()):
            pairs = zip(extents, others, strict=True)
            ratios = {a / b for a, b in pairs if a != b and a and b}
            if len(ratios) == 1:
                ratio = ratios.pop()
                near.append((max(ratio, 1 / ratio), round(size * ratio)))
        return min(near, default=(1.0, 0))[1]


def _pattern(key: str) -> tuple[str, list[int]]:
    """A key without the first extent of each shape, and these."""
    *rest, operands, dtypes, outputs = json.loads(key)
    shapes = [shape for shape in (*operands, *outputs) if shape]
    tails = [[shape and shape[1:] for shape in part] for part in (operands, outputs)]
    return json.dumps([rest, dtypes, tails]), [shape[0] for shape in shapes]


def _temporaries(graph: Graph, position: int) -> int:
    return TEMPORARIES.get(graph.ops[position].kind, 0) * _parameter_bytes(graph, position)


def _parameter_bytes(graph: Graph, position: int) -> int:
    """The bytes of the parameter that an update reads first."""
    return next((tensor.bytes for tensor in graph.operands[position]), 0)


def _with_kept(graph: Graph, updating: Mapping[int, int]) -> Iterator[int]:
    """By update its own temporaries, and those that the one before has left."""
    left = 0
    for i, size in updating.items():
        yield left + size
        left = min(size, KEPT.get(graph.ops[i].kind, 0) * _parameter_bytes(graph, i))


def workspaces(
    graph: Graph, cluster: Cluster, costs: CostModel, memory: MemoryModel
) -> tuple[tuple[int, ...], ...]:
    """Bytes of each of WORKSPACES by device: 0 where nothing of the graph asks for it."""
    nothing = (0,) * len(WORKSPACES)
    if not memory.is_pytorch:
        return (nothing,) * len(cluster.devices)
    products = [op for op in graph.ops if op_class(op.kind) == "gemm"]
    phases = {op.phase for op in products}
    # Of a forward product a bias is the third operand: cuBLASLt adds it on.
    with_bias = any(op.phase == "forward" and len(op.inputs) > 2 for op in products)
    called = ("forward" in phases, "backward" in phases, with_bias)
    sizes = {spec.kind: spec.blas_workspace for spec in costs.specs}

    def of(kind: str) -> tuple[int, ...]:
        each = sizes.get(kind) or BLAS_WORKSPACE
        made = (each, each, LT_WORKSPACE)
        return tuple(size if calls else 0 for size, calls in zip(made, called, strict=True))

    # CPUs have none of cuBLAS.
    return tuple(
        of(device.kind) if device.runs_ops and not device.is_host else nothing
        for device in cluster.devices
    )
