"""``simdev calibrate SCENARIO TRACE``: fit a scenario's numbers to a measured trace, what its host
needs to a measured step, or the host times of a large model to measured steps.

The fits are in ``measure/calibrate``; a new thing to fit is a parameter there and a word of
``--fit`` here.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ..ground.errors import InputError, within
from .options import DONE
from .outputs import JSON, json_text, output_files, printed_first

DEFAULT, HOST, HOST_TIME = "gap,latency,bandwidth", "host", "host_time"
HELP = "fit gaps, latencies and bandwidths to a measured trace, host times to measured steps"
DESCRIPTION = (
    "Fit a scenario's numbers to a measured trace by robust least squares, and tell the residuals; "
    "or the host times of a large model to a table of measured steps."
)
STEPS = ".csv"
IN_GRAPH = "--save-cluster: host times stand in the graph; write the scenario with -o"
OPTIONS = (
    ("file", "SCENARIO", "the scenario (JSON, may be gzipped), or an example's name"),
    (
        "trace",
        "TRACE",
        "a saved run, or Chrome trace events; spans are matched by name. Of a host: an object with "
        "host_ms or host_s (by phase) or wall_s. Of a large model: a table of steps (.csv) by "
        "fields of the scenario",
    ),
    (
        "--fit",
        "WHAT",
        "of gap, latency, bandwidth, efficiency, efficiency:KIND/OP (patterns); default: "
        f"{DEFAULT}; or {HOST} alone, what dispatching costs; of a table of steps {HOST_TIME}",
    ),
    ("-o --output", "OUT", "write the scenario with what was fitted (.json, .json.gz)"),
    ("--save-cluster", "OUT", "write the cluster with what was fitted (.json, .json.gz)"),
    ("--json", "", "print parameters and residuals as JSON"),
)


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files.examples import scenario_path

    if args.file == "-":
        raise InputError("calibrate reads the scenario twice: it must be a file, not stdin")
    args.file = scenario_path(args.file)
    if args.fit == HOST:
        return _fit_host(args)
    if args.fit is not None and HOST in str(args.fit).split(","):
        raise InputError("--fit: host stands alone, for it is fitted to other measurements")
    return _fit_steps(args) if args.trace.endswith(STEPS) else _fit_trace(args)


def _fit_host(args: Namespace) -> int:
    if args.save_cluster is not None:
        raise InputError(IN_GRAPH)
    with output_files(args, {"output": JSON}, [(args.trace, "the host's times")]) as out:
        from ..execution.scenario import load_scenario
        from ..measure.calibrate import calibrate_host, host_text, read_host_times, write_hosted

        scenario, measured = load_scenario(args.file), read_host_times(args.trace)
        with within(args.file):
            fit = calibrate_host(scenario, measured)
        with printed_first(_answer(args, fit, host_text)):
            if "output" in out:
                write_hosted(fit, args.file, out["output"], args.output)
    return DONE


def _fit_steps(args: Namespace) -> int:
    if args.fit not in (None, HOST_TIME):
        raise InputError(f"--fit: a table of steps tells {HOST_TIME} alone, got {args.fit}")
    if args.save_cluster is not None:
        raise InputError(IN_GRAPH)
    with output_files(args, {"output": JSON}, [(args.trace, "the steps")]) as out:
        from ..measure.calibrate import calibrate_steps, read_steps, steps_text, write_fitted_steps

        steps = read_steps(args.file, args.trace)
        with within(args.file):
            fit = calibrate_steps(steps, args.trace)
        with printed_first(_answer(args, fit, steps_text)):
            if "output" in out:
                write_fitted_steps(fit, args.file, out["output"], args.output)
    return DONE


def _fit_trace(args: Namespace) -> int:
    outputs = {"output": JSON, "save_cluster": JSON}
    with output_files(args, outputs, [(args.trace, "the trace")]) as out:
        from ..execution.scenario import load_scenario
        from ..measure.calibrate import (
            calibrate,
            calibration_text,
            read_measured,
            write_fitted,
            write_fitted_cluster,
        )

        scenario, measured = load_scenario(args.file), read_measured(args.trace)
        with within(args.file):
            calibration = calibrate(scenario, measured, (args.fit or DEFAULT).split(","))
        with printed_first(_answer(args, calibration, calibration_text)):
            # The scenario's files are named relative to where it is in the end.
            if "output" in out:
                write_fitted(calibration, args.file, out["output"], args.output)
            if "save_cluster" in out:
                write_fitted_cluster(calibration, out["save_cluster"])
    return DONE


def _answer(args: Namespace, fit: Any, text: Callable[[Any], str]) -> str:
    return json_text(fit.to_json()) if args.json else text(fit)
