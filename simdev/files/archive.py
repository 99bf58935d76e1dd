"""Safe reading of zip archives: only entries whose names are known, each once, of bounded size.

Nothing is written to disk, and nothing but the entries that are asked for is unpacked.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

from ..ground.errors import InputError, prefixed, refuse
from .reading import PathLike, unpacked

# An entry of the table takes 20 times as much memory as in the file.
MAX_TABLE = 16 * 2**20
_ENCRYPTED, _LINK = 0x1, 0o120000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _TableBounded:
    """A file of which no more is read at once than a table of entries may take."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        if size > MAX_TABLE:
            raise InputError(f"damaged archive: its table is larger than {MAX_TABLE >> 20} MiB")
        # Without a size: the comment at the end, which is short.
        return self._read(size if size >= 0 else MAX_TABLE)


@contextmanager
def opened_archive(source: PathLike | BinaryIO) -> Iterator[zipfile.ZipFile]:
    """An archive whose table of entries is bounded. Raises InputError, for what the block finds
    damaged too.
    """
    try:
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file, opened_archive(file) as archive:
                yield archive
        else:
            source.seek(0)
            with zipfile.ZipFile(_TableBounded(source)) as archive:
                yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged archive: {error}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None


def known_entries(
    archive: zipfile.ZipFile, known: Callable[[str], bool], whose: str
) -> Mapping[str, zipfile.ZipInfo]:
    """The entries of an archive by name. Raises InputError where one is unknown (``whose`` says
    what would have it), is there twice, or is no plain file.
    """
    entries: dict[str, zipfile.ZipInfo] = {}
    problems = []
    for entry in archive.infolist():
        name = entry.orig_filename
        if not known(name):
            problems.append(f"{name}: no entry of {whose}")
        elif name in entries:
            problems.append(f"{name}: stands twice in the archive")
        elif entry.flag_bits & _ENCRYPTED:
            problems.append(f"{name}: is encrypted")
        elif entry.compress_type not in _METHODS:
            problems.append(f"{name}: packed by a method that is neither stored nor deflated")
        elif entry.external_attr >> 16 & 0o170000 == _LINK:
            problems.append(f"{name}: is a symbolic link")
        elif not entry.compress_type and entry.compress_size != entry.file_size:
            problems.append(f"{name}: is stored, and has two sizes")
        elif entry.volume:
            problems.append(f"{name}: lies on another disk of a divided archive")
        entries[name] = entry
    refuse(problems)
    return entries


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of an entry, whatever size the archive declares. Raises InputError where they are
    too many.
    """
    size = min(entry.compress_size, archive.start_dir)
    with archive.open(entry) as packed, prefixed(f"{entry.orig_filename}: "):
        data = unpacked(packed.read, size)
        if len(data) != entry.file_size:
            raise InputError(f"holds {len(data)} bytes, not {entry.file_size} as the archive says")
    return data
