"""Workers and servers under a policy, from a list of layers."""

from __future__ import annotations

from fractions import Fraction

from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import Strategy, Sync
from worlds.runs import executed, repeated
from worlds.scenarios import synchronised

PS = 10**12


WHOLE = {"slice_parameters": None, "even_parameters": None, "bucket": None}


def period(layers: list[Layer], cluster: Cluster, sync: Sync) -> Fraction:
    """The exact steady-state period in seconds."""
    return repeated(executed(synchronised(layers, cluster, sync)).trace).period_ps / PS


EXAMPLE = [Layer(1, 1, 3), Layer(1, 1, 6), Layer(1, 1, 3)]


def _question(layers: list[Layer], cluster: Cluster, sync: Sync) -> tuple[Prepared, Strategy]:
    scenario = synchronised(layers, cluster, sync)
    return Prepared(scenario.graph, cluster, scenario.costs), scenario.strategy
