"""Where the host held up a step that was measured: what its phases then tell of the host.

A step begins with host and device idle. An op starts when it is dispatched and the op before it has
finished, so a phase ends at the largest sum of the dispatches up to an op and of the device's times
from that op on. Of a phase that lasted clearly longer than its ops, this tells how long dispatching
took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import copysign, exp, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..nouns.graph import PHASES

Floats = NDArray[np.float64]

# A phase that lasted longer than its ops by less was not clearly held up by the host.
_HELD = 1.25
_LEAD = 0.1  # of a phase: a host that is ahead by more did not hold it up all the time
# Two runs of one step differ by as much (in logarithms): within it nothing is concluded.
_NOISE = 0.15
_LEAST, _MOST, _HALVINGS = 1 / 16, 16.0, 40


def held_factors(
    phases: Sequence[str],
    host: Sequence[float],
    device: Sequence[float],
    measured: Mapping[str, Any],
) -> dict[str, float]:
    """By which factor the host's times of each phase are to be taken, given seconds of host and
    device by op, in program order, and ``measured`` phases (``measured_step_s``).

    Only phases that the host held up have one.
    """
    names, hosts, devices = np.array(phases), np.array(host), np.array(device)
    factors: dict[str, float] = {}
    begun = busy = 0.0  # when the phase's dispatches begin, and when the device is free
    for phase in PHASES:
        of_phase = names == phase
        seconds = _seconds(measured.get(phase))
        if not of_phase.any() or seconds is None:
            return factors
        dispatch, work = hosts[of_phase], devices[of_phase]
        factor = 1.0
        # A host that is ahead when a phase begins may have waited for the device before.
        if seconds > _HELD * work.sum() and busy - begun < _LEAD * seconds:
            factor = _factor(dispatch, work, begun, busy, seconds)
            factors[phase] = factor
        end = _end(factor * dispatch, work, begun, busy)
        begun, busy = begun + factor * float(dispatch.sum()), end
    return factors


def _seconds(phase: Any) -> float | None:
    """The seconds that a phase was measured at; None where a header tells no number."""
    try:
        seconds = float(phase["measured_step_s"])
    except (KeyError, TypeError, ValueError):
        return None
    return seconds if isfinite(seconds) else None


def _end(dispatch: Floats, work: Floats, begun: float, busy: float) -> float:
    """When a device that is busy until ``busy`` has done a phase dispatched from ``begun`` on."""
    done = np.cumsum(work)
    waits = float((begun + np.cumsum(dispatch) - (done - work)).max())
    return max(busy, waits) + float(done[-1])


def _factor(dispatch: Floats, work: Floats, begun: float, busy: float, seconds: float) -> float:
    """The factor at which a phase lasts as measured, less what two runs differ by."""
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        lasts = _end(middle * dispatch, work, begun, busy) - busy
        low, high = (low, middle) if lasts > seconds else (middle, high)
    exponent = log(high)
    return exp(copysign(max(0.0, abs(exponent) - _NOISE), exponent))
