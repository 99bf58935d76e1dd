"""Makes mutants of files: the same ones for equal states of the random generator.

The suffix of a file's name decides how it is broken: JSON as a tree, lines of JSON each as a tree,
other text by words and lines, and binary files (sometimes any file) by bytes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from .tree import Pairs, Place, Raw, get, parsed, places, put, text_of

EXTREMES: tuple[Any, ...] = (
    0, 1, 2, 3, -1, 2**31, 2**53, 2**60, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30),
    *map(Raw, ("-0", "-0.0", "0.5", "1e999", "-1e999", "1e-400", "1e308", "1e18", "NaN",
               "Infinity", "-Infinity", "9" * 400, "9" * 5000, "0." + "3" * 300)),
    True, False, None, "", "0", "1", "-1", "1e999", "nan", "1 us", "-1 us", "0 s", "1e30 s",
    "1 GB", "1 GB/s", "0 B/s", "1e30 TB/s", "unlimited", "none", "auto", "*", "-", ".", "..",
    "/", "\udcff", "a\0b", "\u202ea\x1b[2J", "\u65e5\u672c \U0001f680", "x" * 300, "^a", "a:0",
    [], [[]], [None], [0], {}, {"": {}}, {"*": 1}, Raw("[" * 70 + "]" * 70),
    Raw("[" * 5000), Raw('{"a":' * 70 + "1" + "}" * 70),
)  # fmt: skip
PATCHES = (
    "", "0", "-1", "9" * 30, '"', "[", "{", "null", "\t", "\n", "\r", "nan", "inf", " -- ", ",",
    ":", "\x00", "é", "\ufeff", "x" * 3000, "1e999", "=", "(", "%s", "\x1b[2J",
)  # fmt: skip
QUANTITY = re.compile(r"^(-?[\d.]+(?:e-?\d+)?)(\s*\D.*)$")
LARGEST = 400_000
"""The greatest number of characters of a mutant: a larger file may rightly take long."""


def _scaled(rng: Random, number: Any) -> Any:
    """Another number of the same type."""
    whole = isinstance(number, int)
    try:
        x = number if whole else float(number)
        factor = rng.choice([-1, 0, 2, 3, 7, 10, 1000, 10**6, 10**12])
        small = rng.choice([x, 0, 1, 2, 3, 4])
        made = rng.choice([x + 1, x - 1, x * factor, x // 2 if whole else x / 3, small])
    except (ValueError, OverflowError):
        return 0
    return made if whole else Raw(repr(made))


def _word(rng: Random, text: str, others: Sequence[str]) -> str:
    """Another text: a scaled quantity, one of ``others``, or the text with a character changed."""
    quantity = QUANTITY.match(text)
    if quantity and rng.random() < 0.6:
        return str(_scaled(rng, Raw(quantity[1]))) + quantity[2]
    if others and rng.random() < 0.7:
        return rng.choice(others)
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(["", "x", ":0", " ", "\n", "é", text[:1]]) + text[at + 1 :]


def _alike(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    """Replaces the value at a place by another value of the same type."""
    value = get(place)
    if isinstance(value, bool) or value is None:
        put(place, not value)
    elif isinstance(value, (int, Raw)):
        put(place, _scaled(rng, value))
    elif isinstance(value, str):
        texts = [text for each in every if type(text := get(each)) is str]
        put(place, _word(rng, value, texts))
    elif value:
        put(place, rng.sample(value, len(value)) if type(value) is list else value)
        if isinstance(value, Pairs):
            rng.shuffle(value)


def _extreme(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    put(place, copy.deepcopy(rng.choice(EXTREMES)))


def _dropped(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    del place[0][place[1]]


def _doubled(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    holder, i = place
    holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[i]))


def _swapped(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    other = rng.choice(every)
    first, second = copy.deepcopy(get(place)), copy.deepcopy(get(other))
    put(place, second)
    put(other, first)


def _nested(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    value = get(place)
    inner = get((value, 0)) if isinstance(value, list) and value else value
    put(place, rng.choice([[value], Pairs([["a", value]]), inner, [value, value]]))


def _spliced(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    """Inserts a part of another file: its value of the same key, or an additional entry."""
    holder, i = place
    donor = [parsed(json.dumps(rng.choice(donors)))]
    there = places(donor)
    if not there:
        return
    if isinstance(holder, Pairs):
        named = [each for each in there if isinstance(each[0], Pairs)]
        same = [each for each in named if each[0][each[1]][0] == holder[i][0]]
        if same and rng.random() < 0.5:
            put(place, copy.deepcopy(get(rng.choice(same))))
        elif named:
            # Prefers keys of objects of the same sort: of those that share a key with this one.
            keys = {key for key, _ in holder}
            kin = [each for each in named if keys & {key for key, _ in each[0]}]
            other, k = rng.choice(kin or named)
            holder.append(copy.deepcopy(other[k]))
    else:
        put(place, copy.deepcopy(get(rng.choice(there))))


def _renamed(rng: Random, place: Place, every: Sequence[Place], donors: Sequence[Any]) -> None:
    """Gives an entry of an object another key, or replaces an item by a text of the file."""
    holder, i = place
    texts = [text for each in every if type(text := get(each)) is str]
    keys = [each[0][each[1]][0] for each in every if isinstance(each[0], Pairs)]
    if isinstance(holder, Pairs):
        choices = [*texts, *keys, "", "\ud800", "x" * 300, "__class__", "*"]
        holder[i] = [rng.choice(choices), holder[i][1]]
    elif texts:
        put(place, rng.choice(texts))


Change = Callable[[Random, Place, Sequence[Place], Sequence[Any]], None]
CHANGES: Mapping[Change, int] = {
    _alike: 8, _extreme: 4, _dropped: 3, _doubled: 2, _swapped: 2, _nested: 1, _spliced: 5,
    _renamed: 2,
}  # fmt: skip


GENTLE: Mapping[Change, int] = {_alike: 6, _spliced: 3, _dropped: 1, _doubled: 1}
"""Changes that often leave a file valid, so that the code behind the readers is attacked too."""


def changed_tree(
    rng: Random, root: list[Any], donors: Sequence[Any], changes: Mapping[Change, int]
) -> None:
    """Changes one place of the tree that is the only item of ``root``."""
    every = places(root)
    holder, i = root, 0
    if rng.random() < 0.5:
        holder, i = rng.choice(every)
    # In the other half of cases it descends key by key from the root: otherwise a long list would
    # get nearly every change.
    else:
        while isinstance(inner := get((holder, i)), list) and inner and rng.random() < 0.85:
            holder, i = inner, rng.randrange(len(inner))
    (change,) = rng.choices([*changes], [*changes.values()])
    change(rng, (holder, i), every, donors)


def changed_text(rng: Random, text: str, donor: str) -> str:
    """The text with a word, a line or a piece dropped, doubled, swapped or replaced."""
    pattern = r"\n" if rng.random() < 0.3 else r"""("(?:[^"\\]|\\.)*"|[-+.\w]+|\s+)"""
    parts = [part for part in re.split(pattern, text) if part] or [""]
    i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
    match rng.randrange(7):
        case 0:
            parts[i] = rng.choice(PATCHES)
        case 1:
            del parts[i]
        case 2:
            parts.insert(j, parts[i])
        case 3:
            parts[i], parts[j] = parts[j], parts[i]
        case 4:
            parts[i] = _word(rng, parts[i], parts)
        case 5:
            cut = rng.randrange(len(text) + 1)
            return text[:cut] + donor[rng.randrange(len(donor) + 1) :] * rng.randrange(2)
        case _:
            at = rng.randrange(len(text) + 1)
            return text[:at] + rng.choice(PATCHES) + text[at + rng.randrange(12) :]
    return ("\n" if pattern == r"\n" else "").join(parts)


