"""How far published runs were from simulated ones: by their likeness, with what was matched; and
how far layouts of one model were off beside each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import exp, log
from pathlib import Path

import pytest

from simdev.nouns.models.large import LARGE, large_model
from simdev.nouns.models.large.precision import PRECISIONS
from simdev.report.measures import published as measures
from simdev.report.measures.published import (
    COLUMNS,
    FEW,
    FEW_PAIRS,
    FILE,
    FRAMEWORK,
    GENERATION,
    KEYS,
    PublishedRun,
    keys_of,
    layout_error,
    published_error,
    published_errors,
    published_runs,
)

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import published

PAGE = (Path(__file__).parents[2] / "docs" / "papers" / "large-models.md").read_text("utf-8")
DEVICES = "h100-sxm", "gb200", "mi300x", ""


def published_of(
    model: str, seconds: float, simulated: float, source: str = "a paper", **keys: str
) -> PublishedRun:
    of_keys = {"device": "h100-sxm", "precision": "bfloat16", "kind": "dense"} | keys
    of_keys = {"software": "megatron"} | of_keys
    return PublishedRun(
        "a run", model, 10**9, *(of_keys[key] for key in KEYS), published_s=[(source, seconds)],
        simulated_s=simulated,
    )  # fmt: skip


Put = Callable[..., None]


@pytest.fixture
def of_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Puts runs in the place of the file."""

    def put(*runs: PublishedRun) -> None:
        monkeypatch.setattr(measures, "published_runs", lambda: runs)
        measures._error_of.cache_clear()
        measures._layout_error_of.cache_clear()

    yield put
    measures._error_of.cache_clear()
    measures._layout_error_of.cache_clear()


def test_every_step_of_the_file_is_in_the_benchmark_and_those_of_papers_on_the_site() -> None:
    value = json.loads(FILE.read_text())
    assert value["columns"] == list(COLUMNS)
    assert FILE.read_text() == published.text(value)
    for (name, pairs, _), run in zip(published.steps(), published_runs(), strict=True):
        assert name == run.step
        assert run.published_s == [[source, round(s, published.DIGITS)] for source, s in pairs]
        if (short := run.step.removeprefix("Llama-3 70B of 12 layers, ")) in PAGE:
            lines = [text for text in PAGE.splitlines() if text.startswith(f"| {short} |")]
            simulated = run.simulated_s * (1e3 if short != run.step else 1)
            figures = f" {simulated:.1f} (", f" {simulated:.2f} ("
            assert any(figure in line for figure in figures for line in lines), lines
    assert FILE.stat().st_size < 30_000


@pytest.mark.slow
def test_the_file_is_what_the_benchmark_simulates() -> None:
    runs = zip(published.steps(), published_runs(), strict=True)
    for (_, _, simulate), run in runs:
        assert simulate().seconds == pytest.approx(run.simulated_s, rel=0.01)


def test_every_large_model_has_the_error_of_runs_of_its_like() -> None:
    for name in LARGE:
        for precision in PRECISIONS:
            for device in DEVICES:
                model = large_model(name, precision=precision)
                keys = keys_of(model, device)
                error = published_error(model, device)
                assert error.matched.items() <= keys.items()
                assert error.unmatched == {k: keys[k] for k in KEYS if k not in error.matched}
                assert error.runs >= FEW
                assert error.least <= error.largest
                assert 0 < error.mean <= max(abs(error.least), abs(error.largest))
                assert error.matched["kind"] == ("moe" if model.experts else "dense")
                layouts = layout_error(model, device)
                assert layouts.pairs >= FEW_PAIRS
                assert layouts.mean > 0
                assert layouts.matched["kind"] == error.matched["kind"]


def test_errors_by_keys_are_of_all_runs() -> None:
    total = sum(error.runs for error in published_errors())
    assert total == sum(len(run.published_s) for run in published_runs()) >= 100
    for error in published_errors():
        runs = [run for run in published_runs() if error.matched.items() <= run.keys.items()]
        errors = [run.simulated_s / s - 1 for run in runs for _, s in run.published_s]
        assert (min(errors), max(errors)) == (error.least, error.largest)
        assert error.mean == pytest.approx(sum(map(abs, errors)) / len(errors))


