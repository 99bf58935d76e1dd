"""Published training runs of 2024 to 2026 beside simulated ones: ``python -m benchmarks.runs
[PART ...]`` simulates the rows of ``profiles/runs`` whose cells (model and system) have one of the
parts in their names, and prints errors row by row, cell by cell and by groups of cells, and the
order of the layouts of a cell; with ``--rows FILE.jsonl`` the rows of another file with the columns
of one of these.

A row tells its layout alone. What it does not tell is what the recipe nearest to it sets
(``benchmarks.recipes``), else simdev's default, and nothing is fitted to it. A run that is said not
to fit, though it did run, is asked again as ``recipes.looser`` tells. Rows that cannot be asked are
counted with their reason.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import order
from benchmarks.common import print_table
from benchmarks.recipes import RELEASE, Settings, looser, precision_of, settings_of
from simdev import load_scenario, run
from simdev.ground.errors import InputError
from simdev.nouns.models.large import LARGE

FOLDER = Path(__file__).resolve().parent.parent / "profiles" / "runs"
FILES = (FOLDER / "megatron_bridge.jsonl", FOLDER / "torchtitan.jsonl")
PRESETS = {
    "H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300",
    "GB200": "gb200-nvl72", "GB300": "gb300-nvl72",
}  # fmt: skip
"""The preset of the machines of a system."""
PRECISIONS = {"bf16": "bfloat16", "fp8mx": "mxfp8", "nvfp4": "nvfp4"}
"""The precision by its name in recipes; all others are of float8, scaled by tensor or by block."""
COLUMNS = {"gpus", "length", "model", "tokens_per_s_per_gpu", "tp"}
OF_BRIDGE = COLUMNS | {
    "chunks", "cp", "ep", "fsdp", "global_batch", "microbatch", "note", "pp", "precision",
    "release", "system", "task",
}  # fmt: skip
POSITIVE = (
    "gpus", "length", "tokens_per_s_per_gpu", "global_batch", "microbatch", "tp", "pp", "cp", "ep",
)  # fmt: skip
OF_TITAN = COLUMNS | {"dp_shard", "local_batch", "recompute", "techniques"}

NCCL_SLOWDOWN = 1.138
"""NCCL's kernels hold 16 of an H100's 132 multiprocessors beside computing, as other senders do:
132 / (132 - 16). NVLS has no more channels (NVIDIA/nccl, issue 1041). That collectives are slowed
as much is ours."""

CELLS = "cell", "rows", "asked", "fit", "mean error", "median", "worst"
GROUPS = "group", "rows", "asked", "mean error", "signed mean"


@dataclass(frozen=True, slots=True)
class Published:
    """A published run: its cell (model and system), layout, and tokens a second and GPU."""

    cell: str
    layout: str
    tokens: float
    row: Mapping[str, Any]

    @property
    def share(self) -> float:
        """The tokens of a step that fall to one GPU."""
        row = self.row
        samples = row.get("global_batch") or row["local_batch"] * row["dp_shard"]
        return float(samples * row["length"] / row["gpus"])

    @property
    def seconds(self) -> float:
        """The published time of a step."""
        return self.share / self.tokens

    @property
    def group(self) -> str:
        """The group of cells that its cell is of."""
        if "system" not in self.row:
            return "torchtitan"
        model = LARGE.get(self.row["model"])
        if model is not None and model.experts:
            return "mixtures of experts"
        return "dense, H100" if self.row["system"] == "H100" else "dense, Blackwell"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of simdev to a published run: the time of a step, or why it cannot be asked; the
    scenario file that asked it.
    """

    published: Published
    seconds: float | None = None
    fits: bool = False
    reason: str = ""
    remark: str = ""
    scenario: Mapping[str, Any] | None = None

    @property
    def error(self) -> float:
        """The relative error of the time of a step: negative where it is too fast."""
        assert self.seconds is not None
        return self.seconds / self.published.seconds - 1


def published(files: Sequence[Path] = FILES) -> Iterator[Published]:
    """All rows, in the order of the files. Raises InputError."""
    for file in files:
        yield from map(_published, _rows(file))


def _published(row: dict[str, Any]) -> Published:
    model, tokens = row["model"], row["tokens_per_s_per_gpu"]
    if "system" not in row:
        layout = f"{row['gpus']}: tp {row['tp']}, {row['techniques']}"
        return Published(f"{model} by torchtitan", layout, tokens, row)
    names = ("fsdp", "tp", "pp", "cp", "chunks", "ep")
    degrees = " ".join(f"{name} {row[name]}" for name in names if row[name] > 1)
    layout = f"{row['gpus']}: {degrees}, {row['precision'][:6]}, {row['release']}"
    return Published(f"{model} on {row['system']}", layout, tokens, row)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file. Raises InputError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{file}:{number}: is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{file}:{number}: must be an object of columns")
        if missing := sorted((OF_BRIDGE if "system" in row else OF_TITAN) - row.keys()):
            raise InputError(f"{file}:{number}: has no {', '.join(missing)}")
        positive = POSITIVE if "system" in row else ("gpus", "length", "tokens_per_s_per_gpu")
        if wrong := [name for name in positive if not _is_positive(row[name])]:
            raise InputError(f"{file}:{number}: {', '.join(wrong)}: must be numbers over 0")
        yield row


