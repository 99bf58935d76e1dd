"""Events per second of export_chrome_trace: ``python -m benchmarks.export``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from simdev.nouns.taskgraph import Buffers, Resource, Rows, TaskGraph, Tasks
from simdev.nouns.trace import Trace
from simdev.report.export import export_chrome_trace

DEVICES = 8
STEPS = 8_000  # ops on each device, each followed by a transfer to the next device
REPEATS = 3


def ring(devices: int = DEVICES, steps: int = STEPS) -> Trace:
    """Each device computes and sends what it computed to the next one, again and again: a trace
    without an engine.
    """
    names = tuple(f"gpu:{d}" for d in range(devices))
    count = devices * steps
    op, device = np.arange(count), np.arange(count) % devices
    peer = (device + 1) % devices
    compute, transfer = op, op + count
    queues = [[d] for d in device] + [
        [devices + d, 2 * devices + p] for d, p in zip(device, peer, strict=True)
    ]
    # Task t + devices + 1 is the next op of the next device.
    successors = [[t] for t in transfer.tolist()] + [
        [t] if t < count else [] for t in (op + devices + 1).tolist()
    ]
    begin = op // devices * 1_234_567
    zeros = np.zeros(2 * count, np.int64)
    tasks = Tasks(
        tuple(f"op_{i}" for i in op) + tuple(f"op_{i}:0>gpu:{p}" for i, p in zip(op, peer,
        strict=True)),
        ("forward",) * count + ("transfer",) * count,
        np.concatenate((op, op)), zeros, np.concatenate((device, device)), np.concatenate((device,
        peer)),
        np.full(2 * count, 500_001), zeros, zeros, zeros, np.repeat([0, 4096], count),
        zeros.astype(bool), Rows.of(queues), Rows.of([] for _ in range(2 * count)),
        Rows.of(successors),
    )  # fmt: skip
    resources = [
        Resource(prefix + name, device=d)
        for prefix in ("", "send ", "recv ")
        for d, name in enumerate(names)
    ]
    buffers = Buffers(
        tuple(f"op_{i}:0" for i in op), device, np.full(count, 4096), np.full(count, 3), compute,
        Rows.of([t] for t in transfer.tolist()),
    )  # fmt: skip
    graph = TaskGraph(tasks, tuple(resources), buffers, names, np.full(devices, -1))
    start = np.concatenate((begin, begin + 600_000))
    return Trace(graph, start, start + tasks.duration, "hand-made")


def main() -> None:
    trace = ring()
    trace.memory  # noqa: B018  - computed once, before the clock starts
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".json", ".json.gz"):
            path, best, events = Path(folder, "trace" + suffix), float("inf"), 0
            for _ in range(REPEATS):
                begin = time.perf_counter()
                events = export_chrome_trace(trace, path)
                best = min(best, time.perf_counter() - begin)
            size = path.stat().st_size / 1e6
            print(
                f"{suffix:9} {events:,} events, {size:.1f} MB, {best:.2f} s: "
                f"{events / best:,.0f} events/s"
            )


if __name__ == "__main__":
    main()
