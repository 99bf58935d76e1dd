"""SoapSession: local search over how ops are split, one change of configurations at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...lowering import without_short, written_out
from ...strategy import Configuration, Resolved, Resolver, Strategy
from ..cost import Cost

if TYPE_CHECKING:
    from ..oracle import Oracle
    from .fast import Split

Changes = Mapping[str, Configuration | None]


class SoapSession:
    """A current strategy, and proposals to configure ops in another way; not for several threads at
    once.

    ``cost`` is that of the current strategy. Every answer equals that of a full rebuild: only what
    a change reaches is built anew where the compiled path applies, all is elsewhere. Where some
    device has a capacity, memory is computed for each proposal too; elsewhere ``peaks`` is empty,
    since nothing can exceed anything.
    """

    def __init__(self, oracle: Oracle, strategy: Strategy) -> None:
        self.oracle = oracle
        self._strategy = without_short(oracle.graph, oracle.cluster, strategy, oracle.costs)
        self._limited = any(device.memory is not None for device in oracle.cluster.devices)
        self._resolver = Resolver(oracle.graph, oracle.cluster, {})
        self._known: dict[Any, Resolved] = {}
        named = *self._strategy.partition, *self._strategy.placement
        groups = oracle.graph.groups
        self._has_patterns = any(name not in oracle.graph.index or name in groups for name in named)
        # since the strategy was last written out
        self._accepted: dict[str, Configuration | None] = {}
        self._proposed: tuple[Changes, Cost] | None = None
        self._pending: Split | None = None  # what answered the last proposal
        self._split = self._started(self._strategy)
        self.cost = self._start()

    def _started(self, strategy: Strategy) -> Split | None:
        """The compiled path's; None where it has none.

        A strategy that splits nothing is placed op by op instead.
        """
        splits, once = self.oracle._splits, self.oracle._runs_once(strategy)
        return splits.start(strategy) if splits is not None and strategy.splits and once else None

    def _start(self) -> Cost:
        if self._split is not None:
            cost = self._answer(self._split)
            if cost is not None:
                return cost
            self._split = None
        return self._in_full(self._strategy)

    @property
    def strategy(self) -> Strategy:
        """The current strategy, a short form written out."""
        if self._accepted:
            self._strategy, self._accepted = changed(self._strategy, self._accepted), {}
        return self._strategy

    @property
    def tasks(self) -> int | None:
        """How many tasks the last evaluation simulated; None where the compiled path did not answer
        it.
        """
        split = self._pending or self._split
        return None if split is None else split.tasks

    def pinned(self, *phases: str) -> SoapSession:
        """A session from the same strategy, where the ops of these phases (none: forward) do not
        follow others.

        Each has a configuration of its own then, so that a change of one op leaves the others as
        they are: what a move means in FlexFlow. The cost is the same. Raises InputError.
        """
        oracle = self.oracle
        own: Sequence[str] = phases or ("forward",)
        return SoapSession(
            oracle, written_out(oracle.graph, oracle.cluster, self.strategy, oracle.costs, own)
        )

    def propose(self, op: str | Changes, configuration: Configuration | None = None) -> Cost:
        """The cost with one op, or several in a mapping, in another configuration (None: it follows
        what it reads).

        What an op had before, in ``partition`` or ``placement`` under its own name, is replaced.
        Raises InputError.
        """
        changes: Changes = {op: configuration} if isinstance(op, str) else dict(op)
        if self._proposed is not None:
            self.reject()
        if not changes.keys() <= self.oracle.graph.index.keys():
            unknown = [name for name in changes if name not in self.oracle.graph.index]
            raise InputError([f'session: no op named "{name}"' for name in unknown])
        cost = self._changed(changes)
        if cost is None:
            cost = self._rebuilt(changed(self.strategy, changes))
        self._proposed = changes, cost
        return cost

    def _changed(self, changes: Changes) -> Cost | None:
        """The answer of the compiled path; None where it has none."""
        split, index = self._split, self.oracle.graph.index
        if split is None or not changes.keys().isdisjoint(self.oracle.graph.groups):
            return None
        if None in changes.values() and (
            self._has_patterns or not changed(self.strategy, changes).splits
        ):
            return None
        try:
            found = {index[name]: self._resolved(index[name], one) for name, one in changes.items()}
        except InputError:
            return None  # lowering says what is wrong
        try:
            cost = self._answer(split) if split.change(found) else None
            self._pending = None if cost is None else split
        finally:
            if self._pending is None:
                split.back()
        return cost

    def _resolved(self, i: int, one: Configuration | None) -> Resolved | None:
        if one is None:
            return None
        # 2.0 and True are no degrees, though they equal some
        key = i, repr(one.split), one.devices, one.time
        if key not in self._known:
            self._known[key] = self._resolver.resolved(i, one)
        return self._known[key]

    def _rebuilt(self, strategy: Strategy) -> Cost:
        """The answer for a change that moves more than ops of the plan."""
        split = self._started(strategy)
        cost = None if split is None else self._answer(split)
        if cost is not None:
            self._pending = split
            return cost
        return self._in_full(strategy)

    def _answer(self, split: Split) -> Cost | None:
        if self._limited:
            return split.cost()
        step_ps = split.step_ps()
        return None if step_ps is None else Cost(step_ps / 1e12, True, 0, step_ps, ())

    def _in_full(self, strategy: Strategy) -> Cost:
        cost = self.oracle.in_full(strategy)
        return cost if self._limited else replace(cost, peaks=())

    def accept(self) -> Cost:
        """Make the last proposal the current strategy. Raises InputError where there is none."""
        changes, self.cost = self._last()
        self._accepted.update(changes)
        self._split, self._pending, self._proposed = self._pending, None, None
        if self._split is not None:
            self._split.keep()
        return self.cost

    def reject(self) -> None:
        """Forget the last proposal. Raises InputError where there is none."""
        self._last()
        if self._split is not None and self._pending is self._split:
            self._split.back()
        self._pending, self._proposed = None, None

    def _last(self) -> tuple[Changes, Cost]:
        if self._proposed is None:
            raise InputError("session: nothing is proposed")
        return self._proposed


def changed(strategy: Strategy, changes: Changes) -> Strategy:
    """The strategy with other configurations of ops (None: none of its own)."""
    placement = {name: device for name, device in strategy.placement.items() if name not in changes}
    partition = {name: one for name, one in strategy.partition.items() if name not in changes}
    partition.update({name: one for name, one in changes.items() if one is not None})
    return replace(strategy, placement=placement, partition=partition)
