"""How long the memory of tensors lives while a step runs on fake tensors.

Python refers to tensors for longer than operators read them: a list of all states in a module's
forward keeps them until that returns. Fake tensors die as real ones do, so whoever records the step
sees when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Source = tuple[int, int]
"""(record, output) that made a tensor."""

# How many refer to a storage; private, so that a version of PyTorch may be without it.
_USERS: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Lifetimes:
    """``until``: by source the last record before its memory was let go, of all that died."""

    def __init__(self) -> None:
        self.until: dict[Source, int] = {}
        self._live: dict[int, tuple[Source | None, Any]] = {}

    def note(self, storage: Any, source: Source | None) -> None:
        """A storage that somebody holds on to (one reference) now has what ``source`` made.

        What an operator made in it before is the same memory, and does not die.
        """
        self._live[storage._cdata] = source, storage

    def forget(self, storage: Any) -> None:
        """Memory that the step is given: it outlives the step."""
        self._live.pop(storage._cdata, None)

    def settle(self, last: int) -> None:
        """Tell the dead from the living, when the record ``last`` has just run."""
        if _USERS is None:
            return
        dead = [key for key, (_, storage) in self._live.items() if _USERS(storage._cdata) <= 1]
        for key in dead:
            source, _ = self._live.pop(key)
            if source is not None:
                self.until[source] = last
