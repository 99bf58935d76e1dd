"""The compiled path of strategies that split ops: one ready to be evaluated, changed op by op."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from ...ground.errors import InputError
from ...ground.jit import Table
from ...lowering import Prepared
from ...lowering.partition.problem import SplitProblem
from ...nouns.graph import Graph
from ...nouns.semantics import statistics_of
from ...nouns.strategy import Collectives, Order, Resolved, Strategy
from ...nouns.taskgraph import Ints
from ..cost import EXCEEDING, WORSE, Cost, limits_of
from ..peaks import Events, events_for
from ..threads import threads_of
from .arena import MOST_BASES
from .blocks import Blocks
from .bounds import MORE, NEVER, add_loads
from .buffers import cost, cost_in_order
from .columns import (
    ANY_PART,
    BITS,
    LIMIT,
    MOST_PS,
    ROWS,
    SENT,
    SHAPE,
    STATISTICS,
    VALUES,
    Columns,
    NotCoveredError,
    Record,
    fan_work_for,
    record_for,
    rules_of,
    work_for,
)
from .fan import fans
from .hosts import Hosts, dispatches_of, hosts_for
from .instants import FULL, LONG
from .instants import WORSE as EXCEEDS
from .pieces import FULL as NO_ROOM
from .program import SplitProgram
from .run import step, step_in_order
from .states import take_back

# Which strategies and questions the compiled path of splits knows.

FREE = ("placement", "partition", "sync", "collectives", "order")
ORDERS = Order("fifo"), Order("program")
COVERED = ("all-reduce", "parameter-server", "sharded")
"""Ways to add gradients up, each tensor by itself."""
FREE_OF_COLLECTIVES = ("algorithm", "cost", "tables", "chunks")
"""Fields of a strategy, and of its collectives, that may be anything here; others must be left out.
"""


def require_covered(prepared: Prepared, strategy: Strategy) -> None:
    """Raise NotCoveredError where lowering has to answer for the strategy, or the question."""
    cluster, default, ops = prepared.cluster, Strategy(), prepared.graph.ops
    covered = (
        strategy.sync in COVERED
        and strategy.order in ORDERS
        and _equal(strategy, default, FREE)
        and _equal(strategy.collectives, default.collectives, FREE_OF_COLLECTIVES)
        and cluster.transfer == "once-per-device"
        and prepared.memory.model == "full"
        and not any(device.staging for device in cluster.devices)
        and not prepared.fabric.shares_rates
        and not prepared.rings
    )
    named = not any(
        op.control_inputs or "#" in op.name or len(op.made) < len(op.outputs) for op in ops
    )
    if not (covered and named and ops):
        raise NotCoveredError


def _equal(value: Any, other: Any, but: Sequence[str]) -> bool:
    """Whether two values of a dataclass have equal fields, some left out."""
    names = (field.name for field in fields(other) if field.name not in but)
    return all(getattr(value, name) == getattr(other, name) for name in names)


ROUNDS = (5, 9, 2, 13)
"""Bits of rounds on the heap, tried in turn: few leave more room for times that lie far apart."""
WASTE = 8
"""Fans that are not used any more are dropped when all take so many times the room of those that
are.
"""
OF_SLOT = 6  # columns by slot: block, state, count, fan, wait, first


class SplitStrategy:
    """A strategy as columns. ``change`` makes it another one, until ``keep`` or ``back``."""

    def __init__(self, blocks: Blocks, strategy: Strategy) -> None:
        """Raises NotCoveredError, InputError."""
        prepared = blocks.prepared
        require_covered(prepared, strategy)
        self.prepared, self.strategy, self.blocks = prepared, strategy, blocks
        self.problem = SplitProblem(prepared.graph, prepared.cluster, strategy)
        self.program = SplitProgram(self.problem)
        self._every_sum, self._rounds = False, ROUNDS[0]
        self._rules = Table.of(rules_of(prepared))
        self._threads = threads_of(prepared, strategy.order.policy == "program")
        if self._threads is not None and self._threads.captured.max() >= MOST_PS:
            raise NotCoveredError
        self._hosts: Table[Hosts] | None = None
        self._fans, self._end = np.zeros(1 << 16, np.int64), 1
        self._read(prepared.graph)
        self._loads = np.zeros(self._rules.columns.queues + MORE, np.int64)
        self._make_work(1 << 12)
        self._make_fan_work(1 << 12)
        self._memory: tuple[int, Table[Record], Table[Events]] | None = None
        self._reserved = np.array([sum(sizes) for sizes in prepared.reserves], np.int64)
        self._peaks, self._limits = self._reserved.copy(), limits_of(prepared.cluster)
        self._place_columns()
        self._fill_all()
        self.keep()

    def _read(self, graph: Graph) -> None:
        """Columns of what reads what."""
        groups: list[list[tuple[int, list[tuple[int, int]]]]] = [[] for _ in graph.ops]
        for reader, tensors in enumerate(self.problem.read):
            for operand, (producer, output) in enumerate(tensors):
                if not groups[producer] or groups[producer][-1][0] != reader:
                    groups[producer].append((reader, []))
                groups[producer][-1][1].append((operand, output))
        self._readers = [[reader for reader, _ in group] for group in groups]
        self._producers = [
            list(dict.fromkeys(producer for producer, _ in read)) for read in self.problem.read
        ]
        self._tensor_ptr = list(accumulate((len(op.outputs) for op in graph.ops), initial=0))
        flat = [(op, *group) for op, those in enumerate(groups) for group in those]
        entries = [(op, reader, *entry) for op, reader, those in flat for entry in those]
        feeds: list[list[tuple[int, int]]] = [[] for _ in graph.ops]
        for group, (op, reader, _) in enumerate(flat):
            feeds[reader].append((op, group))
        self._slots = np.zeros((OF_SLOT, len(graph.ops) + self._tensor_ptr[-1]), np.int64)
        self._block, self._devices, self._count, *_ = self._slots
        self._given = np.zeros(len(graph.ops), np.int64)
        columns: tuple[Iterable[int], ...] = (
            self._tensor_ptr,
            accumulate(map(len, groups), initial=0),
            (reader for _, reader, _ in flat),
            accumulate((len(those) for *_, those in flat), initial=0),
            (operand for _, _, operand, _ in entries),
            (output for *_, output in entries),
            (self._how(reader, operand) for _, reader, operand, _ in entries),
            accumulate(map(len, feeds), initial=0),
            (op for feed in feeds for op, _ in feed),
            (group for feed in feeds for _, group in feed),
        )
        self._fixed = list(map(_ints, columns))

    def _how(self, reader: int, operand: int) -> int:
        """How the parts of an op read an operand."""
        ops, op = self.prepared.graph.ops, self.problem.readings[reader]
        if op.shape_only(operand):
            return ANY_PART if op.any_part(operand) else SHAPE
        producer, _ = self.problem.read[reader][operand]
        backward = statistics_of(ops[reader].kind) == ops[producer].kind
        return STATISTICS if backward else VALUES

    # Room

    def _place_columns(self) -> None:
        """The columns as kernels take them; again where one has moved."""
        self._arena = self.blocks.arena.data
        ops, devices = len(self.prepared.graph.ops), len(self.prepared.cluster.devices)
        sizes = ops, self._slots.shape[1], devices
        columns = self._arena, self._fans, *self._slots, self._given, *self._fixed
        self._columns = Table.of(Columns(*sizes, *columns))

    def _make_fan_work(self, most: int) -> None:
        outputs = max(len(op.outputs) for op in self.prepared.graph.ops)
        devices = len(self.prepared.cluster.devices)
        self._fan_work = Table.of(fan_work_for(most, outputs, devices))

    def _make_work(self, most: int) -> None:
        ops, slots = len(self.prepared.graph.ops), self._slots.shape[1]
        self._work = Table.of(work_for(most, ops, slots, self._rules.columns, self._loads))
        if self._threads is not None:
            program = self.strategy.order.policy == "program"
            self._hosts = Table.of(hosts_for(self.prepared, self._threads, program, most))

    # Blocks and fans

    def _fill_all(self) -> None:
        everything = range(len(self.prepared.graph.ops))
        self._end = 1
        self._loads[:] = 0
        with self.blocks.lock:
            self._fill(everything, everything)
        self._add_loads(everything, 1)
        self._live = self._end

    def _fill(self, changed: Iterable[int], dirty: Iterable[int]) -> None:
        """The blocks of changed ops, and the fans of dirty ones. Raises NotCoveredError."""
        program, ops = self.program, len(self.prepared.graph.ops)
        for i in changed:
            split = program.ops[i]
            self._block[i], self._devices[i] = split.words or self.blocks.op(program, split)
            self._count[i] = len(split.devices)
        for i in dirty:
            partial, first = program.ops[i].partial, self._tensor_ptr[i]
            for k in range(self._tensor_ptr[i + 1] - first):
                self._fill_sums((i, k), ops + first + k, k in partial)
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
            block[slot], count[slot] = 0, 0
            return
        sums = self.program.sums.get(tensor)
        if sums is None or sums.made is not self.program.ops[tensor[0]]:
            sums = self.program.sums_of(tensor, None)
        block[slot], count[slot] = self.blocks.sums(self.program, sums)

    def _needed(self, tensor: tuple[int, int]) -> bool:
        """Whether some reader may want the values, not the statistics or the partial result of its
        own part.
        """
        return any(
            read == tensor and self._how(reader, operand) == VALUES
            for reader in self._readers[tensor[0]]
            if self.program.ops[reader].addend is None
            for operand, read in enumerate(self.problem.read[reader])
        )

    def _write(self, dirty: Ints, waiting: Ints) -> bool:
        """Let the kernels write; whether nothing was asked for that is not there."""
        while True:
            words, room = (self._columns.words, self._fan_work.words), len(self._fans)
            end = fans(*words, dirty, waiting, self._end, room)
            if end > 0:
                self._end = end
                return True
            if end != -NO_ROOM:
                return False
            most = self._fan_work.columns.most_asks
            if self._end + 64 * len(dirty) > room // 2 or most > room:
                self._fans = np.concatenate((self._fans, np.zeros(room, np.int64)))
                self._place_columns()
            else:
                self._make_fan_work(2 * most)

    # Changes

    def change(self, changes: Mapping[int, Resolved | None]) -> bool:
        """Other configurations of ops (None: they follow); where it is False, go ``back``."""
        if not all(self.program.takes(*change) for change in changes.items()):
            return False
        try:
            self._change(changes)
        except (NotCoveredError, InputError):
            return False
        return True

    def _change(self, changes: Mapping[int, Resolved | None]) -> None:
        program = self.program
        program.change(changes)
        changed = [i for i, before in program.before.items() if program.ops[i] is not before]
        dirty = dict.fromkeys(changed)
        for i in changed:
            dirty.update(dict.fromkeys(self._producers[i]))
        every_sum = self._every_sum
        self._add_loads(dirty, -1)
        with self.blocks.lock:
            self._fill(changed, dirty)
        if self._every_sum == every_sum:
            self._add_loads(dirty, 1)
        else:  # then all were filled
            self._loads[:] = 0
            self._add_loads(range(len(self.prepared.graph.ops)), 1)

    def _add_loads(self, ops: Iterable[int], sign: int) -> None:
        words = self._columns.words, self._rules.words
        add_loads(*words, self._loads, _ints(ops), sign)

    def keep(self) -> None:
        """Make what it is now the one to go back to."""
        self.program.log.clear()
        self.program.before.clear()
        if self._end > WASTE * self._live:
            self._fill_all()
        self._kept = self._slots.copy(), self._given.copy(), self._loads.copy(), self._end

    def back(self) -> None:
        """Undo all changes since it was last kept."""
        take_back(self.program.log)
        self.program.before.clear()
        self._slots[:], self._given[:], self._loads[:], self._end = self._kept

    def become(self, strategy: Strategy) -> bool:
        """Change to another strategy of the same question, where that is a change of some
        configurations.
        """
        splits = {"partition": self.strategy.partition, "placement": self.strategy.placement}
        if replace(strategy, **splits) != self.strategy:  # type: ignore[arg-type]
            return False
        other = SplitProblem(self.prepared.graph, self.prepared.cluster, strategy)
        try:
            configured, placed = other.configured, other.placed
        except InputError:
            return False
        before = self.program.configured
        changes: dict[int, Resolved | None] = {i: None for i in before if i not in configured}
        changes |= {i: known for i, known in configured.items() if before.get(i) != known}
        if placed != self.problem.placed or not self.change(changes):
            self.back()
            return False
        self.keep()
        return True

    # Answers

    def step_ps(self, limit_ps: int | None = None) -> int | None:
        """The step time in ps, WORSE where it is sure to exceed a limit; None where lowering has to
        answer.
        """
        return self._until_it_fits(self._step, limit_ps)

    def _step(self) -> int:
        return step(*self._words) if self._hosts is None else step_in_order(*self._words)

    @property
    def _words(self) -> Any:
        hosts = () if self._hosts is None else (self._hosts.words,)
        return self._columns.words, self._rules.words, self._work.words, *hosts

    def cost(self, limit_ps: int | None = None) -> Cost | None:
        """Step time and memory, EXCEEDING where it is sure to exceed a limit; None where lowering
        has to answer.
        """
        step_ps = self._until_it_fits(self._cost, limit_ps)
        if step_ps == WORSE:
            return EXCEEDING
        return None if step_ps is None else Cost.of(step_ps, self._peaks.tolist(), self._limits)

    def _cost(self) -> int:
        most, devices = self._work.columns.most_rows, len(self._reserved)
        if self._memory is None or self._memory[0] < most:
            events = Table.of(events_for(8 * most, devices, MOST_BASES, 0))
            self._memory = most, Table.of(record_for(most)), events
        most, record, events = self._memory
        self._peaks[:] = self._reserved
        evaluate: Callable[..., int] = cost if self._hosts is None else cost_in_order
        return evaluate(*self._words, record.words, events.words, 8 * most, self._peaks)

    def _until_it_fits(self, evaluate: Callable[[], int], limit_ps: int | None) -> int | None:
        """The step time in ps, with as much room and as few bits for rounds as it takes; or WORSE,
        or None.
        """
        limit = NEVER if limit_ps is None else min(limit_ps, NEVER)
        for rounds in dict.fromkeys((self._rounds, *ROUNDS)):
            while True:
                cell = self._work.columns.cell
                cell[BITS], cell[LIMIT] = rounds, limit
                step_ps = evaluate()
                if step_ps != -FULL:
                    break
                self._make_work(2 * self._work.columns.most_rows)
            if step_ps >= 0 or step_ps == -EXCEEDS:
                self._rounds = rounds
                return step_ps if step_ps >= 0 else WORSE
            if step_ps == -LONG:
                break
        return None

    @property
    def tasks(self) -> int:
        """How many tasks the last evaluation had."""
        cell = self._work.columns.cell
        dispatches = 0 if self._hosts is None else dispatches_of(self._hosts.columns)
        return int(cell[ROWS] + cell[SENT]) + dispatches


class SplitEvaluator:
    """The strategies of one oracle that the compiled path answers; what they need is made once."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._blocks: list[tuple[Collectives, Blocks]] = []
        self._last: SplitStrategy | None = None
        self._lock = threading.Lock()

    def _blocks_of(self, collectives: Collectives) -> Blocks:
        with self._lock:
            for known, blocks in self._blocks:  # a list: tables of collectives have no hash
                if known == collectives:
                    return blocks
            blocks = Blocks(self.prepared.of(self.prepared.graph, collectives))
            self._blocks.append((collectives, blocks))
            return blocks

    def start(self, strategy: Strategy) -> SplitStrategy | None:
        """A strategy (no short form), ready to be evaluated; None where lowering has to answer."""
        try:
            return SplitStrategy(self._blocks_of(strategy.collectives), strategy)
        except (NotCoveredError, InputError):
            return None

    def cost(self, strategy: Strategy) -> Cost | None:
        """The cost of a strategy (no short form), by changing the last one that was evaluated where
        that can be; None where lowering has to answer.
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
