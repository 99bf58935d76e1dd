"""Expert placements, as people placed the papers' models by hand: whole layers on devices, nothing
is split.

Plans, of which the best is the answer:

- The whole model on one device, where it fits: the expert of Inception-V3 and ResNet in HDP's
  tables (ICLR 2018).
- Contiguous runs of layers of about equal time, in program order.
- Recurrent networks layer by layer: layer i of each stack on a device of its own, the stack's
  embedding with the first layer, later layers (projection, softmax) with the last (Sutskever et
  al., 2014; Wu et al., GNMT, 2016; the expert of ColocRL, ICML 2017, and Placeto, NeurIPS 2019).
- Recurrent networks stack by stack: the layers of the encoder on the first devices, the decoder's
  on the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from ..nouns.graph import Graph
from ..nouns.semantics import is_linear, op_class
from ..nouns.structure import mates, order_of, readers_of
from ..nouns.taskgraph import Ints
from .soap.layers import Layer, Layers
from .space import alone
from .trial import Trial

_NUMBERED = re.compile(r"(.*?)layer_([0-9]{1,4})(?:/|\Z)")


def expert(trial: Trial) -> None:
    """The best plan of people: all on one device, contiguous runs of equal time, recurrent layers
    one per device or stack by stack.

    Backward ops and updates are with their forward op, parameters where they are read. ``details``
    has the step of each plan (``plans_s``, None: impossible), and the layers' devices in the best.
    """
    problem, best = trial.problem, trial.best
    layers = Layers(problem.whole.graph, problem.whole.cluster)
    singles = alone(problem.oracle, problem.choices)
    placements = [("one device", placement) for placement in singles]
    for name, numbers in _plans(layers, problem.whole.prepared.duration).items():
        placements.append((name, _by_group(trial, layers, numbers)))
    seconds: dict[str, list[float]] = {}
    for name, placement in placements:
        seconds.setdefault(name, []).append(trial.score(placement).seconds)
    best.details["plans_s"] = {
        name: None if min(steps) == inf else min(steps) for name, steps in seconds.items()
    }
    if best.placement is not None:
        devices, where = problem.whole.cluster.devices, best.placement[0]
        best.details["layers"] = {
            layer.name: devices[where[layer.ops[0]]].name for layer in layers.all
        }


def _plans(layers: Layers, duration: Ints) -> dict[str, list[int]]:
    """For each plan, the device of each layer as an index into ``layers.devices``."""
    plans = {"equal time": _balanced(layers, duration)}
    depth = _stacks(layers)
    if depth:
        plans["by layer"] = _stacked(layers, depth, False)
        plans["by stack"] = _stacked(layers, depth, True)
    return plans


def _by_group(trial: Trial, layers: Layers, numbers: Sequence[int]) -> Ints:
    """The device of every group of the problem; where a group may not go to its planned device, the
    first device that it may go to.
    """
    problem = trial.problem
    of_op = _by_op(layers, [layers.devices[number] for number in numbers])
    wanted = [of_op[members[0]] for members in problem.oracle.groups]
    pairs = zip(wanted, problem.choices, strict=True)
    return np.array([d if d in allowed else allowed[0] for d, allowed in pairs], np.int64)


def _stacks(layers: Layers) -> dict[str, int]:
    """The number of layers in each stack of a recurrent network; empty for another network."""
    depth: dict[str, int] = {}
    for layer in layers.all:
        stack, number = _stack_and_level(layer)
        if _is_recurrent(layers, layer):
            depth[stack] = max(depth.get(stack, 0), number + 1)
    return depth


def _is_recurrent(layers: Layers, layer: Layer) -> bool:
    # A numbered layer of several ops is a recurrent layer that was captured step by step.
    unrolled = _stack_and_level(layer)[1] >= 0 and len(layer.ops) > 1
    return unrolled or op_class(layers.graph.ops[layer.ops[0]].kind) == "recurrent"


def _stacked(layers: Layers, depth: Mapping[str, int], one_after_other: bool) -> list[int]:
    """The device of each layer as an index into ``layers.devices``: every stack over all devices,
    or with ``one_after_other`` all stacks in sequence.

    A layer of a stack without a number, like its embedding, goes with the first layer of the stack;
    layers after all stacks are on the last device.
    """
    count, total = len(layers.devices), sum(depth.values())
    starts = np.cumsum([0, *depth.values()]).tolist() if one_after_other else [0] * (len(depth) + 1)
    first = dict(zip(depth, starts, strict=False))
    last = max(at for at, layer in enumerate(layers.all) if _is_recurrent(layers, layer))
    numbers = []
    for at, layer in enumerate(layers.all):
        stack, number = _stack_and_level(layer)
        prefixes = (prefix for prefix in depth if layer.name.startswith(prefix))
        home = stack if stack in depth else next(prefixes, None)
        if at > last:
            numbers.append(count - 1)
        elif home is None:
            numbers.append(0)
        else:
            level = min(max(number, 0), depth[home] - 1) if stack == home else 0
            shared = total if one_after_other else depth[home]  # layers that share the devices
            numbers.append((first[home] + level) * count // shared)
    return numbers


def _stack_and_level(layer: Layer) -> tuple[str, int]:
    """The stack of a layer and its number there, ("encoder/", 1) for "encoder/layer_1/lstm_cell";
    -1: no number.
    """
    match = _NUMBERED.match(layer.name)
    return (match[1], int(match[2])) if match else (layer.name, -1)


def _balanced(layers: Layers, duration: Ints) -> list[int]:
    """Contiguous runs of layers of about equal time."""
    column = duration[:, layers.devices[0]].clip(0)
    times = [max(int(column[list(layer.members)].sum()), 1) for layer in layers.all]
    count, total, before, numbers = len(layers.devices), sum(times), 0, []
    for time in times:
        # A layer goes where its middle lies: (before + time / 2) / total of all devices.
        numbers.append(min(count * (2 * before + time) // (2 * total), count - 1))
        before += time
    return numbers


def _by_op(layers: Layers, device: Sequence[int]) -> list[int]:
    """The device of every op: of its layer, of its forward op, or of an op that reads it."""
    graph, order = layers.graph, order_of(layers.graph)
    where = [device[layer] if layer >= 0 else -1 for layer in layers.layer_of]
    for i in reversed(order):
        for producer, _ in graph.reads[i]:
            if where[producer] < 0 and graph.ops[i].phase == "forward":
                where[producer] = where[i]
    for i, mate in enumerate(mates(graph)):
        if where[i] < 0 and mate >= 0:
            where[i] = where[mate]
    where = [d if d >= 0 else device[0] for d in where]
    _place_sums(graph, order, where)
    return where


def _place_sums(graph: Graph, order: Sequence[int], where: list[int]) -> None:
    """Put each op that only adds up gradients of several ops where the fewest tensors cross.

    On a tie, on the device of a reader.
    """
    readers = readers_of(graph)
    for i in order:
        producers = {producer for producer, _ in graph.reads[i]}
        if len(producers) < 2 or not is_linear(graph.ops[i]):
            continue
        if all(graph.ops[j].phase == "backward" for j in (i, *producers)):
            near = {where[reader] for reader in readers[i]}
            # Each operand is a tensor of its own, but the sum goes once to a device.
            tensors = Counter(where[producer] for producer in producers) + Counter(near)
            where[i] = max(tensors, key=lambda d: (tensors[d], d in near, -d))
