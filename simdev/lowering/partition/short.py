"""Short forms of strategies, for the graph of any training step, and strategies written out.

``SHORT_MEANINGS`` (``nouns.strategy``) describes them. ``owt`` is from Krizhevsky (arXiv
1404.5997): split weights need no synchronisation; ``expert`` is from Wu et al. (GNMT, 2016), as in
FlexFlow (MLSys 2019, section 8.2). A backward op runs where its forward op does. ``partition`` and
FlexFlow's search call ``expanded``, the oracle's sessions ``without_short`` and ``written_out``. A
new short form is a row of ``SHORT_MEANINGS`` and a case of ``short_form``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from ...costs import CostModel
from ...ground.errors import InputError, refuse
from ...nouns.cluster import Cluster
from ...nouns.graph import Graph
from ...nouns.semantics import Split, op_class, output_axes, traits_of
from ...nouns.strategy import NOWHERE, SHORT_FORMS, Configuration, Strategy, named, placed
from ...nouns.structure import TensorOf, layers_by_weight, mates, op_splits, weight_of_gradients
from .geometry import parts
from .problem import Placed, SplitProblem
from .sharding import sharding_of


def short_form(
    name: str,
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    devices: Sequence[str] = (),
) -> Strategy:
    """The strategy that a short form means on these devices (none: the cluster's workers).

    Raises InputError.
    """
    if name not in SHORT_FORMS:
        raise InputError(f'short: must be one of {", ".join(SHORT_FORMS)}, got "{name}"')
    devices = tuple(devices) or tuple(cluster.devices[i].name for i in cluster.workers)
    runs_ops = {device.name for device in cluster.devices if device.runs_ops}
    problems = [
        f'devices: no device that runs ops is named "{device}"'
        for device in devices
        if device not in runs_ops
    ]
    first = {device: i for i, device in reversed(list(enumerate(devices)))}
    repeated = (device for i, device in enumerate(devices) if first[device] < i)
    problems += [f'devices: "{device}" is listed twice' for device in repeated]
    refuse(problems)
    if len(devices) == 1:
        return Strategy({"*": devices[0]})
    form = _ShortForm(graph, cluster, costs, devices)
    match name:
        case "data-parallel":
            return Strategy(partition=form.inputs(devices))
        case "model-parallel":
            return form.model_parallel()
        case "expert" if any(op_class(op.kind) == "recurrent" for op in graph.ops):
            return form.recurrent_expert()
        case _:
            return form.one_weird_trick()


def expanded(graph: Graph, cluster: Cluster, strategy: Strategy, costs: CostModel) -> Strategy:
    """The strategy with its short form written out; its own entries for an op take precedence."""
    if strategy.short is None:
        return strategy
    form = short_form(strategy.short, graph, cluster, costs, strategy.devices)
    keys = zip(
        graph.ops,
        named(graph, strategy.placement).keys,
        named(graph, strategy.partition, modules=False).keys,
        strict=True,
    )
    itself = {op.name for op, *matching in keys if any(matching)}
    placement = form.placement
    if "*" in placement:
        placement = {op.name: placement["*"] for op in graph.ops}
    others = {name: device for name, device in placement.items() if name not in itself}
    split = {name: config for name, config in form.partition.items() if name not in itself}
    return replace(
        strategy,
        placement={**others, **strategy.placement},
        partition={**split, **strategy.partition},
        short=None,
        devices=(),
    )


def without_short(graph: Graph, cluster: Cluster, strategy: Strategy, costs: CostModel) -> Strategy:
    """The strategy with its short form written out, which lowers to the same step. Raises
    InputError.

    Where the result would only place ops, one op is configured instead of placed: then ops without
    an entry follow others, as under the short form.
    """
    written = expanded(graph, cluster, strategy, costs)
    if written.splits or not strategy.splits:
        return written
    devices = zip(graph.ops, placed(graph, cluster, written.placement), strict=True)
    single = ((op.name, d) for op, d in devices if d != NOWHERE and op.name not in graph.groups)
    for name, device in single:
        placement = {key: where for key, where in written.placement.items() if key != name}
        there = Configuration(devices=(cluster.devices[device].name,))
        partition = {**written.partition, name: there}
        return replace(written, placement=placement, partition=partition)
    return written


def written_out(
    graph: Graph,
    cluster: Cluster,
    strategy: Strategy,
    costs: CostModel,
    phases: Sequence[str] = ("forward",),
) -> Strategy:
    """The strategy with an explicit configuration for each op of these phases that followed others,
    so that a change of a configuration affects one op alone.

    Leaves, updates, and ops that compute with partial results keep following. Raises InputError.
    """
    strategy = expanded(graph, cluster, strategy, costs)
    problem = SplitProblem(graph, cluster, strategy)
    sharding = sharding_of(problem)
    written = {}
    for i, op in enumerate(graph.ops):
        followed = problem.free[i] and i not in problem.on_demand and i not in problem.updates
        # An op may have the name of a group: the entry would hold for the group too.
        shared = op.name in graph.groups
        if followed and op.phase in phases and not traits_of(op.kind).leaf and not shared:
            config = _configuration(problem, i, sharding.parts[i], sharding.divided.get(i))
            if config is not None:
                written[op.name] = config
    return replace(strategy, partition={**strategy.partition, **written})


def _configuration(
    problem: SplitProblem, i: int, placed: Sequence[Placed], time: str | None
) -> Configuration | None:
    """The configuration that gives these parts on these devices; None where there is none."""
    op, degrees, count = problem.readings[i], _degrees(placed), len(placed)
    if prod(degrees.values()) != count or any(each.addend is not None for each in placed):
        return None
    sizes = {axis.name: axis.size for axis in op.semantics.axes} if op.semantics else {}
    # A configuration cuts evenly; a follower may have taken uneven cuts of what it follows.
    uneven = any(sizes[axis] % degree for axis, degree in degrees.items())
    if uneven or parts(op, tuple(degrees.items())) != tuple(each.part for each in placed):
        return None
    devices = list(dict.fromkeys(each.device for each in placed))
    spread = [devices[k * len(devices) // count] for k in range(count)]
    if count % len(devices) or [each.device for each in placed] != spread:
        return None
    names = tuple(problem.cluster.devices[device].name for device in devices)
    return Configuration(degrees, names, time)


def _degrees(placed: Sequence[Placed]) -> dict[str, int]:
    """The number of intervals into which each axis is cut."""
    boxes = [dict(each.part.box) for each in placed]
    return {axis: len({box[axis] for box in boxes}) for axis in boxes[0]}


class _ShortForm:
    """The strategies that short forms mean for a graph on devices of a cluster."""

    def __init__(
        self, graph: Graph, cluster: Cluster, costs: CostModel, devices: tuple[str, ...]
    ) -> None:
        self.graph, self.cluster, self.costs, self.devices = graph, cluster, costs, devices
        self.problem = SplitProblem(graph, cluster, Strategy())

    def inputs(self, devices: tuple[str, ...]) -> dict[str, Configuration]:
        """The inputs cut along their samples. Raises InputError where there are none."""
        cut = Configuration({"sample": len(devices)}, devices)
        configs = {}
        for op in self.graph.ops:
            shape = (op.outputs[0].shape or ()) if op.outputs else ()
            if traits_of(op.kind).leaf == "input" and shape[:1] > (1,):
                configs[op.name] = cut
        if not configs:
            raise InputError(
                "strategy.short: the graph has no op of kind input with more than one sample (its "
                "first dimension) to cut"
            )
        return configs

    # Layers on devices

    def model_parallel(self) -> Strategy:
        """Layers on devices one after the other."""
        stages = sorted(self._stages(self.devices).items())
        return Strategy({self.graph.ops[i].name: self.devices[stage] for i, stage in stages})

    def _stages(self, devices: Sequence[str]) -> dict[int, int]:
        """The stage of every op that is not on demand; forward layers are cut into contiguous runs
        of about equal cost.
        """
        graph, on_demand = self.graph, self.problem.on_demand
        ops = enumerate(graph.ops)
        forward = [i for i, op in ops if op.phase == "forward" and i not in on_demand]
        layers = layers_by_weight(graph, self.problem.weights, forward)
        kind = self.cluster.devices[self.cluster.index[devices[0]]].kind
        lengths = [sum((self._seconds(i, kind) for i in layer), Fraction(0)) for layer in layers]
        if not any(lengths):
            lengths = [Fraction(1)] * len(lengths)
        stage_of, before, total = dict[int, int](), Fraction(0), sum(lengths, Fraction(0))
        for layer, length in zip(layers, lengths, strict=True):
            # A layer goes to the stage of its middle: by its start, stages would get too long.
            stage = min(len(devices) - 1, int(len(devices) * (before + length / 2) / total))
            stage_of |= dict.fromkeys(layer, stage)
            before += length
        for i, mate in enumerate(mates(graph)):
            if i not in stage_of and i not in on_demand and graph.ops[i].phase != "update":
                stage_of[i] = stage_of.get(mate, 0)
        return stage_of

    def _seconds(self, i: int, kind: str) -> Fraction:
        cost = self.costs.cost(self.graph, i, kind)
        return Fraction(0) if cost is None else cost.seconds

    def recurrent_expert(self) -> Strategy:
        """Layers over the devices of a node, and the samples over the nodes.

        The split of every op is that of data parallelism over the nodes' first devices; only its
        devices are its layer's.
        """
        cluster, by_node = self.cluster, dict[int, list[str]]()
        for name in self.devices:
            by_node.setdefault(cluster.devices[cluster.index[name]].node, []).append(name)
        nodes = list(by_node.values())
        if len(nodes) == 1:
            return self.model_parallel()
        stages = self._stages(nodes[0][: min(map(len, nodes))])
        configs = self.inputs(tuple(names[0] for names in nodes))
        samples = SplitProblem(self.graph, cluster, Strategy(partition=configs))
        sharding = sharding_of(samples)
        for i, stage in sorted(stages.items()):
            parts = sharding.parts[i]
            if all(placed.addend is None for placed in parts):
                several = tuple(names[stage] for names in nodes)
                there = several if len(parts) > 1 else (self.devices[stage],)
                configs[self.graph.ops[i].name] = Configuration(_degrees(parts), there)
        return Strategy(partition=configs)

    # One weird trick

    def one_weird_trick(self) -> Strategy:
        """Layers of class gemm cut along their output channels, all others along the samples."""
        configs, most = self.inputs(self.devices), len(self.devices)
        cut, problem = self._cut_weights(), self.problem
        of_gradient = weight_of_gradients(self.graph, problem.weights)
        for i, op in enumerate(self.graph.ops):
            if traits_of(op.kind).leaf or op.phase == "update" or i in problem.on_demand:
                continue
            splits = {split.axis: split for split in self._splits(i)}
            touched, count = self._touched_axes(i, cut, of_gradient), most
            axis = next((a for names in touched for a in sorted(names) if a in splits), None)
            if axis is not None:
                count = _most_parts(splits[axis].size, most)
            elif traits_of(op.kind).whole_samples:
                samples = (s for s in splits.values() if s.kind == "sample" and not s.size % most)
                axis = next((split.axis for split in samples), None)
            if axis is not None:
                configs[op.name] = Configuration({axis: count}, self.devices[:count])
        return Strategy(partition=configs)

    def _splits(self, i: int) -> tuple[Split, ...]:
        if self.problem.readings[i].semantics is None:
            return ()
        return op_splits(self.graph, i, self.problem.weights)

    def _cut_weights(self) -> dict[TensorOf, int]:
        """The weights of layers of class gemm whose output channels can be cut, each with this
        dimension.
        """
        dimension_of: dict[TensorOf, int] = {}
        for i, op in enumerate(self.graph.ops):
            semantics = self.problem.readings[i].semantics
            gemm = op.phase == "forward" and op_class(op.kind) == "gemm"
            if not gemm or semantics is None or not semantics.outputs:
                continue
            splits = {
                split.axis
                for split in self._splits(i)
                if split.kind == "parameter" and _most_parts(split.size, len(self.devices)) > 1
            }
            axis = next((name for name in reversed(output_axes(semantics)) if name in splits), None)
            for operand, tensor in enumerate(self.problem.read[i]):
                if tensor in self.problem.weights.parameters and self._as_stored(i, operand):
                    indexed = [axis in names for _, names, _ in semantics.reads[operand]]
                    if True in indexed:
                        dimension_of[tensor] = indexed.index(True)
        return dimension_of

    def _as_stored(self, i: int, operand: int) -> bool:
        """Whether an operand has the shape of its stored tensor, and so the same dimensions."""
        op = self.problem.readings[i]
        return op.semantics is not None and op.semantics.inputs[operand] == op.stored[operand]

    def _touched_axes(
        self, i: int, cut: Mapping[TensorOf, int], of_gradient: Mapping[TensorOf, TensorOf]
    ) -> Iterator[frozenset[str]]:
        """The axes that index the cut dimension of each weight or gradient that an op touches: a
        part along these axes touches only its part of the weight.
        """
        op = self.problem.readings[i]
        if op.semantics is None:
            return
        for operand, tensor in enumerate(self.problem.read[i]):
            if tensor in cut and self._as_stored(i, operand):
                yield op.semantics.reads[operand][cut[tensor]][1]
        for k, made in enumerate(op.made):
            weight = of_gradient.get((i, k), (-1, -1))
            if weight in cut:
                shape = self.graph.ops[weight[0]].outputs[weight[1]].shape
                # The gradient may have leading dimensions of extent 1.
                if shape and made[-len(shape) :] == shape:
                    yield op.semantics.makes[k][cut[weight] - len(shape)][1]


def _most_parts(size: int, most: int) -> int:
    """The largest number of equal parts, at most ``most``: OptCNN's layers may have fewer devices
    than there are.
    """
    return next(parts for parts in range(most, 0, -1) if size % parts == 0)
