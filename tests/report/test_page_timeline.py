"""What the pictures of a page show: folded rows, the range of memory of many devices; and the
question that stands above them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simdev.nouns.trace import DeviceMemory
from simdev.report.measures.spans import levels_between, step_parts
from simdev.report.page import read_subject, run_data
from simdev.report.page.timeline import timeline
from worlds.traces import Held, Span, trace_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("pipeline-1f1b", "4 stages, 8 microbatches on 4 gpu, placed on all of them: "),
        ("mixtral-8x7b-32x-h100", "mixtral-8x7b on 32 H100 SXM 80 GB, dp 32, ep 8, "),
        ("alexnet-1x-cpu", "placed on one device: "),
    ],
)
def test_the_title_is_the_question_with_its_answer(name: str, title: str) -> None:
    data = run_data(read_subject(str(ROOT / "scenarios" / f"{name}.json")))
    assert title in data["title"]
    assert data["title"].endswith(", fits")
    assert data["source"] == f"{name}.json"


def test_a_placement_is_called_by_its_file(tmp_path: Path) -> None:
    files = {
        "m-sct.json": '{"version": 1, "placement": {"*": "gpu:0"}}',
        "s.json": '{"version": 1, "graph": {"model": "lenet"}, "cluster": "4x-rtx-2080",'
        ' "strategy": "m-sct.json"}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "on 4 RTX 2080, placement m-sct: " in read_subject(str(tmp_path / "s.json")).title


def test_lanes_beyond_the_first_are_folded() -> None:
    spans = [Span(f"t{i}", 0, 10 + i, at=0, to=1, kind="transfer") for i in range(6)]
    drawn = timeline(trace_of(spans, ("a", "b")))
    (fold,) = drawn["folds"]
    names = [row["name"] for row in drawn["rows"]]
    assert (fold["count"], fold["name"]) == (5, "5 more lanes")
    assert names[fold["first"]] == "out a #2"


def test_the_range_of_memory_holds_every_level() -> None:
    times, levels = np.array([2, 5, 9]), np.array([10, 40, 20])
    memory = DeviceMemory("a", None, times, levels, 40, 5, {}, (), None)
    lowest, highest = levels_between(memory, np.array([0, 4, 8, 12]))
    assert (lowest.tolist(), highest.tolist()) == ([0, 10, 20], [10, 40, 40])
    nothing = DeviceMemory("b", None, times[:0], levels[:0], 0, 0, {}, (), None)
    assert [each.tolist() for each in levels_between(nothing, np.array([0, 4, 8]))] == [[0, 0]] * 2


def test_a_step_of_days_has_parts_as_any_other() -> None:
    parts = step_parts(4 * 10**18, 400)
    assert (len(parts), parts[0], parts[-1]) == (401, 0, 4 * 10**18)
    assert set(np.diff(parts).tolist()) == {10**16}


def test_of_many_devices_the_fullest_and_the_range_of_all_are_drawn() -> None:
    names = tuple(f"gpu:{d}" for d in range(12))
    spans = [Span(f"op{d}", 0, 10, name, at=d) for d, name in enumerate(names)]
    buffers = [Held(f"op{d}", d, d + 1) for d in range(12)]
    memory = timeline(trace_of(spans, names, buffers=buffers))["memory"]
    assert [panel["name"] for panel in memory["panels"]] == ["gpu:11", "gpu:10", "gpu:9"]
    assert memory["range"]["peak"] == 12
    assert (min(memory["range"]["lowest"]), max(memory["range"]["level"])) == (1, 12)