def test_the_nearest_runs_count_and_what_was_matched_is_told(of_runs: Put) -> None:
    near = [published_of("a", 1.0, 1.0 + 0.01 * n) for n in range(1, FEW)]
    cousin = published_of("a", 1.0, 0.5, device="h200-sxm")
    far = published_of("a", 1.0, 2.0, device="mi300x", precision="float8")
    model = LARGE["llama3-8b"]
    of_runs(*near, cousin, far)
    error = published_error(model, "h100-sxm")
    every = {"precision": "bfloat16", "kind": "dense", FRAMEWORK: "megatron"}
    assert error.matched == {GENERATION: "Hopper", **every, "software": "megatron"}
    assert error.unmatched == {"device": "h100-sxm"}
    assert (error.runs, error.least) == (FEW, -0.5)
    text = "on Hopper by megatron (too few of device h100-sxm) the model was 17.7% off in the mean"
    beside = f"Beside 3 published runs of dense models in bfloat16 {text}, from -50.0% to +2.0%."
    assert str(error) == beside
    bridge = published_of("a", 1.0, 0.5, device="h200-sxm", software="megatron-bridge")
    of_runs(*near, bridge, far)
    error = published_error(model, "h100-sxm")
    assert error.matched == {GENERATION: "Hopper", **every}
    assert "by megatron* (too few of device h100-sxm, software megatron)" in str(error)
    of_runs(*near, published_of("a", 1.0, 1.5), cousin, far)
    assert published_error(model, "h100-sxm").unmatched == {}
    assert published_error(model, "h100-sxm").largest == 0.5
    of_runs(*near, published_of("a", 1.0, 1.5, software="megatron-bridge"), cousin, far)
    assert published_error(model, "h100-sxm").unmatched == {"software": "megatron"}
    of_runs(*near, far)
    matched = {"kind": "dense", FRAMEWORK: "megatron", "software": "megatron"}
    assert published_error(model, "h100-sxm").matched == matched
    error = published_error(LARGE["deepseek-v3"], "h100-sxm")
    assert error.matched == {"software": "megatron"}
    assert "of large models by megatron (too few of device h100-sxm, precision" in str(error)


def ratios(runs: Sequence[PublishedRun]) -> list[float]:
    """By brute force: how far the ratio of two steps is from the published, 1 or more."""
    of_pairs = []
    for a, b in combinations(runs, 2):
        published_ratio = a.published_s[0][1] / b.published_s[0][1]
        ratio = (a.simulated_s / b.simulated_s) / published_ratio
        of_pairs.append(max(ratio, 1 / ratio))
    return of_pairs


def test_what_all_layouts_share_is_no_error_between_them(of_runs: Put) -> None:
    model = LARGE["llama3-8b"]
    halves = [published_of("a", float(n), n / 2) for n in range(1, 5)]
    of_runs(*halves)
    assert published_error(model, "h100-sxm").mean == 0.5
    layouts = layout_error(model, "h100-sxm")
    assert (layouts.pairs, layouts.mean) == (6, pytest.approx(0, abs=1e-12))
    steps = ((1.0, 1.0), (2.0, 2.2), (3.0, 2.9), (4.0, 3.3))
    runs = [published_of("a", *step) for step in steps]
    of_runs(*runs, published_of("another", 5.0, 50.0))
    layouts = layout_error(model, "h100-sxm")
    mean = sum(map(log, ratios(runs))) / 6
    assert (layouts.pairs, layouts.mean) == (6, pytest.approx(exp(mean) - 1))
    assert not layouts.mixed
    assert layouts.ties(1.0, 1.0)
    assert layouts.ties(1 + layouts.mean - 1e-9, 1.0)
    assert not layouts.ties(1 + layouts.mean + 1e-9, 1.0)


def test_pairs_of_several_sources_count_where_a_kind_has_too_few_of_one(of_runs: Put) -> None:
    model = LARGE["llama3-8b"]
    first = [published_of("a", n, n) for n in (1.0, 2.0, 3.0)]
    other = [published_of("a", n, n / 2, "another paper") for n in (4.0, 5.0)]
    of_runs(*first, *other)
    layouts = layout_error(model, "h100-sxm")
    assert (layouts.pairs, layouts.mixed) == (10, True)
    assert layouts.mean == pytest.approx(exp(6 * log(2) / 10) - 1)
    assert "of several sources" in str(layouts)
    of_runs(*first, *other, published_of("a", 6.0, 6.0))
    layouts = layout_error(model, "h100-sxm")
    assert (layouts.pairs, layouts.mixed) == (7, False)
    assert layouts.mean == pytest.approx(0, abs=1e-12)
    of_runs(*first, *other, *(published_of("b", n, n, kind="moe") for n in (1.0, 2.0, 3.0, 4.0)))
    assert layout_error(model, "h100-sxm").mixed
    assert not layout_error(LARGE["deepseek-v3"], "h100-sxm").mixed


def test_two_readings_of_a_run_are_no_pair(of_runs: Put) -> None:
    readings = [published_of("a", 1.0, seconds) for seconds in (1.0, 2.0, 3.0)]
    pairs = [published_of("b", 1.0 + n, 1.0 + n) for n in range(4)]
    of_runs(*readings, *pairs)
    layouts = layout_error(LARGE["llama3-8b"], "h100-sxm")
    assert (layouts.pairs, layouts.mixed) == (6, False)
