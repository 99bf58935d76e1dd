"""Sweeps: many scenarios, one table; resumable after a crash, on one machine or a cluster.

    points (scenario x grid point, keyed by content) -> answers (here, or by joblib) -> journal
    -> DataFrame

``sweep`` is the way in; ``simdev/__init__.py`` and ``simdev/commands/sweep.py`` call it.
"""

from __future__ import annotations

from .fields import parse_settings, points, with_field
from .journal import Journal
from .point import engine_version
from .sweeping import sweep

__all__ = ["Journal", "engine_version", "parse_settings", "points", "sweep", "with_field"]
