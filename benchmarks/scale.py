"""Questions as large as they come: ``python -m benchmarks.scale [--quick] [--limit T] [--json]``.

Each runs in a process of its own, by the command that a person would type, and ends with an answer
or with a refusal in one line that tells about how long it would take and how much memory. Seconds
are from start to end; memory is the most that the process held. With ``--limit`` (a time, or none)
more is tried: mind the memory of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import machine, print_table

NUMBERS = "seconds", "cpu_seconds", "memory_mib"
SHORT = 100  # of a --quick run: so many times smaller
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A question: what came of it, in how many seconds, of which the processor worked so many, and
    the most memory that it held.
    """

    question: str
    answer: str
    seconds: float
    cpu_seconds: float
    memory_mib: float


def resnet_50(replicas: int) -> Document:
    """Data parallelism of ResNet-50 on machines of eight GPUs, 32 images each."""
    nodes = {"nodes": replicas // 8} if replicas > 8 else {}
    return {
        "version": 1,
        "graph": {"model": "resnet-50", "batch": 32 * replicas},
        "cluster": {"preset": "dgx-h100", **nodes},
        "strategy": {"version": 1, "short": "data-parallel"},
    }


def chain(ops: int, devices: int = 4) -> Document:
    """A graph of so many ops, in blocks on four devices."""
    rows = [
        {
            "name": f"op{i}",
            "inputs": sorted({f"op{max(i - step, 0)}" for step in (1, 2 + i * 7 % 19)}) * (i > 0),
            "outputs": [{"bytes": 4096}],
            "time": "10 us",
        }
        for i in range(ops)
    ]
    placement = {f"op{i}": f"gpu:{i * devices // ops}" for i in range(ops)}
    return {
        "version": 1,
        "graph": {"version": 1, "name": "chain", "ops": rows},
        "cluster": {"preset": "c4140-4x-v100"},
        "strategy": {"version": 1, "placement": placement},
    }


def star(devices: int) -> Document:
    """Data parallelism of ResNet-50 on single GPUs around a switch."""
    gpus = [{"name": f"gpu:{i}", "kind": "v100", "memory": "16 GB"} for i in range(devices)]
    link = {"bandwidth": "10 GB/s", "latency": "5 us"}
    links = [{"ends": [gpu["name"], "switch"], **link} for gpu in gpus]
    switch = {"name": "switch", "kind": "switch"}
    cluster = {"version": 1, "name": "star", "queues": "link", "devices": [*gpus, switch]}
    return resnet_50(devices) | {"cluster": cluster | {"links": links}}


def soap(ops: int, gpus: int = 64) -> Document:
    """Products in a row, each cut along samples or channels or both, over all GPUs."""
    width, batch = 256, 1024
    tensor = {"bytes": 4 * width * batch, "shape": [batch, width], "dtype": "float32"}
    weight = {"bytes": 4 * width * width, "shape": [width, width], "dtype": "float32"}
    rows: list[Document] = [
        {"name": "x", "kind": "input", "outputs": [tensor], "time": 0},
        {"name": "w", "kind": "parameter", "outputs": [weight], "time": 0},
    ]
    splits = ({"m": 64}, {"m": 8, "n": 8}, {"n": 64})
    partition = {}
    for i in range(ops):
        before = f"fc{i - 1}" if i else "x"
        row = {"name": f"fc{i}", "kind": "matmul", "inputs": [before, "w"], "outputs": [tensor]}
        rows.append(row | {"time": "1 ms"})
        partition[f"fc{i}"] = {"split": splits[i % 3], "time": "divided"}
    return {
        "version": 1,
        "graph": {"version": 1, "name": "products", "ops": rows},
        "cluster": {"preset": "dgx-h100", "nodes": gpus // 8},
        "strategy": {"version": 1, "partition": partition},
    }


def file_of(document: Document, folder: str) -> list[str]:
    """The command that simulates a document."""
    path = Path(folder, "scenario.json")
    path.write_text(json.dumps(document))
    return ["simulate", str(path)]


def questions(size: int) -> dict[str, Callable[[str], list[str]]]:
    """By name the command of each question, which may write files into a folder; all so many times
    smaller.
    """
    pipeline = ["--stages", "64", "--microbatches", str(10_000 // size)]
    times = ["--forward", "1ms", "--backward", "2ms"]
    large = ["--model", "llama3-405b", "--cluster", "dgx-h100", "--nodes", "63", "--tp", "8"]
    sizes = ["--pp", "63", "--microbatches", str(10_000 // size)]
    gpus = max(8192 // size // 8 * 8, 8)
    return {
        f"ResNet-50 on {gpus:,} GPUs": lambda at: file_of(resnet_50(gpus), at),
        f"{1_000_000 // size:,} ops": lambda at: file_of(chain(1_000_000 // size), at),
        f"{100_000 // size:,} devices": lambda at: file_of(star(100_000 // size), at),
        f"{20_000 // size:,} ops cut over 64 GPUs": lambda at: file_of(soap(20_000 // size), at),
        f"64 stages x {10_000 // size:,}": lambda at: ["pipeline", *pipeline, *times],
        f"llama3-405b, 63 x {10_000 // size:,}": lambda at: ["simulate", *large, *sizes],
    }


def asked(name: str, command: list[str]) -> Row:
    """Run one command. Raises AssertionError where it neither answers nor refuses."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "simdev", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text = process.communicate()[0]
    seconds = time.perf_counter() - started
    assert process.returncode in (0, 1, 2), text[-2000:]
    lines = text.strip().splitlines()
    step = next((line for line in lines if "tep time" in line or "ms a step" in line), lines[0])
    answer = lines[-1] if process.returncode == 2 else step
    # The most of any child so far: each question is asked by a process of its own.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = used.ru_utime + used.ru_stime
    return Row(name, answer.strip(), seconds, cpu_seconds, used.ru_maxrss / 1024)


def _alone(number: int, size: int, limit: list[str]) -> None:
    """Ask the question of this number and print its row as JSON."""
    name, command = list(questions(size).items())[number]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(asked(name, [*command(folder), *limit]))))


def main() -> None:
    """Ask all questions, or that of one number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{SHORT} times smaller")
    parser.add_argument("--limit", help="what may take so long by a guess is tried; none: all")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size, limit = (SHORT if args.quick else 1), ["--limit", args.limit] * bool(args.limit)
    if args.only is not None:
        _alone(args.only, size, limit)
        return
    rows = []
    for number in range(len(questions(size))):
        options = [f"--only={number}", *["--quick"] * args.quick, *limit]
        command = [sys.executable, "-m", "benchmarks.scale", *options]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads(text))
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(machine(), f"({os.getloadavg()[0]:.1f} processes waited for it)")
    table = [(r["question"], *(f"{r[name]:.1f}" for name in NUMBERS), r["answer"]) for r in rows]
    print_table(("question", "s", "CPU s", "MiB", "answer"), table)


if __name__ == "__main__":
    main()
