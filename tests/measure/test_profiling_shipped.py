"""The profiles that ship: whole, true to their headers, and close to the steps that were measured
with them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.accuracy import PROFILES, TARGETS, figures, shipped
from simdev.costs import Profile
from simdev.files.profile import read_profile
from simdev.files.scenario import read_scenario
from simdev.measure.compare import compare
from simdev.measure.doctor import examine

SCENARIOS = PROFILES.parent / "scenarios"
MODELS = {
    "inception-v3",
    "resnet-50",
    "vgg-19",
    "alexnet",
    "gnmt",
    "rnnlm",
    "transformer-big",
    "bert-large",
    "gpt2-small",
    "gpt2-medium",
    "nasnet-mobile",
}
NEVER = {"header", "quantiles", "repetitions", "units", "work", "clocks", "copies", "dispatch"}
"""What a shipped profile must not be warned of; noise and oddities of a CPU are told, not hidden.
"""

CPU = sorted(PROFILES.glob("*.jsonl*"))
GPU = sorted([*PROFILES.glob("h100/*.jsonl"), *PROFILES.glob("h100/grids/*.jsonl")])
FILES = CPU + GPU


@cache
def profile_of(path: Path) -> Profile:
    return read_profile(path)


def test_every_model_is_shipped_with_a_scenario_of_one_device() -> None:
    assert {profile_of(path).header["header"]["model"] for path in shipped()} >= MODELS
    for model in MODELS:
        parts = read_scenario(SCENARIOS / f"{model}-1x-cpu.json")
        assert len(parts.cluster.devices) == 1
        assert parts.profiles[0].device_kinds == (parts.cluster.devices[0].kind,)


def test_all_profiles_and_graphs_together_are_small() -> None:
    assert sum(path.stat().st_size for path in PROFILES.rglob("*") if path.is_file()) < 25 * 2**20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_profile_says_how_it_was_measured(path: Path) -> None:
    header = profile_of(path).header["header"]
    assert header["schema"] == 1
    assert header["unmeasured"] == ()
    assert header["noise"]["too_noisy"] == (
        header["noise"]["idle_repeat_cv"] > header["noise"]["limit"]
    )
    # Copies between host and device pass no cache that could be emptied.
    flush = {"flush"} if header.get("grid") != ("copies",) else set[str]()
    assert flush | {"timer", "statistic", "warm_ups", "reps"} <= set(header["method"])
    assert {"kind", "name", "torch"} <= set(header["device"])


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.name)
def test_a_model_s_profile_tells_what_the_backward_keeps(path: Path) -> None:
    rows = [row.details for row in profile_of(path).rows.values()]
    forward = [row for row in rows if row["phase"] == "fwd"]
    assert sum(row["saved"] > 0 for row in forward) > len(forward) / 4
    assert all(row["saved"] == 0 for row in rows if row["phase"] != "fwd")
    assert all(row["ws"] >= 0 and row["t_ns"]["n"] >= 10 for row in rows)


def test_an_h100_profile_tells_the_kernels_of_every_row_and_its_graph() -> None:
    for path in GPU:
        header = profile_of(path).header["header"]
        assert header["device"]["kind"] == "h100-sxm"
        assert "graph" not in header or (path.parent / header["graph"]).is_file()
        rows = [row.details for row in profile_of(path).rows.values()]
        assert all(row["launches"] >= 0 and row["kernel_ns"] >= 0 for row in rows if "op" in row)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_doctor_finds_nothing_that_would_be_wrong(path: Path) -> None:
    assert [str(warning) for warning in examine([path]) if warning.check in NEVER] == []


def test_no_two_profiles_are_copies() -> None:
    assert [str(warning) for warning in examine(FILES) if warning.check == "copies"] == []


def test_simulated_steps_are_those_that_were_measured() -> None:
    found = figures([compare(path) for path in shipped()])
    assert all(model["known"] == 1 for model in found["models"])
    assert {
        model["model"]: model["error"] for model in found["models"] if abs(model["error"]) > 0.25
    } == {}
    for clock, group in found["medians"].items():
        assert group["median_error"] <= TARGETS[clock]
