"""How often measured steps fall into the interval that draws give: ``python -m benchmarks.coverage
[--draws 200]``.

Every measured step of ``profiles/h100/measured`` and every published run that can be asked
(``benchmarks.runs``) is simulated with draws from the expected errors of its costs. Counted are
those measured between the 10th and the 90th percentile, which 80 % would be if errors of costs were
all there is, and how much wider intervals would have to be to hold 80 %: the factor by which their
logarithms reach. Nothing is fitted to a step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from statistics import median

from benchmarks import h100, runs
from benchmarks.common import print_table
from simdev import load_scenario, run
from simdev.execution.scenario import Scenario
from simdev.ground.units import PS_PER_SECOND
from simdev.nouns.cluster import Host
from simdev.nouns.draws import percentiles

WANTED = 0.8
"""The share of measured steps that the interval from p10 to p90 is to hold."""
HEAD = ("measured steps", "steps", "within", "below p10", "above p90", "half width", "80% needs")


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured step beside the percentiles of its draws, in seconds."""

    group: str
    name: str
    seconds: float
    low: float
    middle: float
    high: float

    @property
    def is_within(self) -> bool:
        """Whether it was measured between the 10th and the 90th percentile."""
        return self.low <= self.seconds <= self.high

    @property
    def reach(self) -> float:
        """The factor by which its side of the interval would have to be wider (in logarithms)."""
        far = log(self.seconds / self.middle)
        side = log((self.high if far > 0 else self.low) / self.middle)
        return far / side if side else (inf if far else 0.0)


def measured_here(draws: int) -> Iterator[Measured]:
    """The steps that were measured on an H100: as they ran, and replayed as CUDA graphs."""
    for step in h100.measured_steps():
        group = "H100, its own profile" if step.profiled else "H100, no profile of this size"
        scenario = h100.scenario_of(step.graph, step.costs)
        yield _drawn(group, step.model, step.line["wall_s"], scenario, draws)
    for step in h100.replayed_steps():
        scenario = h100.scenario_of(step.graph, step.costs, Host("graph"))
        group = "H100, replayed graphs"
        yield _drawn(group, step.model, step.line["graph_ms"] / 1e3, scenario, draws)


def published(parts: Sequence[str], draws: int) -> Iterator[Measured]:
    """The published runs that simdev can be asked, by their groups of cells."""
    for each in runs.chosen(parts):
        answer = runs.answer(each)
        if answer.scenario is not None:
            scenario = load_scenario(json.loads(json.dumps(answer.scenario)))
            yield _drawn(f"published, {each.group}", each.layout, each.seconds, scenario, draws)


def _drawn(group: str, name: str, seconds: float, scenario: Scenario, draws: int) -> Measured:
    answer = run(scenario, draws=draws).draws
    assert answer is not None
    bounds = (ps / PS_PER_SECOND for ps in percentiles(answer.step_ps))
    return Measured(group, name, float(seconds), *bounds)


def lines(steps: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    """A line of HEAD for each group of steps."""
    for group in dict.fromkeys(step.group for step in steps):
        yield line(group, [step for step in steps if step.group == group])


def line(name: str, steps: Sequence[Measured]) -> tuple[str, ...]:
    """The counts of some steps; ``half width`` is the median of half an interval over its p50."""
    number = len(steps)
    widths = median((step.high - step.low) / 2 / step.middle for step in steps)
    reach = sorted(step.reach for step in steps)[ceil(WANTED * number) - 1]
    sides = (
        sum(step.is_within for step in steps),
        sum(step.seconds < step.low for step in steps),
        sum(step.seconds > step.high for step in steps),
    )
    shares = (f"{count / number:.0%}" for count in sides)
    return name, str(number), *shares, f"{widths:.1%}", f"x {reach:.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table, and with ``--steps`` every step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="draws of each step (default 200)")
    parser.add_argument("--part", action="append", help='runs by names of cells, like "on H100"')
    parser.add_argument("--steps", action="store_true", help="list every step, too")
    arguments = parser.parse_args(argv)
    steps = [*measured_here(arguments.draws), *published(arguments.part or (), arguments.draws)]
    if arguments.steps:
        print_table(("group", "step", "measured s", "p10", "p50", "p90"), _each(steps))
        print()
    print_table(HEAD, list(lines(steps)))


def _each(steps: Iterable[Measured]) -> list[tuple[str, ...]]:
    seconds = ("seconds", "low", "middle", "high")
    return [
        (step.group, step.name, *(f"{getattr(step, name):.4g}" for name in seconds))
        for step in steps
    ]


if __name__ == "__main__":
    main()
