"""Training scripts really run, two processes over gloo, beside what is simulated of their capture:
``python -m benchmarks.scripts [ddp] [fsdp] [pipeline] [--seconds N]``.

The script (``gloo_training``) is run as it is and captured as it is. Its operators are profiled on
a core, N seconds for each way of training; gloo's collectives and messages are measured over sizes,
and how much computing and an all_reduce lengthen each other on a core. What Python and PyTorch take
between two operators is told by the script on tiny tensors: its step really run, less its step
simulated without. Nothing is fitted to the steps that are compared.
A process has a core of its own for its thread that computes and gloo's. Needs two idle cores: the
spread of the steps, before and after profiling, is printed beside.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from simdev import load_scenario, run
from simdev.files.writing import write_text
from simdev.measure.capture import Capture
from simdev.measure.operators import Conditions
from simdev.measure.provenance import describe, device_kind
from simdev.measure.ranks import capture_ranks
from simdev.measure.ranks.pretend import Mail, World
from simdev.measure.ranks.scripts import captured_rank, run_file
from simdev.measure.ranks.writing import RankWriter
from simdev.measure.steps import measure_alone, profile_text
from simdev.measure.timers import QUANTILES, keep_freed_memory
from simdev.measure.transfers import (
    MESSAGE_SIZES,
    REPS,
    LinkTimes,
    between_two,
    cluster_object,
    fit_line,
    measure_messages,
    stay_on_core,
)

SCRIPT = Path(__file__).with_name("gloo_training.py")
KINDS = ("ddp", "fsdp", "pipeline")
RANKS = 2
Sizes = tuple[str, ...]
"""Width and length that the script is given; () are those of the script itself."""
TINY: Sizes = ("16", "2")
TINY_SECONDS = 2.0


def really_run(kind: str, sizes: Sizes = ()) -> list[float]:
    """Seconds of the steps of the script, as rank 0 told them."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("localhost", 0))
        file = str(Path(folder, "seconds.json"))
        port = free.getsockname()[1]
        free.close()
        spawn(_rank, (kind, file, port, sizes), nprocs=RANKS)
        seconds: list[float] = json.loads(Path(file).read_text())
    return seconds


def _rank(rank: int, kind: str, file: str, port: int, sizes: Sizes) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    stay_on_core(rank)
    keep_freed_memory()  # as while operators are profiled
    sys.argv = [str(SCRIPT), kind, file, *sizes]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def profiled(kind: str, seconds: float, folder: Path, sizes: Sizes = ()) -> list[Path]:
    """Profiles of the operators of both ranks, which are measured at the same time, as they run."""
    inner = Path(tempfile.mkdtemp(dir=folder))
    spawn(_profile, (kind, seconds, inner, sizes), nprocs=RANKS)
    return [inner / f"{kind}-{rank}.jsonl" for rank in range(RANKS)]


def _profile(rank: int, kind: str, seconds: float, folder: Path, sizes: Sizes) -> None:
    stay_on_core(rank)
    mail = Mail(FileStore(str(folder / f"{kind}-mail"), -1), rank)
    program = partial(run_file, SCRIPT, [kind, os.devnull, *sizes])
    captured = computed(RankWriter(captured_rank(program, World(RANKS, rank), mail)))
    measured = measure_alone(captured, Conditions("cpu", device_kind("cpu"), seconds))
    for reason in measured.unmeasured:
        print(f"not measured: {reason}")
    write_text(folder / f"{kind}-{rank}.jsonl", profile_text(measured, describe("cpu")))


def computed(writer: RankWriter) -> Capture:
    """The operators of a rank's step that compute."""
    writer.step()
    keys = [key for key, call in writer.calls.items() if "c10d" not in call.func.namespace]
    calls, rows, counts = (
        {key: table[key] for key in keys} for table in (writer.calls, writer.rows, writer.counts)
    )
    return Capture({}, calls, rows, counts, {})


def all_reduce(_: int, whole: Tensor, __: Tensor) -> None:
    dist.all_reduce(whole)


def all_gather(_: int, whole: Tensor, part: Tensor) -> None:
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, part)


def reduce_scatter(_: int, whole: Tensor, part: Tensor) -> None:
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(part, whole)


