"""``simdev pipeline`` and its picture."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simdev.commands import main
from simdev.execution.engine import simulate
from simdev.lowering.pipeline import pipeline_task_graph
from simdev.nouns.schedules import named_schedule, stage_times
from simdev.nouns.trace import Trace
from simdev.report.figures.charts import HUES, pipeline_chart, shade
from simdev.report.figures.gantt import IDLE, draw_gantt
from simdev.report.figures.style import new_figure
from simdev.report.measures.pipeline import PipelineUse, pipeline_use

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "pipelines.md"
TIMES = [
    "--forward",
    "18.522ms",
    "--backward",
    "18.086ms",
    "--weight",
    "9.337ms",
    "--comm",
    "0.601ms",
]
SMALL = ["pipeline", "--forward", "1ms", "--backward", "2ms"]
TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def ran(name: str, ranks: int, microbatches: int, chunks: int = 1) -> tuple[PipelineUse, Trace]:
    schedule = named_schedule(name, ranks, microbatches, chunks)
    trace = simulate(
        pipeline_task_graph(schedule, stage_times(schedule, "2ms", "2ms", "1ms", "0.1ms"))
    )
    return pipeline_use(schedule, trace), trace


def test_the_question_of_the_issue(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "pipeline", "--stages", "8", "--microbatches", "24", "--schedule", "1F1B", *TIMES
    )
    assert found["step_time_s"] == found["cost_s"] == 1.456749
    assert round(found["bubble_rate"], 4) == 0.2431
    assert found["live_activations"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert (found["schedule"], found["stages"], found["microbatches"]) == ("1F1B", 8, 24)
    assert found["ranks"][7] | {"busy_s": 0} == found["ranks"][7] | {
        "busy_s": 0,
        "name": "rank 7",
        "stages": [7],
    }


def test_a_rank_lists_its_stages() -> None:
    use, _ = ran("1F1B", 2, 2)
    assert [rank["stages"] for rank in use.to_json()["ranks"]] == [[0], [1]]


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([*SMALL, "--stages", "4", "--microbatches", "8", "--check", "--activation", "1GiB"])
        == 0
    )
    printed = capsys.readouterr()
    assert "Step time 33 ms" in printed.out
    assert "Bubble rate 0.2727: cost 33 ms for 24 ms of work" in printed.out
    assert "4.00 GiB" in printed.out
    assert printed.err == "check: 112 tasks, no violation\n"


def test_pipedream_tells_its_period(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *SMALL,
        "--stages",
        "4",
        "--microbatches",
        "40",
        "--schedule",
        "PipeDream",
        "--comm",
        "0.1ms",
    ]
    found = answer(capsys, *arguments)
    assert (found["period_s"], found["period_exact"], found["weight_versions"]) == (
        0.00315,
        True,
        [4, 3, 2, 1],
    )
    assert main(arguments) == 0
    assert "Steady period 3.15 ms a microbatch (exact, repeats every 4)" in capsys.readouterr().out
    assert main([*arguments, "--microbatches", "4"]) == 0
    assert "No steady state: too few microbatches" in capsys.readouterr().out
    assert main([*arguments, "--microbatches", "7"]) == 0
    assert "the mean, not yet steady" in capsys.readouterr().out


def test_chunks_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pipeline", "--stages", "4", "--microbatches", "8", "--chunks", "2"]
    found = answer(capsys, *arguments, "--forward", "2ms", "--backward", "4ms")
    assert (found["step_time_s"], found["live_activations"], found["stages"]) == (
        0.057,
        [11, 9, 7, 5],
        8,
    )
    listed = answer(capsys, *arguments, "--forward", ",".join(["1ms"] * 8), "--backward", "4ms")
    assert listed["step_time_s"] == 0.057


def test_a_table_goes_out_and_comes_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--stages",
        "3",
        "--microbatches",
        "5",
        "--schedule",
        "ZB-H2",
        "--save-csv",
        "t.csv",
    ]
    first = answer(capsys, *SMALL, "--weight", "1ms", *arguments)
    assert Path("t.csv").read_text().startswith("0F0,0F1,0F2,0F3,0F4,0I0,")
    second = answer(capsys, *SMALL, "--weight", "1ms", "--csv", "t.csv")
    assert second == first | {"schedule": "t"}


def test_every_output_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["--gantt", "g.svg", "--save-csv", "t.csv", "--save", "r.json.gz"]
    assert (
        main([*SMALL, "--stages", "2", "--microbatches", "2", "--activation", "5", *outputs]) == 0
    )
    assert {path.name for path in here.iterdir()} == {"g.svg", "t.csv", "r.json.gz"}
    assert "<svg" in Path("g.svg").read_text()
    assert main(["check", "r.json.gz"]) == 0
    first = Path("g.svg").read_bytes()
    assert (
        main([*SMALL, "--stages", "2", "--microbatches", "2", "--activation", "5", *outputs]) == 0
    )
    assert Path("g.svg").read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--stages: is needed, or --csv\n--microbatches: is needed, or --csv"),
        (["--stages", "2", "--microbatches", "0"], "--microbatches: must be at least 1, got 0"),
        (
            ["--stages", "2", "--microbatches", "2", "--schedule", "x"],
            "--schedule: must be one of GPipe",
        ),
        (
            ["--stages", "2", "--microbatches", "2", "--comm", "1 mile"],
            '--comm: has the unknown unit "mile"',
        ),
        (
            ["--stages", "2", "--microbatches", "2", "--weight", "1,2,3"],
            "--weight: must hold 1 value or 2",
        ),
        (
            ["--stages", "2", "--microbatches", "2", "--gantt", "g.txt"],
            "--gantt: g.txt: the name must end in .png",
        ),
        (
            ["--stages", "2", "--microbatches", "2", "--gantt", "no/g.png"],
            "--gantt: cannot write no/g.png: no such",
        ),
        (
            ["--stages", "2", "--microbatches", "2", "--save-csv", "a.csv", "--csv", "a.csv"],
            "a.csv is the table a.csv",
        ),
        (["--csv", "absent.csv"], "absent.csv: no such file"),
        (
            ["--csv", "t.csv", "--schedule", "1F1B"],
            "--schedule: the table of --csv is the schedule",
        ),
        (["--csv", "t.csv", "--stages", "3"], "--stages: is 3, but t.csv has 2 ranks"),
        (
            ["--csv", "t.csv", "--microbatches", "3"],
            "--microbatches: is 3, but t.csv has 2 microbatches",
        ),
        (
            ["--csv", "bad.csv"],
            "bad.csv: rank 1, slot 0: 1B0 stands before 1F0 (slot 1), which it needs",
        ),
        (["--csv", "cycle.csv"], "cycle.csv: deadlock: rank 0, slot 1: 0B0 waits for 1B0"),
    ],
)
def test_bad_input(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    Path("t.csv").write_text(TABLE)
    Path("bad.csv").write_text(TABLE.replace("1F0,1B0", "1B0,1F0"))
    Path("cycle.csv").write_text("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    before = {path.name for path in here.iterdir()}
    assert main([*SMALL, *arguments]) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""
    assert {path.name for path in here.iterdir()} == before


# --- The picture
# --------------------------------------------------------------------------------------------------


def test_bars_and_gaps_tile_every_rank() -> None:
    report, trace = ran("ZB-H1", 3, 10)
    chart = pipeline_chart(report, trace)
    idle = chart.looks.index(IDLE)
    drawn = 0
    for row, rank in zip(chart.rows, report.ranks, strict=True):
        acts, length = row.look != idle, row.finish - row.start
        assert length.sum() == report.step_ps
        assert length[acts].sum() == rank.busy_ps
        assert (row.start[acts] == trace.start[row.tasks[acts]]).all()
        # A look a hue and kind: microbatches take the hues in turn.
        numbers = [report.schedule.actions[task].microbatch for task in row.tasks[acts]]
        assert (row.look[acts] % len(HUES) == np.array(numbers) % len(HUES)).all()
        drawn += int(acts.sum())
    assert drawn == 90


def test_kinds_differ_in_lightness() -> None:
    for colour in HUES:
        light = [float(np.dot(shade(colour, kind), (0.2126, 0.7152, 0.0722))) for kind in "FBW"]
        assert light[0] > light[1] + 0.15
        assert light[1] > light[2] + 0.04


@pytest.mark.parametrize(
    "shape", [("1F1B", 4, 8), ("Interleaved1F1B", 2, 4, 2), ("PipeDream", 3, 12), ("GPipe", 1, 1)]
)
def test_figure_has_a_row_a_rank_and_tells_the_step(shape: Any) -> None:
    report, trace = ran(*shape)
    ax = draw_gantt(pipeline_chart(report, trace))
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        rank.name for rank in report.ranks
    ]
    assert f"{report.schedule.microbatches} microbatches" in ax.get_title(loc="left")
    legend = ax.get_legend()
    assert legend is not None
    words = [text.get_text() for text in legend.get_texts()]
    assert words[:3] == ["forward", "backward", "idle"]


def test_labels_are_microbatches_or_actions() -> None:
    plain = {text.get_text() for text in draw_gantt(pipeline_chart(*ran("1F1B", 2, 3))).texts}
    assert plain == {"0", "1", "2"}
    several = {
        text.get_text()
        for text in draw_gantt(pipeline_chart(*ran("Interleaved1F1B", 2, 2, 2))).texts
    }
    assert "3B1" in several


def test_many_actions_share_colours_and_have_no_labels() -> None:
    ax = new_figure(6, 3).add_subplot()
    assert draw_gantt(pipeline_chart(*ran("ZB-H2", 8, 160)), ax) is ax
    legend = ax.get_legend()
    assert legend is not None
    assert (
        legend.get_texts()[-1].get_text()
        == "microbatches (10 of one colour, colours repeat every 80)"
    )
    assert not ax.texts


def test_a_pipeline_of_no_length_is_drawn() -> None:
    schedule = named_schedule("1F1B", 2, 2)
    trace = simulate(pipeline_task_graph(schedule, stage_times(schedule, 0, 0)))
    assert draw_gantt(pipeline_chart(pipeline_use(schedule, trace), trace))


# --- The document
# -------------------------------------------------------------------------------------------------


def test_python_of_the_document_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (source,) = [block for block in blocks if "bubble_rate" in block]
    exec(compile(source, "pipelines.md", "exec"), {})
    assert capsys.readouterr().out.strip() == re.findall(r"# ([0-9.]+)$", source, re.MULTILINE)[0]


def test_commands_and_table_of_the_document_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = DOCUMENT.read_text().replace("\\\n", " ")
    commands = re.findall(r"^    simdev (pipeline .*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert main(command.split()) == 0
    table = "\n".join(re.findall(r"^    ([0-9,].*)$", text, re.MULTILINE))
    assert table.count("\n") == 2
    Path("own.csv").write_text(table)
    assert main([*SMALL, "--csv", "own.csv"]) == 0
    assert "own: 3 stages on 3 ranks, 2 microbatches" in capsys.readouterr().out
