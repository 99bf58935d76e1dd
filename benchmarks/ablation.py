"""What each effect of the model adds to its agreement with published runs: ``python -m
benchmarks.ablation [PART ...]`` asks the runs of ``benchmarks.runs`` (of cells that have one of the
parts in their names) with one effect at a time taken away, and prints errors by group.

An effect is a row of EFFECTS: a function from the scenario file of a run to one without it. Where
that is the file as it was, the run is not asked again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from benchmarks.common import print_table
from benchmarks.runs import Answer, answer, answer_to, chosen, groups
from simdev.files.device import DEVICE_PRESETS, device_names

Scenario = Mapping[str, Any]


def without(*path: str) -> Callable[[Scenario], Scenario]:
    """The effect whose field has this path in the scenario: taken away by leaving the field out."""

    def change(scenario: Scenario) -> Scenario:
        fields = changed = deepcopy(dict(scenario))
        for key in path[:-1]:
            fields = fields.get(key, {})
        fields.pop(path[-1], None)
        return changed

    return change


def _no_rows(scenario: Scenario) -> Scenario:
    return {**scenario, "profile": []}


def _full_clocks(scenario: Scenario) -> Scenario:
    return {**scenario, "devices": _cool_devices()}


@cache
def _cool_devices() -> list[dict[str, Any]]:
    """The datasheets that ship, without what products were seen to hold under the power cap."""
    sheets = []
    for name in device_names():
        sheet = json.loads((DEVICE_PRESETS / f"{name}.json").read_text(encoding="utf-8"))
        if any([sheet.pop(key, None) for key in ("sustained_clock", "measured")]):
            sheets.append(sheet)
    return sheets


EFFECTS: Mapping[str, Callable[[Scenario], Scenario]] = {
    "measured rows of kernels": _no_rows,
    "clocks under the power cap": _full_clocks,
    "the experts' own grid": without("strategy", "pipeline", "etp"),
    "tp's overlap": without("strategy", "pipeline", "tp_comm_overlap"),
    "recomputation": without("strategy", "pipeline", "recompute"),
    "software": without("graph", "software"),
    "host": without("cluster", "host"),
}


def main() -> None:
    """Print the table."""
    answers = [answer(each) for each in chosen(sys.argv[1:])]
    lines = [("nothing", "0", *_cells(answers))]
    for name, change in EFFECTS.items():
        changed = [_without(each, change) for each in answers]
        count = sum(a is not b for a, b in zip(answers, changed, strict=True))
        lines.append((name, str(count), *_cells(changed)))
    print_table(("without", "runs", *(line[0] for line in groups(answers))), lines)


def _without(whole: Answer, change: Callable[[Scenario], Scenario]) -> Answer:
    """The answer without an effect; the same one where the run has not got it."""
    if whole.scenario is None:
        return whole
    scenario = change(whole.scenario)
    return whole if scenario == whole.scenario else answer_to(whole.published, scenario)


def _cells(answers: Sequence[Answer]) -> list[str]:
    return [f"{mean} ({signed})" for *_, mean, signed in groups(answers)]


if __name__ == "__main__":
    main()
