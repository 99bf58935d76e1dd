"""The best of all strategies that FlexFlow may propose, with a proof that it is the best (MLSys
2019, section 8.4): branch and bound. The method "exhaustive" of ``search.methods``.

A lower bound of the step is computed while some layers are not configured yet. It holds under any
order of any queue, for three reasons. A task runs after all tasks that it waits for, so the longest
path of tasks and transfers is no longer than the step. A device runs one task at a time: from the
first possible start of a set of tasks on it, it needs at least the sum of their times, and then the
shortest remainder after one of them. And all devices together do all the work. Transfers get links
of their own. Layers that are not configured contribute the least of all their configurations.

``Scopes`` decides which layers an op's layout depends on, by the rules of ``lowering.partition``: a
new rule there of what an op follows, or of how sums are shared, changes ``Scopes`` too.
``tests/search/test_search_exhaustive.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from ...lowering import lower_prepared, split
from ...nouns.semantics import effects_of, is_linear
from ...nouns.strategy import Strategy, Sync
from ...nouns.structure import TensorOf
from ...nouns.taskgraph import Ints, TaskGraph
from ...oracle import Oracle
from ..trial import Trial
from .flexflow import Space, SplitWalk, space_of, starts
from .layers import PLAIN, Layers, entries

# Tables of the lowered times of every op, for all configurations of its layer and of the layers
# that it follows. An op's layout depends on few layers: on its own where that decides it, else on
# the layers that it follows. So do the times of its parts, and the transfers, sums and collectives
# between a part of it and a part of a reader. Both are read off lowered strategies that cover every
# combination of the layers in question.

NONE = -(1 << 60)
"""The entry of a table of ps where there is no such part, or the part does not wait for
the other.
"""
MOST = 5000  # combinations of layers for which a table is made
Scope = tuple[int, ...]
"""Layers, ascending."""
Edge = tuple[int, int]


class Scopes:
    """The layers whose configurations decide the layout of each op, and the transfers from one op
    to another.
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
        """Further layers that decide how partial results of a tensor are added up: the layers of
        its readers before a place in the order.
        """
        if self._is_whole(tensor[0]):
            return set()
        readers = (
            reader for reader in self.readers.get(tensor, ()) if self._place[reader] < before
        )
        return set[int]().union(*(self.of_op.get(reader, set()) for reader in readers))

    def _is_whole(self, i: int) -> bool:
        """Whether an op never makes partial results, and each reader fetches its outputs
        separately.
        """
        op, semantics = self.layers.graph.ops[i], self.dataflow.readings[i].semantics
        if self.layers.cluster.transfer == "multicast" or semantics is None or is_linear(op):
            return False
        axes = self._axes.get(i, [axis.name for axis in semantics.axes])
        return not any("reduce" in effects_of(semantics, axis) for axis in axes)

    def _of_copies(self, i: int) -> set[int]:
        """The layers that decide where an on-demand op is copied: the layers of all its readers."""
        scope, dataflow = set[int](), self.dataflow
        for (producer, _), readers in self.readers.items():
            for reader in readers if producer == i else ():
                if reader in dataflow.on_demand:
                    scope |= self._of_copies(reader)
                elif dataflow.updates.get(reader, (-1, -1))[1] != i:
                    scope |= self.of_op.get(reader, set())
        return scope

    def of_edge(self, producer: int, reader: int) -> set[int]:
        """The layers that decide the transfers from an op to a reader."""
        scope = self.of_op[producer] | self.of_op[reader]
        for tensor in dict.fromkeys(self.dataflow.read[reader]):
            if tensor[0] == producer:
                scope |= self._of_sums(tensor, len(self._place))
        return scope


