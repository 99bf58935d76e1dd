"""The compiled path of strategies that split ops: strategies as columns, which change op by op.

The oracle makes a ``SplitEvaluator``, and sessions keep a ``SplitStrategy``. ``require_covered``
refuses a strategy or a cluster with a rule that the kernels lack; then lowering answers. Lifetimes
of buffers (rule 7) follow ``lowering.build``, here and in ``placements/evaluator.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ...ground.errors import InputError
from ...ground.jit import Table, bare, jit, jitable
from ...lowering import Prepared
from ...lowering.partition.problem import SplitProblem
from ...nouns.graph import Graph
from ...nouns.semantics import statistics_of
from ...nouns.strategy import Collectives, Order, Resolved, Strategy
from ...nouns.taskgraph import Ints, Rows
from ..cluster import ENTRIES, Hosts, hosts_for, is_covered, open_hosts, threads_of
from ..cost import EXCEEDING, NEVER, WORSE, Cost, limits_of
from ..heap import FAULT
from ..peaks import BUFFERS, Events, add_peaks, buffer, clear, events_for, open_events
from .blocks import Blocks
from .columns import (
    ANY_PART,
    BASES,
    DEVICES,
    FULL,
    LIMIT,
    LONG,
    MANY_ASKS,
    MANY_FANS,
    MOST_BASES,
    MOST_PS,
    PART_BITS,
    PART_MASK,
    REF_BITS,
    REF_MASK,
    ROW,
    ROWS,
    SENT,
    SHAPE,
    SIZES,
    STATISTICS,
    STRIDE,
    SUM_SIZES,
    VALUES,
    WRONG,
    Columns,
    NotCoveredError,
    Record,
    Rules,
    Work,
    fan_work_for,
    open_columns,
    open_record,
    open_rules,
    open_work,
    record_for,
    rules_of,
    work_for,
)
from .columns import WORSE as EXCEEDS
from .fan import fans
from .hosts import device_of
from .program import SplitProgram, take_back
from .run import add_loads, row_of, run

# Exact peaks of memory of a strategy: the buffers that ``lowering.build`` makes, from a recorded
# run.


@jitable
def add(v: Events, most: int, device: int, size: int, begin: int, end: int) -> None:
    """Add a buffer, if there is room."""
    # Counted even without room: the caller sees from the count how much room to make.
    n = v.cell[BUFFERS]
    v.cell[BUFFERS] = n + 1
    if n < most:
        buffer(v, n, device, size, begin, end)


@jitable
def read_until(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, bases: int
) -> None:
    """Write the end of the last read of each output of a row to ``v.end``, and add the buffers of
    the copies that its transfers make.
    """
    fans = t.fans
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    for base in range(bases):
        v.end[base] = r.finish[row]
    fan = t.fan[slot] + part
    for e in range(fans[fan], fans[fan + 1]):
        base, reader = fans[e] >> REF_BITS, row_of(t, w, fans[e] & REF_MASK)
        v.end[base] = max(v.end[base], r.finish[reader])
    fan += t.parts[slot] + 1
    at, end, sent = fans[fan], fans[fan + 1], r.first_sent[row]
    while at < end:
        base, count, until = fans[at + 2], fans[at + 3], 0
        v.end[base] = max(v.end[base], r.received[sent])
        for k in range(at + 4, at + 4 + count):
            until = max(until, r.finish[row_of(t, w, fans[k])])
        # A received copy is a separate allocation, rounded as the allocator rounds.
        size = -(-fans[at + 1] // q.unit) * q.unit
        add(v, most, fans[at] % t.devices, size, r.sent[sent], until)
        at, sent = at + 4 + count, sent + 1


@jitable
def row_buffers(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, peak: Ints
) -> None:
    """Add the buffers of a row, and its persistent bytes to ``peak``."""
    arena = t.arena
    slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
    start, finish = r.start[row], r.finish[row]
    if slot < t.ops:
        block, device = t.block[slot], device_of(t, slot, part)
        bases = arena[block + STRIDE] - 2
        sizes = arena[block + SIZES] + part * (bases + 2)
        peak[device] += arena[sizes]
        add(v, most, device, arena[sizes + 1], start, finish)
        read_until(t, w, r, v, q, most, row, bases)
        for base in range(bases):
            add(v, most, device, arena[sizes + 2 + base], start, v.end[base])
        return
    where = arena[t.block[slot] + ROW + part]
    bases, sizes = arena[where + BASES], arena[where + SUM_SIZES]
    read_until(t, w, r, v, q, most, row, bases)
    for base in range(bases):
        device = arena[where + DEVICES + base]
        add(v, most, device, arena[sizes + base], start, v.end[base])


@jitable
def peaks_of(
    t: Columns,
    q: Rules,
    w: Work,
    r: Record | None,
    v: Events,
    most: int,
    step_ps: int,
    peak: Ints,
) -> int:
    """Raise ``peak``, the bytes reserved on every device, to the device's peak, where the run was
    recorded; returns the step time in ps, or minus a fault. There is room for ``most`` buffers.
    """
    if r is None or step_ps < 0:
        return step_ps
    if not clear(v, q.devices, step_ps):
        return -LONG
    for row in range(w.cell[ROWS]):
        row_buffers(t, w, r, v, q, most, row, peak)
    if v.cell[BUFFERS] > most:
        w.cell[FAULT] = FULL
        return -FULL
    add_peaks(v, q.devices, peak)
    return step_ps


@jit
def evaluate(
    columns: Ints,
    rules: Ints,
    work: Ints,
    hosts: Ints,
    record: Ints,
    events: Ints,
    most: int,
    peaks: Ints,
) -> int:
    """The step time in ps, or minus a fault; see ``peaks_of``. Callers pass 0 in place of hosts, or
    of a record and events, where there are none.
    """
    t, q, w, r = open_columns(columns), open_rules(rules), open_work(work), open_record(record)
    step_ps = run(t, q, w, r, open_hosts(hosts))
    return peaks_of(t, q, w, r, open_events(events), most, step_ps, bare(peaks))


# Strategies and questions that the compiled path of splits covers.

FREE = ("placement", "partition", "sync", "collectives", "order")
ORDERS = Order("fifo"), Order("program")
COVERED = ("all-reduce", "parameter-server", "sharded")
"""Values of ``sync`` that reduce each gradient by itself."""
FREE_OF_COLLECTIVES = ("algorithm", "cost", "tables", "chunks")
"""Fields of a strategy (FREE) and of its collectives that may have any value here; all others must
have their defaults.
"""


def require_covered(prepared: Prepared, strategy: Strategy) -> None:
    """Raise NotCoveredError where the kernels do not cover the strategy or the question."""
    default, ops = Strategy(), prepared.graph.ops
    covered = (
        strategy.sync in COVERED
        and strategy.order in ORDERS
        and _equal(strategy, default, FREE)
        and _equal(strategy.collectives, default.collectives, FREE_OF_COLLECTIVES)
        and prepared.cluster.transfer == "once-per-device"
        and is_covered(prepared)
        and not prepared.cluster.has_stragglers
    )
    named = not any(
        op.control_inputs or "#" in op.name or len(op.made) < len(op.outputs) for op in ops
    )
    if not (covered and named and ops):
        raise NotCoveredError


def _equal(value: Any, other: Any, but: Sequence[str]) -> bool:
    """Whether two values of a dataclass have equal fields, apart from the fields ``but``."""
    names = (field.name for field in fields(other) if field.name not in but)
    return all(getattr(value, name) == getattr(other, name) for name in names)


ROUNDS = (5, 9, 2, 13)
"""Bits of rounds on the heap, tried in turn: few leave more room for times that lie far apart."""
WASTE = 8
"""Fans are all written again when they take this many times the words of the fans in use."""
NO: Any = 0  # the argument in place of a table that an evaluation does not need
ROWS_AT_FIRST, WORDS = 1 << 12, 1 << 16  # first sizes: rows and asks, and words of fans
BY_ROW = 8  # buffers, or dispatches, for each row that there is room for
OF_SLOT = 6  # columns by slot: block, devices_of, parts, fan, wait, first


class SplitStrategy:
    """A strategy as columns. ``change`` changes it; then ``keep`` or ``back`` must follow."""

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
        self._fans, self._end = np.zeros(WORDS, np.int64), 1
        self._read(prepared.graph)
        self._loads = np.zeros(self._rules.columns.queues + 1, np.int64)
        self._make_work(ROWS_AT_FIRST)
        self._make_fan_work(ROWS_AT_FIRST)
        self._memory: tuple[int, Table[Record], Table[Events]] | None = None
        self._reserved = np.array([sum(sizes) for sizes in prepared.reserves], np.int64)
        self._peaks, self._limits = self._reserved.copy(), limits_of(prepared.cluster)
        self._place_columns()
        self._fill_all()
        self.keep()

    def _read(self, graph: Graph) -> None:
        """Make the columns of reads. An entry is a read of an output by an operand; a group has the
        entries of an op and a reader.
        """
        ops = len(graph.ops)
        every = sorted(
            (producer, reader, operand, output)
            for reader, tensors in enumerate(self.problem.read)
            for operand, (producer, output) in enumerate(tensors)
        )
        entries = np.array(every, np.int64).reshape(-1, 4)
        groups, first = np.unique(entries[:, :2], axis=0, return_index=True)
        readers = Rows(np.searchsorted(groups[:, 0], np.arange(ops + 1)), groups[:, 1])
        feeds = Rows.of_pairs(readers.ids, np.arange(len(groups)), ops)
        fed_by = groups[feeds.ids, 0]
        self._readers, self._producers = readers.lists(), Rows(feeds.ptr, fed_by).lists()
        self._tensor_ptr = list(accumulate((len(op.outputs) for op in graph.ops), initial=0))
        self._slots = np.zeros((OF_SLOT, ops + self._tensor_ptr[-1]), np.int64)
        self._block, self._devices, self._count, *_ = self._slots
        self._given = np.zeros(ops, np.int64)
        columns: tuple[Iterable[int], ...] = (
            self._tensor_ptr,
            readers.ptr,
            readers.ids,
            (*first, len(every)),
            entries[:, 2],
            entries[:, 3],
            (self._how(reader, operand) for _, reader, operand, _ in every),
            feeds.ptr,
            fed_by,
            feeds.ids,
        )
        self._fixed = list(map(_ints, columns))

    def _how(self, reader: int, operand: int) -> int:
        """The way in which the parts of an op read an operand: VALUES, STATISTICS, SHAPE or
        ANY_PART.
        """
        ops, op = self.prepared.graph.ops, self.problem.readings[reader]
        if op.shape_only(operand):
            return ANY_PART if op.any_part(operand) else SHAPE
        producer, _ = self.problem.read[reader][operand]
        backward = statistics_of(ops[reader].kind) == ops[producer].kind
        return STATISTICS if backward else VALUES

    # Work space

    def _place_columns(self) -> None:
        """Make the table of columns for kernels; needed again when an array was replaced."""
        self._arena = self.blocks.arena.data
        ops, devices = len(self.prepared.graph.ops), len(self.prepared.cluster.devices)
        sizes = ops, self._slots.shape[1], devices
        columns = self._arena, self._fans, *self._slots, self._given, *self._fixed
        self._columns = Table.of(Columns(*sizes, *columns))

    def _make_fan_work(self, most: int) -> None:
        made = [op.outputs for op in self.prepared.graph.ops]
        outputs = max(map(len, made))
        rank = max((len(tensor.shape or ()) for tensor in chain(*made)), default=0)
        devices = len(self.prepared.cluster.devices)
        self._fan_work = Table.of(fan_work_for(most, outputs, devices, rank))

    def _make_work(self, most: int) -> None:
        ops, slots = len(self.prepared.graph.ops), self._slots.shape[1]
        work = work_for(most, ops, slots, self._rules.columns, self._loads)
        self._works = {bits: Table.of(work._replace(bits=bits)) for bits in ROUNDS}
        if self._threads is not None:
            program = self.strategy.order.policy == "program"
            hosts = hosts_for(self.prepared, self._threads, program, most, BY_ROW * most)
            self._hosts = Table.of(hosts)

    @property
    def _work(self) -> Work:
        return self._works[self._rounds].columns

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
        """Write the blocks of changed ops, and the fans of dirty ones. Raises NotCoveredError."""
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
            # Possibly a sum that only some parts need, while others use the statistics of their own
            # part: try again with all sums.
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
        """Whether any reader may need the values of a tensor, rather than the statistics or the
        partial result of its own part.
        """
        return any(
            read == tensor and self._how(reader, operand) == VALUES
            for reader in self._readers[tensor[0]]
            if self.program.ops[reader].addend is None
            for operand, read in enumerate(self.problem.read[reader])
        )

    def _write(self, dirty: Ints, waiting: Ints) -> bool:
        """Let the kernels write fans and waits; False where a reader needs an unwritten sum."""
        while True:
            words, work = (self._columns.words, self._fan_work.words), self._fan_work.columns
            end = fans(*words, dirty, waiting, self._end, len(self._fans))
            if work.cell[WRONG] == MANY_ASKS:
                self._make_fan_work(2 * work.most_asks)
            elif work.cell[WRONG] == MANY_FANS:
                self._fans = np.concatenate((self._fans, np.zeros_like(self._fans)))
                self._place_columns()
            else:
                self._end = end
                return not work.cell[WRONG]

    # Changes

    def change(self, changes: Mapping[int, Resolved | None]) -> bool:
        """Give ops other configurations (None: they follow their producers). Where the result is
        False, the caller must go ``back``.
        """
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
        else:  # all ops were filled again
            self._loads[:] = 0
            self._add_loads(range(len(self.prepared.graph.ops)), 1)

    def _add_loads(self, ops: Iterable[int], sign: int) -> None:
        words = self._columns.words, self._rules.words
        add_loads(*words, self._loads, _ints(ops), sign)

    def keep(self) -> None:
        """Make the current strategy the one to which ``back`` returns."""
        self.program.log.clear()
        self.program.before.clear()
        if self._end > WASTE * self._live:
            self._fill_all()
        self._kept = self._slots.copy(), self._given.copy(), self._loads.copy(), self._end

    def back(self) -> None:
        """Undo all changes since the last ``keep``."""
        take_back(self.program.log)
        self.program.before.clear()
        self._slots[:], self._given[:], self._loads[:], self._end = self._kept

    def become(self, strategy: Strategy) -> bool:
        """Change to another strategy of the same question, where only configurations differ, and
        keep it; where the result is False, this object must not be used any more.
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
            return False
        self.keep()
        return True

    # Answers

    def step_ps(self, limit_ps: int = NEVER) -> int | None:
        """The step time in ps, WORSE where it is sure to exceed the limit; None where lowering has
        to answer.
        """
        return self._until_it_fits(lambda: (NO, NO, 0), limit_ps)

    def cost(self, limit_ps: int = NEVER) -> Cost | None:
        """Step time and memory, EXCEEDING where the step is sure to exceed the limit; None where
        lowering has to answer.
        """
        step_ps = self._until_it_fits(self._room, limit_ps)
        if step_ps == WORSE:
            return EXCEEDING
        return None if step_ps is None else Cost.of(step_ps, self._peaks.tolist(), self._limits)

    def _room(self) -> tuple[Ints, Ints, int]:
        """The words of a record and of events, and the number of buffers there is room for."""
        most = self._work.most_rows
        if self._memory is None or self._memory[0] < most:
            events = Table.of(events_for(BY_ROW * most, len(self._reserved), MOST_BASES, 0))
            self._memory = most, Table.of(record_for(most)), events
        _, record, events = self._memory
        self._peaks[:] = self._reserved
        return record.words, events.words, BY_ROW * most

    def _until_it_fits(self, room: Callable[[], tuple[Any, Any, int]], limit_ps: int) -> int | None:
        """The step time in ps, or WORSE, or None; tried with more room, and with other numbers of
        bits for rounds, until a run ends without their faults.
        """
        for bits in dict.fromkeys((self._rounds, *ROUNDS)):
            step_ps = -FULL
            while step_ps == -FULL:
                self._work.cell[LIMIT] = limit_ps
                tables = self._columns.words, self._rules.words, self._works[bits].words
                hosts = NO if self._hosts is None else self._hosts.words
                step_ps = evaluate(*tables, hosts, *room(), self._peaks)
                if step_ps == -FULL:
                    self._make_work(2 * self._work.most_rows)
            if step_ps >= 0 or step_ps == -EXCEEDS:
                self._rounds = bits
                return step_ps if step_ps >= 0 else WORSE
            if step_ps == -LONG:
                break
        return None

    @property
    def tasks(self) -> int:
        """The number of tasks in the last evaluation."""
        cell = self._work.cell
        dispatches = 0 if self._hosts is None else self._hosts.columns.cell[ENTRIES]
        return int(cell[ROWS] + cell[SENT] + dispatches)


class SplitEvaluator:
    """Evaluates the strategies of an oracle on the compiled path; they share their blocks."""

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
        """The cost of a strategy (no short form), by changing the strategy evaluated last where
        possible; None where lowering has to answer.
        """
        with self._lock:
            split, self._last = self._last, None  # meanwhile another thread makes a new one
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
