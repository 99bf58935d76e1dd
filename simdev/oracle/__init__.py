"""The cost oracle: a question prepared once, asked for many strategies; the same path as ``run``,
made short.

Where queues are fifo and not shared, a placement goes straight through compiled kernels
(placements/); any other strategy is lowered and simulated. Both give the same integers.
"""

from __future__ import annotations

from ..execution.scenario import Scenario, graph_of
from ..nouns.strategy import default_sync
from .cost import Cost, Starts, cost_of
from .oracle import Oracle, Placement

# The oracle of a scenario.


def oracle_of(scenario: Scenario, cache: int = 10_000) -> Oracle:
    """The oracle of a scenario: what is given without a Strategy is scored as the scenario's own
    strategy would be.

    Of this strategy the order, the synchronisation, the collectives and the microbatches (a
    pipeline's, too) are kept; where ops run is what one asks about. Raises InputError for a large
    model, which has no ops.
    """
    strategy, pipeline = scenario.strategy, scenario.strategy.pipeline
    return Oracle(
        graph_of(scenario),
        scenario.cluster,
        scenario.costs,
        strategy.order,
        cache,
        scenario.memory,
        "" if strategy.sync == default_sync(strategy.short) else strategy.sync,
        strategy.collectives,
        strategy.accumulate if pipeline is None else pipeline.microbatches,
        scenario.steps,
        scenario.symmetry,
        scenario.limit,
    )


__all__ = ["Cost", "Oracle", "Placement", "Starts", "cost_of", "oracle_of"]