def _named(space: Space) -> dict[int, tuple[bool, set[int]]]:
    """The layer of each op that some configuration of the layer names, and whether all of its
    configurations name the op.
    """
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
    of v, the ps from the finish of a part of u until its data has arrived at a part of v. NONE
    where there is none. Axes of a table are the layers of ``scope``, ascending, then devices. An op
    or edge that depends on too many layers has no table, and neither has an op with two parts on
    one device. Raises InputError.
    """

    def __init__(self, oracle: Oracle, space: Space, like: Strategy = PLAIN) -> None:
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
                table = self._table(i, scopes.of_op[i], width)
                if table is not None:
                    self.duration[i] = table
        synchronised = dataflow.weights.gradients if policy else ()
        for v in self.duration:
            read = (tensor[0] for tensor in dataflow.read[v] if tensor not in synchronised)
            for u in dict.fromkeys(read):
                if u in self.duration:
                    table = self._table((u, v), scopes.of_edge(u, v), width, width)
                    if table is not None:
                        self.lag[u, v] = table

    def _table(self, key: int | Edge, layers: set[int], *width: int) -> Ints | None:
        """An empty table; None where it would depend on too many layers."""
        shape = [self.sizes[layer] for layer in sorted(layers)]
        if prod(shape) > MOST:
            return None
        self.scope[key] = tuple(sorted(layers))
        return np.full([*shape, *width], NONE, np.int64)

    def fill(self, before: Callable[[], object] = lambda: None) -> int:
        """Fill all tables; returns the number of strategies that were lowered.

        ``before`` is called before each strategy, and may raise.
        """
        choices = list(covering(self.sizes, set(self.scope.values())))
        for choice in choices:
            before()
            self.learn(choice)
        return len(choices)

    def learn(self, choice: Sequence[int]) -> None:
        """Fill in the cells of one strategy."""
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
        """Remove the tables of an op with two parts on one device, or with a part elsewhere."""
        self.duration.pop(i, None)
        self.lag = {edge: table for edge, table in self.lag.items() if i not in edge}


def _reached(graph: TaskGraph, task: int, places: Mapping[int, object]) -> dict[int, int]:
    """The parts that wait for a task only through tasks that lowering added, and the ps from the
    task's finish until they may start.
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
    """Choices of a value for each layer, until every scope has had all of its combinations."""
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


# Branch and bound.

BLOCK = 256  # partial strategies that are extended together
NEVER = 1 << 60
Block = tuple[Ints, Ints]
"""Choices of the first layers, a row for each partial strategy, and the bound of each row in ps."""


def exhaustive(trial: Trial) -> None:
    """The best of all strategies that ``flexflow`` may propose, proved by branch and bound, depth
    first in program order; for graphs of about ten layers.

    A pruned strategy cannot be faster than the best so far. No symmetry is used. The search starts
    with strategies that no change of a single layer improves. ``details`` has the size of the
    ``space``, the number of partial strategies that were ``bounded``, the lower bound ``bound_s``
    of every strategy, and ``exact``: whether the search was complete. Where nothing fits, nothing
    can be pruned.
    """
    whole = trial.problem.whole
    space = space_of(Layers(whole.graph, whole.cluster))
    trial.best.details |= {"space": space.size, "bounded": 0, "bound_s": 0.0, "exact": False}
    branch_and_bound(trial, space)


def branch_and_bound(trial: Trial, space: Space) -> None:
    """Search a space; ``details`` as in ``exhaustive``. Raises SpentError."""
    walk = SplitWalk(trial, space, [choices[0] for choices in space.choices])
    for start in starts(trial, space):
        pairs = zip(space.choices, start, strict=True)
        # A start may be outside the choices (an expert's device): the first choice replaces it.
        _descend(
            walk,
            [
                choices.index(configuration) if configuration in choices else 0
                for choices, configuration in pairs
            ],
        )
    parts = PartTimes(trial.problem.whole, space, trial.problem.given)
    parts.fill(trial.budget.require)
    search = _Open(walk, [Bounds(parts, count) for count in range(len(space.choices) + 1)])
    details = trial.best.details
    details["bounded"] = 0
    try:
        while search.blocks:
            trial.budget.require()
            search.step()
    finally:
        least = min([search.limit, *(int(bounds.min()) for _, bounds in search.blocks)])
        details |= {"bounded": search.bounded, "bound_s": least / 1e12}
    details["exact"] = True


