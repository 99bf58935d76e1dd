"""Points of a sweep: every scenario at every point of the grid, with a key of its content.

The key of a point hashes the scenario's values, all files it names, and the engine's version. Files
are hashed, not named: a scenario moved elsewhere keeps its key, a file edited in place changes it.
sweeping.py and ``simdev/measure/calibrate/steps.py`` call ``rows_of``. A new way for a scenario to
name a file belongs into ``_with_paths`` and ``_document_point``, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from math import prod
from typing import Any

from ...execution.scenario import OPTIONS, Scenario, fingerprint
from ...files import preset_names
from ...files.examples import scenario_path
from ...files.reading import PathLike, label, read_json, shown
from ...files.scenario import PARTS, config_path, table_path
from ...files.shape import VERSION
from ...ground.errors import InputError, prefixed
from ...ground.units import is_count
from ...nouns.strategy.parallelism import MOST, microbatches_of
from .fields import Document, Read, opened, parse_path, with_field
from .journal import READERS, sources_version

# A scenario with several fields set. A large model keeps its global batch, since replicas and
# microbatches are ways to spread a batch, and plans are comparable only at the same batch. A sweep
# that sets microbatches or global_batch changes the batch.

SPREAD = ("dp", "microbatch")
BATCH = ("microbatches", "global_batch")


def with_fields(document: Document, settings: Document, folder: str, read: Read) -> Document:
    """The scenario with other values at several paths, a whole part before its fields.

    Where ``dp`` or ``microbatch`` of its pipeline is set, and neither ``microbatches`` nor
    ``global_batch``, the number of microbatches follows from the batch before. Raises InputError.
    """
    spread: dict[str, str] = {}
    for path in sorted(settings, key=len):
        steps = parse_path(path)
        name = steps[2] if len(steps) == 3 and steps[:2] == ("strategy", "pipeline") else None
        if name in (*SPREAD, *BATCH):
            spread[str(name)] = path
        else:
            document = with_field(document, path, settings[path], folder, read)
    before = _pipeline(document, folder, read) if spread else {}
    for path in spread.values():
        document = with_field(document, path, settings[path], folder, read)
    return _with_batch(document, before, [*spread]) if spread else document


def _pipeline(document: Document, folder: str, read: Read) -> Document:
    """The pipeline of a scenario, whether its strategy is written there or in a file."""
    part = document.get("strategy", {})
    if not isinstance(part, (str, dict)):
        return {}
    strategy = opened("strategy", part, ("pipeline",), lambda n: read(os.path.join(folder, n)))
    pipeline = strategy.get("pipeline") if isinstance(strategy, Mapping) else None
    return pipeline if isinstance(pipeline, Mapping) else {}


def _with_batch(document: Document, before: Document, spread: Collection[str]) -> Document:
    """The scenario with its pipeline's batch settled. ``before`` is the pipeline before the fields
    in ``spread`` were set.
    """
    pipeline = dict(document["strategy"]["pipeline"])
    given = [name for name in BATCH if name in spread]
    if given:
        # The scenario's value of the other field belongs to the old batch, so it is dropped.
        pipeline = {k: v for k, v in pipeline.items() if k in given or k not in BATCH}
    elif "global_batch" not in pipeline:
        was, now = (
            [part.get(name, 1) for name in (*SPREAD, BATCH[0])] for part in (before, pipeline)
        )
        if not all(is_count(count) and 0 < count <= MOST for count in (*was, *now)):
            return document  # the strategy's reader refuses malformed counts
        with prefixed("strategy.pipeline."):
            pipeline["microbatches"] = microbatches_of(prod(was), *now[:2])
    return {**document, "strategy": {**document["strategy"], "pipeline": pipeline}}


APART = rf"({READERS}|search(?!/sweep/))/"  # sources that cannot change a row of a sweep

Source = PathLike | Document | Scenario
SINGLE = (str, os.PathLike, Mapping, Scenario)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A job of a sweep: the scenario, ``digests`` of its parts, and the ``version`` of the engine
    that must answer.

    A document names every file by its absolute path. ``draws`` are the number of draws, and their
    seed.
    """

    key: str
    scenario: Document | Scenario
    digests: Mapping[str, str]
    version: str
    draws: tuple[int, int] = (0, 0)

    def drawn(self, draws: int, seed: int) -> SweepPoint:
        """The point with draws, under another key."""
        key = _sha256(f"{self.key} {draws} {seed}")[:32]
        return replace(self, key=key, draws=(draws, seed)) if draws else self


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the result: the scenario's name, the values set, and the point, or the problem why
    there is none.
    """

    label: str
    settings: Document
    point: SweepPoint | None = None
    problem: str | None = None


class Sources:
    """Files and parts that were read and hashed so far: many scenarios name the same ones."""

    def __init__(self) -> None:
        self.read = cache(read_json)
        # The digest includes the ending of the name, which decides how a file is read.
        self.file = cache(file_digest)
        # By id, so the object is kept alive too: no other object may get the same id.
        self._parts: dict[int, tuple[Any, str]] = {}
        self._copies: dict[str, Any] = {}

    def kept(self, value: Any) -> Any:
        """A copy of an object's part, since the caller may change the object; equal parts share a
        copy.
        """
        if not isinstance(value, (Mapping, list)):
            return value
        try:
            digest = _sha256(_canonical(value))
        except InputError:  # raised again for every row, where the part's digest is needed
            return value
        if digest not in self._copies:
            self._copies[digest] = deepcopy(value)
        copy = self._copies[digest]
        self._parts[id(copy)] = copy, digest
        return copy

    def part(self, value: Any) -> str:
        """The digest of an object; the same (not an equal) object is not hashed again."""
        if id(value) not in self._parts:
            is_json = isinstance(value, (Mapping, list))
            text = _canonical(value) if is_json else fingerprint(value)
            self._parts[id(value)] = value, _sha256(text)
        return self._parts[id(value)][1]


def file_digest(path: str) -> str:
    """The hash of a file's bytes, with the ending of its name; "unreadable" for a file that cannot
    be read.
    """
    try:
        with open(path, "rb") as file:
            return f"{hashlib.file_digest(file, 'sha256').hexdigest()}{os.path.splitext(path)[1]}"
    except (OSError, ValueError):
        return "unreadable"


def engine_version() -> str:
    """The version of the sources that simulate a scenario (``sources_version``)."""
    return sources_version(APART)


def as_simulate_says(reason: str) -> str:
    """A reason with the relative paths of ``simdev simulate``: points name files by
    absolute paths.
    """
    return reason.replace(os.path.join(os.getcwd(), ""), "")


def rows_of(scenarios: Source | Iterable[Source], points: Iterable[Document]) -> Iterator[Row]:
    """Every scenario at every point of a grid, in this order: the rows of the result.

    A faulty file is reported in its rows. Raises InputError where a scenario is neither a path, an
    object nor a Scenario.
    """
    if isinstance(scenarios, SINGLE):
        scenarios = [scenarios]
    sources, points = Sources(), list(points)
    for number, source in enumerate(scenarios):
        if not isinstance(source, SINGLE):
            raise InputError(
                f"scenarios[{number}]: must be a path, an object or a Scenario, got {source!r}"
            )
        name = label(source) if isinstance(source, (str, os.PathLike)) else f"[{number}]"
        if isinstance(source, Mapping):
            source = {key: sources.kept(value) for key, value in source.items()}
            name = source["name"] if isinstance(source.get("name"), str) else name
        for settings in points:
            yield _row(name, source, settings, sources)


def _row(name: str, source: Source, settings: Document, sources: Sources) -> Row:
    try:
        if isinstance(source, Scenario):
            return Row(name, settings, _scenario_point(source, settings, sources))
        if isinstance(source, Mapping):
            document, folder = source, ""
        else:
            path = scenario_path(os.fspath(source))
            document, folder = _document(sources.read(path)), os.path.dirname(path)
        document = with_fields(document, settings, folder, sources.read)
        return Row(name, settings, _document_point(document, os.path.abspath(folder), sources))
    except InputError as error:
        return Row(name, settings, problem=str(error).removeprefix(f"{name}: "))


def _document(value: Any) -> Document:
    if not isinstance(value, dict):
        raise InputError(f"must be an object (a scenario), got {shown(value)}")
    if "version" not in value:
        raise InputError(f'version: missing; write "version": {VERSION}')
    return value


def _scenario_point(scenario: Scenario, settings: Document, sources: Sources) -> SweepPoint:
    if settings:
        field = next(iter(settings))
        raise InputError(
            f"{field}: is a field of a scenario file or object, and this is a Scenario"
        )
    nouns = ("graph", "cluster", "costs", "strategy")
    digests = {noun: sources.part(getattr(scenario, noun)) for noun in nouns}
    others = (*OPTIONS, "disturbances", "failures")
    options = {option: fingerprint(getattr(scenario, option)) for option in others}
    return SweepPoint(_key(digests | options), scenario, digests, engine_version())


def _document_point(document: Document, folder: str, sources: Sources) -> SweepPoint:
    document = {key: _with_paths(key, value, folder) for key, value in document.items()}
    digests: dict[str, str] = {}
    for part in PARTS:
        value = document.get(part)
        if isinstance(value, list):
            digests |= {f"{part}[{i}]": _digest(entry, sources) for i, entry in enumerate(value)}
        else:
            digests[part] = _digest(value, sources)
    named = {
        "config": config_path(document.get("graph"), folder),
        "table": table_path(document.get("strategy"), folder, sources.read),
    }
    digests |= {key: sources.file(path) for key, path in named.items() if path is not None}
    others = {key: value for key, value in document.items() if key not in PARTS}
    return SweepPoint(_key(others | digests), document, digests, engine_version())


def _digest(value: Any, sources: Sources) -> str:
    if isinstance(value, str):
        return sources.file(value) if os.path.isabs(value) else f"name:{value}"
    return sources.part(value) if isinstance(value, (dict, list)) else repr(value)


def _with_paths(part: str, value: Any, folder: str) -> Any:
    """The part with the absolute path of every file that it names."""
    if part not in PARTS:
        return value
    config = config_path(value, folder) if part == "graph" else None
    if config is not None:
        return {**value, "model": config}
    table = table_path(value, folder) if part == "strategy" else None
    if table is not None:
        return {**value, "pipeline": {**value["pipeline"], "table": table}}
    if isinstance(value, list):
        return [_with_paths(part, entry, folder) for entry in value]
    if not isinstance(value, str) or not value or "\0" in value:
        return value
    path = os.path.normpath(os.path.join(folder, value))
    is_name = {
        "cluster": value in preset_names() or not value.endswith((".json", ".gz")),
        "strategy": not any(c in value for c in "./\\"),  # a short form, or one misspelt
    }
    return value if is_name.get(part) and not os.path.exists(path) else path


def _key(content: Document) -> str:
    return _sha256(_canonical({"simdev": engine_version(), "scenario": content}))[:32]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> str:
    """The JSON text of a value, with its keys sorted, so that equal content has equal text.

    Raises InputError.
    """
    try:
        return json.dumps(value, sort_keys=True, default=_tagged)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be written as JSON: {error}") from None


def _tagged(value: Any) -> Any:
    """A JSON form of values that JSON lacks, tagged with the type: a text cannot have the same
    form.
    """
    if isinstance(value, Mapping):
        return dict(value)
    # 1.50 and 1.5 are the same number.
    text = str(value.normalize()) if isinstance(value, Decimal) else repr(value)
    return {"": [type(value).__name__, text]}
