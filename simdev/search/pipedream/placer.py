"""The method: plan, place a pipeline of one device a stage, execute the plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ground.errors import InputError
from ...oracle import Oracle
from ..fitting import repair
from ..trial import Trial
from .plan import Partition, partition
from .profile import Level, levels_of, machines_of, profile_of


def pipedream(trial: Trial) -> None:
    """PipeDream (SOSP 2019): stages with replicas. What is placed, and scored, is the best pipeline
    without replicas, one device a stage.

    A minibatch passes such a pipeline one stage after another, so the step time is that of a single
    minibatch; the objective is the period in steady state: of the plan with replicas ``period_s``
    as it is planned, ``executed_period_s`` as it runs; ``details`` has that of the placed one. The
    plan knows no memory: where what is placed overflows, groups are moved (``details`` has how many
    ops were ``moved``), and whether the plan itself fits, its execution tells.
    """
    oracle, budget = trial.problem.oracle, trial.budget
    profile, levels = profile_of(oracle), levels_of(oracle)
    devices = sorted(set.intersection(*(set(able.tolist()) for able in trial.problem.choices)))
    if len(devices) < sum(device.runs_ops for device in oracle.cluster.devices):
        raise InputError("pipedream: every device must be able to run every op")
    flat = [Level(len(devices), levels[-1].bandwidth)]
    _place(trial, partition(profile, flat, True, budget.require_time), devices)
    plan = partition(profile, levels, due=budget.require_time)
    trial.best.objectives["period_s"] = plan.seconds
    trial.best.details |= {"exact": plan.exact, "stages": _summaries(oracle, plan)}
    _execute(trial, plan)


def _execute(trial: Trial, plan: Partition) -> None:
    """Run the plan, and tell what comes out."""
    oracle, best = trial.problem.oracle, trial.best
    # Loaded where a plan is executed: the report is much to load, and other methods need none.
    from .execution import executed

    try:
        execution = executed(oracle, plan.stages, machines_of(oracle), trial.budget.require_time)
    except InputError as error:  # no route joins two devices of neighbouring stages
        best.details["not_executed"] = str(error)
        return
    best.objectives["executed_period_s"] = execution.period_s
    best.details["executed_period_s"] = execution.period_s
    best.details["execution"] = execution.to_json()


def _place(trial: Trial, plan: Partition, devices: Sequence[int]) -> None:
    """Score a pipeline of one device a stage; mended where it does not fit."""
    oracle, best = trial.problem.oracle, trial.best
    best.details["placed_stages"] = _summaries(oracle, plan)
    best.details["placed_period_s"] = plan.seconds
    placement = np.zeros(len(oracle.groups), np.int64)
    for device, stage in zip(devices, plan.stages, strict=False):
        placement[list(stage.groups)] = device
    trial.score(placement)
    repair(trial)
    if best.placement is not None:  # it can be
        best.details["moved"] = int((best.placement[0] != oracle.placement(placement)).sum())


def _summaries(oracle: Oracle, plan: Partition) -> list[dict[str, object]]:
    """The stages of a plan, by the first op of each group."""
    first = [oracle.graph.ops[members[0]].name for members in oracle.groups]
    return [
        {
            "ops": [first[group] for group in stage.groups],
            "replicas": stage.replicas,
            "seconds": stage.seconds,
            "sync_seconds": stage.sync_seconds,
        }
        for stage in plan.stages
    ]
