"""Safe reading of JSON, which refuses a hostile or broken file before anything looks at its
meaning; and the texts in which messages show a value and its place in a file.

Limits: 256 MiB of text (after gunzip), at most 100 times the compressed size once it is over 16
MiB, 20 million values, 64 levels, 400 digits a number. Numbers with a point or an exponent become
Decimal, exactly as written. A byte order mark is skipped; a name that ends in ``.gz`` or the gzip
magic means gzip; "-" is stdin. All readers of this package use this module, and importers and the
server use it for untrusted text. A key whose object has a user's names as keys is listed in
``_KEYED_BY_NAME``.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ..ground import PACKAGE
from ..ground.errors import InputError, collecting, refuse, within
from ..ground.units import MAX_DIGITS

PRESETS = PACKAGE / "files" / "presets"

# Objects whose keys are names chosen by the user, not fields of the format.
_KEYED_BY_NAME = frozenset(
    {
        "placement",
        "priority",
        "sequence",
        "attrs",
        "time",
        "provenance",
        "memory",
        "partition",
        "tensors",
        "split",
    }
)
_FIELD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
# Messages show values from files: long enough to recognise them, short enough for a line.
_MOST = 40


def _keyed(path: Sequence[str | int]) -> bool:
    """Whether the keys of the object at this path are names (in ``options.memory`` they are
    fields).
    """
    return bool(path) and path[-1] in _KEYED_BY_NAME and list(path) != ["options", "memory"]


def path_text(path: Sequence[str | int]) -> str:
    """The path as messages write it: ``ops[17].inputs[2]``, ``placement["a b"]``."""
    text = ""
    for i, part in enumerate(path):
        if isinstance(part, int):
            text += f"[{part}]"
        # A user's name may hold dots and brackets; quoted, it cannot be taken for a path.
        elif not _FIELD.match(part) or _keyed(path[:i]):
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value as JSON, cut after 40 characters; only "a list" or "an object" for those."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, (str, bool)) or value is None
        else str(value)
    )
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."


@cache
def shipped(folder: Path) -> tuple[str, ...]:
    """Names of the presets in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def meant(name: str, names: Sequence[str], otherwise: str) -> str:
    """The hint for a name that is not among ``names``: the closest of them, or ``otherwise``."""
    close = get_close_matches(name, names, 1)
    return f'did you mean "{close[0]}"?' if close else otherwise


def at(path: Sequence[str | int] | str, reason: str) -> str:
    """``path: reason``, or only the reason where the path is empty (the whole file)."""
    where = path if isinstance(path, str) else path_text(path)
    return f"{where}: {reason}" if where else reason


# A graph of a million ops has about 200 MiB; a larger text is a mistake or an attack.
MAX_TEXT = 256 * 2**20
MAX_RATIO, RATIO_FROM = 100, 16 * 2**20
MAX_VALUES = 20_000_000
# No format nests this deep, and functions that walk over values may recurse.
MAX_DEPTH = 64
MAX_EXPONENT = 400

_CHUNK = 2**20
_GZIP_MAGIC = b"\x1f\x8b"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

PathLike = str | os.PathLike[str]


def label(path: PathLike) -> str:
    """The name of a file in messages."""
    return "<stdin>" if os.fspath(path) == "-" else os.fspath(path)


def located(name: str, folder: str) -> str:
    """The path of a file named by another file that lies in ``folder``."""
    return os.path.normpath(os.path.join(folder, name))


def read_text(path: PathLike) -> str:
    """The text of a file, gunzipped where it is compressed. Raises InputError."""
    return text_of(read_source(path)[1], path)


def read_source(path: PathLike) -> tuple[bytes, bytes]:
    """The bytes of a file, first raw, then gunzipped where compressed. Raises InputError."""
    try:
        data = _read_bytes(os.fspath(path))
        return data, _unpacked(data, os.fspath(path).endswith(".gz"))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(_reason(error), label(path)) from None


def text_of(data: bytes, path: PathLike) -> str:
    """The bytes of a file decoded as UTF-8. Raises InputError."""
    try:
        # Editors of Windows put a byte order mark before a text.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}", label(path)
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return error.problems[0]
    if isinstance(error, (gzip.BadGzipFile, EOFError, zlib.error)):
        return "damaged gzip file"
    reasons: dict[type[Exception], str] = {
        FileNotFoundError: "no such file",
        IsADirectoryError: "is a directory",
        NotADirectoryError: "no such file",
        PermissionError: "permission denied",
    }
    known = reasons.get(type(error))
    return known or (error.strerror if isinstance(error, OSError) else None) or "cannot be read"


def _read_bytes(path: str) -> bytes:
    if path == "-":
        data = sys.stdin.buffer.read(MAX_TEXT + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MAX_TEXT + 1)
    # The reader asked for one byte more than is allowed, to notice a file that is larger.
    if len(data) > MAX_TEXT:
        raise InputError(f"larger than {MAX_TEXT >> 20} MiB")
    return data


def _unpacked(data: bytes, compressed: bool) -> bytes:
    if not compressed and not data.startswith(_GZIP_MAGIC):
        return data
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        return unpacked(packed.read, len(data))