def _evaluate(walk: SplitWalk, choice: Sequence[int]) -> tuple[int, int]:
    """The rank of a strategy: bytes over all capacities, then ps. Raises SpentError."""
    pairs = zip(walk.space.choices, choice, strict=True)
    cost = walk.propose([choices[at] for choices, at in pairs])
    assert cost is not None  # nothing exceeds no limit
    walk.accept()
    return cost.memory_excess, cost.step_ps


def _descend(walk: SplitWalk, choice: list[int]) -> None:
    """Give each layer in turn its best configuration, until no layer has a better one."""
    best, stale, layer = _evaluate(walk, choice), 0, 0
    while stale < len(choice):
        stale += 1
        for at in range(len(walk.space.choices[layer])):
            changed = [*choice[:layer], at, *choice[layer + 1 :]]
            rank = _evaluate(walk, changed)
            if rank < best:
                best, choice, stale = rank, changed, 1
        layer = (layer + 1) % len(choice)


class _Open:
    """Partial strategies that are not extended yet, in blocks; blocks with the most layers come
    last.
    """

    def __init__(self, walk: SplitWalk, bounds: Sequence[Bounds]) -> None:
        self.walk, self.bounds, self.bounded = walk, bounds, 0
        root = np.zeros((1, 0), np.int64)
        self.blocks: list[Block] = [(root, bounds[0].below(root, NEVER)[:, 0])]

    @property
    def limit(self) -> int:
        """The step time in ps that a strategy has to beat."""
        best = self.walk.trial.best.strategy
        return best[1].step_ps if best is not None and best[1].feasible else NEVER

    def step(self) -> None:
        """Extend the most promising strategies of the last block. Where that raises, they
        are kept.
        """
        rows, bounds = self.blocks[-1]
        blocks = [(rows[BLOCK:], bounds[BLOCK:])]
        promising = bounds[:BLOCK] < self.limit
        rows, bounds = rows[:BLOCK][promising], bounds[:BLOCK][promising]
        if rows.shape[1] < len(self.bounds) - 1:
            blocks.append(self._branch(rows))
        else:
            # In lexicographic order few layers change from a strategy to the next.
            for at in np.lexsort(rows.T[::-1]).tolist():
                if bounds[at] < self.limit:
                    _evaluate(self.walk, rows[at].tolist())
        self.blocks[-1:] = [block for block in blocks if len(block[0])]

    def _branch(self, rows: Ints) -> Block:
        """The rows with every choice of the next layer, the most promising first."""
        bounds = self.bounds[rows.shape[1] + 1].below(rows, self.limit)
        self.bounded += bounds.size
        row, choice = np.nonzero(bounds < self.limit)
        order = np.argsort(bounds[row, choice], kind="stable")
        row, choice = row[order], choice[order]
        return np.column_stack((rows[row], choice)), bounds[row, choice]


@dataclass(frozen=True, slots=True)
class _Table:
    """A table over layers that are already configured."""

    scope: Scope
    values: Ints

    def at(self, columns: Sequence[Ints]) -> Ints:
        """The values for arrays of choices, one array per layer, broadcast against one another."""
        if not self.scope:
            return self.values[None, None]
        return self.values[tuple(columns[layer] for layer in self.scope)]


@dataclass(frozen=True, slots=True)
class _Link:
    """The delay from an op to a reader.

    ``known``: ps from part to part, where the layouts of both are known. Else ``last``: from the
    end of any part to the end of some part of the reader, and ``each``: from the end of some part
    to the end of any part of the reader; None where some part has no such partner.
    """

    known: _Table | None = None
    last: _Table | None = None
    each: _Table | None = None


