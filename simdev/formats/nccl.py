"""Output of nccl-tests (and rccl-tests): a table of each collective that was measured, and a line
fitted to it.

A test prints lines ``size count type redop root time algbw busbw #wrong``, the last four out of
place and again in place: bytes, us and GB/s (https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md).
Which collective it is, is told by its header or command line, else by ``busbw / algbw``. Times are
those out of place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..costs.collectives import COLLECTIVES, CollectiveTable, bus_factor, table_of_rows
from ..ground.errors import InputError, collecting, refuse
from ..ground.units import MAX_BYTES, exact
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
# Bandwidths are printed with two digits behind the point.
TOLERANCE = 0.02
# What mpirun --tag-output puts before each line.
_TAG = re.compile(r"^\s*\[[^\]]*\]\s*<std(?:out|err)>:\s?")
_TEST = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv|\w+)_perf(?:_mpi)?\b"
)
_RANK = re.compile(r"^#\s*Rank\s+([0-9]{1,9})\b")
_NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]+)?\Z")


@dataclass
class Run:
    """One run of a test: its collective and ranks where they are told, and rows of (bytes, us,
    algbw, busbw).
    """

    line: int
    columns: tuple[str, ...]
    name: str | None
    ranks: int
    rows: list[tuple[int, Fraction, Fraction, Fraction]] = field(default_factory=list)
    redop: str = ""
    root: str = ""

    def add(self, words: Sequence[str]) -> None:
        """Add a row. Raises InputError."""
        if len(words) < len(self.columns):
            raise InputError(
                f"has {len(words)} of the {len(self.columns)} columns of line {self.line}"
            )
        time = self.columns.index(TIME)
        texts = [words[0], *words[time : time + 3]]
        wrong = [text for text in texts if not _NUMBER.match(text)]
        if wrong:
            raise InputError(f"must hold numbers of bytes, us and GB/s, got {', '.join(wrong)}")
        size = int(words[0])
        if size > MAX_BYTES:
            raise InputError(f"size: larger than 2^60 bytes: {size}")
        # Out of place, the first of two columns of this name.
        faults = dict(zip(self.columns[: time + 4], words, strict=False)).get("#wrong", "0")
        if faults not in ("0", "N/A"):
            raise InputError(f"{faults} wrong results: a time of wrong results tells nothing")
        values = dict(zip(self.columns, words, strict=False))
        self.redop, self.root = values.get("redop", ""), values.get("root", "")
        seconds, algbw, busbw = map(exact, texts[1:])
        if size and seconds:
            self.rows.append((size, seconds, algbw, busbw))


def parse_log(text: str) -> tuple[Run, ...]:
    """The tests that a log holds, lines of others between them passed over.

    Raises InputError with every problem.
    """
    runs: list[Run] = []
    problems: list[str] = []
    name, ranks, started = None, 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = _TAG.sub("", raw).lstrip()
        is_comment, words = line.startswith("#"), line.lstrip("# \t").split()
        if is_comment and words[:1] and words[0] in SIZE and TIME in words:
            runs.append(Run(number, tuple(words), name, ranks))
            name, ranks, started = None, 0, True
        elif test := _TEST.search(line):
            name, started = test[1], False
        elif rank := _RANK.match(line):
            ranks = max(ranks, int(rank[1]) + 1)
        elif started and words and words[0].isdigit() and not is_comment:
            with collecting(problems, f"line {number}: "):
                runs[-1].add(words)
    if not runs:
        problems.append("no table of nccl-tests: no header with the columns size and time")
    if not problems:
        problems = [f"line {run.line}: no sizes under this header" for run in runs if not run.rows]
    refuse(problems)
    return tuple(runs)


def log_tables(runs: Sequence[Run], machine: Machine, name: str | None = None) -> ImportedTables:
    """A table of each test.

    ``machine.devices`` is the number of ranks where the log does not tell it. Raises InputError
    where a collective cannot be told, or two tests are of one collective over as many ranks.
    """
    machine.refuse(
        "is nothing that tables of collectives hold", "cluster", "device", "bandwidth", "memory"
    )
    tables: list[CollectiveTable] = []
    fits: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for run in runs:
        with collecting(problems, f"line {run.line}: "):
            collective, ranks = _identify(run, machine.devices)
            rows = [(size, time / 10**6) for size, time, _, _ in run.rows]
            tables.append(table_of_rows(collective, ranks, rows))
            fits[f"{collective} over {ranks} ranks"] = _fit(collective, ranks, rows)
    if not problems:
        counts = Counter(f"{table.collective} over {table.ranks} ranks" for table in tables)
        problems = [
            f"{count} tests of {test}: keep one" for test, count in counts.items() if count > 1
        ]
    refuse(problems)
    notes = [
        f"{test}: {fit['latency']} + bytes x factor / {fit['bus_bandwidth']} is off by "
        f"{fit['mean_error']:.1%}"
        for test, fit in fits.items()
    ]
    return ImportedTables(
        name or "nccl-tests",
        tuple(tables),
        source="nccl-tests",
        notes=tuple(notes),
        provenance={"fits": fits},
    )


def _identify(run: Run, devices: int | None) -> tuple[str, int]:
    """(collective, ranks) of a test. Raises InputError."""
    if run.name is not None and run.name not in TESTS:
        raise InputError(
            f"{run.name}_perf: no collective that simdev knows; those are {', '.join(TESTS)}"
        )
    # Of the largest bandwidth, whose two digits behind the point weigh least.
    _, _, algbw, busbw = max(run.rows, key=lambda row: row[3])
    factor = float(busbw / algbw) if algbw else 0.0
    collective = TESTS[run.name] if run.name else _by_factor(run, factor)
    ranks = run.ranks or devices or _ranks_by_factor(collective, factor)
    if devices is not None and run.ranks and devices != run.ranks:
        raise InputError(f"--devices: {devices}, but the log tells of {run.ranks} ranks")
    if ranks < 2:
        raise InputError(f"{collective} over {ranks} rank: nothing is sent")
    expected = float(bus_factor(collective, ranks))
    if factor and abs(factor / expected - 1) > TOLERANCE:
        raise InputError(
            f"busbw is {factor:.4g} times algbw, for {collective} over {ranks} ranks it is "
            f"{expected:.4g}"
        )
    return collective, ranks


def _by_factor(run: Run, factor: float) -> str:
    """The collective of a test without a name, by its rows."""
    adds = run.redop not in ("", "none")
    if run.root.isdigit():
        return "reduce" if adds else "broadcast"
    if adds and factor:
        # 2 (n-1) / n of an all-reduce is 1 or more, (n-1) / n of a reduce-scatter less.
        return "all_reduce" if factor >= 1 - TOLERANCE / 2 else "reduce_scatter"
    raise InputError(
        'cannot tell which collective it is: put the command ("all_gather_perf ..") before '
        "the output"
    )


def _ranks_by_factor(collective: str, factor: float) -> int:
    """The number of ranks by the bus bandwidths, where the log does not list them."""
    share = factor / 2 if collective == "all_reduce" else factor
    if collective in COLLECTIVES[:4] and 0 < share < 1:
        ranks = round(1 / (1 - share))
        # The bound is tight, for the shares of many ranks are close to one another.
        if ranks >= 2 and abs(share / (1 - 1 / ranks) - 1) < TOLERANCE / 4:
            return ranks
    raise InputError("the log does not list its ranks: tell their number by --devices")


def _fit(collective: str, ranks: int, rows: Sequence[tuple[int, Fraction]]) -> dict[str, Any]:
    """Latency and bus bandwidth of the line through the times that lessens the squares of its
    relative errors.
    """
    import numpy as np

    sizes, times = np.array(rows, float).T
    factor = float(bus_factor(collective, ranks))
    columns = np.stack([1 / times, sizes * factor / times], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, np.full(len(times), 1.0), rcond=None)
    if latency < 0 or slope <= 0:
        # A curve that no line of this kind meets: the smallest message tells the latency and the
        # largest the bandwidth.
        latency = times.min()
        slope = max(times[sizes.argmax()] - latency, latency) / sizes.max() / factor
    error = float(np.mean(np.abs(columns @ np.array([latency, slope]) - 1)))
    return {
        "latency": f"{latency * 1e6:.4g} us",
        "bus_bandwidth": f"{1e-9 / slope:.4g} GB/s",
        "mean_error": round(error, 4),
    }
