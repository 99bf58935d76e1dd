"""How far local search comes within seconds, on one core and on several: ``python -m
benchmarks.chains [--quick] [--json] [--questions LIST] [--seeds N]``.

Baechi's measured GNMT in its 569 co-placement groups on four devices, for which hand-written C++
annealing is the mark (benchmarks/anneal.py), and two questions of other shapes. Seconds are wall
time from the first evaluation on, workers' start included; what is compiled is loaded before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.anneal import grouped_gnmt
from benchmarks.common import machine, print_table
from simdev.execution.scenario import Scenario, load_scenario
from simdev.oracle import Oracle
from simdev.search import confirm, search

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
GNMT = ("parallel", "half-duplex")
OTHERS = ("nmt-4x-k80-placeto", "inception-v3-4x-cpu")
PREPARED = ("pair",)  # of the others


class Setup(NamedTuple):
    """How a method is run."""

    method: str
    chains: int
    jobs: int
    seconds: float


SETUPS = (
    Setup("annealing", 1, 1, 10),
    Setup("adaptive", 1, 1, 10),
    Setup("annealing", 4, 2, 60),
    Setup("adaptive", 4, 2, 60),
)
TARGETS = {  # ms, by queues and seconds
    ("parallel", 10): 80.9,
    ("parallel", 60): 79.5,
    ("half-duplex", 10): 100.0,
    ("half-duplex", 60): 99.0,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One setup on one question: the steps in ms that its seeds end with."""

    question: str
    setup: Setup
    steps_ms: tuple[float, ...]
    evaluations: float
    cpu_seconds: float


def question_of(name: str) -> Oracle | Scenario:
    """GNMT by its queues, or a shipped scenario."""
    return grouped_gnmt(name) if name in GNMT else load_scenario(SCENARIOS / f"{name}.json")


def measured(name: str, setup: Setup, seeds: Sequence[int]) -> Row:
    """Every seed; GNMT's answers are confirmed. Raises AssertionError where one is not."""
    question, prepare = question_of(name), () if name in GNMT else PREPARED
    search(question, setup.method, 200, prepare=prepare)  # loads what is compiled
    runs = []
    for seed in seeds:
        result = search(
            question,
            setup.method,
            seed=seed,
            seconds=setup.seconds,
            prepare=prepare,
            chains=setup.chains,
            n_jobs=setup.jobs,
        )
        if isinstance(question, Oracle):
            assert not confirm(question, result), "the reference engine sees it otherwise"
        runs.append(result)
    return Row(
        name,
        setup,
        tuple(run.cost.seconds * 1e3 for run in runs),
        median(run.provenance["evaluations"] for run in runs),
        median(run.provenance["cpu_seconds"] for run in runs),
    )


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, one seed")
    parser.add_argument("--questions", default=",".join((*GNMT, *OTHERS)), help="some of them")
    parser.add_argument("--methods", default="annealing,adaptive", help="some of them")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    share = 0.1 if options.quick else 1.0
    rows = [
        measured(name, setup._replace(seconds=setup.seconds * share), seeds)
        for name in options.questions.split(",")
        for setup in SETUPS
        if setup.method in options.methods.split(",")
    ]
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "; wall seconds\n")
    print_table(HEAD, [_cells(row) for row in rows])


HEAD = (
    *("question", "method", "chains", "cores", "seconds", "median ms", "least", "most"),
    *("evaluations", "CPU s", "at most"),
)


def _cells(row: Row) -> list[str]:
    setup, steps = row.setup, row.steps_ms
    target = TARGETS.get((row.question, int(setup.seconds)))
    return [
        row.question,
        setup.method,
        *(str(number) for number in (setup.chains, setup.jobs)),
        f"{setup.seconds:g}",
        *(f"{step:.2f}" for step in (median(steps), min(steps), max(steps))),
        f"{row.evaluations:,.0f}",
        f"{row.cpu_seconds:.1f}",
        "" if target is None else f"{target:g}",
    ]


if __name__ == "__main__":
    main()
