"""OptCNN (Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks",
ICML 2018).
"""

from __future__ import annotations

from math import prod
from time import process_time

from ..elimination import minimise
from ..trial import Trial
from .layers import Degrees, Layer, Layers
from .strategies import strategy_of
from .tables import tables_of


def optcnn(trial: Trial) -> None:
    """The configuration of every layer that is best in additive cost tables; it is simulated once,
    and told both.

    The tables know no overlap, no two layers at once and no memory. Layers run on the first
    devices, perhaps not on all. The objective ``estimate_s`` is their sum. ``details`` tells the
    configurations, how many layers elimination of nodes and edges left, whether the answer is
    exact, and the CPU seconds for tables and elimination.
    """
    began = process_time()
    layers = Layers(trial.asked.graph, trial.asked.cluster)
    tables = tables_of(layers, trial.asked.prepared, sync_of(trial))
    built = process_time()
    solved = minimise([len(one) for one in tables.choices], tables.terms)
    chosen = [own[value] for own, value in zip(tables.choices, solved.values, strict=True)]
    ended = process_time()
    trial.objectives["estimate_s"] = solved.cost
    trial.details |= {
        "layers": {
            layer.name: told(layer, one) for layer, one in zip(layers.all, chosen, strict=True)
        },
        "space": prod(len(one) for one in tables.choices),
        "left": solved.left,
        "exact": solved.exact,
        "tables_s": built - began,
        "elimination_s": ended - built,
    }
    trial.try_strategy(
        strategy_of(layers, [layers.configuration(one) for one in chosen], trial.given)
    )


def sync_of(trial: Trial) -> str:
    """How gradients are added up, as far as cost tables tell it apart."""
    sync = trial.given.sync
    return sync if isinstance(sync, str) and sync != "bucketed" else "all-reduce"


def told(layer: Layer, degrees: Degrees) -> dict[str, int]:
    """Degrees with the sample axis by that name."""
    names = {one.axis: one.kind if one.kind == "sample" else one.axis for one in layer.axes}
    return {names[axis]: degree for axis, degree in degrees}
