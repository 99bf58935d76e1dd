"""FlexFlow's strategy files (its text format since 2021), read into configurations.

Words parted by white space: how many ops; then for each its name, the type of device (0 GPU, 1
CPU), how many dimensions, the degree of each (innermost first, the sample last), how many device
ids, the ids. No ids: the first devices. An op that the file leaves out is data parallel over all
devices, as in FlexFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..ground.errors import InputError, refuse
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.semantics import op_semantics, output_axes, traits_of
from ..nouns.strategy import Configuration, Strategy
from ..nouns.structure import op_splits, weights_of
from .reading import PathLike, label, read_text

SUFFIXES = (".txt", ".strategy")
"""Files that end so are read as FlexFlow's; all others are JSON."""
GPU, CPU = 0, 1


def read_flexflow_strategy(path: PathLike, graph: Graph, cluster: Cluster) -> Strategy:
    """The strategy of a file for the forward ops of a graph; their backward ops follow them.

    Device id i is the i-th device of the cluster that runs ops and is of the asked type (kinds that
    begin with "cpu" are CPUs; where all are or none is, all count). Raises InputError with the
    file's name.
    """
    try:
        return _strategy(_Words(read_text(path).split()), graph, cluster)
    except InputError as error:
        raise error.within(label(path)) from None


class _Words:
    """The words of a file, read one after the other."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.at = words, 0

    def text(self, expected: str) -> str:
        if self.at == len(self.words):
            raise InputError(f"ends where {expected} should stand")
        self.at += 1
        return self.words[self.at - 1]

    def number(self, expected: str) -> int:
        word = self.text(expected)
        if not (word.isascii() and word.isdecimal() and len(word) < 9):
            raise InputError(
                f"word {self.at}: {expected} must be a whole number, got {word[:40]!r}"
            )
        return int(word)

    def numbers(self, count: int, expected: str) -> list[int]:
        if count > len(self.words) - self.at:
            raise InputError(f"ends where {expected} should stand")
        return [self.number(expected) for _ in range(count)]


def _strategy(words: _Words, graph: Graph, cluster: Cluster) -> Strategy:
    partition: dict[str, Configuration] = {}
    problems: list[str] = []
    for _ in range(words.number("the number of ops")):
        name = words.text("the name of an op")
        where = f'op "{name}"'
        kind = words.number(f"the device type of {where}")
        degrees = words.numbers(
            words.number(f"the number of dimensions of {where}"), f"a dimension of {where}"
        )
        ids = words.numbers(
            words.number(f"the number of device ids of {where}"), f"a device id of {where}"
        )
        if name in partition:
            problems.append(f"{where}: stands there twice")
        try:
            partition[name] = _configuration(graph, cluster, name, kind, degrees, ids)
        except InputError as error:
            problems += error.problems
    if words.at < len(words.words):
        problems.append(
            f"word {words.at + 1}: nothing may follow the last op, got "
            f"{words.words[words.at][:40]!r}"
        )
    refuse(problems)
    return Strategy(partition=partition | _data_parallel(graph, cluster, partition))


def _configuration(
    graph: Graph, cluster: Cluster, name: str, kind: int, degrees: list[int], ids: list[int]
) -> Configuration:
    """The configuration of an op. Row-major order over the dimensions of the output is FlexFlow's
    order of points: the innermost runs fastest. Raises InputError.
    """
    if name not in graph.index:
        raise InputError(f'op "{name}": the graph has no op of this name')
    if kind not in (GPU, CPU):
        raise InputError(f'op "{name}": the device type must be 0 (GPU) or 1 (CPU), got {kind}')
    semantics = op_semantics(graph, graph.index[name])
    if not semantics.outputs:
        raise InputError(f'op "{name}": makes no tensor, so it has no dimensions to cut')
    axes = output_axes(semantics)
    if len(degrees) != len(axes):
        raise InputError(
            f'op "{name}": has {len(degrees)} dimensions here, its output has {len(axes)}'
        )
    outermost_first = list(zip(axes, reversed(degrees), strict=True))
    devices = _devices(cluster, kind)
    problems = [
        f'op "{name}": dimension {dimension} of its output (axis "{axis}") cannot be '
        f"cut into {degree} parts"
        for dimension, (axis, degree) in enumerate(outermost_first)
        if degree < 1 or (degree > 1 and axis is None)
    ]
    if ids and len(ids) != prod(degrees):
        problems.append(f'op "{name}": has {prod(degrees)} parts and {len(ids)} device ids')
    last = len(devices) - 1
    problems += [f'op "{name}": device id {i} is not in 0..{last}' for i in ids if i > last]
    refuse(problems)
    # FlexFlow names a device for every part; here consecutive parts may share one.
    run = next((n for n in range(1, len(ids) + 1) if len(ids) % n == 0 and _in_runs(ids, n)), 1)
    split = {axis: degree for axis, degree in outermost_first if axis and degree > 1}
    return Configuration(split, tuple(devices[i] for i in ids[::run]))


def _in_runs(ids: list[int], length: int) -> bool:
    """Whether ids come in runs of this length, all runs of different devices."""
    runs = [set(ids[at : at + length]) for at in range(0, len(ids), length)]
    return all(len(run) == 1 for run in runs) and len(set.union(*runs)) == len(runs)


def _devices(cluster: Cluster, kind: int) -> list[str]:
    hosts = [device.name for device in cluster.devices if device.runs_ops and device.is_host]
    # On a cluster of CPUs alone, or of GPUs alone, both types mean all devices.
    if kind == CPU and hosts:
        return hosts
    return [cluster.devices[i].name for i in cluster.workers]


def _data_parallel(
    graph: Graph, cluster: Cluster, given: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """Forward ops that the file leaves out: their samples spread over all devices, where these
    divide them.
    """
    names, partition = tuple(_devices(cluster, GPU)), {}
    weights = weights_of(graph)
    for position, op in enumerate(graph.ops):
        if op.name in given or op.phase != "forward" or traits_of(op.kind).leaf:
            continue
        try:
            splits = op_splits(graph, position, weights)
        except InputError:
            # FlexFlow has more kinds than have semantics here; such an op runs whole.
            continue
        sample = next((split for split in splits if split.kind == "sample"), None)
        if sample is not None and sample.size % len(names) == 0:
            partition[op.name] = Configuration({sample.axis: len(names)}, names)
    return partition
