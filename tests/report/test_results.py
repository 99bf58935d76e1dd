"""The results of a sweep as a page shows them: read as they were written, refused where they are
none.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from simdev.ground.errors import InputError
from simdev.report.page import read_results, results_data
from simdev.report.results import SI_UNITS
from simdev.search.sweep.fields import PARSERS

RESULTS = pd.DataFrame(
    {
        "scenario": ["a.json", "b.json", "c.json"],
        "cluster.bandwidth": ["1Gbit/s", "2Gbit/s", "4Gbit/s"],
        "cluster.bandwidth_bytes_per_s": [1.25e8, 2.5e8, 5e8],
        "status": ["ok", "infeasible", "failed"],
        "reason": [None, "gpu:0: 3 bytes over its 5", "no such file"],
        "step_time_s": [0.25, 0.125, math.nan],
        "step_time_ps": pd.array([250_000_000_000, 125_000_000_000, None], dtype="Int64"),
        "feasible": pd.array([True, False, None], dtype="boolean"),
        "utilization": [0.5, 0.25, math.inf],
    }
)


def test_results_become_columns_that_are_drawn() -> None:
    data = results_data(RESULTS, "r.csv")
    columns = {column["title"]: column for column in data["columns"]}
    assert data["headline"] == "3 scenarios: 1 ok, 1 infeasible, 1 failed"
    assert columns["step_time_s"] == {
        "title": "step_time_s",
        "as": "time",
        "values": [0.25e12, 0.125e12, None],
    }
    assert columns["cluster.bandwidth_bytes_per_s"]["as"] == "rate"
    assert columns["feasible"] == {"title": "feasible", "as": "text", "values": [True, False, None]}
    assert columns["utilization"]["values"] == [0.5, 0.25, None]
    assert data["axes"] == {
        "x": "cluster.bandwidth_bytes_per_s",
        "y": "step_time_s",
        "colour": "status",
    }
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_results_are_read_as_they_were_written(tmp_path: Path, ending: str) -> None:
    from simdev.search.sweep.frame import write_results

    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"r.{ending}"
    results = RESULTS.assign(scenario=["=1+1", "+x", "plain"])
    write_results(results, path)
    data = results_data(read_results(str(path)), "r")
    columns = {column["title"]: column["values"] for column in data["columns"]}
    assert columns["scenario"] == ["=1+1", "+x", "plain"]
    assert columns["step_time_ps"] == [250_000_000_000, 125_000_000_000, None]
    assert columns["feasible"] == [True, False, None]


@pytest.mark.parametrize("names", [["NA", "null", "nan"], ["007", "1e3", "8"]])
def test_names_that_look_like_something_else_are_read_as_names(
    tmp_path: Path, names: list[str]
) -> None:
    from simdev.search.sweep.frame import write_results

    write_results(RESULTS.assign(scenario=names), tmp_path / "r.csv")
    data = results_data(read_results(str(tmp_path / "r.csv")), "r")
    columns = {column["title"]: column for column in data["columns"]}
    assert (columns["scenario"]["values"], columns["scenario"]["as"]) == (names, "text")
    assert columns["utilization"]["values"] == [0.5, 0.25, None]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("none.csv", None, "no such file"),
        ("r.csv", b"", "cannot be read as CSV: no columns"),
        ("r.csv", b"a,b\n1,2\n", "is no table of simdev sweep: it has no column scenario"),
        ("r.csv", b"\xff\xfe\x00", "not UTF-8 text: byte 0 is 0xff"),
        ("r.parquet", b"PAR1 but no more", "cannot be read as Parquet"),
    ],
)
def test_what_is_no_table_of_results_is_refused(
    tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=told):
        read_results(str(tmp_path / name))


def test_a_small_file_of_a_huge_table_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "r.parquet"
    zeros = pyarrow.Array.from_buffers(
        pyarrow.int8(), 21_000_000, [None, pyarrow.py_buffer(bytes(21_000_000))]
    )
    parquet.write_table(pyarrow.table({"scenario": zeros}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match=r"r\.parquet: holds more than 20000000 values"):
        read_results(str(path))


def test_no_rows_are_told() -> None:
    data = results_data(RESULTS.iloc[:0], "empty")
    assert (data["headline"], data["columns"]) == ("No scenarios", [])


def test_a_field_whose_name_goes_on_is_a_field_and_one_in_si_units_is_not() -> None:
    path = "strategy.pipeline.recompute"
    settings = {
        path: ["none", "full", "full"],
        f"{path}_modules": ["moe", "moe", "mlp"],
        "cluster.latency": ["1us", "2us", "2us"],
        "cluster.latency_s": [1e-6, 2e-6, 2e-6],
    }
    rest = RESULTS.drop(columns=list(RESULTS)[1 : list(RESULTS).index("status")])
    for place, (name, values) in enumerate(settings.items(), 1):
        rest.insert(place, name, values)
    title = results_data(rest, "r")["title"]
    assert " over recompute, recompute_modules, latency: " in title
    assert set(SI_UNITS) == set(PARSERS)


@pytest.mark.parametrize("figure", ["nan", "x", "1e308", "9" * 400, "-1"])
def test_a_table_whose_figures_are_no_numbers_is_refused(tmp_path: Path, figure: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(f"scenario,status,step_time_s\na,ok,{figure}\n")
    with pytest.raises(InputError, match=r"r.csv: step_time_s: must hold numbers"):
        read_results(str(path))
