"""``simdev sweep``: what it writes, prints and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from simdev.commands import main
from simdev.search.sweep import sweep
from worlds.scenarios import TINY, bandwidths, written


def test_command_writes_a_table_and_tells_how_it_went(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "sweep",
                "s.json",
                "oom.json",
                "--set",
                "cluster.bandwidth=1,2,4,8Gbit/s",
                "--output",
                "r.csv",
            ]
        )
        == 0
    )
    printed = capsys.readouterr()
    title, head, *rows, best = printed.out.splitlines()
    assert (title, len(rows)) == ("sweep", 8)
    assert head.split() == ["scenario", "cluster.bandwidth", "step", "time", "fits", "reason"]
    assert best == "best (fastest): s.json, cluster.bandwidth 8Gbit/s: 10 us"
    assert printed.err == "8 scenarios: 4 ok, 4 infeasible; r.csv\n"
    results = pd.read_csv("r.csv")
    assert list(results["cluster.bandwidth"]) == ["1Gbit/s", "2Gbit/s", "4Gbit/s", "8Gbit/s"] * 2
    assert list(results["cluster.bandwidth_bytes_per_s"][:4]) == [1.25e8, 2.5e8, 5e8, 1e9]
    assert list(results["step_time_ps"][:4]) == [66_000_000, 34_000_000, 18_000_000, 10_000_000]
    assert {path.name for path in here.iterdir()} == {
        "s.json",
        "oom.json",
        "parts",
        "r.csv",
        "r.csv.journal",
    }


def test_command_prints_a_table_for_people_or_csv(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(here / "odd\nname.json", TINY | {"strategy": {"a": "gpu:7", "b": "gpu:8"}})
    arguments = ["sweep", "oom.json", "odd\nname.json", "--set", "cluster.bandwidth=1,2GB/s"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert (len(lines), lines[-1]) == (7, "no scenario fits")
    assert lines[1].split() == ["scenario", "cluster.bandwidth", "step", "time", "fits", "reason"]
    assert lines[2].endswith("10 us  NO    gpu:0: 7995 bytes over its 5")
    assert lines[4].startswith("  odd\\nname.json  1GB/s")
    assert printed.err == "4 scenarios: 2 infeasible, 2 failed\n"
    assert main([*arguments, "-o", "-"]) == 2
    assert capsys.readouterr().out.startswith(
        "scenario,cluster.bandwidth,cluster.bandwidth_bytes_per_s,status,reason,"
    )
    assert {path.name for path in here.iterdir()} == {
        "s.json",
        "oom.json",
        "odd\nname.json",
        "parts",
    }


def test_command_asks_about_a_bandwidth_without_a_unit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "s.json", "--set", "cluster.bandwidth=25,50", "--output", "r.csv"]) == 0
    note, counted = capsys.readouterr().err.splitlines()
    assert note == "--set cluster.bandwidth=25 is 25 B/s; write 25GB/s or 25Gbit/s"
    assert counted == "2 scenarios: 2 ok; r.csv"


def test_command_tells_why_a_scenario_failed_beside_a_file_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(here / "bad.json", TINY | {"strategy": {"a": "gpu:0", "b": "gpu:9"}})
    setting = ["--set", "cluster.bandwidth=1,2GB/s", "--output", "r.csv"]
    assert main(["sweep", "s.json", "bad.json", *setting]) == 2
    counted, reason = capsys.readouterr().err.splitlines()
    assert counted == "4 scenarios: 2 ok, 2 failed; r.csv"
    assert reason == (
        'the first that failed: bad.json: strategy.placement["b"]: no device named "gpu:9"'
    )


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("cluster.bandwith=1,2GB/s", "cluster.bandwith='1GB/s': cluster.json: bandwith: unknown"),
        ("cluster.bandwidth=1GB/s,fast", "cluster.bandwidth='fast': links"),
        ("cluster.devices[7].memory=1GB", "cluster.devices[7].memory='1GB': cluster.devices[7]"),
        ("cluster.queues=link,lnk", "cluster.queues='lnk': cluster.json: queues: must be one of"),
        ("cluster.nodes=2,-1", "cluster.nodes=-1: "),
        ("options.engine=warp", "options.engine='warp': options.engine: "),
        ("strategy.order=fifo,3", "strategy.order=3: "),
        ('strategy.placement["a"]=gpu:0,gpu:9', "strategy.placement[\"a\"]='gpu:9': "),
        ("strategy=data-parallel", "strategy='data-parallel': strategy.short: "),
        ("graph=none.json", "graph='none.json': none.json: no such file"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_runs(
    setting: str,
    reason: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("simdev.search.sweep.sweeping.run", None)
    before = {path.name for path in here.iterdir()}
    command = ["sweep", "oom.json", "s.json", "--set", "options.steps=once", "--set", setting]
    for more in (["--output", "r.csv"], ["--journal", "j"], ["-j", "2"]):
        assert main([*command[:1], *command[2:], *more]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("s.json: "), printed.err
        assert {path.name for path in here.iterdir()} == before
    assert reason.partition(": ")[0] in printed.err


def test_a_combination_that_cannot_be_is_a_row_and_what_does_not_fit_is_a_result(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = {"dp": 2, "tp": 4}
    graph = {"model": "gpt-1.7b", "layers": 4, "length": 512}
    parts = {"graph": graph, "cluster": "dgx-h100", "strategy": {"pipeline": pipeline}}
    written(here / "p.json", {"version": 1, **parts})
    sets = ["--set", "strategy.pipeline.dp=1,2", "--set", "strategy.pipeline.tp=8,4"]
    assert main(["sweep", "p.json", *sets]) == 2
    printed = capsys.readouterr()
    assert printed.err == "4 scenarios: 2 ok, 2 failed\n"
    assert "best (fastest): p.json, strategy.pipeline.dp 2, strategy.pipeline.tp 4: " in printed.out
    assert main(["sweep", "p.json", *sets, "--set", "cluster.nodes=3", "-o", "r.csv"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert 'but the cluster "dgx-h100, nodes 3" has 24' in printed.err
    assert not Path("r.csv").exists()
    memory = ["--set", "cluster.devices[*].memory=1MB,80GB"]
    assert main(["sweep", "p.json", *memory]) == 0
    assert capsys.readouterr().err == "2 scenarios: 1 infeasible, 1 ok\n"


def test_many_rows_are_shortened_to_the_best(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ",".join(str(number) for number in range(1, 101))
    assert main(["sweep", "s.json", "--set", f"cluster.bandwidth={rates}GB/s", "-o", "r.csv"]) == 0
    title, _, *rows, more, best = capsys.readouterr().out.splitlines()
    assert (title, len(rows)) == ("the best 40 of 100", 40)
    assert rows[0].split()[:2] == ["s.json", "100GB/s"]
    assert more.strip() == "... and 60 more; -o writes all"
    assert best.startswith("best (fastest): s.json, cluster.bandwidth 100GB/s: ")
    assert len(pd.read_csv("r.csv")) == 100


def test_command_reads_a_grid(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = [
        {"cluster.bandwidth": ["1 GB/s", "2 GB/s"], "strategy.order": ["fifo"]},
        {"cluster.latency": [1e-6]},
    ]
    written(here / "g.json", {"version": 1, "grid": grid})
    assert (
        main(
            [
                "sweep",
                "s.json",
                "--grid",
                "g.json",
                "--set",
                "cluster.queues=link,fair",
                "-o",
                "r.csv",
            ]
        )
        == 0
    )
    results = pd.read_csv("r.csv")
    assert (
        list(results["cluster.bandwidth"].fillna("")) == ["1 GB/s"] * 2 + ["2 GB/s"] * 2 + [""] * 2
    )
    assert list(results["cluster.latency"].fillna(0)) == [0, 0, 0, 0, 1e-6, 1e-6]
    assert list(results["cluster.queues"]) == ["link", "fair"] * 3
    assert list(results["step_time_ps"]) == [10_000_000] * 2 + [6_000_000] * 2 + [11_000_000] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "r.txt"], "r.txt: the name must end in .csv or .parquet"),
        (["--output", "parts.csv"], "parts.csv: cannot write: is a directory"),
        (["--output", "no/r.csv"], "no/r.csv.journal: cannot write: no such file or directory"),
        (["--output", "s.json/r.csv"], "s.json/r.csv.journal: cannot write: not a directory"),
        (
            ["--output", "r.csv", "--journal", "s.json"],
            "s.json: is not a journal of simdev sweep; name another file",
        ),
        (["--journal", "parts"], "parts: cannot write: is a directory"),
        (["--journal", "/dev/null"], "/dev/null: is not a regular file"),
        (
            ["--output", "x.csv", "--journal", "./x.csv"],
            "--journal: ./x.csv is the output of --output too",
        ),
        (["--journal", "a\0b"], "a\\x00b: cannot write: embedded null byte"),
        (["-j", "0"], "--jobs: must be a whole number, not 0, got 0"),
        (
            ["--set", "bandwidth=1"],
            "--set bandwidth: must begin with one of graph, cluster, profile, devices, ",
        ),
        (["--set", "cluster.bandwidth"], "--set cluster.bandwidth: must be PATH=VALUE,VALUE,..."),
        (
            ["--set", "cluster.bandwidth=1GB/s,4"],
            '--set cluster.bandwidth: "4" has no unit; write it behind the last',
        ),
        (["--set", "cluster.queues=,link"], '--set cluster.queues: a value is empty in ",link"'),
        (
            ["--set", "cluster.queues=link", "--set", "cluster.queues=fair"],
            "--set cluster.queues: is set twice",
        ),
        (
            ["--set", "graph.x=" + "1," * 1999 + "1", "--set", "graph.y=" + "1," * 1999 + "1"],
            "--set the grid has 4,000",
        ),
        (["--grid", "none.json"], "none.json: no such file"),
        (["--grid", "s.json"], "s.json: grid: missing"),
        (
            ["--grid", "g1.json"],
            "g1.json: grid: must be an object of lists, or a list of such objects, got 3",
        ),
        (
            ["--grid", "g2.json"],
            'g2.json: grid["cluster.queues"]: must be a list of values, got "link"',
        ),
        (["--grid", "g3.json"], "g3.json: cluster.queues: has no values"),
        (
            ["--grid", "g4.json"],
            ('g4.json: cluster..x: cannot be read from "..x" on; write it like cluster.network'),
        ),
        (
            ["--grid", "g5.json", "--set", "cluster.queues=fair"],
            "g5.json: cluster.queues: is set twice",
        ),
        (["--grid", "g6.json"], "g6.json: grid: must not be empty"),
    ],
)
def test_bad_usage_is_told_before_any_work(
    arguments: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "parts.csv").mkdir()
    queues: list[Any] = [{"cluster.queues": "link"}, {"cluster.queues": []}, {"cluster..x": [1]}]
    for number, grid in enumerate([3, *queues, {"cluster.queues": ["link"]}, []], 1):
        written(here / f"g{number}.json", {"version": 1, "grid": grid})
    before = {path.name for path in here.iterdir()}
    assert main(["sweep", "s.json", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message), printed.err
    assert {path.name for path in here.iterdir()} == before


def test_parquet_without_pyarrow_is_told_before_any_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simdev.search.sweep.frame.find_spec", lambda _: None)
    assert main(["sweep", "s.json", "-o", "r.parquet"]) == 2
    assert 'pip install "simdev[parquet]"' in capsys.readouterr().err
    assert not Path("r.parquet.journal").exists()


def test_a_bar_shows_rate_and_remaining_time_after_two_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def slow(*arguments: Any) -> Any:
        now[0] += 0.5
        return answer(*arguments)

    from simdev.search.sweep.sweeping import answer

    monkeypatch.setattr("simdev.search.sweep.sweeping.answer", slow)
    sweep(TINY, bandwidths(3), progress=True)
    assert capsys.readouterr().err.strip() == ""
    sweep(TINY, bandwidths(20), progress=True)
    err = capsys.readouterr().err
    assert "2.00scenario/s" in err
    assert "<00:0" in err
    sweep(TINY, bandwidths(20), progress=None)
    assert capsys.readouterr().err == ""
