"""Memory of the steps that were measured on an H100, simulated against PyTorch's own counters:
``python -m benchmarks.h100_memory``.

Of each step what stays allocated between steps, the peak that is allocated and the bytes reserved
(the replay of the allocator), and the peak that is judged against the capacity (execution contract,
rule 7). Errors are signed: simulated / measured - 1. Steps of which no graph is shipped are
captured from PyTorch (``--captured``), and their operators have no rows: scratch memory is not
known, so they stand apart. ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import print_table
from benchmarks.measured import (
    MeasuredStep,
    captured_graph,
    graph_of,
    is_measured,
    measured_steps,
    scenario_of,
)
from simdev.execution.scenario import execute
from simdev.nouns.graph import Graph
from simdev.report import analyze

MEDIAN, WORST, RESERVED = 0.005, 0.03, 0.10
"""The errors to stay under: of the peak allocated, median and worst, and of the bytes reserved."""


@dataclass(frozen=True)
class Peaks:
    """One step: bytes simulated and measured, by name; ``has_rows``: its operators have rows."""

    step: str
    has_rows: bool
    simulated: dict[str, int]
    measured: dict[str, int]

    def error(self, name: str) -> float:
        """Signed and relative."""
        of = "peak_allocated" if name == "peak" else name
        return self.simulated[name] / self.measured[of] - 1


NAMES = ("allocated_before", "peak_allocated", "peak_reserved", "peak")


def peaks_of(step: MeasuredStep, graph: Graph) -> Peaks:
    """What the counters told, and what is simulated of a step."""
    report = analyze(execute(scenario_of(step, graph)))
    assert report.footprint is not None
    (use,) = report.footprint.allocators
    sizes = use.between or 0, use.allocated, use.reserved, report.devices[0].memory.peak
    name = step.name + (f"-l{step.sizes['length']}" if "length" in step.sizes else "")
    simulated = dict(zip(NAMES, sizes, strict=True))
    return Peaks(name, is_measured(step, graph), simulated, step.figures["memory"])


def all_peaks(steps: Sequence[MeasuredStep], captured: bool) -> Iterator[Peaks]:
    """Of every step with a graph, and ``captured`` those that PyTorch has to be asked for."""
    for step in steps:
        graph = graph_of(step) or (captured_graph(step) if captured else None)
        if graph is not None:
            yield peaks_of(step, graph)


def summary(peaks: Sequence[Peaks]) -> dict[str, Any]:
    """Median and worst of the unsigned errors of the steps whose operators were measured."""
    known = [each for each in peaks if each.has_rows]
    errors = {name: [abs(each.error(name)) for each in known] for name in NAMES}
    return {
        name: {"median": median(values), "worst": max(values), "steps": len(values)}
        for name, values in errors.items()
        if values
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, or with ``--json`` one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="?", type=Path, help="another steps.jsonl than the shipped")
    parser.add_argument("--captured", action="store_true", help="steps without a shipped graph too")
    parser.add_argument("--json", action="store_true", help="print one object")
    given = parser.parse_args(argv)
    steps = list(measured_steps(given.steps) if given.steps else measured_steps())
    peaks = list(all_peaks(steps, given.captured))
    if given.json:
        rows = [
            {"step": p.step, "has_rows": p.has_rows, "error": {n: p.error(n) for n in NAMES}}
            for p in peaks
        ]
        print(json.dumps({"steps": rows, "errors": summary(peaks)}, indent=1))
        return
    head = ("step", "measured GB", "between steps", "allocated", "reserved", "judged", "rows")
    print_table(
        head,
        [
            (
                p.step,
                f"{p.measured['peak_allocated'] / 1e9:.3f}",
                *(f"{p.error(name):+.2%}" for name in NAMES),
                "yes" if p.has_rows else "no",
            )
            for p in sorted(peaks, key=lambda p: not p.has_rows)
        ],
    )
    for name, errors in summary(peaks).items():
        print(f"{name}: median {errors['median']:.2%}, worst {errors['worst']:.2%}")
    print(f"targets: peak_allocated {MEDIAN:.1%}, {WORST:.0%}; peak_reserved {RESERVED:.0%}")


if __name__ == "__main__":
    main()
