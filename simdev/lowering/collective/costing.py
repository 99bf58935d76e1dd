"""What one collective costs: how long it takes, which queues it holds, what it sends; or its messages, expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from ...collectives import (
    CollectiveModel,
    CollectiveTable,
    Phase,
    best_chunks,
    bytes_sent,
    flows_wire,
    phases,
    pieces_of,
    steps_of,
)
from ...errors import InputError
from ...fabric import Fabric
from ...strategy import Collectives
from ...units import MAX_PS, PS_PER_SECOND, transmission_ps

MAX_MESSAGES = 5_000_000
MAX_CHUNKS = 256
AUTO = ("ring", "tree", "hierarchical")
"""What "auto" chooses from; the first of equals."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A collective ready to run: its ranks (device indices), ps, what it holds, the bytes sent for each result.

    ``bytes`` are those of all messages over the number of ranks that are left with a result: what each rank of a ring
    sends.
    Under fair links it is a flow: ``duration_ps`` is then the latency of all its steps, and ``bytes`` go over
    ``half_links``, more where several messages of a step cross one half-link. Expanded it takes no time and holds
    nothing itself: ``steps`` are its messages, over device indices. Of an op, ``inputs_on`` and ``outputs_on`` are the
    devices on which its inputs and outputs lie.
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


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a collective: its kind, ranks (device indices), bytes (as nccl-tests counts), and how."""

    kind: str
    ranks: tuple[int, ...]
    size: int
    algorithm: str
    cost: str
    chunks: int | None


def ring_bytes(ranks: int, size: int) -> int:
    """Bytes that each rank sends in a ring all-reduce of ``size`` bytes: 2 (n-1) steps of ceil(S / n)."""
    return 2 * (ranks - 1) * -(-size // ranks)


def costed(question: Question, fabric: Fabric, choice: Collectives) -> Ring:
    """The collective as asked; ``choice`` holds the tables.

    Raises InputError where a route is missing, an algorithm has no such form, or the time is absurd.
    """
    found = _messages(question, fabric)
    if question.cost == "expanded":
        _require_few(found, len(question.ranks))
        for phase in found:
            for source, destination, _ in phase.messages:
                pieces_of(fabric, source, destination)
        return Ring(question.ranks, 0, _bytes_each(question, found), (), (), found)
    closed = _closed(found, fabric)
    if question.cost == "table":
        closed = replace(closed, ps=_measured_ps(question, fabric, choice))
    if closed.ps > MAX_PS:
        name = question.kind.replace("_", "-")
        raise InputError(f"an {name} of {question.size} bytes over {len(question.ranks)} ranks takes more than 53 days")
    if fabric.shares_rates:
        return _flow(question, fabric, closed)
    queues = tuple(fabric.first_queue + queue for queue in sorted(closed.crossed))
    return Ring(question.ranks, closed.ps, _bytes_each(question, found), queues, ())


def _require_few(found: tuple[Phase, ...], ranks: int) -> None:
    """Messages, each counted with what it waits for: as many as its rank sent and got in the phase before."""
    total, before = 0, 1
    for phase in found:
        total += phase.count() * before
        before = max(1, len(phase.messages) // ranks)
    if total > MAX_MESSAGES:
        raise InputError(f"cost: expanded makes more than {MAX_MESSAGES} messages; cost it by its closed form")


def _bytes_each(question: Question, found: tuple[Phase, ...]) -> int:
    count = len(question.ranks)
    results = {"broadcast": count - 1, "reduce": 1, "p2p": 1}.get(question.kind, count)
    return -(-bytes_sent(found) // max(results, 1))


def _messages(question: Question, fabric: Fabric) -> tuple[Phase, ...]:
    by_node: dict[int, list[int]] = {}
    for rank in question.ranks:
        by_node.setdefault(fabric.cluster.devices[rank].node, []).append(rank)
    nodes = tuple(map(tuple, by_node.values()))

    def by(algorithm: str) -> tuple[Phase, ...]:
        groups = nodes if algorithm == "hierarchical" else (question.ranks,)
        return phases(question.kind, algorithm, groups, question.size, _chunks(question, fabric, algorithm))

    if question.algorithm != "auto":
        return by(question.algorithm)
    even = len({len(group) for group in nodes}) == 1
    fitting = [one for one in AUTO if (one != "tree" or question.kind != "all_to_all")]
    forms = [by(one) for one in fitting if even or one != "hierarchical"]
    return min(forms, key=lambda form: _closed(form, fabric).ps)


def _chunks(question: Question, fabric: Fabric, algorithm: str) -> int:
    """Into how many chunks a chain is cut: as told, else so that its closed form is least."""
    if question.kind not in ("broadcast", "reduce") or algorithm not in ("ring", "hierarchical"):
        return 1
    if question.chunks is not None:
        return min(question.chunks, max(1, question.size))
    wire = flows_wire(fabric, list(zip(question.ranks, question.ranks[1:], strict=False)))
    return min(MAX_CHUNKS, best_chunks(len(question.ranks) - 1, question.size, wire))


@dataclass(frozen=True, slots=True)
class _Closed:
    """A closed form: ps, of which latency, over so many rounds; the bytes that cross each carrier."""

    ps: int
    latency: int
    rounds: int
    crossed: Mapping[int, int]


def _closed(found: tuple[Phase, ...], fabric: Fabric) -> _Closed:
    """The sum over the rounds of all phases; a round is as long as its slowest message.

    What a link's gap adds to the last round is left out: nothing waits for it.
    """
    total = latency = rounds = trailing = 0
    crossed = Counter[int]()
    for phase in found:
        firsts = phase.by_first()
        together = len(firsts) > 1 and phase.repeats > 1
        told = steps_of(
            fabric, [*firsts, [one for flows in firsts for one in flows]] if together else firsts, phase.size
        )
        # The last step comes as often again as the phase repeats it: counted, for there may be millions.
        last, again = told.steps[-1], phase.repeats - together - 1 if phase.repeats > 1 else 0
        total += sum(step.next for step in told.steps) + again * last.next
        latency += sum(step.latency for step in told.steps) + again * last.latency
        rounds += len(told.steps) + again
        trailing = last.next - last.arrival
        for carrier, messages in told.crossed.items():
            crossed[carrier] += messages // (1 + together) * phase.size * phase.repeats
    return _Closed(total - trailing, latency, rounds, crossed)


def _measured_ps(question: Question, fabric: Fabric, choice: Collectives) -> int:
    if not choice.tables:
        raise InputError('cost: "table" needs tables: those of the cluster, or those that the strategy names')
    tables = tuple(CollectiveTable(one.collective, one.ranks, one.anchors, one.source) for one in choice.tables)
    return CollectiveModel(fabric.cluster, tables).cost(question.kind, question.ranks, question.size).ps


def _flow(question: Question, fabric: Fabric, closed: _Closed) -> Ring:
    """As one flow over every half-link that it crosses, with so many bytes that alone it takes its time.

    These are what the busiest half-link carries, more where phases leave it idle or a slower link counts. By table its
    latency is what they do not need of the time measured.
    """
    rates = [Fraction(fabric.cluster.half_links[half_link].link.bandwidth) for half_link in closed.crossed]
    slowest = min(rates, default=Fraction(1))
    latency, size = closed.latency, max(closed.crossed.values(), default=0)
    if question.cost == "table":
        size = min(size, int(closed.ps * slowest // PS_PER_SECOND))
        latency = closed.ps - transmission_ps(size, slowest)
    elif abs(transmission_ps(size, slowest) + latency - closed.ps) > closed.rounds:
        size = int((closed.ps - latency) * slowest // PS_PER_SECOND)
    return Ring(question.ranks, latency, size, (), tuple(sorted(closed.crossed)))
