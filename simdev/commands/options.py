"""What all verbs share: how their options are written down, and the exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ..ground.errors import InputError

DONE = 0
INFEASIBLE = 1
BAD_INPUT = 2
FAILED_CHECK = 3
# Those beyond are the conventions of Unix: EX_SOFTWARE, and 128 + SIGINT or SIGPIPE.
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

Option = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]
"""The name or the flags, the metavar, the help, and whatever else ``add_argument`` is given."""

SCENARIO_HELP = "the scenario (JSON, may be gzipped; - is stdin), or an example's name"

DATASHEET_HELP = "layers by datasheets alone, without the measured rows that ship"

NUMBERS: dict[str, type] = {"N": int, "S": float}
"""Metavars of options that take a number."""


def require_limit(value: str | None) -> float:
    """Seconds of ``--limit`` (None: the default). Raises InputError."""
    from ..nouns.scale import LIMIT, parse_limit

    try:
        return parse_limit(LIMIT if value is None else value)
    except ValueError as error:
        raise InputError(f"--limit: {error}") from None


def require_price(value: str | None) -> None:
    """Raises InputError for what is no ``--price`` (None: none is given)."""
    from ..ground.units import parse_price

    try:
        parse_price(0 if value is None else value)
    except ValueError as error:
        raise InputError(f"--price: {error}") from None


def add_options(parser: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Add options to a parser or to a group of it; one without a metavar is a switch."""
    for flags, metavar, text, *more in options:
        fields: dict[str, Any] = {"action": "store_true"}
        if metavar:
            fields = {"metavar": metavar, "type": NUMBERS.get(metavar, str)}
        # What is written in the row goes last, so that it can be of another action.
        parser.add_argument(*flags.split(), help=text, **fields | (more[0] if more else {}))
