"""Fitting gaps, latencies, bandwidths and efficiencies of a scenario to a measured trace, by least
squares, and host times of large models to measured steps.

``simdev calibrate`` is the caller.
"""

from __future__ import annotations

from .calibration import (
    Calibration,
    Quality,
    Residual,
    calibrate,
    calibration_text,
    fitted_cluster,
    write_fitted,
    write_fitted_cluster,
    write_fitted_steps,
    write_hosted,
)
from .fit import FIT
from .hosts import HostCalibration, HostTimes, calibrate_host, host_text, read_host_times
from .observe import Measured, read_measured
from .solve import Parameter
from .steps import MeasuredStep, StepFit, calibrate_steps, read_steps, steps_text

__all__ = [
    "FIT",
    "Calibration",
    "HostCalibration",
    "HostTimes",
    "Measured",
    "MeasuredStep",
    "Parameter",
    "Quality",
    "Residual",
    "StepFit",
    "calibrate",
    "calibrate_host",
    "calibrate_steps",
    "calibration_text",
    "fitted_cluster",
    "host_text",
    "read_host_times",
    "read_measured",
    "read_steps",
    "steps_text",
    "write_fitted",
    "write_fitted_cluster",
    "write_fitted_steps",
    "write_hosted",
]
