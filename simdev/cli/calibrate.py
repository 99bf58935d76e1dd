"""``simdev calibrate SCENARIO TRACE``: fit a scenario's numbers to a measured trace."""

from __future__ import annotations

import argparse
import json

from ..errors import InputError, within
from .options import DONE
from .outputs import JSON, output_files

HELP = "fit gaps, latencies and bandwidths to a measured trace"
DESCRIPTION = (
    "Fit a scenario's numbers to a measured trace by robust least squares, and tell the residuals."
)
OPTIONS = (
    ("file", "SCENARIO", "the scenario (JSON, may be gzipped)"),
    ("trace", "TRACE", "a saved run, or Chrome trace events; spans are matched by name"),
    (
        "--fit",
        "WHAT",
        "of gap, latency, bandwidth, efficiency, efficiency:KIND/OP (patterns); default: "
        "%(default)s",
        {"default": "gap,latency,bandwidth"},
    ),
    ("-o --output", "OUT", "write the scenario with what was fitted (.json, .json.gz)"),
    ("--cluster", "OUT", "write the cluster with what was fitted (.json, .json.gz)"),
    ("--json", "", "print parameters and residuals as JSON"),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    if args.file == "-":
        raise InputError("calibrate reads the scenario twice: it must be a file, not stdin")
    with output_files(args, {"output": JSON, "cluster": JSON}, [(args.trace, "the trace")]) as out:
        from ..calibrate import (
            calibrate,
            calibration_text,
            read_measured,
            write_fitted,
            write_fitted_cluster,
        )
        from ..scenario import load_scenario

        scenario, measured = load_scenario(args.file), read_measured(args.trace)
        with within(args.file):
            calibration = calibrate(scenario, measured, args.fit.split(","))
        # The scenario's files are named relative to where it is in the end.
        if "output" in out:
            write_fitted(calibration, args.file, out["output"], args.output)
        if "cluster" in out:
            write_fitted_cluster(calibration, out["cluster"])
    print(
        json.dumps(calibration.to_json(), indent=1, allow_nan=False)
        if args.json
        else calibration_text(calibration)
    )
    return DONE
