"""What lowering makes of every op in every way in which its layer, and those that it follows, can
be configured.

How the parts of an op lie hangs on few layers: its own where that tells it, those that it follows
elsewhere. So do the times of its parts, and what passes between a part of one op and a part of a
reader (transfers, sums, collectives). Both are read off lowered strategies that hold every
combination of the layers in question, and kept in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from ...lowering import lower_prepared, split
from ...nouns.semantics import effects_of, is_linear
from ...nouns.strategy import Strategy, Sync
from ...nouns.structure import TensorOf
from ...nouns.taskgraph import Ints, TaskGraph
from ...oracle import Oracle
from .flexflow import Space
from .spread import PLAIN, entries

NONE = -(1 << 60)
"""In a table of ps: there is no such part, or it does not wait for that one."""
MOST = 5000  # combinations of layers for which a table is made
Scope = tuple[int, ...]
"""Layers, ascending."""
Edge = tuple[int, int]


class Scopes:
    """The layers on whose configurations it hangs how each op lies, and what passes from one op to
    another.
    """

    def __init__(self, space: Space) -> None:
        self.layers, self.dataflow = space.layers, space.layers.dataflow
        self._named = _named(space)
        self._place = {i: at for at, i in enumerate(self.dataflow.order)}
        self._axes = {
            i: [axis.axis for axis in layer.axes] for layer in self.layers.all for i in layer.ops
        }
        self.readers: dict[TensorOf, list[int]] = {}
        for i in self.dataflow.order:
            for tensor in dict.fromkeys(self.dataflow.read[i]):
                self.readers.setdefault(tensor, []).append(i)
        self.of_op: dict[int, set[int]] = {}
        updates = self.dataflow.updates
        for i in self.dataflow.order:
            if i not in self.dataflow.on_demand and i not in updates:
                self.of_op[i] = self._following(i)
        self.of_op.update({i: self._of_copies(parameter) for i, (_, parameter) in updates.items()})

    def _following(self, i: int) -> set[int]:
        always, ever = self._named.get(i, (False, set()))
        scope = set(ever)
        for tensor in () if always else self.dataflow.touched[i]:
            if tensor[0] in self.of_op:
                scope |= self.of_op[tensor[0]] | self._of_sums(tensor, self._place[i])
        return scope

    def _of_sums(self, tensor: TensorOf, before: int) -> set[int]:
        """What else decides how partial results of a tensor are added up: its readers up to a place
        in the order.
        """
        if self._is_whole(tensor[0]):
            return set()
        readers = (
            reader for reader in self.readers.get(tensor, ()) if self._place[reader] < before
        )
        return set[int]().union(*(self.of_op.get(reader, set()) for reader in readers))

    def _is_whole(self, i: int) -> bool:
        """Whether an op never makes partial results, and readers fetch what it made each for
        itself.
        """
        op, semantics = self.layers.graph.ops[i], self.dataflow.readings[i].semantics
        if self.layers.cluster.transfer == "multicast" or semantics is None or is_linear(op):
            return False
        axes = self._axes.get(i, [axis.name for axis in semantics.axes])
        return not any("reduce" in effects_of(semantics, axis) for axis in axes)

    def _of_copies(self, i: int) -> set[int]:
        """Of what is there on demand: all who read it."""
        scope, dataflow = set[int](), self.dataflow
        for (producer, _), readers in self.readers.items():
            for reader in readers if producer == i else ():
                if reader in dataflow.on_demand:
                    scope |= self._of_copies(reader)
                elif dataflow.updates.get(reader, (-1, -1))[1] != i:
                    scope |= self.of_op.get(reader, set())
        return scope

    def of_edge(self, producer: int, reader: int) -> set[int]:
        """What passes from one op to another that reads it."""
        scope = self.of_op[producer] | self.of_op[reader]
        for tensor in dict.fromkeys(self.dataflow.read[reader]):
            if tensor[0] == producer:
                scope |= self._of_sums(tensor, len(self._place))
        return scope


def _named(space: Space) -> dict[int, tuple[bool, set[int]]]:
    """For each op that some configuration of a layer names: whether all do, and that layer."""
    layers, scopes = space.layers, dict[int, tuple[bool, set[int]]]()
    for number, (layer, choices) in enumerate(zip(layers.all, space.choices, strict=True)):
        named = [set(entries(layers, layer, choice)) for choice in choices]
        always = set.intersection(*named)
        for name in set[str]().union(*named):
            scopes[layers.graph.index[name]] = name in always, {number}
    return scopes


class PartTimes:
    """Tables over the choices of layers; one value for each of the devices over which layers are
    split.

    ``duration[i]``: ps of the part of op i on each device. ``lag[u, v]``: by device of u and device
    of v, the ps from the finish of one part to the moment when what it sends is there for the
    other. NONE where there is none. Axes of a table are the layers of ``scope``, ascending, then
    devices. An op or edge that hangs on too many layers has no table, and neither has an op with
    two parts on one device. Raises InputError.
    """

    def __init__(
        self, oracle: Oracle, space: Space, like: Strategy = PLAIN, most: int = MOST
    ) -> None:
        self.oracle, self.space, self.like = oracle, space, like
        self.sizes = [len(choices) for choices in space.choices]
        self.graph, self.devices = space.layers.graph, space.layers.devices
        self.scope: dict[int | Edge, Scope] = {}
        self.duration: dict[int, Ints] = {}
        self.lag: dict[Edge, Ints] = {}
        scopes, policy, width = Scopes(space), isinstance(like.sync, Sync), len(self.devices)
        dataflow = space.layers.dataflow
        for i in dataflow.order:
            # Under a policy, parcels of an update may hold gradients of any layers.
            if i in scopes.of_op and not (policy and self.graph.ops[i].phase == "update"):
                table = self._table(i, scopes.of_op[i], most, width)
                if table is not None:
                    self.duration[i] = table
        synchronised = dataflow.weights.gradients if policy else ()
        for v in self.duration:
            read = (tensor[0] for tensor in dataflow.read[v] if tensor not in synchronised)
            for u in dict.fromkeys(read):
                if u in self.duration:
                    table = self._table((u, v), scopes.of_edge(u, v), most, width, width)
                    if table is not None:
                        self.lag[u, v] = table

    def _table(self, key: int | Edge, layers: set[int], most: int, *width: int) -> Ints | None:
        """An empty table; None where it hangs on too many layers."""
        shape = [self.sizes[layer] for layer in sorted(layers)]
        if prod(shape) > most:
            return None
        self.scope[key] = tuple(sorted(layers))
        return np.full([*shape, *width], NONE, np.int64)

    @property
    def ops(self) -> list[int]:
        """The ops that have a table, producers first."""
        return list(self.duration)

    def fill(self, before: Callable[[], object] = lambda: None) -> int:
        """Fill all tables; how many strategies that took.

        ``before`` is called before each, and may raise.
        """
        choices = list(covering(self.sizes, set(self.scope.values())))
        for choice in choices:
            before()
            self.learn(choice)
        return len(choices)

    def learn(self, choice: Sequence[int]) -> None:
        """What one strategy tells."""
        chosen = [choices[at] for choices, at in zip(self.space.choices, choice, strict=True)]
        strategy = self.space.strategy(chosen, self.like)
        graph = lower_prepared(self.oracle.prepared, strategy)
        places = self._places(graph, strategy)
        for task, (i, place) in places.items():
            self.duration[i][(*self._row(i, choice), place)] = graph.tasks.duration[task]
        for task, (u, place) in places.items():
            for other, ps in _reached(graph, task, places).items():
                v, there = places[other]
                if (u, v) in self.lag:
                    self.lag[u, v][(*self._row((u, v), choice), place, there)] = ps

    def _row(self, key: int | Edge, choice: Sequence[int]) -> tuple[int, ...]:
        return tuple(choice[layer] for layer in self.scope[key])

    def _places(self, graph: TaskGraph, strategy: Strategy) -> dict[int, tuple[int, int]]:
        """The op and the device of each task that is a part of an op with a table."""
        tasks, origins = graph.tasks, split(self.oracle.prepared, strategy).origins
        of_task: dict[int, tuple[int, int]] = {}
        seen = set[tuple[int, int]]()
        place = {device: at for at, device in enumerate(self.devices)}
        for task in np.flatnonzero(tasks.op == np.arange(len(tasks))).tolist():
            origin = origins.get(tasks.name[task])
            if origin is None or origin.role not in ("shard", "copy"):
                continue
            part = self.graph.index[origin.op], place.get(int(tasks.source[task]), -1)
            if part in seen or part[1] < 0:
                self._drop(part[0])
            seen.add(part)
            of_task[task] = part
        return {task: part for task, part in of_task.items() if part[0] in self.duration}

    def _drop(self, i: int) -> None:
        """No table for an op of which two parts stand on one device, or one elsewhere."""
        self.duration.pop(i, None)
        self.lag = {edge: table for edge, table in self.lag.items() if i not in edge}


def _reached(graph: TaskGraph, task: int, places: Mapping[int, object]) -> dict[int, int]:
    """The parts that wait for a task through nothing but what lowering added, and the ps from its
    finish to theirs.
    """
    tasks, reached = graph.tasks, dict[int, int]()
    waiting = [(task, int(tasks.lag[task]))]
    while waiting:
        current, ps = waiting.pop()
        for other in tasks.successors[current].tolist():
            if other in places:
                reached[other] = max(reached.get(other, NONE), ps)
            else:
                waiting.append((other, ps + int(tasks.duration[other]) + int(tasks.lag[other])))
    return reached


def covering(sizes: Sequence[int], scopes: Iterable[Scope]) -> Iterator[list[int]]:
    """Choices of one value each, until every scope has had all of its combinations."""
    wanted = sorted(set(scopes), key=lambda scope: (-prod(sizes[v] for v in scope), scope))
    wanted = [scope for scope in wanted if not any(set(scope) < set(other) for other in wanted)]
    left = {scope: dict.fromkeys(product(*(range(sizes[v]) for v in scope))) for scope in wanted}
    while any(left.values()):
        fixed: dict[int, int] = {}
        for scope, open_ in left.items():
            fits = (
                values
                for values in open_
                if all(fixed.get(v, at) == at for v, at in zip(scope, values, strict=True))
            )
            fixed.update(zip(scope, next(fits, ()), strict=False))
        choice = [fixed.get(v, 0) for v in range(len(sizes))]
        for scope, open_ in left.items():
            open_.pop(tuple(choice[v] for v in scope), None)
        yield choice