def unpacked(read: Callable[[int], bytes], packed: int) -> bytes:
    """All bytes that ``read`` unpacks from ``packed`` compressed bytes. Raises InputError where
    there are more than a text may have, or too many times more than ``packed``.
    """
    limit = min(MAX_TEXT, max(RATIO_FROM, MAX_RATIO * packed))
    parts, size = [], 0
    # In chunks: a decompression bomb is refused before it is unpacked.
    while part := read(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise InputError(f"unpacks to more than {limit} bytes: refused as a decompression bomb")
    return b"".join(parts)


def read_json(path: PathLike) -> Any:
    """The one JSON value that a file holds. Raises InputError with every problem at once."""
    text = read_text(path)
    with within(label(path)):
        return parse_json(text)


def parse_json(text: str) -> Any:
    """The one JSON value of a text. Raises InputError."""
    if not text.strip():
        raise InputError("empty")
    return _Parser(text).parse(text)


def read_json_lines(path: PathLike) -> Iterator[tuple[int, Any, tuple[str, ...]]]:
    """(line number, value, problems) of every line that is not blank. The value is None where there
    are problems.

    Raises InputError where the file is not readable text, or is a single value over several lines.
    """
    text = read_text(path)
    parser = _Parser(text)
    if _is_one_value(text):
        # Every line would be reported as faulty; only this message says why.
        raise InputError("one JSON value over several lines: must hold one a line")
    for number, line in enumerate(text.split("\n"), 1):
        if line and not line.isspace():
            value, problems = None, list[str]()
            with collecting(problems):
                value = parser.parse(line)
            yield number, value, tuple(line.removeprefix("line 1, ") for line in problems)


def _is_one_value(text: str) -> bool:
    """Whether a text is a single JSON value over several lines, as files of other formats are."""
    try:
        json.loads(text.lstrip().partition("\n")[0])
        return False
    except (ValueError, RecursionError):
        try:
            return bool(parse_json(text))
        except InputError:
            return False


class _Bad:
    """A placeholder in the parsed value for a number that is refused, until its path is known."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Parser:
    """A parser of the values of one text. It keeps faults until their paths are known."""

    def __init__(self, text: str) -> None:
        # Counted before parsing: values take many times the size of their text.
        if text.count(",") > MAX_VALUES:
            raise InputError(f"holds more than {MAX_VALUES} values")
        self._look_for_surrogates = "\\u" in text and _SURROGATE_ESCAPE.search(text) is not None
        self._decode = self._decoder(None)
        self._faults = 0
        self._repeated: dict[int, tuple[dict[str, Any], list[str]]] = {}

    def _decoder(self, integer: Callable[[str], Any] | None) -> Callable[[str], Any]:
        return json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_float=self._decimal,
            parse_int=integer,
            parse_constant=self._constant,
        ).decode

    def parse(self, text: str) -> Any:
        """The one value of a text. Raises InputError with every problem at once."""
        value = self._value(text)
        if text.count("[") + text.count("{") > MAX_DEPTH and _too_deep(value):
            raise InputError(f"nested more than {MAX_DEPTH} levels deep")
        # Walking over all values takes as long as parsing, so it is done only where a fault is
        # known or possible.
        if self._faults or self._look_for_surrogates:
            problems = list(self._problems(value, ()))
            refuse(problems)
        return value

    def _value(self, text: str) -> Any:
        self._faults = 0
        self._repeated.clear()
        try:
            try:
                return self._decode(text)
            except ValueError as error:
                if isinstance(error, json.JSONDecodeError):
                    raise
                # Python refuses to read an integer this long. The slow decoder, which calls back
                # for every integer, finds its path.
                return self._decoder(self._integer)(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"line {error.lineno}, column {error.colno}: not JSON: {_in_our_words(error.msg)}"
            ) from None
        except RecursionError:
            raise InputError(f"nested more than {MAX_DEPTH} levels deep") from None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # json silently keeps the last of equal keys; in a placement, say, that is a mistake.
        value = dict(pairs)
        if len(value) != len(pairs):
            keys = [key for key, _ in pairs]
            self._repeated[id(value)] = value, sorted({key for key in keys if keys.count(key) > 1})
            self._faults += 1
        return value

    def _decimal(self, text: str) -> Decimal | _Bad:
        if len(text) > MAX_DIGITS:
            return self._refuse(f"a number of more than {MAX_DIGITS} digits")
        try:
            value = Decimal(text)
        except ArithmeticError:
            return self._refuse(f"out of range: {text}")
        if not value.is_finite() or (value and abs(value.adjusted()) > MAX_EXPONENT):
            return self._refuse(f"out of range: {text}")
        return value

    def _integer(self, text: str) -> int | _Bad:
        return (
            int(text)
            if len(text) <= MAX_DIGITS
            else self._refuse(f"a number of more than {MAX_DIGITS} digits")
        )

    def _constant(self, text: str) -> _Bad:
        return self._refuse(f"{text} is not a number in JSON")

    def _refuse(self, reason: str) -> _Bad:
        self._faults += 1
        return _Bad(reason)

    def _problems(self, value: Any, path: tuple[str | int, ...]) -> Iterator[str]:
        prefix = path_text(path) + ": " if path else ""
        if isinstance(value, _Bad):
            yield prefix + value.reason
        elif isinstance(value, str):
            if _SURROGATE.search(value):
                yield prefix + "holds half a character (a lone surrogate)"
        elif isinstance(value, dict):
            for key in self._repeated.get(id(value), ({}, []))[1]:
                yield f'{prefix}the key "{key}" stands twice'
            for key, item in value.items():
                if _SURROGATE.search(key):
                    yield prefix + "a key holds half a character (a lone surrogate)"
                yield from self._problems(item, (*path, key))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._problems(item, (*path, index))


def _in_our_words(message: str) -> str:
    """The decoder's message, shortened to the wording that all versions of Python share."""
    if message.startswith("Illegal trailing comma"):
        return "expecting value"
    message = message.removesuffix(" starting at").removesuffix(" at")
    return message[:1].lower() + message[1:]


def _too_deep(value: Any) -> bool:
    """Whether lists and objects nest beyond the limit, found level by level without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for holder in level
            for item in (holder.values() if type(holder) is dict else holder)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True
