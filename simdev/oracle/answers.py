"""The answers that an oracle remembers."""

from __future__ import annotations

import threading
from collections import OrderedDict

from .cost import Cost


class Answers(OrderedDict[bytes, Cost]):
    """The costs asked for last, ``most`` of them; ``known`` and ``keep`` may be called from several
    threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self._lock = most, threading.Lock()

    def known(self, key: bytes) -> Cost | None:
        """The answer, if it is remembered; it is used."""
        with self._lock:
            cost = self.get(key)
            if cost is not None:
                self.move_to_end(key)
            return cost

    def keep(self, key: bytes, cost: Cost) -> None:
        """Remember an answer, and forget the one that was used longest ago where there are too
        many.
        """
        with self._lock:
            self[key] = cost
            while len(self) > self.most:
                self.popitem(last=False)
