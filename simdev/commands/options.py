"""Options and exit codes, which all verbs share.

An option of several verbs is a row here (``JSON_OPTION``), any other a row of OPTIONS in the module
of its verb; ``NUMBERS`` says by the metavar how a number is read. Errors of the library name fields
of files and arguments of functions, and ``by_flags`` puts the option in their place.
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
# Those beyond are the conventions of Unix: EX_SOFTWARE, and 128 + SIGINT or SIGPIPE.
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

Option = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]
"""The name or the flags, the metavar, the help, and whatever else ``add_argument`` is given."""

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
"""For an option that names an engine, what ``add_argument`` is given."""
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
"""For the metavar of each option that takes a number: the function that reads the number."""


def whole_numbers(option: str, text: str | None) -> list[int] | None:
    """The whole numbers of an option's list, like "8,16"; None for None. Raises InputError."""
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
    """The cluster of ``--cluster``, ``--nodes`` and ``--gpus``, as a scenario has it."""
    counts = {"nodes": nodes, "gpus": gpus}
    settings = {key: count for key, count in counts.items() if count is not None}
    return {"preset": name, **settings} if settings else name


def flag(name: str) -> str:
    """The option whose argument has this name: ``--save-csv`` of ``save_csv``."""
    return f"--{name.replace('_', '-')}"


OF_LIMIT = {"options.limit": "--limit"}
"""The field that errors of sizes name, by the option that sets it (``by_flags``)."""


def by_flags(error: InputError, flags: Mapping[str, str]) -> InputError:
    """The error with the names of options in place of the names of arguments at the begin of its
    problems.
    """
    parts = [problem.partition(":") for problem in error.problems]
    named = [f"{flags.get(name, name)}{colon}{reason}" for name, colon, reason in parts]
    return type(error)(named, error.file)


@contextmanager
def with_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Problems of the block are told by the names of options (``by_flags``)."""
    try:
        yield
    except InputError as error:
        raise by_flags(error, flags) from None


def port_problems(port: int) -> Iterator[str]:
    """The problem with a ``--port`` that cannot be."""
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
    """Raises InputError for what is no number of ``--draws`` (0: none), or no ``--seed``."""
    from ..nouns.draws import draws_problems

    problems = draws_problems(args.draws or 1, args.seed)
    refuse(f"--{problem}" for problem in problems)


def require_price(value: str | None) -> None:
    """Raises InputError for what is no ``--price`` (None: none is given)."""
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
