"""Tampered archives of torch.export: no code runs, memory is bounded, each ends in a message."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simdev.ground.errors import InputError
from simdev.measure import import_program

torch = pytest.importorskip("torch")
from hostile_programs import GRAPH, Entries, entries_of, hostile, packed  # noqa: E402
from small_net import Loss, Net, batch  # noqa: E402

MOST_MIB = 300
"""The largest entry that unpacks within the limits has 50 MiB, held as bytes and as text."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Entries:
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    torch.export.save(torch.export.export(Loss(Net()), batch()), path)
    return entries_of(path)


def test_no_tampered_archive_runs_code_or_takes_memory(entries: Entries, tmp_path: Path) -> None:
    (tmp_path / "0.pt2").write_bytes(packed(entries))
    marker = tmp_path / "ran"
    names = ["fair"]
    for index, (name, data) in enumerate(hostile(entries, marker), 1):
        (tmp_path / f"{index}.pt2").write_bytes(data)
        names.append(name)
    program = Path(__file__).with_name("hostile_programs.py")
    done = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(names) > 40
    wrong = [
        (names[int(stem)], code, told, mib)
        for stem, code, told, mib in answers
        if code != (2 if int(stem) else 0)
        or (code and not told.startswith(str(tmp_path / f"{stem}.pt2: ")))
        or "Traceback" in told
        or mib > MOST_MIB
    ]
    assert not wrong
    assert not marker.exists()
    written = {path.name for path in tmp_path.iterdir() if path.suffix != ".pt2"}
    assert written == {"0.pt2.json"}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all parts of a value."""
    parts: Any = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value) if isinstance(value, list) else parts
    return [path, *(deep for key, part in parts for deep in places(part, (*path, key)))]


def mutate(program: Any, draw: random.Random) -> None:
    """Change one to three things: leave out, repeat, exchange for another part or a strange
    value.
    """
    for _ in range(draw.randint(1, 3)):
        graph = program["graph_module"][draw.choice(("graph", "graph", "graph", "signature"))]
        paths = [path for path in places(graph) if path]
        path = draw.choice(paths)
        holder = graph
        for key in path[:-1]:
            holder = holder[key]
        other: Any = graph
        for key in draw.choice(paths):
            other = other[key]
        match draw.randint(0, 4):
            case 0:
                del holder[path[-1]]
            case 1 if isinstance(holder, list):
                holder.insert(draw.randrange(len(holder) + 1), holder[path[-1]])
            case 2 if isinstance(holder, list):
                draw.shuffle(holder)
            case 3:
                holder[path[-1]] = json.loads(json.dumps(other))
            case _:
                holder[path[-1]] = draw.choice(
                    [None, True, -1, 0, 2**31, 2**62, 10**40, 0.5, "", "x", [], {}, [1], {"x": 1}]
                )


def refusal(entries: Entries, seed: int, path: Path) -> InputError | None:
    """Why a program with broken calls is refused, None where it is not: nothing else is raised."""
    program = json.loads(entries[GRAPH])
    mutate(program, random.Random(seed))
    path.write_bytes(packed(entries | {GRAPH: json.dumps(program).encode()}))
    try:
        import_program(path, optimizer=("adam", None)[seed % 2])
    except InputError as error:
        return error
    return None


def judged(entries: Entries, seeds: int, path: Path) -> int:
    """How many of so many broken programs are refused, each problem of them in one line."""
    errors = [refusal(entries, seed, path) for seed in range(seeds)]
    problems = [problem for error in errors if error for problem in error.problems]
    assert all(problem.strip() for problem in problems)
    assert not [problem for problem in problems if "\n" in problem]
    return sum(error is not None for error in errors)


def test_a_program_with_broken_calls_ends_in_one_message(entries: Entries, tmp_path: Path) -> None:
    assert judged(entries, 12, tmp_path / "b.pt2") > 5


@pytest.mark.slow
def test_many_programs_with_broken_calls(entries: Entries, tmp_path: Path) -> None:
    assert judged(entries, 200, tmp_path / "b.pt2") > 100
