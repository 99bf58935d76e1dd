"""Measures transfers: copies by size on a device, and messages between two processes of this
machine.

Copies are between host and device (pinned and pageable memory) and within a device. Their rows have
the format of a collective named ``copy``: ``from`` and ``to`` are ``host`` or the kind of device;
``span`` is the kind of host memory (pinned or pageable) or, for a copy within one place, that place
(device, core).

Messages are a ping-pong with PyTorch's gloo over the loopback interface; half a round trip is a
transfer. The line latency + bytes / bandwidth is fitted by least squares on the relative error, so
that small transfers count as much as large ones. Limit: the clock is wall time, which a busy
machine lengthens; so each size is measured in many short rounds spread over the run, and the round
with the least median counts. Successive messages use different memory, as in a step.

``profiles`` calls it for copies, ``simdev profile --links`` for messages between processes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from ..files.writing import parents, write_text
from ..ground.ending import unfinished
from ..ground.errors import InputError
from ..nouns.scale import memory_bytes
from .kinds import Fields
from .operators import WARM_UPS, Noise, Progress
from .provenance import describe, device_kind
from .timers import FLUSH_BYTES, QUANTILES, Timer, WallTimer, make_timer, quiet, timing_fields

COPY_SIZES = tuple(2048 * 4**i for i in range(10))  # 2 KiB to 512 MiB
COPY_REPS = 20
COPY_SETS = 3
COPY_ROW = {"v": 1, "coll": "copy", "ranks": 1, "dt": "uint8", "conc": 1, "src": "measured"}
LARGE_COPY = 2**26  # larger copies exceed the caches: one set of memory is enough

MESSAGE_SIZES = tuple(4096 * 2**i for i in range(13))  # 4 KiB to 16 MiB
ROUNDS, REPS, MESSAGE_WARM_UPS = 16, 11, 2
MEMORY_SHARE = 0.9  # of the machine's RAM; the devices divide it


def measure_copies(
    device: str, kind: str, sizes: Sequence[int] = COPY_SIZES, progress: Progress | None = None
) -> tuple[list[Fields], Fields, Fields]:
    """The rows of all copies of a device ("cpu" or "cuda"), the method, and the noise."""
    timer, wall = make_timer(device, flush=False), WallTimer()
    noise = Noise(timer)
    copies = list(_copies(device, kind, sizes))
    rows = []
    with quiet(device), torch.no_grad():
        for done, (source, target, span, size, make) in enumerate(copies, 1):
            noise.repeat()
            clock: Timer = wall if span == "pageable" else timer
            thunks = [make() for _ in range(COPY_SETS if size < LARGE_COPY else 1)]
            clock.sample(thunks, WARM_UPS, 1)
            samples = clock.sample(thunks, COPY_REPS, 1)
            ends = {"from": source, "to": target, "span": span, "bytes": size}
            rows.append(COPY_ROW | ends | {"meth": clock.method} | timing_fields(samples.device))
            if progress is not None:
                progress(done, len(copies), f"{source} to {target}")
    method = {
        "timer": timer.method,
        "pageable": wall.method,
        "statistic": "median",
        "warm_ups": WARM_UPS,
        "reps": [COPY_REPS, COPY_REPS],
        "input_sets": COPY_SETS,
        "inputs": "random bytes",
    }
    return rows, method, noise.report()


def _copies(
    device: str, kind: str, sizes: Sequence[int]
) -> Iterator[tuple[str, str, str, int, Callable[[], Callable[[], Any]]]]:
    """Every copy to be measured: (from, to, span, bytes, a maker of the copying call)."""
    if device == "cpu":
        for size in sizes:
            yield "host", "host", "core", size, partial(_copy, size, "cpu", "cpu", False)
        return
    for span, pinned in (("pinned", True), ("pageable", False)):
        for size in sizes:
            yield "host", kind, span, size, partial(_copy, size, "cpu", "cuda", pinned)
            yield kind, "host", span, size, partial(_copy, size, "cuda", "cpu", pinned)
    for size in sizes:
        yield kind, kind, "device", size, partial(_copy, size, "cuda", "cuda", False)


def _copy(size: int, source: str, target: str, pinned: bool) -> Callable[[], Any]:
    filled = torch.randint(256, (size,), dtype=torch.uint8)
    ends = [
        memory.cuda() if device == "cuda" else memory.pin_memory() if pinned else memory
        for memory, device in ((filled, source), (torch.zeros_like(filled), target))
    ]
    return partial(ends[1].copy_, ends[0], non_blocking=pinned)


@dataclass(frozen=True, slots=True)
class LinkFit:
    """The fitted line seconds = latency + bytes / bandwidth. Errors are relative, over the measured
    sizes.
    """

    latency_s: float
    bandwidth: float
    mean_error: float
    max_error: float


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """For each size, the median seconds of a transfer in its quietest round, and the 10th and 90th
    percentiles of that round.
    """

    sizes: tuple[int, ...]
    p10: tuple[float, ...]
    p50: tuple[float, ...]
    p90: tuple[float, ...]


Message = Callable[[int, Tensor, Tensor], Any]
"""A communication to measure, called with the rank, a tensor of the message's size, and a tensor of
half that size.
"""


def there_and_back(rank: int, whole: Tensor, _: Tensor) -> None:
    """Sends a tensor from rank 0 to rank 1, and back."""
    for sender in (0, 1):
        (dist.send if rank == sender else dist.recv)(whole, 1 - rank)


def measure_messages(call: Message = there_and_back, messages: int = 2) -> LinkTimes:
    """Seconds of one message between two local processes, by size. A ``call`` sends ``messages``
    of them one after another; each size is measured in ROUNDS rounds of REPS calls.
    """
    times = between_two(_play, call, messages)
    quietest = [
        min((np.quantile(of_round, QUANTILES).tolist() for of_round in of_size), key=itemgetter(1))
        for of_size in zip(*times, strict=True)
    ]
    return LinkTimes(MESSAGE_SIZES, *zip(*quietest, strict=True))


def between_two(play: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``play(rank, *arguments)`` on rank 0 of two processes, each on its own core."""
    with tempfile.TemporaryDirectory() as folder, unfinished(folder):
        spawn(_side, (folder, play, *arguments), nprocs=2)
        return json.loads(Path(folder, "times.json").read_text(encoding="utf-8"))


