"""Local search over how ops are split, one change of configurations at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from ...ground.errors import InputError
from ...lowering import Prepared, without_short, written_out
from ...nouns.strategy import Configuration, Resolved, Resolver, Strategy
from ..cost import EXCEEDING, WORSE, Cost, check_limit, limit_ps_of, limits_of

if TYPE_CHECKING:  # importing it imports numba
    from .evaluator import SplitStrategy

Changes = Mapping[str, Configuration | None]


class SplitSession:
    """A current strategy, and proposals to configure ops in another way; not for several threads at
    once.

    ``cost`` is that of the current strategy. Every answer equals that of a full rebuild: only what
    a change reaches is built anew where the compiled path applies (``start`` puts a strategy on it;
    None: it does not), all is elsewhere (``simulate``). Where some device has a capacity, memory is
    computed for each proposal too; elsewhere ``peaks`` is empty, since nothing can exceed anything.
    """

    def __init__(
        self,
        prepared: Prepared,
        strategy: Strategy,
        start: Callable[[Strategy], SplitStrategy | None],
        simulate: Callable[[Strategy, float | None], Cost],
    ) -> None:
        self._nouns = graph, cluster, costs = prepared.graph, prepared.cluster, prepared.costs
        self._prepared, self._start, self._simulate = prepared, start, simulate
        self._strategy = without_short(graph, cluster, strategy, costs)
        self._limited = bool(limits_of(cluster))
        self._resolver = Resolver(graph, cluster, {})
        self._known: dict[Any, Resolved] = {}
        named = *self._strategy.partition, *self._strategy.placement
        self._has_patterns = any(name not in graph.index or name in graph.groups for name in named)
        # since the strategy was last written out
        self._accepted: dict[str, Configuration | None] = {}
        self._proposed: tuple[Changes, Cost] | None = None
        self._pending: SplitStrategy | None = None  # what answered the last proposal
        self.cost = self._rebuilt(self._strategy)
        self._split: SplitStrategy | None = self._pending
        self._pending = None

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

    def pinned(self, *phases: str) -> SplitSession:
        """A session from the same strategy, where the ops of these phases (none: forward) do not
        follow others.

        Each has a configuration of its own then, so that a change of one op leaves the others as
        they are: what a move means in FlexFlow. The cost is unchanged. Raises InputError.
        """
        graph, cluster, costs = self._nouns
        pinned: Sequence[str] = phases or ("forward",)
        strategy = written_out(graph, cluster, self.strategy, costs, pinned)
        return SplitSession(self._prepared, strategy, self._start, self._simulate)

    @overload
    def propose(
        self,
        op: str | Changes,
        configuration: Configuration | None = None,
        limit: None = None,
    ) -> Cost: ...

    @overload
    def propose(
        self, op: str | Changes, configuration: Configuration | None = None, *, limit: float | None
    ) -> Cost | None: ...

    def propose(
        self,
        op: str | Changes,
        configuration: Configuration | None = None,
        limit: float | None = None,
    ) -> Cost | None:
        """The cost with one op, or several in a mapping, in another configuration (None: it follows
        what it reads). None, often long before all is simulated, where ``cost.seconds`` would
        exceed ``limit``; that cannot be accepted.

        What an op had before, in ``partition`` or ``placement`` under its own name, is replaced.
        Raises InputError.
        """
        check_limit(limit)
        changes: Changes = {op: configuration} if isinstance(op, str) else dict(op)
        self._drop()
        unknown = [name for name in changes if name not in self._prepared.graph.index]
        if unknown:
            raise InputError([f'session: no op named "{name}"' for name in unknown])
        cost = self._changed(changes, limit)
        if cost is None:
            cost = self._rebuilt(changed(self.strategy, changes), limit)
        if cost.exceeds(limit):
            self._drop()
            return None
        self._proposed = changes, cost
        return cost

    def _changed(self, changes: Changes, limit: float | None) -> Cost | None:
        """The answer of the compiled path; None where it has none, EXCEEDING where it is seen to
        exceed the limit.
        """
        split, graph = self._split, self._prepared.graph
        if split is None or not changes.keys().isdisjoint(graph.groups):
            return None
        if None in changes.values() and (
            self._has_patterns or not changed(self.strategy, changes).splits
        ):
            return None
        try:
            resolved = {graph.index[name]: self._resolved(name, changes[name]) for name in changes}
        except InputError:
            return None  # lowering says what is wrong
        try:
            cost = self._answer(split, limit) if split.change(resolved) else None
            self._pending = None if cost is None else split
        finally:
            if self._pending is None:
                split.back()
        return cost

    def _resolved(self, name: str, configuration: Configuration | None) -> Resolved | None:
        if configuration is None:
            return None
        # 2.0 and True are no degrees, though they equal some
        key = name, repr(configuration.split), configuration.devices, configuration.time
        if key not in self._known:
            i = self._prepared.graph.index[name]
            self._known[key] = self._resolver.resolved(i, configuration)
        return self._known[key]

    def _rebuilt(self, strategy: Strategy, limit: float | None = None) -> Cost:
        """The answer for a strategy that is no change of the current one, EXCEEDING where it
        exceeds the limit.
        """
        split = self._start(strategy)
        cost = None if split is None else self._answer(split, limit)
        if cost is not None:
            self._pending = split
            return cost
        cost = self._simulate(strategy, limit)
        return cost if self._limited or cost is EXCEEDING else Cost.of(cost.step_ps)

    def simulate(self, strategy: Strategy) -> Cost:
        """The cost of a strategy in full."""
        return self._simulate(strategy, None)

    def _answer(self, split: SplitStrategy, limit: float | None = None) -> Cost | None:
        limit_ps = None if limit is None else limit_ps_of(limit)
        if self._limited:
            return split.cost(limit_ps)
        step_ps = split.step_ps(limit_ps)
        if step_ps == WORSE:
            return EXCEEDING
        return None if step_ps is None else Cost.of(step_ps)

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
        self._drop()

    def _drop(self) -> None:
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
    partition = {name: entry for name, entry in strategy.partition.items() if name not in changes}
    partition |= {name: entry for name, entry in changes.items() if entry is not None}
    return replace(strategy, placement=placement, partition=partition)
