"""Named short forms of strategies, for the graph of any training step.

- ``data-parallel``: every input is cut along its samples; all else follows.
- ``model-parallel``: layers on devices one after the other, in program order, balanced by their
  cost; a backward op runs where its forward op does. A layer is an op with a weight and what
  follows it without one, at all of its steps ("lstm@3").
- ``owt``, one weird trick (Krizhevsky, arXiv 1404.5997): data parallel, but layers of class gemm
  that have a weight are split along their output channels, forward and backward, so that their
  weights need no synchronisation.
- ``expert``: for recurrent networks layers on different devices of a node, data parallel across
  nodes (Wu et al., GNMT, 2016, as in FlexFlow, MLSys 2019, section 8.2); for all others as ``owt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ...cluster import Cluster
from ...costs import CostModel
from ...errors import InputError
from ...graph import Graph
from ...semantics import Split, op_class, output_axes, traits_of
from ...strategy import NOWHERE, SHORT_FORMS, Configuration, Strategy, placed
from ...strategy.named import named
from ...structure import TensorOf, layers_by_weight, mates, op_splits, weight_of_gradients
from .plan import Question
from .sharding import Sharding


def short_form(
    name: str,
    graph: Graph,
    cluster: Cluster,
    costs: CostModel = CostModel(),
    devices: Sequence[str] = (),
) -> Strategy:
    """The strategy that a short form means on these devices (none: the cluster's workers).

    Raises InputError.
    """
    if name not in SHORT_FORMS:
        raise InputError(f'short: must be one of {", ".join(SHORT_FORMS)}, got "{name}"')
    own = tuple(devices) or tuple(cluster.devices[i].name for i in cluster.workers)
    problems = [
        f'devices: no device that runs ops is named "{one}"'
        for one in own
        if not _runs(cluster, one)
    ]
    problems += [f'devices: "{one}" is listed twice' for i, one in enumerate(own) if one in own[:i]]
    if problems:
        raise InputError(problems)
    if len(own) == 1:
        return Strategy({"*": own[0]})
    match name:
        case "data-parallel":
            return _data_parallel(graph, own)
        case "model-parallel":
            return _model_parallel(graph, cluster, costs, own)
        case "expert" if any(op_class(op.kind) == "recurrent" for op in graph.ops):
            return _recurrent_expert(graph, cluster, costs, own)
        case _:
            return _one_weird_trick(graph, cluster, own)


def expanded(graph: Graph, cluster: Cluster, strategy: Strategy, costs: CostModel) -> Strategy:
    """The strategy with its short form written out; what it tells of an op itself takes
    precedence.
    """
    if strategy.short is None:
        return strategy
    form = short_form(strategy.short, graph, cluster, costs, strategy.devices)
    placed, split = named(graph, strategy.placement), named(graph, strategy.partition)
    own = {
        op.name for op, *keys in zip(graph.ops, placed.keys, split.keys, strict=True) if any(keys)
    }
    placement = (
        {op.name: form.placement["*"] for op in graph.ops}
        if "*" in form.placement
        else form.placement
    )
    return replace(
        strategy,
        placement={key: one for key, one in placement.items() if key not in own}
        | dict(strategy.placement),
        partition={key: one for key, one in form.partition.items() if key not in own}
        | dict(strategy.partition),
        short=None,
        devices=(),
    )


def without_short(graph: Graph, cluster: Cluster, strategy: Strategy, costs: CostModel) -> Strategy:
    """The strategy with its short form written out, to be lowered as that is. Raises InputError.

    Where that only places ops, one of them is configured there instead: then what nothing is said
    of follows, as under the short form.
    """
    written = expanded(graph, cluster, strategy, costs)
    if written.splits or not strategy.splits:
        return written
    devices = zip(graph.ops, placed(graph, cluster, written.placement), strict=True)
    single = ((op.name, d) for op, d in devices if d != NOWHERE and op.name not in graph.groups)
    first = next(single, None)
    if first is None:
        return written
    name, device = first
    placement = {key: where for key, where in written.placement.items() if key != name}
    there = Configuration(devices=(cluster.devices[device].name,))
    return replace(written, placement=placement, partition={**written.partition, name: there})


def _runs(cluster: Cluster, name: str) -> bool:
    return name in cluster.index and cluster.devices[cluster.index[name]].runs_ops


def _data_parallel(graph: Graph, devices: tuple[str, ...]) -> Strategy:
    return Strategy(partition=_inputs(graph, devices))


def _inputs(graph: Graph, devices: tuple[str, ...]) -> dict[str, Configuration]:
    """The inputs cut along their samples. Raises InputError where there are none."""
    found = {
        op.name: Configuration({"sample": len(devices)}, devices)
        for op in graph.ops
        if _has_samples(graph, op.name)
    }
    if not found:
        reason = (
            "the graph has no op of kind input with more than one sample (its first "
            "dimension) to cut"
        )
        raise InputError(f"strategy.short: {reason}")
    return found


def _has_samples(graph: Graph, name: str) -> bool:
    op = graph.ops[graph.index[name]]
    return traits_of(op.kind).leaf == "input" and any(
        (tensor.shape or (1,))[0] > 1 for tensor in op.outputs[:1] if tensor.shape
    )


# Layers on devices


def _model_parallel(
    graph: Graph, cluster: Cluster, costs: CostModel, devices: tuple[str, ...]
) -> Strategy:
    stages = _stages(graph, cluster, costs, devices)
    return Strategy({graph.ops[i].name: devices[stage] for i, stage in sorted(stages.items())})


def _stages(
    graph: Graph, cluster: Cluster, costs: CostModel, devices: tuple[str, ...]
) -> dict[int, int]:
    """The stage of every op that is not there on demand, forward layers cut into contiguous runs of
    equal cost.
    """
    question = Question(graph, cluster, Strategy())
    forward = [
        i for i, op in enumerate(graph.ops) if op.phase == "forward" and i not in question.on_demand
    ]
    layers = layers_by_weight(graph, question.weights, forward)
    weights = [
        sum((_seconds(graph, cluster, costs, i, devices[0]) for i in one), Fraction(0))
        for one in layers
    ]
    if not any(weights):
        weights = [Fraction(1)] * len(weights)
    found, before, total = {}, Fraction(0), sum(weights, Fraction(0))
    for layer, weight in zip(layers, weights, strict=True):
        stage = min(len(devices) - 1, int(len(devices) * (before + weight / 2) / total))
        found.update(dict.fromkeys(layer, stage))
        before += weight
    for i, mate in enumerate(mates(graph)):
        if i not in found and i not in question.on_demand and graph.ops[i].phase != "update":
            found[i] = found.get(mate, 0)
    return found


def _seconds(graph: Graph, cluster: Cluster, costs: CostModel, i: int, device: str) -> Fraction:
    cost = costs.cost(graph, i, cluster.devices[cluster.index[device]].kind)
    return Fraction(0) if cost is None else cost.seconds


def _recurrent_expert(
    graph: Graph, cluster: Cluster, costs: CostModel, devices: tuple[str, ...]
) -> Strategy:
    """Layers over the devices of a node, and the samples over the nodes.

    The split of every op is that of data parallelism over the nodes' first devices; only its
    devices are its layer's.
    """
    nodes: dict[int, list[str]] = {}
    for name in devices:
        nodes.setdefault(cluster.devices[cluster.index[name]].node, []).append(name)
    depth = min(map(len, nodes.values()))
    stages = _stages(graph, cluster, costs, tuple(next(iter(nodes.values()))[:depth]))
    if len(nodes) == 1:
        return Strategy({graph.ops[i].name: devices[stage] for i, stage in sorted(stages.items())})
    samples = Strategy(partition=_inputs(graph, tuple(names[0] for names in nodes.values())))
    sharding = Sharding(Question(graph, cluster, samples))
    found = dict(samples.partition)
    for i, stage in sorted(stages.items()):
        parts = sharding.parts[i]
        axes = {
            axis: len({dict(one.part.box)[axis] for one in parts}) for axis, _ in parts[0].part.box
        }
        if all(one.addend is None for one in parts):
            own = (
                tuple(names[stage] for names in nodes.values())
                if len(parts) > 1
                else (devices[stage],)
            )
            found[graph.ops[i].name] = Configuration(axes, own)
    return Strategy(partition=found)


# One weird trick


def _one_weird_trick(graph: Graph, cluster: Cluster, devices: tuple[str, ...]) -> Strategy:
    question = Question(graph, cluster, Strategy())
    found = _inputs(graph, devices)
    cut = _cut_weights(question, len(devices))
    of_gradient = weight_of_gradients(question.graph, question.weights)
    for i, op in enumerate(graph.ops):
        if traits_of(op.kind).leaf or op.phase == "update" or i in question.on_demand:
            continue
        axis, parts = _weight_axis(question, i, cut, of_gradient), len(devices)
        if axis is not None:
            parts = _most_parts(
                next(split.size for split in _splits(question, i) if split.axis == axis), parts
            )
        else:
            axis = _sample_axis(question, i, parts)
        if axis is not None:
            found[op.name] = Configuration({axis: parts}, devices[:parts])
    return Strategy(partition=found)


def _most_parts(size: int, most: int) -> int:
    """The largest number of equal parts, at most ``most``: OptCNN's layers may have fewer devices
    than there are.
    """
    return next(parts for parts in range(most, 0, -1) if size % parts == 0)


def _cut_weights(question: Question, parts: int) -> dict[TensorOf, int]:
    """The weights of layers of class gemm, each with its dimension of output channels, where that
    can be cut.
    """
    found: dict[TensorOf, int] = {}
    for i, op in enumerate(question.graph.ops):
        if op.phase != "forward" or op_class(op.kind) != "gemm":
            continue
        own = _splits(question, i)
        splits = {
            one.axis for one in own if one.kind == "parameter" and _most_parts(one.size, parts) > 1
        }
        axis = next(
            (name for name in reversed(output_axes_of(question, i)) if name in splits), None
        )
        for operand, tensor in enumerate(question.read[i]):
            dimension = _dimension(question, i, operand, axis)
            if axis is not None and tensor in question.weights.parameters and dimension is not None:
                found[tensor] = dimension
    return found


def output_axes_of(question: Question, i: int) -> tuple[str | None, ...]:
    """The axes of an op's first output; none for an op without semantics."""
    semantics = question.readings[i].semantics
    return output_axes(semantics) if semantics is not None and semantics.outputs else ()


def _splits(question: Question, i: int) -> tuple[Split, ...]:
    return (
        op_splits(question.graph, i, question.weights)
        if question.readings[i].semantics is not None
        else ()
    )


def _dimension(question: Question, i: int, operand: int, axis: str | None) -> int | None:
    """The dimension of an operand that an axis indexes, where it is read as it is stored."""
    op = question.readings[i]
    if op.semantics is None or op.semantics.inputs[operand] != op.stored[operand]:
        return None
    dims = enumerate(op.semantics.reads[operand])
    return next((d for d, (_, names, _) in dims if axis in names), None)


def _weight_axis(
    question: Question,
    i: int,
    cut: Mapping[TensorOf, int],
    of_gradient: Mapping[TensorOf, TensorOf],
) -> str | None:
    """The axis of an op along which it touches only its part of a weight that is cut, or makes it
    of its gradient.
    """
    op, allowed = question.readings[i], {split.axis for split in _splits(question, i)}
    if op.semantics is None:
        return None
    touched = [
        op.semantics.reads[operand][cut[tensor]][1]
        for operand, tensor in enumerate(question.read[i])
        if tensor in cut and op.semantics.inputs[operand] == op.stored[operand]
    ]
    for k in range(len(op.made)):
        weight = of_gradient.get((i, k), (-1, -1))
        shape = question.graph.ops[weight[0]].outputs[weight[1]].shape if weight in cut else None
        # perhaps with dimensions of extent 1 before
        if shape and op.made[k][-len(shape) :] == shape:
            touched.append(op.semantics.makes[k][cut[weight] - len(shape)][1])
    return next((name for names in touched for name in sorted(names) if name in allowed), None)


def _sample_axis(question: Question, i: int, parts: int) -> str | None:
    if not traits_of(question.graph.ops[i].kind).whole_samples:
        return None
    splits = _splits(question, i)
    return next(
        (split.axis for split in splits if split.kind == "sample" and split.size % parts == 0), None
    )
