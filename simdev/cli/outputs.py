"""Files that a verb writes: whole or not at all, and refused before any work is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ..errors import InputError


@contextmanager
def place_for(option: str, path: str) -> Iterator[str]:
    """The temporary file to fill, which takes the place of ``path`` at the end. Raises InputError before any work."""
    from ..files.writing import replacing

    with ExitStack() as stack:
        try:
            place = stack.enter_context(replacing(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{option}: cannot write {path}: {reason[:1].lower()}{reason[1:]}") from None
        yield place


@contextmanager
def places_for(wanted: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The same for several: name of an option's argument -> the temporary file."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(place_for(f"--{name.replace('_', '-')}", path)) for name, path in wanted.items()
        }
