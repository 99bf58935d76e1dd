"""A roofline whose rates grow with the extents of an op.

A vector machine of Hockney's reaches half of its rate at a length n_1/2, and n / (n + n_1/2) of it
at length n (R. W. Hockney, C. R. Jesshope, "Parallel Computers 2", 1988, section 1.3). Kernels are
alike in each of their extents: tiles that are cut off, threads without work, sums too short to hide
the latency. So

    time = overhead + max(F / (e1 x peak) x slow, B / (e2 x bandwidth))
    slow = 1 + w (prod(1 + h_j / x_j) - 1)

with x_j the extents and h_j their half lengths. Kinds that compute (a trait) are slowed there and
have w = 1. The others, which pass over memory, are slowed where they read: threads without work
cost by the element, however few bytes it has, so that w is 4 bytes over those of an element.
Parameters are fitted by
least sum of weighted |log error| and a normal prior on their logarithms, so that few rows keep to
it: Levenberg's and Marquardt's steps on squares that are weighted anew in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fit import Floats

HALF = 4.0  # prior of a half length; a factor of e^2 beside it is one standard deviation
SPREAD_OF_CLASS = (1.0, 2.0)  # of rates and overhead, and of half lengths, as logarithms
SPREAD_OF_FORWARD = (0.7, 1.5)
SPREAD_OF_KIND = (0.3, 0.3)
SPREAD_OF_DTYPE = (0.1, 0.15)
_LONGER_COUNT_MORE = 0.3  # weight of a row: its time to this power
_SMALL, _SCALE = 0.02, 0.2  # |log error| below which squares count; one that costs 1
_STEPS, _DAMPINGS, _LONGEST, _ENOUGH = 30, 8, 1.0, 1e-7


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """What ops ask for: ``compute`` and ``memory`` seconds [n] at the rates that are reached where
    nothing slows, logarithms of ``extents`` [n, q], ``weight`` [n] of what they slow by.
    """

    compute: Floats
    memory: Floats
    extents: Floats
    weight: Floats
    slows_compute: bool

    def take(self, rows: NDArray[np.bool_]) -> Demands:
        """Some of the ops."""
        return Demands(
            self.compute[rows],
            self.memory[rows],
            self.extents[rows],
            self.weight[rows],
            self.slows_compute,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Prior:
    """Where parameters are expected, and how far off: logarithms of e1, e2, overhead, halves."""

    centre: Floats
    spread: Floats

    @classmethod
    def around(cls, centre: Floats, spread: tuple[float, float]) -> Prior:
        """A prior of the same spread for all rates, and another for all half lengths."""
        rates, halves = spread
        return cls(centre, np.array([rates] * 3 + [halves] * (len(centre) - 3)))


def log_seconds(parameters: Floats, demands: Demands) -> Floats:
    """Logarithms of the model's seconds [n]."""
    return _model(parameters, demands)[0]


def fitted(demands: Demands, log_measured: Floats, prior: Prior) -> Floats:
    """The parameters [3 + q] for rows measured; those of the prior where there are none."""
    here = prior.centre.copy()
    if not len(log_measured):
        return here
    weights = np.exp(_LONGER_COUNT_MORE * (log_measured - log_measured.max()))
    weights /= weights.mean() * _SCALE
    damping, cost = 1e-2, _cost(here, demands, log_measured, weights, prior)
    for _ in range(_STEPS):
        predicted, slopes = _model(here, demands)
        errors = predicted - log_measured
        scaled = slopes * (weights / np.maximum(np.abs(errors), _SMALL))[:, None]
        off = (here - prior.centre) / prior.spread**2
        curvature = scaled.T @ slopes + np.diag(prior.spread**-2)
        descent = -(scaled.T @ errors + off)
        for _ in range(_DAMPINGS):
            damped = curvature + damping * np.diag(np.diag(curvature))
            step = np.clip(np.linalg.solve(damped, descent), -_LONGEST, _LONGEST)
            there = _cost(here + step, demands, log_measured, weights, prior)
            if there < cost:
                break
            damping *= 4
        else:
            break
        here, gained, cost = here + step, cost - there, there
        damping = max(damping / 8, 1e-6)
        if gained < _ENOUGH:
            break
    # Sums differ in their last bits between processors: five digits do not.
    return np.round(here, 5)


def _cost(
    parameters: Floats, demands: Demands, log_measured: Floats, weights: Floats, prior: Prior
) -> float:
    errors = np.abs(_model(parameters, demands)[0] - log_measured)
    flat = np.where(errors < _SMALL, errors**2 / (2 * _SMALL), errors - _SMALL / 2)
    away = ((parameters - prior.centre) / prior.spread) ** 2
    return float(weights @ flat + away.sum() / 2)


def _model(parameters: Floats, demands: Demands) -> tuple[Floats, Floats]:
    """Logarithms of the seconds [n], and their slopes along the parameters [n, 3 + q]."""
    (compute, memory, overhead), halves = np.exp(parameters[:3]), np.exp(parameters[3:])
    shares = halves / np.exp(demands.extents)
    grown = demands.weight * np.prod(1 + shares, axis=1)
    slow = 1 - demands.weight + grown
    by_compute, by_memory = demands.compute / compute, demands.memory / memory
    if demands.slows_compute:
        by_compute = by_compute * slow
    else:
        by_memory = by_memory * slow
    computes = by_compute > by_memory
    bound = np.where(computes, by_compute, by_memory)
    seconds = overhead + bound
    share = bound / seconds
    slowed = share * (computes == demands.slows_compute) * grown / slow
    slopes = np.column_stack(
        [-share * computes, -share * ~computes, overhead / seconds]
        + [slowed * (column / (1 + column)) for column in shares.T]
    )
    return np.log(seconds), slopes
