"""Scenarios from JSON, whose parts are paths, names of presets, or the objects themselves; the
files that these parts name; and the grids of sweeps.

A path is relative to the scenario file. It may lead upwards (scenarios/ refers to ../profiles) and
may be absolute, as on a command line: such a file is only ever read as JSON.

``load_scenario`` (``execution/scenario.py``), sweeps and the server read through it. A new option
is a key of ``_OptionsShape`` here, and a field of Scenario that OPTIONS names there. A new part
that may be a file joins PARTS. ENGINES repeats the names of ``execution/engine``, a floor above.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Required, TypeGuard

from typing_extensions import TypedDict

from ..costs import DeviceSpec, Profile
from ..ground.errors import InputError, within
from ..nouns.cluster import Cluster
from ..nouns.graph import Graph
from ..nouns.memory import MemoryModel
from ..nouns.models import MODELS, build
from ..nouns.models.large import LARGE, Transformer, from_config, large_model, resized
from ..nouns.scale import LIMIT, parse_limit, scale_to_read
from ..nouns.strategy import SHORT_FORMS, Strategy, placed, resolve_partition, resolve_placement
from .cluster import preset_hint, preset_names, read_cluster, read_preset
from .device import datasheets, read_device
from .disturbances import BESIDE, DisturbancesShape, FailuresShape
from .examples import scenario_path
from .graph import read_graph
from .profile import read_profile
from .reading import PathLike, label, located, parse_json, read_json, read_text, shown
from .shape import Fields, Format, keys_of
from .strategy import FORMAT as STRATEGY
from .strategy import SUFFIXES, read_flexflow_strategy, read_strategy

Document = Mapping[str, Any]  # the object of a scenario's file, or of a part of it
PARTS = ("graph", "cluster", "profile", "devices", "strategy")
"""Keys of a scenario that may name files."""


def is_config(name: Any) -> TypeGuard[str]:
    """Whether a model's name is the path of a config.json."""
    return isinstance(name, str) and name.endswith((".json", ".json.gz")) and "\0" not in name


def config_path(graph: Any, folder: str) -> str | None:
    """The path of the config.json that a graph names as its model; None where it names none."""
    name = graph.get("model") if isinstance(graph, Mapping) else None
    return located(name, folder) if is_config(name) else None


def seen_from(folder: str, path: str) -> str:
    """A path, relative to a folder."""
    try:
        return os.path.relpath(path, folder or os.curdir)
    except ValueError:  # another drive of Windows
        return path


def moved(document: Document, folder: str, target: str) -> dict[str, Any]:
    """A scenario's document moved from ``folder`` to ``target``: the paths of all its files are
    relative to ``target``. Names of presets and models stay.
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
    """The path of the schedule that a strategy (an object, or the path of one) names; None where it
    names none.

    ``read`` gives the value of a file. A faulty file gives None: reading the strategy reports it.
    """
    if isinstance(strategy, str) and strategy.endswith((".json", ".gz")) and "\0" not in strategy:
        path = located(strategy, folder)
        try:
            strategy, folder = read(path) if os.path.isfile(path) else None, os.path.dirname(path)
        except InputError:
            return None
    pipeline = strategy.get("pipeline") if isinstance(strategy, Mapping) else None
    table = pipeline.get("table") if isinstance(pipeline, Mapping) else None
    is_path = isinstance(table, str) and table and "\0" not in table
    return located(str(table), folder) if is_path else None


# Large models, given by a name or by the config.json beside their released weights.


def read_sizes(value: Document, folder: str = "") -> Transformer:
    """A large model given by its name or config.json, with other sizes where the value has them:
    {"model": "llama3-70b", "length": 4096}.

    Raises InputError with every problem of the file, or of the sizes.
    """
    path = config_path(value, folder)
    if path is None:
        _refuse_folder(value["model"], folder)
        return large_model(value["model"], **sizes_of(value))
    with within(label(path)):
        model = from_config(read_json(path))
    return resized(model, **sizes_of(value))


def _refuse_folder(name: Any, folder: str) -> None:
    """Raises InputError with a hint where a model's name is a folder: people often name the folder
    of the released weights.
    """
    is_path = isinstance(name, str) and name not in LARGE and "\0" not in name
    if is_path and os.path.isdir(os.path.join(folder, name)):
        file = os.path.join(name, "config.json")
        raise InputError(f'model: "{name}" is a folder; name the file in it, like {file}')


def sizes_of(value: Document) -> Fields:
    """The sizes that a graph has beside its model's name."""
    return {str(key): size for key, size in value.items() if key != "model"}


