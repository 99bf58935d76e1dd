"""Writing files whole or not at all, and numbers exactly.

A file is written beside its place and renamed into it; what is no regular file (``/dev/null``, a
pipe) is written to directly, for it cannot be replaced.
"""

from __future__ import annotations

import gzip
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal, localcontext
from fractions import Fraction

from .reading import PathLike


@contextmanager
def replacing(path: PathLike) -> Iterator[str]:
    """The name of an empty file to fill, which becomes ``path`` when the block succeeds and
    vanishes when it fails.

    It exists from the start, so a place that cannot be written raises OSError before any work is
    done.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a directory", os.fspath(path))
    if not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode):
        # A link stays a link: what it points to is replaced.
        target = os.path.realpath(path)
        with _beside(target) as temporary:
            yield temporary
            os.replace(temporary, target)
        return
    with open(path, "wb") as special, tempfile.TemporaryDirectory() as folder:
        temporary = os.path.join(folder, "output")
        yield temporary
        with open(temporary, "rb") as written:
            special.write(written.read())


@contextmanager
def _beside(target: str) -> Iterator[str]:
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(13, "permission denied", target)
    folder, name = os.path.split(target)
    # The same ending: writers choose the format by it. Short, for the name may be at the limit of
    # the file system.
    temporary = os.path.join(folder, f".{os.getpid()}-{os.urandom(4).hex()}-{name[-100:]}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def write_text(path: PathLike, text: str) -> None:
    """Write a text whole or not at all, gzipped (same bytes for the same text) where the name ends
    in .gz.
    """
    data = text.encode()
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def time_text(seconds: Fraction) -> str:
    """Exact text of a time in the largest unit that leaves it at least 1: ``12 us``."""
    return _text(seconds, {"s": 0, "ms": -3, "us": -6, "ns": -9, "ps": -12})


def rate_text(rate: Fraction) -> str:
    """Exact text of a bandwidth: ``5.7 GB/s``."""
    return _text(rate, {"TB/s": 12, "GB/s": 9, "MB/s": 6, "kB/s": 3, "B/s": 0})


def _text(value: Fraction, units: dict[str, int]) -> str:
    unit = next(
        (name for name, power in units.items() if value >= Fraction(10) ** power), list(units)[-1]
    )
    unit = next(iter(units)) if value == 0 else unit
    return f"{decimal_text(value / Fraction(10) ** units[unit])} {unit}"


def decimal_text(value: Fraction) -> str:
    """The fraction as a decimal: exact where it ends within 60 digits, else rounded up to 30
    significant ones.
    """
    digits, rest = 0, value.denominator
    for factor in (2, 5):
        power = 0
        while rest % factor == 0:
            rest //= factor
            power += 1
        digits = max(digits, power)
    with localcontext() as context:
        context.prec, context.rounding = (
            (200, "ROUND_HALF_EVEN") if rest == 1 and digits <= 60 else (30, "ROUND_CEILING")
        )
        return f"{(Decimal(value.numerator) / Decimal(value.denominator)).normalize():f}"
