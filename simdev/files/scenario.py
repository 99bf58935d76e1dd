"""Scenarios from JSON: four parts, each a path, a preset's name or the object itself.

A path is relative to the scenario file. It may lead upwards (scenarios/ refers to ../profiles) and
may be absolute: a scenario names files as a command line does, and a file so named is only ever
read as JSON.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Required

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict

from ..cluster import Cluster
from ..costs import DeviceSpec, Profile
from ..errors import InputError
from ..graph import Graph
from ..memory import MemoryModel
from ..models import MODELS, build
from ..models.large import LARGE, Transformer, large_model
from ..strategy import SHORT_FORMS, Strategy, placed, resolve_partition, resolve_placement
from .cluster import preset_hint, preset_names, read_cluster, read_preset
from .collectives import with_tables
from .device import device_names, read_device
from .flexflow import SUFFIXES, read_flexflow_strategy
from .graph import read_graph
from .paths import shown
from .pipeline import table_path
from .profile import read_profile
from .reading import PathLike, label, read_json
from .shape import STRICT, read_shape
from .strategy import read_strategy

ENGINES = ("auto", "simpy", "compiled")
PARTS = ("graph", "cluster", "profile", "devices", "strategy")
"""Keys of a scenario that may name files."""
Reading = Callable[[str, Any, Callable[[Any], Any]], Any]
"""Called as (part, path or object, reader) for what reader(path or object) would give: keeps what
was read before.
"""


def _plainly(part: str, value: Any, read: Callable[[Any], Any]) -> Any:
    return read(value)


@with_config(STRICT)
class _MemoryShape(TypedDict, total=False):
    model: str
    rounding: str
    expandable: bool
    optimizer: str | None
    gradients: int | None
    dtype: str | None
    context: Any
    communication: Any


@with_config(STRICT)
class _OptionsShape(TypedDict, total=False):
    engine: str
    memory: _MemoryShape
    symmetry: bool
    steps: str


@with_config(STRICT)
class _ScenarioShape(TypedDict, total=False):
    name: str
    graph: Required[Any]
    cluster: Required[Any]
    profile: Any
    devices: Any
    strategy: Required[Any]
    options: _OptionsShape
    provenance: dict[str, Any]


_KEYS = frozenset(
    {
        *_ScenarioShape.__annotations__,
        *_OptionsShape.__annotations__,
        *_MemoryShape.__annotations__,
        "version",
    }
)


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_ScenarioShape)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scenario file names, read and valid, and its options; ``graph`` is a model's sizes
    under a pipeline.
    """

    graph: Graph | Transformer
    cluster: Cluster
    profiles: tuple[Profile, ...]
    strategy: Strategy
    engine: str
    memory: MemoryModel = MemoryModel()
    specs: tuple[DeviceSpec, ...] = ()
    symmetry: bool = True
    steps: str = "once"


def named_files(value: Mapping[str, Any], folder: str) -> Iterator[str]:
    """The paths that a scenario's document names, relative to its folder; a preset's name is among
    them.

    The last is the schedule that its strategy, opened for that, may name.
    """
    for part in PARTS:
        named = value.get(part)
        for name in named if isinstance(named, list) else [named]:
            if isinstance(name, str) and name and "\0" not in name:
                yield os.path.normpath(os.path.join(folder, name))
    table = table_path(value.get("strategy"), folder)
    if table is not None:
        yield table


