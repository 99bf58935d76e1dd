"""Files named inside a part of a scenario: a model's config.json, a pipeline's schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ..ground.errors import InputError
from .reading import read_json

PARTS = ("graph", "cluster", "profile", "devices", "strategy")


def is_config(name: Any) -> TypeGuard[str]:
    """Whether a model's name is the path of a config.json."""
    return isinstance(name, str) and name.endswith((".json", ".json.gz")) and "\0" not in name


def config_path(graph: Any, folder: str) -> str | None:
    """Where the config.json lies that a graph names as its model; None where it names none."""
    name = graph.get("model") if isinstance(graph, Mapping) else None
    return os.path.normpath(os.path.join(folder, name)) if is_config(name) else None


def seen_from(folder: str, path: str) -> str:
    """A path as a file in this folder names it."""
    try:
        return os.path.relpath(path, folder or os.curdir)
    except ValueError:  # another drive of Windows
        return path


def moved(document: Mapping[str, Any], folder: str, target: str) -> dict[str, Any]:
    """A scenario's document with every file that it names told from the folder ``target``, not
    ``folder``: no path is absolute. Names of presets and models stay.
    """

    def renamed(part: Any) -> Any:
        if isinstance(part, list):
            return [renamed(entry) for entry in part]
        if not isinstance(part, str) or not part or "\0" in part:
            return part
        path = os.path.join(folder, part)
        return seen_from(target, path) if os.path.exists(path) else part

    parts = {key: renamed(part) if key in PARTS else part for key, part in document.items()}
    config = config_path(document.get("graph"), folder)
    if config is not None:
        parts["graph"] = {**parts["graph"], "model": seen_from(target, config)}
    strategy = document.get("strategy")
    table = table_path(strategy, folder) if isinstance(strategy, Mapping) else None
    if isinstance(strategy, Mapping) and table is not None:
        pipeline = {**strategy["pipeline"], "table": seen_from(target, table)}
        parts["strategy"] = {**strategy, "pipeline": pipeline}
    return parts


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
