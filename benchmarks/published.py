"""How far simulated steps of large models are from published ones, by size and precision: ``python
-m benchmarks.published [--update]`` prints what simdev tells beside its answers, or simulates all
steps first and writes the file that it is told from.

The steps are those of ``benchmarks.really_run``, which has the sources of each, and of
``benchmarks.hybrid`` (Korthikanti et al. 2022 on A100; SimuMax's release table v1.2 on B200, by the
preset). Published figures are facts and bear no licence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from benchmarks import hybrid, really_run
from simdev.nouns.models.large import Transformer, large_model
from simdev.report.measures.training import FILE, published_errors

DIGITS = 4  # of seconds


def runs() -> Iterator[tuple[str, Transformer, float, Any]]:
    """Name, model, published seconds, and what simulates it, of each published step."""
    for ran in really_run.RUNS:
        if ran.seconds is not None:
            model = large_model(ran.model, **ran.sizes)
            yield ran.name, model, ran.seconds, lambda ran=ran: really_run.simulated(ran)
    for row in (*hybrid.A100, *hybrid.B200):
        if row.seconds is not None:
            sizes = dict(row.model)
            model = large_model(sizes.pop("name"), **sizes)
            yield row.name, model, row.seconds, lambda row=row: hybrid.step(row)


def document(seconds: dict[str, float] | None = None) -> dict[str, Any]:
    """The file: what is simulated, or as ``seconds`` by name tell."""
    steps = [
        {
            "step": name,
            "parameters": model.parameters(),
            "precision": model.precision,
            "published_s": round(published, DIGITS),
            "simulated_s": round(seconds[name] if seconds else simulate().seconds, DIGITS),
        }
        for name, model, published, simulate in runs()
    ]
    source = "python -m benchmarks.published --update; sources: benchmarks/really_run.py, hybrid.py"
    return {"version": 1, "source": source, "steps": steps}


def text(value: dict[str, Any]) -> str:
    """The file's text, a step a line."""
    steps = ",\n  ".join(json.dumps(step) for step in value["steps"])
    head = json.dumps({"version": value["version"], "source": value["source"]})[:-1]
    return f'{head}, "steps": [\n  {steps}\n]}}\n'


def main() -> None:
    """Print the table, or write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the file")
    if parser.parse_args().update:
        FILE.write_text(text(document()), encoding="utf-8")
    print(*published_errors(), sep="\n")


if __name__ == "__main__":
    main()