def _side(rank: int, folder: str, play: Callable[..., Any], *arguments: Any) -> None:
    stay_on_core(rank)
    # Otherwise gloo uses the interface of the host's name, which may be a real network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    times = play(rank, *arguments)
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def stay_on_core(rank: int) -> None:
    """Pins this process, with all threads that it starts, to one core: the device of its rank."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def _play(rank: int, call: Message, messages: int) -> list[list[list[float]]]:
    """Seconds of a message, by round, size and repetition."""
    largest = max(MESSAGE_SIZES)
    place = _places(torch.randn((FLUSH_BYTES["cpu"] + 2 * largest) // 4), largest)

    def seconds(size: int) -> float:
        tensors = place(size)
        start = time.perf_counter()
        call(rank, *tensors)
        return (time.perf_counter() - start) / messages

    counts = range(MESSAGE_WARM_UPS + REPS)
    return [
        [[seconds(size) for _ in counts][MESSAGE_WARM_UPS:] for size in MESSAGE_SIZES]
        for _ in range(ROUNDS)
    ]


def _places(pool: Tensor, largest: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A function that returns tensors of a size and of half that size, each time at the next place
    in a pool, so that the caches do not hold them.
    """
    begin = 0

    def place(size: int) -> tuple[Tensor, Tensor]:
        nonlocal begin
        whole, half = size // 4, size // 8
        start, begin = begin, (begin + whole + half) % (len(pool) - largest // 2)
        return pool[start : start + whole], pool[start + whole : start + whole + half]

    return place


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> LinkFit:
    """The line that minimises the sum of squared relative errors.

    Raises InputError for fewer than two sizes, or times that do not grow with them.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(seconds) or min(seconds) <= 0:
        raise InputError("sizes: a line needs at least two sizes, each with a positive time")
    n, t = np.asarray(sizes, float), np.asarray(seconds, float)
    # Dividing each equation latency + bytes/bandwidth = t by its t turns absolute errors into
    # relative ones.
    (latency, per_byte), *_ = np.linalg.lstsq(
        np.stack([1 / t, n / t], 1), np.ones_like(t), rcond=None
    )
    if latency < 0:
        # A latency cannot be negative: the best line that is left goes through the origin.
        latency, per_byte = 0.0, float((n / t).sum() / ((n / t) ** 2).sum())
    if per_byte <= 0:
        raise InputError("seconds: do not grow with the sizes")
    errors = abs((latency + per_byte * n) / t - 1)
    return LinkFit(float(latency), float(1 / per_byte), float(errors.mean()), float(errors.max()))


def cluster_object(devices: int, kind: str, times: LinkTimes, fit: LinkFit) -> Fields:
    """A cluster in the JSON format v1: ``devices`` equal devices, each pair linked as measured."""
    ram = memory_bytes()
    if ram is None:
        raise InputError("memory: the operating system does not tell how much there is")
    memory = int(ram * MEMORY_SHARE / devices)
    share = f"measured RAM {ram} bytes x {MEMORY_SHARE} / {devices} devices"
    cluster: Fields = {
        "version": 1,
        "name": f"{devices}x-cpu",
        "queues": "half-duplex",
        "transfer": "once-per-device",
        "devices": [{"name": f"cpu:{i}", "kind": kind, "memory": memory} for i in range(devices)],
        "provenance": {"memory": share, **describe("cpu")},
    }
    if devices > 1:
        bandwidth, latency = round(fit.bandwidth / 1e6), round(fit.latency_s * 1e6, 1)
        link = {"bandwidth": f"{bandwidth} MB/s", "latency": f"{latency} us"}
        cluster["links"] = {"all_to_all": link}
        cluster["provenance"]["links"] = _link_provenance(times, fit)
    return cluster


def _link_provenance(times: LinkTimes, fit: LinkFit) -> Fields:
    columns = zip(times.sizes, times.p10, times.p50, times.p90, strict=True)
    return {
        "kind": "fitted to measurements",
        "source": (
            "half a round trip between two processes of one machine, torch.distributed gloo over "
            "loopback"
        ),
        "fit": "latency + bytes / bandwidth, least squares on the relative error",
        "mean_error": round(fit.mean_error, 4),
        "max_error": round(fit.max_error, 4),
        "rounds": ROUNDS,
        "reps": REPS,
        "statistic": "median of the quietest round",
        "measured_us": [
            {"bytes": size}
            | {f"p{p}": round(value * 1e6, 1) for p, value in zip((10, 50, 90), row, strict=True)}
            for size, *row in columns
        ],
    }


def write_measured_cluster(path: str | os.PathLike[str], devices: int = 4) -> LinkFit:
    """Measures the links of this machine and writes a cluster of ``devices`` cores; returns the
    fit.
    """
    times = measure_messages()
    fit = fit_line(times.sizes, times.p50)
    cluster = cluster_object(devices, device_kind("cpu"), times, fit)
    with parents(path):
        write_text(path, json.dumps(cluster, indent=1) + "\n")
    return fit
