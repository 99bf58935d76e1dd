"""Files and folders when writing is cut short: by a kill at any moment, or by a full disk."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simdev.files import write_text
from simdev.files.writing import new_folder, parents, require_folder

NUMBERED = re.compile(r"\d\.json")
# For each folder a process that kills itself at the n-th thing that it asks of the file system.
DRIVER = """
import os, re, signal, sys
from simdev.files.writing import new_folder, write_text
ASKED = "open", "os.rename", "os.mkdir", "os.rmdir", "os.listdir", "os.chmod"
def fill(folder, left):
    def count(event, arguments):
        nonlocal left
        if event in ASKED:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    with new_folder(folder, re.compile(r"\\d\\.json")) as made:
        for number in range(3):
            write_text(os.path.join(made, f"{number}.json"), "new")
for number, folder in enumerate(sys.argv[1:]):
    child = os.fork()
    if not child:
        fill(folder, number)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
OLD = dict.fromkeys(("0.json", "1.json", "7.json"), "old")
NEW = {f"{number}.json": "new" for number in range(3)}


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def filled(folder: Path) -> Path:
    """A folder with an earlier answer, and what does not belong to it."""
    (folder / "before-1").mkdir(parents=True)
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    for name, text in OLD.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="folders change places at once on Linux")
def test_a_killed_writer_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    places = [filled(tmp_path / f"{number}" / "plans") for number in range(40)]
    command = [sys.executable, "-c", DRIVER, *map(str, places)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    codes = list(map(int, result.stdout.split()))
    kills = codes.count(-signal.SIGKILL)
    assert codes == [-signal.SIGKILL] * kills + [0] * (len(places) - kills)
    assert 10 < kills < len(places)
    for place in places:
        assert contents(place) in (OLD, NEW)
        # Nothing of the earlier answer is lost, nor what is no part of it.
        texts = [path.read_text() for path in place.parent.rglob("*") if path.is_file()]
        assert texts.count("old") == len(OLD)
        assert texts.count("mine") == 1
    assert {contents(place) == NEW for place in places[:kills]} == {False, True}
    assert (contents(place / "before-2"), contents(place / "before-1")) == (OLD, {})
    assert [path.name for path in place.parent.iterdir()] == ["plans"]


def fail(folder: Path) -> None:
    with new_folder(folder, NUMBERED) as made:
        write_text(Path(made, "0.json"), "new")
        raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    there = filled(tmp_path / "plans")
    for folder in (there, tmp_path / "new", tmp_path / "far" / "away" / "new"):
        with pytest.raises(OSError, match="No space left"):
            fail(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]
    assert contents(there) == OLD
    assert sorted(path.name for path in there.iterdir()) == [*OLD, "before-1", "mine"]


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    require_folder(tmp_path / "far" / "away", NUMBERED)
    require_folder(filled(tmp_path / "plans"), NUMBERED)
    assert [path.name for path in tmp_path.iterdir()] == ["plans"]
    assert contents(tmp_path / "plans") == OLD
    (tmp_path / "file").write_text("")
    for name in ("file", "file/new", "a" * 300, f"new/{'a' * 300}"):
        with pytest.raises(OSError, match=r"already|ot a directory|too long"):
            require_folder(tmp_path / name, NUMBERED)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "plans"}


def test_a_folder_that_somebody_stands_in_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = filled(tmp_path / "plans")
    inode = place.stat().st_ino
    monkeypatch.chdir(place / "mine")
    with new_folder("..", NUMBERED) as made:
        write_text(Path(made, "0.json"), "new")
    assert (place.stat().st_ino, contents(place)) == (inode, {"0.json": "new"})
    assert contents(place / "before-2") == OLD
    assert {path.name for path in place.iterdir()} == {"0.json", "before-1", "before-2", "mine"}
    assert Path("notes.txt").read_text() == "mine"


def test_folders_above_are_made_and_go_again(tmp_path: Path) -> None:
    with parents(tmp_path / "a" / "b" / "x.json"):
        (tmp_path / "a" / "b" / "x.json").write_text("")
    assert (tmp_path / "a" / "b" / "x.json").is_file()
    with pytest.raises(FileNotFoundError), parents(tmp_path / "c" / "d" / "x.json"):
        (tmp_path / "c" / "d" / "e" / "x.json").write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
