"""Questions of a sweep: every scenario at every point of the grid, named by its content.

The key of a question hashes what its scenario says, all files it names, and the engine's version.
Files are hashed, not named: a scenario moved elsewhere keeps its key, a file edited in place
changes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ..errors import InputError
from ..files import preset_names
from ..files.paths import shown
from ..files.pipeline import table_path
from ..files.reading import label, read_json
from ..files.shape import VERSION
from ..scenario import OPTIONS, Scenario, fingerprint
from .fields import PARTS, with_field
from .version import engine_version

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario


@dataclass(frozen=True, slots=True)
class Question:
    """What a worker needs: the scenario, ``digests`` of its parts, and the engine's ``version``
    that must answer.

    In a document every file is named by its absolute path.
    """

    key: str
    scenario: Mapping[str, Any] | Scenario
    digests: Mapping[str, str]
    version: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A row to be: the scenario's name, the values set, and the question, or why there is none."""

    label: str
    settings: Mapping[str, Any]
    question: Question | None = None
    problem: str | None = None


@dataclass
class Sources:
    """What was read and hashed so far: many scenarios name the same files."""

    documents: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    parts: dict[int, tuple[Any, str]] = field(default_factory=dict)
    copies: dict[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> Any:
        """The JSON value of a file, read once. Raises InputError."""
        if path not in self.documents:
            self.documents[path] = read_json(path)
        return self.documents[path]

    def file(self, path: str) -> str:
        """The digest of a file's bytes, with its ending, for that decides how it is read."""
        if path not in self.files:
            self.files[path] = file_digest(path)
        return self.files[path]

    def kept(self, value: Any) -> Any:
        """A copy of an object's part, for its owner may write into it; equal parts share one."""
        if not isinstance(value, (Mapping, list)):
            return value
        try:
            digest = hashlib.sha256(_canonical(value).encode()).hexdigest()
        except InputError:  # told of every row, where the part is asked for
            return value
        if digest not in self.copies:
            self.copies[digest] = deepcopy(value)
        self.parts[id(self.copies[digest])] = self.copies[digest], digest
        return self.copies[digest]

    def part(self, value: Any) -> str:
        """The digest of an object; one met before (the same, not an equal one) is not hashed
        again.
        """
        known = self.parts.get(id(value))
        if known is None:
            text = (
                fingerprint(value) if not isinstance(value, (Mapping, list)) else _canonical(value)
            )
            known = self.parts[id(value)] = value, hashlib.sha256(text.encode()).hexdigest()
        return known[1]


def file_digest(path: str) -> str:
    """The hash of a file's bytes with the ending of its name; one that cannot be read has a digest
    too.
    """
    try:
        with open(path, "rb") as file:
            return f"{hashlib.file_digest(file, 'sha256').hexdigest()}{os.path.splitext(path)[1]}"
    except (OSError, ValueError):
        return "unreadable"


def questions(
    scenarios: Source | Iterable[Source], points: Iterable[Mapping[str, Any]]
) -> Iterator[Asked]:
    """Every scenario at every point, in this order: the rows of the result.

    What a file lacks is told in its rows.

    Raises InputError where a scenario is neither a path, an object nor a Scenario.
    """
    if isinstance(scenarios, (str, os.PathLike, Mapping, Scenario)):
        scenarios = [scenarios]
    sources, points = Sources(), list(points)
    for number, source in enumerate(scenarios):
        if not isinstance(source, (str, os.PathLike, Mapping, Scenario)):
            raise InputError(
                f"scenarios[{number}]: must be a path, an object or a Scenario, got {source!r}"
            )
        name = label(source) if isinstance(source, (str, os.PathLike)) else f"[{number}]"
        if isinstance(source, Mapping):
            source = {key: sources.kept(value) for key, value in source.items()}
        for point in points:
            yield _asked(name, source, point, sources)


def _asked(name: str, source: Source, point: Mapping[str, Any], sources: Sources) -> Asked:
    try:
        if isinstance(source, Scenario):
            return Asked(name, point, _of_scenario(source, point, sources))
        if isinstance(source, Mapping):
            document, folder = source, ""
            name = source["name"] if isinstance(source.get("name"), str) else name
        else:
            path = os.fspath(source)
            document, folder = (
                _document(sources.read(path)),
                "" if path == "-" else os.path.dirname(path),
            )
        for field_path in sorted(point, key=len):  # a whole part is set before its fields
            document = with_field(document, field_path, point[field_path], folder, sources.read)
        return Asked(name, point, _of_document(document, os.path.abspath(folder), sources))
    except InputError as error:
        problem = str(error).removeprefix(f"{name}: ")
        return Asked(name, point, problem=problem)


def _document(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"must be an object (a scenario), got {shown(value)}")
    if "version" not in value:
        raise InputError(f'version: missing; write "version": {VERSION}')
    return value


def _of_scenario(scenario: Scenario, point: Mapping[str, Any], sources: Sources) -> Question:
    if point:
        raise InputError(
            f"{next(iter(point))}: is a field of a scenario file or object, and this is a Scenario"
        )
    nouns = ("graph", "cluster", "costs", "strategy")
    digests = {noun: sources.part(getattr(scenario, noun)) for noun in nouns}
    asked = digests | {option: fingerprint(getattr(scenario, option)) for option in OPTIONS}
    return Question(_key(asked), scenario, digests, engine_version())


def _of_document(document: Mapping[str, Any], folder: str, sources: Sources) -> Question:
    document = {key: _with_places(key, value, folder) for key, value in document.items()}
    digests: dict[str, str] = {}
    for part in PARTS:
        value = document.get(part)
        named = (
            {f"{part}[{i}]": one for i, one in enumerate(value)}
            if isinstance(value, list)
            else {part: value}
        )
        digests |= {key: _digest(one, sources) for key, one in named.items()}
    table = table_path(document.get("strategy"), folder, sources.read)
    if table is not None:
        digests["table"] = sources.file(table)
    asked = {key: value for key, value in document.items() if key not in PARTS} | digests
    return Question(_key(asked), document, digests, engine_version())


def _digest(value: Any, sources: Sources) -> str:
    if isinstance(value, str):
        return sources.file(value) if os.path.isabs(value) else f"name:{value}"
    return sources.part(value) if isinstance(value, (dict, list)) else repr(value)


def _with_places(part: str, value: Any, folder: str) -> Any:
    """The part with the absolute path of every file that it names."""
    if part not in PARTS:
        return value
    table = table_path(value, folder) if part == "strategy" else None
    if table is not None:
        return {**value, "pipeline": {**value["pipeline"], "table": table}}
    if isinstance(value, list):
        return [_with_places(part, one, folder) for one in value]
    if not isinstance(value, str) or not value or "\0" in value:
        return value
    path = os.path.normpath(os.path.join(folder, value))
    is_name = (
        part == "cluster" and (value in preset_names() or not value.endswith((".json", ".gz")))
    ) or (
        part == "strategy" and not any(c in value for c in "./\\")  # a short form, or one misspelt
    )
    return value if is_name and not os.path.exists(path) else path


def _key(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        _canonical({"simdev": engine_version(), "scenario": asked}).encode()
    ).hexdigest()[:32]


def _canonical(value: Any) -> str:
    """The same text for the same content, in whatever order its keys stand. Raises InputError."""
    try:
        return json.dumps(value, sort_keys=True, default=_odd)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be written as JSON: {error}") from None


def _odd(value: Any) -> Any:
    """What JSON has no form for, told apart from texts that look alike."""
    if isinstance(value, Mapping):
        return dict(value)
    return {
        "": [
            type(value).__name__,
            str(value.normalize()) if isinstance(value, Decimal) else repr(value),
        ]
    }
