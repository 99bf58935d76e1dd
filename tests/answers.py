"""Outputs of ``simdev plan --json`` and ``simdev search --compare --json`` for tiny questions."""

from __future__ import annotations

from typing import Any


def plan(tp: int, step: float, peak: int, why: str = "", **more: Any) -> dict[str, Any]:
    """A row of ``simdev plan --json``."""
    pipeline = {"dp": 8 // tp, "tp": tp, "microbatches": 4}
    scenario = {
        "graph": {"model": "tiny"},
        "cluster": "dgx-h100",
        "strategy": {"pipeline": pipeline},
    }
    return {
        "devices": 8, "dp": 8 // tp, "tp": tp, "pp": 1, "schedule": "1F1B", "step_time_s": step,
        "peak_bytes": peak, "mfu": 0.4, "why": why, "step_time_ps": int(step * 1e12),
        "scenario": scenario,
    } | more  # fmt: skip


PLANS = {
    "counts": {
        "plans": 9, "illegal": {"tp: 3 does not divide heads": 4}, "does_not_fit": 2, "slower": 3,
        "simulated": 4, "simulated_does_not_fit": 1, "refused": {}, "least_bytes": 5,
        "seconds": 1.5,
    },
    "plans": [
        plan(1, 1.0, 90), plan(2, 1.0, 95, "as fast, with more memory"),
        plan(4, 1.25, 50, "+25.0%: tensor +20.0%, bubble +5.0%"),
        plan(8, 1.5, 70, "+50.0%: tensor"),
    ],
}  # fmt: skip
SEARCH = {
    "single_step_time_s": 2.0,
    "present_step_time_s": 1.5,
    "interrupted": False,
    "methods": [
        {"method": name, "step_ms": step, "fits": step is not None, "peak_bytes": 7, "reason": why,
         "placing_s": 0.5, "evaluations": 9, "seeds": 3, "lower_ms": step, "upper_ms": step,
         "above": "", "reached": [],
         "curves": {} if step is None else {
             axis: {"at": [1, 9], "lower_s": [None, step / 1e3], "median_s": [None, step / 1e3],
                    "upper_s": [None, step / 1e3]} for axis in ("evaluations", "cpu_seconds")}}
        for name, step, why in (
            ("slow", 1400.0, ""), ("fast", 1000.0, ""), ("none", None, "too big")
        )
    ],
}  # fmt: skip
