"""Differences between the steps of a run: noise in times of tasks, and pauses (``Disturbances``).

The part ``disturbances`` of a scenario's file has these fields.
``simdev/execution/disturbances.py`` draws them; devices and links that are always slow are part of
the cluster (``Device.speed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..ground.errors import refuse
from ..ground.frozen import freeze
from ..ground.units import (
    MAX_PS,
    Duration,
    Number,
    Seconds,
    exact,
    is_count,
    picoseconds,
    unlisted,
    unread,
    written,
)
from .cluster import Cluster

TAILS = ("lognormal", "gamma", "pareto")
SPREADS = ("compute", "communication", "hosts", "devices")
MOST_SPREAD = 10


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses of a device, one after another: garbage collection, a daemon, a checkpoint. Where a
    host dispatches for the device, its thread pauses instead.

    - ``every``: time from the start of a pause to the start of the next.
    - ``lasts``: how long each pause is.
    - ``together``: whether all devices pause at once; else (default) the pauses of each device
      begin at a random moment.
    - ``devices``: the devices that pause; default all.

    Raises InputError.
    """

    every: Duration
    lasts: Seconds
    together: bool = False
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "devices")
        refuse(list(unread(self)) or self._problems())

    def _problems(self) -> Iterator[str]:
        every, lasts = (picoseconds(Fraction(time)) for time in (self.every, self.lasts))
        if every > MAX_PS:
            yield "every: is larger than 53 days"
        if not 0 < lasts < every:  # rounded to picoseconds both may be equal
            yield "lasts: must be > 0 and less than every, in whole picoseconds"


@dataclass(frozen=True, slots=True)
class Disturbances:
    """Noise and pauses of a step. A spread is the standard deviation of a time as a share of its
    mean, which is the cost.

    - ``compute``: spread of the time of each op; default 0.
    - ``communication``: spread of the time of each message and collective; default 0.
    - ``hosts``: spread of the time of each dispatch; default 0.
    - ``devices``: spread of a factor that all ops of a device share; default 0.
    - ``tail``: the law of the noise of single tasks: ``lognormal`` (default), ``gamma`` (with a
      spread of 1 exponential times) or ``pareto`` (rare, very long ones).
    - ``pauses``: times in which devices stand still.
    - ``seed``: seed of the noise (default 0).

    Raises InputError.
    """

    compute: Number = 0
    communication: Number = 0
    hosts: Number = 0
    devices: Number = 0
    tail: str = TAILS[0]
    pauses: Pauses | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        for name in SPREADS:
            try:
                spread = exact(getattr(self, name))
            except ValueError as error:
                yield f"{name}: {error}"
                continue
            if not 0 <= spread <= MOST_SPREAD:
                yield f"{name}: must be from 0 to {MOST_SPREAD}, got {float(spread):g}"
        yield from unlisted(self, tail=TAILS)
        if not is_count(self.seed):
            yield f"seed: must be a whole number from 0 on, got {written(self.seed)}"

    def problems(self, cluster: Cluster) -> Iterator[str]:
        """``field: reason`` for each fault of the disturbances on a cluster."""
        for i, name in enumerate(() if self.pauses is None else self.pauses.devices):
            if why := cluster.why_no_place(name):
                yield f"pauses.devices[{i}]: {why}"
