"""Steps that NeuSight's authors measured in float32, against the ladder: ``python -m
benchmarks.neusight [--json | --update PAGE]``.

A step is forward and backward of one batch (of the A100 of 40 GB the forward alone), attention
unfused, its ops one after the other. On the H100 the ladder holds the grids of profiles/h100, on
the A100 the same, carried over; beside them stand the bare datasheets. No number of theirs was
fitted here but the float32 efficiencies of A100 in its datasheet, from their Linear layers alone.

Measured: NeuSight (S. Lee, A. Phanishayee, D. Mahajan, ASPLOS 2025), its published labels (MIT).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.ladder import text, update
from simdev.costs import CostModel
from simdev.files import read_profile
from simdev.files.device import device_presets
from simdev.nouns import models
from simdev.nouns.graph import Graph

GRIDS = Path(__file__).resolve().parents[1] / "profiles" / "h100" / "grids"
BEGIN = "<!-- python -m benchmarks.neusight --update docs/reference/errors.md -->\n\n"
MOST = 0.09  # mean |error|
SIZES: Mapping[str, Mapping[str, Any]] = {
    "BERT-Large": {"layers": 24, "width": 1024, "heads": 16, "length": 512},
    "GPT2-Large": {"layers": 36, "width": 1280, "heads": 20, "length": 1024},
    "GPT3-XL": {"layers": 24, "width": 3072, "heads": 24, "length": 2048},
    "GPT3-2.7B": {"layers": 32, "width": 2560, "heads": 32, "length": 2048},
    "OPT-1.3B": {"layers": 24, "width": 2048, "heads": 32, "length": 2048},
}
H100, A100, FORWARD = ("h100-sxm", False), ("a100-80", False), ("a100-40", True)


@dataclass(frozen=True)
class Step:
    """A step that was measured, in milliseconds; ``where``: device, and whether forward alone."""

    model: str
    batch: int
    where: tuple[str, bool]
    measured: float


STEPS = (
    *(Step("GPT2-Large", batch, H100, ms) for batch, ms in ((1, 184.0), (4, 638.8))),
    Step("GPT3-XL", 1, H100, 933.4),
    *(Step("BERT-Large", batch, A100, ms) for batch, ms in ((2, 213.2), (8, 716.2))),
    *(Step("GPT2-Large", batch, A100, ms) for batch, ms in ((1, 524.0), (4, 1635.7))),
    *(Step("GPT3-XL", 1, A100, 2502.2), Step("GPT3-2.7B", 1, A100, 3012.9)),
    *(Step("OPT-1.3B", batch, A100, ms) for batch, ms in ((1, 1369.5), (2, 3188.8))),
    *(Step("BERT-Large", batch, FORWARD, ms) for batch, ms in ((8, 205.5), (16, 396.5))),
    *(Step("GPT2-Large", batch, FORWARD, ms) for batch, ms in ((4, 535.8), (8, 1084.7))),
    *(Step("GPT3-XL", batch, FORWARD, ms) for batch, ms in ((2, 1749.5), (8, 7479.8))),
    *(Step("GPT3-2.7B", batch, FORWARD, ms) for batch, ms in ((2, 1741.6), (8, 7267.0))),
    *(Step("OPT-1.3B", batch, FORWARD, ms) for batch, ms in ((2, 987.9), (8, 3722.6))),
)


@cache
def graph_of(model: str, batch: int) -> Graph:
    """Its training step in float32, attention unfused as in the models that were measured."""
    sizes = dict(SIZES[model])
    build = models.bert if model.startswith("BERT") else models.gpt
    return build(batch=batch, context=sizes["length"], fused=False, dtype="float32", **sizes)


@cache
def costs(with_grids: bool) -> CostModel:
    """The ladder over the grids and datasheets that ship, or over datasheets alone."""
    paths = sorted(GRIDS.glob("*.jsonl")) if with_grids else []
    return CostModel(tuple(map(read_profile, paths)), device_presets())


def predicted(step: Step, with_grids: bool) -> tuple[float, float]:
    """Milliseconds, and the expected relative error that the ladder tells."""
    graph, (kind, forward) = graph_of(step.model, step.batch), step.where
    total = unsure = 0.0
    for position, op in enumerate(graph.ops):
        if op.phase == "forward" or (op.phase == "backward" and not forward):
            cost = costs(with_grids).cost(graph, position, kind)
            assert cost is not None
            total += float(cost.seconds)
            unsure += float(cost.seconds) * (cost.rel_err or 0.0)
    return 1000 * total, unsure / total


def rows(steps: Sequence[Step] = STEPS) -> list[dict[str, Any]]:
    """A row a step, with signed errors."""
    results = []
    for step in steps:
        (ladder, expected), (datasheet, _) = predicted(step, True), predicted(step, False)
        results.append(
            {
                "model": step.model, "batch": step.batch, "device": step.where[0],
                "phases": "forward" if step.where[1] else "both",
                "measured_ms": step.measured, "ladder_ms": ladder, "told": expected,
                "ladder": ladder / step.measured - 1, "datasheet": datasheet / step.measured - 1,
            }
        )  # fmt: skip
    return results


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Header, a line a step, and the mean of the errors' magnitudes."""
    lines = [["device", "step", "measured ms", "ladder", "told", "datasheets alone"]]
    for row in results:
        name = f"{row['model']} b{row['batch']}" + ", forward" * (row["phases"] == "forward")
        errors = f"{row['ladder']:+.1%}", f"{row['told']:.0%}", f"{row['datasheet']:+.1%}"
        lines.append([row["device"], name, f"{row['measured_ms']:.1f}", *errors])
    means = [
        sum(abs(row[key]) for row in results) / len(results) for key in ("ladder", "datasheet")
    ]
    lines.append(["", "mean", "", f"{means[0]:.1%}", "", f"{means[1]:.1%}"])
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.neusight", allow_abbrev=False)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--update", metavar="PAGE", type=Path, help="write the table into a page")
    options = parser.parse_args(arguments)
    results = rows()
    if options.json:
        print(json.dumps(results, indent=1))
    elif options.update:
        update(options.update, table(results), BEGIN)
    else:
        print(text(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
