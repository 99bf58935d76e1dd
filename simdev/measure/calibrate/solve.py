"""Robust least squares for linear models, with standard errors; and parameters of a scenario,
written with no more digits than their errors justify.

Noise in a trace is multiplicative (a long transfer varies more than a short one) and has outliers
(a step that was interrupted). So residuals are relative to the model, and their loss is soft_l1:
quadratic near zero, linear far away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import SimdevError, install_line

Floats = NDArray[np.float64]

PASSES = 5
TINY = 1e-12  # relative: residuals below it are rounding
OUTLIER = 2.0  # standard deviations from which on a residual counts less
# A column counts as dependent if it differs from a combination of others by less than this share.
DEPENDENT = 1e-4
WHOLE_DIGITS = 17
CARE = Fraction(1, 20)  # share of a standard error by which rounding may change a number


@dataclass(frozen=True, slots=True)
class Solution:
    """The values of the parameters with their standard errors (NaN: no more data than parameters),
    from ``count`` residuals.
    """

    values: Floats
    errors: Floats
    count: int


def optimizers() -> Any:
    """``scipy.optimize``. Raises SimdevError where there is none."""
    try:
        return import_module("scipy.optimize")
    except ModuleNotFoundError:
        raise SimdevError(f"calibrate needs scipy: {install_line('solvers')}") from None


def independent(columns: Floats) -> list[int]:
    """The indices of linearly independent columns: each column that is no linear combination of the
    columns chosen before it.
    """
    chosen: list[int] = []
    for k, column in enumerate(columns.T):
        before = columns[:, chosen]
        rest = column - before @ np.linalg.lstsq(before, column, rcond=None)[0]
        if np.linalg.norm(rest) > DEPENDENT * np.linalg.norm(column):
            chosen.append(k)
    return chosen


def solve(
    columns: Floats,
    target: Floats,
    offset: Floats | float = 0.0,
    scale: Floats | None = None,
    care: Floats | float = 1.0,
) -> Solution:
    """The parameters x of columns @ x + offset ~ target, [n, k] and [n]; columns must be
    independent.

    ``scale`` is proportional to the error of each target (None: the error is proportional to the
    model's value), ``care`` is the weight of each target.
    """
    least_squares = optimizers().least_squares
    unit = np.abs(columns).max(axis=0)
    weights = care / (np.abs(target) if scale is None else scale)
    rows = columns / unit
    x = np.linalg.lstsq(rows * weights[:, None], (target - offset) * weights, rcond=None)[0]
    for _ in range(PASSES):
        if scale is None:
            # Residuals are relative to the model of the previous pass. Relative to the measured
            # values, values that are too small by chance would count most.
            weights = care / np.maximum(np.abs(rows @ x + offset), TINY * np.abs(target).max())
        a, y = rows * weights[:, None], (target - offset) * weights
        # 1.4826 x the median of |residuals| is the standard deviation of normal noise.
        spread = max(1.4826 * float(np.median(np.abs(a @ x - y))), TINY)
        fitted = least_squares(
            lambda p, a=a, y=y, spread=spread: (a @ p - y) / spread,
            x,
            jac=lambda p, a=a, spread=spread: a / spread,
            loss="soft_l1",
            f_scale=OUTLIER,
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
        )
        x = fitted.x
    return Solution(x / unit, _errors(a, a @ x - y, OUTLIER * spread) / unit, len(target))


def _errors(a: Floats, residual: Floats, limit: float) -> Floats:
    """Standard errors of an M-estimator (Huber, Robust Statistics, 1981, 7.6), in which outliers
    have their reduced weight.
    """
    spare = len(residual) - a.shape[1]
    if spare <= 0:
        return np.full(a.shape[1], np.nan)
    z = 1 + (residual / limit) ** 2
    pull, slope = residual / np.sqrt(z), float(np.mean(z**-1.5))
    variance = float(pull @ pull) / spare / slope**2
    errors: Floats = np.sqrt(np.maximum(np.diag(np.linalg.pinv(a.T @ a)) * variance, 0))
    return errors


def middle(samples: Floats, scale: Floats | None = None) -> Solution:
    """The robust mean of samples of one quantity; ``scale`` is proportional to the error of each
    sample.
    """
    spread = float(np.median(np.abs(samples - np.median(samples))))
    if spread <= TINY * float(np.abs(samples).max(initial=0)):  # most samples are the same number
        error = math.nan if len(samples) < 2 else 0.0
        return Solution(np.array([np.median(samples)]), np.array([error]), len(samples))
    return solve(
        np.ones((len(samples), 1)), samples, scale=np.ones(len(samples)) if scale is None else scale
    )


def shortest(value: Fraction | float, tolerance: Fraction | float) -> Fraction:
    """The number with the fewest significant digits within the tolerance of a value."""
    exact, allowed = Fraction(value), Fraction(tolerance)
    if abs(exact) <= allowed:
        return Fraction(0)
    decimal = Decimal(exact.numerator) / Decimal(exact.denominator)
    for digits in range(1, WHOLE_DIGITS + 1):
        short = Fraction(Context(prec=digits, rounding=ROUND_HALF_EVEN).create_decimal(decimal))
        if abs(short - exact) <= allowed:
            break
    return short


def goodness(
    measured: Sequence[float], predicted: Sequence[float]
) -> tuple[float, float, float | None]:
    """The RMS of the residuals, the RMS of the residuals relative to the measured values, and R2
    (None where the measured values have no variance).
    """
    m, p = np.array(measured, np.float64), np.array(predicted, np.float64)
    residual = m - p
    variance = float(((m - m.mean()) ** 2).sum())
    relative = residual[m > 0] / m[m > 0]
    r2 = 1 - float((residual**2).sum()) / variance if variance > 0 else None
    return (
        math.sqrt(float((residual**2).mean())),
        math.sqrt(float((relative**2).mean())) if len(relative) else 0.0,
        r2,
    )


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number of a scenario that may be fitted to a trace, in SI units (an efficiency: a share).

    ``quantity`` is gap, latency, bandwidth or efficiency; ``of`` names the devices, links or ops;
    ``rows`` are the indices of devices or links in the cluster (none for an efficiency). ``value``
    is the fitted value, or the value ``before`` where it was not fitted; ``error`` is its standard
    error (None: no data to spare), ``count`` the number of spans that it was fitted to. A
    parameter that was left alone has a ``note`` with the reason.
    """

    quantity: str
    of: str
    before: Fraction
    value: Fraction
    error: float | None
    count: int
    rows: tuple[int, ...] = ()
    on_links: bool = False
    note: str = ""

    @property
    def fitted(self) -> bool:
        """Whether its value was fitted to the trace."""
        return not self.note

    def to_json(self) -> dict[str, Any]:
        """Its numbers as JSON values."""
        return {
            "quantity": self.quantity,
            "of": self.of,
            "before": float(self.before),
            "value": float(self.value),
            "standard_error": self.error,
            "count": self.count,
            "fitted": self.fitted,
            "note": self.note,
        }


def significant(value: float, error: float, least: Fraction | float) -> Fraction:
    """The value rounded to as few digits as its standard error (NaN: not known) allows. A change of
    up to ``least`` is allowed in any case.
    """
    doubt = min(CARE * Fraction(error), abs(Fraction(value)) / 100) if error > 0 else Fraction(0)
    return shortest(value, max(Fraction(least), doubt))


def error_of(error: float) -> float | None:
    """A standard error, None where there was no data to spare."""
    return None if np.isnan(error) else error
