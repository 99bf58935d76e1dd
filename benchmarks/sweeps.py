"""What a sweep costs over its simulations, and what a second core brings: ``python -m
benchmarks.sweeps [--quick]``.

The scenarios are GNMT on four GPUs by layers, at bandwidths and latencies that no two have in
common. What a sweep adds to its simulations is CPU time of this process, reading and preparing what
scenarios share included. The second core is wall time, workers' start included; the control beside
it tells how much of two cores the machine gives at all.
"""

from __future__ import annotations

import gc
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.figures import Figure, main
from benchmarks.oracle import both_cores
from simdev.search.sweep import sweep, sweeping

QUESTION = {
    "graph": {"model": "gnmt", "batch": 64},
    "cluster": {"preset": "4x-rtx-2080"},
    "strategy": {
        "placement": {
            "*": "gpu:0",
            **{f"{part}decoder/*": "gpu:1" for part in ("", "grad/", "update/")},
        },
    },
}
SMALL = {
    "graph": {
        "ops": [
            {"name": "a", "time": 1, "outputs": [{"bytes": 8000}]},
            {"name": "b", "time": 1, "inputs": ["a"]},
        ]
    },
    "cluster": {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
    },
    "strategy": {"a": "gpu:0", "b": "gpu:1"},
}


class Size(NamedTuple):
    """How many scenarios, and how often."""

    scenarios: int
    passes: int


FULL, QUICK = Size(1_000, 2), Size(40, 1)


def grid(scenarios: int) -> dict[str, list[str]]:
    """As many points, a tenth of them a latency."""
    rows = -(-scenarios // 10)
    return {
        "cluster.bandwidth": [f"{1000 + i} MB/s" for i in range(rows)],
        "cluster.latency": [f"{10 * i} us" for i in range(min(10, scenarios))],
    }


class Clock:
    """CPU seconds of simulations, what they leave behind to be freed included."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last: Any = None

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, timed; its result is kept until the next one and freed on this clock."""

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.process_time()
            self._last = None
            self._last = call(*arguments, **named)
            self.seconds += time.process_time() - begin
            return self._last

        return timed


def overhead(question: Any, size: Size) -> tuple[float, float]:
    """(CPU seconds that a scenario costs beside its simulation, those of its simulation): the least
    of the passes.
    """
    found = []
    for _ in range(size.passes):
        clock = Clock()
        gc.collect()
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(sweeping, "run", clock.around(sweeping.run)),
        ):
            begin = time.process_time()
            results = sweep(question, grid(size.scenarios), 1, Path(folder, "journal"))
            whole = time.process_time() - begin
        if set(results["status"]) != {"ok"}:
            raise ValueError(f"a scenario failed: {results['reason'].iloc[0]}")
        found.append(((whole - clock.seconds) / len(results), clock.seconds / len(results)))
    return min(found)


def spent(size: Size, jobs: int) -> tuple[float, float, Any]:
    """(wall seconds, CPU seconds of this process and its workers, the rows) of a sweep; workers end
    with it.
    """
    begin, cpu = time.perf_counter(), _cpu()
    with tempfile.TemporaryDirectory() as folder:
        rows = sweep(QUESTION, grid(size.scenarios), jobs, Path(folder, "journal"))
    seconds = time.perf_counter() - begin
    _end_workers()
    return seconds, _cpu() - cpu, rows


def one_and_two(size: Size) -> dict[int, tuple[float, float]]:
    """(wall, CPU) seconds of the same sweep on one core and on two, the least of the passes; the
    rows are the same.
    """
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(size.passes):
        tables = []
        for jobs, seconds in found.items():
            *both, rows = spent(size, jobs)
            seconds.append((both[0], both[1]))
            tables.append(rows)
        if not tables[0].equals(tables[1]):
            raise AssertionError("two cores answer otherwise than one")
    return {
        jobs: (min(wall for wall, _ in both), min(cpu for _, cpu in both))
        for jobs, both in found.items()
    }


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _end_workers() -> None:
    """The next sweep starts its workers anew."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """All figures."""
    name = f"{size.scenarios:,} GNMT scenarios"
    say(f"{name}: what a sweep adds ...")
    more, simulation = overhead(QUESTION, size)
    tiny, _ = overhead(SMALL, size)
    say(f"{name}: one core and two ...")
    (wall, cpu), (wall_of_two, cpu_of_two) = one_and_two(size).values()
    control = "control: two plain processes / one (wall): cores that the machine gives now"
    return [
        Figure(name, "a scenario, over its simulation (CPU)", more * 1e3, "ms", 1.0, least=False),
        Figure(name, "its simulation: lower, simulate, analyze (CPU)", simulation * 1e3, "ms"),
        Figure(f"{size.scenarios:,} of two ops", "the same", tiny * 1e3, "ms", 1.0, least=False),
        Figure(name, "two cores / one core (wall)", wall / wall_of_two, "x", 1.8),
        Figure(
            name,
            "work of two cores / of one (CPU): 1 leaves 2x to be had",
            cpu_of_two / cpu,
            "x",
            1.1,
            least=False,
        ),
        Figure(name, "scenarios a second on two cores (wall)", size.scenarios / wall_of_two, "/s"),
        Figure(name, control, both_cores(), "x"),
    ]


if __name__ == "__main__":
    main("sweeps", __doc__, run, FULL, QUICK, "the least of the passes")
