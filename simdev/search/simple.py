"""Placements that need no search: a single device, round robin; and random ones."""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from .local import repair
from .trial import Trial, alone


def single(trial: Trial) -> None:
    """Everything on one device, the best of those that can run everything.

    Raises InputError where none can, and what the oracle says where that cannot be in the order
    that is asked for.
    """
    found = alone(trial)
    if not found:
        raise InputError("single: no device can run every op of the graph")
    for placement in found:
        trial.score(placement)
    if trial.best is None and trial.refused is not None:
        raise trial.refused


def round_robin(trial: Trial) -> None:
    """The groups in turn on the devices on which they may stand; moved where that does not fit."""
    trial.score(np.array([one[i % len(one)] for i, one in enumerate(trial.choices)], np.int64))
    repair(trial)


def random(trial: Trial) -> None:
    """Every group on any of its devices, each time anew."""
    counts = np.array([len(one) for one in trial.choices], np.int64)
    table = np.zeros((len(counts), int(counts.max(initial=1))), np.int64)
    for group, one in enumerate(trial.choices):
        table[group, : len(one)] = one
    while True:
        trial.score(table[np.arange(len(counts)), trial.random.integers(counts)])
