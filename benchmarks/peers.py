"""What a user would write otherwise: two small simulators of the simplified model, in seconds as
floats.

The model: queues ``parallel``, each tensor to each device once, no gaps, direct links; an idle
device takes the op that has been ready longest. Both derive the transfers from the placement, as
such oracles do for every call, and return the makespan alone. Where two things are due at one
instant they follow their own counters, not the rounds of the execution contract: so they equal
simdev to rounding on data without ties, and may differ on data with ties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import simpy
from simpy.events import Event

from simdev.ground.units import PS_PER_SECOND
from simdev.lowering import Prepared


@dataclass(frozen=True, slots=True)
class Problem:
    """Plain lists: ``seconds`` by op and device, ``latency`` and ``rate`` (bytes per second) by two
    devices.

    ``tensors`` hold producer, bytes and consumers.
    """

    seconds: list[list[float]]
    tensors: list[tuple[int, int, list[int]]]
    latency: list[list[float]]
    rate: list[list[float]]

    def parcels(self, placement: Sequence[int]) -> Iterator[tuple[int, float, list[int]]]:
        """For each tensor and device that reads it: the producer, the seconds on the way, the
        consumers there.
        """
        for producer, size, consumers in self.tensors:
            source = placement[producer]
            there: dict[int, list[int]] = {}
            for consumer in consumers:
                there.setdefault(placement[consumer], []).append(consumer)
            for device, served in there.items():
                yield (
                    producer,
                    self.latency[source][device] + size / self.rate[source][device],
                    served,
                )


def problem_of(prepared: Prepared) -> Problem:
    """The plain form of a question.

    Raises ValueError where the simplified model does not cover it.
    """
    cluster, reads, devices = prepared.cluster, prepared.reads, range(len(prepared.cluster.devices))
    pairs = [(a, b) for a in devices for b in devices if a != b]
    segments = [prepared.segments(a, b) for a, b in pairs]
    simple = all(len(one) == 1 and not one[0].lag_ps and not one[0].gap_ps for one in segments)
    if (
        (cluster.queues, cluster.transfer) != ("parallel", "once-per-device")
        or prepared.gap_ps.any()
        or not simple
    ):
        raise ValueError(
            "the peers know parallel queues, once-per-device transfers, held latency and no gaps"
        )
    latency, rate = (
        [[0.0 for _ in devices] for _ in devices],
        [[1.0 for _ in devices] for _ in devices],
    )
    for (a, b), (segment,) in zip(pairs, segments, strict=True):
        latency[a][b], rate[a][b] = float(segment.route.held), float(segment.route.bandwidth)
    tensors = zip(
        reads.producer.tolist(), reads.bytes.tolist(), reads.consumers.lists(), strict=True
    )
    return Problem((prepared.duration / PS_PER_SECOND).tolist(), list(tensors), latency, rate)


def simpy_makespan(problem: Problem, placement: Sequence[int]) -> float:
    """A SimPy process for each op and each transfer, a Resource for each device."""
    env = simpy.Environment()
    devices = [simpy.Resource(env) for _ in problem.latency]
    finished = [env.event() for _ in problem.seconds]
    needs: list[list[Event]] = [[] for _ in problem.seconds]

    def transfer(producer: int, seconds: float) -> Generator[Event, object, None]:
        yield finished[producer]
        yield env.timeout(seconds)

    def op(i: int) -> Generator[Event, object, None]:
        yield env.all_of(needs[i])
        with devices[placement[i]].request() as turn:
            yield turn
            yield env.timeout(problem.seconds[i][placement[i]])
        finished[i].succeed()

    for producer, seconds, consumers in problem.parcels(placement):
        here = placement[consumers[0]] == placement[producer]
        arrived = finished[producer] if here else env.process(transfer(producer, seconds))
        for consumer in consumers:
            needs[consumer].append(arrived)
    for i in range(len(problem.seconds)):
        env.process(op(i))
    env.run()
    return float(env.now)


def heapq_makespan(problem: Problem, placement: Sequence[int]) -> float:
    """One heap of events, (time, counter, device, whether an op ends there, ops released there),
    and plain lists.
    """
    missing, local, sends = _edges(problem, placement)
    waiting: list[deque[int]] = [deque() for _ in problem.latency]
    for i, count in enumerate(missing):
        if not count:
            waiting[placement[i]].append(i)
    running = [-1 for _ in waiting]
    heap: list[tuple[float, int, int, bool, list[int]]] = [
        (0.0, d, d, False, []) for d in range(len(waiting))
    ]
    counter, now = len(heap), 0.0
    while heap:
        now, _, device, ends, released = heappop(heap)
        if ends:
            for seconds, consumers in sends[running[device]]:
                heappush(heap, (now + seconds, counter, placement[consumers[0]], False, consumers))
                counter += 1
            running[device] = -1
        for i in released:
            missing[i] -= 1
            if not missing[i]:
                waiting[device].append(i)
        if running[device] < 0 and waiting[device]:
            i = running[device] = waiting[device].popleft()
            heappush(heap, (now + problem.seconds[i][device], counter, device, True, local[i]))
            counter += 1
    return now


def _edges(
    problem: Problem, placement: Sequence[int]
) -> tuple[list[int], list[list[int]], list[list[tuple[float, list[int]]]]]:
    """By op: how many tensors it waits for, its consumers on its own device, and what it sends to
    others.
    """
    missing = [0 for _ in problem.seconds]
    local: list[list[int]] = [[] for _ in problem.seconds]
    sends: list[list[tuple[float, list[int]]]] = [[] for _ in problem.seconds]
    for producer, seconds, consumers in problem.parcels(placement):
        if placement[consumers[0]] == placement[producer]:
            local[producer].extend(consumers)
        else:
            sends[producer].append((seconds, consumers))
        for consumer in consumers:
            missing[consumer] += 1
    return missing, local, sends


PEERS = {"SimPy, a process each": simpy_makespan, "heapq loop": heapq_makespan}
