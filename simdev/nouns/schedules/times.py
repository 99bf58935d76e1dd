"""Times, latencies and bytes of the stages of a schedule, and the schedules that depend on them.
``simdev pipeline`` reads times by ``stage_times``, ``simdev/lowering/pipeline.py`` makes tasks of
them, and ``simdev/lowering/hybrid`` searches a schedule by the times of a large model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import ceil
from typing import NamedTuple, TypeVar

from ...ground.errors import InputError, refuse
from ...ground.units import Number, parse_bytes, parse_time, picoseconds
from .generate import SEARCHED, full_name
from .table import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule, check_sizes

T = TypeVar("T", bound=int | Fraction)
Given = Number | Sequence[Number]
_SINGLE = (int, float, str, Decimal, Fraction)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times by replica (by stage, where each has one replica): seconds of the ``forward``, of the
    gradient of its input (``backward``) and of the gradient of its weights (``weight``).

    A whole backward takes backward + weight, and ``overlapped[r]`` together with a forward that
    overlaps with it on rank r (None: one follows the other). ``comm[s]`` is the latency from stage
    s to stage s + 1 and back, ``sync[s]`` the time in which the replicas of stage s together update
    after a round (None: they do not wait for one another). ``activation`` are the bytes of a
    microbatch on a replica from its forward on. ``kept`` is the part of these that stays between
    the gradient of the input and the gradient of the weights. ``parameters`` are the bytes of one
    version of weights.
    """

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    weight: tuple[Fraction, ...]
    comm: tuple[Fraction, ...]
    activation: tuple[int, ...]
    kept: tuple[int, ...]
    parameters: tuple[int, ...]
    sync: tuple[Fraction, ...] | None = None
    overlapped: tuple[Fraction, ...] | None = None

    def ps(self) -> dict[str, list[int]]:
        """Picoseconds by kind of action and replica."""
        both = [b + w for b, w in zip(self.backward, self.weight, strict=True)]
        columns = {FORWARD: self.forward, BACKWARD: both, INPUT: self.backward, WEIGHT: self.weight}
        return {kind: list(map(picoseconds, column)) for kind, column in columns.items()}


def stage_times(
    schedule: Schedule,
    forward: Given,
    backward: Given,
    weight: Given = 0,
    comm: Given = 0,
    *,
    activation: Given = 0,
    kept: Given | None = None,
    parameters: Given = 0,
    sync: Given | None = 0,
    overlapped: Given | None = None,
) -> StageTimes:
    """Times (seconds, or text with a unit) and bytes for a schedule.

    A single value is for a microbatch on a whole *rank*, spread evenly over its stages (bytes
    rounded up); a sequence has one for each stage, or for each replica, stage by stage. ``comm`` is
    one latency for all neighbours, or one for each pair; stages of one rank need none. ``sync`` is
    one time for all stages, or one for each; None: replicas do not wait for one another. ``kept``
    is by default the whole activation. ``overlapped`` is the time of a forward and a whole backward
    that overlap, one for all ranks or for each; None: one follows the other. Raises InputError with
    every problem.
    """
    wrong: list[str] = []
    stages = schedule.stages
    owner = "stage" if stages == len(schedule.home) else "stage or replica"

    def seconds(
        name: str, value: Given, parse: Callable[[Number], int | Fraction] = parse_time
    ) -> tuple[Fraction, ...]:
        # A value for each stage holds for all of its replicas.
        if not isinstance(value, _SINGLE) and len(value) == stages:
            value = [v for v, n in zip(value, schedule.replicas, strict=True) for _ in range(n)]
        values = _values(name, value, len(schedule.home), owner, parse, wrong)
        return _shared_out(value, schedule, values, schedule.home)

    def size(name: str, value: Given) -> tuple[int, ...]:
        return tuple(map(ceil, seconds(name, value, parse_bytes)))

    def pairs(value: Given) -> tuple[Fraction, ...]:
        values = _values("overlapped", value, schedule.ranks, "rank", parse_time, wrong)
        return _shared_out(value, schedule, values, range(schedule.ranks))

    times = StageTimes(
        seconds("forward", forward),
        seconds("backward", backward),
        seconds("weight", weight),
        _values("comm", comm, stages - 1, "pair of neighbours", parse_time, wrong),
        size("activation", activation),
        size("kept", activation if kept is None else kept),
        size("parameters", parameters),
        None if sync is None else _values("sync", sync, stages, "stage", parse_time, wrong),
        None if overlapped is None else pairs(overlapped),
    )
    more = [r for r, kept in enumerate(times.kept) if kept > times.activation[r]]
    # Only where all sizes were parsed: the others are zeros here.
    if more and not wrong:
        first = times.kept[more[0]]
        owner = owner.removeprefix("stage or ")
        wrong = [f"kept: {first} bytes on {owner} {more[0]}, more than its whole activation"]
    refuse(wrong)
    return times


