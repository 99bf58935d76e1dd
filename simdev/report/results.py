"""The results of a sweep as data for a page: a table of all rows, and the axes of a scatter plot.

``simdev report`` shows them as a page, ``simdev sweep`` prints the best. A new column is a row of
MEANINGS (and of ``_TYPES`` where it is no float); ``search/sweep/sweeping.py`` fills it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..files.reading import MAX_TEXT, MAX_VALUES, read_source, text_of
from ..ground.errors import InputError, install_line, reason_of
from ..ground.units import PS_PER_SECOND, format_bytes, format_number, format_ps
from .measures.section import Facts
from .measures.throughput import COSTS
from .table import BYTES, NUMBER, RATE, SHARE, TEXT, TIME, Json, Ranking, ranking

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet")
RATES = ("global_batch", "microbatches", "samples_per_s", "tokens_per_s", *COSTS)
MEANINGS: Mapping[str, str] = {
    "scenario": "The path as given, the ``name`` of an object, or its position, ``[3]``.",
    "status": "``ok``, ``infeasible`` or ``failed``.",
    "reason": "The bytes over each capacity, or the error. A failed row has no figures.",
    "graph_name": "Of the graph.",
    "cluster_name": "Of the cluster.",
    "ops": "Ops of the graph; of a large model those that were simulated.",
    "devices": "Devices that run any op.",
    "step_time_s": "The step time; where steps repeat, their period.",
    "step_time_ps": "The step time exactly.",
    "step_p10_s": "Where errors were drawn: the step time that a tenth of the draws do not exceed.",
    "step_p50_s": "Likewise, half of them.",
    "step_p90_s": "Likewise, nine tenths.",
    "beats_best": "Likewise, the share of draws in which it beats the best (itself: one half).",
    "first_in_draws": "Likewise, the share in which it is the best of all.",
    "first_step_s": "Where steps repeat: the time of the first one.",
    "trace_s": "Where steps repeat: when the last one ends.",
    "steps": "Where steps repeat: how many were simulated. Peaks are of all, the rest is of one.",
    "cycle": "Where steps repeat: after how many the same comes again (0: never).",
    "feasible": "Whether the step fits.",
    "memory_excess_bytes": "The largest excess over a capacity.",
    "peak_bytes": "The largest peak of a device.",
    "utilization": "Computing, as a share of the step: a mean over the devices that run ops.",
    "bubble": "Neither computing nor communicating, likewise.",
    "exposed_communication": "Communicating and not computing; the three shares add up to 1.",
    "transfers": "How many there are.",
    "transfer_bytes": "Bytes of all transfers.",
    "blame_compute_s": "Seconds of the critical path that ops take.",
    "blame_transfer_s": "Those that transfers take.",
    "blame_queueing_s": "Those of waiting behind other transfers.",
    "blame_launch_s": "Those of hosts and gaps.",
    "blame_latency_s": "Those of latency that holds no queue. The five add up to the step time.",
    "cost_estimated": "The share of the op time that is estimated.",
    "cost_rel_err": "The expected relative error of an op's time.",
    "mfu": "Of a large model: the share of the peak, in its precision, that its products need.",
    "global_batch": "Samples of a step, of all replicas and microbatches.",
    "microbatches": "Microbatches of a replica.",
    "samples_per_s": "Samples trained on a second, on all devices.",
    "tokens_per_s": "Tokens of a large model trained on a second.",
    "cost_per_step": "Dollars, where a price is told: of all devices that could compute.",
    "cost_per_million_samples": "Dollars, likewise.",
    "cost_per_million_tokens": "Dollars, likewise.",
    "goodput": "Where failures are told: the share of a long run that counts.",
    "steps_per_day": "Likewise: steps a day that count.",
    "engine": "The engine that ran it.",
    "key": "A hash of the content of the scenario and of all files that it names.",
    "simdev": "The version of simdev and a hash of its sources.",
}
"""The meanings of a sweep's columns; columns of the swept fields stand after the first."""
_TYPES = {
    "status": "str", "reason": "str", "graph_name": "str", "cluster_name": "str", "engine": "str",
    "feasible": "boolean",
    **dict.fromkeys(
        (
            "ops", "devices", "step_time_ps", "steps", "cycle", "memory_excess_bytes",
            "peak_bytes", "transfers", "transfer_bytes", "global_batch", "microbatches",
        ),
        "Int64",
    ),
}  # fmt: skip
COLUMNS: Mapping[str, Any] = {
    name: _TYPES.get(name, "float64")
    for name in MEANINGS
    if name not in ("scenario", "key", "simdev")
}
"""The figures of one row of a sweep with their types in a DataFrame."""
FIRST = (
    "status",
    "reason",
    "step_time_s",
    "step_p10_s",
    "step_p90_s",
    "beats_best",
    "samples_per_s",
    "tokens_per_s",
    "memory_excess_bytes",
    "peak_bytes",
    "utilization",
    "exposed_communication",
)
LAST = ("step_time_ps", "engine", "key", "simdev")
SI_UNITS = ("s", "bytes", "bytes_per_s", "flop_per_s")
"""Suffixes of the second column that a field set with a unit has, in SI units."""
DRAWN = "draws_ps"
"""The key of the step times of draws in a row before rows become a table."""
SHARES = (
    "beats_best", "first_in_draws", "utilization", "bubble", "exposed_communication",
    "cost_estimated", "cost_rel_err", "goodput",
)  # fmt: skip
LARGEST = 1e200  # a float must hold the value in ps, too
# simdev.sweep writes a ' before a text in CSV that begins with one of these
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def results_data(results: pd.DataFrame, source: str) -> Json:
    """The data of the page of a sweep; columns without any value are left out."""
    swept = _Sweep.of(results)
    statuses = results["status"].value_counts(sort=False).items()
    counts = ", ".join(f"{count:,} {status}" for status, count in statuses)
    kinds = {name: (_kind(name, values), values) for name, values in swept.columns.items()}
    return {
        "page": "results",
        "title": swept.title(),
        "source": source,
        "fits": bool(swept.ranks.order) or not len(results),
        "headline": f"{len(results):,} scenarios: {counts}" if len(results) else "No scenarios",
        "facts": list(swept.facts()),
        "notes": [],
        **swept.ranks.page(
            kinds, swept.axes(), "row", "All that fit, the best first", "Do not fit, or failed"
        ),
        "sheets": [],
    }


