"""Sweeps: many scenarios, one table; resumable after a crash, on one machine or a cluster.

    points (scenario x grid point, keyed by content) -> answers (here, or by joblib) -> journal
    -> DataFrame

``sweep`` is the way in. The package can be called like it, for ``simdev.sweep`` is the package once
a part of it has been imported, and the function before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from .fields import with_field
from .grid import parse_settings, points
from .journal import Journal
from .point import engine_version
from .sweeping import sweep

__all__ = ["Journal", "engine_version", "parse_settings", "points", "sweep", "with_field"]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return sweep(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