def _shared_out(
    value: Given, schedule: Schedule, values: Iterable[int | Fraction], ranks: Iterable[int]
) -> tuple[Fraction, ...]:
    """One value for each of the parts on these ranks; a single value is spread over the stages of a
    rank.
    """
    shares = schedule.chunks if isinstance(value, _SINGLE) else (1,) * schedule.ranks
    return tuple(Fraction(each) / shares[rank] for each, rank in zip(values, ranks, strict=True))


def _values(
    name: str, value: Given, count: int, owner: str, parse: Callable[[Number], T], wrong: list[str]
) -> tuple[T, ...]:
    """``count`` parsed values, zeros where there was a problem; a single value is repeated."""

    def parsed(field: str, number: Number) -> T:
        try:
            return parse(number)
        except ValueError as error:
            wrong.append(f"{field}: {error}")
            return parse(0)

    if isinstance(value, _SINGLE):
        return (parsed(name, value),) * count
    if len(value) != count:
        wrong.append(
            f"{name}: must hold 1 value or {count}, one for each {owner}, got {len(value)}"
        )
        return (parse(0),) * count
    return tuple(parsed(f"{name}[{i}]", number) for i, number in enumerate(value))


# ZB-1p and ZB-2p: the schedules that Zero Bubble's heuristic makes from the times of the stages
# under a limit of memory (Qi et al. 2024, section 3.1).

# Default bytes: s b (34 h + 5 a s) of a layer, of which 32 s b h stay for the gradient of the
# weights (Qi et al. 2024, table 1), with heads of 128 and s = 1024, as in the paper's models.
MADE, KEPT = 74, 32


class Choices(NamedTuple):
    """The choices that the heuristic leaves open, in one try.

    - ``extra``: a stage warms up with one more forward, though this delays the first backward.
    - ``skip``: a forward that would delay a backward is postponed while the next stage has a
      forward ready.
    - ``sparing``: a gap too short for a gradient of weights is filled only where this stage would
      otherwise have waited longest.

    The first two are parameters in the paper; the third is ours.
    """

    extra: bool
    skip: bool
    sparing: bool


def zero_bubble(
    times: StageTimes, microbatches: int, limit: Fraction | int, name: str = "custom"
) -> Schedule:
    """The schedule of least cost among the heuristic's, with one stage on each rank.

    No rank holds more activations than ``limit`` times 1F1B's peak, in bytes of ``times``. Raises
    InputError where the limit is below 1F1B's peak, or stages have replicas.
    """
    if limit < 1:
        raise InputError(f"limit: must be at least 1, the memory of 1F1B, got {limit}")
    check_sizes(len(times.forward), microbatches)
    if len(times.comm) != len(times.forward) - 1:
        raise InputError(f"times: {name} runs one replica of each stage")
    tries = (
        _Try(times, microbatches, limit, Choices(*c)) for c in product((False, True), repeat=3)
    )
    rows = min((attempt.made() for attempt in tries), key=lambda made: made[0])[1]
    return Schedule(tuple(map(tuple, rows)), name)


def searched_schedule(name: str, times: StageTimes, microbatches: int) -> Schedule:
    """One of SEARCHED, in letters of any case. Raises InputError."""
    full = full_name(name)
    return zero_bubble(times, microbatches, SEARCHED[full], full)


