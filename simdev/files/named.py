"""Files named inside a part of a scenario: a model's config.json, a pipeline's schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ..errors import InputError
from .reading import read_json


def is_config(name: Any) -> TypeGuard[str]:
    """Whether a model's name is the path of a config.json."""
    return isinstance(name, str) and name.endswith((".json", ".json.gz")) and "\0" not in name


def config_path(graph: Any, folder: str) -> str | None:
    """Where the config.json lies that a graph names as its model; None where it names none."""
    name = graph.get("model") if isinstance(graph, Mapping) else None
    return os.path.normpath(os.path.join(folder, name)) if is_config(name) else None


def table_path(strategy: Any, folder: str, read: Callable[[str], Any] = read_json) -> str | None:
    """Where the schedule lies that a strategy (an object, or the path of one) names; None where it
    names none.

    ``read`` gives the value of a file; what is wrong with it is told where the strategy is read.
    """
    if isinstance(strategy, str) and strategy.endswith((".json", ".gz")) and "\0" not in strategy:
        path = os.path.normpath(os.path.join(folder, strategy))
        try:
            strategy, folder = read(path) if os.path.isfile(path) else None, os.path.dirname(path)
        except InputError:
            return None
    pipeline = strategy.get("pipeline") if isinstance(strategy, Mapping) else None
    table = pipeline.get("table") if isinstance(pipeline, Mapping) else None
    is_path = isinstance(table, str) and table and "\0" not in table
    return os.path.normpath(os.path.join(folder, str(table))) if is_path else None
