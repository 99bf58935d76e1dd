"""The shape of files, checked by pydantic; its complaints are told in our own words, all of them at
once.

Only this package imports pydantic. A shape is a TypedDict: strict types, no unknown keys.
Quantities are parsed on the way (``Seconds``, ``Bytes``, ``Bandwidth``), so that a wrong unit is
told with its path like any wrong type.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Annotated, Any

from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..errors import InputError
from ..semantics.dtype import known, no_dtype
from ..units import exact, parse_bandwidth, parse_bytes, parse_flops, parse_time
from .paths import at, path_text, shown

STRICT = ConfigDict(strict=True, extra="forbid")
VERSION = 1
MOST_PRIORITY = 2**53


def _bytes(value: Any) -> int:
    # Whole numbers, by far the most frequent, are left to the nouns, which tell their range.
    return value if type(value) is int else parse_bytes(_number(value))


def _number(value: Any) -> Any:
    """The value, where it can be a quantity at all: the parsers of units know numbers and texts
    only.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal, Fraction)):
        raise ValueError(f"must be a number or a text with a unit, got {shown(value)}")
    return value


def _optional_bytes(value: Any) -> int | None:
    return None if value is None else parse_bytes(_number(value))


def _seconds(value: Any) -> Fraction:
    return parse_time(_number(value))


def _rate(value: Any) -> Fraction:
    return parse_bandwidth(_number(value))


def _flops(value: Any) -> Fraction:
    return parse_flops(_number(value))


def _dtype(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a dtype, got {shown(value)}")
    if known(value) is None:
        raise ValueError(no_dtype(value))
    return value  # as it is written, so that a graph comes back as it went


def _share(value: Any) -> Fraction:
    share = exact(_number(value))
    if not 0 < share <= 4:
        raise ValueError(f"must be a share > 0 and at most 4, got {shown(value)}")
    return share


def _time(value: Any) -> Fraction | dict[str, Fraction] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return _seconds(value)
    found, problems = {}, []
    for kind, one in value.items():
        try:
            found[str(kind)] = _seconds(one)
        except ValueError as error:
            problems.append(f'["{kind}"]: {error}')
    if problems:
        raise InputError(problems)
    return found


def _priority(value: Any) -> int:
    if type(value) is not int or abs(value) > MOST_PRIORITY:
        raise ValueError(f"must be a whole number from -2^53 to 2^53, got {shown(value)}")
    return value


def plain(value: Any) -> Any:
    """The value with Decimals as floats: attributes are labels, and must read as they do in
    Python.
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


Bytes = Annotated[int, PlainValidator(_bytes)]
OptionalBytes = Annotated[int | None, PlainValidator(_optional_bytes)]
Seconds = Annotated[Fraction, PlainValidator(_seconds)]
Bandwidth = Annotated[Fraction, PlainValidator(_rate)]
Flops = Annotated[Fraction, PlainValidator(_flops)]
Share = Annotated[Fraction, PlainValidator(_share)]
Dtype = Annotated[str | None, PlainValidator(_dtype)]
Time = Annotated[Fraction | dict[str, Fraction] | None, PlainValidator(_time)]
Priority = Annotated[int, PlainValidator(_priority)]

_REASONS: dict[str, str] = {
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


def validate(
    adapter: TypeAdapter[Any], value: Any, keys: frozenset[str] = frozenset(), prefix: str = ""
) -> Any:
    """The value in the adapter's shape.

    Raises InputError with every problem; ``keys`` are known, for suggestions.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = (problem for detail in details for problem in _problems(detail, keys))
    raise InputError(
        [
            prefix + problem if problem[0] != "[" else prefix.rstrip(".") + problem
            for problem in problems
        ]
    )


def _problems(detail: ErrorDetails, keys: frozenset[str]) -> Iterator[str]:
    path = list(detail["loc"])
    if path and path[-1] == "[key]":
        path.pop()
    context = detail.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InputError):
        yield from (path_text(path) + problem for problem in cause.problems)
    elif detail["type"] == "extra_forbidden":
        # one known elsewhere is no help here
        close = get_close_matches(str(path[-1]), sorted(keys - {path[-1]}), 1)
        yield at(path, f'unknown key; did you mean "{close[0]}"?' if close else "unknown key")
    elif cause is not None:
        yield at(path, str(cause))
    else:
        reason = _REASONS.get(detail["type"], detail["msg"])
        context = context | {
            "expected": str(context.get("expected", "")).replace("'", "").replace(" or ", ", ")
        }
        yield at(path, reason.format(shown(detail["input"]), **context))


def _version_problems(value: Any, required: bool, what: str) -> list[str]:
    """Problems of the ``version`` of a file's object (InputError where it is no object at all)."""
    if not isinstance(value, dict):
        raise InputError(f"must be an object ({what}), got {shown(value)}")
    if "version" not in value:
        return [f'version: missing; write "version": {VERSION}'] if required else []
    version = value["version"]
    if type(version) is not int or version != VERSION:
        return [
            (
                f"version: must be {VERSION}, the only one that this simdev reads; got "
                f"{shown(version)}"
            )
        ]
    return []


def read_shape(
    adapter: TypeAdapter[Any], value: Any, keys: frozenset[str], required_version: bool, what: str
) -> dict[str, Any]:
    """An object of a known version in the adapter's shape, without its version. Raises InputError.

    Another version means another shape, so a wrong version is told alone.
    """
    problems = _version_problems(value, required_version, what)
    if problems and "version" in value:
        raise InputError(problems)
    try:
        shaped = validate(
            adapter, {key: item for key, item in value.items() if key != "version"}, keys
        )
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return dict(shaped)
