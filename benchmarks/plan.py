"""How fast the best plan of a large model is found: ``python -m benchmarks.plan [--json] [-j N]``;
``--authors``: the best beside the plan that a model's authors ran.

Three questions over all that is legal where tp cuts experts, too; ``plans/s`` are those simulated,
proved slower or proved too large by second. The published planner that says how many it scores does
500 a second and core by closed forms (Calculon, Isaev et al. 2023).
"""

from __future__ import annotations

import argparse
import json
import time
from math import prod
from typing import Any

from benchmarks.common import machine, print_table
from benchmarks.really_run import GIB, RUNS, Ran, plan_text, simulated
from simdev import load_scenario, run
from simdev.report.measures.training import difference
from simdev.search.plan import Plan, choices_of, confirm, plans_of, question_of

QUESTIONS: dict[str, tuple[str, str, int, int]] = {
    "llama3-70b, 64 H100": ("llama3-70b", "dgx-h100", 8, 512),
    "GPT-3 175B, 1,024 A100": ("gpt3-175b", "dgx-a100-80", 128, 1536),
    "DeepSeek-V3, 2,048 H100": ("deepseek-v3", "dgx-h100", 256, 15_360),
}
# The degrees among which DeepSeek-V3's authors chose (section 3.2).
_CHOSEN = {
    "tp": [1, 2, 4, 8], "cp": 1, "ep": [8, 16, 32, 64], "microbatch": [1, 2], "chunks": [1, 2],
    "etp": None,
}  # fmt: skip

# Korthikanti et al. 2022 (arXiv 2205.05198), table 5, both techniques.
_GPT3 = Ran(
    "Korthikanti 2022, GPT-3 175B", "gpt3-175b", ("dgx-a100-80", 8),
    {
        "dp": 1, "tp": 8, "pp": 8, "chunks": 3, "microbatches": 64, "zero": 0, "flash": False,
        "scatter_gather": True, "recompute": "selective",
    },
    13.75,
)  # fmt: skip
_RAN = {ran.name: ran for ran in (_GPT3, *RUNS)}
_LLAMA, _DEEPSEEK = "NVIDIA 25.11, llama3-70b on 64", "DeepSeek-V3, 1F1B"
_INTERLEAVED = ["1F1B", "Interleaved1F1B"]
_2022 = {"flash": False, "scatter_gather": True}
_V3 = {name: _RAN[_DEEPSEEK].plan[name] for name in ("state_bytes", "recompute")}
# What was run, what may be chosen, and the fields of the pipeline that say so; model, machines and
# global batch are those that were run.
BESIDE: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (_GPT3.name, "everything", _2022),
    (
        _GPT3.name, "1F1B with chunks, ZeRO 0",
        {**_2022, "zero": 0, "schedule": _INTERLEAVED},
    ),
    (_LLAMA, "everything", {"flash": True}),
    (
        _LLAMA, "1F1B with chunks, ZeRO 0 and 1",
        {"flash": True, "zero": [0, 1], "schedule": _INTERLEAVED},
    ),
    (
        _DEEPSEEK, "tp 1 to 8, ep 8 to 64, 1 or 2 samples, 1 or 2 chunks",
        {
            **_CHOSEN, **_V3,
            "recompute_modules": [_RAN[_DEEPSEEK].plan["recompute_modules"]],
        },
    ),
)  # fmt: skip


def beside(name: str, space: str, options: dict[str, Any]) -> dict[str, Any]:
    """The best plan of a space beside the one that was run, and why they differ."""
    ran = _RAN[name]
    theirs, scenario = simulated(ran), ran.scenario()
    assert theirs.training is not None
    batch = prod(ran.plan.get(count, 1) for count in ("dp", "microbatches", "microbatch"))
    plans = plans_of(
        question_of(scenario["graph"], scenario["cluster"], batch),
        choices_of(options),
        progress=False,
    )
    best = plans.best[0]
    training = run(load_scenario(plans.question.scenario(best.plan))).training
    assert training is not None
    peak = max(stage.memory.peak for stage in theirs.training.stages)
    return {
        "run": name,
        "samples": batch,
        "published s": ran.seconds,
        "their plan": plan_text(ran),
        "simulated s": round(theirs.seconds, 2),
        "GiB": round(peak / GIB, 1),
        "chosen from": space,
        "plans": plans.counts.legal,
        "plans simulated": plans.counts.simulated,
        "best plan": _text(best.plan),
        "best s": round(best.row["step_ps"] / 1e12, 2),
        "best GiB": round(best.row["peak_bytes"] / GIB, 1),
        "why": difference(training, theirs.training).sentence("the best", "what was run"),
    }


def _text(plan: Plan) -> str:
    """Degrees above one and options, as the page has them."""
    setup = plan.setup
    degrees = {name: getattr(setup.layout, name) for name in ("dp", "cp", "tp", "pp", "ep")}
    parts = [f"{name} {count}" for name, count in degrees.items() if count > 1]
    parts.append(f"{plan.schedule} x {plan.chunks}" if plan.chunks > 1 else plan.schedule)
    ring = [f"cp by {setup.layout.context}"] if setup.layout.cp > 1 else []
    return ", ".join(
        [" ".join(parts), *ring, f"microbatch {setup.microbatch}", f"ZeRO {plan.zero}",
         f"recompute {setup.recompute}"]
    )  # fmt: skip


def answered(name: str, n_jobs: int, top: int, check: bool) -> dict[str, Any]:
    """One question: the size of its space, what became of it, how long it took, and the best."""
    model, cluster, nodes, batch = QUESTIONS[name]
    begun, question = time.process_time(), question_of(model, cluster, batch, nodes)
    # The published figures are of experts without a grid of their own.
    plans = plans_of(question, choices_of({"etp": None}), top, n_jobs=n_jobs, progress=False)
    best, counts = plans.best[0], plans.counts
    layout, chosen = best.plan.setup.layout, best.plan
    return {
        "question": name,
        "plans": counts.legal,
        "illegal": sum(counts.illegal.values()),
        "too large": counts.unfit,
        "slower": counts.slower,
        "simulated": counts.simulated,
        "s": round(plans.seconds, 1),
        "CPU s here": round(time.process_time() - begun, 1),
        "plans/s": round(counts.legal / plans.seconds),
        "best": f"dp {layout.dp} cp {layout.cp} tp {layout.tp} pp {layout.pp} ep {layout.ep}, "
        f"{chosen.schedule} x {chosen.chunks}, microbatch {chosen.setup.microbatch}, "
        f"ZeRO {chosen.zero}, {chosen.setup.recompute}",
        "step s": round(best.row["step_ps"] / 1e12, 3),
        "MFU": round(best.row["mfu"], 4),
        "check": confirm(question, best.plan, best.row) if check else "",
    }


def main() -> None:
    """Answer all questions, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--only", help="of the questions whose name holds this text")
    parser.add_argument("--top", type=int, default=10, help="so many plans are proved the best")
    parser.add_argument("--check", action="store_true", help="the best on all devices, too")
    parser.add_argument("--authors", action="store_true", help="beside what was run, and why")
    args = parser.parse_args()
    part = args.only or ""
    if args.authors:
        rows = [beside(*each) for each in BESIDE if part in each[0]]
    else:
        rows = [
            answered(name, args.jobs, args.top, args.check) for name in QUESTIONS if part in name
        ]
    if args.json:
        print(json.dumps({"machine": machine(), "plans": rows}, indent=1))
        return
    for row in rows:
        print_table(["", ""], [[key, str(value)] for key, value in row.items()])


if __name__ == "__main__":
    main()
