"""The command line: one verb a module, each with ``add_parser`` and ``run``.

Data goes to stdout, talk to stderr.

Exit codes: 0 done; 1 ran, but the step does not fit; 2 bad input or usage; 3 a failed check; 130
interrupted; 141 the reader of stdout went away. Modules import what they need when they run, so
that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from .. import __version__
from ..errors import OutOfMemoryError, SimdevError
from . import (
    calibrate,
    check,
    clusters,
    compare,
    import_,
    pipeline,
    profile,
    report,
    search,
    serve,
    simulate,
    sweep,
)
from .codes import BAD_INPUT, BROKEN_PIPE, INFEASIBLE, INTERNAL, INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs; the chosen verb is ``args.run``."""
    found = argparse.ArgumentParser(
        prog="simdev",
        description=(
            "Simulate a training step spread over devices: how long does it take, and does it fit?"
        ),
        epilog="exit codes: 0 done, 1 the step does not fit, 2 bad input, 3 a failed check",
        allow_abbrev=False,
    )
    found.add_argument("--version", action="version", version=f"simdev {__version__}")
    verbs = found.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in (
        simulate,
        sweep,
        report,
        compare,
        search,
        pipeline,
        check,
        import_,
        calibrate,
        profile,
        serve,
        clusters,
    ):
        verb.add_parser(verbs)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _prepare_streams()
    try:
        options = parser().parse_args(arguments)
        code = int(options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED)
    except OutOfMemoryError as error:
        return _told(str(error), INFEASIBLE)
    except SimdevError as error:
        return _told(str(error), BAD_INPUT)
    except MemoryError:
        return _told("simdev itself ran out of memory", BAD_INPUT)
    except OSError as error:
        # What cannot be read is an InputError by now: this is a full disk, or a stdout that takes
        # no more.
        _drop_stdout()
        reason = error.strerror or str(error)
        return _told(f"cannot write: {reason[:1].lower()}{reason[1:]}", BAD_INPUT)
    except Exception:
        traceback.print_exc()
        return _told("this is a bug in simdev, not in your files", INTERNAL)
    return code


def _prepare_streams() -> None:
    """Names may hold what the terminal's encoding has no sign for, and a stream may have been
    closed (``>&-``).
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Python flushes stdout once more at exit; where stdout takes no more, let that go nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
