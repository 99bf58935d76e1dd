"""A question's part, from wherever it comes: a file, or an object already parsed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .reading import label, read_json


@contextmanager
def opened(source: Any) -> Iterator[tuple[Any, bool]]:
    """(value, whether it came from a file); problems found inside are told of that file."""
    if not isinstance(source, (str, os.PathLike)):
        yield source, False
        return
    value = read_json(source)
    try:
        yield value, True
    except InputError as error:
        raise error.within(label(source)) from None
