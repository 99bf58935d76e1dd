"""Scoring a plan: its step simulated, one device for each rank of the pipeline, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine import simulate
from ...errors import InputError
from ...files import collective_model
from ...lowering.hybrid import lower_hybrid
from ...models.large.roles import ROLES
from ...report.measures.training import BUBBLE, EXPOSED, Training
from .question import Question
from .space import Plan

ENGINE = "compiled"  # SimPy gives the same answer, a hundred times slower


def score(question: Question, plan: Plan) -> dict[str, Any]:
    """The figures of a plan, ready for JSON: step (ps), whether it fits, peak (bytes), ``terms`` in
    seconds; or the reason why it cannot be simulated.
    """
    number = plan.setup.layout.cluster
    cluster, costs = question.clusters[number], question.costs[number]
    try:
        collectives = collective_model(cluster)
        task_graph, large = lower_hybrid(question.model, plan.parallelism, collectives, costs)
    except InputError as error:
        return {"reason": "; ".join(error.problems)}
    trace = simulate(task_graph, ENGINE)
    training = Training.of(trace, large)
    memories = [stage.memory for stage in training.stages]
    terms = training.terms
    step = trace.end_ps / 1e12
    return {
        "step_ps": trace.end_ps,
        "fits": all(memory.overflow is None for memory in memories),
        "peak_bytes": max(memory.peak for memory in memories),
        "tokens_per_s": training.tokens_per_s,
        "mfu": training.mfu,
        "hfu": training.hfu,
        "bubble": terms[BUBBLE] / step,
        "exposed_communication": sum(terms[ROLES[role]] for role in EXPOSED) / step,
        "terms_s": terms,
        "collapsed": large.collapsed,
    }


def better(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why the first of two steps is shorter, by the terms that differ most; "" where none does."""
    here, there = row["terms_s"], other["terms_s"]
    gaps = {term: there[term] - here[term] for term in here}
    whole = sum(gaps.values())
    largest = sorted(gaps, key=lambda term: -abs(gaps[term]))[:3]
    listed = [
        f"{term} {gaps[term]:+.3g} s"
        for term in largest
        if abs(gaps[term]) > max(0.02 * abs(whole), 5e-4 * sum(here.values()))
    ]
    return ", ".join(listed)
