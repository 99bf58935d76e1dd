"""The best of small spaces beside simulating every plan of them, and plans scored on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dask_runs import require_equal
from folded import first_of_answers
from planned import DENSE, SPARSE, every_plan
from simdev.search.plan import Plan, Space, choices_of, plans_of, question_of
from simdev.search.plan.searching import degrees, score

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
    call = (
        "simdev.plan({'model': 'llama3.2-1b', 'layers': 4, 'length': 256}, 'nc-a100-pairs', 4, "
        "options={'recompute': 'none', 'cp': 1, 'zero': 1}, top=3)"
    )
    equal = (
        "serial.equals(results) and len(results) == 3 and "
        "sum(1 for _ in open('journal')) == results.attrs['counts']['simulated'] + 1"
    )
    require_equal(tmp_path, "import simdev", call, equal, call[:-1] + ", journal='journal')")
