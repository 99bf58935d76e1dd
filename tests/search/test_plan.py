"""Plans of large models: what is legal, which is best, and what becomes of the rest."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest

import simdev
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.ground.units import format_seconds
from simdev.nouns.models.large import LARGE
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.search.plan import Space, choices_of, plans_of, question_of
from simdev.search.plan.bounds import Bounds
from simdev.search.plan.space import Setup

TINY = {"model": "llama3.2-1b", "layers": 4, "length": 512}
FEW = {"schedule": ["1F1B", "ZB-H1"], "recompute": "none", "zero": [0, 3], "cp": 1, "tp": 4}


def space(model: str, devices: int, batch: int, **options: object) -> Space:
    return Space(LARGE[model], (devices,), batch, choices_of(options))


def test_every_combination_of_the_degrees_is_a_plan_or_has_a_reason() -> None:
    illegal: Counter[str] = Counter()
    narrow = {"schedule": "1F1B", "zero": 1, "recompute": "none", "microbatch": 1, "cp": 1}
    setups = list(space("llama3-8b", 64, 512, **narrow).setups(illegal))
    # 64 = 2 ** 6 in three degrees: 28 ways.
    assert len(setups) == 21
    assert illegal == {
        "tp: 16 does not divide kv_heads 8 of llama3-8b": 3,
        "tp: 32 does not divide kv_heads 8 of llama3-8b": 2,
        "tp: 64 does not divide heads 32, kv_heads 8 of llama3-8b": 1,
        "pp: 64 stages for 32 layers": 1,
    }


def test_plans_keep_the_global_batch_and_take_all_devices() -> None:
    whole = space("mixtral-8x7b", 16, 24)
    plans = [plan for setup in whole.setups(Counter()) for plan in whole.plans(setup)]
    assert len(plans) == len(set(plans)) == sum(map(whole.count, whole.setups(Counter())))
    for plan in plans[:: len(plans) // 200]:
        p = plan.parallelism
        assert isinstance(p, Parallelism)
        assert (p.samples, p.devices) == (24, 16)


def test_stages_and_rounds_that_cannot_be_are_counted() -> None:
    illegal: Counter[str] = Counter()
    list(space("llama3-8b", 8, 6, pp=4, tp=1, dp=2, chunks=[2, 16]).setups(illegal))
    assert any(reason.startswith("chunks: 64 stages for 32 layers") for reason in illegal)


def test_more_microbatches_than_a_step_may_have_are_counted() -> None:
    illegal: Counter[str] = Counter()
    options = {"dp": 1, "tp": 2, "pp": 1, "cp": 1, "recompute": "none", "schedule": "1F1B"}
    setups = list(space("llama3.2-1b", 2, 2**22, zero=0, **options).setups(illegal))
    assert illegal == {"microbatches: more than 1,048,576": 2}
    assert {setup.microbatches for setup in setups} == {2**n for n in range(21)}


EVERY = ["GPipe", "1F1B", "Interleaved1F1B", "ZB-H1", "ZB-H2", "InterleavedZeroBubble", "ZB-2p"]


def test_schedules_are_one_where_a_rank_alone_does_the_same() -> None:
    options = {"recompute": "none", "zero": 0, "cp": 1, "tp": 1, "microbatch": 1, "schedule": EVERY}

    def names(pp: int, **more: object) -> list[tuple[str, int]]:
        whole = space("llama3.2-1b", 2, 8, pp=pp, **{**options, **more})
        return [p[1:3] for setup in whole.setups(Counter()) for p in whole.plans(setup)]

    assert names(1) == [("GPipe", 1), ("1F1B", 1), ("ZB-H1", 1), ("ZB-2p", 1)]
    assert names(1, schedule="interleaved") == [("1F1B", 1)]
    whole = "1F1B", 1
    assert names(2, chunks=[1, 2], schedule=EVERY[1:3]) == [whole, ("Interleaved1F1B", 2)]
    assert names(2, chunks=1, schedule=EVERY[2]) == [("Interleaved1F1B", 1)]


def test_what_cannot_be_timed_is_refused_by_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    question, choices = question_of(TINY, "dgx-h100", 8), choices_of({**FEW, "microbatch": 1})
    plain, of_setup = plans_of(question, choices), Bounds.setup_ps

    def long(bounds: Bounds, setup: Setup) -> int:
        if setup.layout.pp == 2:
            raise InputError("message_latency: a task of the step takes more than 53 days")
        return of_setup(bounds, setup)

    monkeypatch.setattr(Bounds, "setup_ps", long)
    counts = plans_of(question, choices).counts
    assert counts.legal == plain.counts.legal
    (count,) = (counts.refused or {}).values()
    assert 0 < count < counts.legal
    with pytest.raises(InputError, match="message_latency: a task"):
        plans_of(question, choices_of({**FEW, "microbatch": 1, "pp": 2}))


def test_the_frame_holds_the_fastest_plans_and_scenarios_that_open() -> None:
    frame = simdev.plan(TINY, "dgx-h100", 8, options={**FEW, "microbatch": 1}, price=2.0)
    assert list(frame["step_time_ps"]) == sorted(frame["step_time_ps"])
    assert frame["why"][0] == ""
    assert all(frame["why"][1:])
    steps = frame["step_time_s"] * 8 * 2.0 / 3600
    words = 8 * simdev.load_scenario(frame["scenario"][0]).graph.length
    assert frame["cost_per_million_tokens"].tolist() == pytest.approx(
        (steps / words * 1e6).tolist()
    )
    for row in frame.to_dict("records")[::4]:
        report = simdev.run(simdev.load_scenario(row["scenario"]))
        assert report.step_ps == row["step_time_ps"]
        assert report.feasible
        assert report.training is not None
        assert report.training.tokens_per_s == row["tokens_per_s"]
        assert max(memory.peak for memory in report.memories) == row["peak_bytes"]
        assert prod(row[name] for name in ("dp", "cp", "tp", "pp")) == row["devices"] == 8
        cost = 2.0 * 8 / 3600 / row["tokens_per_s"] * 1e6
        assert row["cost_per_million_tokens"] == pytest.approx(cost)


def test_the_front_is_of_steps_memory_and_devices() -> None:
    question = question_of(TINY, "dgx-h100", 8, [1, 2])
    choices = choices_of({**FEW, "microbatch": 1, "schedule": "1F1B", "pp": [1, 2]})
    plans = plans_of(question, choices, front=True)
    points = [
        (s.row["step_ps"], s.row["peak_bytes"], question.devices[s.plan.setup.layout.cluster])
        for s in plans.front
    ]
    for point in points:
        assert not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )
    assert {point[2] for point in points} == {8, 16}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tp": 3}, "^tp: no combination of these takes all 8 devices"),
        ([1], "options: must be an object"),
        ({"microbatches": 4}, "follows from the global batch"),
        ({"speed": 4}, "is no field of a pipeline"),
        ({"global_batch": 4}, "global_batch: is told with the question"),
        ({"schedule": ["1F1B", "pipedream"]}, "schedule: plans have one of.*, got PipeDream"),
        ({"schedule": 3}, "schedule: plans have one of.*, got 3"),
        ({"tp": 0}, "tp: must be a whole number"),
        ({"schedule": "2F2B"}, "schedule: must be one of"),
        ({"tp": 8, "recompute": "some"}, "recompute: must be one of"),
        ({"offload": "activations"}, "host_bandwidth"),
        ({"recompute_modules": "all"}, "recompute_modules: must be of core_attn"),
        ({"recompute_modules": "mlp", "recompute": "full"}, "recompute_modules: no combination"),
    ],
)
def test_choices_that_cannot_be_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        simdev.plan("llama3-8b", "dgx-h100", 8, options=options)


def test_what_selective_recomputation_makes_again_may_be_chosen() -> None:
    modules = [["mlp_act"], ["layernorm", "mlp_act"]]
    options = {
        **FEW,
        "recompute": "selective",
        "recompute_modules": modules,
        "pp": 2,
        "microbatch": 1,
        "schedule": "1F1B",
    }
    frame = simdev.plan(TINY, "dgx-h100", 8, options=options, alike=True)
    assert set(frame["recompute"]) == {"selective"}
    assert set(frame["recompute_modules"]) == {tuple(each) for each in modules}
    best = simdev.load_scenario(frame["scenario"][0])
    assert simdev.run(best).step_ps == frame["step_time_ps"][0]


def test_the_command_line_tells_and_writes_the_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "4"]
    narrow = ["tp=2,64", "schedule=1F1B", "zero=1,3", "recompute=full", "microbatch=1", "cp=1"]
    options = [*question, "--length", "512", *(part for n in narrow for part in ("--set", n))]
    options.append("--alike")
    assert main([*options, "--price", "2", "--check", "-o", str(tmp_path / "plans")]) == 0
    printed = capsys.readouterr()
    assert "proved not to fit" in printed.out
    assert "$/M tokens" in printed.out
    assert "Confirmed by" in printed.err
    assert main([*options, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    *files, page, written = sorted((tmp_path / "plans").iterdir())
    assert (page.name, written.name) == ("plans.html", "plans.json")
    assert json.loads(written.read_text())["counts"]["plans"] == 3
    assert main(["report", str(tmp_path / "plans"), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text() == page.read_text()
    assert len(files) == len(answer["plans"]) == answer["counts"]["plans"] == 3
    least = format_seconds(min(row["step_time_s"] for row in answer["plans"]))
    assert f"no plan of these that fits takes less than {least}: proved" in printed.out
    assert answer["counts"]["proved_best"] is True
    for file, row in zip(files, answer["plans"], strict=True):
        # A price is no part of the answer: it goes with the scenario that was written with it.
        assert json.loads(file.read_text()) == {**row["scenario"], "options": {"price": "2"}}
    assert main([*options, "-o", str(tmp_path / "plans"), "--top", "1"]) == 0
    before = tmp_path / "plans" / "before-1"
    names = {file.name for file in before.iterdir()}
    assert names == {page.name, written.name, *(file.name for file in files)}
    there = {file.name for file in (tmp_path / "plans").iterdir()}
    assert there == {before.name, page.name, written.name, "01.json"}
    printed = capsys.readouterr()
    assert "before-1" in printed.err
    assert "a device has 80 GiB" in printed.out
    assert main(["simulate", str(before / "01.json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_time_ps"] == answer["plans"][0]["step_time_ps"]


def test_where_nothing_fits_the_least_memory_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "recompute=full", "--set", "cp=1"]
    question = ["plan", "llama3-405b", "--cluster", "nc-a100-pairs", "--global-batch", "1"]
    assert main([*question, *options]) == 1
    assert "No plan fits; each needs" in capsys.readouterr().out


def test_what_cannot_be_simulated_is_counted_by_its_reason() -> None:
    model = {"model": "llama3.2-1b", "precision": "float8"}
    answer = simdev.plan(model, "nc-a100-pairs", 4, options={"tp": 4, "recompute": "full"})
    assert not len(answer)
    (reason,) = answer.attrs["counts"]["refused"]
    assert answer.attrs["counts"]["proved_best"] is False
    assert "float8" in reason


def test_the_table_names_all_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["plan", "llama3.2-1b", "--cluster", "nc-a100-pairs", "--global-batch", "4"]
    narrow = ["dp=1", "cp=2", "tp=2", "pp=1", "schedule=1F1B", "recompute=full", "microbatch=1"]
    narrow += ["zero=3", "prefetch=0,1", "context=ring"]
    assert main([*question, *(part for each in narrow for part in ("--set", each))]) == 0
    heading = next(
        line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["#"]
    )
    assert {"cp", "context", "microbatches", "prefetch"} <= set(heading.split())


def test_what_a_graph_does_not_heed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["plan", "lenet", "--cluster", "c4140-4x-v100", "--global-batch", "4"]
    assert main([*question, "--check"]) == 2
    assert "--check: goes with a model by its sizes" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main([*question, "--output", str(tmp_path / "file")]) == 2
    assert "--output: cannot write" in capsys.readouterr().err
