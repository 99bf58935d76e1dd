"""The oracle of a scenario."""

from __future__ import annotations

from ..execution.scenario import Scenario, graph_of
from ..nouns.strategy import default_sync
from .oracle import Oracle


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