# Estimates of how long reading takes, made before it begins: too long is refused.

LARGE_TEXT = 16 * 2**20
"""Bytes of a file that takes seconds to parse."""


def limit_of(options: Document, limit: Any) -> Any:
    """The limit to apply: ``limit``, or the limit of the options where it is None. Raises
    InputError.
    """
    chosen = options.get("limit", LIMIT) if limit is None else limit
    try:
        parse_limit(chosen)
    except ValueError as error:
        raise InputError(f"limit: {error}") from None
    return chosen


OTHERS = {
    ".py": "Python, and no scenario: simdev profile FILE:MODEL measures a model of such a file",
    ".jsonl": 'a profile, and no scenario: a scenario names it, "profile": ["FILE"]',
    ".onnx": "a model of ONNX, and no scenario: simdev import makes one of it",
}
"""Hints about other files that people try to simulate, by the endings of their names."""


def parsed(path: str, limit: Any) -> Any:
    """The value of a scenario's file; ``limit`` overrides the limit in the file unless it is None.

    Raises InputError, before parsing where that would take longer than the default limit and
    neither the file nor ``limit`` sets another.
    """
    text = read_text(path)
    if len(text) > LARGE_TEXT and limit is None and '"limit"' not in text:
        # Every op has "outputs" and, in so large a file, most devices have "memory".
        scale_to_read(text.count('"outputs"'), text.count('"memory"')).require(parse_limit(LIMIT))
    try:
        return parse_json(text)
    except InputError as error:
        hint = next((hint for ending, hint in OTHERS.items() if path.endswith(ending)), None)
        raise (InputError(hint) if hint else error).within(label(path)) from None


def require_few(fields: Document, path_of: Callable[[str], str], limit: float) -> None:
    """Refuse a scenario's graph and cluster whose ops and devices would take longer than ``limit``
    seconds to read. Raises InputError.
    """
    counts = []
    for part, rows in (("graph", "ops"), ("cluster", "devices")):
        value = fields[part]
        listed = value.get(rows) if isinstance(value, Mapping) else None
        count = len(listed) if isinstance(listed, list) else 0
        counts.append(_names_in(path_of(value)) if isinstance(value, str) else count)
    scale_to_read(counts[0], counts[1]).require(limit)


def _names_in(path: str) -> int:
    """About how many ops or devices a large file describes. 0 for a smaller file, which is read
    quickly anyhow.
    """
    if not os.path.isfile(path) or os.path.getsize(path) < LARGE_TEXT:
        return 0
    return read_text(path).count('"name"')


ENGINES = ("auto", "simpy", "compiled")
Reading = Callable[[str, Any, Callable[[Any], Any]], Any]
"""Called as (part, path or object, reader); returns reader(path or object), or an earlier result of
the same call that it has kept.
"""


def _without_memory(part: str, value: Any, read: Callable[[Any], Any]) -> Any:
    return read(value)


@keys_of(MemoryModel)
class _MemoryShape(TypedDict, total=False):
    """How memory is counted; docs/explanation/memory.md has the models."""

    context: Any
    communication: Any


class _OptionsShape(TypedDict, total=False):
    """How a step is executed.

    - ``engine``: ``auto`` (default), ``simpy`` or ``compiled``.
    - ``memory``: how memory is counted; by default the tensors of the graph.
    - ``symmetry``: false simulates every device, even where several behave equally; default true.
    - ``steps``: ``once`` (default), or ``repeated``: steps that follow one another.
    - ``limit``: how long the simulation of a step may take by an estimate, like ``600 s`` (default
      60 s), or ``none``.
    - ``samples``: samples of a step, where they do not follow from the inputs of the graph.
    - ``tokens``: tokens of a step.
    - ``price``: the price of an hour of each device, like ``$2.5``.
    """

    engine: str
    memory: _MemoryShape
    symmetry: bool
    steps: str
    limit: Any
    samples: int | None
    tokens: int | None
    price: Any


