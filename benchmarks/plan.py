"""How fast the best plan of a large model is found: ``python -m benchmarks.plan [--json] [-j N]``.

Three questions over all that is legal; ``plans/s`` are those simulated, proved slower or proved too
large by second. The published planner that says how many it scores does 500 a second and core by
closed forms (Calculon, Isaev et al. 2023).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.common import machine, print_table
from simdev.search.plan import choices_of, plans_of, question_of

# Of DeepSeek-V3 the degrees among which its authors chose (section 3.2).
QUESTIONS: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "llama3-70b, 64 H100": ("llama3-70b", "dgx-h100", 8, 512, {}),
    "GPT-3 175B, 1,024 A100": ("gpt3-175b", "dgx-a100-80", 128, 1536, {}),
    "DeepSeek-V3, 2,048 H100": (
        "deepseek-v3", "dgx-h100", 256, 15_360,
        {
            "tp": [1, 2, 4, 8], "cp": 1, "ep": [8, 16, 32, 64], "microbatch": [1, 2],
            "chunks": [1, 2],
        },
    ),
}  # fmt: skip


def answered(name: str, n_jobs: int) -> dict[str, Any]:
    """One question: the size of its space, what became of it, how long it took, and the best."""
    model, cluster, nodes, batch, options = QUESTIONS[name]
    begun, question = time.process_time(), question_of(model, cluster, batch, nodes)
    plans = plans_of(question, choices_of(options), n_jobs=n_jobs, progress=False)
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
    }


def main() -> None:
    """Answer all questions, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--only", help="of the questions whose name holds this text")
    args = parser.parse_args()
    names = [name for name in QUESTIONS if args.only is None or args.only in name]
    rows = [answered(name, args.jobs) for name in names]
    if args.json:
        print(json.dumps({"machine": machine(), "plans": rows}, indent=1))
        return
    for row in rows:
        print_table(["", ""], [[key, str(value)] for key, value in row.items()])


if __name__ == "__main__":
    main()
