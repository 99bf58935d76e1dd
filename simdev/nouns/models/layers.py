"""A data-parallel step from a list of layers alone: times and parameters, without a model. It
serves questions about synchronisation from such a list (docs/reference/sync.md); nothing else in
the package calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...ground.errors import InputError
from ...ground.units import Number
from ..graph import Graph, Op, Tensor

FLOAT = 4  # bytes of a parameter


@dataclass(frozen=True, slots=True)
class Layer:
    """Seconds (or texts with units) of the forward and of the backward on one worker, and float32
    parameters.
    """

    forward: Number
    backward: Number
    parameters: int


def layer_graph(layers: Sequence[Layer], workers: Sequence[str]) -> tuple[Graph, dict[str, str]]:
    """The step of a chain of layers on these devices, and its placement.

    Ops of worker r are named ``forward 0.r``, ``backward 0.r``, ``update 0.r``; the all-reduce
    ``sum 0``, which a synchronisation policy replaces, adds up the gradients of layer 0.
    Activations have no size. Raises InputError.
    """
    if not layers or not workers or len(set(workers)) < len(workers):
        raise InputError("layers: needs one layer and one worker at least, each worker once")
    ops, placement, several = list[Op](), dict[str, str](), len(workers) > 1
    for r, worker in enumerate(workers):
        step = list(_worker(layers, r, several))
        placement |= dict.fromkeys((op.name for op in step), worker)
        ops += step
    for k, layer in enumerate(layers if several else ()):
        name, outputs = f"sum {k}", (_tensor(layer),) * len(workers)
        inputs = tuple(f"backward {k}.{r}:1" for r in range(len(workers)))
        attrs = {"ranks": list(workers)}
        ops.append(Op(name, "all_reduce", "backward", inputs, outputs=outputs, attrs=attrs))
        placement[name] = workers[0]
    return Graph("layers", tuple(ops)), placement


def _tensor(layer: Layer) -> Tensor:
    return Tensor(FLOAT * layer.parameters, (layer.parameters,), "float32")


def _worker(layers: Sequence[Layer], r: int, summed: bool) -> Iterator[Op]:
    """The ops of one worker in program order."""
    before, nothing = f"batch.{r}", Tensor(0)
    yield Op(before, "input", outputs=(nothing,), time=0)
    for k, layer in enumerate(layers):
        weight, size = f"weight {k}.{r}", FLOAT * layer.parameters
        yield Op(weight, "parameter", outputs=(_tensor(layer),), param_bytes=size, time=0)
        inputs, before = (before, weight), f"forward {k}.{r}"
        yield Op(before, inputs=inputs, outputs=(nothing,), time=layer.forward)
    for k, layer in reversed(list(enumerate(layers))):
        handed, before, made = (before,), f"backward {k}.{r}", (nothing, _tensor(layer))
        yield Op(before, phase="backward", inputs=handed, outputs=made, time=layer.backward)
    for k in range(len(layers)):
        gradient = f"sum {k}:{r}" if summed else f"backward {k}.{r}:1"
        yield Op(f"update {k}.{r}", phase="update", inputs=(f"weight {k}.{r}", gradient), time=0)
