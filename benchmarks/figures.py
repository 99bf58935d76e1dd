"""Figures with targets, and the command line of the benchmarks that measure them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from benchmarks.common import figure, machine, print_table

Size = TypeVar("Size")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; ``least`` tells whether the target is a lower bound."""

    part: str
    name: str
    measured: float
    unit: str
    target: float | None = None
    least: bool = True

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.measured >= self.target if self.least else self.measured <= self.target


def print_figures(found: Sequence[Figure]) -> None:
    """One row a figure."""
    rows = []
    for one in found:
        sign = "" if one.target is None else f"{'>=' if one.least else '<='} {one.target:,g}"
        reached = {None: "", True: "reached", False: "MISSED"}[one.reached]
        rows.append(
            [one.part, one.name, f"{figure(one.measured)} {one.unit}".strip(), sign, reached]
        )
    print_table(["where", "figure", "measured", "target", ""], rows)


def main(
    name: str,
    document: str | None,
    run: Callable[[Size, Callable[[str], None]], Sequence[Figure]],
    full: Size,
    quick: Size,
    note: str,
) -> None:
    """The command ``python -m benchmarks.NAME [--quick] [--json]``; ``note`` tells what the numbers
    are.
    """
    described = (document or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=described)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object in place of a table"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    options = parser.parse_args()
    found = run(quick if options.quick else full, lambda text: print(text, file=sys.stderr))
    if options.json:
        figures = [asdict(one) | {"reached": one.reached} for one in found]
        print(json.dumps({"machine": machine(), "figures": figures}, indent=1))
        return
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + f"; {note}\n")
    print_figures(found)
