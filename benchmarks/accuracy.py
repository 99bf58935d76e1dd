"""How far the simulated step of every shipped profile is from its measured one: ``python -m
benchmarks.accuracy``.

Each profile's header holds the whole training step, measured in the same run as its operators. The
step is simulated from the operators on one device of the measured kind. Errors are signed:
simulated / measured - 1. ``--json`` prints one object; other profiles than the shipped ones may be
named.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import print_table
from simdev.files.profile import read_profile
from simdev.measure.compare import Comparison, compare, has_step

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
TARGETS = {"cpu": 0.15, "cuda": 0.05}
"""The median unsigned error to stay under."""


def shipped() -> list[Path]:
    """The profiles of this repository that tell a measured step."""
    paths = sorted(PROFILES.glob("*.jsonl*"))
    return [path for path in paths if has_step(read_profile(path).header.get("header", {}))]


def median_error(comparisons: Sequence[Comparison]) -> float:
    """The median of the unsigned errors."""
    return median(abs(comparison.error) for comparison in comparisons)


def figures(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All comparisons, and per kind of measurement the median error beside its target."""
    medians = {
        clock: {"median_error": median_error(group), "target": TARGETS[clock], "models": len(group)}
        for clock in TARGETS
        if (group := [comparison for comparison in comparisons if comparison.clock == clock])
    }
    return {
        "models": [asdict(found) | {"error": found.error} for found in comparisons],
        "medians": medians,
    }


def print_figures(found: dict[str, Any]) -> None:
    """The table, then a line a kind of measurement."""
    head = ("model", "batch", "device", "simulated", "measured", "error", "measured ops", "noise")
    print_table(head, [_cells(model) for model in found["models"]])
    for clock, group in found["medians"].items():
        reached = "reached" if group["median_error"] <= group["target"] else "missed"
        print(
            f"{clock}: median |error| {group['median_error']:.1%} over {group['models']} models "
            f"(target at most {group['target']:.0%}: {reached})"
        )


def _cells(model: dict[str, Any]) -> list[str]:
    return [
        model["model"],
        str(model["batch"]),
        model["device"],
        f"{model['simulated_s']:.4g} s",
        f"{model['measured_s']:.4g} s",
        f"{model['error']:+.1%}",
        f"{model['known']:.0%}",
        "too noisy" if model["too_noisy"] else "",
    ]


def main(arguments: Iterable[str] | None = None) -> None:
    """Compare all, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "profiles",
        nargs="*",
        type=Path,
        help="profiles with a measured step (default: the shipped)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(None if arguments is None else list(arguments))
    found = figures([compare(path) for path in options.profiles or shipped()])
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print_figures(found)


if __name__ == "__main__":
    main()
