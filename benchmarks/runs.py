"""Published training runs of 2024 to 2026 beside simulated ones: ``python -m benchmarks.runs
[PART ...]`` simulates the rows of ``profiles/runs`` whose cells (model and system) have one of the
parts in their names, and prints errors row by row and cell by cell.

A row tells its layout alone. What it does not tell is simdev's default, and nothing is fitted to
it. Rows that cannot be asked are counted with their reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.common import print_table
from simdev import load_scenario, run
from simdev.ground.errors import InputError

FOLDER = Path(__file__).resolve().parent.parent / "profiles" / "runs"
PRESETS = {
    "H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300",
    "GB200": "gb200-nvl72", "GB300": "gb300-nvl72",
}  # fmt: skip
"""The preset of the machines of a system."""
PRECISIONS = {"BF16": "bfloat16", "FP8-MX": "mxfp8", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
"""The precision of a row by its name; all others are of float8, scaled by tensor or by block."""

NCCL_SLOWDOWN = 1.22
"""NCCL's kernels hold 24 of an H100's 132 SMs beside computing: 132 / (132 - 24)."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published run: its cell (model and system), layout, and tokens a second and GPU."""

    cell: str
    layout: str
    tokens: float
    row: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """The published time of a step."""
        row = self.row
        samples = row.get("global_batch") or row["local_batch"] * row["dp_shard"]
        return float(samples * row["length"] / self.tokens / row["gpus"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of simdev to a published run: the time of a step, or why it cannot be asked."""

    published: Published
    seconds: float | None = None
    fits: bool = False
    reason: str = ""

    @property
    def error(self) -> float:
        """The relative error of the time of a step: negative where it is too fast."""
        assert self.seconds is not None
        return self.seconds / self.published.seconds - 1


def published() -> Iterator[Published]:
    """All rows, in the order of the files."""
    for row in _rows("megatron_bridge.jsonl"):
        names = ("fsdp", "tp", "pp", "cp", "chunks", "ep")
        degrees = " ".join(f"{name} {row[name]}" for name in names if row[name] > 1)
        layout = f"{row['gpus']}: {degrees}, {row['precision'][:6]}, {row['release']}"
        cell = f"{row['model']} on {row['system']}"
        yield Published(cell, layout, row["tokens_per_s_per_gpu"], row)
    for row in _rows("torchtitan.jsonl"):
        layout = f"{row['gpus']}: tp {row['tp']}, {row['techniques']}"
        yield Published(f"{row['model']} by torchtitan", layout, row["tokens_per_s_per_gpu"], row)


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def scenario_of(run: Published) -> dict[str, Any]:
    """The question as a scenario file. Raises InputError where simdev has no way to ask it."""
    if "system" not in run.row:
        return _torchtitan(run.row)
    row = run.row
    if row["task"] != "Pre-Training":
        raise InputError(f"task {row['task']}: only pre-training is modelled")
    replicas = row["gpus"] // (row["tp"] * row["pp"] * row["cp"])
    pipeline = {name: row[name] for name in ("tp", "pp", "cp", "ep", "chunks", "microbatch")}
    pipeline |= {"dp": replicas, "global_batch": row["global_batch"]}
    # Where ep is over 1, Megatron-Bridge's recipes keep experts whole on a grid of their own.
    pipeline |= {"etp": 1} if row["ep"] > 1 else {}
    pipeline |= {"zero": 3 if row["fsdp"] > 1 else 1, "flash": True}
    graph = {"model": row["model"], "length": row["length"], "causal": True}
    graph["precision"] = PRECISIONS.get(row["precision"], "float8")
    cluster = {"preset": PRESETS[row["system"]], "gpus": row["gpus"]}
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}


def _torchtitan(row: Mapping[str, Any]) -> dict[str, Any]:
    # Parameters and their gradients are float32 and sharded, as the two moments of Adam are: of 16
    # bytes 2 count as parameters here and 4 as gradients. Gradients are reduced in float32
    # (torchtitan, ``mixed_precision_reduce``).
    pipeline = {name: row[name] for name in ("tp", "cp", "pp")}
    pipeline |= {
        "dp": row["dp_shard"], "zero": 3, "flash": True, "reduce_bytes": 4, "state_bytes": 10,
        "microbatch": row["local_batch"], "slowdown": NCCL_SLOWDOWN,
        "recompute": row["recompute"].split()[0],
    }  # fmt: skip
    if pipeline["recompute"] == "selective":
        pipeline["recompute_modules"] = ["per_op"]
    if row["pp"] > 1:
        # Parameters stay gathered from microbatch to microbatch, of a sample each, and gradients
        # are reduced after the last (``reshard_after_forward``, ``set_requires_gradient_sync``).
        pipeline |= {"zero": 1, "state_bytes": 12, "microbatch": 1}
        pipeline["microbatches"] = row["local_batch"]
    if row["schedule"]:
        pipeline["schedule"] = row["schedule"].replace(" ", "")
        # Schedules with several stages a rank have two where nothing else is told.
        pipeline["chunks"] = 2 if "interleaved" in row["schedule"].lower() else 1
    if "async TP" in row["techniques"]:
        pipeline["tp_comm_overlap"] = True
    graph = {"model": row["model"], "length": row["length"], "causal": True}
    compiled = "compile" in row["techniques"]
    graph["software"] = "torchtitan-compiled" if compiled else "torchtitan"
    if "float8" in row["techniques"]:
        graph["precision"] = "float8"
    cluster = {"preset": "h100-500w-8x", "gpus": row["gpus"]}
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}


def answer(published: Published) -> Answer:
    """The answer of simdev to a run."""
    try:
        report = run(load_scenario(scenario_of(published)))
    except InputError as error:
        return Answer(published, reason=str(error).splitlines()[0])
    return Answer(published, report.seconds, report.feasible)


def cells(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """A line for each cell: rows, how many were asked and fit, mean absolute and signed error."""
    names = dict.fromkeys(answer.published.cell for answer in answers)
    groups = [[a for a in answers if a.published.cell == name] for name in names]
    return [_line(name, group) for name, group in zip(names, groups, strict=True)]


def _line(name: str, group: Sequence[Answer]) -> tuple[str, ...]:
    errors = [answer.error for answer in group if answer.seconds is not None]
    counts = str(len(group)), str(len(errors)), str(sum(answer.fits for answer in group))
    if not errors:
        return name, *counts, "-", "-", "-"
    mean, worst = fmean(map(abs, errors)), max(errors, key=abs)
    return name, *counts, f"{mean:.1%}", f"{median(errors):+.1%}", f"{worst:+.1%}"


def chosen(parts: Sequence[str]) -> Iterator[Published]:
    """The runs whose cells have one of the parts in their names, or all."""
    for each in published():
        if not parts or any(part in each.cell for part in parts):
            yield each


def main() -> None:
    """Print the tables."""
    answers = [answer(each) for each in chosen(sys.argv[1:])]
    rows = []
    for each in answers:
        figure = "-" if each.seconds is None else f"{each.seconds:.3f} ({each.error:+.1%})"
        remark = each.reason or ("" if each.fits else "does not fit")
        seconds = f"{each.published.seconds:.3f}"
        rows.append((each.published.cell, each.published.layout, seconds, figure, remark))
    print_table(("cell", "run", "published s", "simulated s", ""), rows)
    print()
    columns = ("cell", "rows", "asked", "fit", "mean error", "median", "worst")
    print_table(columns, [*cells(answers), _line("all", answers)])


if __name__ == "__main__":
    main()
