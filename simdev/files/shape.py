"""Formats of files: each is a TypedDict, checked by pydantic, whose errors become simdev's
messages, all of them at once.

Only this package imports pydantic. Quantities are parsed on the way (``Seconds``, ``Bytes``,
``Bandwidth``), so that a wrong unit has its path in the message like any wrong type. A new unit is
a parser in ``ground/units.py``, a type here and its row in ``_QUANTITIES``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from operator import or_
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Required, TypeVar, Union, get_args, get_origin

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import CoreSchema, ErrorDetails
from pydantic_core.core_schema import custom_error_schema
from typing_extensions import TypedDict, get_type_hints, is_typeddict

from ..ground.errors import InputError, collecting, refuse, within
from ..ground.units import (
    MAX_BYTES,
    exact,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops,
    parse_slowdown,
    parse_speed,
    parse_time,
    parse_times,
    units_of,
)
from ..nouns.semantics.dtype import known, no_dtype
from .reading import at, label, path_text, read_json, shown

Fields = dict[str, Any]
"""The keys and values of a file's object, or of an object in it."""
STRICT = ConfigDict(strict=True, extra="forbid")
VERSION = 1
UNLIMITED = "unlimited"
"""In place of bytes: the memory of a device without a limit."""
MOST_PRIORITY = 2**53


def _bytes(value: Any) -> int:
    # Whole numbers, by far the most frequent values, are left to the nouns, which check their
    # range.
    return value if type(value) is int else parse_bytes(_number(value))


def _number(value: Any) -> Any:
    """The value, if it is a number or a text: the parsers of units take nothing else. Raises
    ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal, Fraction)):
        raise ValueError(f"must be a number or a text with a unit, got {shown(value)}")
    return value


def _quantity(parse: Callable[[Any], Any]) -> PlainValidator:
    # A large file has few different texts.
    of_text = lru_cache(4096)(parse)
    return PlainValidator(
        lambda value: of_text(value) if isinstance(value, str) else parse(_number(value))
    )


def _capacity(value: Any) -> Any:
    return UNLIMITED if value == UNLIMITED else parse_bytes(_number(value))


def _dtype(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a dtype, got {shown(value)}")
    if known(value) is None:
        raise ValueError(no_dtype(value))
    # Kept as written, so that a graph is written back unchanged.
    return value


def _share(value: Any) -> Fraction:
    share = exact(_number(value))
    if not 0 < share <= 4:
        raise ValueError(f"must be a share > 0 and at most 4, got {shown(value)}")
    return share


def _time(value: Any) -> Fraction | dict[str, Fraction]:
    if not isinstance(value, dict):
        return parse_time(_number(value))
    seconds, problems = {}, []
    for kind, time in value.items():
        try:
            seconds[str(kind)] = parse_time(_number(time))
        except ValueError as error:
            problems.append(f'["{kind}"]: {error}')
    refuse(problems)
    return seconds


def _priority(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_PRIORITY:
        raise ValueError(f"must be a whole number from -2^53 to 2^53, got {shown(value)}")
    return value


def plain(value: Any) -> Any:
    """The value with floats in place of Decimals, so that attributes compare equal to those of a
    graph made in Python.
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


Bytes = Annotated[int, PlainValidator(_bytes)]
OptionalBytes = Annotated[int, _quantity(parse_bytes)] | None
Capacity = Annotated[int | Literal["unlimited"], PlainValidator(_capacity)] | None
Seconds = Annotated[Fraction, _quantity(parse_time)]
Duration = Annotated[Fraction, _quantity(parse_duration)]
Bandwidth = Annotated[Fraction, _quantity(parse_bandwidth)]
Flops = Annotated[Fraction, _quantity(parse_flops)]
Share = Annotated[Fraction, PlainValidator(_share)]
Slowdown = Annotated[Fraction, _quantity(parse_slowdown)]
Speed = Annotated[Fraction, _quantity(parse_speed)]
Dtype = Annotated[str, PlainValidator(_dtype)] | None
GivenTime = Annotated[Fraction | dict[str, Fraction], PlainValidator(_time)]
Time = GivenTime | None
Priority = Annotated[int, PlainValidator(_priority)]

