"""``simdev calibrate SCENARIO TRACE``: fit a scenario's numbers to a measured trace, its host's
times to a measured step, or the host times of a large model to measured steps.

The fits are in ``measure/calibrate``; a new number to fit is a parameter there and a word of
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
    fitted, noun = _chosen(args)
    outputs = {"output": JSON} | ({"save_cluster": JSON} if fitted is _of_trace else {})
    if fitted is not _of_trace and args.save_cluster is not None:
        raise InputError(IN_GRAPH)
    with output_files(args, outputs, [(args.trace, noun)]) as out:
        fit, text, write = fitted(args)
        with printed_first(json_text(fit.to_json()) if args.json else text(fit)):
            # Paths in the scenario are relative to its final place, not to the temporary file.
            if "output" in out:
                write(fit, args.file, out["output"], args.output)
            if "save_cluster" in out:
                from ..measure.calibrate import write_fitted_cluster

                write_fitted_cluster(fit, out["save_cluster"])
    return DONE


Fitted = tuple[Any, Callable[[Any], str], Callable[[Any, str, str, str], object]]
"""A fit, a function that describes it, and a function that writes the scenario with it."""


def _chosen(args: Namespace) -> tuple[Callable[[Namespace], Fitted], str]:
    """The function that makes the fit of ``--fit``, and a noun for the measurement that it is
    fitted to. Raises InputError.
    """
    if args.fit == HOST:
        return _of_host, "the host's times"
    if args.fit is not None and HOST in str(args.fit).split(","):
        raise InputError("--fit: host stands alone, for it is fitted to other measurements")
    if not args.trace.endswith(STEPS):
        return _of_trace, "the trace"
    if args.fit not in (None, HOST_TIME):
        raise InputError(f"--fit: a table of steps tells {HOST_TIME} alone, got {args.fit}")
    return _of_steps, "the steps"


def _of_host(args: Namespace) -> Fitted:
    from ..execution.scenario import load_scenario
    from ..measure.calibrate import calibrate_host, host_text, read_host_times, write_hosted

    scenario, measured = load_scenario(args.file), read_host_times(args.trace)
    with within(args.file):
        return calibrate_host(scenario, measured), host_text, write_hosted


def _of_steps(args: Namespace) -> Fitted:
    from ..measure.calibrate import calibrate_steps, read_steps, steps_text, write_fitted_steps

    steps = read_steps(args.file, args.trace)
    with within(args.file):
        return calibrate_steps(steps, args.trace), steps_text, write_fitted_steps


def _of_trace(args: Namespace) -> Fitted:
    from ..execution.scenario import load_scenario
    from ..measure.calibrate import calibrate, calibration_text, read_measured, write_fitted

    scenario, measured = load_scenario(args.file), read_measured(args.trace)
    with within(args.file):
        fit = calibrate(scenario, measured, (args.fit or DEFAULT).split(","))
    return fit, calibration_text, write_fitted
