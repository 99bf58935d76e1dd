"""Expert placements, as people placed the papers' models by hand: whole layers on devices, nothing
is split.

What they did, of which the best counts:

- The whole model on one device, where it fits: the expert of Inception-V3 and ResNet in HDP's
  tables (ICLR 2018).
- Contiguous runs of layers of about equal time, in program order.
- Recurrent networks layer by layer: layer i of each stack on a device of its own, its embedding
  with the first layer, what comes after the stacks (projection, softmax) with the last (Sutskever
  et al., 2014; Wu et al., GNMT, 2016; the expert of ColocRL, ICML 2017, and Placeto, NeurIPS 2019).
- Recurrent networks stack by stack: the layers of the encoder on the first devices, the decoder's
  on the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from ..graph import Graph
from ..semantics import is_linear, op_class
from ..structure import mates, order_of, readers_of
from ..taskgraph import Ints
from .soap.layers import Layer, Layers
from .trial import Trial, alone

_NUMBERED = re.compile(r"(.*?)layer_([0-9]{1,4})(?:/|\Z)")


def expert(trial: Trial) -> None:
    """The best of the experts' placements.

    Backward ops and updates are with their forward op, parameters where they are read. ``details``
    tells the step of each (``plans_s``, None: cannot be), and where the layers are in the best.
    """
    oracle = trial.asked
    layers = Layers(oracle.graph, oracle.cluster)
    placements = [("one device", one) for one in alone(trial)]
    for name, stage in _plans(layers, oracle.prepared.duration).items():
        placements.append((name, _grouped(trial, layers, stage)))
    seconds = [(name, trial.score(one).seconds) for name, one in placements]
    trial.details["plans_s"] = {
        name: min((s for other, s in seconds if other == name and s < inf), default=None)
        for name, _ in seconds
    }
    if trial.best is not None:
        where = trial.best[0]
        trial.details["layers"] = {
            one.name: oracle.cluster.devices[where[one.ops[0]]].name for one in layers.all
        }


def _plans(layers: Layers, duration: Ints) -> dict[str, list[int]]:
    """The number of the device of each layer, by plan."""
    found = {"equal time": _balanced(layers, duration)}
    depth = _stacks(layers)
    if depth:
        found |= {
            "by layer": _stacked(layers, depth, False),
            "by stack": _stacked(layers, depth, True),
        }
    return found


def _grouped(trial: Trial, layers: Layers, stage: Sequence[int]) -> Ints:
    """The device of every group of the trial; where it may not stand there, the first that it
    may.
    """
    column = _by_op(layers, [layers.devices[one] for one in stage])
    wanted = [column[members[0]] for members in trial.oracle.groups]
    pairs = zip(wanted, trial.choices, strict=True)
    return np.array([one if one in allowed else allowed[0] for one, allowed in pairs], np.int64)


def _stacks(layers: Layers) -> dict[str, int]:
    """How many layers each stack of a recurrent network has; nothing for another network.

    A numbered layer is recurrent too where its ops were captured step by step, no op being a cell.
    """
    depth: dict[str, int] = {}
    for layer in layers.all:
        stack, number = _place(layer)
        if _is_recurrent(layers, layer):
            depth[stack] = max(depth.get(stack, 0), number + 1)
    return depth


def _is_recurrent(layers: Layers, layer: Layer) -> bool:
    unrolled = _place(layer)[1] >= 0 and len(layer.ops) > 1
    return unrolled or op_class(layers.graph.ops[layer.ops[0]].kind) == "recurrent"


def _stacked(layers: Layers, depth: Mapping[str, int], in_turn: bool) -> list[int]:
    """The number of the device of each layer: every stack over all devices, or one after the other.

    What is no layer of a stack goes with the first of its stack, what comes after all of them on
    the last device.
    """
    count, total, begin = len(layers.devices), sum(depth.values()), 0
    first: dict[str, int] = {}
    for stack, height in depth.items():
        first[stack] = begin
        begin += height if in_turn else 0
    recurrent = [at for at, layer in enumerate(layers.all) if _is_recurrent(layers, layer)]
    found = []
    for at, layer in enumerate(layers.all):
        stack, number = _place(layer)
        home = (
            stack
            if stack in depth
            else next((one for one in depth if layer.name.startswith(one)), None)
        )
        if at > recurrent[-1]:
            found.append(count - 1)
        elif home is None:
            found.append(0)
        else:
            level = min(max(number, 0), depth[home] - 1) if stack == home else 0
            found.append((first[home] + level) * count // (total if in_turn else depth[home]))
    return found


def _place(layer: Layer) -> tuple[str, int]:
    """The stack of a layer and its number there, ("encoder/", 1) of "encoder/layer_1/lstm_cell";
    -1: it has none.
    """
    match = _NUMBERED.match(layer.name)
    return (match[1], int(match[2])) if match else (layer.name, -1)


def _balanced(layers: Layers, duration: Ints) -> list[int]:
    """Contiguous runs of layers of about equal time."""
    times = [
        max(int(duration[list(layer.members), layers.devices[0]].clip(0).sum()), 1)
        for layer in layers.all
    ]
    before, total, found = 0, sum(times), []
    for time in times:
        found.append(
            min(len(layers.devices) * (2 * before + time) // (2 * total), len(layers.devices) - 1)
        )
        before += time
    return found


def _by_op(layers: Layers, device: Sequence[int]) -> list[int]:
    """The device of every op: that of its layer, of its forward op, or of an op that reads it."""
    graph, order = layers.graph, order_of(layers.graph)
    found = [device[layer] if layer >= 0 else -1 for layer in layers.layer_of]
    forward = [op.phase == "forward" for op in graph.ops]
    for i in reversed(order):
        for producer, _ in graph.reads[i]:
            if found[producer] < 0 and forward[i]:
                found[producer] = found[i]
    for i, mate in enumerate(mates(graph)):
        if found[i] < 0 and mate >= 0:
            found[i] = found[mate]
    found = [one if one >= 0 else device[0] for one in found]
    _place_sums(graph, order, found)
    return found


def _place_sums(graph: Graph, order: Sequence[int], found: list[int]) -> None:
    """Put what only adds up gradients, of no one forward op, where the fewest tensors cross.

    Where several devices are as good, on that of a reader.
    """
    readers = readers_of(graph)
    for i in order:
        made = {producer for producer, _ in graph.reads[i]}
        if len(made) < 2 or not is_linear(graph.ops[i]):
            continue
        if all(graph.ops[one].phase == "backward" for one in (i, *made)):
            sent = Counter(found[one] for one in made)
            sent.update({found[one] for one in readers[i]})
            near = [found[one] for one in readers[i]]
            found[i] = max(sent, key=lambda one: (sent[one], one in near, -one))
