"""Scenarios from JSON: four parts, each a path, a preset's name or the object itself.

A path is relative to the scenario file. It may lead upwards (scenarios/ refers to ../profiles) and may be absolute:
a scenario names files as a command line does, and a file so named is only ever read as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster
from ..errors import InputError
from ..graph import Graph
from ..profile import Profile
from ..strategy import Strategy, resolve_placement
from .cluster import preset_names, read_cluster, read_preset
from .graph import read_graph
from .paths import shown
from .profile import read_profile
from .reading import PathLike, label, read_json
from .shape import STRICT, read_shape
from .strategy import read_strategy

ENGINES = ("auto", "simpy", "compiled")


@with_config(STRICT)
class _OptionsShape(TypedDict, total=False):
    engine: str


@with_config(STRICT)
class _ScenarioShape(TypedDict, total=False):
    name: str
    graph: Required[Any]
    cluster: Required[Any]
    profile: Any
    strategy: Required[Any]
    options: _OptionsShape
    provenance: dict[str, Any]


_KEYS = frozenset({*_ScenarioShape.__annotations__, "engine", "version"})


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_ScenarioShape)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scenario file names, read and valid, and which engine it asks for."""

    graph: Graph
    cluster: Cluster
    profiles: tuple[Profile, ...]
    strategy: Strategy
    engine: str


def read_scenario(source: PathLike | Mapping[str, Any]) -> Parts:
    """The parts of a scenario file, or of an object already parsed (its paths are relative to the working directory).

    Raises InputError with every problem of every file at once, each with the name of its file.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        folder = "" if path == "-" else os.path.dirname(path)
        return _Reader(label(path), folder).parts(read_json(path), True)
    return _Reader("", "").parts(source, False)


class _Reader:
    """Reads the parts of one scenario and collects what is wrong with all of them."""

    def __init__(self, file: str, folder: str) -> None:
        self.file, self.folder = file, folder
        self.problems: list[str] = []

    def parts(self, value: Any, is_file: bool) -> Parts:
        shaped = self._caught(lambda: read_shape(_adapter(), value, _KEYS, is_file, "a scenario"), self.file)
        if shaped is None:
            raise InputError(self.problems)
        engine = shaped.get("options", {}).get("engine", "auto")
        if engine not in ENGINES:
            self._add(f"options.engine: must be one of {', '.join(ENGINES)}, got {shown(engine)}")
        graph = self._part("graph", shaped["graph"], read_graph)
        cluster = self._cluster(shaped["cluster"])
        profiles = self._profiles(shaped.get("profile", []))
        strategy = self._part("strategy", shaped["strategy"], read_strategy)
        if graph and cluster and strategy:
            self._place(graph, cluster, strategy, shaped["strategy"])
        if self.problems or graph is None or cluster is None or strategy is None:
            raise InputError(self.problems)
        return Parts(graph, cluster, profiles, strategy, engine)

    def _add(self, problem: str) -> None:
        self.problems.append(f"{self.file}: {problem}" if self.file else problem)

    def _caught(self, action: Callable[[], Any], file: str, prefix: str = "") -> Any:
        """The result, or None with its problems collected; those without a file belong to the one given."""
        try:
            return action()
        except InputError as error:
            name = error.file or file
            before = (f"{name}: " if name else "") + ("" if error.file else prefix)
            self.problems.extend(before + problem for problem in error.problems)
            return None

    def _path(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.folder, path))

    def _part(self, key: str, value: Any, read: Callable[[Any], Any]) -> Any:
        if isinstance(value, str):
            if not value or "\0" in value:
                return self._add(f"{key}: must be a path, got {shown(value)}")
            return self._caught(lambda: read(self._path(value)), self.file)
        if isinstance(value, dict):
            return self._caught(lambda: read(value), self.file, f"{key}.")
        return self._add(f"{key}: must be a path or an object, got {shown(value)}")

    def _cluster(self, value: Any) -> Cluster | None:
        if isinstance(value, str) and value in preset_names() and not os.path.exists(self._path(value)):
            return read_preset(value)
        is_name = isinstance(value, str) and value and not value.endswith((".json", ".gz")) and "\0" not in value
        if is_name and not os.path.exists(self._path(value)):
            self._add(f"cluster: neither a file nor a preset: {shown(value)}; presets: {', '.join(preset_names())}")
            return None
        found: Cluster | None = self._part("cluster", value, read_cluster)
        return found

    def _profiles(self, value: Any) -> tuple[Profile, ...]:
        several = isinstance(value, list)
        keys = [f"profile[{i}]" for i in range(len(value))] if several else ["profile"]
        found = [
            self._part(key, one, read_profile) for key, one in zip(keys, value if several else [value], strict=True)
        ]
        return tuple(profile for profile in found if profile is not None)

    def _place(self, graph: Graph, cluster: Cluster, strategy: Strategy, value: Any) -> None:
        """Try the placement here, where the file that holds it is known."""
        file, prefix = (self._path(value), "") if isinstance(value, str) else (self.file, "strategy.")
        self._caught(lambda: resolve_placement(graph, cluster, strategy.placement), file, prefix)
