"""Journals of sweeps that end early or share a file: kills, full disks, interrupts, two writers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.search.sweep import Journal, sweep
from sweeps import ROOT, Sweeper, is_running, kept
from waiting import wait_until

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes to be killed are forks")


journal_name = "r.csv.journal"


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Sweeper, Sweeper]]:
    """Started once: each imports all that a sweep needs."""
    with Sweeper(Path()) as first, Sweeper(Path()) as second:
        yield first, second


@pytest.fixture
def sweepers(servers: tuple[Sweeper, Sweeper], tiny: Path) -> tuple[Sweeper, Sweeper]:
    """Two that sweep in the folder of the test."""
    for sweeper in servers:
        sweeper.folder = tiny
    return servers


def test_two_writers_never_interleave(tiny: Path) -> None:
    with Journal("j") as journal:
        journal.add("k", "v", {})
        with pytest.raises(InputError, match=r"^j: another sweep is writing to this journal$"):
            Journal("j")
        command = [sys.executable, "-m", "simdev", "sweep", "s.json", "--journal", "j"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == "j: another sweep is writing to this journal\n"
    assert kept(Path("j")) == ["k"]
    assert len(sweep("s.json", journal="j")) == 1


@forks
def test_writers_that_race_leave_each_row_once(
    tiny: Path, sweepers: tuple[Sweeper, Sweeper]
) -> None:
    names = ",".join(f"g{i}" for i in range(60))
    arguments = ["sweep", "s.json", "--set", f"graph.name={names}", "-o", "r.csv"]
    codes = []
    for _ in range(2):
        for sweeper in sweepers:
            sweeper.start(*arguments)
        codes += [sweeper.wait() for sweeper in sweepers]
    assert 0 in codes
    assert set(codes) <= {0, 2}
    keys = kept(tiny / journal_name)
    assert len(keys) == len(set(keys)) == 60
    assert list(pd.read_csv("r.csv")["status"]) == ["ok"] * 60


def wait_for_growth(journal: Path, process: int) -> None:
    """Wait until the process has kept another row, or has ended."""
    size = journal.stat().st_size if journal.exists() else 0
    wait_until(
        lambda: (journal.exists() and journal.stat().st_size > size) or not is_running(process)
    )


@forks
@pytest.mark.parametrize(
    ("points", "kills"),
    [(120, 8), pytest.param(2000, 200, marks=pytest.mark.slow)],
    ids=["short", "200 kills"],
)
def test_kills_at_random_moments_lose_and_double_nothing(
    points: int, kills: int, tiny: Path, sweepers: tuple[Sweeper, Sweeper]
) -> None:
    chance = random.Random(7)
    values = ",".join(f"{i}MB/s" for i in range(1, points + 1))
    arguments = ["sweep", "s.json", "--set", f"cluster.bandwidth={values}", "-o", "r.csv"]
    seen: list[str] = []
    killed = amid = 0
    sweeper, _ = sweepers
    while killed < kills:
        process = sweeper.start(*arguments)
        if chance.random() < 0.8:  # most kills fall amid the simulations, the others anywhere
            wait_for_growth(tiny / journal_name, process)
        time.sleep(chance.uniform(0.0, 0.1))
        sweeper.kill(process)
        killed += sweeper.wait() == -9
        now = kept(tiny / journal_name)
        assert now[: len(seen)] == seen, "a finished row was lost"
        assert len(now) == len(set(now)), "a row stands twice"
        amid += len(seen) < len(now) < points
        seen = now
        if len(now) == points:  # all are done: begin anew, with the same answers
            (tiny / journal_name).unlink()
            (tiny / "r.csv").unlink(missing_ok=True)
            seen = []
    sweeper.start(*arguments)
    assert sweeper.wait() == 0
    assert amid > kills // 4
    print(f"{killed} kills, {amid} of them amid the simulations")
    results = pd.read_csv("r.csv", dtype={"key": "str"})
    assert sorted(results["key"]) == sorted(kept(tiny / journal_name))
    fresh = sweep("s.json", {"cluster.bandwidth": values.split(",")})
    assert list(results["step_time_ps"]) == list(fresh["step_time_ps"])


@forks
# After a step is before the next; before a write is, but for the first, before a sync behind it,
# where "half" ends too.
@pytest.mark.parametrize(
    "mode",
    ["half", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("before", "after"))],
)
def test_an_end_at_any_step_of_writing_is_recovered(
    mode: str, tiny: Path, sweepers: tuple[Sweeper, Sweeper]
) -> None:
    """Killed before, amid and after every write, sync, cut and rename of a sweep, until none is
    left.
    """
    arguments = ["sweep", "s.json", "--set", "cluster.bandwidth=1,2,3GB/s", "-o", "r.csv"]
    sweeper, _ = sweepers
    sweeper.start(*arguments)
    assert sweeper.wait() == 0
    whole = Path("r.csv").read_bytes()
    for point in range(1, 100):
        Path("r.csv").unlink()
        Path(journal_name).unlink()
        sweeper.start(*arguments, point=point, mode=mode)
        if sweeper.wait() == 0:
            break
        assert not Path("r.csv").exists() or Path("r.csv").read_bytes() == whole
        sweeper.start(*arguments, point=2, mode=mode)  # the repair may be cut short too
        sweeper.wait()
        sweeper.start(*arguments)
        assert sweeper.wait() == 0
        assert Path("r.csv").read_bytes() == whole
        assert len(kept(Path(journal_name))) == len(set(kept(Path(journal_name)))) == 3
    assert point > 6


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
from simdev.commands import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk_is_told_and_costs_no_finished_row(tiny: Path) -> None:
    pytest.importorskip("resource", reason="needs limits on the size of files")
    command = [
        sys.executable,
        "-c",
        LIMITED,
        "sweep",
        "s.json",
        "--set",
        "cluster.bandwidth=1,2,3,4,5,6,7,8GB/s",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "-o", "r.csv"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 2
    assert (
        result.stderr
        == "r.csv.journal: cannot write: file too large; the results so far are kept\n"
    )
    before = kept(Path(journal_name))
    assert 0 < len(before) < 8
    assert not Path("r.csv").exists()
    assert (
        main(
            [
                "sweep",
                "s.json",
                "--set",
                "cluster.bandwidth=1,2,3,4,5,6,7,8GB/s",
                "-o",
                "r.csv",
            ]
        )
        == 0
    )
    assert kept(Path(journal_name))[: len(before)] == before
    assert len(pd.read_csv("r.csv")) == 8


@pytest.mark.parametrize("number", [28, 30, 13])  # ENOSPC, EROFS, EACCES
@pytest.mark.parametrize("call", ["open", "write", "fsync"])
def test_errors_of_the_system_name_the_journal(
    number: int,
    call: str,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = getattr(os, call)

    def failing(target: object, *arguments: object) -> object:
        if call != "open" or str(target).endswith(".journal"):
            raise OSError(number, os.strerror(number))
        return real(target, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        assert main(["sweep", "s.json", "-o", "r.csv"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("r.csv.journal: cannot write: " + os.strerror(number).lower())
    assert main(["sweep", "s.json", "-o", "r.csv"]) == 0


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_a_read_only_folder_is_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.chmod(0o500)
    try:
        assert main(["sweep", "s.json", "-o", "r.csv"]) == 2
    finally:
        tiny.chmod(0o700)
    assert capsys.readouterr().err == "r.csv.journal: cannot write: permission denied\n"


def test_an_interrupt_ends_the_sweep_and_keeps_the_rows(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simdev.search.sweep import sweeping

    answer, left = sweeping.answer, [4]

    def interrupted(*arguments: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return answer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "answer", interrupted)
    arguments = [
        "sweep",
        "s.json",
        "--set",
        "cluster.bandwidth=1,2,3,4,5,6,7,8GB/s",
        "-o",
        "r.csv",
    ]
    assert main(arguments) == 130
    assert len(kept(Path(journal_name))) == 3
    assert main(arguments) == 0
    assert len(kept(Path(journal_name))) == 8


def test_two_sweeps_with_one_output_do_not_overwrite_each_other(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from simdev.search.sweep import sweeping

    answer = sweeping.answer
    second = [
        "sweep",
        "s.json",
        "-o",
        "r.csv",
        "--journal",
        "second",
        "--set",
        "cluster.bandwidth=2GB/s",
    ]

    def meanwhile(*arguments: object) -> object:
        monkeypatch.setattr(sweeping, "answer", answer)
        assert main(second) == 0
        return answer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "answer", meanwhile)
    first = [
        "sweep",
        "s.json",
        "-o",
        "r.csv",
        "--journal",
        "first",
        "--set",
        "cluster.bandwidth=1GB/s",
    ]
    assert main(first) == 2
    assert (
        "--output: another has written r.csv meanwhile; the rows are kept in first"
        in capsys.readouterr().err
    )
    assert list(pd.read_csv("r.csv")["cluster.bandwidth"]) == ["2GB/s"]
    assert main(first) == 0
    assert list(pd.read_csv("r.csv")["cluster.bandwidth"]) == ["1GB/s"]
