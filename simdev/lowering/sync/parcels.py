"""From weights to parcels: how a policy cuts or gathers gradients, which server adds each up, and
the order in which they are to be sent.

``synchronised`` (the package) calls it; ``exchange.py`` writes the tasks of the parcels.
``nouns.strategy.sync`` has the settings. A new setting that cuts gradients must be counted in
``require_few``, and named in the line on how gradients are cut in ``report.measures.spread``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...ground.errors import InputError
from ...ground.units import transmission_ps
from ...nouns.strategy import Sync
from ...nouns.structure import order_of, updated
from ...nouns.taskgraph import Ints
from ..prepare import Prepared
from .weights import Weight

MAX_SENT = 1_000_000  # segments in a step: four such steps have some ten million tasks
NEVER = 2**62  # ps; Mp of a receive that no op waits for together with others
HASH = 9973  # MXNet's: key k whole on server 9973 k mod servers (src/kvstore/kvstore_dist.h)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message of a policy: ``size`` bytes of the gradients ``parts`` (rows of the weights), which
    are all made by the same workers.

    ``server`` is the device that adds it up (-1: an all-reduce does), ``rank`` its place in the
    order of priority.
    """

    name: str
    parts: tuple[int, ...]
    size: int
    server: int
    rank: int


def parcels(
    weights: Sequence[Weight], sync: Sync, machines: tuple[int, ...] | None, ranks: Sequence[int]
) -> list[Parcel]:
    """The parcels in the order in which gradients are made.

    ``machines`` are the devices that serve (None: workers do), ``ranks`` the priorities of the
    weights.
    """
    made = sorted(range(len(weights)), key=lambda row: weights[row].made)
    servers = [_servers(weight, sync, machines) for weight in weights]
    if sync.bucket is not None:
        return list(_buckets(weights, made, int(sync.bucket), servers, ranks))
    return [
        parcel
        for row in made
        for parcel in _slices(weights[row], row, sync, servers[row], ranks[row])
    ]