def read_scenario(
    source: PathLike | Mapping[str, Any], reading: Reading = _plainly, try_placement: bool = True
) -> Parts:
    """The parts of a scenario file, or of an object already parsed (its paths are relative to the
    working directory).

    The strategy tells whether a model's name means its graph or, under a pipeline, its sizes.
    Graph, cluster, profiles, datasheets and strategy are read through ``reading``, so that many
    scenarios can share them. Without ``try_placement`` a placement is first tried by lowering,
    whose errors know no file. Raises InputError with every problem of every file at once, each with
    the name of its file.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        folder = "" if path == "-" else os.path.dirname(path)
        return _Reader(label(path), folder, reading, try_placement).parts(read_json(path), True)
    return _Reader("", "", reading, try_placement).parts(source, False)


class _Reader:
    """Reads the parts of one scenario and collects what is wrong with all of them."""

    def __init__(self, file: str, folder: str, reading: Reading, try_placement: bool) -> None:
        self.file, self.folder = file, folder
        self.reading, self.try_placement = reading, try_placement
        self.problems: list[str] = []

    def parts(self, value: Any, is_file: bool) -> Parts:
        shaped = self._caught(
            lambda: read_shape(_adapter(), value, _KEYS, is_file, "a scenario"), self.file
        )
        if shaped is None:
            raise InputError(self.problems)
        options = shaped.get("options", {})
        engine = options.get("engine", "auto")
        if engine not in ENGINES:
            self._add(f"options.engine: must be one of {', '.join(ENGINES)}, got {shown(engine)}")
        memory = self._caught(
            lambda: MemoryModel(**options.get("memory", {})), self.file, "options.memory."
        )
        is_foreign = isinstance(shaped["strategy"], str) and shaped["strategy"].endswith(SUFFIXES)
        before = len(self.problems)
        strategy = None if is_foreign else self._strategy(shaped["strategy"])
        # told last, although read first
        of_strategy, self.problems[before:] = self.problems[before:], []
        graph = self._graph(shaped["graph"], shaped["strategy"], strategy)
        cluster = self._cluster(shaped["cluster"])
        profiles = self._several("profile", shaped.get("profile", []), read_profile)
        own = self._several("devices", shaped.get("devices", []), read_device)
        for kind, count in Counter(spec.kind for spec in own).items():
            if count > 1:
                self._add(f"devices: two of kind {shown(kind)}")
        self.problems += of_strategy
        if is_foreign and cluster and isinstance(graph, Graph):
            strategy = self._foreign(shaped["strategy"], graph, cluster)
        if (
            isinstance(graph, Graph)
            and cluster
            and strategy
            and self.try_placement
            and not strategy.pipeline
        ):
            self._place(graph, cluster, strategy, shaped["strategy"])
        if self.problems or graph is None or cluster is None or strategy is None:
            raise InputError(self.problems)
        strategy = _with_measured(strategy, graph, cluster)
        specs = datasheets(own, [device.kind for device in cluster.devices], profiles)
        more = options.get("symmetry", True), options.get("steps", "once")
        return Parts(graph, cluster, profiles, strategy, engine, memory, specs, *more)

    def _add(self, problem: str) -> None:
        self.problems.append(f"{self.file}: {problem}" if self.file else problem)

    def _caught(self, action: Callable[[], Any], file: str, prefix: str = "") -> Any:
        """The result, or None with its problems collected; those without a file belong to the one
        given.
        """
        try:
            return action()
        except InputError as error:
            name = error.file or file
            before = (f"{name}: " if name else "") + ("" if error.file else prefix)
            self.problems.extend(before + problem for problem in error.problems)
            return None

    def _path(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.folder, path))

    def _part(
        self, key: str, value: Any, read: Callable[[Any], Any], reading: Reading | None = None
    ) -> Any:
        reading = reading or self.reading
        if isinstance(value, str):
            if not value or "\0" in value:
                return self._add(f"{key}: must be a path, got {shown(value)}")
            return self._caught(lambda: reading(key, self._path(value), read), self.file)
        if isinstance(value, dict):
            return self._caught(lambda: reading(key, value, read), self.file, f"{key}.")
        return self._add(f"{key}: must be a path or an object, got {shown(value)}")

    def _cluster(self, value: Any) -> Cluster | None:
        if (
            isinstance(value, str)
            and value in preset_names()
            and not os.path.exists(self._path(value))
        ):
            shipped: Cluster = self.reading("cluster", value, read_preset)
            return shipped
        is_name = (
            isinstance(value, str)
            and value
            and not value.endswith((".json", ".gz"))
            and "\0" not in value
        )
        if is_name and not os.path.exists(self._path(value)):
            self._add(f"cluster: neither a file nor a preset: {shown(value)}; {preset_hint(value)}")
            return None
        found: Cluster | None = self._part("cluster", value, read_cluster)
        return found

    def _strategy(self, value: Any) -> Strategy | None:
        """A path or an object, or the name of a short form."""
        if (
            isinstance(value, str)
            and value in SHORT_FORMS
            and not os.path.exists(self._path(value))
        ):
            return Strategy(short=value)
        if isinstance(value, str) and _is_word(value) and not os.path.exists(self._path(value)):
            known = ", ".join(SHORT_FORMS)
            self._add(
                f"strategy: neither a file nor a short form: {shown(value)}; short forms: {known}"
            )
            return None
        found: Strategy | None
        if isinstance(value, str):
            found = self._part("strategy", value, read_strategy)
        else:
            found = self._part("strategy", value, lambda one: read_strategy(one, self.folder))
        return found

    def _foreign(self, value: str, graph: Graph, cluster: Cluster) -> Strategy | None:
        """A file of FlexFlow's, which graph and cluster give a meaning: its path alone does not
        tell it.
        """
        found: Strategy | None
        found = self._part(
            "strategy", value, lambda path: read_flexflow_strategy(path, graph, cluster), _plainly
        )
        return found

    def _graph(
        self, value: Any, strategy_value: Any, strategy: Strategy | None
    ) -> Graph | Transformer | None:
        """A graph; under a pipeline a large model by its name is its sizes."""
        piped = strategy.pipeline is not None if strategy else _says_pipeline(strategy_value)
        read = (
            read_sizes
            if isinstance(value, Mapping) and _is_large(value.get("model"), piped)
            else read_ops
        )
        found: Graph | Transformer | None = self._part("graph", value, read)
        return found

    def _several(self, key: str, value: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """A part that may be one or a list of them."""
        several = isinstance(value, list)
        keys = [f"{key}[{i}]" for i in range(len(value))] if several else [key]
        found = [
            self._part(one, item, read)
            for one, item in zip(keys, value if several else [value], strict=True)
        ]
        return tuple(part for part in found if part is not None)

    def _place(self, graph: Graph, cluster: Cluster, strategy: Strategy, value: Any) -> None:
        """Try the placement here, where the file that holds it is known."""
        file, prefix = (
            (self._path(value), "") if isinstance(value, str) else (self.file, "strategy.")
        )
        if strategy.splits:
            self._caught(lambda: placed(graph, cluster, strategy.placement), file, prefix)
            self._caught(
                lambda: resolve_partition(graph, cluster, strategy.partition), file, prefix
            )
        else:
            self._caught(
                lambda: resolve_placement(graph, cluster, strategy.placement), file, prefix
            )


def _is_word(value: str) -> bool:
    """Whether a text looks like a name rather than the path of a file."""
    return (
        value.isprintable() and value.strip() == value != "" and not any(c in value for c in "./\\")
    )


def _is_large(name: Any, piped: bool) -> bool:
    """Whether a model's name means the sizes of a large model: some have a graph too, for
    strategies of other kinds.
    """
    if not isinstance(name, str):
        return False
    return name in LARGE or name not in MODELS if piped else name in LARGE and name not in MODELS


def _says_pipeline(value: Any) -> bool:
    """Whether the object of a strategy, which cannot be read, is that of a pipeline."""
    return isinstance(value, Mapping) and isinstance(value.get("pipeline"), Mapping)


def _with_measured(strategy: Strategy, graph: Graph | Transformer, cluster: Cluster) -> Strategy:
    """With the measured tables of the cluster, where collectives are to be costed by tables and
    none are named.
    """
    choice = strategy.collectives
    if isinstance(graph, Transformer) or (choice.cost != "table" and not graph.asks_tables):
        return strategy
    return replace(strategy, collectives=with_tables(choice, cluster))


def read_ops(value: PathLike | Mapping[str, Any]) -> Graph:
    """A graph by its path or object, or by a model's name and sizes: {"model": "resnet-50",
    "batch": 32}.
    """
    if isinstance(value, Mapping) and "model" in value:
        return build(value["model"], **_sizes(value))
    return read_graph(value)


def read_sizes(value: Mapping[str, Any]) -> Transformer:
    """A large model by its name, with sizes of one's own: {"model": "llama3-70b", "length":
    4096}.
    """
    return large_model(value["model"], **_sizes(value))


def _sizes(value: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): size for key, size in value.items() if key != "model"}


def datasheets(
    own: Sequence[DeviceSpec], kinds: Iterable[str], profiles: Iterable[Profile]
) -> tuple[DeviceSpec, ...]:
    """Datasheets of the scenario itself, then those shipped of the other kinds that its cluster or
    profiles name.
    """
    named = dict.fromkeys(
        [*kinds, *(kind for profile in profiles for kind in profile.device_kinds)]
    )
    told = {spec.kind for spec in own}
    shipped = [spec for kind in named if kind not in told and (spec := _shipped(kind)) is not None]
    return (*own, *shipped)


@cache
def _shipped(kind: str) -> DeviceSpec | None:
    return read_device(kind) if kind in device_names() else None
