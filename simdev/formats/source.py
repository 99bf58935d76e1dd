"""A foreign file: its name and hash for the provenance, and its content, text or not."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from ..files.reading import PathLike, label, read_source, text_of
from ..ground.errors import InputError, install_line

HEAD = 2**16
ZIP, GZIP = b"PK\x03\x04", b"\x1f\x8b"
# Control characters but for tabs, line ends and escapes, which stand in output of terminals.
_NEVER_IN_TEXT = frozenset([*range(9), *range(14, 27), *range(28, 32)])


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import. ``sha256`` is of the file as it lies, ``head`` its first bytes.

    ``data`` is the whole, gunzipped where it is compressed; None for an archive or a model, which
    may be too large to hold: whoever knows their format opens ``path`` itself.
    """

    path: str
    sha256: str
    head: bytes = field(repr=False)
    data: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The file's name without its folder, which says nothing of the content's origin."""
        return label(self.path) if self.path == "-" else os.path.basename(self.path)

    @property
    def is_text(self) -> bool:
        """Whether its first bytes could be text."""
        return _could_be_text(self.head)

    def text(self) -> str:
        """The content as text. Raises InputError."""
        return text_of(self.content(), self.path)

    def content(self) -> bytes:
        """The content, gunzipped. Raises InputError where it is too large."""
        return self.data if self.data is not None else read_source(self.path)[1]


def open_source(path: PathLike) -> Source:
    """Open a file ("-": stdin) to import. Raises InputError."""
    path, head = os.fspath(path), b""
    if path != "-":
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD)
        except OSError:
            pass  # the reader below tells it better
    if head.startswith(GZIP) or _could_be_text(head):
        raw, data = read_source(path)
        return Source(path, hashlib.sha256(raw).hexdigest(), data[:HEAD], data)
    with open(path, "rb") as file:
        return Source(path, hashlib.file_digest(file, "sha256").hexdigest(), head)


def _could_be_text(head: bytes) -> bool:
    return not head.startswith(ZIP) and _NEVER_IN_TEXT.isdisjoint(head)


def require(package: str, extra: str, noun: str) -> None:
    """Raises InputError where an optional package is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise InputError(f"{noun} needs the package {package}: {install_line(extra)}")
