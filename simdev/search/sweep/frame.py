"""The results of a sweep as a DataFrame, a row for each scenario, and as files.

``sweep`` and its verb call it. The columns are those of ``simdev/report/results.py``, the figures
come from ``row_of`` in sweeping.py.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from ...files import replacing
from ...files.reading import PathLike
from ...ground.errors import InputError, install_line, reason_of
from ...nouns.draws import stability
from ...report.results import COLUMNS, DRAWN, FORMULA, results_ranking
from .fields import si_values
from .journal import failed
from .point import Row, as_simulate_says

ENDINGS = (".csv", ".parquet")


def frame(rows: Sequence[Row], figures: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A DataFrame with a line for each row; ``figures`` are by the key of the row's point.

    Columns: ``scenario``, one for each field that was set, then ``COLUMNS``, then ``key`` and
    ``simdev``, the keys of the content and of the engine. A field set in units has a second column
    in SI units.
    """
    answers = [
        failed(row.problem or "") if row.point is None else figures[row.point.key] for row in rows
    ]
    columns: dict[str, Any] = {"scenario": _text([row.label for row in rows])}
    for path in dict.fromkeys(path for row in rows for path in row.settings):
        columns |= _settings(_utf8(path), [row.settings.get(path) for row in rows])
    for name, kind in COLUMNS.items():
        values = [answer.get(name) for answer in answers]
        if name == "reason":
            values = [value and as_simulate_says(value) for value in values]
        columns[name] = _text(values) if kind == "str" else pd.array(values, dtype=kind)
    columns["key"] = _text([row.point and row.point.key for row in rows])
    columns["simdev"] = _text([row.point and row.point.version for row in rows])
    results = pd.DataFrame(columns)
    return _with_order(results, answers) if any(DRAWN in answer for answer in answers) else results


def _with_order(results: pd.DataFrame, answers: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The results with the certainty of their order: columns ``beats_best`` and ``first_in_draws``,
    and ``attrs["kendall_tau"]`` for the whole order.
    """
    ranks = results_ranking(results)
    if not ranks.goals:
        return results
    # Where batches differ, times per sample are compared, not per step.
    sizes = results["global_batch"] if ranks.goals[0].upward else [1] * len(results)
    times = np.array([np.array(answers[row][DRAWN]) / sizes[row] for row in ranks.order])
    order = stability(times)
    for name, column in ("beats_best", order.beats), ("first_in_draws", order.first):
        results.loc[list(ranks.order), name] = column
    results.attrs["kendall_tau"] = order.kendall
    return results


def _text(values: Sequence[Any]) -> Any:
    return pd.Series(
        [_utf8(value) if isinstance(value, str) else value for value in values], dtype="str"
    )


def _utf8(text: str) -> str:
    r"""A text that a table can hold: bytes of a name that are not UTF-8 become ``\udcff``."""
    return text.encode(errors="backslashreplace").decode()


def _settings(path: str, values: Sequence[Any]) -> dict[str, Any]:
    """The column of a field that was set, with its values as given; and a column in SI units where
    values were given with units.
    """
    given = [value for value in values if value is not None]
    kinds = set(map(type, given))
    if kinds <= {bool}:
        return {path: pd.array(list(values), dtype="boolean")}
    if kinds <= {int, float, Decimal}:
        is_whole = kinds == {int} and all(abs(value) < 2**63 for value in given)
        kind: Any = "Int64" if is_whole else "float64"
        plain = [float(value) if isinstance(value, Decimal) else value for value in values]
        return {path: pd.array(plain, dtype=kind)}
    columns = {path: _text([None if value is None else _written(value) for value in values])}
    quantities = si_values(given)
    if quantities is not None:
        unit, in_si = quantities
        left = iter(in_si)
        numbers = [None if value is None else next(left) for value in values]
        columns[f"{path}_{unit}"] = pd.array(numbers, dtype="float64")
    return columns


def _written(value: Any) -> str:
    return str(value) if isinstance(value, (str, Decimal)) else json.dumps(value, default=str)


def write_results(results: pd.DataFrame, path: PathLike) -> None:
    """Write results whole or not at all, as CSV or Parquet by the ending of the name.

    Raises InputError.

    In CSV a text that a spreadsheet would take for a formula gets a ' before it.
    """
    path = os.fspath(path)
    check_output(path)
    try:
        with replacing(path) as temporary:
            if path.lower().endswith(".csv"):
                with open(temporary, "w", encoding="utf-8", newline="") as file:
                    file.write(csv_text(results))
            else:
                results.to_parquet(temporary, index=False)
    except OSError as error:
        raise InputError(f"cannot write: {reason_of(error)}", path) from None


def check_output(path: str) -> None:
    """Refuse a file that cannot be written, before any work is done. Raises InputError."""
    if not path.lower().endswith(ENDINGS):
        raise InputError(f"the name must end in {' or '.join(ENDINGS)}", path)
    if path.lower().endswith(".parquet") and find_spec("pyarrow") is None:
        raise InputError(f"Parquet needs pyarrow: {install_line('parquet')} (or write .csv)", path)
    if os.path.isdir(path):
        raise InputError("cannot write: is a directory", path)
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise InputError("cannot write: permission denied", path)


def csv_text(results: pd.DataFrame) -> str:
    """The results as CSV."""
    # Numbers may begin with a minus; only texts can be formulas.
    texts = [name for name in results if pd.api.types.is_string_dtype(results[name])]
    safe = results.assign(**{str(name): _text(list(map(_safe, results[name]))) for name in texts})
    return safe.rename(columns=_safe).to_csv(index=False, lineterminator="\n")


def _safe(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def counts(results: pd.DataFrame) -> dict[str, int]:
    """The number of rows of each status."""
    return dict(Counter(map(str, results["status"])))
