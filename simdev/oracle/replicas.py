"""Strategies whose replicas run alike, scored by those that stand for all."""

from __future__ import annotations

from importlib.util import find_spec

from ..lowering import Prepared
from ..lowering.symmetry import Quotient, quotient_of
from ..period import simulate_strategy
from ..strategy import Strategy
from .cost import Cost, cost_of


class Replicated:
    """Costs of strategies with many replicas; the last one is remembered."""

    def __init__(self, prepared: Prepared, steps: str) -> None:
        self.prepared, self.steps = prepared, steps
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
        quotient = quotient_of(self.prepared, strategy)
        if not isinstance(quotient, Quotient):
            return None
        engine = "simpy" if find_spec("numba") is None else "compiled"
        there = quotient.prepared, quotient.strategy
        few = cost_of(simulate_strategy(*there, engine, self.steps)[0])
        peaks = tuple(few.peaks[stand] for stand in quotient.symmetry.stands.tolist())
        return Cost(few.seconds, few.feasible, few.memory_excess, few.step_ps, peaks)
