"""Split: one strategy ready to be evaluated, and to be changed op by op, by compiled kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from ...errors import InputError
from ...graph import Graph
from ...jit import Table
from ...lowering import Prepared
from ...lowering.partition.layout import Grid
from ...lowering.partition.problem import SplitProblem
from ...strategy import Collectives, Resolved, Strategy
from ...taskgraph import Ints
from ..cost import Cost
from ..memory import Events
from .blocks import Blocks, goes_on
from .columns import Columns, FanWork, Record, Work
from .fan import fans
from .heap import BITS, CELLS, FULL, LONG, ROUND_BITS, ROWS, SENT
from .peaks import cost, events_for
from .pieces import FULL as NO_ROOM
from .plan import NotCoveredError, Plan, take_back
from .rules import rules_of
from .run import step

ROUNDS = (5, 9, 2, 13)
"""Bits of rounds on the heap, tried in turn: few leave more room for times that lie far apart."""
FREE = ("placement", "partition", "sync", "collectives")
COVERED = ("all-reduce", "parameter-server", "sharded")
"""Ways to add gradients up, each tensor by itself."""
FREE_OF_COLLECTIVES = ("algorithm", "cost", "tables", "chunks")
"""Fields of a strategy, and of its collectives, that may be anything here; others must be left out.
"""
WASTE = 8
"""Fans that are not used any more are dropped when all take so many times the room of those that
are.
"""
OF_SLOT = 6  # columns by slot: block, state, count, fan, wait, first


def require_covered(prepared: Prepared, strategy: Strategy) -> None:
    """Raise NotCoveredError where the strategy, or the question, is one for the long way."""
    cluster, own, ops = prepared.cluster, Strategy(), prepared.graph.ops
    rest = _alike(strategy, own, FREE) and _alike(
        strategy.collectives, own.collectives, FREE_OF_COLLECTIVES
    )
    plain = cluster.transfer == "once-per-device" and prepared.memory.model == "full"
    staged = any(device.staging for device in cluster.devices)
    plain = plain and not (staged or prepared.fabric.shares_rates)
    named = not any(
        op.control_inputs or "#" in op.name or len(op.made) < len(op.outputs) for op in ops
    )
    if not (rest and plain and named and ops) or strategy.sync not in COVERED or prepared.rings:
        raise NotCoveredError


def _alike(one: Any, other: Any, but: Sequence[str]) -> bool:
    """Whether two values of a dataclass have the same fields, some left out."""
    names = (field.name for field in fields(other) if field.name not in but)
    return all(getattr(one, name) == getattr(other, name) for name in names)


class Split:
    """A strategy as columns. ``change`` makes it another one, until ``keep`` or ``back``."""

    def __init__(self, blocks: Blocks, strategy: Strategy) -> None:
        """Raises NotCoveredError, InputError."""
        prepared = blocks.prepared
        require_covered(prepared, strategy)
        self.prepared, self.strategy, self.blocks = prepared, strategy, blocks
        self.question = SplitProblem(prepared.graph, prepared.cluster, strategy)
        self.plan = Plan(self.question)
        self._every_sum, self._rounds = False, ROUNDS[0]
        self._rules = Table.of(rules_of(prepared, ROUND_BITS))
        self._fans, self._end = np.zeros(1 << 16, np.int64), 1
        self._read(prepared.graph)
        self._work = self._room_for_work(1 << 12)
        self._room = self._room_for_asks(1 << 12)
        self._memory: tuple[int, Table[Record], Table[Events]] | None = None
        self._reserved = np.array([sum(sizes) for sizes in prepared.reserves], np.int64)
        self._found = self._reserved.copy()
        limits = ((device, one.memory) for device, one in enumerate(prepared.cluster.devices))
        self._capacity = [(device, int(limit)) for device, limit in limits if limit is not None]
        self._place_columns()
        self._fill_all()
        self.keep()

    def _read(self, graph: Graph) -> None:
        """Columns of what reads what."""
        groups: list[list[tuple[int, list[tuple[int, int]]]]] = [[] for _ in graph.ops]
        for reader, tensors in enumerate(self.question.read):
            for operand, (producer, output) in enumerate(tensors):
                if not groups[producer] or groups[producer][-1][0] != reader:
                    groups[producer].append((reader, []))
                groups[producer][-1][1].append((operand, output))
        self._readers = [[reader for reader, _ in own] for own in groups]
        self._producers = [
            list(dict.fromkeys(producer for producer, _ in one)) for one in self.question.read
        ]
        self._tensor_ptr = list(accumulate((len(op.outputs) for op in graph.ops), initial=0))
        flat = [(op, reader, own) for op, those in enumerate(groups) for reader, own in those]
        entries = [(op, reader, *entry) for op, reader, own in flat for entry in own]
        feeds: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
        for group, (op, reader, _) in enumerate(flat):
            feeds[reader].append((op, group))
        self._slots = np.zeros((OF_SLOT, len(graph.ops) + self._tensor_ptr[-1]), np.int64)
        self._block, self._state, self._count, _, _, self._first = self._slots
        self._given = np.zeros(len(graph.ops), np.int64)
        self._active = np.zeros(self._slots.shape[1] + 1, np.int64)
        self._ever_active: set[int] = set()
        self._fixed = [
            _ints(self._tensor_ptr),
            _ints(accumulate(map(len, groups), initial=0)),
            _ints(reader for _, reader, _ in flat),
            _ints(accumulate((len(own) for _, _, own in flat), initial=0)),
            _ints(operand for _, _, operand, _ in entries),
            _ints(output for *_, output in entries),
            _ints(goes_on(self.plan, reader, (op, output)) for op, reader, _, output in entries),
            _ints(accumulate(map(len, feeds), initial=0)),
            _ints(op for own in feeds for op, _ in own),
            _ints(group for own in feeds for _, group in own),
        ]

    # Room

    def _place_columns(self) -> None:
        """The columns as kernels take them; again where one has moved."""
        self._arena = self.blocks.arena.data
        sizes = (
            len(self.prepared.graph.ops),
            self._slots.shape[1],
            len(self.prepared.cluster.devices),
        )
        columns = (
            *sizes,
            self._arena,
            self._fans,
            self._active,
            *self._slots,
            self._given,
            *self._fixed,
        )
        self._columns = Table.of(Columns._make(columns))

    def _room_for_asks(self, most: int) -> Table[FanWork]:
        outputs = max(len(op.outputs) for op in self.prepared.graph.ops)
        sizes = [outputs, *[most] * 6, *[most] * 11, 40 * most, 8, 8, 8, 16]
        rest = [len(self.prepared.cluster.devices), most, 4 * most]
        return Table.of(
            FanWork(most, most, *(np.zeros(size, np.int64) for size in [8, *sizes, *rest]))
        )

    def _room_for_work(self, most: int) -> Table[Work]:
        ops, slots, rules = len(self.prepared.graph.ops), self._slots.shape[1], self._rules.columns
        sizes = [CELLS, *[most] * 5, slots, slots, most, ops, 3 * most, rules.queues, rules.devices]
        return Table.of(Work(most, *(np.zeros(size, np.int64) for size in sizes)))

    def _room_for_memory(self, most: int) -> tuple[int, Table[Record], Table[Events]]:
        sizes, devices = [most, most, most, 4 * most, 4 * most], len(self.prepared.cluster.devices)
        record = Table.of(Record(4 * most, *(np.zeros(size, np.int64) for size in sizes)))
        return most, record, Table.of(events_for(8 * most, devices))

    # Blocks and fans

    def _fill_all(self) -> None:
        everything = range(len(self.prepared.graph.ops))
        self._end = 1
        with self.blocks.lock:
            self._fill(everything, everything)
        self._live = self._end

    def _fill(self, changed: Iterable[int], dirty: Iterable[int]) -> None:
        """The blocks of changed ops, and the fans of dirty ones. Raises NotCoveredError."""
        plan, ops = self.plan, len(self.prepared.graph.ops)
        for i in changed:
            one = plan.states[i]
            self._block[i], self._state[i] = one.words or self.blocks.state(plan, one)
            self._count[i] = len(one.placed)
        for i in dirty:
            for k, layout in enumerate(plan.states[i].layouts):
                self._fill_sums(
                    (i, k),
                    ops + self._tensor_ptr[i] + k,
                    isinstance(layout, Grid) and layout.addends > 1,
                )
        if self._arena is not self.blocks.arena.data:
            self._place_columns()
        waiting = dict.fromkeys(changed)
        for i in dirty:
            waiting.update(dict.fromkeys(self._readers[i]))
        if not self._write(_ints(dirty), _ints(waiting)):
            if self._every_sum:
                raise NotCoveredError
            # Perhaps sums that only some parts need, beside others that go on with statistics of
            # their own.
            self._every_sum = True
            self._fill(range(ops), range(ops))

    def _fill_sums(self, tensor: tuple[int, int], slot: int, partial: bool) -> None:
        block, count = self._block, self._count
        if not partial or not (self._every_sum or self._needed(tensor)):
            if block[slot]:
                block[slot], count[slot], self._first[slot] = 0, 0, 0
            return
        sums = self.plan.summed.get(tensor)
        if sums is None or sums.made is not self.plan.states[tensor[0]]:
            sums = self.plan.sums_of(tensor, None)
        block[slot], count[slot] = self.blocks.sums(self.plan, sums)
        if slot not in self._ever_active:
            self._ever_active.add(slot)
            self._active[0] += 1
            self._active[self._active[0]] = slot

    def _needed(self, tensor: tuple[int, int]) -> bool:
        """Whether some reader may want the values, not the statistics or the partial result of its
        own part.
        """
        for reader in self._readers[tensor[0]]:
            reads = tensor in self.question.read[reader] and not goes_on(self.plan, reader, tensor)
            if reads and self.plan.states[reader].placed[0].addend is None:
                return True
        return False

    def _write(self, dirty: Ints, waiting: Ints) -> bool:
        """Let the kernels write; whether nothing was asked for that is not there."""
        while True:
            end = fans(
                self._columns.words, self._room.words, dirty, waiting, self._end, len(self._fans)
            )
            if end > 0:
                self._end = end
                return True
            if end != -NO_ROOM:
                return False
            if self._end + 64 * len(dirty) > len(
                self._fans
            ) // 2 or self._room.columns.most_asks > len(self._fans):
                self._fans = np.concatenate((self._fans, np.zeros(len(self._fans), np.int64)))
                self._place_columns()
            else:
                self._room = self._room_for_asks(2 * self._room.columns.most_asks)

    # Changes

    def change(self, changes: Mapping[int, Resolved | None]) -> bool:
        """Other configurations of ops (None: they follow); where it is False, go ``back``."""
        if not all(self.plan.takes(i, one) for i, one in changes.items()):
            return False
        try:
            self._change(changes)
        except (NotCoveredError, InputError):
            return False
        return True

    def _change(self, changes: Mapping[int, Resolved | None]) -> None:
        self.plan.change(changes)
        changed = [i for i, before in self.plan.before.items() if self.plan.states[i] is not before]
        dirty = dict.fromkeys(changed)
        for i in changed:
            dirty.update(dict.fromkeys(self._producers[i]))
        with self.blocks.lock:
            self._fill(changed, dirty)

    def keep(self) -> None:
        """Make what it is now the one to go back to."""
        self.plan.log.clear()
        self.plan.before.clear()
        if self._end > WASTE * self._live:
            self._fill_all()
        self._kept = self._slots.copy(), self._given.copy(), self._end

    def back(self) -> None:
        """Undo all changes since it was last kept."""
        take_back(self.plan.log)
        self.plan.before.clear()
        self._slots[:], self._given[:], self._end = self._kept

    def become(self, strategy: Strategy) -> bool:
        """Change to another strategy of the same question, where that is a change of some
        configurations.
        """
        own = {"partition": self.strategy.partition, "placement": self.strategy.placement}
        if replace(strategy, **own) != self.strategy:  # type: ignore[arg-type]
            return False
        other = SplitProblem(self.prepared.graph, self.prepared.cluster, strategy)
        try:
            configured, placed = other.configured, other.placed
        except InputError:
            return False
        before = self.plan.configured
        changes: dict[int, Resolved | None] = {i: None for i in before if i not in configured}
        changes.update((i, one) for i, one in configured.items() if before.get(i) != one)
        if placed != self.question.placed or not self.change(changes):
            self.back()
            return False
        self.keep()
        return True

    # Answers

    def step_ps(self) -> int | None:
        """The step time in ps; None where the long way must answer."""
        return self._until_it_fits(
            lambda: step(self._columns.words, self._rules.words, self._work.words)
        )

    def cost(self) -> Cost | None:
        """Step time and memory; None where the long way must answer."""
        step_ps = self._until_it_fits(self._cost)
        if step_ps is None:
            return None
        peaks, excess = tuple(self._found.tolist()), 0
        for device, capacity in self._capacity:
            excess = max(excess, peaks[device] - capacity)
        return Cost(step_ps / 1e12, excess == 0, excess, step_ps, peaks)

    def _cost(self) -> int:
        if self._memory is None or self._memory[0] < self._work.columns.most_rows:
            self._memory = self._room_for_memory(self._work.columns.most_rows)
        most, record, events = self._memory
        self._found[:] = self._reserved
        words = self._columns.words, self._rules.words, self._work.words, record.words, events.words
        return cost(*words, 8 * most, self._found)

    def _until_it_fits(self, evaluate: Callable[[], int]) -> int | None:
        """The step time in ps, with as much room and as few bits for rounds as it takes."""
        for rounds in dict.fromkeys((self._rounds, *ROUNDS)):
            while True:
                self._work.columns.cell[BITS] = rounds
                found = evaluate()
                if found != -FULL:
                    break
                self._work = self._room_for_work(2 * self._work.columns.most_rows)
            if found >= 0:
                self._rounds = rounds
                return found
            if found == -LONG:
                break
        return None

    @property
    def tasks(self) -> int:
        """How many tasks the last evaluation had."""
        cell = self._work.columns.cell
        return int(cell[ROWS] + cell[SENT])


class Splits:
    """The strategies of one oracle that the compiled path answers; what they need is made once for
    all.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._blocks: list[tuple[Collectives, Blocks]] = []
        self._last: Split | None = None
        self._lock = threading.Lock()

    def start(self, strategy: Strategy) -> Split | None:
        """The strategy (no short form), ready to be evaluated; None where the long way must
        answer.
        """
        with self._lock:
            blocks = next(
                (own for collectives, own in self._blocks if collectives == strategy.collectives),
                None,
            )
            if blocks is None:
                blocks = Blocks(replace(self.prepared, collectives=strategy.collectives))
                self._blocks.append((strategy.collectives, blocks))
        try:
            return Split(blocks, strategy)
        except (NotCoveredError, InputError):
            return None

    def cost(self, strategy: Strategy) -> Cost | None:
        """The cost of a strategy (no short form), from the last one that was asked for where few
        ops differ.
        """
        with self._lock:
            split, self._last = self._last, None  # another thread starts anew
        if split is None or not split.become(strategy):
            split = self.start(strategy)
        if split is None:
            return None
        cost = split.cost()
        with self._lock:
            self._last = split
        return cost


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
