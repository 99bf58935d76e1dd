"""The errors that simdev raises on purpose, and the form of their messages. Every floor raises
them; the command line, the server and the explorer print them, one line a problem.

Every class passes raw fields to ``super().__init__`` and formats in ``__str__``: SimPy re-creates
an exception from its ``args`` when it crosses a process, and pickle does the same between workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

MAX_LINES, MAX_COLUMNS = 20, 600
FEW = 5  # lines shown of a message that has more than MAX_LINES


class _Escapes(dict[int, str]):
    r"""The text written for a character, by its code point: an escape like ``\x1b`` for one that
    cannot be printed, unless it is ``kept``.
    """

    def __init__(self, kept: str) -> None:
        self._kept = kept

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        self[code] = sign if sign.isprintable() or sign in self._kept else ascii(sign)[1:-1]
        return self[code]


_LINE, _LINES = _Escapes(""), _Escapes("\n\t")


def printable(text: str, lines: bool = False) -> str:
    """The text with escapes in place of control characters and of bytes that are no text.

    Control characters are escape sequences, bells, and marks that change the direction of writing;
    names in arguments and files may hold them. The result is one line, for line breaks are escaped
    too, except with ``lines``.
    """
    # Almost all texts are printable; checking each character would cost as much as the message.
    return text if text.isprintable() else text.translate(_LINES if lines else _LINE)


def one_line(text: str) -> str:
    """The text as a line of a message: printable, and of at most MAX_COLUMNS."""
    text = printable(text)
    return text if len(text) <= MAX_COLUMNS else text[: MAX_COLUMNS - 3] + "..."


def steered(stream: Any) -> Any:
    """The stream below a SafeStream of the command line, which would escape the control characters
    of progress bars; any other stream itself.
    """
    return getattr(stream, "steered", stream)


def _shown(lines: Sequence[str], before: str = "") -> list[str]:
    """The lines of a message, each with ``before`` in front and of bounded length; of too many
    lines only the first few.
    """
    few = lines if len(lines) <= MAX_LINES else lines[:FEW]
    texts = [one_line(before + line) for line in few]
    if len(lines) > len(few):
        texts.append(f"... and {len(lines) - len(few):,} more")
    return texts


def install_line(extra: str) -> str:
    """The command that installs the packages of an optional part of simdev, for messages."""
    return f'pip install "simdev[{extra}]"'


class SimdevError(Exception):
    """Base of all errors that simdev raises on purpose."""


class _LinesError(SimdevError):
    """An error of several lines, about a ``file`` if known."""

    def __init__(self, lines: str | Iterable[str], file: str | None = None) -> None:
        self.lines = (lines,) if isinstance(lines, str) else tuple(lines)
        self.file = file
        super().__init__(self.lines, file)

    @property
    def _prefix(self) -> str:
        return f"{self.file}: " if self.file else ""

    def within(self, file: str) -> Self:
        """An equal error about a file (a file already named is kept)."""
        return type(self)(self.lines, self.file or file)


class InputError(_LinesError, ValueError):
    """The question is malformed: one line a problem, each ``path: reason``, all of them at once.

    ``problems`` are relative to a noun (``ops[17].inputs[2]: no op named "conv_9"``); ``file`` is
    put before each of them by readers of files.
    """

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each problem."""
        return self.lines

    def __str__(self) -> str:
        return "\n".join(_shown(self.lines, self._prefix))


def refuse(problems: Iterable[str]) -> None:
    """Raises InputError with all of these problems, if there are any."""
    listed = list(problems)
    if listed:
        raise InputError(listed)


@contextmanager
def within(file: str) -> Iterator[None]:
    """Gives errors of the block the name of a file."""
    try:
        yield
    except (InputError, DeadlockError) as error:
        raise error.within(file) from None


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Puts a prefix, like ``params.`` or ``--``, before each problem of the block."""
    try:
        yield
    except InputError as error:
        problems = [prefix + problem for problem in error.problems]
        raise type(error)(problems, error.file) from None


@contextmanager
def collecting(problems: list[str], prefix: str = "") -> Iterator[None]:
    """Adds problems of the block to a list, each with the prefix, instead of raising them."""
    try:
        yield
    except InputError as error:
        problems += [prefix + problem for problem in error.problems]


def reason_of(error: Exception) -> str:
    """The system's reason for an error, beginning with a small letter for messages."""
    reason = getattr(error, "strerror", None) or str(error)
    return f"{reason[:1].lower()}{reason[1:]}"


class MissingCostError(InputError):
    """No time is known for some ops on the kind of device where they are placed; each problem names
    one.
    """


class DeadlockError(_LinesError):
    """Tasks wait for one another for ever, under contradictory ``fixed`` sequences.

    ``waiting`` has a line for each task: its name and the tasks and queues for which it waits.
    """

    @property
    def waiting(self) -> tuple[str, ...]:
        """A line for each task."""
        return self.lines

    def __str__(self) -> str:
        head = f"{self._prefix}deadlock: {len(self.lines)} tasks can never start:"
        return "\n  ".join([head, *_shown(self.lines)])


class OutOfMemoryError(SimdevError):
    """A step that does not fit; raised only where a caller asks for it
    (``Report.require_feasible``).

    ``needed``, ``capacity`` are bytes, ``time_ps`` picoseconds, ``live`` the largest buffers as
    (name, bytes).
    """

    def __init__(
        self,
        device: str,
        time_ps: int,
        task: str,
        needed: int,
        capacity: int,
        live: tuple[tuple[str, int], ...],
    ) -> None:
        self.device, self.time_ps, self.task = device, time_ps, task
        self.needed, self.capacity, self.live = needed, capacity, live
        super().__init__(device, time_ps, task, needed, capacity, live)

    def __str__(self) -> str:
        lines = "".join(f"\n  {name}: {size} bytes" for name, size in self.live)
        return (
            f"{self.device} is out of memory at {self.time_ps / 1e12:.9f} s, when "
            f"{self.task} starts: "
            f"{self.needed - self.capacity} bytes over its {self.capacity}; live then:{lines}"
        )
