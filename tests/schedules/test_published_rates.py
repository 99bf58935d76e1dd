"""The bubble rates that Zero Bubble publishes (Qi et al. 2024, tables 9 and 5)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simdev.execution.engine import simulate
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.schedules import SEARCHED, named_schedule, searched_schedule, stage_times
from simdev.report.measures.pipeline import PipelineUse, pipeline_use

DOCUMENT = Path(__file__).parents[2] / "docs" / "papers" / "zero-bubble.md"
NAMES = ("1F1B", "Interleaved1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
# Model, p, m, f, b, w, comm (ms), and the published rates of NAMES. Interleaved: as many chunks as
# a rank has layers, 24 / 8 and 48 / 16 (their layers, embeddings counted as one).
PUBLISHED = tuple(
    (*row.split()[:7], row.split()[7:])
    for row in """\
1.5B 8 24 18.522 18.086 9.337 0.601 .2431 .1055 .1585 .1083 .1585 .0433
1.5B 8 32 18.513 18.086 9.331 0.626 .1985 .0818 .1242 .0837 .1242 .0039
1.5B 8 64 18.546 18.097 9.321 0.762 .1240 .0443 .0674 .0444 .0674 .0026
14.6B 16 48 11.347 11.248 8.132 0.377 .2552 .1104 .1397 .0672 .1397 .0066
14.6B 16 64 11.307 11.254 8.101 0.379 .2082 .0852 .1088 .0516 .1088 .0054
14.6B 16 128 11.325 11.308 8.109 0.378 .1251 .0445 .0576 .0266 .0576 .0028""".splitlines()
)
ROWS = range(len(PUBLISHED))

# ms, by an independent replay
COSTS_1F1B = ("1456.75", "1833.84", "3357.93", "1980.29", "2478.39", "4497.41")


CHUNKS = 3


@cache
def replay(row: int, name: str, wraparound: str = "every") -> PipelineUse:
    p, m = map(int, PUBLISHED[row][1:3])
    inputs = [f"{time}ms" for time in PUBLISHED[row][3:7]]
    shape = "ZB-H1" if name in SEARCHED else name
    schedule = named_schedule(shape, p, m, CHUNKS if name == "Interleaved1F1B" else 1)
    times = stage_times(schedule, *inputs)
    if name in SEARCHED:
        schedule = searched_schedule(name, times, m)
    task_graph = pipeline_task_graph(schedule, times, wraparound=wraparound)
    return pipeline_use(schedule, simulate(task_graph))


def rate(report: PipelineUse) -> str:
    return f"{float(report.bubble_rate):.4f}"[1:]


def published(row: int, name: str) -> str:
    return PUBLISHED[row][7][NAMES.index(name)]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"])
def test_published_bubble_rates_to_four_decimals(row: int, name: str) -> None:
    assert rate(replay(row, name)) == published(row, name)


@pytest.mark.parametrize("row", ROWS)
def test_published_costs_of_1f1b(row: int) -> None:
    assert f"{replay(row, '1F1B').cost_ps / 10**9:.2f}" == COSTS_1F1B[row]


@pytest.mark.parametrize("row", ROWS)
def test_the_published_interleaved_rates_leave_out_waits(row: int) -> None:
    """With every wait the rate is higher; without most of those between the last and the first
    rank, it is theirs.
    """
    assert rate(replay(row, "Interleaved1F1B", "first")) == published(row, "Interleaved1F1B")
    assert rate(replay(row, "Interleaved1F1B")) > published(row, "Interleaved1F1B")


def test_tables_of_the_document() -> None:
    """Run with -s to print the tables that stand in docs/papers/zero-bubble.md."""
    lines = []
    for i, row in enumerate(PUBLISHED):
        here = {name: rate(replay(i, name)) for name in NAMES}
        for name in ("1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"):
            assert here[name] == published(i, name)
        assert here["ZB-H1"] == here["ZB-1p"]
        sizes = ", ".join(map(str, row[1:3]))
        lines.append([sizes, *(here[name] for name in ("1F1B", "ZB-H1", "ZB-H2", "ZB-2p"))])
        chunked = "Interleaved1F1B"
        others = published(i, chunked), here[chunked], rate(replay(i, chunked, "first"))
        lines.append([sizes, *others])
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    print("\n" + "\n".join(rows))
    document = DOCUMENT.read_text(encoding="utf-8")
    assert [row for row in rows if row not in document] == []
    # Of ZB-H2 by step time, in which its ranks' parallelogram counts.
    steps = [replay(i, "ZB-H2") for i, row in enumerate(PUBLISHED) if row[0] == "14.6B"]
    by_step = [f"{1 - second.ideal_ps / second.step_ps:.4f}"[1:] for second in steps]
    assert f"{by_step[0]}, {by_step[1]} and {by_step[2]} on 16 ranks" in document
