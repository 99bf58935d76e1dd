"""Writing: numbers exactly, files whole or not at all, the same bytes for the same value."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bad.profiles import ROW
from simdev.files import (
    read_profile,
    replacing,
    write_cluster,
    write_graph,
    write_profile,
    write_strategy,
    write_text,
)
from simdev.files.writing import new_folder, require_folder
from simdev.ground.units import decimal_text, parse_bandwidth, parse_time, rate_text, time_text
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op
from simdev.nouns.strategy import Strategy


@given(st.fractions(Fraction(0), Fraction(10**6)))
def test_numbers_are_written_exactly_or_rounded_up(value: Fraction) -> None:
    back = Fraction(decimal_text(value))
    assert value <= back <= value * (1 + Fraction(1, 10**29))


@given(st.integers(0, 10**24), st.integers(0, 40))
def test_decimals_come_back_exactly(digits: int, places: int) -> None:
    value = Fraction(digits, 10**places)
    assert Fraction(decimal_text(value)) == value
    if value < 10**6:
        assert parse_time(time_text(value)) == value
    if 10 <= value < 10**17:
        assert parse_bandwidth(rate_text(value)) == value


def test_times_are_written_for_people() -> None:
    assert [time_text(Fraction(text)) for text in ("0", "12e-6", "1.5", "1e-13")] == [
        "0 s",
        "12 us",
        "1.5 s",
        "0.1 ps",
    ]
    assert rate_text(Fraction(5_700_000_000)) == "5.7 GB/s"


WRITERS: list[Callable[[Path], None]] = [
    lambda path: write_graph(Graph("g", (Op("a"),)), path),
    lambda path: write_cluster(Cluster("c", (Device("d"),)), path),
    lambda path: write_strategy(Strategy({"a": "d"}), path),
    lambda path: write_profile(read_profile({"rows": [ROW]}), path),
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_the_same_value_makes_the_same_bytes(
    write: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    contents = []
    for _ in range(2):
        write(tmp_path / name)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def fail_half_way(path: Path) -> None:
    with replacing(path) as temporary:
        Path(temporary).write_text("half")
        assert temporary.endswith("x.json")
        raise RuntimeError


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_text(path, "old")
    with pytest.raises(RuntimeError):
        fail_half_way(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def fill_half_way(path: Path) -> None:
    with new_folder(path) as temporary:
        write_text(Path(temporary, "x.json"), "half")
        raise RuntimeError


def test_a_folder_is_new_and_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new"
    for _ in range(2):
        with pytest.raises(RuntimeError):
            fill_half_way(path)
        assert not list(tmp_path.glob("**/x.json"))
        path.mkdir(exist_ok=True)  # an empty one stays as it was
    path.rmdir()
    with new_folder(path) as temporary:
        write_text(Path(temporary, "x.json"), "{}")
    assert [file.name for file in path.iterdir()] == ["x.json"]
    assert list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o777 & ~mask
    with pytest.raises(FileExistsError):
        fill_half_way(path)


@pytest.mark.parametrize("name", ["circle", ""])
def test_what_is_no_place_for_a_folder_is_refused_before_it_is_filled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to itself, and the empty name of a variable that was never set: not the folder where
    one stands.
    """
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"no empty folder|No such file"):
        require_folder(name, re.compile("x.json"))


def test_an_empty_folder_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o700)
    with new_folder(tmp_path / "mine") as temporary:
        write_text(Path(temporary, "x.json"), "{}")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["x.json"]


def test_a_written_file_has_the_usual_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    write_text(tmp_path / "link.json", "{}")
    assert (tmp_path / "link.json").is_symlink()
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "real.json").stat().st_mode) == 0o666 & ~mask


def test_what_is_no_regular_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "x")
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "no/where.json", "x")
