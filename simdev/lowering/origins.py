"""The sources of a step's times: the rungs of the cost ladder for its ops and for the dispatches of
its hosts.

``execution.scenario`` collects them, and reports print them (``report.measures.costs`` and
``hosts``). Large models count their rungs in ``_sources`` of hybrid/__init__.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..costs import KNOWN, RUNGS, CostMiss, HostCost, OpCost
from ..ground.frozen import freeze
from ..nouns.taskgraph import Ints
from .hosts import Dispatches
from .prepare import Prepared


class SharedCost(NamedTuple):
    """Ops of one kind with equal costs on one kind of device: the first op, its device, the cost,
    and the number of ops.
    """

    op: int
    device: int
    cost: OpCost
    number: int


def op_costs(
    prepared: Prepared, devices: Sequence[int], copies: Ints | None
) -> tuple[SharedCost, ...]:
    """The shared costs of ops, in the order of their first ops; ops of unknown cost are left out.
    ``devices`` are by op, ``copies`` is the number of devices that each device represents (None:
    itself).
    """
    times = [1] * len(prepared.cluster.devices) if copies is None else copies.tolist()
    ops, kinds = prepared.graph.ops, [device.kind for device in prepared.cluster.devices]
    first: dict[tuple[str, str, int], tuple[int, int, OpCost]] = {}
    counts: Counter[tuple[str, str, int]] = Counter()
    # Graphs repeat their layers, so costs are summed for ops that share a cost, not op by op.
    for op, device in enumerate(devices):
        cost = prepared.cost(op, device)
        if cost is not None:
            key = ops[op].kind, kinds[device], id(cost)  # equal costs are one object
            first.setdefault(key, (op, device, cost))
            counts[key] += times[device]
    return tuple(SharedCost(*first[key], count) for key, count in counts.items())


def rung_shares(costs: Iterable[SharedCost]) -> dict[str, float]:
    """The share of each rung in the summed op time, where it is above 0; empty where no op takes
    time.
    """
    totals = dict.fromkeys(RUNGS, Fraction(0))
    for _, _, cost, number in costs:
        totals[cost.rung] += cost.seconds * number
    total = sum(totals.values())
    return {rung: float(seconds / total) for rung, seconds in totals.items() if seconds}


def expected_error(costs: Iterable[SharedCost]) -> float | None:
    """The mean of the expected relative errors, weighted by time; None where any estimate has no
    expected error.

    Given and measured times without an expected error count as exact. The mean bounds the expected
    error of the summed op time, which it equals where all errors have the same sign.
    """
    return _mean_error([(float(cost.seconds * number), cost) for _, _, cost, number in costs])


def _mean_error(times: Iterable[tuple[float, OpCost | HostCost]]) -> float | None:
    timed = [(time, cost) for time, cost in times if time]
    if any(cost.rel_err is None and cost.rung not in KNOWN for _, cost in timed):
        return None
    total = math.fsum(time for time, _ in timed)
    errors = math.fsum(time * (cost.rel_err or 0.0) for time, cost in timed)
    return errors / total if timed else 0.0


def cost_misses(prepared: Prepared, costs: Iterable[SharedCost]) -> tuple[CostMiss, ...]:
    """The costs that were estimated, those with the largest total first; ops of a kind that share a
    cost are counted together.
    """
    misses = [_miss(prepared, shared) for shared in costs if shared.cost.rung not in KNOWN]
    return tuple(sorted(misses, key=lambda miss: -miss.seconds))


def _miss(prepared: Prepared, shared: SharedCost) -> CostMiss:
    first, device, cost, number = shared
    op, kind = prepared.graph.ops[first], prepared.cluster.devices[device].kind
    return CostMiss(
        op.name,
        op.kind,
        kind,
        number,
        float(cost.seconds * number),
        cost.rung,
        cost.rel_err,
        cost.basis,
    )


@dataclass(frozen=True, slots=True)
class HostOrigins:
    """Figures of the hosts of a step.

    ``dispatches`` is the number of dispatches (a replayed graph counts once for each device),
    ``unknown`` the number of those of unknown time (which take 0), ``rungs`` the share of each rung
    in their time, ``rel_err`` its expected relative error (``expected_error``). ``short_ps`` is the
    mean time of the ops on accelerators without a host (0: there are none).
    """

    dispatches: int
    unknown: int
    rungs: Mapping[str, float]
    rel_err: float | None
    short_ps: int

    def __post_init__(self) -> None:
        freeze(self, "rungs")


def host_origins(
    prepared: Prepared, devices: Ints, dispatches: Dispatches | None, copies: Ints | None
) -> HostOrigins:
    """Figures of the hosts of a step whose ops run on ``devices`` (indices, by op); ``copies`` is
    the number of devices that each device represents (None: itself).
    """
    cluster, totals = prepared.cluster, Counter[str]()
    times = [1] * len(cluster.devices) if copies is None else copies.tolist()
    known: list[tuple[float, HostCost]] = []
    unknown = count = 0
    if dispatches is not None:
        replayed = set[int]()
        pairs = Counter(zip(dispatches.op.tolist(), dispatches.device.tolist(), strict=True))
        ops, places = np.array(list(pairs), np.int64).reshape(-1, 2).T
        lengths = dispatches.prepared.dispatches_at(ops, places)[0].tolist()
        for ((op, device), number), ps in zip(pairs.items(), lengths, strict=True):
            host = cluster.host_of(device)
            if host is None or host.mode != "eager":
                replayed.add(device)
                continue
            number *= times[device]
            count += number
            cost = dispatches.prepared.costed.host_cost(op, cluster.devices[device].kind)
            unknown += number * (cost is None)
            if cost is not None:
                totals[cost.rung] += ps * number
                known.append((float(ps * number), cost))
        count += sum(times[device] for device in replayed)
    total = sum(totals.values())
    rungs = {rung: ps / total for rung, ps in totals.items() if ps}
    short = _mean_ps(prepared, devices, np.array(times))
    return HostOrigins(count, unknown, rungs, _mean_error(known), short)


def _mean_ps(prepared: Prepared, devices: Ints, copies: Ints) -> int:
    """The mean duration in ps of the ops that take time on accelerators without a host."""
    cluster = prepared.cluster
    bare = [
        not device.is_host and cluster.host_of(i) is None
        for i, device in enumerate(cluster.devices)
    ]
    alone = np.array([i not in prepared.rings for i in range(len(devices))], np.bool_)
    there = np.flatnonzero(np.array(bare, np.bool_)[devices] & alone) if len(devices) else devices
    duration = prepared.duration_at(there, devices[there])
    number = copies[devices[there]] * (duration > 0)
    return int(np.average(duration, weights=number)) if number.any() else 0