def require_few(weights: Sequence[Weight], sync: Sync, several: bool) -> None:
    """Raise InputError where a step sends more than a million slices and segments, before they are
    written.

    ``several``: messages may pass several queues, one after another; only these go in segments.
    """
    if sync.transport != "server":
        return
    in_segments, total = several and sync.hold == "in-turn", 0
    for weight in weights:
        slices = 1
        if sync.slice_parameters is not None:
            slices = -(-weight.parameters // sync.slice_parameters)
        segments = -(-weight.size // int(sync.segment)) if in_segments else 1
        # Each worker sends to the server and gets an answer, except a worker that is the server.
        total += 2 * max(slices, segments) * max(1, len(weight.ranks) - 1)
    if total > MAX_SENT:
        raise InputError(
            "sync: slice_parameters and segment cut what a step sends into "
            f"{total} parts; at most {MAX_SENT} are simulated"
        )


def _servers(weight: Weight, sync: Sync, machines: tuple[int, ...] | None) -> tuple[int, ...]:
    """The devices among which the parcels of a weight are spread."""
    if sync.transport != "server":
        return (-1,)
    if machines is not None:
        return machines
    return weight.ranks if sync.servers == "sharded" else weight.ranks[:1]


def _slices(
    weight: Weight, row: int, sync: Sync, servers: tuple[int, ...], rank: int
) -> Iterator[Parcel]:
    count = weight.parameters
    even = sync.even_parameters is not None and count >= sync.even_parameters
    borders = [0, count]
    if sync.slice_parameters is not None and count > sync.slice_parameters:
        borders = [*range(0, count, sync.slice_parameters), count]
    elif even:
        borders = [count * i // len(servers) for i in range(len(servers) + 1)]
    several = len(borders) > 2
    # A whole gradient goes by its key in any case, as in MXNet.
    begin = 0 if (several or even) and sync.spread == "first" else weight.order * HASH
    for i, (first, last) in enumerate(pairwise(borders)):
        # A size is the difference of rounded ends, so that slices add up to the whole.
        size = weight.size * last // count - weight.size * first // count if count else weight.size
        name = f"{weight.name}[{i}]" if several else weight.name
        yield Parcel(name, (row,), size, servers[(begin + i) % len(servers)], rank)


def _buckets(
    weights: Sequence[Weight],
    made: Sequence[int],
    limit: int,
    servers: Sequence[tuple[int, ...]],
    ranks: Sequence[int],
) -> Iterator[Parcel]:
    """The parcels of buckets. A bucket is closed once it has ``limit`` bytes; each group of workers
    has separate buckets.
    """
    filled: dict[tuple[int, ...], list[int]] = {}
    closed: list[list[int]] = []
    for row in made:
        workers = weights[row].ranks
        bucket = filled.setdefault(workers, [])
        bucket.append(row)
        if sum(weights[part].size for part in bucket) >= limit:
            closed.append(filled.pop(workers))
    for number, parts in enumerate([*closed, *filled.values()]):
        there = servers[parts[0]]
        size, rank = sum(weights[row].size for row in parts), min(ranks[row] for row in parts)
        yield Parcel(f"bucket {number}", tuple(parts), size, there[number % len(there)], rank)


def rounds(parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
    """Groups of parcels of one weight, with no server twice in a group."""
    group: list[Parcel] = []
    for parcel in parcels:
        servers = {other.server for other in group}
        if group and (parcel.parts != group[0].parts or parcel.server in servers):
            yield group
            group = []
        group.append(parcel)
    if group:
        yield group


# The order in which parcels are to be sent, for example that of TicTac (Hashemi et al., MLSys 2019,
# algorithms 1 to 3). For an outstanding receive r, M is its transfer time, and P the compute time
# of the ops that wait for r alone. Among the ops that wait for r and others, Mp is the least time
# to receive all tensors that an op waits for.


def priorities(
    prepared: Prepared, weights: Sequence[Weight], sync: Sync, placement: Sequence[int]
) -> list[int]:
    """The place of each weight in the order in which parcels are to be sent."""
    if sync.priority not in ("tic", "tac") or not weights:
        return [weight.order for weight in weights]
    waits, compute = _waits(prepared, weights, placement)
    if sync.priority == "tic":
        rank = timing_independent_order(waits)
    else:
        receive = np.array([_receive_ps(prepared, weight) for weight in weights], np.int64)
        rank = timing_aware_order(waits, compute, receive)
    # Weights of equal rank go in the order of the forward.
    order = np.lexsort(([weight.order for weight in weights], rank))
    return np.argsort(order).tolist()  # type: ignore[no-any-return]


def _waits(
    prepared: Prepared, weights: Sequence[Weight], placement: Sequence[int]
) -> tuple[NDArray[np.bool_], Ints]:
    """For each op of the first worker and each weight, whether the op waits for the weight; and the
    ps of these ops.
    """
    graph, worker = prepared.graph, weights[0].ranks[0]
    row_of_gate = {gate: row for row, weight in enumerate(weights) for gate in weight.gates}
    waits = np.zeros((len(graph.ops), len(weights)), np.bool_)
    # A parameter waits for its update in the step before, which waits for its gate.
    for update, parameters in updated(graph).items():
        for producer, _ in graph.reads[update]:
            if producer in row_of_gate:
                waits[list(parameters), row_of_gate[producer]] = True
    for i in order_of(graph):
        for producer, _ in graph.reads[i]:
            waits[i] |= waits[producer]
    rows = [
        i
        for i, op in enumerate(graph.ops)
        if op.phase != "update" and placement[i] == worker and op.inputs
    ]
    there = np.array(rows, np.int64)
    return waits[there], prepared.duration_at(there, np.full(len(there), worker))


def _receive_ps(prepared: Prepared, weight: Weight) -> int:
    """The ps to receive a whole weight over the route between the first two workers."""
    if len(weight.ranks) < 2:
        return weight.size
    pieces = prepared.segments(weight.ranks[1], weight.ranks[0])
    return sum(
        transmission_ps(weight.size, Fraction(piece.route.bandwidth)) + piece.held_ps
        for piece in pieces
    )


def timing_independent_order(waits: NDArray[np.bool_]) -> list[int]:
    """TIC: the rank of each receive. Every receive counts 1 and computation 0; receives of equal Mp
    share a rank.

    ``waits`` says for each op and receive whether the op waits for the receive.
    """
    each = np.ones(waits.shape[1], np.int64)
    least = _least_beside(waits, each, each > 0)
    return np.unique(least, return_inverse=True)[1].tolist()  # type: ignore[no-any-return]


def timing_aware_order(waits: NDArray[np.bool_], compute: Ints, receive: Ints) -> list[int]:
    """TAC: the rank of each receive, the best of those outstanding first; ``compute`` and
    ``receive`` are in ps.

    Receive 1 is better than 2 if min(P2, M1) < min(P1, M2), on a tie by its smaller Mp, then by its
    position. The comparison is not transitive on ties: the best is found in one pass, in the order
    of positions.
    """
    # Ops that wait for the same receives count as one: there are thousands of ops, and few sets.
    masks, where = np.unique(waits, axis=0, return_inverse=True)
    times = np.zeros(len(masks), np.int64)
    np.add.at(times, where.reshape(-1), compute)
    left, rank = np.ones(waits.shape[1], np.bool_), [0] * waits.shape[1]
    for place in range(waits.shape[1]):
        alone = (masks & left).sum(axis=1) == 1
        unlocked = (masks[alone] & left).T.astype(np.int64) @ times[alone]
        least = _least_beside(masks, receive, left)
        best = -1
        for r in np.flatnonzero(left).tolist():
            if best < 0 or _better(r, best, receive, unlocked, least):
                best = r
        left[best], rank[best] = False, place
    return rank


def _better(receive_1: int, receive_2: int, receive: Ints, unlocked: Ints, least: Ints) -> bool:
    """Whether receive 1 goes before receive 2, which has the earlier position."""
    first = min(unlocked[receive_2], receive[receive_1])
    second = min(unlocked[receive_1], receive[receive_2])
    return bool((first, least[receive_1]) < (second, least[receive_2]))


def _least_beside(waits: NDArray[np.bool_], receive: Ints, left: NDArray[np.bool_]) -> Ints:
    """Mp of each receive; NEVER where no op waits for it together with another."""
    outstanding = waits & left
    together = outstanding[outstanding.sum(axis=1) > 1]
    total = together.astype(np.int64) @ receive
    return np.where(together, total[:, None], NEVER).min(axis=0, initial=NEVER)  # type: ignore[no-any-return]