def results_ranking(results: pd.DataFrame) -> Ranking:
    """The ranking of a sweep's rows."""
    return _Sweep.of(results).ranks


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The results of a sweep: its columns with values, the names of the swept fields, and the
    ranking of its rows.
    """

    columns: Mapping[str, list[Any]]
    was_set: Sequence[str]
    ranks: Ranking

    @classmethod
    def of(cls, results: pd.DataFrame) -> _Sweep:
        """The results of a frame, columns in the order of the page. The frame's columns between
        ``scenario`` and ``status`` are the swept fields.
        """
        every = [str(name) for name in results]
        was_set = every[every.index("scenario") + 1 : every.index("status")]
        names = sorted((name for name in every if results[name].notna().any()), key=_rank)
        columns = {name: _values(results[name], name) for name in names}
        usable = [str(status) == "ok" for status in results["status"]]
        sizes = columns.get("global_batch", [None] * len(results))
        return cls(columns, was_set, ranking(columns, usable, sizes))

    @property
    def varied(self) -> list[str]:
        """The settings that have several values."""
        return [name for name in self.was_set if len(set(map(str, self.columns.get(name, [])))) > 1]

    @property
    def fields(self) -> list[str]:
        """The settings that have several values, without their second columns in SI units."""
        second = {f"{name}_{unit}" for name in self.varied for unit in SI_UNITS}
        return [name for name in self.varied if name not in second]

    def title(self) -> str:
        """The question of the sweep (model, cluster and swept fields) and its answer."""
        columns, ranks = self.columns, self.ranks
        parts = [
            {str(columns[name][row]) for row in ranks.order if name in columns}
            for name in ("graph_name", "cluster_name")
        ]
        subject = " on ".join(next(iter(part)) for part in parts if len(part) == 1)
        over = ", ".join(_short(name) for name in self.fields[:4])
        question = f"{subject or 'A sweep'}{f' over {over}' if over else ''}"
        if not ranks.order or not ranks.goals:
            return f"{question}: nothing fits" if columns else "A sweep without scenarios"
        (_, named), (_, seconds), *_ = self.facts()
        return f"{question}: {ranks.goals[0].words} with {named}, {seconds}"

    def facts(self) -> Facts:
        """The best row, and how many rows are on the front."""
        columns, ranks = self.columns, self.ranks
        if ranks.order and ranks.goals:
            best = {name: values[ranks.order[0]] for name, values in columns.items()}
            values = [f"{_short(name)} {best[name]}" for name in self.fields]
            # Where nothing was swept, the name of its scenario.
            yield "best", ", ".join(values) or PurePath(str(best["scenario"])).name
            yield "its step", format_ps(best["step_time_s"])
            for name in ("samples_per_s", "tokens_per_s"):
                if best.get(name) is not None:
                    yield name.removesuffix("_per_s") + "/s", format_number(best[name])
            if best.get("peak_bytes") is not None:
                yield "its peak", format_bytes(best["peak_bytes"])
            if best.get("first_in_draws") is not None:
                yield "stays first", f"in {best['first_in_draws']:.0%} of draws"
        if ranks.front:
            yield "on the front", f"{len(ranks.front):,} of {len(ranks.order):,}"

    def axes(self) -> dict[str, str]:
        """The first axes of the scatter plot: the goal over the first swept number, coloured by
        another swept field.
        """
        columns, goals = self.columns, self.ranks.goals
        x = next((name for name in self.varied if _kind(name, columns[name]) != TEXT), None)
        # No swept field is a number: size is the next best reason for a longer step.
        if x is None:
            x = "ops" if len(set(map(str, columns.get("ops", [])))) > 1 else "scenario"
        others = [name for name in self.varied if not x.startswith(name)]
        y = goals[0].column if goals else "step_time_s"
        return {"x": x, "y": y, "colour": others[0] if others else "status"}


def _short(name: str) -> str:
    """The last word of a field: "bandwidth" of "cluster.bandwidth"."""
    return name.rpartition(".")[2]


def _rank(name: str) -> int:
    """The place of a column: the scenario and swept fields, the most important, then others."""
    if name in FIRST:
        return 1 + FIRST.index(name)
    return 99 if name in LAST else 50 if name in COLUMNS else 0


def in_seconds(name: str) -> bool:
    """Whether a column of this name has seconds."""
    return name.endswith("_s") and not name.endswith("_per_s")


def kind_of(name: str, shares: Collection[str]) -> str:
    """The kind of cell for a column of numbers, by its name; ``shares`` are the names of shares."""
    if name.endswith("_bytes_per_s"):
        return RATE
    if in_seconds(name):
        return TIME
    return BYTES if name.endswith("_bytes") else SHARE if name in shares else NUMBER


def _values(column: pd.Series[Any], name: str) -> list[Any]:
    """The values of a column for JSON; times in ps, like all times of pages."""
    values = [_plain(value) for value in column.tolist()]
    if not (in_seconds(name) and _numeric(values)):
        return values
    return [None if value is None else value * float(PS_PER_SECOND) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value[1:] if value.startswith("'") and value[1:].startswith(FORMULA) else value
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None if value is None or type(value).__name__ in ("NAType", "NaTType") else str(value)


def _numeric(values: list[Any]) -> bool:
    return all(
        isinstance(value, (int, float)) and not isinstance(value, bool)
        for value in values
        if value is not None
    )


def _kind(name: str, values: list[Any]) -> str:
    return kind_of(name, SHARES) if _numeric(values) else TEXT


def is_results(path: str) -> bool:
    """Whether a file is a table of sweep results by its name."""
    return path.lower().endswith(TABLES)


def _read_parquet(file: BytesIO) -> pd.DataFrame:
    """A table from Parquet. Raises InputError where it has more values than a text may hold: a
    column of equal values takes almost no bytes in the file.
    """
    import pandas as pd
    from pyarrow.parquet import read_metadata, read_table

    metadata = read_metadata(file)
    # No column chunk of a group is looked at: pyarrow ends the process where one is broken.
    columns = range(metadata.num_columns)
    if any(metadata.schema.column(i).max_repetition_level for i in columns):
        raise InputError("holds lists, which results of a sweep do not")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows * len(columns) > MAX_VALUES:
        raise InputError(f"holds more than {MAX_VALUES} values")
    if sum(group.total_byte_size for group in groups) > MAX_TEXT:
        raise InputError(f"unpacks to more than {MAX_TEXT >> 20} MiB")
    # pandas accepts texts that are no UTF-8, and fails later where one is read.
    read_table(file).validate(full=True)
    file.seek(0)
    return pd.read_parquet(file)


def read_results(path: str) -> pd.DataFrame:
    """The results of a sweep, as ``simdev sweep --output`` writes them. Raises InputError."""
    is_parquet = path.lower().endswith(".parquet")
    _, data = read_source(path)
    try:
        table = _read_parquet(BytesIO(data)) if is_parquet else _read_csv(text_of(data, path))
    except InputError as error:
        raise error.within(path) from None
    except ImportError:
        raise InputError(f"Parquet needs pyarrow: {install_line('parquet')}", path) from None
    except (UnicodeError, TypeError, LookupError):
        raise InputError(
            "cannot be read as Parquet: a name or a type in it is none", path
        ) from None
    # the errors that pandas and pyarrow raise for broken files
    except (ValueError, OSError, NotImplementedError) as error:
        kind = "Parquet" if is_parquet else "CSV"
        reason = reason_of(error).partition("\n")[0] or "broken"
        raise InputError(f"cannot be read as {kind}: {reason}", path) from None
    missing = [name for name in ("scenario", "status", "step_time_s") if name not in table.columns]
    if missing:
        raise InputError(
            (f"is no table of simdev sweep: it has no column {' and no column '.join(missing)}"),
            path,
        )
    problems = [
        f"{name}: must hold numbers, none below 0" for name in COLUMNS if _is_no_figure(table, name)
    ]
    if problems:
        raise InputError(problems).within(path)
    return table


def _is_no_figure(table: pd.DataFrame, name: str) -> bool:
    """Whether a column of figures holds other values, or numbers that no page could show."""
    from pandas.api.types import is_numeric_dtype

    if name not in table.columns or COLUMNS[name] in ("str", "boolean"):
        return False
    column = table[name]
    if not is_numeric_dtype(column):
        return bool(column.notna().any())
    return bool(((column > LARGEST) & (column != math.inf) | (column < 0)).any())


def _read_csv(text: str) -> pd.DataFrame:
    """A table from CSV. Only an empty cell is a missing value, and names stay texts: a scenario may
    be called NA, or 007.
    """
    import pandas as pd

    texts = {"scenario": "str"} | {name: "str" for name, kind in COLUMNS.items() if kind == "str"}
    return pd.read_csv(
        StringIO(text), low_memory=False, dtype=texts, keep_default_na=False, na_values=[""]
    )
