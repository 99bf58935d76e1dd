"""Search for placements: the placers and partitioners of the papers, as clients of the oracle.

``search`` runs a method of METHODS (or an object with ``ask`` and ``tell``) on a scenario or an
oracle. ``compare`` and ``run_comparison`` run several methods on several questions. ``confirm``
checks a result by the reference engine and the checker, and ``present_cost`` is the cost of the
strategy that a scenario already has. prepare.py makes graphs smaller before they are placed;
features.py turns a question into arrays for learners. Some methods learn (``simdev.learn``):
``load_policy`` reads the policies that they save.

The commands and ``simdev/__init__.py`` call this package. A new method is a function of a ``Trial``
and a row of methods.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .methods import METHODS
from .policy import SavedPolicy, load_policy
from .prepare import PREPARATIONS, Grouped, prepare
from .result import Result, confirm, present_cost
from .run import AskTell, search

if TYPE_CHECKING:
    from .comparison import Comparison, compare, run_comparison

__all__ = [
    "METHODS",
    "PREPARATIONS",
    "AskTell",
    "Comparison",
    "Grouped",
    "Result",
    "SavedPolicy",
    "compare",
    "confirm",
    "load_policy",
    "prepare",
    "present_cost",
    "run_comparison",
    "search",
]


def __getattr__(name: str) -> Any:
    """Import comparisons when they are first used: a search does without them."""
    if name not in ("Comparison", "compare", "run_comparison"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(".comparison", __name__), name))


def __dir__() -> list[str]:
    return __all__
