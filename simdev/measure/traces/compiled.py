"""What ``torch.compile`` leaves in a trace: regions, their graphs, and the kernels that a compiler
fused.

A call of a compiled region is a span ``Torch-Compiled Region: frame/recompilation``; inside it,
also in the backward, stands one ``## Call CompiledFxGraph <hash> ##`` a graph of Inductor. Its
products and convolutions are operators as ever; what was fused is an operator called like its
kernel (``triton_poi_fused_gelu_0``), with the tensors that it is given and no more: what it
computes no trace tells. Inductor puts what a kernel writes behind what it reads, so the last tensor
is taken to be its output.
"""

from __future__ import annotations

import re
from math import prod

import torch

from ..kinds import Fields
from .events import Event, is_shape
from .replay import DTYPES

# triton_ and three letters of what kind of loop it is (pointwise, reduction, persistent, template),
# or C++ of a CPU; the number at the end counts the kernels of a graph.
FUSED = re.compile(r"(?:graph_\d+_)?((?:triton_[a-z]{3}|cpp_fused)_\w*?)(?:_\d+)?\Z")
GRAPH = re.compile(r"## Call CompiledFxGraph (\w+)")
FRAME = re.compile(r"Torch-Compiled Region: (\S+)")
FUNCTION = re.compile(r"CompiledFunction(?:Backward)?\Z")
REGION_KIND = "compiled_graph"
CUDA_GRAPH = "cuda_graph"
"""Kernels that are launched as one."""


def is_graph(event: Event) -> bool:
    """Whether a span is a call of a graph that a compiler made."""
    return GRAPH.match(event.name) is not None


def is_fused(name: str) -> bool:
    """Whether an operator or a kernel is of those that a compiler made, or a graph of such."""
    return name == CUDA_GRAPH or FUSED.match(name) is not None or GRAPH.match(name) is not None


def is_region(event: Event) -> bool:
    """Whether a span stands around what a compiler made, and is no operator itself."""
    return any(pattern.match(event.name) for pattern in (GRAPH, FRAME, FUNCTION))


def region_of(event: Event) -> str | None:
    """The compiled region in which a span lies: its graph (a part of the hash), else its frame;
    None outside of all.
    """
    region = None
    for span in [event, *event.above()]:
        if graph := GRAPH.match(span.name):
            return graph[1][:8]
        if frame := FRAME.match(span.name):
            return frame[1]
        if FUNCTION.match(span.name):
            region = "function"
    return region


def kernel_row(name: str, phase: str) -> Fields:
    """The parts of the key of a fused kernel's row where only its name is known."""
    fused = FUSED.match(name)
    kind = fused[1] if fused else name
    code = "bwd" if phase == "backward" else "fwd"
    return {"op": kind, "attrs": {}, "in": [], "dt": [], "out": [], "phase": code}


def fused_row(event: Event) -> tuple[Fields, list[Fields]]:
    """The parts of the key of a fused kernel's row (its name without number, its tensors), and its
    output as a graph tells it.
    """
    tensors = [
        (argument.shape, DTYPES[argument.type])
        for argument in event.arguments()
        if argument.type in DTYPES and is_shape(argument.shape)
    ]
    graph = GRAPH.match(event.name)
    read, written = tensors[:-1], tensors[-1:]
    outputs = [
        {"bytes": prod(shape) * dtype.itemsize, "shape": shape, "dtype": _name(dtype)}
        for shape, dtype in written
    ]
    row = kernel_row(event.name, event.phase) | {
        "in": [shape for shape, _ in read],
        "dt": [_name(dtype) for _, dtype in read],
        "out": [shape for shape, _ in written],
    }
    if graph:
        row |= {"op": REGION_KIND, "attrs": {"graph": graph[1][:16]}}
    return row, outputs


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
