"""What a report is about, from the file that tells it: a scenario, a saved run, or the results of a
sweep.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from ..analysis import Outcome, Report, analyze
from ..check import check
from ..errors import InputError
from ..files import read_run
from ..files.paths import shown
from ..files.reading import label, read_json
from ..graph import Graph
from ..lowering import split
from ..scenario import Scenario, execute, load_scenario, prepare
from ..sweep.answer import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class Subject:
    """One step to report on: its name, what its trace means, and where it comes from.

    ``scenario`` is None for a saved run and for a large model, and ``kinds``, the kinds of the ops
    by name, are None then. ``violations`` counts what the checker finds wrong with a saved run.
    """

    name: str
    report: Report
    scenario: Scenario | None = None
    kinds: Mapping[str, str] | None = None
    violations: int = 0


def is_results(path: str) -> bool:
    """Whether a file is a table of sweep results by its name."""
    return path.lower().endswith(TABLES)


def read_subject(path: str) -> Subject:
    """The step of a file: a saved run as it is, a scenario simulated now. Raises SimdevError."""
    value = read_json(path)
    if isinstance(value, Mapping) and "spans" in value and "tasks" in value:
        return _of_run(path, value)
    if path != "-":
        return _simulated(path, load_scenario(path))
    if not isinstance(value, Mapping):
        raise InputError(f"must be an object (a scenario), got {shown(value)}", label(path))
    try:
        return _simulated(path, load_scenario(value))
    except InputError as error:
        raise error.within(label(path)) from None


def _simulated(path: str, scenario: Scenario) -> Subject:
    try:
        prepared = prepare(scenario) if isinstance(scenario.graph, Graph) else None
        report = analyze(execute(scenario, prepared))
    except InputError as error:
        raise error.within(label(path)) from None
    if prepared is None:  # the links of a large model are not tried one by one
        return Subject(_name(path), report)
    ops = split(prepared, scenario.strategy).prepared.graph.ops
    return Subject(_name(path), report, scenario, {op.name: op.kind for op in ops})


def _of_run(path: str, value: Mapping[str, Any]) -> Subject:
    try:
        saved = read_run(value)
    except InputError as error:
        raise error.within(label(path)) from None
    violations = len(check(saved.task_graph, saved.trace))
    return Subject(_name(path), analyze(Outcome(saved.trace)), violations=violations)


def _name(path: str) -> str:
    return label(path) if path == "-" else os.path.basename(path)


def read_results(path: str) -> pd.DataFrame:
    """The results of a sweep, as ``simdev sweep --out`` writes them. Raises InputError."""
    import pandas as pd

    is_parquet = path.lower().endswith(".parquet")
    try:
        with open(path, "rb") as file:
            found = pd.read_parquet(file) if is_parquet else _read_csv(file)
    except ImportError:
        raise InputError("Parquet needs pyarrow; install simdev[parquet]", path) from None
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    # what the system, pandas and pyarrow raise for broken files
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "broken"
        told = (
            f"cannot be read as {'Parquet' if is_parquet else 'CSV'}: "
            f"{reason[:1].lower()}{reason[1:]}"
        )
        raise InputError(told, path) from None
    missing = [name for name in ("scenario", "status", "step_time_s") if name not in found.columns]
    if missing:
        raise InputError(
            (f"is no table of simdev sweep: it has no column {' and no column '.join(missing)}"),
            path,
        )
    return found


def _read_csv(file: IO[bytes]) -> pd.DataFrame:
    """Only what is empty is no value, and names are text: a scenario may be called NA, or 007."""
    import pandas as pd

    texts = {"scenario": "str"} | {name: "str" for name, kind in COLUMNS.items() if kind == "str"}
    return pd.read_csv(file, low_memory=False, dtype=texts, keep_default_na=False, na_values=[""])
