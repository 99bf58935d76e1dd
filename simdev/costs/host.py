"""What dispatching an op costs the host, and how many kernels that launches.

given         the graph says it (``Op.host_time``)
measured      a row measured in a real step
estimated     a row of bare calls, as a real step spends it
datasheet     the default of the device's datasheet

What no rung knows is None: it counts nothing, and reports say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..graph import Op

HOST_RUNGS = ("given", "measured", "estimated", "datasheet")
"""The rungs of the host's ladder, from the surest down."""


@dataclass(frozen=True, slots=True)
class HostCost:
    """The seconds in which a host dispatches an op, all of its kernels together.

    ``launches`` is how many they are, ``rung`` who answered (one of HOST_RUNGS), ``rel_err`` the
    expected relative error (0.1 is 10 %, None: not told), ``basis`` what an estimate rests on.
    """

    seconds: Fraction
    launches: int
    rung: str
    rel_err: float | None = None
    basis: str = ""


def given_cost(op: Op, device_kind: str) -> HostCost | None:
    """What the graph says of dispatching an op on a kind of device."""
    seconds = op.host_seconds_on(device_kind)
    return None if seconds is None else HostCost(seconds, launches_of(op), "given")


def launches_of(op: Op, measured: int | None = None) -> int:
    """The kernels that an op launches: as the graph says, else as its row, else one."""
    if op.launches is not None:
        return op.launches
    return 1 if measured is None else measured
