"""Errors of the cost ladder on the grids that were measured on an H100, weighted by time: a random
third of the rows is asked of a model that holds the others, ``python -m benchmarks.grids [--json |
--update PAGE]``.

The error of a class is sum |estimated - measured| / sum measured, the mean over some seeds. With
hints the model holds the rows of the sixteen models of profiles/h100 too; ``told`` is the error
that the ladder told of its answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.ladder import text, update
from simdev.costs import OpCost, Profile, Row
from simdev.costs.groups import measured_rows
from simdev.costs.ladder import Estimates
from simdev.costs.roofline import pace_of
from simdev.files import read_profile
from simdev.files.device import device_presets
from simdev.nouns.semantics.keys import Load, load_of

KIND, PARTS, SEEDS = "h100-sxm", 3, 4
H100 = Path(__file__).resolve().parents[1] / "profiles" / "h100"
RUNGS = ("interpolated", "fitted", "roofline", "ladder", "told", "with hints")
BEGIN = "<!-- python -m benchmarks.grids --update docs/reference/errors.md -->\n\n"
Pair = tuple[Row, Load]


@dataclass
class Errors:
    """Errors on the rows of a class in a dtype ("all": in every): by rung, one number a seed."""

    op_class: str
    dtype: str
    rows: int
    by_rung: dict[str, list[float]] = field(default_factory=dict)

    def mean(self, rung: str) -> float | None:
        """The mean over the seeds; None where the rung answered no row."""
        errors = self.by_rung.get(rung)
        return float(np.mean(errors)) if errors else None

    def to_json(self) -> dict[str, object]:
        """Its rows and means."""
        means = {rung: self.mean(rung) for rung in RUNGS}
        return {"op_class": self.op_class, "dtype": self.dtype, "rows": self.rows, "errors": means}


def pairs_of(folder: Path) -> list[Pair]:
    """The measured rows of a folder of profiles whose work is known, each key once."""
    profiles = [read_profile(path) for path in sorted(folder.glob("*.jsonl"))]
    rows = ((row, load_of(row.key)) for row in measured_rows(profiles, KIND))
    return [(row, load) for row, load in rows if load is not None and not load.is_free]


def measure(pairs: Sequence[Pair], hints: Sequence[Pair], seeds: int = SEEDS) -> list[Errors]:
    """Errors by op class and dtype, and of all dtypes of a class where it has several."""
    errors = []
    for op_class in dict.fromkeys(load.op_class for _, load in pairs):
        alike = [pair for pair in pairs if pair[1].op_class == op_class]
        beside = [pair for pair in hints if pair[1].op_class == op_class]
        dtypes = dict.fromkeys(load.dtype for _, load in alike)
        names = ("all", *dtypes) if len(dtypes) > 1 else tuple(dtypes)
        counts = [sum(name in ("all", load.dtype) for _, load in alike) for name in names]
        of_class = [Errors(op_class, *each) for each in zip(names, counts, strict=True)]
        for seed in range(seeds):
            _add(of_class, list(_answers(alike, beside, seed)))
        errors += of_class
    return errors


def _answers(
    pairs: Sequence[Pair], hints: Sequence[Pair], seed: int
) -> Iterator[tuple[str, float, Mapping[str, OpCost | None]]]:
    """Dtype, measured seconds and the costs by rung of each row held out."""
    part = np.random.default_rng(seed).permutation(len(pairs)) % PARTS
    rest = [pair for pair, place in zip(pairs, part, strict=True) if place]
    model, hinted = _model(rest), _model([*rest, *hints])
    pace = pace_of(model.specs[KIND])
    for (row, load), place in zip(pairs, part, strict=True):
        if place == 0:
            costs = {cost.rung: cost for cost in model.estimates(load, KIND)}
            costs["roofline"] = model.roofline(load, KIND)
            costs["ladder"] = model.cost(row.key, load, KIND)
            costs["with hints"] = hinted.cost(row.key, load, KIND)
            yield load.dtype, float(row.device_seconds(pace)), costs


def _model(pairs: Sequence[Pair]) -> Estimates:
    rows = {row.key: row for row, _ in reversed(pairs)}
    specs = {spec.kind: spec for spec in device_presets()}
    return Estimates((Profile.of_rows({}, list(rows.values())),), specs)


def _add(
    of_class: Sequence[Errors], answers: Sequence[tuple[str, float, Mapping[str, OpCost | None]]]
) -> None:
    for errors in of_class:
        for rung in RUNGS:
            apart = whole = 0.0
            for dtype, measured, costs in answers:
                cost = costs.get("ladder" if rung == "told" else rung)
                if cost is not None and errors.dtype in ("all", dtype):
                    made = abs(float(cost.seconds) - measured)
                    apart += (cost.rel_err or 0.0) * measured if rung == "told" else made
                    whole += measured
            if whole:
                errors.by_rung.setdefault(rung, []).append(apart / whole)


def table(results: Sequence[Errors]) -> list[list[str]]:
    """Header and a line a class and dtype: errors in percent, "-" for no answer."""
    lines = [["op class", "dtype", "rows", *RUNGS]]
    for errors in results:
        means = [errors.mean(rung) for rung in RUNGS]
        cells = ["-" if mean is None else f"{100 * mean:.1f}" for mean in means]
        lines.append([errors.op_class, errors.dtype, str(errors.rows), *cells])
    return lines


def shipped(seeds: int = SEEDS) -> list[Errors]:
    """Errors on the grids that ship, with the models that ship as hints."""
    grids = pairs_of(H100 / "grids")
    known = {row.key for row, _ in grids}
    return measure(grids, [pair for pair in pairs_of(H100) if pair[0].key not in known], seeds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.grids", allow_abbrev=False)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default {SEEDS}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--update", metavar="PAGE", type=Path, help="write the table into a page")
    options = parser.parse_args(arguments)
    results = shipped(options.seeds)
    if options.json:
        print(json.dumps([errors.to_json() for errors in results], indent=1))
    elif options.update:
        update(options.update, table(results), BEGIN)
    else:
        print("error weighted by time, in percent", text(table(results)), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
