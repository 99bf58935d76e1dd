"""Steps of large models: parts of their time, their chart, bad input, and the command line."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from hybrid_steps import DENSE, EXPERTS, boxes, lowered, report_of
from simdev.commands import main
from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveModel
from simdev.execution.scenario import load_scenario
from simdev.files import read_cluster
from simdev.ground.errors import InputError
from simdev.lowering.hybrid import lower_hybrid
from simdev.nouns.models.large import LARGE
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import Coded, Lazy
from simdev.report import run
from simdev.report.figures import chart_of, draw_gantt
from simdev.report.measures.training import BUBBLE, TERMS, tiles


def test_the_chart_shows_every_microbatch_and_all_time() -> None:
    report = report_of(DENSE, Parallelism(tp=2, pp=2, microbatches=4, recompute="full"))
    chart = chart_of(report)
    ax = draw_gantt(chart)
    assert sorted(text.get_text() for text in ax.texts) == sorted(
        str(i) for i in range(4) for _ in range(4)
    )
    for row in chart.rows:
        drawn = int((row.finish - row.start).sum())
        # gaps that could not be seen are drawn over
        assert report.step_ps <= drawn < 1.3 * report.step_ps
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {
        "forward and recompute",
        "backward",
        "tensor, exposed",
        "bubble",
        "microbatches",
    } <= set(legend)


def test_microbatches_share_a_hue_where_a_row_has_very_many() -> None:
    report = report_of(DENSE, Parallelism(pp=2, microbatches=160))
    legend = [text.get_text() for text in draw_gantt(chart_of(report)).get_legend().get_texts()]
    assert legend[-1] == "microbatches (10 of one colour, colours repeat every 80)"


def test_pipeline_meets_its_closed_form() -> None:
    """Equal stages, transfers that take no time: the step is (m + p - 1) / m of a rank's work, and
    its ends.
    """
    free = read_cluster(
        {"name": "free", "queues": "parallel", "devices": [{"name": f"gpu:{i}"} for i in range(4)],
         "links": {"all_to_all": {"bandwidth": "1000 PB/s"}}}
    )  # fmt: skip
    model = replace(DENSE, vocabulary=1, tied=False)
    m, p = 8, 4
    report = report_of(model, Parallelism(pp=p, microbatches=m), cluster=free)
    tasks, plan = report.trace.task_graph.tasks, report.training.large
    layers = [
        int(tasks.duration[(plan.role == role) & (tasks.source == 1)].sum()) // m for role in (0, 1)
    ]
    ideal = (m + p - 1) * sum(layers)
    first, last = (report.training.stages[rank].terms for rank in (0, -1))
    ends = first["update"] + last["forward"] + last["backward"]
    assert ideal <= report.step_ps <= ideal + ends
    assert report.training.stages[1].terms[BUBBLE] >= (p - 1) * sum(layers)


def test_tiles_tile() -> None:
    report = report_of(EXPERTS, Parallelism(dp=2, tp=2, pp=2, ep=2, microbatches=4))
    for rank in range(2):
        label, start, finish = tiles(report.trace, report.training.large, rank)
        assert start[0] == 0
        assert finish[-1] == report.step_ps
        assert (start[1:] == finish[:-1]).all()
        assert (label[1:] != label[:-1]).all()
        assert set(label.tolist()) <= set(range(len(TERMS)))


def test_a_table_of_ones_own_is_the_schedule(tmp_path) -> None:
    """GPipe written down is GPipe by name."""
    table = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"
    own = report_of(DENSE, Parallelism(pp=2, microbatches=2, table=table))
    named = report_of(DENSE, Parallelism(pp=2, microbatches=2, schedule="GPipe"))
    assert own.step_ps == named.step_ps
    (tmp_path / "own.csv").write_text(table)
    scenario = {
        "version": 1, "graph": {"model": "llama2-7b", "layers": 4},
        "cluster": {"preset": "dgx-h100"},
        "strategy": {"pipeline": {"dp": 4, "pp": 2, "microbatches": 2, "table": "own.csv"}},
    }  # fmt: skip
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    assert load_scenario(tmp_path / "scenario.json").strategy.pipeline.table == table


@pytest.mark.parametrize(("chunks", "layers"), [(4, (*[1] * 7, 0)), (5, (0, *[1] * 8, 0))])
def test_with_a_stage_or_two_too_many_the_ends_have_no_layer(
    chunks: int, layers: tuple[int, ...]
) -> None:
    model = replace(DENSE, layers=sum(layers))
    plan = Parallelism(pp=2, microbatches=4, chunks=chunks, schedule="Interleaved1F1B")
    told = replace(plan, stage_layers=layers)
    assert report_of(model, plan).step_ps == report_of(model, told).step_ps
    assert report_of(model, plan).training.large.stage_layers == layers


BAD = [
    ({"microbatches": 0}, "microbatches: must be a whole number from 1 to 1,048,576, got 0"),
    (
        {"microbatches": 650_000, "tp": 4},
        "microbatches: the step lowers to more than 10,000,000 tasks",
    ),
    ({"dp": 2}, "= 2 devices"),
    ({"ep": 2, "dp": 4}, "ep: dense has no experts"),
    ({"tp": 16}, "tp: 16 does not divide heads 8 of dense"),
    ({"tp": 3}, "tp: 3 does not divide heads 8, inner 1024, length 128 of dense"),
    ({"pp": 16, "microbatches": 16}, "stage 8 would be without op"),
    ({"stage_layers": (4, 0, 4), "pp": 3}, "stage_layers[1]: a stage needs one layer at least"),
    ({"stage_layers": (4, 3), "pp": 2}, "stage_layers: tell of 7 layers"),
    ({"zero": 4}, "zero: must be 0, 1, 2 or 3, got 4"),
    ({"recompute": "all"}, "recompute: must be one of none, selective, full"),
    ({"offload": ("optimizer",)}, "host_bandwidth: offload needs"),
    ({"offload": ("disk", "disk")}, 'offload: must be of activations, optimizer, got "disk"'),
    ({"zero": 2, "dp": 4, "in_flight": -1}, "in_flight: must be a whole number from 0 to"),
    ({"zero": 3, "dp": 4, "prefetch": -1}, "prefetch: must be a whole number from 0 to"),
    (
        {"zero": 3, "dp": 4, "bucket": Decimal("0.5")},
        "bucket: must be a whole number from 1 to",
    ),
    ({"schedule": "2F2B"}, "schedule: must be one of"),
    ({"schedule": "PipeDream", "pp": 2, "microbatches": 2}, "PipeDream has no step"),
    (
        {"pp": 2, "microbatches": 1, "table": "0F0,0B0\n1B0,1F0\n"},
        "table: rank 1, slot 0: 1B0 stands before 1F0",
    ),
    (
        {"pp": 2, "microbatches": 2, "table": "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"},
        "table: deadlock",
    ),
    ({"pp": 2, "microbatches": 1, "table": "0F0,0B0\n"}, "pp: is 2, but the table has 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_bad_input_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        lowered(DENSE, Parallelism(**changes), cluster=boxes(4, 1))
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1 or "deadlock" in message  # told of each rank


def test_unknown_devices_are_named() -> None:
    with pytest.raises(InputError, match='no datasheet tells of devices of kind "gpu"'):
        lower_hybrid(DENSE, Parallelism(tp=4), CollectiveModel(boxes(4, 1)), CostModel())


def test_one_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of the guide: 64 GPUs, one of each rank simulated, the time of each rank tiled by
    its terms.
    """
    line = (
        "simulate --model llama3-70b --cluster dgx-h100 --nodes 8 --dp 4 --tp 8 --pp 2 "
        "--microbatches 16 --json --check"
    )
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    training = found["training"]
    assert training["devices"] == 64
    assert training["symmetry"]["copies"] == 32
    assert training["symmetry"]["collapsed"]
    assert 0.3 < training["mfu"] < 0.6
    for stage in training["stages"]:
        assert sum(stage["terms_s"].values()) == pytest.approx(found["step_time_s"])
        assert stage["peak_bytes"] < stage["capacity_bytes"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--model llama3-8b --cluster dgx-h100 --dp 3", "= 3 devices, but the cluster"),
        ("--model llama3-8b --cluster dgx-h100 --tp 8 --microbatches 0", "--microbatches: must be"),
        ("--model lama --cluster dgx-h100", '--model: no large model called "lama"'),
        ("--model llama3-8b --cluster dgx-h10", 'did you mean "dgx-h100"'),
        ("--model llama3-8b", "--cluster: is needed"),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 3",
            "--tp: 3 does not divide heads 32, kv_heads 8",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --schedule x",
            "--schedule: must be one of GPipe",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --length 99999999",
            "--length: must be a whole number from 1 to",
        ),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --chunks 2 --csv a.csv",
            "--chunks: the table tells it",
        ),
        ("--model llama3-8b --cluster= --tp 8", '--cluster: must be a path, got ""'),
        (
            "--model llama3-8b --cluster dgx-h100 --tp 8 --offload optimizer --host-bandwidth 1B/s",
            "--host-bandwidth: a task of the step takes more than 53 days",
        ),
        ("some.json --tp 8", "--tp: goes with --model"),
        ("some.json --model llama3-8b --cluster dgx-h100", "some.json is the scenario"),
    ],
)
def test_bad_lines_exit_2(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *line.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_file_with_a_pipeline_is_simulated(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = {"version": 1, "pipeline": {"dp": 2, "tp": 4, "microbatches": 4, "zero": 3}}
    scenario = {
        "version": 1, "graph": {"model": "llama2-7b", "layers": 4, "length": 1024},
        "cluster": "dgx-a100-80",
        "strategy": "strategy.json",
    }  # fmt: skip
    (tmp_path / "strategy.json").write_text(json.dumps(strategy))
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    saved, drawn = tmp_path / "run.json.gz", tmp_path / "gantt.png"
    arguments = [
        "simulate",
        str(tmp_path / "scenario.json"),
        "--save",
        str(saved),
        "--gantt",
        str(drawn),
        "--json",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["training"]["model"] == "llama2-7b"
    assert drawn.stat().st_size > 10_000
    assert main(["check", str(saved)]) == 0
    (tmp_path / "strategy.json").write_text(
        json.dumps({"version": 1, "pipeline": {"dp": 2, "tpp": 4}})
    )
    assert main(["simulate", str(tmp_path / "scenario.json")]) == 2
    assert "strategy.json: pipeline.tpp: unknown key" in capsys.readouterr().err


STEP = {
    "version": 1, "graph": {"model": "llama2-7b", "layers": 2, "length": 512},
    "cluster": "dgx-a100-80",
    "strategy": {"pipeline": {"dp": 2, "tp": 4}},
}  # fmt: skip


WRONG = [
    ({"graph": {"model": "llama2-7b", "name": "mine"}}, "graph.name: is no size of a large model"),
    (
        {"graph": {"model": "llama2-7b", "layers": 2**24}},
        "graph.layers: must be a whole number from 1 to 16,384",
    ),
    ({"graph": {"model": "mixtral"}}, 'graph.model: no large model called "mixtral"'),
    ({"cluster": "dgx"}, "cluster: neither a file nor a preset"),
    ({"devices": [{"kind": "x"}]}, "devices[0].flops: missing"),
    (
        {"strategy": {"pipeline": None, "version": 1}},
        "strategy.pipeline: must be an object, got null",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8}, "placement": {"a": "b"}}},
        "strategy.placement: a pipeline stands alone",
    ),
    (
        {"strategy": "data-parallel", "graph": {"model": "mixtral-8x7b"}},
        "strategy: mixtral-8x7b is a large model by",
    ),
    (
        {"options": {"memory": {"model": "outputs_only"}}},
        "options.memory: that of llama2-7b is counted tensor by tensor",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "table": ""}}},
        "strategy.pipeline.table: must be the path",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "table": "t", "schedule": "1F1B"}}},
        "strategy.pipeline.schedule: the table",
    ),
    (
        {"strategy": {"pipeline": {"tp": 8, "microbatch": 0}}},
        "strategy.pipeline.microbatch: must be",
    ),
    ({"strategy": {"pipeline": {"tp": 6}}}, "strategy.pipeline.tp: 6 does not divide heads 32"),
    ({"strategy": {"pipeline": {"tp": 4}}}, "dp x tp x pp: 1 x 4 x 1 = 4 devices"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=[told[:24] for _, told in WRONG])
