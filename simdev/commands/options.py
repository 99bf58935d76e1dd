"""Options and exit codes that verbs share.

An option of several verbs is a row here (``JSON_OPTION``), any other a row of OPTIONS in the module
of its verb; ``NUMBERS`` has the reader of numbers by metavar. Errors of the library name fields of
files and arguments of functions; ``by_flags`` replaces these by the option's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..ground.errors import InputError, refuse
from ..ground.units import exact, parse_price, parse_whole

DONE = 0
INFEASIBLE = 1
BAD_INPUT = 2
FAILED_CHECK = 3
# Unix conventions: EX_SOFTWARE, and 128 + SIGINT or SIGPIPE.
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

Option = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]
"""The name or the flags, the metavar, the help, and further arguments of ``add_argument``."""

SCENARIO_HELP = "the scenario (JSON, may be gzipped; - is stdin), or an example's name"

JSON_OPTION: Option = ("--json", "", "print as JSON")
REPORT_OPTION: Option = ("--json", "", "print the report as JSON")
GANTT_OPTION: Option = ("--gantt", "OUT", "draw the timeline (.png, .svg or .pdf)")
SAVE_OPTION: Option = ("--save", "OUT", "save the run, for simdev check (.json or .json.gz)")
CHECK_OPTION: Option = ("--check", "", "judge the result by the independent checker too")
PRICE_OPTION: Option = (
    "--price", "$", "of an hour of each device: adds what samples and tokens cost",
)  # fmt: skip
DRAW_OPTIONS: tuple[Option, ...] = (
    (
        "--draws",
        "N",
        "draw the errors of costs so often: p10, p50, p90 of the answer",
        {"default": 0},
    ),
    ("--seed", "N", "of the draws (default 0)", {"default": 0}),
)
ENGINE_CHOICE = {"action": "store", "choices": ("auto", "simpy", "compiled")}
"""The arguments of ``add_argument`` for an option that names an engine."""
LIMIT_OPTION: Option = (
    "--limit", "TIME", "refuse what takes longer by a guess (default 60 s; none: nothing)",
)  # fmt: skip
DATASHEET_HELP = "layers by datasheets alone, without the measured rows that ship"


def _number(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The function as an argparse type: its ValueError is a usage error with its message."""

    def number(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return number


def _seconds(text: str) -> float:
    return float(exact(text.strip()))


NUMBERS = {"N": _number(parse_whole), "S": _number(_seconds)}
"""The function that reads an option's number, by metavar."""


def whole_numbers(option: str, text: str | None) -> list[int] | None:
    """The whole numbers of an option like "8,16" (None without a text). Raises InputError."""
    if text is None:
        return None
    try:
        return [parse_whole(part) for part in text.split(",")]
    except ValueError as error:
        reason = (
            f'must be whole numbers with commas between, got "{text}"' if "," in text else error
        )
        raise InputError(f"{option}: {reason}") from None


def named_number(option: str, text: str) -> tuple[str, int]:
    """The name and the whole number >= 0 of an option's NAME=N. Raises InputError."""
    name, _, value = text.rpartition("=")
    try:
        number = parse_whole(value)
    except ValueError:
        number = -1
    if not name or number < 0:
        raise InputError(f'{option}: must be NAME=N ("batch=8"), got "{text}"')
    return name, number


def cluster_value(name: str, nodes: int | None, gpus: int | None) -> str | dict[str, Any]:
    """The ``cluster`` of a scenario for ``--cluster``, ``--nodes`` and ``--gpus``."""
    counts = {"nodes": nodes, "gpus": gpus}
    settings = {key: count for key, count in counts.items() if count is not None}
    return {"preset": name, **settings} if settings else name


def flag(name: str) -> str:
    """The option whose argument has this name: ``--save-csv`` of ``save_csv``."""
    return f"--{name.replace('_', '-')}"


OF_LIMIT = {"options.limit": "--limit"}
"""The option that sets the field that errors of sizes name (for ``by_flags``)."""


def by_flags(error: InputError, flags: Mapping[str, str]) -> InputError:
    """The error with names of options in place of the names of arguments that its problems begin
    with.
    """
    parts = [problem.partition(":") for problem in error.problems]
    named = [f"{flags.get(name, name)}{colon}{reason}" for name, colon, reason in parts]
    return type(error)(named, error.file)


@contextmanager
def with_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Puts the names of options into the problems of the block (``by_flags``)."""
    try:
        yield
    except InputError as error:
        raise by_flags(error, flags) from None


def port_problems(port: int) -> Iterator[str]:
    """The problem of a ``--port`` out of range."""
    if not 0 <= port < 2**16:
        yield f"--port: must be from 0 to 65535, got {port}"


def require_limit(value: str | None) -> float:
    """Seconds of ``--limit`` (None: the default). Raises InputError."""
    from ..nouns.scale import LIMIT, parse_limit

    try:
        return parse_limit(LIMIT if value is None else value)
    except ValueError as error:
        raise InputError(f"--limit: {error}") from None


def require_drawn(args: argparse.Namespace) -> None:
    """Raises InputError for an invalid ``--draws`` (0: no draws) or ``--seed``."""
    from ..nouns.draws import draws_problems

    problems = draws_problems(args.draws or 1, args.seed)
    refuse(f"--{problem}" for problem in problems)


def require_price(value: str | None) -> None:
    """Raises InputError for an invalid ``--price`` (None: not given)."""
    try:
        parse_price(0 if value is None else value)
    except ValueError as error:
        raise InputError(f"--price: {error}") from None


def add_options(parser: argparse._ActionsContainer, options: Iterable[Option]) -> None:
    """Add options to a parser or a group of it; an option without a metavar is a switch."""
    for flags, metavar, text, *more in options:
        fields: dict[str, Any] = {"action": "store_true"}
        if metavar:
            fields = {"metavar": metavar, "type": NUMBERS.get(metavar, str)}
        # The row's own fields come last, so that they can override the action.
        parser.add_argument(*flags.split(), help=text, **fields | (more[0] if more else {}))
