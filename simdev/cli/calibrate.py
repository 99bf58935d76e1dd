"""``simdev calibrate SCENARIO TRACE``: fit a scenario's numbers to a measured trace."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .codes import DONE
from .outputs import check_names, place_of, places_for

ENDINGS = (".json", ".json.gz")


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "calibrate",
        help="fit gaps, latencies and bandwidths to a measured trace",
        description=(
            "Fit a scenario's numbers to a measured trace by robust least squares, and "
            "tell the residuals."
        ),
        allow_abbrev=False,
    )
    found.add_argument("file", metavar="SCENARIO", help="the scenario (JSON, may be gzipped)")
    found.add_argument(
        "trace",
        metavar="TRACE",
        help="a saved run, or Chrome trace events; spans are matched by name",
    )
    found.add_argument(
        "--fit",
        metavar="WHAT",
        default="gap,latency,bandwidth",
        help=(
            "of gap, latency, bandwidth, efficiency, efficiency:KIND/OP (patterns); "
            "default: %(default)s"
        ),
    )
    found.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write the scenario with what was fitted (.json, .json.gz)",
    )
    found.add_argument(
        "--cluster", metavar="OUT", help="write the cluster with what was fitted (.json, .json.gz)"
    )
    found.add_argument("--json", action="store_true", help="print parameters and residuals as JSON")
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    with _outputs(args) as places:
        from ..calibrate import (
            calibrate,
            calibration_text,
            read_measured,
            write_fitted,
            write_fitted_cluster,
        )
        from ..scenario import load_scenario

        scenario, measured = load_scenario(args.file), read_measured(args.trace)
        try:
            calibration = calibrate(scenario, measured, args.fit.split(","))
        except InputError as error:
            raise error.within(args.file) from None
        if "output" in places:
            write_fitted(calibration, args.file, places["output"], args.output)
        if "cluster" in places:
            write_fitted_cluster(calibration, places["cluster"])
    print(
        json.dumps(calibration.to_json(), indent=1, allow_nan=False)
        if args.json
        else calibration_text(calibration)
    )
    return DONE


@contextmanager
def _outputs(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Option -> the temporary file to fill, which takes its place at the end.

    Raises InputError before any work.
    """
    wanted = {
        name: getattr(args, name)
        for name in ("output", "cluster")
        if getattr(args, name) is not None
    }
    if args.file == "-":
        raise InputError("calibrate reads the scenario twice: it must be a file, not stdin")
    check_names(wanted, dict.fromkeys(wanted, ENDINGS), {place_of(args.trace): "the trace"})
    with places_for(wanted) as places:
        yield places
