"""Strategies whose replicas run alike, scored by those that stand for all; those that are too large
otherwise are refused.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..execution.period import simulate_strategy
from ..ground.units import Number
from ..lowering import Prepared
from ..lowering.symmetry import Quotient, quotient_of
from ..nouns.scale import parse_limit, scale_of
from ..nouns.strategy import Strategy
from .cost import Cost, cost_of

SHARDS = 200_000
"""Fewer parts take seconds, whatever the strategy."""


class Replicated:
    """Costs of strategies with many replicas; the last one is remembered.

    What cannot be told by a few replicas, and by a guess takes longer than ``longest`` (seconds, a
    text with a unit, or "none"), is refused.
    """

    def __init__(self, prepared: Prepared, steps: str, symmetry: bool, longest: Number) -> None:
        self.prepared, self.steps, self.symmetry = prepared, steps, symmetry
        self._longest = parse_limit(longest)
        self._last: tuple[Strategy, Cost | None] | None = None

    def cost(self, strategy: Strategy) -> Cost | None:
        """The cost of a strategy, as of the full expansion; None where replicas are few or differ.

        Raises InputError, MissingCostError.
        """
        last = self._last
        if last is None or last[0] != strategy:
            last = self._last = strategy, self._cost(strategy)
        return last[1]

    def _cost(self, strategy: Strategy) -> Cost | None:
        quotient = quotient_of(self.prepared, strategy) if self.symmetry else None
        if not isinstance(quotient, Quotient):
            self._require_small(strategy)
            return None
        engine = "simpy" if find_spec("numba") is None else "compiled"
        there = quotient.prepared, quotient.strategy
        few = cost_of(simulate_strategy(*there, engine, self.steps)[0])
        peaks = tuple(few.peaks[stand] for stand in quotient.symmetry.stands.tolist())
        return Cost(few.seconds, few.feasible, few.memory_excess, few.step_ps, peaks)

    def _require_small(self, strategy: Strategy) -> None:
        graph, cluster = self.prepared.graph, self.prepared.cluster
        # Ops times devices bound the parts: to count them for every small strategy takes too long.
        if len(graph.ops) * len(cluster.devices) >= SHARDS:
            scale_of(graph, cluster, strategy, self.steps == "repeated").require(self._longest)
