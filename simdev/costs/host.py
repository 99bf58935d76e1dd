"""What dispatching an op costs the host, and how many kernels that launches.

given         the graph says it (``Op.host_time``)
measured      a row measured in a real step
estimated     a row of bare calls, as a real step spends it
datasheet     the default of the device's datasheet

What no rung knows is None: it counts nothing, and reports say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..ground.units import MAX_PS, PS_PER_SECOND
from ..nouns.graph import Op
from ..nouns.semantics import traits_of
from .header import fields_of, object_at

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


def given_cost(op: Op, device_kind: str, launches: int = 1) -> HostCost | None:
    """What the graph says of dispatching an op on a kind of device."""
    seconds = op.host_seconds_on(device_kind)
    return None if seconds is None else HostCost(seconds, launches, "given")


def between_cost(
    headers: Iterable[Mapping[str, Any]], op: Op, device_kind: str, launches: int = 1
) -> HostCost | None:
    """What a kind of device that is its own host (a CPU) does between ops, as the step tells that
    was measured with a profile: what a phase took beside its ops, the same for each of them.

    ``headers`` are those of the profiles. None where none of the kind tells it.
    """
    for header in headers:
        if not tells_own_host(header, device_kind):
            continue
        seconds = phase_share(object_at(fields_of(header), "host"), op.phase)
        if seconds is not None:
            if traits_of(op.kind).leaf is not None:
                seconds = Fraction(0)
            basis = "the time between the ops of its phase, measured with them"
            return HostCost(seconds, launches, "estimated", None, basis)
    return None


def tells_own_host(header: Mapping[str, Any], device_kind: str) -> bool:
    """Whether a profile's header tells of a kind of device that is its own host."""
    device, host = (object_at(fields_of(header), name) for name in ("device", "host"))
    return is_own_host(host) and device.get("kind") == device_kind


def is_own_host(host: Mapping[str, Any]) -> bool:
    """Whether what a profile's header tells of a ``host`` is of a device that is its own (a CPU):
    one that runs ahead of nothing.
    """
    return "ahead" in host


def phase_share(host: Mapping[str, Any], phase: str) -> Fraction | None:
    """The seconds that a ``host`` takes for one op of a phase as a profile's header tells it; None
    where it does not, or tells no numbers that times can be.
    """
    part = object_at(host, "phases", phase)
    try:
        ops, seconds = int(part["ops"]), Fraction(str(part["host_s"]))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return seconds / ops if ops > 0 and 0 <= seconds * PS_PER_SECOND <= MAX_PS else None