class _Try:
    """A table under construction: each action is appended to its stage and timed at once.

    By stage, ``free`` is the end of its last action, ``held`` its bytes, ``waited`` its idle time
    since its first forward. ``ends`` are by kind, stage and microbatch; all times in ps.
    """

    def __init__(
        self, times: StageTimes, microbatches: int, limit: Fraction | int, choices: Choices
    ) -> None:
        self.stages, self.microbatches, self.choices = len(times.forward), microbatches, choices
        self.cost = times.ps()
        self.comm = list(map(picoseconds, times.comm))
        made = times.activation if any(times.activation) else (MADE,) * self.stages
        kept = times.kept if any(times.activation) else (KEPT,) * self.stages
        self.change = {
            FORWARD: list(made),
            INPUT: [part - whole for whole, part in zip(made, kept, strict=True)],
            WEIGHT: [-part for part in kept],
        }
        # 1F1B holds p - s microbatches on stage s.
        self.limit = limit * max((self.stages - s) * size for s, size in enumerate(made))
        self.free, self.held = [0] * self.stages, [0] * self.stages
        self.waited, self.longest_wait = [0] * self.stages, 0
        self.ends: dict[str, list[list[int]]] = {
            kind: [[] for _ in range(self.stages)] for kind in self.change
        }
        self.rows: list[list[Action]] = [[] for _ in range(self.stages)]

    def made(self) -> tuple[int, list[list[Action]]]:
        """The longest span of a stage, and the table."""
        self._warm_up()
        for _ in range(self.microbatches - 1):
            self._one_forward_one_backward()
        for stage in range(self.stages):
            while self._count(WEIGHT, stage) < self.microbatches:
                self._put(stage, WEIGHT)
        firsts = zip(self.ends[FORWARD], self.cost[FORWARD], strict=True)
        starts = [ends[0] - cost for ends, cost in firsts]
        return max(end - start for end, start in zip(self.free, starts, strict=True)), self.rows

    def _count(self, kind: str, stage: int) -> int:
        return len(self.ends[kind][stage])

    def _arrival(self, stage: int, kind: str) -> int:
        """The time when the input of a stage's next action of a kind arrives from a neighbour."""
        before = {FORWARD: stage - 1, INPUT: stage + 1}.get(kind, -1)
        if not 0 <= before < self.stages:
            return 0
        return self.ends[kind][before][self._count(kind, stage)] + self.comm[min(before, stage)]

    def _put(self, stage: int, kind: str) -> None:
        start = max(self.free[stage], self._arrival(stage, kind))
        if self.rows[stage]:
            self.waited[stage] += start - self.free[stage]
            self.longest_wait = max(self.longest_wait, self.waited[stage])
        self.rows[stage].append(Action(stage, kind, self._count(kind, stage)))
        self.held[stage] += self.change[kind][stage]
        self.free[stage] = start + self.cost[kind][stage]
        self.ends[kind][stage].append(self.free[stage])

    def _warm_up(self) -> None:
        """Schedule as many forwards before each stage's first backward as memory and time allow."""
        for stage in range(self.stages):
            self._put(stage, FORWARD)
        more = self._more_forwards()
        for stage in range(self.stages):
            # A stage reads the output of the stage before.
            if stage:
                behind = more[stage] + 1 < self.microbatches
                more[stage] = max(0, min(more[stage], more[stage - 1] - behind))
            for _ in range(more[stage]):
                self._put(stage, FORWARD)
        for stage in reversed(range(self.stages)):
            self._put(stage, INPUT)

    def _more_forwards(self) -> list[int]:
        """For each stage, the number of further forwards that fit in before its first backward."""
        more, backward = [0] * self.stages, 0
        for stage in reversed(range(self.stages)):
            cost, end, held = self.cost[FORWARD][stage], self.free[stage], self.held[stage]
            arrival = backward + self.comm[stage] if stage + 1 < self.stages else end
            # With ``extra``, the last forward may end after the arrival.
            latest = arrival - 1 if self.choices.extra else arrival - cost
            while end <= latest and more[stage] + 1 < self.microbatches:
                held += self.change[FORWARD][stage]
                if held > self.limit:
                    break
                end, more[stage] = end + cost, more[stage] + 1
            backward = max(arrival, end) + self.cost[INPUT][stage]
        return more

    def _one_forward_one_backward(self) -> None:
        """Schedule one forward for every stage that has some left, and then one backward."""
        # All are decided before any is scheduled.
        going = [stage for stage in range(self.stages) if self._goes_forward(stage)]
        for stage in going:
            self._put_filled(stage, FORWARD)
        for stage in reversed(range(self.stages)):
            self._put_filled(stage, INPUT)

    def _goes_forward(self, stage: int) -> bool:
        done, after = self._count(FORWARD, stage), stage + 1
        if done == self.microbatches:
            return False
        ahead = done - (self._count(FORWARD, after) if after < self.stages else done)
        if not self.choices.skip or ahead < 2:
            return True
        arrival = self.free[after] + self.cost[FORWARD][after] + self.cost[INPUT][after]
        return self._end_of_forward(stage) <= arrival + self.comm[stage]

    def _end_of_forward(self, stage: int) -> int:
        """The end of a forward, if it comes after the actions that make room for it."""
        room = self.limit - self.held[stage] - self.change[FORWARD][stage]
        freed = -self.change[WEIGHT][stage]
        weights = 0 if room >= 0 or not freed else -(room // freed)
        cost = self.cost[FORWARD][stage] + int(weights) * self.cost[WEIGHT][stage]
        return self.free[stage] + cost

    def _pending(self, stage: int) -> int:
        return self._count(INPUT, stage) - self._count(WEIGHT, stage)

    def _put_filled(self, stage: int, kind: str) -> None:
        """Schedule an action after gradients of weights that make room for it and fill its gap."""
        change, cost = self.change[kind][stage], self.cost[WEIGHT][stage]
        while change > 0 and self.held[stage] + change > self.limit and self._pending(stage):
            self._put(stage, WEIGHT)
        arrival = self._arrival(stage, kind)
        while self._pending(stage) and self.free[stage] + cost <= arrival:
            self._put(stage, WEIGHT)
        gap = arrival - self.free[stage]
        most = self.longest_wait if self.choices.sparing else 0
        if self._pending(stage) and gap > 0 and self.waited[stage] + gap > most:
            self._put(stage, WEIGHT)
        self._put(stage, kind)
