"""Fitting gaps, latencies, bandwidths and efficiencies of a scenario to a measured trace, by least
squares.
"""

from __future__ import annotations

from .calibration import Calibration, Quality, Residual, calibrate, calibration_text
from .fit import FIT
from .measured import Measured, read_measured
from .solve import Parameter
from .writing import fitted_cluster, write_fitted, write_fitted_cluster

__all__ = [
    "FIT",
    "Calibration",
    "Measured",
    "Parameter",
    "Quality",
    "Residual",
    "calibrate",
    "calibration_text",
    "fitted_cluster",
    "read_measured",
    "write_fitted",
    "write_fitted_cluster",
]
