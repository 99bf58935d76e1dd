"""The best of small spaces beside simulating every plan of them, and plans scored on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from folded import first_of_answers
from planned import DENSE, SPARSE, every_plan
from simdev.search.plan import Plan, Space, choices_of, plans_of, question_of
from simdev.search.plan.searching import degrees, score

ROOT = Path(__file__).parents[2]
NARROW = {"recompute": ["none", "full"], "zero": [1, 3]}
WORLDS: list[tuple[dict[str, Any], str, int, dict[str, Any]]] = [
    (DENSE, "dgx-a100-40", 8, {**NARROW, "context": "ring"}),
    (SPARSE, "dgx-a100-40", 8, {"recompute": "none", "zero": [1, 3], "cp": [1, 2]}),
    ({**DENSE, "layers": 40}, "nc-a100-pairs", 4, {"schedule": "ZB-2p", "zero": [0, 2]}),
]


@pytest.mark.slow
@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_the_ten_best_are_those_of_simulating_everything(world: int) -> None:
    graph, cluster, batch, options = WORLDS[world]
    question, choices = question_of(graph, cluster, batch), choices_of(options)
    space = Space(question.model, question.devices, batch, choices)
    plans = every_plan(space)
    rows = [score(question, plan) for plan in plans]
    fitting = sorted(
        (row["step_ps"], row["peak_bytes"], place) for place, row in enumerate(rows) if row["fits"]
    )
    answer = plans_of(question, choices, alike=True)
    assert [scored.order for scored in answer.best] == fitting[:10]
    assert answer.counts.simulated < len(plans)
    first: dict[Any, tuple[Plan, tuple[int, int, int]]] = {}
    for order in fitting:
        first.setdefault(degrees(plans[order[2]].setup), (plans[order[2]], order))
    apart = plans_of(question, choices)
    orders = [order for _, order in first.values()]
    assert [scored.order for scored in apart.best] == first_of_answers(orders, 10)


@pytest.mark.slow
def test_a_dask_cluster_answers_like_one_process(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    (tmp_path / "run.py").write_text(
        "import joblib, simdev\n"
        "from dask.distributed import Client\n"
        "question = {'model': 'llama3.2-1b', 'layers': 4, 'length': 256}, 'nc-a100-pairs', 4\n"
        "options = {'recompute': 'none', 'cp': 1, 'zero': 1}\n"
        "if __name__ == '__main__':\n"
        "    serial = simdev.plan(*question, options=options, top=3)\n"
        "    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):\n"
        "        with joblib.parallel_config(backend='dask'):\n"
        "            results = simdev.plan(*question, options=options, top=3, journal='journal')\n"
        "    assert serial.equals(results) and len(results) == 3\n"
        "    assert sum(1 for _ in open('journal')) == results.attrs['counts']['simulated'] + 1\n"
        "    print('equal')\n"
    )
    result = subprocess.run(
        [sys.executable, "run.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("equal\n")
