"""What lowering makes of the model's answer: one task that holds what it crosses, or its
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from ...costs.collectives import (
    Closed,
    CollectiveCall,
    CollectiveCost,
    CollectiveModel,
    CollectiveTable,
    Form,
    Phase,
    bytes_sent,
    collective_model,
    pieces_of,
)
from ...ground.errors import InputError
from ...ground.units import MAX_PS, PS_PER_SECOND, transmission_ps
from ...nouns.cluster import Cluster
from ...nouns.fabric import Fabric, fabric_of
from ...nouns.strategy import Collectives, settled_cost

MAX_MESSAGES = 5_000_000


@dataclass(frozen=True, slots=True)
class Ring:
    """A collective ready to run: ranks (device indices), ps, what it holds, bytes sent a result.

    ``bytes`` are those of all messages over the number of ranks that are left with a result: what
    each rank of a ring sends. Under fair links it is a flow: ``duration_ps`` is then the latency of
    all its steps, and ``bytes`` go over ``half_links``, more where several messages of a step cross
    one half-link. Expanded it takes no time and holds nothing itself: ``steps`` are its messages,
    over device indices. Of an op, ``inputs_on`` and ``outputs_on`` are the devices on which its
    inputs and outputs lie.
    """

    ranks: tuple[int, ...]
    duration_ps: int
    bytes: int
    resources: tuple[int, ...]
    half_links: tuple[int, ...]
    steps: tuple[Phase, ...] = ()
    inputs_on: tuple[int, ...] = ()
    outputs_on: tuple[int, ...] = ()

    @property
    def expanded(self) -> bool:
        """Whether it runs as its messages, one task each."""
        return bool(self.steps)


class Communicators:
    """Collectives on a cluster, as a strategy chooses them: each is costed once.

    ``base`` are those of another choice on this cluster: with these they share the fabric, and the
    model where it has the same tables.
    """

    def __init__(
        self, cluster: Cluster, choice: Collectives, base: Communicators | None = None
    ) -> None:
        self.cluster, self.choice = cluster, choice
        self.fabric: Fabric = base.fabric if base else fabric_of(cluster)
        if base and base.choice.tables == choice.tables:
            self.model = base.model
        self._rings: dict[tuple[CollectiveCall, str], Ring] = {}

    def choosing(self, choice: Collectives) -> Communicators:
        """Collectives on this cluster, as another strategy chooses them."""
        return Communicators(self.cluster, choice, self)

    @cached_property
    def model(self) -> CollectiveModel:
        """The model of collectives, with the tables of the choice, else those of the cluster."""
        tables = [
            CollectiveTable(t.collective, t.ranks, t.anchors, t.source) for t in self.choice.tables
        ]
        return collective_model(self.cluster, tables=tables)

    def ring(
        self,
        kind: str,
        ranks: Sequence[int],
        size: int,
        algorithm: str | None = None,
        cost: str | None = None,
    ) -> Ring:
        """What a collective among these devices (indices, in the order of their ranks) costs, and
        what it holds.

        ``size`` is in bytes, as nccl-tests counts them. Raises InputError.
        """
        return self.costed(self._call(kind, ranks, size, algorithm), cost or self.choice.cost)

    def alone_ps(self, kind: str, ranks: Sequence[int], size: int) -> int:
        """How long a collective takes that shares nothing; expanded, its closed form.

        Raises InputError.
        """
        form, measured = _timed(self._call(kind, ranks, size), self.choice.cost, self.model)
        return measured.ps if measured else self.model.forms.closed(form.phases).ps

    def _call(
        self, kind: str, ranks: Sequence[int], size: int, algorithm: str | None = None
    ) -> CollectiveCall:
        name = algorithm or self.choice.algorithm
        return CollectiveCall(kind, tuple(ranks), size, name, self.choice.chunks)

    def costed(self, call: CollectiveCall, cost: str) -> Ring:
        """A collective by its "closed" form, the model's "table", "auto" or "expanded".

        Raises InputError where a route is missing, an algorithm has no such form, or the time is
        absurd.
        """
        key = call, cost
        if key not in self._rings:
            self._rings[key] = _ring_of(call, cost, self.model)
        return self._rings[key]


def _timed(
    call: CollectiveCall, cost: str, model: CollectiveModel
) -> tuple[Form, CollectiveCost | None]:
    """The messages of a collective, and its time where tables tell it."""
    if settled_cost(cost, call.algorithm, bool(model.tables)) != "table":
        return model.form(call), None
    if not model.tables:
        raise InputError(
            'cost: "table" needs tables: those of the cluster, or those that the strategy names'
        )
    measured, form = model.timed(replace(call, algorithm="auto"))
    return form, measured


def _ring_of(call: CollectiveCall, cost: str, model: CollectiveModel) -> Ring:
    form, measured = _timed(call, cost, model)
    fabric = model.fabric
    # What is left with a result: of a broadcast all but the root, of a reduction the root.
    results = {"broadcast": len(call.ranks) - 1, "reduce": 1, "p2p": 1}
    sent = -(-bytes_sent(form.phases) // max(results.get(call.kind, len(call.ranks)), 1))
    if cost == "expanded":
        _require_few(form.phases, len(call.ranks))
        for phase in form.phases:
            for source, destination, _ in phase.messages:
                pieces_of(fabric, source, destination)
        return Ring(call.ranks, 0, sent, (), (), form.phases)
    closed = model.forms.closed(form.phases)
    ps = measured.ps if measured else closed.ps
    if ps > MAX_PS:
        raise InputError(
            f"an {call.kind.replace('_', '-')} of {call.size} bytes over {len(call.ranks)} ranks "
            "takes more than 53 days"
        )
    if fabric.shares_rates:
        return _flow(call, model, form, closed, ps)
    queues = tuple(fabric.first_queue + queue for queue in sorted(model.forms.crossed(form.phases)))
    return Ring(call.ranks, ps, sent, queues, ())


def _require_few(phases: Sequence[Phase], ranks: int) -> None:
    """Messages, each counted with what it waits for: as many as its rank sent and got in the phase
    before.
    """
    total, before = 0, 1
    for phase in phases:
        total += phase.count() * before
        before = max(1, len(phase.messages) // ranks)
    if total > MAX_MESSAGES:
        raise InputError(
            f"cost: expanded makes more than {MAX_MESSAGES} messages; cost it by its closed form"
        )


def _flow(
    call: CollectiveCall, model: CollectiveModel, form: Form, closed: Closed, ps: int
) -> Ring:
    """A collective as one flow over every half-link that it crosses, so large that alone it takes
    ``ps``.

    Its bytes are what the busiest half-link carries, more where phases leave it idle or a slower
    link counts. By table its latency is what they do not need of the time measured.
    """
    crossed = model.forms.crossed(form.phases)
    links = (model.cluster.half_links[half_link].link for half_link in crossed)
    slowest = min((Fraction(link.bandwidth) for link in links), default=Fraction(1))
    latency, size = closed.latency, max(crossed.values(), default=0)
    if ps != closed.ps:
        size = min(size, int(ps * slowest // PS_PER_SECOND))
        latency = ps - transmission_ps(size, slowest)
    elif abs(transmission_ps(size, slowest) + latency - ps) > closed.rounds:
        size = int((ps - latency) * slowest // PS_PER_SECOND)
    return Ring(call.ranks, latency, size, (), tuple(sorted(crossed)))
