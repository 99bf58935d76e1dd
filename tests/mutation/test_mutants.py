"""Faults are put where they are said to be, and the kernels' plain form gives compiled answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from tests.mutation.mutants import code_of, drawn, mutants_of

SOURCE = '''
LIMIT = 3


class Queue:
    def room(self, size: int = 0) -> int:
        """No text is changed: 1 + 1."""
        if size < 4:
            raise ValueError(f"too small: {size - 1}")
        return max(size, 5)
'''
FAULTS = (
    "-> not size < 4",
    "size <= 4",
    "4 -> 5",
    "-> pass",
    "-> return max(size, 5) + 1",
    "max -> min",
    "5 -> 6",
)


def test_each_place_has_its_fault(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(SOURCE)
    mutants = mutants_of("queue.py", SOURCE)
    assert [mutant.name for mutant in mutants] == ["Queue.room"] * len(FAULTS)
    for mutant, wanted in zip(mutants, FAULTS, strict=True):
        assert wanted in mutant.change
        assert mutant.lines[0] in (8, 9, 10)


@pytest.mark.parametrize(
    ("wanted", "argument", "answer"),
    [
        ("size <= 4", 4, None),
        ("4 -> 5", 4, None),
        ("+ 1", 8, 9),
        ("-> min", 8, 5),
        ("5 -> 6", 4, 6),
    ],
)
def test_a_mutant_does_what_it_says(
    tmp_path: Path, wanted: str, argument: int, answer: int | None
) -> None:
    (tmp_path / "queue.py").write_text(SOURCE)
    mutant = next(mutant for mutant in mutants_of("queue.py", SOURCE) if wanted in mutant.change)
    room = FunctionType(code_of(mutant, tmp_path), {})
    if answer is None:
        with pytest.raises(ValueError, match="too small: 3"):
            room(None, argument)
    else:
        assert room(None, argument) == answer


def test_fewer_mutants_are_the_first_of_more() -> None:
    mutants = mutants_of("queue.py", SOURCE)
    assert drawn(mutants, 3, 1) == drawn(mutants, 6, 1)[:3]
    assert drawn(mutants, 6, 1) != drawn(mutants, 6, 2)


INTERPRETED = """
from tests.mutation.interpreted import interpret
interpret()
import simdev.oracle.heap as heap
from types import SimpleNamespace
h = SimpleNamespace(cell=memoryview(bytearray(8 * 5)).cast("q"), heap=[0] * 9)
heap.clear(h)
for key in (5, 3, 9, 1): heap.add(h, key)
print(*[heap.take(h) for _ in range(4)], heap.take(h) == heap.LATE)
"""


def test_kernels_run_as_plain_python() -> None:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=root, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["1", "3", "5", "9", "True"]
