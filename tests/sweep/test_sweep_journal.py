"""Journals of sweeps: what is simulated again, torn and damaged lines, other files."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pandas as pd
import pytest

from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.search.sweep import Journal, sweep
from simdev.search.sweep.journal import HEADER
from sweeps import kept
from worlds.scenarios import TINY, bandwidths, written

POINTS = 8


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes to be killed are forks")


def simulated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of what is simulated from now on."""
    from simdev.search.sweep import sweeping

    keys: list[str] = []
    answer = sweeping.answer
    monkeypatch.setattr(
        sweeping,
        "answer",
        lambda memo, point: (keys.append(point.key), answer(memo, point))[1],
    )
    return keys


def test_a_second_run_simulates_nothing_and_says_the_same(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = simulated(monkeypatch)
    first = sweep(["s.json", "none.json"], bandwidths(POINTS), journal="j")
    assert len(keys) == POINTS
    content = Path("j").read_bytes()
    again = sweep(["s.json", "none.json"], bandwidths(POINTS), journal="j")
    assert len(keys) == POINTS
    assert Path("j").read_bytes() == content
    pd.testing.assert_frame_equal(first, again)
    pd.testing.assert_frame_equal(first, sweep(["s.json", "none.json"], bandwidths(POINTS)))


def test_only_what_is_new_is_simulated(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = simulated(monkeypatch)
    sweep("s.json", bandwidths(3), journal="j")
    assert len(sweep(["s.json", "s.json"], bandwidths(5), journal="j")) == 10
    assert len(keys) == 5
    assert len(sweep("s.json", bandwidths(2), journal="j")) == 2
    assert len(keys) == 5


def test_an_edit_to_a_file_asks_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = simulated(monkeypatch)
    written(Path("graph.json"), {"version": 1, **TINY["graph"]})
    written(Path("s.json"), TINY | {"graph": "graph.json"})
    (before,) = sweep("s.json", journal="j")["step_time_ps"]
    Path("graph.json").write_text(Path("graph.json").read_text().replace("1 us", "3 us"))
    (after,) = sweep("s.json", journal="j")["step_time_ps"]
    assert (before, after) == (10_000_000, 14_000_000)
    assert len(set(keys)) == len(kept(Path("j"))) == 2


def test_a_file_that_changes_amid_the_sweep_is_not_kept(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(Path("graph.json"), {"version": 1, **TINY["graph"]})
    written(Path("s.json"), TINY | {"graph": "graph.json"})
    from simdev.search.sweep import sweeping

    answer = sweeping.answer

    def late(*arguments: object) -> object:
        Path("graph.json").write_text(Path("graph.json").read_text().replace("1 us", "3 us"))
        return answer(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "answer", late)
    assert list(sweep("s.json", journal="j")["reason"]) == [
        "graph.json: changed during the sweep; run it again"
    ]
    assert kept(Path("j")) == []


def test_another_engine_asks_again_and_keeps_the_old_rows(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sweep("s.json", journal="j")
    for module in ("point", "sweeping"):
        monkeypatch.setattr(
            f"simdev.search.sweep.{module}.engine_version", lambda: "9.9.9+00000000"
        )
    new = sweep("s.json", journal="j")
    assert new["key"][0] != old["key"][0]
    assert (old["simdev"][0], new["simdev"][0]) != ("9.9.9+00000000", old["simdev"][0])
    assert kept(Path("j")) == [old["key"][0], new["key"][0]]


def test_a_failure_of_the_machine_is_tried_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def full(*_: object) -> object:
            raise MemoryError

        patch.setattr("simdev.search.sweep.sweeping.run", full)
        assert list(sweep("s.json", journal="j")["reason"]) == ["MemoryError"]
    assert kept(Path("j")) == []
    assert list(sweep("s.json", journal="j")["status"]) == ["ok"]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_tail_torn_at_any_byte_is_repaired(
    every: int, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at every byte beside the end of a row or of what it holds."""
    whole = sweep("s.json", bandwidths(2), journal="j")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them take a while
    content = Path("j").read_bytes()
    keys = list(whole["key"])
    at = range(len(content) + 1)
    for length in (i for i in at if i % every == 0 or {*content[i - 2 : i + 2]} & {*b"\n\t"}):
        Path("t").write_bytes(content[:length])
        with Journal("t") as journal:
            left = content[:length].count(b"\n") - 1
            assert list(journal.rows) == keys[: max(left, 0)]
            for key in keys[max(left, 0) :]:
                row = json.loads(content.split(b"\n")[1 + keys.index(key)].partition(b"\t")[0])[
                    "row"
                ]
                journal.add(key, whole["simdev"][0], row)
        assert Path("t").read_bytes() == content, length


@pytest.mark.parametrize("seed", range(20))
def test_damage_costs_the_damaged_lines_only(seed: int, tiny: Path) -> None:
    chance = random.Random(seed)
    whole = sweep("s.json", bandwidths(6), journal="j")
    lines = Path("j").read_bytes().splitlines(keepends=True)
    hurt = sorted(chance.sample(range(1, 7), 2))
    for line in hurt:
        at = chance.randrange(len(lines[line]) - 1)
        lines[line] = (
            lines[line][:at]
            + bytes([lines[line][at] ^ 1 << chance.randrange(8)])
            + lines[line][at + 1 :]
        )
    Path("j").write_bytes(b"".join(lines))
    with Journal("j") as journal:
        rows = dict(journal.rows)
    expected = [key for i, key in enumerate(whole["key"], 1) if i not in hurt]
    assert list(rows) == expected
    pd.testing.assert_frame_equal(sweep("s.json", bandwidths(6), journal="j"), whole)


def test_rows_of_two_journals_can_be_joined(tiny: Path) -> None:
    sweep("s.json", bandwidths(4), journal="j")
    sweep("s.json", bandwidths(6), journal="k")
    Path("j").write_bytes(Path("j").read_bytes() + Path("k").read_bytes())
    with Journal("j") as journal:
        assert len(journal.rows) == 6


@pytest.mark.parametrize(
    "content", [b"precious\n", b"{}", b"\0", HEADER.replace(b"1}", b"2}"), HEADER[:-1] + b"\r\n"]
)
def test_what_is_no_journal_is_left_alone(content: bytes, tiny: Path) -> None:
    Path("j").write_bytes(content)
    with pytest.raises(
        InputError, match=r"^j: is not a journal of simdev sweep; name another file$"
    ):
        sweep("s.json", journal="j")
    assert Path("j").read_bytes() == content


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are text here")
@pytest.mark.parametrize("out", ["r.csv", "r.parquet"])
def test_a_file_name_that_is_no_text_stands_in_the_table(out: str, tiny: Path) -> None:
    if out.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    strange = os.fsdecode(b"s\xff.json")
    Path(strange).write_bytes(Path("s.json").read_bytes())
    for _ in range(2):  # the second run finds all rows in the journal
        assert main(["sweep", strange, "none.json", "--output", out]) == 2
        read = pd.read_csv if out.endswith(".csv") else pd.read_parquet
        assert list(read(out)["scenario"]) == [r"s\udcff.json", "none.json"]
