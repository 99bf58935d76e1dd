"""The best plan beside one that was run: a row of the table of ``python -m benchmarks.plan``."""

from __future__ import annotations

import pytest

from benchmarks import plan
from benchmarks.really_run import Ran


def test_a_row_has_what_was_run_the_best_and_why_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = {"dp": 1, "tp": 8, "microbatches": 8, "zero": 0, "recompute": "full"}
    sizes = {"layers": 4, "length": 512}
    ran = Ran("small", "llama3.2-1b", ("dgx-h100", 1), theirs, 0.25, sizes)
    monkeypatch.setitem(plan._RAN, "small", ran)
    options = {
        "cp": 1, "pp": 1, "zero": [0, 1], "microbatch": 1, "schedule": "1F1B",
        "recompute": ["none", "full"],
    }  # fmt: skip
    row = plan.beside("small", "a few", options)
    assert (row["run"], row["published s"], row["their plan"]) == ("small", 0.25, "tp 8")
    assert (row["samples"], row["chosen from"], row["plans"]) == (8, "a few", 14)
    assert row["best s"] <= row["simulated s"]
    assert row["best plan"].startswith("dp ")
    assert row["best plan"].endswith("recompute none")
    assert "what was run" in row["why"]
    assert "tensor" in row["why"]
