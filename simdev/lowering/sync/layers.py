"""A data-parallel step from a list of layers alone: times and parameters, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import InputError
from ...graph import Graph, Op, Tensor
from ...units import Number
from ..collective import ALL_REDUCE

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
    ops, placement = list[Op](), dict[str, str]()
    for r, worker in enumerate(workers):
        own = list(_worker(layers, r, len(workers) > 1))
        placement |= dict.fromkeys((op.name for op in own), worker)
        ops += own
    for k, layer in enumerate(layers if len(workers) > 1 else ()):
        inputs = tuple(f"backward {k}.{r}:1" for r in range(len(workers)))
        attrs = {"ranks": list(workers)}
        ops.append(
            Op(
                f"sum {k}",
                ALL_REDUCE,
                "backward",
                inputs,
                outputs=(_tensor(layer),) * len(workers),
                attrs=attrs,
            )
        )
        placement[f"sum {k}"] = workers[0]
    return Graph("layers", tuple(ops)), placement


def _tensor(layer: Layer) -> Tensor:
    return Tensor(FLOAT * layer.parameters, (layer.parameters,), "float32")


def _worker(layers: Sequence[Layer], r: int, summed: bool) -> Iterator[Op]:
    """The ops of one worker in program order."""
    nothing = Tensor(0)
    yield Op(f"batch.{r}", "input", outputs=(nothing,), time=0)
    for k, layer in enumerate(layers):
        size = FLOAT * layer.parameters
        yield Op(
            f"weight {k}.{r}", "parameter", outputs=(_tensor(layer),), param_bytes=size, time=0
        )
        before = f"forward {k - 1}.{r}" if k else f"batch.{r}"
        yield Op(
            f"forward {k}.{r}",
            inputs=(before, f"weight {k}.{r}"),
            outputs=(nothing,),
            time=layer.forward,
        )
    for k in range(len(layers) - 1, -1, -1):
        before = f"backward {k + 1}.{r}" if k < len(layers) - 1 else f"forward {k}.{r}"
        outputs = (nothing, _tensor(layers[k]))
        yield Op(
            f"backward {k}.{r}",
            phase="backward",
            inputs=(before,),
            outputs=outputs,
            time=layers[k].backward,
        )
    for k in range(len(layers)):
        gradient = f"sum {k}:{r}" if summed else f"backward {k}.{r}:1"
        yield Op(f"update {k}.{r}", phase="update", inputs=(f"weight {k}.{r}", gradient), time=0)
