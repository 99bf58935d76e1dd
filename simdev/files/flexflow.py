"""FlexFlow's strategy files (its text format since 2021), read into configurations.

Words parted by white space: how many ops; then for each its name, the type of device (0 GPU, 1
CPU), how many dimensions, the degree of each (innermost first, the sample last), how many device
ids, the ids. No ids: the first devices. An op that the file leaves out is data parallel over all
devices, as in FlexFlow.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..cluster import Cluster
from ..errors import InputError
from ..graph import Graph
from ..semantics import op_semantics, output_axes, traits_of
from ..strategy import Configuration, Strategy
from ..structure import op_splits, weights_of
from .reading import PathLike, label, read_text

MOST = 10_000_000
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

    def text(self, what: str) -> str:
        if self.at == len(self.words):
            raise InputError(f"ends where {what} should stand")
        self.at += 1
        return self.words[self.at - 1]

    def number(self, what: str) -> int:
        word = self.text(what)
        if not (word.isascii() and word.isdecimal() and len(word) < 9):
            raise InputError(f"word {self.at}: {what} must be a whole number, got {word[:40]!r}")
        return int(word)

    def numbers(self, count: int, what: str) -> list[int]:
        if count > len(self.words) - self.at:
            raise InputError(f"ends where {what} should stand")
        return [self.number(what) for _ in range(count)]


def _strategy(words: _Words, graph: Graph, cluster: Cluster) -> Strategy:
    found: dict[str, Configuration] = {}
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
        if name in found:
            problems.append(f"{where}: stands there twice")
        problems += _problems(graph, cluster, name, kind, degrees, ids)
        if not problems:
            found[name] = _configuration(graph, cluster, name, kind, degrees, ids)
    if words.at < len(words.words):
        problems.append(
            f"word {words.at + 1}: nothing may follow the last op, got "
            f"{words.words[words.at][:40]!r}"
        )
    if problems:
        raise InputError(problems)
    return Strategy(partition=found | _data_parallel(graph, cluster, found))


def _problems(
    graph: Graph, cluster: Cluster, name: str, kind: int, degrees: list[int], ids: list[int]
) -> Iterator[str]:
    if name not in graph.index:
        yield f'op "{name}": the graph has no op of this name'
        return
    if kind not in (GPU, CPU):
        yield f'op "{name}": the device type must be 0 (GPU) or 1 (CPU), got {kind}'
        return
    try:
        semantics = op_semantics(graph, graph.index[name])
    except InputError as error:
        yield f"{error.problems[0]}"
        return
    if not semantics.outputs:
        yield f'op "{name}": makes no tensor, so it has no dimensions to cut'
        return
    axes = output_axes(semantics)
    if len(degrees) != len(axes):
        yield f'op "{name}": has {len(degrees)} dimensions here, its output has {len(axes)}'
        return
    for dimension, (degree, axis) in enumerate(zip(reversed(degrees), axes, strict=True)):
        if degree < 1 or (degree > 1 and axis is None):
            yield (
                f'op "{name}": dimension {dimension} of its output (axis "{axis}") cannot '
                f"be cut into {degree} parts"
            )
    if ids and len(ids) != prod(degrees):
        yield f'op "{name}": has {prod(degrees)} parts and {len(ids)} device ids'
    count = len(_devices(cluster, kind))
    yield from (
        f'op "{name}": device id {one} is not in 0..{count - 1}' for one in ids if one >= count
    )


def _configuration(
    graph: Graph, cluster: Cluster, name: str, kind: int, degrees: list[int], ids: list[int]
) -> Configuration:
    """Row-major order over the dimensions of the output is FlexFlow's order of points: the
    innermost runs fastest.
    """
    axes = output_axes(op_semantics(graph, graph.index[name]))
    split = {
        axis: degree
        for axis, degree in zip(axes, reversed(degrees), strict=True)
        if axis and degree > 1
    }
    devices = _devices(cluster, kind)
    each = next((n for n in range(1, len(ids) + 1) if len(ids) % n == 0 and _in_runs(ids, n)), 1)
    shared = [ids[at] for at in range(0, len(ids), max(each, 1))]
    return Configuration(split, tuple(devices[one] for one in shared))


def _in_runs(ids: list[int], length: int) -> bool:
    """Whether ids come in runs of this length, all runs of different devices."""
    runs = [set(ids[at : at + length]) for at in range(0, len(ids), length)]
    return all(len(run) == 1 for run in runs) and len(set.union(*runs)) == len(runs)


def _devices(cluster: Cluster, kind: int) -> list[str]:
    able = [device for device in cluster.devices if device.runs_ops]
    hosts = [device.name for device in able if device.is_host]
    if kind == CPU and hosts:
        return hosts
    return [cluster.devices[i].name for i in cluster.workers]


def _data_parallel(
    graph: Graph, cluster: Cluster, told: dict[str, Configuration]
) -> dict[str, Configuration]:
    """Forward ops that the file leaves out: their samples spread over all devices, where these
    divide them.
    """
    names, found = tuple(_devices(cluster, GPU)), {}
    weights = weights_of(graph)
    for position, op in enumerate(graph.ops):
        if op.name in told or op.phase != "forward" or traits_of(op.kind).leaf:
            continue
        try:
            samples = [one for one in op_splits(graph, position, weights) if one.kind == "sample"]
        except InputError:
            continue
        if samples and samples[0].size % len(names) == 0:
            found[op.name] = Configuration({samples[0].axis: len(names)}, names)
    return found
