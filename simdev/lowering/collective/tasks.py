"""What lowering makes of the model's answer: one task that holds what it crosses, or its
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...collectives import (
    Closed,
    CollectiveCall,
    CollectiveModel,
    Form,
    Phase,
    bytes_sent,
    pieces_of,
)
from ...errors import InputError
from ...units import MAX_PS, PS_PER_SECOND, transmission_ps

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


def ring_of(question: CollectiveCall, cost: str, model: CollectiveModel) -> Ring:
    """The collective as asked: by its "closed" form, by the model's "table", or "expanded".

    Raises InputError where a route is missing, an algorithm has no such form, or the time is
    absurd.
    """
    form, fabric = model.form(question), model.fabric
    sent = _bytes_each(question, form)
    if cost == "expanded":
        _require_few(form.phases, len(question.ranks))
        for phase in form.phases:
            for source, destination, _ in phase.messages:
                pieces_of(fabric, source, destination)
        return Ring(question.ranks, 0, sent, (), (), form.phases)
    closed = model.forms.closed(form.phases)
    ps = _measured_ps(question, model) if cost == "table" else closed.ps
    if ps > MAX_PS:
        name = question.kind.replace("_", "-")
        told = f"an {name} of {question.size} bytes over {len(question.ranks)} ranks"
        raise InputError(f"{told} takes more than 53 days")
    if fabric.shares_rates:
        return _flow(question, model, form, (closed, ps))
    queues = tuple(fabric.first_queue + queue for queue in sorted(model.forms.crossed(form.phases)))
    return Ring(question.ranks, ps, sent, queues, ())


def _require_few(found: tuple[Phase, ...], ranks: int) -> None:
    """Messages, each counted with what it waits for: as many as its rank sent and got in the phase
    before.
    """
    total, before = 0, 1
    for phase in found:
        total += phase.count() * before
        before = max(1, len(phase.messages) // ranks)
    if total > MAX_MESSAGES:
        raise InputError(
            f"cost: expanded makes more than {MAX_MESSAGES} messages; cost it by its closed form"
        )


def _bytes_each(question: CollectiveCall, form: Form) -> int:
    count = len(question.ranks)
    results = {"broadcast": count - 1, "reduce": 1, "p2p": 1}.get(question.kind, count)
    return -(-bytes_sent(form.phases) // max(results, 1))


def _measured_ps(question: CollectiveCall, model: CollectiveModel) -> int:
    if not model.tables:
        raise InputError(
            'cost: "table" needs tables: those of the cluster, or those that the strategy names'
        )
    return model.cost(question.kind, question.ranks, question.size).ps


def _flow(
    question: CollectiveCall, model: CollectiveModel, form: Form, times: tuple[Closed, int]
) -> Ring:
    """As one flow over every half-link that it crosses, so large that alone it takes its time.

    These are what the busiest half-link carries, more where phases leave it idle or a slower link
    counts. By table its latency is what they do not need of the time measured.
    """
    (closed, ps), crossed = times, model.forms.crossed(form.phases)
    links = (model.cluster.half_links[half_link].link for half_link in crossed)
    slowest = min((Fraction(link.bandwidth) for link in links), default=Fraction(1))
    latency, size = closed.latency, max(crossed.values(), default=0)
    if ps != closed.ps:
        size = min(size, int(ps * slowest // PS_PER_SECOND))
        latency = ps - transmission_ps(size, slowest)
    elif abs(transmission_ps(size, slowest) + latency - ps) > closed.rounds:
        size = int((ps - latency) * slowest // PS_PER_SECOND)
    return Ring(question.ranks, latency, size, (), tuple(sorted(crossed)))
