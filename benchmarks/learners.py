"""Learners beside the searches and planners that learn nothing, on the same questions: ``python -m
benchmarks.learners [--quick] [--journal learners.journal]``.

- Baechi's measured GNMT in its 569 co-placement groups on four devices, in both kinds of queues.
- Training steps of Inception-V3 on four CPUs and of NMT under the rules of Placeto's simulator;
  backward ops and updates are with their forward op.

Every method has the same number of evaluations on a question; medians and quartiles of five seeds.
Finished runs are kept in the journal, so that a run that was killed goes on where it was. Prints
tables in Markdown and writes a picture of each question's curves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.anneal import grouped_gnmt
from benchmarks.common import machine
from simdev import Oracle, Scenario, load_scenario
from simdev.report.table import table_markdown
from simdev.search import METHODS, Comparison, run_comparison
from simdev.search.comparison.comparison import unanswered, whole_table

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
BASE = (
    *("single", "expert", "m-sct", "random"),
    *("greedy", "annealing", "adaptive", "cross-entropy"),
)
STARTS = ("m-sct", "annealing")  # that learners imitate


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched, and how its graph is prepared (None: by each method's own rule)."""

    make: Callable[[], Scenario | Oracle]
    prepare: tuple[str, ...] | None = None
    budget: int = 5000


QUESTIONS: Mapping[str, Question] = {
    "gnmt-parallel": Question(lambda: grouped_gnmt("parallel")),
    "gnmt-half-duplex": Question(lambda: grouped_gnmt("half-duplex")),
    "inception-v3-4x-cpu": Question(
        lambda: load_scenario(SCENARIOS / "inception-v3-4x-cpu.json"), ("pair",)
    ),
    "nmt-4x-k80-placeto": Question(
        lambda: load_scenario(SCENARIOS / "nmt-4x-k80-placeto.json"), ("pair",)
    ),
}
QUICK_SEEDS, QUICK_BUDGET = 2, 300


def methods() -> list[str]:
    """Those of BASE and the learners that this version has, and every learner from each of STARTS
    too.
    """
    learners = [name for name, method in METHODS.items() if method.learner is not None]
    listed = [name for name in BASE if name in METHODS] + learners
    return listed + [f"{learner}+{start}" for learner in learners for start in STARTS]


def compared(name: str, options: argparse.Namespace) -> Comparison:
    """All methods on one question."""
    question = QUESTIONS[name]
    quick = options.quick
    return run_comparison(
        options.methods.split(",") if options.methods else methods(),
        {name: question.make()},
        options.budget or (QUICK_BUDGET if quick else question.budget),
        prepare=question.prepare,
        seeds=options.seeds or (QUICK_SEEDS if quick else 5),
        n_jobs=options.jobs,
        journal=options.journal,
    )


def show(name: str, comparison: Comparison, folder: Path) -> None:
    """Print a question's tables and write its picture."""
    print("\n".join(f"\n{table_markdown(table)}" for table in whole_table(comparison, name)))
    for line in unanswered(comparison, name):
        print(f"\n{line}")
    if comparison.best(name) is not None:
        place = folder / f"learners-{name}.png"
        comparison.plot(name).savefig(place, dpi=110)
        print(f"\n{place}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learners", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="few evaluations, two seeds")
    parser.add_argument("--questions", help=f"of {', '.join(QUESTIONS)} (comma-separated)")
    parser.add_argument("--methods", help="as simdev search --compare has them")
    parser.add_argument("--seeds", type=int, help="so many (default 5)")
    parser.add_argument("--budget", type=int, help="evaluations of each method (default 5,000)")
    parser.add_argument("--journal", help="where finished runs are kept, to go on from")
    parser.add_argument("--pictures", type=Path, default=Path(), help="the folder of pictures")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="runs at once")
    options = parser.parse_args(arguments)
    names = options.questions.split(",") if options.questions else list(QUESTIONS)
    if unknown := [name for name in names if name not in QUESTIONS]:
        parser.error(f"--questions: no {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for name in names:
        comparison = compared(name, options)
        show(name, comparison, options.pictures)
        if comparison.interrupted:
            sys.exit(130)


if __name__ == "__main__":
    main()