class _ScenarioShape(TypedDict, total=False):
    """A question: paths are relative to its file.

    - ``graph``: a path, the object, or a model like ``{"model": "resnet-50", "batch": 32}``;
      under a pipeline of a large model, the model's sizes.
    - ``cluster``: a path, the object, or a preset's name, like ``dgx-h100``.
    - ``strategy``: a path, the object, a bare placement, or a short form's name.
    - ``profile``: a path or a list of paths; the first that has a row of an op is used. Left out, a
      large model takes the measured rows that ship for its devices; ``[]`` means no profile.
    - ``devices``: a datasheet or a list of them, which override the shipped ones.
    - ``name``: what it is called.
    - ``options``: how the step is executed.
    - ``disturbances``: noise in the times of tasks, and pauses of devices.
    - ``failures``: how often machines fail in a long run of steps, and how the run recovers.
    - ``provenance``: where its numbers come from, in any form.
    """

    name: str
    graph: Required[Any]
    cluster: Required[Any]
    profile: Any
    devices: Any
    strategy: Required[Any]
    options: _OptionsShape
    disturbances: DisturbancesShape
    failures: FailuresShape
    provenance: dict[str, Any]


FORMAT = Format(
    _ScenarioShape,
    "a scenario",
    elsewhere={key: f"strategy.{key}" for key in STRATEGY.shape.__annotations__},
)


@dataclass(frozen=True, slots=True)
class ScenarioFiles:
    """The parts of a scenario file, read and valid. ``graph`` is a model's sizes under a pipeline,
    ``profiles`` are None where the file has no ``profile``, ``options`` are the file's options by
    name, with ``disturbances`` and ``failures`` among them.
    """

    graph: Graph | Transformer
    cluster: Cluster
    profiles: tuple[Profile, ...] | None
    strategy: Strategy
    specs: tuple[DeviceSpec, ...]
    options: Mapping[str, Any]


def named_files(value: Document, folder: str) -> Iterator[str]:
    """The paths that a scenario's document names, joined to its folder. Names of presets are not
    told from paths and are among them.

    The last paths are the config.json of a large model and the schedule of a pipeline, for which
    the strategy's file is opened.
    """
    for part in PARTS:
        names = value.get(part)
        for name in names if isinstance(names, list) else [names]:
            if isinstance(name, str) and name and "\0" not in name:
                yield located(name, folder)
    others = config_path(value.get("graph"), folder), table_path(value.get("strategy"), folder)
    yield from (path for path in others if path is not None)


def read_scenario(
    source: PathLike | Document,
    reading: Reading = _without_memory,
    try_placement: bool = True,
    limit: Any = None,
) -> ScenarioFiles:
    """The parts of a scenario: of a file, of an example (by its name), or of an object already
    parsed, whose paths are relative to the working directory.

    The strategy decides whether a model's name means its graph or, under a pipeline, its sizes.
    Graph, cluster, profiles, datasheets and strategy are read through ``reading``, so that many
    scenarios can share them. ``try_placement`` checks the placement here; lowering would check it
    too, but cannot name the file. ``limit`` overrides the limit of the options. Raises InputError
    with every problem of every file at once, each with the name of its file.
    """
    if isinstance(source, (str, os.PathLike)):
        path = scenario_path(os.fspath(source))
        folder = "" if path == "-" else os.path.dirname(path)
        reader = _Reader(label(path), folder, reading, try_placement, limit)
        return reader.files(parsed(path, limit), True)
    return _Reader("", "", reading, try_placement, limit).files(source, False)


