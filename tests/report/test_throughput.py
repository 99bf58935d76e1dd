"""Samples and words by second, and what they cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simdev.commands import main
from simdev.execution.scenario import load_scenario
from simdev.ground.errors import InputError
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.models import build
from simdev.report import run
from simdev.report.measures.throughput import Throughput, samples_of
from simdev.report.page import Subject, run_data
from simdev.search.sweep import sweep

LARGE: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "gpt-1.7b", "layers": 4, "length": 512},
    "cluster": "dgx-h100",
    "strategy": {"pipeline": {"dp": 8, "microbatches": 4, "microbatch": 2}},
}
SMALL: dict[str, Any] = {
    "version": 1,
    "graph": {"model": "lenet", "batch": 64},
    "cluster": "c4140-4x-v100",
    "strategy": "data-parallel",
}


def throughput(question: dict[str, Any]) -> Throughput:
    section = run(load_scenario(question)).throughput
    assert section is not None
    return section


def test_a_large_models_words_are_those_of_all_replicas_and_microbatches() -> None:
    report = run(load_scenario(LARGE | {"options": {"price": "$3.60"}}))
    assert report.throughput is not None
    assert report.training is not None
    figures = report.throughput.to_json()
    assert (figures["global_batch"], figures["microbatches"]) == (64, 4)
    assert figures["tokens_per_s"] == pytest.approx(report.training.tokens_per_s)
    assert figures["samples_per_s"] == pytest.approx(64 / report.seconds)
    # 3.60 an hour are 0.001 a second, of each of 8.
    assert figures["cost_per_step"] == pytest.approx(0.008 * report.seconds)
    tokens = 64 * 512
    assert figures["cost_per_million_tokens"] == pytest.approx(8e3 * report.seconds / tokens)


def test_a_graphs_samples_are_those_of_its_model_and_all_devices_are_paid() -> None:
    section = throughput(SMALL | {"options": {"price": 3600}})
    seconds = section.step_ps / 1e12
    assert section.to_json() == pytest.approx(
        {
            "global_batch": 64,
            "samples_per_s": 64 / seconds,
            "cost_per_step": 4 * seconds,
            "cost_per_million_samples": 4e6 * seconds / 64,
        }
    )
    alone = throughput(SMALL | {"options": {"price": 3600}} | {"strategy": {"*": "gpu:0"}})
    assert alone.devices == 4


def test_microbatches_count() -> None:
    accumulated = SMALL | {"strategy": {"short": "data-parallel", "accumulate": 3}}
    assert throughput(accumulated).samples == 192
    staged = SMALL | {"strategy": {"pipeline": {"pp": 4, "microbatches": 5}}}
    figures = throughput(staged).to_json()
    assert (figures["global_batch"], figures["microbatches"]) == (320, 5)


def test_inputs_tell_the_samples_where_no_model_does() -> None:
    assert samples_of(build("resnet-50", batch=6)) == 6

    def of(*shapes: tuple[int, ...]) -> int | None:
        ops = enumerate(shapes)
        return samples_of(
            Graph("g", tuple(Op(f"i{n}", "input", outputs=(Tensor(4, s),)) for n, s in ops))
        )

    assert of((8, 3, 5, 5), (8,)) == 8
    # Words by time or by sample, and inputs that differ: not known.
    assert of((20, 64), (20, 64)) is of((8, 20), (9,)) is of() is None


def test_what_is_not_known_is_left_out_and_may_be_told(tmp_path: Path) -> None:
    tensor = {"bytes": 4, "shape": [20, 64]}
    graph = {"name": "g", "ops": [{"name": "a", "kind": "input", "time": 1, "outputs": [tensor]}]}
    question = SMALL | {"graph": graph, "strategy": {"*": "gpu:0"}}
    assert throughput(question).to_json() == {}
    assert throughput(question | {"options": {"samples": 64}}).samples_per_s == 64


@pytest.mark.parametrize(
    ("question", "options", "problem"),
    [
        (SMALL, {"price": "free"}, "options.price: must be a number, got 'free'"),
        (SMALL, {"price": ""}, "options.price: must be a number, got ''"),
        (SMALL, {"price": -1}, "options.price: must be from 0 to 10^9 dollars, got -1"),
        (SMALL, {"samples": 0}, "options.samples: must be a whole number from 1 on, got 0"),
        (LARGE, {"samples": 8}, "options.samples: the pipeline of gpt-1.7b tells them"),
    ],
)
def test_wrong_options_are_refused(
    question: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as error:
        load_scenario(question | {"options": options})
    assert error.value.problems == (problem,)


def test_sweeps_pages_and_the_first_screen_tell_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(LARGE))
    assert main(["simulate", str(file), "--price", "$2"]) in (0, 1)
    assert " per million tokens" in capsys.readouterr().out
    assert main(["sweep", str(file), "--price", "2"]) == 0
    assert "$ a million tokens" in capsys.readouterr().out
    assert main(["simulate", str(file), "--price", "x"]) == 2
    assert capsys.readouterr().err == "--price: must be a number, got 'x'\n"
    rows = sweep([LARGE, SMALL], {"options.price": [2]})
    figures = run(load_scenario(LARGE | {"options": {"price": 2}}))
    assert figures.throughput is not None
    assert (
        rows["cost_per_million_tokens"][0]
        == figures.throughput.to_json()["cost_per_million_tokens"]
    )
    assert rows["tokens_per_s"].isna().tolist() == [False, True]
    assert rows["samples_per_s"].notna().all()
    facts = dict(run_data(Subject("s", figures))["facts"])
    assert facts["cost per million tokens"].startswith("$")


def test_two_plans_are_compared_by_what_they_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    spread = {"tp": 8, "global_batch": 64}
    for file, pipeline in zip(files, (LARGE["strategy"]["pipeline"], spread), strict=True):
        Path(file).write_text(json.dumps(LARGE | {"strategy": {"pipeline": pipeline}}))
    assert main(["compare", *files, "--price", "2", "--json"]) == 0
    (step, *_) = json.loads(capsys.readouterr().out)["sheets"]
    cells = {row[0]: row for row in step["rows"]}
    assert cells["cost per million tokens"][3] == pytest.approx(cells["step time"][3])
    assert cells["cost per million tokens"][1].startswith("$")
    assert main(["report", files[0], "--price", "2", "--no-what-if", "--json"]) == 0
    assert "cost_per_step" in json.loads(capsys.readouterr().out)["throughput"]
    for verb in ("report", "compare"):
        assert main([verb, *files[: 1 + (verb == "compare")], "--json", "--price", "x"]) == 2
        assert capsys.readouterr().err == "--price: must be a number, got 'x'\n"