T = TypeVar("T")
_QUANTITIES: Mapping[tuple[Any, bool], Any] = {
    (parse_bytes, False): Bytes,
    (parse_bytes, True): OptionalBytes,
    **{(parse_time, may_miss): Seconds for may_miss in (False, True)},
    **{(parse_bandwidth, may_miss): Bandwidth for may_miss in (False, True)},
    (parse_slowdown, False): Slowdown,
    (parse_speed, False): Speed,
    (parse_duration, False): Duration,
    (parse_duration, True): Duration | None,
    (parse_times, True): Time,
}
"""The type in a file of a noun's quantity, by (its parser, whether it may be None). A rate or time
that is None is left out of the file and never null.
"""


def keys_of(noun: type, *without: str) -> Callable[[T], T]:
    """Decorates a TypedDict: it gets the fields of a dataclass as keys, except those of
    ``without``. A key is required where the field has no default. Its type is the field's type in
    JSON, unless the TypedDict gives another.
    """
    make: Any = TypedDict

    def decorated(shape: Any) -> Any:
        given, kinds = get_type_hints(shape, include_extras=True), dict[str, Any]()
        hints, units = get_type_hints(noun), units_of(noun)
        for field in fields(noun):
            if field.name in without:
                continue
            name, kind = field.name, _in_json(hints[field.name])
            if name in units:
                unit, may_miss = units[name]
                kind = _QUANTITIES[unit.parse, may_miss]
            kinds[name] = given.pop(name, Required[kind] if field.default is MISSING else kind)
        made = make(shape.__name__, kinds | given, total=False)
        made.__doc__, made.__module__ = shape.__doc__, shape.__module__
        return made

    return decorated


def _in_json(hint: Any) -> Any:
    """The type of a value in a file, where tuples are lists and mappings are objects."""
    origin, parts = get_origin(hint), tuple(map(_in_json, get_args(hint)))
    if origin is tuple:
        return list[parts[0]]  # type: ignore[valid-type]
    if origin is Mapping:
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    return reduce(or_, parts) if origin in (Union, UnionType) else hint


