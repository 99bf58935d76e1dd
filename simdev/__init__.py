"""simdev tells how long a training step takes, and whether it fits, for any way to spread it over
devices.

The names below are the front door; each is imported when it is first asked for. ``load_scenario``
opens a file, ``run`` answers any scenario with a Report, ``oracle_of`` and ``Oracle`` score many
placements of one, ``sweep`` runs many, ``plan`` tries every way to spread a large model,
``profile`` measures the step of a PyTorch module, ``capture`` makes a scenario of a distributed
PyTorch script.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .ground.registry import provide
from .ground.version import __version__

if TYPE_CHECKING:
    from .costs import CostModel
    from .execution.engine import simulate
    from .execution.scenario import Scenario, load_scenario
    from .ground.errors import InputError
    from .measure import capture_ranks as capture
    from .measure import profile, step_ends
    from .nouns.cluster import Cluster, Device, Link
    from .nouns.graph import Graph, Op, Tensor
    from .nouns.strategy import Strategy
    from .oracle import Oracle, oracle_of
    from .report import run
    from .report.figures import plot_gantt
    from .search.plan import plan
    from .search.sweep import sweep

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
    "capture",
    "load_scenario",
    "oracle_of",
    "plan",
    "plot_gantt",
    "profile",
    "run",
    "simulate",
    "step_ends",
    "sweep",
]

_HOMES = {
    "costs": ("CostModel",),
    "execution.engine": ("simulate",),
    "execution.scenario": ("Scenario", "load_scenario"),
    "ground.errors": ("InputError",),
    "measure": ("capture", "profile", "step_ends"),
    "nouns.cluster": ("Cluster", "Device", "Link"),
    "nouns.graph": ("Graph", "Op", "Tensor"),
    "nouns.strategy": ("Strategy",),
    "oracle": ("Oracle", "oracle_of"),
    "report": ("run",),
    "report.figures": ("plot_gantt",),
    "search.plan": ("plan",),
    "search.sweep": ("sweep",),
}
# What lower floors ask higher ones for (ground/registry.py).
provide("html_of", "simdev.report.nouns:html_of")
provide("read_profile", "simdev.files.profile:read_profile")
provide("methods", "simdev.learn.methods:METHODS")
_NAMES = {"capture": "capture_ranks"}  # there is a module measure.capture
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(
        name, getattr(import_module(f".{home}", __name__), _NAMES.get(name, name))
    )


def __dir__() -> list[str]:
    return __all__
