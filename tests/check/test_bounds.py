"""The checker's safety net: bounds that follow from the other rules, and rates of fair links."""

from __future__ import annotations

import pytest

from simdev.execution.check.flows import fair_rates, unfair
from simdev.execution.check.schedule import bound_faults
from worlds.programs import behind, gapped, pair, ranked, remote_graph, sequence

# The safety net: bounds that follow from the other rules, judged alone


@pytest.mark.parametrize(
    ("build", "low", "high"),
    [
        (sequence, 6, 11),
        (gapped, 3, 7),
        (pair, 5, 7),
        (ranked, 5, 5),
        (behind, 5, 6),
        (remote_graph, 5, 13),
    ],
)
def test_bounds(build, low, high):
    task_graph = build()
    steps = range(20)
    assert [step for step in steps if not list(bound_faults(task_graph, step))] == list(
        range(low, high + 1)
    )


def test_fair_rates_are_known():
    """Two half-links of 1 and 2: the flow over both gets half of the first, the others what is
    left.
    """
    flows = {0: [0], 1: [0, 1], 2: [1]}
    assert fair_rates(flows, [1.0, 2.0]) == {0: 0.5, 1: 0.5, 2: 1.5}


@pytest.mark.parametrize(
    ("rates", "fault"),
    [({0: 0.5, 1: 0.5, 2: 1.6}, "more than"), ({0: 0.5, 1: 0.5, 2: 1.4}, "no bottleneck"),
     ({0: 0.6, 1: 0.4, 2: 1.6}, "no bottleneck"), ({0: 0.5, 1: 0.5, 2: 1.5 - 1e-8},
     "no bottleneck")],
)  # fmt: skip
def test_unfair_rates_are_refused(rates, fault):
    flows = {0: [0], 1: [0, 1], 2: [1]}
    assert list(unfair(flows, {0: 0.5, 1: 0.5, 2: 1.5}, [1.0, 2.0])) == []
    assert any(fault in text for text in unfair(flows, rates, [1.0, 2.0]))
