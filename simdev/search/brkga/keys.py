"""Random keys: individuals as numbers in [0, 1), the placements that they stand for, and how they
breed.

Keys are [individual, group, width]; width is 1 under the decoder "share", the number of devices
under "affinity".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ...nouns.taskgraph import Floats, Ints


@dataclass(frozen=True, eq=False)
class Decoder:
    """What keys mean. ``allowed`` [group, device] says where each group may stand.

    "share": a group's one key cuts [0, 1) into as many equal parts as it has devices. "affinity": a
    key for each device, the largest of those allowed wins (REGAL, Paliwal and others, ICLR 2020).
    """

    name: str
    allowed: NDArray[np.bool_]

    @property
    def width(self) -> int:
        """Keys a group."""
        return self.allowed.shape[1] if self.name == "affinity" else 1

    def placements(self, keys: Floats) -> Ints:
        """Devices by group [individual, group]."""
        if self.name == "affinity":
            best: Ints = np.where(self.allowed, keys, -1.0).argmax(axis=-1)
            return best
        counts = self.allowed.sum(axis=1)
        # The n-th allowed device is where the n-th True stands; a sort puts these first, in order.
        order = np.argsort(~self.allowed, axis=1, kind="stable")
        place = (keys[..., 0] * counts).astype(np.int64)
        devices: Ints = order[np.arange(len(counts)), place]
        return devices

    def keys(self, placement: Ints, random: Generator) -> Floats:
        """Keys [group, width] of an individual that stands for a placement."""
        groups = np.arange(len(placement))
        if self.name == "affinity":
            keys = random.random(self.allowed.shape)
            keys[groups, placement] = np.nextafter(1.0, 0.0)
            return keys
        place = self.allowed.cumsum(axis=1)[groups, placement] - 1
        middle: Floats = ((place + 0.5) / self.allowed.sum(axis=1))[:, None]
        return middle


def offspring(
    elite: Floats, others: Floats, count: int, inherit: float, random: Generator
) -> Floats:
    """Children of one parent of the elite and one of the others: each key is that of the first with
    probability ``inherit`` (parametrised uniform crossover, section 2).
    """
    first = elite[random.integers(len(elite), size=count)]
    second = others[random.integers(len(others), size=count)]
    children: Floats = np.where(random.random(first.shape) < inherit, first, second)
    return children


def next_generation(
    keys: Floats, elites: int, mutants: int, inherit: float, random: Generator
) -> Floats:
    """The next population, of one in order of rank: the elite as it is, children, and new random
    individuals, the mutants.
    """
    children = offspring(
        keys[:elites], keys[elites:], len(keys) - elites - mutants, inherit, random
    )
    strangers = random.random((mutants, *keys.shape[1:]))
    return np.concatenate((keys[:elites], children, strangers))
