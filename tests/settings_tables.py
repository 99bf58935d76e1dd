"""The tables of docs/reference/settings.md: the settings of every learner, made of its class.

``python tests/settings_tables.py`` writes them into docs/reference/settings.md. What a setting
means is read from the docstring of the class, whose bullets begin with names
and go on with others after a full stop; what is said of several names
holds for each. Fields that a base class brings may be told there.

    - ``rate``: of a step. ``lower``, ``upper``: the bounds of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from inspect import cleandoc
from pathlib import Path
from typing import Any

from simdev.search import METHODS

DOCS = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
START, END = "<!-- settings -->", "<!-- end of settings -->"
NAMES = re.compile(r"``\w+``(?:, ``\w+``)*: ")
COLUMNS = ("default", "published", "what it is")


def written() -> str:
    """A table for each learner, in the order of METHODS, as it stands in the page."""
    tables = [table(name) for name in METHODS if METHODS[name].learner]
    return "\n\n".join([START, *tables, END])


def table(learner: str) -> str:
    """The settings of a learner: their defaults, those of its paper, and what they are.

    Raises ValueError for settings of which the docstring says nothing.
    """
    kind = METHODS[learner].settings
    texts, default, published = described(kind), asdict(kind()), asdict(kind.published())
    silent = [name for name in default if name not in texts]
    if silent:
        raise ValueError(f"{learner}: the docstring of its settings lacks {', '.join(silent)}")
    rows = [(f"`{learner}`", *COLUMNS), ("---",) * 4]
    rows += [
        (f"`{name}`", plain(default[name]), plain(published[name]), texts[name]) for name in default
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def described(kind: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of each name, as a line of Markdown."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for bullet in re.split(r"^- ", cleandoc(base.__doc__ or ""), flags=re.MULTILINE)[1:]:
            # What follows an empty line is no part of the bullet.
            for names, text in entries(" ".join(bullet.split("\n\n")[0].split())):
                texts |= dict.fromkeys(re.findall(r"``(\w+)``", names), text)
    return texts


def entries(bullet: str) -> Iterator[tuple[str, str]]:
    """Names with a colon, and what is said of them up to the next ones."""
    matches = list(NAMES.finditer(bullet))
    ends = [match.start() for match in matches[1:]] + [len(bullet)]
    for match, end in zip(matches, ends, strict=True):
        text = bullet[match.end() : end].strip().rstrip(".,;")
        yield match.group(), text.replace("``", "`").replace("|", r"\|")


def plain(value: object) -> str:
    """A value as ``--settings`` takes it."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def main() -> None:
    """Writes the tables into docs/reference/settings.md."""
    text = DOCS.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    DOCS.write_text(before + written() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
