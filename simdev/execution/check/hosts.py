"""Whether hosts dispatch as rule 9 of the execution contract says, and streams keep the order of
the program, checked from the graph as it runs, its cluster and its costs.

The checker does not trust the edges that lowering made. It computes the order of each thread, how
far hosts are ahead, and the ops they wait for again, from the times of the trace. These rules are
also in ``lowering/hosts.py``, ``lowering/turns.py``, ``lowering/hybrid/dispatch.py`` and
``oracle/cluster.py``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ...costs import CostModel
from ...ground.units import picoseconds
from ...nouns.cluster import Cluster, Host
from ...nouns.graph import Graph
from ...nouns.strategy import Order
from ...nouns.taskgraph import COLLECTIVE, DISPATCH, SYNC, TRANSFER
from ...nouns.trace import Trace
from .violation import Faults, Violation

Instance = tuple[int, int]  # the op, and the number of its earlier runs
Key = tuple[int, int, int]  # the op (REPLAYED: a whole step), its earlier runs, and the device
REPLAYED = -1
ELSEWHERE = (TRANSFER, SYNC, DISPATCH)


class _Run(NamedTuple):
    """A run of an op: its start and end in ps, and its devices."""

    start: int
    finish: int
    devices: tuple[int, ...]


class _Dispatch(NamedTuple):
    """A dispatch of the trace; times in ps."""

    task: int
    op: int
    number: int
    device: int
    start: int
    finish: int


def host_faults(
    graph: Graph, cluster: Cluster, costs: CostModel, trace: Trace, order: Order | None = None
) -> tuple[Violation, ...]:
    """Every breach of rule 9, and of the order of streams, by a trace of ``graph`` (after
    splitting, where ops are split).

    ``order`` is that of the strategy; None where something else determines it (a pipeline,
    microbatches, pieces of ops): then the order on threads is not checked.
    """
    judge = _Judge(graph, cluster, costs, trace, order)
    faults = list(judge.missing())
    return tuple(faults or judge.faults())


@dataclass(frozen=True, eq=False)
class _Judge:
    """Rules ``dispatch``, ``thread``, ``ahead``, ``blocks`` and ``stream``."""

    graph: Graph
    cluster: Cluster
    costs: CostModel
    trace: Trace
    order: Order | None

    # What the trace holds

    @cached_property
    def runs(self) -> Mapping[Instance, _Run]:
        """Every run of an op."""
        tasks, runs = self.trace.task_graph.tasks, dict[Instance, _Run]()
        counts, messages = Counter[int](), dict[int, list[int]]()
        rows = list(zip(tasks.op.tolist(), tasks.kind, tasks.source.tolist(), strict=True))
        ranks = {i: op.attrs["ranks"] for i, op in enumerate(self.graph.ops) if "ranks" in op.attrs}
        # A collective expanded to messages also has a task of another kind, which starts them.
        cut = {op for op, kind, _ in rows if op in ranks and kind not in (COLLECTIVE, *ELSEWHERE)}
        for row, (op, kind, source) in enumerate(rows):
            if kind == COLLECTIVE and op in cut:
                messages.setdefault(op, []).append(row)
            elif op >= 0 and kind not in ELSEWHERE and (kind != COLLECTIVE or op in ranks):
                there = sorted(self.cluster.index[name] for name in ranks.get(op, ()))
                times = int(self.trace.start[row]), int(self.trace.finish[row])
                runs[op, counts[op]] = _Run(*times, tuple(there) or (source,))
                counts[op] += 1
        for op, sent in messages.items():
            # Each run has equally many messages; those of the first run come first.
            arrivals = (self.trace.finish + tasks.lag)[sent].reshape(counts[op], -1).max(axis=1)
            for number, arrival in enumerate(arrivals.tolist()):
                run = runs[op, number]
                runs[op, number] = run._replace(finish=max(run.finish, arrival))
        return runs

    @cached_property
    def dispatches(self) -> tuple[_Dispatch, ...]:
        """The dispatches, in the order of their rows."""
        tasks, counts = self.trace.task_graph.tasks, dict[tuple[int, int], int]()
        dispatches = []
        for task, kind in enumerate(tasks.kind):
            if kind == DISPATCH:
                op, device = int(tasks.op[task]), int(tasks.source[task])
                number = counts[op, device] = counts.get((op, device), -1) + 1
                times = int(self.trace.start[task]), int(self.trace.finish[task])
                dispatches.append(_Dispatch(task, op, number, device, *times))
        return tuple(dispatches)

    def host(self, device: int) -> Host:
        """The host of a device that has one."""
        host = self.cluster.host_of(device)
        assert host is not None
        return host

    def _name(self, dispatch: _Dispatch) -> str:
        return self.trace.task_graph.tasks.name[dispatch.task]

    # Rules

    def missing(self) -> Faults:
        """Missing or superfluous dispatches of ops, and dispatches of the wrong length."""
        given, wanted, steps = set[Key](), set[Key](), range(self.trace.task_graph.steps)
        for dispatch in self.dispatches:
            host = self.cluster.host_of(dispatch.device)
            op = REPLAYED if host is not None and host.mode == "graph" else dispatch.op
            given.add((op, dispatch.number, dispatch.device))
            yield from self._length_faults(dispatch, host)
        for (op, number), run in self.runs.items():
            for device in run.devices:
                host = self.cluster.host_of(device)
                if host is not None and host.mode == "graph":
                    wanted.update((REPLAYED, step, device) for step in steps)
                elif host is not None:
                    wanted.add((op, number, device))
        for op, number, device in sorted(wanted ^ given):
            name = "its graph" if op == REPLAYED else self.graph.ops[op].name
            where = self.cluster.devices[device].name
            verb = "lacks" if (op, number, device) in wanted else "has too many"
            text = f'"{where}" {verb} dispatches of "{name}": number {number}'
            yield Violation("dispatch", (name, where), text)

    def _length_faults(self, dispatch: _Dispatch, host: Host | None) -> Faults:
        name, took = self._name(dispatch), dispatch.finish - dispatch.start
        length = 0 if host is None else self._length(dispatch, host)
        if took != length:
            text = f'"{name}" takes {took} ps; it should take {length}'
            yield Violation("dispatch", (name,), text)

    def _length(self, dispatch: _Dispatch, host: Host) -> int:
        if host.mode == "graph":
            return picoseconds(host.launch)  # type: ignore[arg-type]
        kind = self.cluster.devices[dispatch.device].kind
        cost = self.costs.host_cost(self.graph, dispatch.op, kind)
        return 0 if cost is None else picoseconds(cost.seconds)

    def faults(self) -> Faults:
        """Dispatches and ops out of order, too early or too late; ``missing`` must hold first."""
        yield from self._begin_after_dispatch()
        threads: dict[tuple[str, int], list[_Dispatch]] = defaultdict(list)
        for dispatch in self.dispatches:
            device = self.cluster.devices[dispatch.device]
            shared = self.host(dispatch.device).threads == "node"
            key = ("node", device.node) if shared else ("device", dispatch.device)
            threads[key].append(dispatch)
        for thread in threads.values():
            yield from self._thread(thread)
        yield from self._streams()

    def _streams(self) -> Faults:
        """Rule ``stream``: on each device the ops of a stream run step after step, and each starts
        after the end of the op before it in the graph.
        """
        last: dict[tuple[str, int], Instance] = {}
        for number, op in sorted((number, op) for op, number in self.runs):
            run, stream = self.runs[op, number], self.graph.ops[op].stream
            for device in run.devices if stream is not None else ():
                key = str(stream), device
                before, last[key] = last.get(key), (op, number)
                if before and run.start < self.runs[before].finish:
                    names = self.graph.ops[op].name, self.graph.ops[before[0]].name
                    until = self.runs[before].finish
                    text = (
                        f'"{names[0]}" starts at {run.start}, but "{names[1]}" before it in the '
                        f'stream "{stream}" ends at {until}'
                    )
                    yield Violation("stream", names, text)

    def _begin_after_dispatch(self) -> Faults:
        """Ops that start before all of their dispatches have ended."""
        given, replays = dict[Instance, int](), defaultdict[int, list[int]](list)
        for dispatch in self.dispatches:
            if self.host(dispatch.device).mode == "graph":
                replays[dispatch.device].append(dispatch.finish)
            else:
                key = dispatch.op, dispatch.number
                given[key] = max(given.get(key, 0), dispatch.finish)
        times = Counter(op for op, _ in self.runs)
        for (op, number), run in self.runs.items():
            step = number * self.trace.task_graph.steps // times[op]
            replayed = (replays[device][step] for device in run.devices if device in replays)
            least = max(given.get((op, number), 0), *replayed, 0)
            if run.start < least:
                name = self.graph.ops[op].name
                text = f'"{name}" starts at {run.start}, but its dispatch ends at {least}'
                yield Violation("dispatch", (name,), text)

    def _thread(self, thread: Sequence[_Dispatch]) -> Faults:
        """Faults of one thread: its order, and dispatches that start earlier or later than the end
        of all they must wait for.
        """
        for before, after in self._out_of_order(thread):
            text = f'"{self._name(after)}" stands behind "{self._name(before)}" on its thread'
            yield Violation("thread", (self._name(after), self._name(before)), text)
        ran: dict[int, list[_Dispatch]] = defaultdict(list)
        idle, blocked, last = 0, 0, (-1, -1)
        for dispatch in thread:
            key = dispatch.op, dispatch.number
            eager = self.host(dispatch.device).mode == "eager"
            if last != key and last in self.runs and self.graph.ops[last[0]].blocks_host:
                blocked = max(blocked, self.runs[last].finish)
            held = 0
            if eager:
                ran[dispatch.device].append(dispatch)
                held = self._held(ran[dispatch.device])
            for rule, least in (("thread", idle), ("blocks", blocked), ("ahead", held)):
                if dispatch.start < least:
                    name = self._name(dispatch)
                    text = f'"{name}" starts at {dispatch.start}, but has to wait until {least}'
                    yield Violation(rule, (name,), text)
            if dispatch.start > max(idle, blocked, held):
                name, could = self._name(dispatch), max(idle, blocked, held)
                text = f'"{name}" could start at {could}, but starts at {dispatch.start}'
                yield Violation("thread", (name,), text)
            idle, last = dispatch.finish, key if eager else (-1, -1)

    def _held(self, ran: Sequence[_Dispatch]) -> int:
        """The ps until which the last dispatch of ``ran`` must wait, so that its host is not too
        many kernels ahead: the end of the latest op since which more than ``ahead`` are launched.
        """
        launches, ahead = 0, self.host(ran[-1].device).ahead
        kind = self.cluster.devices[ran[-1].device].kind
        for number, dispatch in enumerate(reversed(ran)):
            launches += self.costs.launches(self.graph, dispatch.op, kind)
            if number and launches > ahead:
                return self.runs[dispatch.op, dispatch.number].finish
        return 0

    # Orders

    def _out_of_order(self, thread: Sequence[_Dispatch]) -> Iterator[tuple[_Dispatch, _Dispatch]]:
        """Pairs of successive dispatches of a thread that are in the wrong order."""
        place = self._places()
        if place is None:
            return
        keys = [(d.number, place[d.op, d.device], d.device) for d in thread]
        for k in range(1, len(thread)):
            if keys[k] < keys[k - 1] or thread[k].start < thread[k - 1].start:
                yield thread[k - 1], thread[k]

    def _places(self) -> Mapping[tuple[int, int], int] | None:
        """The place of each (op, device) in the order of dispatches; None where ``order`` is."""
        if self.order is None:
            return None
        number = {op: op for op in range(len(self.graph.ops))}
        if self.order.policy == "priority":
            number = self._topological(self.order.priority)
        first = ((op, run.devices) for (op, before), run in self.runs.items() if not before)
        places = {(op, device): number[op] for op, devices in first for device in devices}
        for device, names in self.order.sequence.items():
            # Threads take the head of smallest place, so no op counts as earlier than those ahead.
            least = -1
            for name in names if device in self.cluster.index else ():
                op = self.graph.index[name]
                least = max(least, op)
                places[op, self.cluster.index[device]] = least
        return places

    def _topological(self, priority: Mapping[str, int]) -> dict[int, int]:
        """The number of each op in the topological order that always takes, among ops whose inputs
        are there, the smallest (priority, place).
        """
        ranks = [(priority.get(op.name, 0), i) for i, op in enumerate(self.graph.ops)]
        needs = [{producer for producer, _ in reads} for reads in self.graph.reads]
        readers: dict[int, list[int]] = defaultdict(list)
        for i, producers in enumerate(needs):
            for producer in producers:
                readers[producer].append(i)
        able = [rank for rank, producers in zip(ranks, needs, strict=True) if not producers]
        heapify(able)
        number: dict[int, int] = {}
        while able:
            _, op = heappop(able)
            number[op] = len(number)
            for reader in readers[op]:
                needs[reader].discard(op)
                if not needs[reader]:
                    heappush(able, ranks[reader])
        return number
