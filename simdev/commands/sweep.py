"""``simdev sweep SCENARIO ...``: many scenarios, one table.

``search/sweep`` runs them and keeps the journal; ``report/results.py`` names the columns, RATES
chooses the rates that a terminal shows.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, prefixed, printable, within
from .options import BAD_INPUT, DONE, DRAW_OPTIONS, PRICE_OPTION, require_drawn, with_flags
from .outputs import printed_first, real_path, tell

if TYPE_CHECKING:
    import pandas as pd

    from ..report.table import Ranking

HELP = "simulate many scenarios, or one with many settings, into one table"
DESCRIPTION = (
    "Simulates every scenario at every combination of settings: a row each. What does not fit is a "
    "row too; exits 2 where a scenario failed. A value with which none can be is refused before "
    "anything runs. Prints the table and the best row. Killed and started again, it goes on where "
    "it was."
)
OPTIONS = (
    (
        "files",
        "SCENARIO",
        "scenarios (JSON, may be gzipped; - is stdin), or examples' names",
        {"nargs": "+"},
    ),
    (
        "--set",
        "PATH=V,V",
        "values of a field, like cluster.bandwidth=1,2,4,8Gbit/s or graph.batch=16,32; every "
        "combination is run",
        {"action": "append", "default": []},
    ),
    ("--grid", "GRID", "more fields and values, from a file (JSON)"),
    PRICE_OPTION,
    ("-j --jobs", "N", "so many at once, -1 on all cores (default 1)", {"default": 1}),
    ("-o --output", "OUT", "write the table (.csv or .parquet; - is CSV on stdout)"),
    *DRAW_OPTIONS,
    ("--journal", "FILE", "where finished rows are kept for the next run (default: OUT.journal)"),
)

RATES = {
    "microbatches": "microbatches",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "cost_per_million_tokens": "$ a million tokens",
    "goodput": "goodput",
    "steps_per_day": "steps a day that count",
}
"""Figures with a column in a terminal's table if any row has them, and the titles."""
DRAWN = ("p10", "p90", "beats best")
FIRST = "first_in_draws"
DRAWN_FROM = ("step_p10_s", "step_p90_s", "beats_best")
SHOWN = 40  # rows of a table on a terminal


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..report.results import results_ranking
    from ..search.sweep import sweep
    from ..search.sweep.frame import check_output, counts, csv_text

    file = None if args.output == "-" else args.output
    journal = args.journal
    if file is not None:
        check_output(file)
        journal = f"{file}.journal" if journal is None else journal
        if real_path(journal) == real_path(file):
            raise InputError(f"--journal: {journal} is the output of --output too")
    require_drawn(args)
    grid = _grid(args)
    before = _version(file)
    with with_flags({"n_jobs": "--jobs"}):
        results = sweep(args.files, grid, args.jobs, journal, None, args.draws, args.seed)
    fields = {field for point in grid for field in point}
    ranks = results_ranking(results)
    best = "\n".join([_best(results, fields, ranks), *_how_sure(results, ranks)])
    if args.output == "-":
        print(csv_text(results), end="")
        tell(best)
    else:
        with printed_first(f"{_table(results, fields, ranks)}\n{best}"):
            if file is not None:
                _write(results, file, before, journal)
    by_status = counts(results)
    parts = ", ".join(f"{count:,} {status}" for status, count in by_status.items())
    rows = f"{len(results):,} scenario{'s' * (len(results) > 1)}: {parts}"
    tell(rows + (f"; {file}" if file else ""))
    if not by_status.get("failed"):
        return DONE
    # A table on stdout that shows all rows has the reasons itself.
    if file is not None:
        tell(f"the first that failed: {_first_reason(results)}")
    return BAD_INPUT


def _write(
    results: pd.DataFrame, path: str, before: tuple[int, int] | None, journal: str | None
) -> None:
    from ..search.sweep.frame import write_results

    # Two sweeps with different journals may write the same output without noticing each other.
    if _version(path) != before:
        raise InputError(
            f"--output: another has written {path} meanwhile; the rows are kept in {journal}: "
            "start again with another --output, or to replace it"
        )
    write_results(results, path)


def _version(path: str | None) -> tuple[int, int] | None:
    """The inode and time of a file, which differ between its versions; None without a file."""
    if path is None or not os.path.exists(path):
        return None
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns


def _first_reason(results: pd.DataFrame) -> str:
    failed = results[results["status"] == "failed"].iloc[0]
    return printable(f"{failed['scenario']}: {failed['reason']}".replace("\n", "; "))


def _grid(args: Namespace) -> Sequence[Mapping[str, Sequence[Any]]]:
    from ..files import read_grid
    from ..search.sweep.fields import crossed, parse_settings, points, slow_bandwidths

    with prefixed("--set "):
        price = [] if args.price is None else [f"options.price={args.price}"]
        settings = parse_settings([*args.set, *price])
        points(settings)
    for note in slow_bandwidths(settings):
        tell(f"--set {note}")
    if args.grid is None:
        return [settings]
    with within(args.grid):
        grid = crossed(read_grid(args.grid), settings)
        points(grid)
    return grid


def _best(results: pd.DataFrame, fields: Iterable[str], ranks: Ranking) -> str:
    """A line on the best row and the settings in it."""
    from ..ground.units import format_seconds

    if not ranks.order or not ranks.goals:
        return "no scenario fits" if len(results) else "no scenario"
    row, goal = results.iloc[ranks.order[0]], ranks.goals[0]
    names = [name for name in map(str, results) if name in fields and _cell(row[name])]
    parts = [f"{name} {row[name]}" for name in names]
    figures = [format_seconds(row["step_time_s"])]
    figures += [f"{_rate(name, row[name])} {RATES[name]}" for name in RATES if _cell(row[name])]
    what = ", ".join([str(row["scenario"]), *parts])
    return printable(f"best ({goal.words}): {what}: {', '.join(figures)}")


def _how_sure(results: pd.DataFrame, ranks: Ranking) -> Iterator[str]:
    """A line on the certainty of the order, where errors were drawn."""
    from ..report.measures.uncertainty import how_sure

    if "kendall_tau" not in results.attrs:
        return
    beats, first = (results[name].iloc[list(ranks.order)] for name in ("beats_best", FIRST))
    yield how_sure(beats.tolist(), first.iloc[0], results.attrs["kendall_tau"])


def _table(results: pd.DataFrame, fields: Iterable[str], ranks: Ranking) -> str:
    """The table of the results for a terminal, with the swept ``fields``; of many rows only the
    best.
    """
    from ..ground.units import format_seconds
    from ..report.table import NUMBER, TEXT, Table, shorten, table_text

    names = [str(name) for name in results]
    settings = [name for name in names[1 : names.index("status")] if name in fields]
    rates = [name for name in RATES if results[name].notna().any()]
    drawn = DRAWN if results["step_p10_s"].notna().any() else ()
    head = (
        "scenario",
        *settings,
        "step time",
        *drawn,
        *(RATES[name] for name in rates),
        "fits",
        "reason",
    )
    is_long = len(results) > SHOWN
    rows = results.iloc[[*ranks.order, *ranks.apart][:SHOWN]] if is_long else results
    body = []
    for row in rows.to_dict("records"):
        seconds = row["step_time_s"]
        cells = (
            shorten(row["scenario"], 48),
            *(_cell(row[name]) for name in settings),
            # A failed row has no step time: NaN, which alone is unequal to itself.
            "-" if seconds != seconds else format_seconds(seconds),
            *(_drawn(name, row[name]) for name in DRAWN_FROM[: len(drawn)]),
            *(_rate(name, row[name]) for name in rates),
            {"ok": "yes", "infeasible": "NO"}.get(row["status"], "-"),
            _cell(row["reason"]).replace("\n", "; "),
        )
        body.append(cells)
    numbers = "step time", *DRAWN, *RATES.values()
    columns = {printable(name): NUMBER if name in numbers else TEXT for name in head}
    more = f"... and {len(results) - SHOWN:,} more; -o writes all" if is_long else ""
    title = f"the best {SHOWN} of {len(results):,}" if is_long else "sweep"
    return table_text(Table(title, columns, tuple(body), more, len(body)), width=None)


def _drawn(name: str, value: float) -> str:
    from ..ground.units import format_seconds

    if value != value:
        return "-"
    return format_seconds(value) if name.endswith("_s") else f"{value:.0%}"


def _rate(name: str, value: Any) -> str:
    import pandas as pd

    if name == "goodput" and not pd.isna(value):
        return f"{value:.1%}"
    return "-" if pd.isna(value) else f"{value:,.4g}" if value < 100 else f"{value:,.0f}"


def _cell(value: Any) -> str:
    import pandas as pd

    return "" if pd.isna(value) else str(value)
