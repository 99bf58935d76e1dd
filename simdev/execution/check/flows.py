"""Whether flows on fair links got their max-min shares (execution contract, rule 5).

The trace gives the instants at which the flows of a half-link change. Between two of them rates
are constant, and max-min rates are unique: no half-link is over its capacity, and each flow has a
bottleneck, a saturated half-link on which no flow is faster (Bertsekas and Gallager, Data Networks,
section 6.5.2). So rates are computed here, proved by this condition, and integrated: a flow
finishes in the picosecond in which its last byte is sent. Only flows joined to a change by shared
half-links are visited. ``engine/fair.py`` computes the rates of both engines in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...ground.units import PS_PER_SECOND
from ...nouns.taskgraph import Ints, TaskGraph
from .violation import Faults, Violation

TOLERANCE = 1e-9
Links = Sequence[int]


def flow_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Rule ``flow``: rates are max-min, and each flow finishes just when all its bytes are sent."""
    tasks = task_graph.tasks
    rows = [task for task in tasks.flow.nonzero()[0].tolist() if tasks.carried[task]]
    links = tasks.links.lists()
    enter = (start + tasks.duration).tolist()
    # By time: flows that leave, flows that enter.
    changes: dict[int, tuple[list[int], list[int]]] = {}
    for task in rows:
        changes.setdefault(int(finish[task]), ([], []))[0].append(task)
        changes.setdefault(enter[task], ([], []))[1].append(task)
    sending = _Sending(links, (task_graph.bandwidth / PS_PER_SECOND).tolist())
    for time in sorted(changes):
        leaving, entering = changes[time]
        for text in sending.change(time, leaving, entering):
            yield Violation("flow", (), f"at {time}: {text}")
        for task in leaving:
            sent, rate = sending.sent.pop(task), sending.rate.pop(task)
            yield from _sent_fault(task_graph, task, time, sent, rate)


def _sent_fault(task_graph: TaskGraph, task: int, time: int, sent: float, rate: float) -> Faults:
    """A fault unless all bytes are sent at the finish, and not yet one picosecond before."""
    name, size = task_graph.tasks.name[task], int(task_graph.tasks.carried[task])
    slack = TOLERANCE * max(size, rate)
    if sent < size - slack:
        text = f'"{name}" finishes at {time}, when its share has sent {sent:.9g} of {size} bytes'
        yield Violation("flow", (name,), text)
    elif sent - rate > size + slack:
        text = f'"{name}" finishes at {time}, but its share has sent all {size} bytes before'
        yield Violation("flow", (name,), text)


class _Sending:
    """The flows that are in their links: rates in bytes per ps, and the bytes that each has
    sent.
    """

    def __init__(self, links: Sequence[Links], capacity: Sequence[float]) -> None:
        self.links, self.capacity = links, capacity
        self.members: dict[int, set[int]] = {}  # by half-link
        self.rate: dict[int, float] = {}
        self.sent: dict[int, float] = {}
        self.since: dict[int, int] = {}

    def change(self, time: int, leaving: list[int], entering: list[int]) -> list[str]:
        """Let flows leave and enter, set the rates of all flows that this touches, and return the
        faults of these rates.
        """
        touched = self._joined([*leaving, *entering])
        for task in touched:
            self.sent[task] += self.rate[task] * (time - self.since[task])
        for task in leaving:
            for link in self.links[task]:
                self.members[link].discard(task)
        for task in entering:
            self.sent[task], self.rate[task] = 0.0, 0.0
            for link in self.links[task]:
                self.members.setdefault(link, set()).add(task)
        staying = sorted({*touched, *entering}.difference(leaving))
        flows = {task: self.links[task] for task in staying}
        rates = fair_rates(flows, self.capacity)
        self.rate.update(rates)
        self.since.update(dict.fromkeys(staying, time))
        return list(unfair(flows, rates, self.capacity))

    def _joined(self, changing: list[int]) -> set[int]:
        """The flows connected to one that enters or leaves: by a shared half-link, directly or
        through other flows.
        """
        seen: set[int] = set()
        ahead = [link for task in changing for link in self.links[task]]
        visited = set(ahead)
        while ahead:
            for task in self.members.get(ahead.pop(), ()):
                if task not in seen:
                    seen.add(task)
                    fresh = [link for link in self.links[task] if link not in visited]
                    visited.update(fresh)
                    ahead += fresh
        return seen


def fair_rates(flows: Mapping[int, Links], capacity: Sequence[float]) -> dict[int, float]:
    """Max-min rates: raise all rates together, and stop the flows of a half-link when it is full.

    Engines do it in another way: they fix one bottleneck after the other.
    """
    rates = dict.fromkeys(flows, 0.0)
    open_flows = {task for task, links in flows.items() if links}
    level = 0.0
    while open_flows:
        used: dict[int, float] = {}
        rising: dict[int, int] = {}
        for task, links in flows.items():
            for link in links:
                used[link] = used.get(link, 0.0) + (0.0 if task in open_flows else rates[task])
                rising[link] = rising.get(link, 0) + (task in open_flows)
        full_at = {
            link: (capacity[link] - used[link]) / count for link, count in rising.items() if count
        }
        level = max(level, min(full_at.values()))
        full = {link for link, at in full_at.items() if at <= level * (1 + 1e-14)}
        stopped = {task for task in open_flows if not full.isdisjoint(flows[task])}
        rates.update(dict.fromkeys(stopped, level))
        open_flows -= stopped
    return rates


def unfair(
    flows: Mapping[int, Links], rates: Mapping[int, float], capacity: Sequence[float]
) -> Iterator[str]:
    """Breaches of the max-min condition, to 1e-9 relative: half-links over capacity, and flows
    without a bottleneck.
    """
    load: dict[int, float] = {}
    fastest: dict[int, float] = {}
    for task, links in flows.items():
        for link in links:
            load[link] = load.get(link, 0.0) + rates[task]
            fastest[link] = max(fastest.get(link, 0.0), rates[task])
    for link, total in load.items():
        if total > capacity[link] * (1 + TOLERANCE):
            yield (
                f"half-link {link} carries {total:.12g} bytes/ps, more than its "
                f"{capacity[link]:.12g}"
            )
    for task, links in flows.items():
        full = [link for link in links if load[link] >= capacity[link] * (1 - TOLERANCE)]
        if links and not any(rates[task] >= fastest[link] * (1 - TOLERANCE) for link in full):
            yield (
                f"flow {task} has no bottleneck: on each of its full half-links another "
                "flow is faster"
            )
