"""PipeDream (Narayanan et al., SOSP 2019): the layers of a graph, the levels of a cluster, and its
plan on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from ..errors import InputError
from ..oracle import Oracle
from ..structure import unit_of
from .local import repair
from .stages import Level, Partition, Profile, Stage, partition
from .trial import Trial


def profile_of(oracle: Oracle) -> Profile:
    """The layers of a graph: its colocation groups, each with all phases, in the order of their
    forward ops.

    Groups on a cycle of forward edges keep their order among each other only. Times are means over
    devices. Raises InputError where a backward op stands in a group without forward ops (pair them
    first).
    """
    graph, group = oracle.graph, unit_of(oracle.graph)
    for members in oracle.groups:
        if all(graph.ops[i].phase != "forward" for i in members):
            one = graph.ops[members[0]].name
            raise InputError(
                f'pipedream: "{one}" stands in no group with a forward op: use the '
                'preparation "pair", and for what it '
                'leaves the attribute "forward" of the op, which names one, or a colocation group'
            )
    duration = oracle.prepared.duration
    mean = (
        np.where(duration >= 0, duration, 0).sum(axis=1)
        / np.maximum((duration >= 0).sum(axis=1), 1)
        / 1e12
    )
    order = {
        (group[producer], group[consumer])
        for consumer, reads in enumerate(graph.reads)
        for producer, _ in reads
        if graph.ops[producer].phase == graph.ops[consumer].phase == "forward"
    }
    ops = [[graph.ops[i] for i in members] for members in oracle.groups]
    return Profile(
        tuple(float(mean[list(members)].sum()) for members in oracle.groups),
        tuple(sum(t.bytes for op in one if op.phase == "forward" for t in op.made) for one in ops),
        tuple(sum(op.param_bytes for op in one) for one in ops),
        tuple(sorted(pair for pair in order if pair[0] != pair[1])),
    )


def levels_of(oracle: Oracle) -> list[Level]:
    """The devices as levels: those of a node, then the nodes, where all nodes have as many; else
    all as one level.

    The bandwidth of a level is the least between two devices of it.
    """
    cluster = oracle.cluster
    nodes: dict[int, list[int]] = {}
    for d, device in enumerate(cluster.devices):
        if device.runs_ops:
            nodes.setdefault(device.node, []).append(d)
    sizes = {len(one) for one in nodes.values()}
    everywhere = [d for one in nodes.values() for d in one]
    if len(nodes) == 1 or sizes == {1} or len(sizes) > 1:
        return [Level(len(everywhere), _least(oracle, everywhere))]
    inside = min(_least(oracle, one) for one in nodes.values())
    return [Level(sizes.pop(), inside), Level(len(nodes), _least(oracle, everywhere))]


def _least(oracle: Oracle, devices: Sequence[int]) -> float:
    route = oracle.prepared.fabric.routes.route
    routes = [route(a, b) for a in devices for b in devices if a != b]
    return min((float(route.bandwidth) for route in routes if route is not None), default=inf)


def pipedream(trial: Trial) -> None:
    """PipeDream's plan; what is placed, and scored, is its best pipeline without replicas, one
    device a stage.

    A minibatch passes such a pipeline one stage after another, so the step time is that of a single
    minibatch; the objective is the period in steady state (``period_s`` of the plan with replicas,
    in ``details`` of the placed one). The plan knows no memory: where it overflows, groups are
    moved (``details`` has how many ops were ``moved``).
    """
    oracle, profile = trial.oracle, profile_of(trial.oracle)
    devices = [
        d for d in range(len(oracle.cluster.devices)) if all(d in one for one in trial.choices)
    ]
    if len(devices) < sum(device.runs_ops for device in oracle.cluster.devices):
        raise InputError("pipedream: every device must be able to run every op")
    levels = levels_of(oracle)
    straight = partition(
        profile, [Level(len(devices), levels[-1].bandwidth)], True, trial.require_time
    )
    _place(trial, straight, devices)
    plan = partition(profile, levels, due=trial.require_time)
    trial.objectives["period_s"] = plan.seconds
    trial.details |= {
        "exact": plan.exact,
        "stages": [_told(oracle, stage) for stage in plan.stages],
    }


def _place(trial: Trial, plan: Partition, devices: Sequence[int]) -> None:
    """Score a pipeline of one device a stage; mended where it does not fit."""
    told = [_told(trial.oracle, stage) for stage in plan.stages]
    trial.details |= {"placed_stages": told, "placed_period_s": plan.seconds}
    placement = np.zeros(len(trial.oracle.groups), np.int64)
    for device, stage in zip(devices, plan.stages, strict=False):
        placement[list(stage.groups)] = device
    trial.score(placement)
    repair(trial)
    if trial.best is not None:  # it can be
        trial.details["moved"] = int((trial.best[0] != trial.oracle.placement(placement)).sum())


def _told(oracle: Oracle, stage: Stage) -> dict[str, object]:
    first = [oracle.graph.ops[oracle.groups[group][0]].name for group in stage.groups]
    return {"ops": first, "replicas": stage.replicas, "seconds": stage.seconds}
