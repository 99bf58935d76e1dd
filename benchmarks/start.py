"""What whole processes cost from start to end: ``python -m benchmarks.start [--quick] [--json]``.

Each command runs in a process of its own, first with an empty cache of compiled code (cold), then
with what that left behind (warm). CPU seconds count what the process waited for too; memory is the
most that it held, at least the size of this one, of which it begins as a copy. Bytecode is there in
both, as pip leaves it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.common import figure, machine, print_table

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20
FAILED = 3  # exit codes from here on are faults; 1 is a step that does not fit, 2 a bad option

COMMANDS = {
    "import simdev": ("-c", "import simdev"),
    "--help": ("-m", "simdev", "--help"),
    "search, no such method": ("search", "inception-v3-4x-cpu", "--method", "none"),
    "search, no such file": ("search", "none", "--method", "greedy"),
    "simulate AlexNet": ("simulate", "alexnet-1x-cpu"),
    "simulate Inception-V3": ("simulate", "inception-v3-4x-cpu"),
    "simulate GNMT": ("simulate", "gnmt-4x-rtx-2080-parallel"),
    "simulate ResNet-50, 4 GPUs": ("simulate", "resnet-50-4x-h100-data-parallel"),
    "simulate GNMT, compiled": (
        *("simulate", "gnmt-4x-rtx-2080-parallel", "--engine", "compiled"),
    ),
    "search Inception-V3, m-sct": ("search", "inception-v3-4x-cpu", "--method", "m-sct"),
    "search Inception-V3, greedy": (
        *("search", "inception-v3-4x-cpu", "--method", "greedy", "--budget", "1000"),
    ),
    "search NMT, annealing": (
        *("search", "nmt-4x-k80-placeto", "--method", "annealing", "--budget", "1000"),
    ),
    "search AlexNet, flexflow": (
        *("search", "alexnet-4x-p4000-flexflow-p3", "--method", "flexflow", "--budget", "100"),
    ),
}
QUICK = ("import simdev", "search, no such method", "simulate AlexNet")


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one process."""

    seconds: float
    cpu_seconds: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """A command with an empty cache, and with a full one (medians)."""

    command: str
    cold: Spent
    warm: Spent


def spent(command: Sequence[str], cache: str) -> Spent:
    """Run a command of COMMANDS. Raises AssertionError where it fails."""
    arguments = list(command)
    if not arguments[0].startswith("-"):
        verb, scenario, *options = arguments
        arguments = ["-m", "simdev", verb, str(ROOT / "scenarios" / f"{scenario}.json"), *options]
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": f"{cache}-pyc"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    assert 0 <= process.returncode < FAILED, f"{' '.join(arguments)}: exit {process.returncode}"
    return Spent(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MIB)


def measured(name: str, folder: str, repeats: int) -> Row:
    """A command, cold and warm in turn."""
    command = COMMANDS[name]
    spent(command, f"{folder}/first")  # bytecode, and the files in the page cache
    cold, warm = [], []
    for number in range(repeats):
        cache = f"{folder}/cold-{name}-{number}"
        os.symlink(f"{folder}/first-pyc", f"{cache}-pyc")
        cold.append(spent(command, cache))
        warm.append(spent(command, cache))
    return Row(name, _middle(cold), _middle(warm))


def _middle(runs: Sequence[Spent]) -> Spent:
    return Spent(
        *(
            median(getattr(run, name) for run in runs)
            for name in ("seconds", "cpu_seconds", "memory_mib")
        )
    )


def main() -> None:
    """Print the table, or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="three commands, once")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repeats = 1 if options.quick else 3
        rows = [measured(name, folder, repeats) for name in (QUICK if options.quick else COMMANDS)]
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "; whole processes\n")
    head = ["command", "", *(f"{name}, {unit}" for name in ("cold", "warm") for unit in UNITS)]
    print_table(head, [_cells(row) for row in rows])


UNITS = ("s", "CPU s", "MiB")


def _cells(row: Row) -> list[str]:
    values = [value for state in (row.cold, row.warm) for value in asdict(state).values()]
    return [row.command, "", *(figure(value) for value in values)]


if __name__ == "__main__":
    main()
