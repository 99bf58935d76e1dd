"""The share of each effect in the agreement with published runs: ``python -m
benchmarks.ablation [PART ...]`` asks the runs of ``benchmarks.runs`` (of cells that have one of the
parts in their names) with one effect at a time taken away, and prints errors by group.

An effect is a row of EFFECTS: a function from the scenario file of a run to one without it. Where
that is the file as it was, the run is not asked again. ``runs`` are those whose time it changes.
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


def changed(path: str, *names: str, **values: Any) -> Callable[[Scenario], Scenario]:
    """An effect of fields at this path of the scenario: without those of the ``names``, and with
    other ``values``.
    """

    def change(scenario: Scenario) -> Scenario:
        whole = fields = deepcopy(dict(scenario))
        for key in path.split("."):
            fields = fields[key]
        for name in names:
            fields.pop(name, None)
        fields |= values
        return whole

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


PIPELINE = "strategy.pipeline"
EFFECTS: Mapping[str, Callable[[Scenario], Scenario]] = {
    "measured rows of kernels": _no_rows,
    "clocks under the power cap": _full_clocks,
    "software": changed("graph", "software"),
    "CUDA graphs": changed(PIPELINE, cuda_graphs="none"),
    "dispatcher of tokens": changed(PIPELINE, token_dispatcher="alltoall"),
    "overlap of ep": changed(PIPELINE, "ep_comm_overlap"),
    "overlap of tp": changed(PIPELINE, "tp_comm_overlap"),
    "the experts' own grid": changed(PIPELINE, "etp"),
    "recomputation": changed(PIPELINE, "recompute", "recompute_modules", "recompute_layers"),
    "offload": changed(PIPELINE, "offload", "offload_layers"),
}


def main() -> None:
    """Print the table."""
    answers = [answer(each) for each in chosen(sys.argv[1:])]
    lines = [("nothing", "0", *_cells(answers))]
    for name, change in EFFECTS.items():
        others = [_without(each, change) for each in answers]
        count = sum(a.seconds != b.seconds for a, b in zip(answers, others, strict=True))
        lines.append((name, str(count), *_cells(others)))
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
