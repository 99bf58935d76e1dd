"""From configurations of layers to a strategy: the backward ops of a layer run as its forward ops
do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ...semantics import traits_of
from ...strategy import Configuration, Strategy
from .layers import Layer, Layers
from .spread import Spread, spreads

PLAIN = Strategy()


def strategy_of(
    layers: Layers, configurations: Sequence[Configuration], like: Strategy = PLAIN
) -> Strategy:
    """The strategy of one configuration a layer; order, synchronisation and collectives are those
    of ``like``.
    """
    alone = Configuration(devices=(layers.cluster.devices[layers.devices[0]].name,))
    partition = {layers.graph.ops[i].name: alone for i in layers.adrift}
    for layer, one in zip(layers.all, configurations, strict=True):
        partition |= entries(layers, layer, one)
    return Strategy(
        order=like.order, partition=partition, sync=like.sync, collectives=like.collectives
    )


def entries(layers: Layers, layer: Layer, configuration: Configuration) -> dict[str, Configuration]:
    """What a configuration of a layer says of its ops.

    Backward ops of products, convolutions and embeddings would follow the gradient that comes to
    them, cut as the next layer makes it, and that of the loss has none to follow; here they are cut
    as their own layer is. All other ops follow by themselves.
    """
    graph = layers.graph
    found = {graph.ops[i].name: configuration for i in layer.ops}
    own = [i for i in layer.backward if _is_led(layers, i)]
    if own:
        order = [one.axis for one in layer.axes]
        degrees = tuple(
            (axis, configuration.split[axis])
            for axis in order
            if configuration.split.get(axis, 1) > 1
        )
        plan, _ = spreads(layers, layer, degrees)
        for i in own:
            one = _entry(layers, i, plan[i], configuration.devices)
            if one is not None:
                found[graph.ops[i].name] = one
    for i in layer.backward:
        if not layers.question.read[i]:  # it has nothing to follow
            found.setdefault(graph.ops[i].name, Configuration(devices=configuration.devices[:1]))
    return found


def changes(
    layers: Layers, layer: Layer, configuration: Configuration
) -> dict[str, Configuration | None]:
    """What a session is told: backward ops that the new configuration does not name lose theirs."""
    own: dict[str, Configuration | None] = dict.fromkeys(
        layers.graph.ops[i].name for i in layer.backward
    )
    return own | entries(layers, layer, configuration)


def _is_led(layers: Layers, i: int) -> bool:
    """Whether a backward op is told how to lie."""
    op, question = layers.graph.ops[i], layers.question
    if traits_of(op.kind).weighted:
        return True
    shapes = [
        question.readings[i].stored[operand]
        for operand, t in enumerate(question.read[i])
        if t in question.touched[i]
    ]
    return question.goes_back[i] and bool(op.outputs) and op.outputs[0].shape not in shapes


def _entry(layers: Layers, i: int, spread: Spread, devices: Sequence[str]) -> Configuration | None:
    """A configuration of an op that lies so; None where it cannot be told: too few parts, or uneven
    ones.
    """
    semantics = layers.question.readings[i].semantics
    degrees: Mapping[str, int] = {axis: degree for axis, degree, _ in spread}
    if semantics is None or prod(degrees.values()) != len(devices):
        return None
    places = [0]
    for axis in semantics.axes:
        degree, stride = next(((n, s) for name, n, s in spread if name == axis.name), (1, 0))
        if axis.size % degree:
            return None
        places = [place + at * stride for place in places for at in range(degree)]
    return Configuration(dict(degrees), tuple(devices[place] for place in places))
