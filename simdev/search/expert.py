"""Expert placements, as people placed the papers' models by hand: whole layers on devices, nothing is split.

- Recurrent networks: layer i of each stack on a device of its own, its embedding with the first layer, what comes after
  the stacks (attention, projection, softmax) with the last (Sutskever et al., 2014; Wu et al., GNMT, 2016; the expert
  of ColocRL, ICML 2017, and Placeto, NeurIPS 2019).
- All others: contiguous runs of layers of about equal time, in program order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..semantics import op_class
from ..taskgraph import Ints
from .soap.layers import Layer, Layers
from .trial import Trial

_NUMBERED = re.compile(r"(.*?)layer_([0-9]{1,4})(?:/|\Z)")


def expert(trial: Trial) -> None:
    """The expert's placement; backward ops and updates are with their forward op, parameters where they are read."""
    oracle = trial.asked
    layers = Layers(oracle.graph, oracle.cluster)
    stage = _stacked(layers) or _balanced(layers, oracle.prepared.duration)
    device = [layers.devices[one] for one in stage]
    column = _by_op(layers, device)
    trial.details["layers"] = {
        layer.name: oracle.cluster.devices[one].name for layer, one in zip(layers.all, device, strict=True)
    }
    wanted = [column[members[0]] for members in trial.oracle.groups]
    pairs = zip(wanted, trial.choices, strict=True)
    trial.score(np.array([one if one in allowed else allowed[0] for one, allowed in pairs], np.int64))


def _stacked(layers: Layers) -> list[int]:
    """The number of the device of each layer of a recurrent network; nothing for another."""
    places = [_place(layer) for layer in layers.all]
    recurrent = [op_class(layers.graph.ops[layer.ops[0]].kind) == "recurrent" for layer in layers.all]
    depth: dict[str, int] = {}
    for (stack, number), own in zip(places, recurrent, strict=True):
        if own:
            depth[stack] = max(depth.get(stack, 0), number + 1)
    if not depth:
        return []
    count, last = len(layers.devices), max(number for number, own in enumerate(recurrent) if own)
    found = [count - 1 if number > last else 0 for number in range(len(places))]
    for at, (stack, number) in enumerate(places):
        if number >= 0 and stack in depth:
            found[at] = min(number, depth[stack] - 1) * count // depth[stack]
    return found


def _place(layer: Layer) -> tuple[str, int]:
    """The stack of a layer and its number there, ("encoder/", 1) of "encoder/layer_1/lstm_cell"; -1: it has none."""
    match = _NUMBERED.match(layer.name)
    return (match[1], int(match[2])) if match else (layer.name, -1)


def _balanced(layers: Layers, duration: Ints) -> list[int]:
    """Contiguous runs of layers of about equal time."""
    times = [max(int(duration[list(layer.members), layers.devices[0]].clip(0).sum()), 1) for layer in layers.all]
    before, total, found = 0, sum(times), []
    for time in times:
        found.append(min(len(layers.devices) * (2 * before + time) // (2 * total), len(layers.devices) - 1))
        before += time
    return found


def _by_op(layers: Layers, device: Sequence[int]) -> list[int]:
    """The device of every op: that of its layer, else of the first op that reads it, else of what it reads."""
    graph = layers.graph
    found = [device[layer] if layer >= 0 else -1 for layer in layers.layer_of]
    for _ in range(2):
        for i in reversed(range(len(graph.ops))):
            for producer, _ in graph.reads[i]:
                if found[producer] < 0 and graph.ops[i].phase != "update":
                    found[producer] = found[i]
    for i in range(len(graph.ops)):
        if found[i] < 0:
            near = [found[producer] for producer, _ in graph.reads[i] if found[producer] >= 0]
            found[i] = near[0] if near else device[0]
    return found
