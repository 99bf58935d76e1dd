"""Output of nccl-tests (and rccl-tests): a table of each collective that was measured, and a line
fitted to it.

A test prints lines ``size count type redop root time algbw busbw #wrong``, the last four out of
place and again in place: bytes, us and GB/s (https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md).
Which collective it is, is told by its header or command line, else by ``busbw / algbw``. Times are
those out of place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..collectives import COLLECTIVES, CollectiveTable, bus_factor, table_of_rows
from ..errors import InputError
from ..units import MAX_BYTES, exact
from .imported import ImportedTables
from .machine import Machine

TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "p2p",
}
"""Names of the tests (``all_reduce_perf``) -> the collectives of simdev."""

SIZE, TIME = ("size", "bytes"), "time"
TOLERANCE = 0.02
# what mpirun --tag-output puts before each line
_TAG = re.compile(r"^\s*\[[^\]]*\]\s*<std(?:out|err)>:\s?")
_TEST = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|\w+)_perf(?:_mpi)?\b"
)
_RANK = re.compile(r"^#\s*Rank\s+(\d+)\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?\Z")


@dataclass
class Run:
    """One run of a test: its collective and ranks where they are told, and rows of (line, bytes,
    us, algbw, busbw).
    """

    line: int
    columns: tuple[str, ...]
    name: str | None
    ranks: int
    rows: list[tuple[int, int, Fraction, Fraction, Fraction]] = field(default_factory=list)
    redop: str = ""
    root: str = ""


def parse_log(text: str) -> tuple[Run, ...]:
    """The tests that a log holds, lines of others between them passed over.

    Raises InputError with every problem.
    """
    found: list[Run] = []
    problems: list[str] = []
    name, ranks, started = None, 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw)
        words = line.lstrip("# \t").split()
        if line.lstrip().startswith("#") and words[:1] and words[0] in SIZE and TIME in words:
            found.append(Run(number, tuple(words), name, ranks))
            name, ranks, started = None, 0, True
        elif test := _TEST.search(line):
            name, started = test[1], False
        elif rank := _RANK.match(line.lstrip()):
            ranks = max(ranks, int(rank[1]) + 1)
        elif started and words and words[0].isdigit() and not line.lstrip().startswith("#"):
            problems += [f"line {number}: {problem}" for problem in _row(found[-1], number, words)]
    if not found:
        problems.append("no table of nccl-tests: no header with the columns size and time")
    problems += [
        f"line {test.line}: no sizes under this header"
        for test in found
        if not test.rows and not problems
    ]
    if problems:
        raise InputError(problems)
    return tuple(found)


def _row(test: Run, number: int, words: Sequence[str]) -> Iterator[str]:
    """Adds a row to a test; yields what is wrong with it."""
    if len(words) < len(test.columns):
        yield f"has {len(words)} of the {len(test.columns)} columns of line {test.line}"
        return
    at = test.columns.index(TIME)
    texts = [words[0], *words[at : at + 3]]
    wrong = [text for text in texts if not _NUMBER.match(text)]
    if wrong:
        yield f"must hold numbers of bytes, us and GB/s, got {', '.join(wrong)}"
        return
    size, (time, algbw, busbw) = int(words[0]), [exact(text) for text in texts[1:]]
    if size > MAX_BYTES:
        yield f"size: larger than 2^60 bytes: {size}"
        return
    faults = at + 3 < len(test.columns) and words[at + 3]
    if faults and test.columns[at + 3] == "#wrong" and faults not in ("0", "N/A"):
        yield f"{faults} wrong results: a time of wrong results tells nothing"
        return
    told = dict(zip(test.columns, words, strict=False))
    test.redop, test.root = told.get("redop", ""), told.get("root", "")
    if size and time:
        test.rows.append((number, size, time, algbw, busbw))


def log_tables(runs: Sequence[Run], machine: Machine, name: str = "nccl-tests") -> ImportedTables:
    """A table of each test.

    ``machine.devices`` is the number of ranks where the log does not tell it.

    Raises InputError where a collective cannot be told, or two tests are of one collective over as
    many ranks.
    """
    wrong = [
        f"{asked}: is nothing that tables of collectives hold"
        for asked in machine.asked
        if asked != "--devices"
    ]
    if wrong:
        raise InputError(wrong)
    tables: list[CollectiveTable] = []
    fits: dict[str, Any] = {}
    problems: list[str] = []
    for test in runs:
        try:
            collective, ranks = _identify(test, machine.devices)
            rows = [(size, time / 10**6) for _, size, time, _, _ in test.rows]
            tables.append(table_of_rows(collective, ranks, rows))
            fits[f"{collective} over {ranks} ranks"] = _fit(collective, ranks, rows)
        except InputError as error:
            problems += [f"line {test.line}: {problem}" for problem in error.problems]
    keys = [(table.collective, table.ranks) for table in tables]
    for collective, ranks in dict.fromkeys(keys):
        if keys.count((collective, ranks)) > 1 and not problems:
            problems.append(
                f"{keys.count((collective, ranks))} tests of {collective} over {ranks} "
                "ranks: keep one"
            )
    if problems:
        raise InputError(problems)
    notes = [
        (
            f"{key}: {one['latency']} + bytes x factor / {one['bus_bandwidth']} is off by "
            f"{one['mean_error']:.1%}"
        )
        for key, one in fits.items()
    ]
    return ImportedTables(name, tuple(tables), "nccl-tests", tuple(notes), {"fits": fits})


def _identify(test: Run, asked: int | None) -> tuple[str, int]:
    """(collective, ranks) of a test. Raises InputError."""
    if test.name is not None and test.name not in TESTS:
        raise InputError(
            f"{test.name}_perf: no collective that simdev knows; those are {', '.join(TESTS)}"
        )
    largest = max(test.rows, key=lambda row: row[4])
    factor = float(largest[4] / largest[3]) if largest[3] else 0.0
    collective = TESTS[test.name] if test.name else _by_factor(test, factor)
    ranks = test.ranks or asked or _ranks_by_factor(collective, factor)
    if asked is not None and test.ranks and asked != test.ranks:
        raise InputError(f"--devices: {asked}, but the log tells of {test.ranks} ranks")
    if ranks < 2:
        raise InputError(f"{collective} over {ranks} rank: nothing is sent")
    expected = float(bus_factor(collective, ranks))
    if factor and abs(factor / expected - 1) > TOLERANCE:
        raise InputError(
            f"busbw is {factor:.4g} times algbw, for {collective} over {ranks} ranks it is "
            f"{expected:.4g}"
        )
    return collective, ranks


def _by_factor(test: Run, factor: float) -> str:
    """The collective of a test without a name, by what its rows tell."""
    adds, rooted = test.redop not in ("", "none"), test.root.isdigit()
    if rooted:
        return "reduce" if adds else "broadcast"
    if adds and factor:
        return "all_reduce" if factor >= 1 - TOLERANCE / 2 else "reduce_scatter"
    raise InputError(
        'cannot tell which collective it is: put the command ("all_gather_perf ..") before '
        "the output"
    )


def _ranks_by_factor(collective: str, factor: float) -> int:
    """The number of ranks that bus bandwidths tell, where the log does not list them."""
    share = factor / 2 if collective == "all_reduce" else factor
    if collective in COLLECTIVES[:4] and 0 < share < 1:
        ranks = round(1 / (1 - share))
        if ranks >= 2 and abs(share / (1 - 1 / ranks) - 1) < TOLERANCE / 4:
            return ranks
    raise InputError("the log does not list its ranks: tell their number by --devices")


def _fit(collective: str, ranks: int, rows: Sequence[tuple[int, Fraction]]) -> dict[str, Any]:
    """Latency and bus bandwidth of the line through the times that lessens the squares of its
    relative errors.
    """
    import numpy as np

    sizes = np.array([float(size) for size, _ in rows])
    times = np.array([float(time) for _, time in rows])
    factor = float(bus_factor(collective, ranks))
    columns = np.stack([1 / times, sizes * factor / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)
    if latency < 0 or slope <= 0:
        # A curve that no line of this kind meets: the smallest message and the largest tell the
        # two.
        latency, slope = (
            times.min(),
            max(times[sizes.argmax()] - times.min(), times.min()) / sizes.max() / factor,
        )
    error = float(np.mean(np.abs(columns @ np.array([latency, slope]) - 1)))
    return {"latency": f"{latency * 1e6:.4g} us", "bus_bandwidth": f"{1e-9 / slope:.4g} GB/s",
            "mean_error": round(error, 4)}  # fmt: skip