def test_bad_files_exit_2(
    changes: dict[str, object], told: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(STEP | changes))
    assert main(["simulate", str(file), "--save", str(tmp_path / "run.json")]) == 2
    assert capsys.readouterr().err.startswith(f"{file}: {told}")
    assert [one.name for one in tmp_path.iterdir()] == ["s.json"]


def test_standard_input_may_hold_a_pipeline(
    monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(text: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return main(["simulate", "-", "--json"])

    assert asked(json.dumps(STEP)) == 0
    assert json.loads(capsys.readouterr().out)["training"]["model"] == "llama2-7b"
    assert asked(json.dumps(STEP | {"strategy": {"pipeline": {"tp": 6}}})) == 2
    assert capsys.readouterr().err.startswith("<stdin>: strategy.pipeline.tp: 6 does not divide")
    assert asked('"s.json"') == 2
    assert "<stdin>: must be an object (a scenario)" in capsys.readouterr().err


def test_inputs_are_not_written_over(
    tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = "0F0,0B0\n"
    (tmp_path / "t.json").write_text(table)
    line = "simulate --model llama2-7b --cluster dgx-a100-80 --tp 8 --csv t.json --save t.json"
    assert main(line.split()) == 2
    assert "--save: t.json is the input t.json too" in capsys.readouterr().err
    (tmp_path / "s.json").write_text(
        json.dumps(STEP | {"strategy": {"pipeline": {"tp": 8, "table": "t.json"}}})
    )
    assert main(["simulate", "s.json", "--save", "t.json"]) == 2
    assert (tmp_path / "t.json").read_text() == table


def test_run_is_what_the_line_runs() -> None:
    scenario = {
        "graph": {"model": "mixtral-8x7b", "layers": 4, "length": 1024}, "cluster": "dgx-h100",
        "strategy": {"pipeline": {"dp": 8, "ep": 8, "microbatches": 2}},
    }  # fmt: skip
    report = run(load_scenario(scenario))
    assert report.feasible
    assert report.training.terms["expert"] > 0
    assert sum(report.training.terms.values()) == pytest.approx(report.seconds)
    assert "One device stands for the 8" in str(report)
    assert np.isclose(
        report.training.mfu, report.training.large.model.flops(16) / (report.seconds * 8 * 989e12)
    )


def test_names_are_made_when_asked_for() -> None:
    made: list[int] = []
    names = Lazy(5, lambda i: made.append(i) or f"task {i}")
    assert len(names) == 5
    assert not made
    assert (names[1], names[-1], names[3:]) == ("task 1", "task 4", ("task 3", "task 4"))
    assert made == [1, 4, 3, 4]
    assert list(names) == [f"task {i}" for i in range(5)]
    assert names == tuple(names)
    assert names != tuple(names)[1:]
    with pytest.raises(IndexError):
        names[5]
    kinds = Coded(np.array([1, 0, 1], np.uint8), ("forward", "transfer"))
    assert tuple(kinds) == ("transfer", "forward", "transfer")
    # more than a byte can number, as a saved run may name them
    many = [f"kind {i}" for i in range(300)] * 2
    assert list(Coded.of(many)) == many
    assert Coded.of(many).count("kind 299") == 2


def test_attention_is_that_of_the_models_year(capsys: pytest.CaptureFixture[str]) -> None:
    """GPTs of 2021 keep their scores, Llamas do not; the report tells it, and options decide."""

    def told(line: str) -> str:
        assert main(f"simulate --cluster dgx-h100 --tp 8 {line}".split()) in (0, 1)
        return capsys.readouterr().out

    kept, fused = "Attention keeps its scores (no flash)", "Attention is one op"
    assert f"{kept} (default of gpt-1.7b)." in told("--model gpt-1.7b")
    assert f"{fused} that keeps no scores (flash)." in told("--model gpt-1.7b --flash")
    assert f"{fused} that keeps no scores (flash) (default of llama2-7b)." in told(
        "--model llama2-7b"
    )
    assert f"{kept}." in told("--model llama2-7b --no-flash")
    assert '"flash": true' in told("--model llama2-7b --json")
    early = {name for name, model in LARGE.items() if not model.flash}
    assert early == {name for name in LARGE if name.startswith(("gpt-", "gpt3-", "megatron-"))} - {
        name for name in LARGE if name.startswith("gpt-oss")
    }