class _Reader:
    """A reader of the parts of one scenario, which collects the problems of all of them."""

    def __init__(
        self, file: str, folder: str, reading: Reading, try_placement: bool, limit: Any
    ) -> None:
        self.file, self.folder, self.limit = file, folder, limit
        self.reading, self.try_placement = reading, try_placement
        self.problems: list[str] = []

    def files(self, value: Any, is_file: bool) -> ScenarioFiles:
        fields = self._caught(lambda: FORMAT.checked(value, is_file), self.file)
        if fields is None:
            raise InputError(self.problems)
        fields = {**fields, "graph": self._model(fields["graph"])}
        options, given = self._options(fields.get("options", {})), fields["strategy"]
        beside = {key: self._beside(key, fields[key]) for key in BESIDE if key in fields}
        if not self.problems:
            require_few(fields, self._path, parse_limit(options["limit"]))
        # The strategy decides what the graph's name means, so it is read first; its problems still
        # come last, as in the order of the file.
        before = len(self.problems)
        is_foreign = isinstance(given, str) and given.endswith(SUFFIXES)
        strategy = None if is_foreign else self._strategy(given)
        self.problems, of_strategy = self.problems[:before], self.problems[before:]
        graph = self._graph(fields["graph"], given, strategy)
        sheets = self._several("devices", fields.get("devices", []), read_device)
        cluster = self._cluster(fields["cluster"], sheets)
        rows = self._several("profile", fields.get("profile", []), read_profile)
        for kind, count in Counter(spec.kind for spec in sheets).items():
            if count > 1:
                self._add(f"devices: two of kind {shown(kind)}")
        self.problems += of_strategy
        if cluster and isinstance(graph, Graph):
            if is_foreign:
                strategy = self._foreign(given, graph, cluster)
            if strategy and self.try_placement and not strategy.pipeline:
                self._place(graph, cluster, strategy, given)
        if self.problems or graph is None or cluster is None or strategy is None:
            raise InputError(self.problems)
        if isinstance(graph, Graph) and options.get("samples") is None:
            options["samples"] = _batch(fields["graph"])
        specs = datasheets(sheets, [device.kind for device in cluster.devices], rows)
        profiles = rows if "profile" in fields else None
        return ScenarioFiles(graph, cluster, profiles, strategy, specs, options | beside)

    def _beside(self, key: str, given: Document) -> Any:
        """A part that is a noun of its own and never a file."""
        return self._caught(lambda: BESIDE[key](given), self.file, f"{key}.")

    def _options(self, given: Document) -> Fields:
        options = {"engine": "auto", **given}
        if options["engine"] not in ENGINES:
            choice, engine = ", ".join(ENGINES), shown(options["engine"])
            self._add(f"options.engine: must be one of {choice}, got {engine}")
        options["limit"] = self._caught(lambda: limit_of(given, self.limit), self.file, "options.")
        options["memory"] = self._caught(
            lambda: MemoryModel(**given.get("memory", {})), self.file, "options.memory."
        )
        return options

    def _add(self, problem: str) -> None:
        self.problems.append(f"{self.file}: {problem}" if self.file else problem)

    def _caught(self, action: Callable[[], Any], file: str, prefix: str = "") -> Any:
        """The result of an action, or None with its problems collected. Problems that name no file
        are reported about ``file``.
        """
        try:
            return action()
        except InputError as error:
            name = error.file or file
            before = (f"{name}: " if name else "") + ("" if error.file else prefix)
            self.problems.extend(before + problem for problem in error.problems)
            return None

    def _path(self, path: str) -> str:
        return located(path, self.folder)

    def _is_name(self, value: Any) -> bool:
        """Whether a value is a text that names no existing file."""
        return (
            isinstance(value, str)
            and value != ""
            and "\0" not in value
            and not os.path.exists(self._path(value))
        )

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

    def _cluster(self, value: Any, sheets: tuple[DeviceSpec, ...]) -> Any:
        if self._is_name(value):
            if value in preset_names():
                return self.reading("cluster", value, read_preset)
            if not value.endswith((".json", ".gz")):
                hint = preset_hint(value)
                return self._add(f"cluster: neither a file nor a preset: {shown(value)}; {hint}")
        if not sheets:
            return self._part("cluster", value, read_cluster)
        # The memory of devices depends on the scenario's datasheets, so a cluster read earlier from
        # the same path cannot be reused.
        return self._part("cluster", value, lambda it: read_cluster(it, sheets), _without_memory)

    def _strategy(self, value: Any) -> Any:
        """A path or an object, or the name of a short form."""
        if self._is_name(value):
            if value in SHORT_FORMS:
                return Strategy(short=value)
            if _is_word(value):
                return self._add(
                    f"strategy: neither a file nor a short form: {shown(value)}; short forms: "
                    f"{', '.join(SHORT_FORMS)}"
                )
        # The path of a pipeline's table is relative to the strategy's file.
        folder = "" if isinstance(value, str) else self.folder
        return self._part("strategy", value, lambda source: read_strategy(source, folder))

    def _foreign(self, value: str, graph: Graph, cluster: Cluster) -> Any:
        # The meaning of such a file depends on graph and cluster, so a strategy read earlier from
        # the same path cannot be reused.
        return self._part(
            "strategy",
            value,
            lambda path: read_flexflow_strategy(path, graph, cluster),
            _without_memory,
        )

    def _model(self, value: Any) -> Any:
        """The value of ``graph``; a model's bare name becomes an object with its usual sizes."""
        is_model = self._is_name(value) and value in {*MODELS, *LARGE}
        return {"model": value} if is_model else value

    def _graph(self, value: Any, strategy_value: Any, strategy: Strategy | None) -> Any:
        """A graph; under a pipeline the sizes of a large model."""
        is_pipeline = strategy.pipeline is not None if strategy else _says_pipeline(strategy_value)
        is_sizes = isinstance(value, Mapping) and _is_large(value.get("model"), is_pipeline)
        # The path of a model's file is relative to the file of the graph.
        read = (lambda sizes: read_sizes(sizes, self.folder)) if is_sizes else read_ops
        return self._part("graph", value, read)

    def _several(self, key: str, value: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """The values of a part that may be a single value or a list."""
        named = {key: value}
        if isinstance(value, list):
            named = {f"{key}[{i}]": item for i, item in enumerate(value)}
        parts = [self._part(name, item, read) for name, item in named.items()]
        return tuple(part for part in parts if part is not None)

    def _place(self, graph: Graph, cluster: Cluster, strategy: Strategy, value: Any) -> None:
        """Try the placement here, where the file that holds it is known."""
        is_path = isinstance(value, str)
        file, prefix = (self._path(value), "") if is_path else (self.file, "strategy.")
        place = placed if strategy.splits else resolve_placement
        self._caught(lambda: place(graph, cluster, strategy.placement), file, prefix)
        if strategy.splits:
            partition = strategy.partition
            self._caught(lambda: resolve_partition(graph, cluster, partition), file, prefix)


def _is_word(value: str) -> bool:
    """Whether a text looks like a name rather than the path of a file."""
    return (
        value.isprintable() and value.strip() == value != "" and not any(c in value for c in "./\\")
    )


def _is_large(name: Any, is_pipeline: bool) -> bool:
    """Whether a model's name means the sizes of a large model. Some large models also have a graph,
    which is meant where the strategy has no pipeline.
    """
    if not isinstance(name, str) or is_config(name):
        return is_config(name)
    is_small = name in MODELS
    return name in LARGE or not is_small if is_pipeline else name in LARGE and not is_small


def _says_pipeline(value: Any) -> bool:
    """Whether the object of a faulty strategy has a pipeline."""
    return isinstance(value, Mapping) and isinstance(value.get("pipeline"), Mapping)


def read_ops(value: PathLike | Document) -> Graph:
    """A graph from its path, from its object, or from a model's name and sizes: {"model":
    "resnet-50", "batch": 32}.
    """
    if isinstance(value, Mapping) and "model" in value:
        return build(value["model"], **sizes_of(value))
    return read_graph(value)


def _batch(value: Any) -> int | None:
    """The batch of a model given by its name; None for a graph given by its ops."""
    if not isinstance(value, Mapping) or value.get("model") not in MODELS:
        return None
    batch: int = (MODELS[value["model"]].sizes | sizes_of(value))["batch"]
    return batch


class _GridShape(TypedDict, total=False):
    """A grid.

    - ``grid``: values by field, like ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"]}``, or a list
      of such objects.
    - ``name``, ``about``: what it is.
    """

    name: str
    about: str
    grid: Required[Any]


GRID = Format(_GridShape, "a grid")


def read_grid(path: PathLike) -> tuple[Mapping[str, list[Any]], ...]:
    """The products of a grid, one after another, each with its values by field:
    ``{"cluster.bandwidth": ["1 GB/s", "2 GB/s"]}``.

    Raises InputError with every problem at once.
    """
    with GRID.opened(path) as fields:
        grid = fields["grid"]
        products = grid if isinstance(grid, list) else [grid]
        problems = [
            problem
            for i, product in enumerate(products)
            for problem in _grid_problems(product, f"grid[{i}]" if grid is products else "grid")
        ]
        if problems or not products:
            raise InputError(problems or "grid: must not be empty")
        return tuple(products)


def _grid_problems(product: Any, at: str) -> list[str]:
    if not isinstance(product, dict):
        return [
            f"{at}: must be an object of lists, or a list of such objects, got {shown(product)}"
        ]
    return [
        f'{at}["{field}"]: must be a list of values, got {shown(values)}'
        for field, values in product.items()
        if not isinstance(values, list)
    ]
