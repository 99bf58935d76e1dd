"""Meter: how much an oracle was asked for."""

from __future__ import annotations

import threading
import time

# Of the evaluations after the first so many, one in so many is clocked, and stands for all of
# these: reading the clock twice may take as long as a small step.
CLOCKED, UNCLOCKED = 16, -1.0


class Meter:
    """Counts evaluations, and estimates their CPU seconds; from several threads at once."""

    def __init__(self, evaluations: int = 0, cpu_seconds: float = 0.0) -> None:
        self.cpu_seconds = cpu_seconds
        # Evaluations that were not among several, and the others: batches are always clocked.
        self._alone, self._others = 0, evaluations
        self._lock = threading.Lock()

    @property
    def evaluations(self) -> int:
        """How many were counted."""
        return self._alone + self._others

    def begin(self) -> float:
        """What ``end`` is handed after the evaluation that begins now."""
        clocked = self._alone < CLOCKED or self._alone % CLOCKED == 0
        return time.thread_time() if clocked else UNCLOCKED

    def end(self, begun: float) -> None:
        """Count an evaluation."""
        if begun == UNCLOCKED:
            with self._lock:
                self._alone += 1
            return
        seconds = time.thread_time() - begun
        with self._lock:
            self.cpu_seconds += seconds if self._alone < CLOCKED else seconds * CLOCKED
            self._alone += 1

    def begin_several(self) -> float:
        """What ``end_several`` is handed after the evaluations that begin now."""
        return time.thread_time()

    def end_several(self, begun: float, count: int) -> None:
        """Count evaluations."""
        seconds = time.thread_time() - begun
        with self._lock:
            self.cpu_seconds += seconds
            self._others += count