def changed_bytes(rng: Random, content: bytes, donor: bytes) -> bytes:
    """The bytes with some of them replaced, dropped, doubled, or cut off."""
    made = bytearray(content or b"\0")
    at, length = rng.randrange(len(made)), rng.choice([1, 1, 1, 2, 4, 16])
    match rng.randrange(7):
        case 0:
            made[at] = rng.randrange(256)
        case 1:
            made[at] ^= 1 << rng.randrange(8)
        case 2:
            del made[at : at + length]
        case 3:
            made[at:at] = made[at : at + length]
        case 4:
            made[at : at + length] = bytes(rng.choice([0, 0x7F, 0x80, 0xFF]) for _ in range(length))
        case 5:
            del made[at:]
            made += donor[rng.randrange(len(donor) + 1) :] * rng.randrange(2)
        case _:
            # A varint of protobuf that never ends, or a huge length.
            made[at:at] = b"\xff" * rng.randrange(1, 11) + b"\x7f"
    return bytes(made)


Content = Any
"""The content of a file: a value of JSON (for ``.jsonl`` a list of values), a text, or bytes."""


def written(name: str, content: Content) -> bytes:
    """The bytes of an unbroken file."""
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    if name.endswith(".jsonl"):
        return "".join(json.dumps(line) + "\n" for line in content).encode()
    return json.dumps(content).encode()


def changed_file(
    rng: Random, name: str, content: Content, donors: Sequence[Content], steps: int
) -> bytes:
    """The bytes of a file with ``steps`` changes; pieces of ``donors`` may be inserted."""
    whole = written(name, content)
    if isinstance(content, bytes) or rng.random() < 0.05:
        for _ in range(steps):
            whole = changed_bytes(rng, whole, written(name, rng.choice(donors)))
        return whole
    if isinstance(content, str) or rng.random() < 0.1:
        text = whole.decode()
        for _ in range(steps):
            text = changed_text(rng, text, written(name, rng.choice(donors)).decode("latin-1"))
        return text[:LARGEST].encode("utf-8", "surrogatepass")
    trees = [each for each in donors if not isinstance(each, (str, bytes))]
    root, changes = [parsed(json.dumps(content))], rng.choice([CHANGES, GENTLE])
    for _ in range(steps):
        if root[0] is not None:
            changed_tree(rng, root, trees, changes)
        root = root or [None]
    lines = root[0] if name.endswith(".jsonl") and isinstance(root[0], list) else [root[0]]
    end = "\n" if name.endswith(".jsonl") else ""
    return "".join(text_of(line) + end for line in lines)[:LARGEST].encode()