@dataclass(slots=True)
class _Node:
    """An op while the first layers are configured.

    ``duration`` of each part, where its layout is ``known``; else the ``shortest`` part over all
    layouts, and the least ``work``. ``inputs`` and ``outputs`` are (op, link).
    """

    known: bool
    duration: _Table
    shortest: _Table
    work: _Table
    inputs: list[tuple[int, _Link]] = field(default_factory=list)
    outputs: list[tuple[int, _Link]] = field(default_factory=list)


class Bounds:
    """Lower bounds where the first ``count`` layers are configured, for every choice of the last of
    these at once.
    """

    def __init__(self, parts: PartTimes, count: int) -> None:
        self.parts, self.count = parts, count
        self._nodes: dict[int, _Node] = {}
        for i, duration in parts.duration.items():
            scope, there = parts.scope[i], duration >= 0
            shortest = self._least(scope, np.where(there, duration, NEVER).min(axis=-1))
            work = self._least(scope, np.where(there, duration, 0).sum(axis=-1))
            known = shortest.scope == scope
            self._nodes[i] = _Node(known, _Table(scope, duration), shortest, work)
        for u, v in parts.lag:
            link = self._link(u, v)
            self._nodes[v].inputs.append((u, link))
            self._nodes[u].outputs.append((v, link))

    def _least(self, scope: Scope, values: Ints) -> _Table:
        """The minimum over the layers that are not configured yet."""
        closed = tuple(layer for layer in scope if layer < self.count)
        return _Table(closed, values.min(axis=tuple(range(len(closed), len(scope)))))

    def _link(self, u: int, v: int) -> _Link:
        scope, lag = self.parts.scope[u, v], self.parts.lag[u, v]
        if all(layer < self.count for layer in scope):
            return _Link(_Table(scope, lag))
        waits, sends, runs = lag >= 0, self._there(u, scope) >= 0, self._there(v, scope)
        ps = np.where(waits, lag + runs[..., None, :], NONE)
        last = self._least(scope, np.where(sends, ps.max(axis=-1), NEVER).min(axis=-1))
        each = self._least(scope, np.where(runs >= 0, ps.max(axis=-2), NEVER).min(axis=-1))
        return _Link(
            None,
            last if (waits.any(axis=-1) | ~sends).all() else None,
            each if (waits.any(axis=-2) | (runs < 0)).all() else None,
        )

    def _there(self, i: int, scope: Scope) -> Ints:
        """The durations of an op as a table over the layers of ``scope``."""
        duration, sizes = self.parts.duration[i], [self.parts.sizes[layer] for layer in scope]
        missing = [axis for axis, layer in enumerate(scope) if layer not in self.parts.scope[i]]
        wide = np.expand_dims(duration, missing)
        return np.broadcast_to(wide, [*sizes, duration.shape[-1]])

    def below(self, rows: Ints, limit: float) -> Ints:
        """The bound of each row with each choice of the last layer, in ps, [row, choice].

        ``rows`` hold the choices of all layers before. Where paths alone reach the limit, the
        bounds of devices are not computed.
        """
        columns = [rows[:, layer, None] for layer in range(self.count - 1)]
        if self.count:
            columns.append(np.arange(self.parts.sizes[self.count - 1])[None])
        ends = _Ends(self._nodes, columns)
        shape = len(rows), prod(self.parts.sizes[self.count - 1 : self.count])
        bound = np.maximum(ends.longest, ends.work // len(self.parts.devices))
        bounds: Ints = np.broadcast_to(bound, shape).copy()
        where = np.nonzero(bounds < limit)
        if len(where[0]):
            bounds[where] = np.maximum(bounds[where], ends.devices(shape, where))
        return bounds


ZERO: Ints = np.zeros((1, 1), np.int64)
"""Zero for any row and choice; never written to."""


class _Ends:
    """The earliest ends of parts, and the least time from there to the end of the step, for arrays
    of choices.

    Arrays are [row, choice] or [row, choice, device], of extent 1 where nothing depends on row or
    choice.
    """

    def __init__(self, nodes: dict[int, _Node], columns: Sequence[Ints]) -> None:
        self.columns = columns
        self.duration: dict[int, Ints] = {}
        self.end: dict[int, Ints] = {}  # of each part, where it is known how the op lies
        self.first: dict[int, Ints] = {}  # no part ends earlier
        self.last: dict[int, Ints] = {}  # the last part ends no earlier
        self.rest: dict[int, Ints] = {}  # after each part
        self.after: dict[int, Ints] = {}  # after any part
        self.work = self.longest = ZERO
        for i, node in nodes.items():
            self._forward(i, node)
        for i, node in reversed(nodes.items()):
            self._backward(i, node)

    def _forward(self, i: int, node: _Node) -> None:
        columns, first, last, start = self.columns, ZERO, ZERO, ZERO[..., None]
        for other, link in node.inputs:
            if link.each is not None:
                first = np.maximum(first, self.first[other] + link.each.at(columns))
            if link.last is not None:
                last = np.maximum(last, self.last[other] + link.last.at(columns))
            if link.known is not None:
                there = self.end[other][..., None] + link.known.at(columns)
                start = np.maximum(start, there.max(axis=-2))
        self.work = self.work + node.work.at(columns)
        if node.known:
            duration = node.duration.at(columns)
            end = np.where(duration < 0, NONE, np.maximum(start + duration, first[..., None]))
            self.duration[i], self.end[i] = duration, end
            self.first[i] = np.where(duration < 0, NEVER, end).min(axis=-1)
            self.last[i] = np.maximum(last, end.max(axis=-1))
        else:
            self.first[i] = np.maximum(first, node.shortest.at(columns))
            self.last[i] = np.maximum(last, self.first[i])

    def _backward(self, i: int, node: _Node) -> None:
        columns, after = self.columns, ZERO
        for other, link in node.outputs:
            if link.last is not None:
                after = np.maximum(after, link.last.at(columns) + self.after[other])
        if node.known:
            rest = after[..., None]
            for other, link in node.outputs:
                if link.known is not None:
                    on = (self.duration[other] + self.rest[other])[..., None, :]
                    rest = np.maximum(rest, (link.known.at(columns) + on).max(axis=-1))
            self.rest[i], there = rest, self.duration[i] >= 0
            after = np.where(there, rest, NEVER).min(axis=-1)
            whole = np.where(there, self.end[i] + rest, 0).max(axis=-1)
            self.longest = np.maximum(self.longest, whole)
        self.after[i] = after
        self.longest = np.maximum(self.longest, self.last[i] + after)

    def devices(self, shape: tuple[int, int], where: tuple[Ints, ...]) -> Ints:
        """The bound of single devices, for some rows and choices, over the tasks that start last
        and the tasks with the longest remainder.
        """
        if not self.duration:
            return np.zeros(len(where[0]), np.int64)
        duration, end, rest = (
            self._columns(table, shape, where) for table in (self.duration, self.end, self.rest)
        )
        there = duration >= 0
        work = np.where(there, duration, 0)
        head, tail = np.where(there, end - duration, NEVER), np.where(there, rest, NEVER)
        bounds = np.zeros(len(where[0]), np.int64)
        for outer, inner in ((head, tail), (tail, head)):
            # One order for all rows, by the mean; any subset of tasks gives a bound.
            order = np.argsort(-np.where(there, outer, 0).mean(axis=(0, 1)), kind="stable")
            least = sum(
                np.minimum.accumulate(table[..., order], axis=-1) for table in (outer, inner)
            )
            total = least + work[..., order].cumsum(axis=-1)
            bounds = np.maximum(bounds, np.where(least < NEVER, total, 0).max(axis=(1, 2)))
        return bounds

    def _columns(
        self, values: dict[int, Ints], shape: tuple[int, int], where: tuple[Ints, ...]
    ) -> Ints:
        """[row, device, op] at the chosen rows and choices."""
        chosen = [
            np.broadcast_to(values[i], (*shape, self.duration[i].shape[-1]))[where]
            for i in self.duration
        ]
        return np.stack(chosen, axis=-1)
