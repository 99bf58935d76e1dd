"""Measures what a transfer between two processes of this machine takes, and writes a cluster that
says so.

Two processes play ping-pong with PyTorch's gloo over the loopback interface; half a round trip is
one transfer. The line latency + bytes / bandwidth is fitted by least squares on the relative error,
so that small transfers count as much as large ones. Limit: wall time, which a busy machine only
lengthens; so each size is measured in many short rounds spread over the run, and the round with the
least median counts.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError

SIZES = tuple(4096 * 2**i for i in range(13))
"""4 KiB to 16 MiB."""
ROUNDS, REPS, WARM_UPS = 16, 11, 2
MEMORY_SHARE = 0.9
"""Of the machine's RAM; the devices divide it."""


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A fitted line: seconds = latency + bytes / bandwidth; errors are relative, over the measured
    sizes.
    """

    latency_s: float
    bandwidth: float
    mean_error: float
    max_error: float


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Median seconds of a transfer of each size in its quietest round, with the 10th and 90th
    percentile there.
    """

    sizes: tuple[int, ...]
    p10: tuple[float, ...]
    p50: tuple[float, ...]
    p90: tuple[float, ...]


def measure_links(
    sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, reps: int = REPS
) -> LinkTimes:
    """Transfer times between two local processes, in seconds; ``rounds`` times ``reps`` round trips
    of each size.
    """
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (port, tuple(sizes), rounds, reps, queue)
    processes = [context.Process(target=_play, args=(rank, *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process of the measurement ended with an error")
    by_size = zip(*queue.get(), strict=True)
    quietest = [
        min(map(_quantiles, of_one_size), key=lambda quantiles: quantiles[1])
        for of_one_size in by_size
    ]
    return LinkTimes(tuple(sizes), *zip(*quietest, strict=True))


def _play(rank: int, port: int, sizes: Sequence[int], rounds: int, reps: int, queue: Any) -> None:
    """One side of the ping-pong; side 0 times it."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = torch._C._distributed_c10d.TCPStore(
        "127.0.0.1", port, world_size=2, is_master=rank == 0
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tensors = [torch.randn(size // 4) for size in sizes]
    times = [[_transfers(rank, tensor, reps) for tensor in tensors] for _ in range(rounds)]
    if rank == 0:
        queue.put(times)
    dist.barrier()
    dist.destroy_process_group()


def _transfers(rank: int, tensor: Any, reps: int) -> list[float]:
    """Seconds of a transfer, half a round trip each, after warm-ups."""
    return [_round_trip(rank, tensor) / 2 for _ in range(WARM_UPS + reps)][WARM_UPS:]


def _round_trip(rank: int, tensor: Any) -> float:
    import torch.distributed as dist

    start = time.perf_counter()
    for turn in (0, 1):
        if rank == turn:
            dist.send(tensor, 1 - rank)
        else:
            dist.recv(tensor, 1 - rank)
    return time.perf_counter() - start


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return (
        ordered[len(ordered) // 10],
        statistics.median(ordered),
        ordered[(len(ordered) * 9) // 10],
    )


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> LinkFit:
    """The line that makes the sum of squared relative errors least.

    Raises InputError for fewer than two sizes, or times that do not grow with them.
    """
    import numpy as np

    if len(set(sizes)) < 2 or len(sizes) != len(seconds) or min(seconds) <= 0:
        raise InputError("sizes: a line needs at least two sizes, each with a positive time")
    n, t = np.asarray(sizes, float), np.asarray(seconds, float)
    # Dividing each equation latency + bytes/bandwidth = t by its t turns absolute errors into
    # relative ones.
    (latency, per_byte), *_ = np.linalg.lstsq(
        np.stack([1 / t, n / t], 1), np.ones_like(t), rcond=None
    )
    if latency < 0:
        latency, per_byte = 0.0, float((n / t).sum() / ((n / t) ** 2).sum())
    if per_byte <= 0:
        raise InputError("seconds: do not grow with the sizes")
    errors = abs((latency + per_byte * n) / t - 1)
    return LinkFit(float(latency), float(1 / per_byte), float(errors.mean()), float(errors.max()))


def cluster_object(devices: int, kind: str, times: LinkTimes, fit: LinkFit) -> dict[str, Any]:
    """A cluster in the JSON format v1: ``devices`` alike, every two linked as measured."""
    from .provenance import describe, memory_bytes

    memory = int(memory_bytes() * MEMORY_SHARE / devices)
    share = f"measured RAM {memory_bytes()} bytes x {MEMORY_SHARE} / {devices} devices"
    found: dict[str, Any] = {
        "version": 1,
        "name": f"{devices}x-cpu",
        "queues": "half-duplex",
        "transfer": "once-per-device",
        "devices": [{"name": f"cpu:{i}", "kind": kind, "memory": memory} for i in range(devices)],
        "provenance": {"memory": share, **describe("cpu")},
    }
    if devices > 1:
        found["links"] = {
            "all_to_all": {
                "bandwidth": f"{round(fit.bandwidth / 1e6)} MB/s",
                "latency": f"{round(fit.latency_s * 1e6, 1)} us",
            }
        }
        found["provenance"]["links"] = _link_provenance(times, fit)
    return found


def _link_provenance(times: LinkTimes, fit: LinkFit) -> dict[str, Any]:
    rows = zip(times.sizes, times.p10, times.p50, times.p90, strict=True)
    return {
        "kind": "fitted to measurements",
        "source": (
            "half a round trip between two processes of one machine, torch.distributed "
            "gloo over loopback"
        ),
        "fit": "latency + bytes / bandwidth, least squares on the relative error",
        "mean_error": round(fit.mean_error, 4),
        "max_error": round(fit.max_error, 4),
        "rounds": ROUNDS,
        "reps": REPS,
        "statistic": "median of the quietest round",
        "measured_us": [
            {
                "bytes": size,
                **{
                    name: round(value * 1e6, 1)
                    for name, value in zip(("p10", "p50", "p90"), values, strict=True)
                },
            }
            for size, *values in rows
        ],
    }


def write_measured_cluster(path: str | os.PathLike[str], devices: int = 4) -> LinkFit:
    """Measures the links of this machine and writes a cluster of ``devices`` cores; returns the
    fit.
    """
    from ..files.writing import write_text
    from .provenance import device_kind

    times = measure_links()
    fit = fit_line(times.sizes, times.p50)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(
        path, json.dumps(cluster_object(devices, device_kind("cpu"), times, fit), indent=1) + "\n"
    )
    return fit