class _Worded:
    """An annotation of a type that gives all of its errors one message of ``_REASONS``.

    pydantic then checks it without calling Python, which is ten times faster than a validator.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return custom_error_schema(
            handler(source), custom_error_type=self.error, custom_error_message=self.error
        )


Extent = Annotated[int, Field(ge=0, le=MAX_BYTES), _Worded("extent")]

_REASONS: dict[str, str] = {
    "extent": "must be a whole number from 0 to 2^60, got {}",
    "missing": "missing",
    "string_type": "must be text, got {}",
    "int_type": "must be a whole number, got {}",
    "bool_type": "must be true or false, got {}",
    "list_type": "must be a list, got {}",
    "dict_type": "must be an object, got {}",
    "literal_error": "must be one of {expected}, got {}",
    "too_short": "must hold {min_length} entries, got {actual_length}",
    "too_long": "must hold {max_length} entries, got {actual_length}",
}


class Format:
    """The format of a file, or of an object that is part of one: a TypedDict and its title.

    Types are strict and unknown keys are refused, in nested dicts too. The adapter of pydantic is
    built when it is first needed, for that takes as long as reading a small file.
    """

    def __init__(
        self,
        shape: Any,
        title: str = "",
        prefix: str = "",
        parts: Sequence[Format] = (),
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        config: ConfigDict = STRICT,
    ) -> None:
        """``prefix`` is put before each problem, for a part of a file that is read separately;
        ``parts`` are the formats of such parts, whose keys hints may suggest; ``elsewhere`` has
        hints where a misplaced key belongs; ``config`` is pydantic's, for a foreign format that may
        have more keys.
        """
        self.shape, self.title, self.prefix, self.config = shape, title, prefix, config
        self.parts, self.elsewhere = parts, elsewhere

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(with_config(self.config)(self.shape))

    @cached_property
    def keys(self) -> frozenset[str]:
        """All keys of the format and its nested dicts, which hints for misspelt keys suggest."""
        return frozenset({"version", *_keys(self.shape)}.union(*(part.keys for part in self.parts)))

    @contextmanager
    def opened(self, source: Any) -> Iterator[Fields]:
        """The checked object of a file, or of an object already parsed, which may leave out the
        version. Problems that the block raises also get the name of the file.
        """
        with opened(source) as (value, is_file):
            yield self.checked(value, is_file)

    def checked(self, value: Any, needs_version: bool = False) -> Fields:
        """An object of this shape, without its version. Raises InputError.

        Another version means another shape, so a wrong version is the only problem reported.
        """
        problems = _version_problems(value, needs_version, self.title)
        if problems and "version" in value:
            raise InputError(problems)
        with collecting(problems):
            fields = self.validated({key: item for key, item in value.items() if key != "version"})
        refuse(problems)
        return fields

    def validated(self, value: Any) -> Fields:
        """A value of this shape. Raises InputError with every problem."""
        try:
            return dict(self._adapter.validate_python(value))
        except ValidationError as error:
            details = error.errors(include_url=False)
        raise InputError(
            self.prefix.removesuffix("." if problem[0] == "[" else "") + problem
            for detail in details
            for problem in _problems(detail, self.keys, self.elsewhere)
        )


def _keys(hint: Any) -> Iterator[str]:
    """The keys of the TypedDicts that a type is made of."""
    inner: Iterable[Any] = get_args(hint)
    if is_typeddict(hint):
        fields = get_type_hints(hint)
        yield from fields
        inner = fields.values()
    for part in inner:
        yield from _keys(part)


@contextmanager
def opened(source: Any) -> Iterator[tuple[Any, bool]]:
    """(value, whether it came from a file). Problems that the block raises get the file's name."""
    if not isinstance(source, (str, os.PathLike)):
        yield source, False
        return
    value = read_json(source)
    with within(label(source)):
        yield value, True


def _version_problems(value: Any, needs_version: bool, title: str) -> list[str]:
    """Problems of the ``version`` of a file's object. Raises InputError where it is no object."""
    if not isinstance(value, dict):
        raise InputError(f"must be an object ({title}), got {shown(value)}")
    if "version" not in value:
        return [f'version: missing; write "version": {VERSION}'] if needs_version else []
    version = value["version"]
    # type() and not isinstance: JSON's true would pass as the version 1.
    if type(version) is not int or version != VERSION:
        return [
            f"version: must be {VERSION}, the only one that this simdev reads; got {shown(version)}"
        ]
    return []


def _problems(
    detail: ErrorDetails, keys: frozenset[str], elsewhere: Mapping[str, str]
) -> Iterator[str]:
    path = list(detail["loc"])
    # pydantic marks a fault of a key by "[key]"; our paths name the key itself.
    if path and path[-1] == "[key]":
        path.pop()
    context = detail.get("ctx", {})
    cause = context.get("error")
    # A validator of nested values raises InputError with paths relative to the value.
    if isinstance(cause, InputError):
        yield from (path_text(path) + problem for problem in cause.problems)
    elif detail["type"] == "extra_forbidden":
        key = str(path[-1])
        # The key itself, where the format has it in another place, would be a useless hint.
        close = get_close_matches(key, sorted(keys - {key}), 1)
        close = [elsewhere[key]] if key in elsewhere else close
        yield at(path, f'unknown key; did you mean "{close[0]}"?' if close else "unknown key")
    elif cause is not None:
        yield at(path, str(cause))
    else:
        reason = _REASONS.get(detail["type"], detail["msg"])
        context = context | {
            "expected": str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
        }
        yield at(path, reason.format(shown(detail["input"]), **context))
