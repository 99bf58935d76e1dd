"""A policy trained on a family of graphs, on the graphs held out: ``python -m benchmarks.families
placeto nmt [--seed 1] [--budgets 1,200,2000] [--quick]``.

It is used as it is, and as a start to learn from, within so many evaluations; beside it, within the
same, random search, annealing, the policy before any training, and learning on the graph itself,
which may also take longer (``--learn``). A table for each budget: milliseconds, and on how many
graphs the trained policy is ahead. With ``--policy`` the file is read, or written where it is not
there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import machine
from simdev import Scenario
from simdev.learn import family, train
from simdev.learn.families import FAMILIES
from simdev.report.table import NUMBER, TEXT, Table, table_markdown
from simdev.search import METHODS, SavedPolicy, load_policy, search

ZERO_SHOT, FINE_TUNED = "zero shot", "fine-tuned"
NEAR = 1.1  # as long as what was learned on the graph itself, at most
Run = Callable[[Scenario, int], float]  # its best step [ms] within so many evaluations


def policy_of(options: argparse.Namespace) -> SavedPolicy:
    """The trained policy."""
    if options.policy is not None and options.policy.exists():
        return load_policy(options.policy)
    graphs = family(options.family, options.family_seed).train
    trained = train(
        options.method, graphs, options.train, options.seed, settings=options.settings or None
    )
    print(f"trained in {trained.provenance['cpu_seconds']:.0f} CPU s", flush=True)
    if options.policy is not None:
        trained.policy.save(options.policy)
    return trained.policy


def runs_of(options: argparse.Namespace, policy: SavedPolicy) -> Mapping[str, Run]:
    """What is compared, by name."""
    method, settings = options.method, options.settings or None
    prepare = METHODS[method].prepare

    def step(question: Scenario, name: str, budget: int, **more: Any) -> float:
        answer = search(question, name, budget, options.seed, prepare=prepare, **more)
        return answer.cost.seconds * 1e3

    def unlearned(question: Scenario, budget: int) -> float:
        # A single evaluation is over before anything is learned.
        first = train(method, [question], 1, options.seed, settings=settings).policy
        return step(question, method, budget, policy=first, train=False, settings=settings)

    used: dict[str, Any] = {"policy": policy, "settings": settings}
    return {
        "one device": lambda question, budget: step(question, "single", 1),
        "random": lambda question, budget: step(question, "random", budget),
        "annealing": lambda question, budget: step(question, "annealing", budget),
        "unlearned": unlearned,
        ZERO_SHOT: lambda question, budget: step(question, method, budget, train=False, **used),
        FINE_TUNED: lambda question, budget: step(question, method, budget, **used),
        "learned there": lambda question, budget: step(question, method, budget, settings=settings),
    }


def table_of(
    options: argparse.Namespace, runs: Mapping[str, Run], budget: int, learned: Sequence[float]
) -> Table:
    """The steps on every graph held out; ``learned`` are those of the longer learning there."""
    graphs = family(options.family, options.family_seed).held_out
    rows = [[run(graph, budget) for run in runs.values()] for graph in graphs]
    rows = [[*row, there] for row, there in zip(rows, learned, strict=True)]
    names = [*runs, f"learned there, {options.learn:,}"]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    cells = [(str(name), *map(_rounded, row)) for name, row in enumerate(rows)]
    cells.append(("median", *(_rounded(median(column)) for column in columns.values())))
    shot, tuned = columns[ZERO_SHOT], columns[FINE_TUNED]
    cells += [
        _ahead(name, columns, steps) for name, steps in ((ZERO_SHOT, shot), (FINE_TUNED, tuned))
    ]
    note = (
        f"{ZERO_SHOT} within {NEAR - 1:.0%} of {names[-1]}: {_near(shot, learned)} of {len(rows)}"
    )
    note += f"; {FINE_TUNED} {_near(tuned, learned)}"
    title = f"{options.method} on {options.family}, seed {options.seed}: {budget:,} evaluations, ms"
    return Table(title, {"graph": TEXT} | dict.fromkeys(names, NUMBER), tuple(cells), note)


def _rounded(step: float) -> float:
    return float(f"{step:.4g}")


def _ahead(
    name: str, columns: Mapping[str, Sequence[float]], steps: Sequence[float]
) -> tuple[Any, ...]:
    """On how many graphs steps are shorter than those of each column."""
    counts = (sum(map(float.__lt__, steps, column)) for column in columns.values())
    return (f"{name} is ahead on", *counts)


def _near(steps: Sequence[float], learned: Sequence[float]) -> int:
    return sum(step <= NEAR * there for step, there in zip(steps, learned, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families", description=(__doc__ or "").partition("\n\n")[0]
    )
    general = [name for name, method in METHODS.items() if method.general]
    parser.add_argument("method", choices=general)
    parser.add_argument("family", choices=list(FAMILIES))
    parser.add_argument("--seed", type=int, default=0, help="of the training and all searches")
    parser.add_argument("--family-seed", type=int, default=0, help="with which graphs are drawn")
    parser.add_argument("--train", type=int, default=24000, help="evaluations of the training")
    parser.add_argument("--budgets", default="200", help="on a graph held out (comma-separated)")
    parser.add_argument("--learn", type=int, default=2000, help="for the longer learning there")
    parser.add_argument("--settings", default="", help="as simdev train has them")
    parser.add_argument("--policy", type=Path, help="where the trained policy is kept")
    parser.add_argument("--quick", action="store_true", help="few evaluations")
    options = parser.parse_args(arguments)
    if options.quick:
        options.train, options.learn, options.budgets = 240, 20, "10"
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    runs = runs_of(options, policy_of(options))
    graphs = family(options.family, options.family_seed).held_out
    learned = [runs["learned there"](graph, options.learn) for graph in graphs]
    for budget in map(int, options.budgets.split(",")):
        table = table_of(options, runs, budget, learned)
        print(f"\n{table_markdown(table)}", flush=True)


if __name__ == "__main__":
    main()