def scenario_of(run: Published, settings: Settings | None = None) -> dict[str, Any]:
    """The question as a scenario file, with what the nearest recipe sets, or other ``settings``.
    Raises InputError where simdev has no way to ask it.
    """
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
    graph["precision"] = PRECISIONS.get(precision_of(row), "float8")
    settings = settings or settings_of(row)
    pipeline |= settings.pipeline | (settings.experts if row["ep"] > 1 else {})
    graph |= {"software": "megatron-bridge", **settings.model}
    if row["system"] not in PRESETS:
        raise InputError(f"system {row['system']}: there is no preset of it")
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
    """The answer of simdev to a run; the first that fits, where a row does not as it is told."""
    if "system" not in published.row:
        return _answer(published, None)
    first = _answer(published, settings_of(published.row))
    if first.fits or first.seconds is None:
        return first
    others = looser(published.row)
    again = (_answer(replace(published, row=row), settings) for row, settings in others)
    found = next((other for other in again if other.fits), first)
    return replace(found, published=published)


def _answer(published: Published, settings: Settings | None) -> Answer:
    remark = settings.remark if settings else ""
    try:
        scenario = scenario_of(published, settings)
    except InputError as error:
        return Answer(published, reason=str(error).splitlines()[0])
    return replace(answer_to(published, scenario), remark=remark)


def answer_to(published: Published, scenario: Mapping[str, Any]) -> Answer:
    """The answer of simdev to a run that is asked as this scenario."""
    try:
        seconds, fits = _simulated(json.dumps(scenario))
    except InputError as error:
        return Answer(published, reason=str(error).splitlines()[0])
    return Answer(published, seconds, fits, scenario=scenario)


@cache  # releases of a software ask the same
def _simulated(scenario: str) -> tuple[float, bool]:
    report = run(load_scenario(json.loads(scenario)))
    return report.seconds, report.feasible


def cells(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """A line of CELLS for each cell, and one for all."""
    lines = [_line(name, alike) for name, alike in _apart(answers, lambda of: of.cell)]
    return [*lines, _line("all", answers)]


def groups(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """A line of GROUPS for each group of cells."""
    lines = []
    for name, alike in _apart(answers, lambda of: of.group):
        errors = [answer.error for answer in alike if answer.seconds is not None]
        means = (f"{fmean(map(abs, errors)):.1%}", f"{fmean(errors):+.1%}") if errors else "--"
        lines.append((name, str(len(alike)), str(len(errors)), *means))
    return lines


def _apart(
    answers: Sequence[Answer], name_of: Callable[[Published], str]
) -> Iterator[tuple[str, list[Answer]]]:
    for name in dict.fromkeys(name_of(answer.published) for answer in answers):
        yield name, [answer for answer in answers if name_of(answer.published) == name]


def orders(answers: Sequence[Answer]) -> list[order.Order]:
    """The orders of layouts by cell, of all that could be asked."""
    rows = []
    for answer in answers:
        of, seconds = answer.published, answer.seconds
        if seconds is not None:
            question = json.dumps(answer.scenario, sort_keys=True)
            rows.append(order.Timed(of.cell, question, 1 / of.tokens, seconds / of.share))
    return list(order.orders(rows))


def _line(name: str, group: Sequence[Answer]) -> tuple[str, ...]:
    errors = [answer.error for answer in group if answer.seconds is not None]
    counts = str(len(group)), str(len(errors)), str(sum(answer.fits for answer in group))
    if not errors:
        return name, *counts, "-", "-", "-"
    mean, worst = fmean(map(abs, errors)), max(errors, key=abs)
    return name, *counts, f"{mean:.1%}", f"{median(errors):+.1%}", f"{worst:+.1%}"


def chosen(parts: Sequence[str], files: Sequence[Path] = FILES) -> Iterator[Published]:
    """The runs whose cells have one of the parts in their names, or all. Raises InputError."""
    for each in published(files):
        if not parts or any(part in each.cell for part in parts):
            yield each


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=__doc__)
    parser.add_argument("part", nargs="*", help='of the names of cells, like "on H100"')
    parser.add_argument("--rows", type=Path, action="append", help="a file of other rows")
    told = parser.parse_args()
    try:
        runs = list(chosen(told.part, told.rows or FILES))
    except InputError as error:
        parser.error(str(error))
    answers = [answer(each) for each in runs]
    rows = []
    for each in answers:
        figure = "-" if each.seconds is None else f"{each.seconds:.3f} ({each.error:+.1%})"
        remark = each.reason or ("" if each.fits else "does not fit. ") + each.remark
        seconds = f"{each.published.seconds:.3f}"
        rows.append((each.published.cell, each.published.layout, seconds, figure, remark))
    print_table(("cell", "run", "published s", "simulated s", ""), rows)
    print(f"\nRecipes are of release {RELEASE}: older ones may have set other things.")
    print_tables(answers)


def tables(answers: Sequence[Answer]) -> dict[str, list[tuple[str, ...]]]:
    """By name header and lines: errors by cell and by group, and the order of layouts."""
    return {
        "cells": [CELLS, *cells(answers)],
        "groups": [GROUPS, *groups(answers)],
        "orders": [order.ORDERS, *(each.line() for each in orders(answers))],
    }


def print_tables(answers: Sequence[Answer]) -> None:
    """The tables, and what the orders come to."""
    for head, *lines in tables(answers).values():
        print()
        print_table(head, lines)
    print(f"\n{order.summary(orders(answers))}")


if __name__ == "__main__":
    main()
