"""The command line: one verb a module.

The parser of a verb is made from its module's HELP, DESCRIPTION, OPTIONS (and GROUPS of options,
and EPILOG, a text or a function that returns it); ``run`` runs the verb. Data goes to stdout,
messages to stderr.

Exit codes: 0 done; 1 ran, but the step does not fit; 2 bad input or usage; 3 a failed check; 130
interrupted; 141 the reader of stdout went away; 143 ended by SIGTERM. Modules import their needs
only when they run, so that ``--help`` is quick. A new verb is a row of VERBS; if it has an argument
that takes names, also a row of ``completion.NAMES``.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn, TextIO, cast

from .. import __version__
from ..ground.ending import TerminatedError, say_terminated
from ..ground.errors import OutOfMemoryError, SimdevError, one_line, reason_of
from . import (
    calibrate,
    capture,
    check,
    clusters,
    compare,
    completion,
    doctor,
    examples,
    explore,
    family,
    import_,
    pipeline,
    plan,
    profile,
    report,
    search,
    serve,
    simulate,
    sweep,
    train,
)
from .options import BAD_INPUT, BROKEN_PIPE, INFEASIBLE, INTERNAL, INTERRUPTED, add_options
from .outputs import SafeStream

VERBS = (
    simulate, capture, sweep, report, explore, compare, plan, search, train, family, pipeline,
    check, import_, calibrate, profile, serve, clusters, examples, completion, doctor,
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one bounded line, whatever the arguments hold."""

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))

    def format_help(self) -> str:
        self.epilog = epilog_of(self)
        return super().format_help()


def epilog_of(command: argparse.ArgumentParser) -> str | None:
    """The text below the options in ``--help``; a function that makes it is called now."""
    epilog: Any = command.epilog
    return cast("str | None", epilog() if callable(epilog) else epilog)


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs: ``args.run`` is the chosen verb, ``args.commands`` the parser."""
    commands = _Parser(
        prog="simdev",
        description=(
            "Simulate a training step spread over devices: how long does it take, and does it fit?"
        ),
        epilog="exit codes: 0 done, 1 the step does not fit, 2 bad input, 3 a failed check",
        allow_abbrev=False,
    )
    commands.add_argument("--version", action="version", version=f"simdev {__version__}")
    verbs = commands.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        epilog = getattr(verb, "EPILOG", None)
        command = verbs.add_parser(
            _name(verb),
            help=verb.HELP,
            description=verb.DESCRIPTION,
            epilog=epilog,
            # An epilog is a table, whose line breaks must stay.
            formatter_class=argparse.RawDescriptionHelpFormatter
            if epilog
            else argparse.HelpFormatter,
            allow_abbrev=False,
        )
        add_options(command, verb.OPTIONS)
        for title, options in getattr(verb, "GROUPS", {}).items():
            add_options(command.add_argument_group(title), options)
        command.set_defaults(run=verb.run, usage_error=command.error, commands=commands)
        command.set_defaults(passes_on=getattr(verb, "PASSES_ON", False))
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    with _safe_streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        given, passed_on = _apart(sys.argv[1:] if arguments is None else arguments)
        options, unknown = parser().parse_known_args(given)
        options.passed_on = passed_on
        if unknown:
            command = options.usage_error.__self__
            options.usage_error(_unrecognized(unknown, command, options.passes_on))
        code = _code_of(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", INTERRUPTED)
    except TerminatedError:
        return say_terminated()
    except OutOfMemoryError as error:
        return _fail(str(error), INFEASIBLE)
    except SimdevError as error:
        return _fail(str(error), BAD_INPUT)
    except MemoryError:
        return _fail("simdev itself ran out of memory", BAD_INPUT)
    except OSError as error:
        # Errors of reading are InputErrors by now, so this is a full disk or a closed stdout.
        _drop_stdout()
        return _fail(f"cannot write: {reason_of(error)}", BAD_INPUT)
    except Exception:
        traceback.print_exc()
        return _fail("this is a bug in simdev, not in your files", INTERNAL)
    return code


def _code_of(options: argparse.Namespace) -> int:
    """The exit code of the verb."""
    try:
        return int(options.run(options))
    except SystemExit as stop:
        # Wrong usage has a code; without one, a model or script of the user called ``sys.exit()``.
        if stop.code:
            raise
        return _fail("code that was measured or captured ended the program early", BAD_INPUT)


def _apart(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """(arguments of simdev, arguments after ``--``); the second only for a verb that passes them
    on to a script.
    """
    verb = next((v for v in VERBS if arguments[:1] == [_name(v)]), None)
    if "--" not in arguments or not getattr(verb, "PASSES_ON", False):
        return arguments, ()
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _name(verb: ModuleType) -> str:
    return verb.__name__.rpartition(".")[2].rstrip("_")


def _unrecognized(
    arguments: Sequence[str], command: argparse.ArgumentParser, passes_on: bool
) -> str:
    """The message for arguments that a verb does not know, with the most similar option."""
    flags = [flag for action in command._actions for flag in action.option_strings]
    hints = (
        f"; did you mean {close[0]}?"
        for name in arguments
        if name.startswith("--") and (close := get_close_matches(name.partition("=")[0], flags, 1))
    )
    hint = next(hints, "; what is for the script stands behind --" if passes_on else "")
    return f"unrecognized arguments: {' '.join(arguments)}{hint}"


@contextmanager
def _safe_streams() -> Iterator[None]:
    """Makes stdout and stderr safe in the block: characters that would steer a terminal, or that
    its encoding lacks, are escaped, and a closed stream (``>&-``) is replaced.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", SafeStream(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _drop_stdout() -> None:
    """Redirects a broken stdout to nowhere, since Python flushes it once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
