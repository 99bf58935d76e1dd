"""Published runs: which recipe a row takes, what it sets, and files of other rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runs
from benchmarks.recipes import looser, settings_of
from benchmarks.runs import Published, answer, chosen, published, scenario_of

ROW: dict[str, Any] = {
    "release": "26.02", "task": "Pre-Training", "system": "GB300", "model": "llama3-70b",
    "note": None, "gpus": 64, "precision": "FP8", "global_batch": 256, "microbatch": 2,
    "length": 8192, "fsdp": 64, "tp": 1, "pp": 1, "cp": 1, "chunks": 1, "ep": 1,
    "tokens_per_s_per_gpu": 5000.0,
}  # fmt: skip


def test_a_row_takes_what_its_recipe_sets() -> None:
    settings = settings_of(ROW)
    assert not settings.remark
    assert settings.pipeline["offload"] == ["activations"]
    assert settings.pipeline["offload_layers"] == 20
    graphs = settings_of({**ROW, "model": "qwen3-30b-a3b", "gpus": 8, "microbatch": 4, "fsdp": 0,
                          "system": "GB200", "precision": "BF16", "ep": 8})  # fmt: skip
    assert graphs.cuda_graph_scope == ("attn", "moe_router", "moe_preprocess")
    assert (graphs.cuda_graph, graphs.dispatcher) == ("transformer_engine", "hybridep")


def test_the_microbatch_counts_more_than_the_precision() -> None:
    """What is made again goes by memory."""
    told = {"model": "deepseek-v3", "gpus": 256, "precision": "MXFP8", "pp": 2, "chunks": 8}
    row = {**ROW, **told, "fsdp": 0, "ep": 32, "global_batch": 4096, "length": 4096}
    settings = settings_of(row)
    assert settings.pipeline["recompute_modules"] == ["mla_up_proj"]
    assert settings.remark == "deepseek_v3_pretrain_256gpu_gb300_fp8cs has other precision"
    assert "recompute_modules" not in settings_of({**row, "microbatch": 1}).pipeline
    assert settings.model == {"layers": 62, "mtp": 1}
    assert settings_of({**row, "note": "w/o MTP"}).model == {}
    assert sum(settings.pipeline["stage_layers"]) == 62
    assert sum(settings_of({**row, "note": "w/o MTP"}).pipeline["stage_layers"]) == 61


def test_memory_of_fsdp_says_nothing_of_runs_without() -> None:
    row = {**ROW, "model": "llama3-8b", "system": "H100", "gpus": 8, "microbatch": 1}
    assert settings_of({**row, "fsdp": 0}).pipeline["recompute_layers"] == 5
    assert "recompute" not in settings_of({**row, "fsdp": 8}).pipeline


def test_four_bits_have_no_user_buffers() -> None:
    """Whatever the nearest recipe, which here is of FP8."""
    row = {**ROW, "model": "llama3-405b", "system": "GB200", "gpus": 256, "tp": 4, "pp": 16}
    row |= {"chunks": 4, "ep": 1, "fsdp": 0, "microbatch": 1, "precision": "FP8"}
    eight, four = (settings_of({**row, "precision": name}) for name in ("FP8", "NVFP4"))
    assert eight.pipeline["tp_comm_overlap"]
    assert not four.pipeline["tp_comm_overlap"]


def test_a_model_without_recipe_takes_none() -> None:
    assert settings_of({**ROW, "model": "nemotron"}).remark == "no recipe of nemotron"
    assert not list(looser({**ROW, "model": "nemotron"}))


def test_a_layout_that_cannot_have_run_is_replaced_by_the_recipes() -> None:
    """70 billion parameters on one device."""
    run = Published("", "", ROW["tokens_per_s_per_gpu"], {**ROW, "precision": "NVFP4", "fsdp": 0})
    settled = answer(run)
    assert settled.fits
    assert settled.published is run
    assert settled.remark.startswith("does not fit with microbatch 2, pp 1, chunks 1; layout of")


@pytest.mark.slow
def test_every_run_of_megatron_bridge_fits() -> None:
    answers = [answer(each) for each in published() if "system" in each.row]
    assert not [each for each in answers if each.seconds is not None and not each.fits]


def test_all_rows_can_be_asked_but_those_that_fine_tune() -> None:
    for each in published():
        if each.row.get("task", "Pre-Training") == "Pre-Training":
            scenario_of(each)


def test_other_rows_are_read_and_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n")
    monkeypatch.setattr(sys, "argv", ["runs", "--rows", str(file)])
    runs.main()
    text = capsys.readouterr().out
    assert "llama3-70b on GB300" in text
    (line,) = (line for line in text.splitlines() if line.startswith("all "))
    assert line.split()[:4] == ["all", "1", "1", "1"]
    assert not list(chosen(["of nothing"], [file]))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read"),
        ("{", "rows.jsonl:1: is no JSON"),
        ("[1]", "rows.jsonl:1: must be an object of columns"),
        ('{"system": "H100", "model": "x"}', "rows.jsonl:1: has no chunks, cp, ep, fsdp"),
        ('{"model": "x"}', "rows.jsonl:1: has no dp_shard, gpus"),
    ],
)
def test_a_bad_file_is_one_clear_error(
    text: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["runs", "--rows", str(file)])
    with pytest.raises(SystemExit) as stopped:
        runs.main()
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err
