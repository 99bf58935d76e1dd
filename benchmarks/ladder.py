"""Errors of the cost ladder on rows that it was not shown: ``python -m benchmarks.ladder [--json |
--update PAGE]``.

The measured rows of each kind of device are dealt into five parts by a seed; each part is asked of
a cost model that holds the other four. An error is |estimated / measured - 1|. ``scaled`` is asked
of a model that holds the rows of the other kinds of device and none of this one. ``ladder`` is what
a user gets, beside the error that it was told to expect.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import numpy as np

from simdev.costs import DeviceSpec, OpCost, Profile, Row
from simdev.costs.groups import measured_rows
from simdev.costs.ladder import Estimates
from simdev.costs.roofline import pace_of
from simdev.files import read_profile
from simdev.files.device import device_presets
from simdev.ground.errors import InputError
from simdev.nouns.semantics.keys import Load, load_of

FOLDS = 5
RUNGS = ("interpolated", "fitted", "scaled", "roofline", "ladder")
TARGETS = {"interpolated": 0.16, "fitted": 0.25}
BEGIN, END = (
    "<!-- python -m benchmarks.ladder --update docs/reference/errors.md -->\n\n",
    "\n\n<!-- end -->",
)
SHIPPED = Path(__file__).resolve().parents[1] / "profiles"


@dataclass
class Errors:
    """Errors of the rungs on the rows of one op class on one kind of device; ``expected`` is what
    the ladder told.
    """

    device: str
    op_class: str
    rows: int = 0
    found: dict[str, list[float]] = field(default_factory=dict)
    expected: list[float] = field(default_factory=list)

    def add(self, rung: str, cost: OpCost | None, measured: float) -> None:
        """One answer more; None is no answer."""
        if cost is not None:
            self.found.setdefault(rung, []).append(abs(float(cost.seconds) / measured - 1))
            if rung == "ladder" and cost.rel_err is not None:
                self.expected.append(cost.rel_err)

    def to_json(self) -> dict[str, object]:
        """Counts, means and medians."""
        rungs = {
            rung: {"answers": len(errors), "mean": mean(errors), "median": median(errors)}
            for rung, errors in self.found.items()
        }
        told = mean(self.expected) if self.expected else None
        return {
            "device": self.device,
            "op_class": self.op_class,
            "rows": self.rows,
            "rungs": rungs,
            "ladder_expected": told,
        }


def measure(
    profiles: Sequence[Profile], specs: Mapping[str, DeviceSpec], seed: int = 0
) -> list[Errors]:
    """Errors on held-out rows by kind of device and op class, in the order in which they are
    met.
    """
    found: dict[tuple[str, str], Errors] = {}
    kinds = dict.fromkeys(kind for profile in profiles for kind in profile.device_kinds)
    for kind in kinds:
        rows = [
            (row, load)
            for row in measured_rows(profiles, kind)
            if (load := load_of(row.key)) is not None
        ]
        others = [
            Profile.of_rows({}, list(measured_rows(profiles, other)))
            for other in kinds
            if other != kind
        ]
        abroad = Estimates(tuple(others), specs)
        for held, model in _folds(rows, specs, seed):
            for row, load in held:
                errors = found.setdefault((kind, load.op_class), Errors(kind, load.op_class))
                _ask(errors, model, abroad, row, load)
    return list(found.values())


def _folds(
    rows: Sequence[tuple[Row, Load]], specs: Mapping[str, DeviceSpec], seed: int
) -> Iterator[tuple[list[tuple[Row, Load]], Estimates]]:
    fold = np.random.default_rng(seed).permutation(len(rows)) % FOLDS
    for one in range(FOLDS):
        held = [pair for pair, part in zip(rows, fold, strict=True) if part == one]
        rest = [row for (row, _), part in zip(rows, fold, strict=True) if part != one]
        yield held, Estimates((Profile.of_rows({}, rest),), specs)


def _ask(errors: Errors, model: Estimates, abroad: Estimates, row: Row, load: Load) -> None:
    measured = float(row.device_seconds(pace_of(model.specs.get(errors.device))))
    errors.rows += 1
    for cost in model.estimates(load, errors.device):
        errors.add(cost.rung, cost, measured)
    errors.add("scaled", abroad.scaled(row.key, load, errors.device), measured)
    errors.add("roofline", model.roofline(load, errors.device), measured)
    errors.add("ladder", model.cost(row.key, load, errors.device), measured)


def table(found: Iterable[Errors]) -> list[list[str]]:
    """Header and one line a device and op class: mean / median error of each rung in percent, "-"
    for no answer.
    """
    lines = [["device", "op class", "rows", *RUNGS, "expected"]]
    for errors in found:
        cells = [_cell(errors.found.get(rung, [])) for rung in RUNGS]
        told = f"{100 * mean(errors.expected):.1f}" if errors.expected else "-"
        lines.append([errors.device, errors.op_class, str(errors.rows), *cells, told])
    return lines


def _cell(errors: Sequence[float]) -> str:
    return f"{100 * mean(errors):.1f} / {100 * median(errors):.1f}" if errors else "-"


def misses(found: Iterable[Errors]) -> list[str]:
    """Where a target is missed, a line each."""
    return [
        (
            f"{errors.device} {errors.op_class}: {rung} "
            f"{100 * mean(errors.found[rung]):.1f} % of {100 * target:.0f} %"
        )
        for errors in found
        for rung, target in TARGETS.items()
        if rung in errors.found and mean(errors.found[rung]) > target
    ]


def text(lines: Sequence[Sequence[str]]) -> str:
    """A table for a terminal."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table for a page."""
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def shipped(files: Sequence[str] | None = None, seed: int = 0) -> list[Errors]:
    """Errors on the profiles of files (None: those that ship), with the datasheets that ship.

    Raises InputError.
    """
    paths = files or sorted([*SHIPPED.glob("*.jsonl"), *SHIPPED.glob("*.jsonl.gz")])
    return measure(
        [read_profile(path) for path in paths], {spec.kind: spec for spec in device_presets()}, seed
    )


def update(page: Path, lines: Sequence[Sequence[str]], mark: str = BEGIN) -> None:
    """Puts the table between the marks of a page. Raises InputError where it has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(mark)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(
            f"has no place for the table between {mark.strip()} and {END.strip()}", str(page)
        )
    page.write_text(before + begin + markdown(lines) + end + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.ladder", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--profiles", nargs="+", metavar="FILE", help="default: all that ship")
    parser.add_argument("--seed", type=int, default=0, help="how the rows are dealt (default 0)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--update", metavar="PAGE", type=Path, help="write the table into a page")
    options = parser.parse_args(arguments)
    try:
        found = shipped(options.profiles, options.seed)
        if options.update:
            update(options.update, table(found))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([errors.to_json() for errors in found], indent=1))
    else:
        print(
            "mean / median of |estimated / measured - 1| in percent", text(table(found)), sep="\n\n"
        )
        print("\nOver target:", *(misses(found) or ["nothing"]), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