def measure_slowdown(size: int = MESSAGE_SIZES[-1], reps: int = REPS) -> float:
    """How many times longer an all_reduce and computing take while they share a core (1 to 2).

    Products and an all_reduce that take equally long by themselves take k times as long beside one
    another. Of each the 10th percentile counts: a busy machine only lengthens.
    """
    alone, sent, both = np.quantile(between_two(compete, size, reps), QUANTILES[0], 0)
    return float(min(2, max(1, 1 + (both - max(alone, sent)) / min(alone, sent))))


def compete(_: int, size: int, reps: int) -> list[tuple[float, float, float]]:
    """Seconds of products alone, of an all_reduce alone, and of both beside one another."""
    tensor, square = torch.randn(size // 4), torch.randn(256, 256)

    def compute(count: int) -> None:
        for _ in range(count):
            square @ square

    def seconds(count: int, sends: bool) -> float:
        dist.barrier()
        start = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True) if sends else None
        compute(count)
        if work is not None:
            work.wait()
        tensor.fill_(1)
        return time.perf_counter() - start

    # As many products as take as long as a message, on the slower side.
    sent, each = (
        min(seconds(count, sends) for _ in range(5)) for count, sends in ((0, True), (9, False))
    )
    count = torch.tensor(9 * sent / each)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    ways = ((int(count), False), (0, True), (int(count), True))
    return [tuple(seconds(*way) for way in ways) for _ in range(reps)]  # type: ignore[misc]


def messages() -> dict[str, Any]:
    """The cluster of the two cores as measured, and how its collectives run."""
    links = measure_messages()
    calls = {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}
    times = {"p2p": links} | {kind: measure_messages(call, 1) for kind, call in calls.items()}
    cluster = cluster_object(RANKS, device_kind("cpu"), links, fit_line(links.sizes, links.p50))
    tables = [
        {"collective": kind, "ranks": RANKS, "anchors": anchors(of_kind)}
        for kind, of_kind in times.items()
    ]
    slowdown = round(measure_slowdown(), 2)
    print(f"computing beside an all_reduce: both {slowdown} times as long")
    choice = {"cost": "table", "slowdown": slowdown, "tables": {"version": 1, "tables": tables}}
    return {"cluster": cluster, "collectives": choice}


def anchors(times: LinkTimes) -> list[list[Any]]:
    """Pairs of bytes and time, as tables of collectives have them."""
    pairs = zip(times.sizes, times.p50, strict=True)
    return [[size, f"{seconds * 1e6:.3f} us"] for size, seconds in pairs]


def predicted(
    kind: str,
    profiles: Sequence[Path],
    machine: dict[str, Any],
    sizes: Sizes = (),
    between: float = 0.0,
) -> tuple[float, int]:
    """Seconds of a step as simulated, ``between`` of them behind each operator that computes; and
    how many of these rank 0 runs.
    """
    captured = capture_ranks(SCRIPT, RANKS, arguments=[kind, os.devnull, *sizes])
    devices = [{**device, "gap": between} for device in machine["cluster"]["devices"]]
    cluster = {**machine["cluster"], "devices": devices}
    question = captured.document(cluster, [str(path) for path in profiles])
    strategy = question["strategy"]
    strategy["collectives"] = {**machine["collectives"], **strategy.get("collectives", {})}
    step = captured.steps[0]
    count = sum("inputs" in op and i not in step.messages for i, op in enumerate(step.ops))
    return float(run(load_scenario(question)).seconds), count


def between_ops(kind: str, machine: dict[str, Any], folder: Path) -> float:
    """Seconds that Python and PyTorch take between two operators of the script."""
    profiles = profiled(kind, TINY_SECONDS, folder, TINY)
    simulated, count = predicted(kind, profiles, machine, TINY)
    return round(max(0.0, median(really_run(kind, TINY)) - simulated) / count, 9)


def main() -> None:
    """Measures, runs and simulates; prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    machine = messages()
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.kinds:
            before = really_run(kind)
            profiles = profiled(kind, arguments.seconds, Path(folder))
            after, between = really_run(kind), between_ops(kind, machine, Path(folder))
            seconds, _ = predicted(kind, profiles, machine, between=between)
            measured = median(before + after)
            runs = ", then ".join(
                f"{median(of_run) * 1e3:.1f} ({min(of_run) * 1e3:.1f} to {max(of_run) * 1e3:.1f})"
                for of_run in (before, after)
            )
            print(
                f"{kind}: simulated {seconds * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms, off "
                f"{100 * (seconds / measured - 1):+.1f}%; {between * 1e6:.1f} us between "
                f"operators; medians of runs in ms: {runs}",
                flush=True,
            )


if __name__ == "__main__":
    main()
