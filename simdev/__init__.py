"""simdev tells how long a training step takes, and whether it fits, for any way to spread it over
devices.

The names below are the front door; each is imported when it is first asked for. ``load_scenario``
opens a file, ``run`` answers any scenario with a Report, ``oracle_of`` and ``Oracle`` score many
placements of one, ``sweep`` runs many, ``plan`` tries every way to spread a large model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .cluster import Cluster, Device, Link
    from .costs import CostModel
    from .engine import simulate
    from .errors import InputError
    from .graph import Graph, Op, Tensor
    from .oracle import Oracle, oracle_of
    from .report import run
    from .report.figures import plot_gantt
    from .scenario import Scenario, load_scenario
    from .search.plan import plan
    from .strategy import Strategy
    from .sweep import sweep

__all__ = [
    "Cluster",
    "CostModel",
    "Device",
    "Graph",
    "InputError",
    "Link",
    "Op",
    "Oracle",
    "Scenario",
    "Strategy",
    "Tensor",
    "__version__",
    "load_scenario",
    "oracle_of",
    "plan",
    "plot_gantt",
    "run",
    "simulate",
    "sweep",
]

_HOMES = {
    "cluster": ("Cluster", "Device", "Link"),
    "engine": ("simulate",),
    "errors": ("InputError",),
    "graph": ("Graph", "Op", "Tensor"),
    "oracle": ("Oracle", "oracle_of"),
    "costs": ("CostModel",),
    "report": ("run",),
    "report.figures": ("plot_gantt",),
    "scenario": ("Scenario", "load_scenario"),
    "search.plan": ("plan",),
    "strategy": ("Strategy",),
    "sweep": ("sweep",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    # the package ``sweep`` stands there already, and can be called
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return __all__
