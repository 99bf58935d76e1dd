"""What the stages of a schedule cost: times, latencies between neighbours, and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import TypeVar

from ...ground.errors import refuse
from ...ground.units import Number, parse_bytes, parse_time
from .table import Schedule

T = TypeVar("T", int, Fraction)
Given = Number | Sequence[Number]
_SINGLE = (int, float, str, Decimal, Fraction)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """By replica (one a stage, where stages have no more): seconds of the ``forward``, of the
    gradient of its input (``backward``) and of its ``weight``.

    A whole backward takes backward + weight, and ``overlapped[r]`` together with a forward that
    overlaps with it on rank r (None: one follows the other). ``comm[s]`` is the latency from stage
    s to stage s + 1 and back, ``sync[s]`` what the replicas of stage s take together for the update
    of a round (None: they do not wait for one another). ``activation`` are the bytes that a
    microbatch leaves on a replica from its forward on, ``kept`` those of them that stay after the
    gradient of the input until that of the weights, ``parameters`` the bytes of one version of
    weights.
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

    One value is what a *rank* does for a microbatch, spread evenly over its stages (bytes rounded
    up); a sequence has one for each stage, or for each replica, stage by stage. ``comm`` is one
    latency for all neighbours, or one for each pair; stages of one rank need none. ``sync`` is one
    time for all stages, or one for each; None for replicas that do not wait for one another.
    ``kept`` is all of the activation where it is not given. ``overlapped`` is what a forward and a
    whole backward take together that overlap, one for all ranks or for each; None runs them one
    after the other. Raises InputError with every problem.
    """
    wrong: list[str] = []
    stages = schedule.stages
    owner = "stage" if stages == len(schedule.home) else "stage or replica"

    def seconds(name: str, value: Given) -> tuple[Fraction, ...]:
        return _shared_out(value, schedule, read(name, value, parse_time))

    def size(name: str, value: Given) -> tuple[int, ...]:
        return tuple(map(ceil, _shared_out(value, schedule, read(name, value, parse_bytes))))

    def read(name: str, value: Given, parse: Callable[[Number], T]) -> tuple[T, ...]:
        # One for each stage stands for all of its replicas.
        if not isinstance(value, _SINGLE) and len(value) == stages:
            value = [v for v, n in zip(value, schedule.replicas, strict=True) for _ in range(n)]
        return _values(name, value, len(schedule.home), owner, parse, wrong)

    times = StageTimes(
        seconds("forward", forward),
        seconds("backward", backward),
        seconds("weight", weight),
        _values("comm", comm, stages - 1, "pair of neighbours", parse_time, wrong),
        size("activation", activation),
        size("kept", activation if kept is None else kept),
        size("parameters", parameters),
        None if sync is None else _values("sync", sync, stages, "stage", parse_time, wrong),
        None if overlapped is None else _pairs(overlapped, schedule, wrong),
    )
    more = [r for r, kept in enumerate(times.kept) if kept > times.activation[r]]
    # Only where all sizes were read: zeros stand in for those that were not.
    if more and not wrong:
        first = times.kept[more[0]]
        owner = owner.removeprefix("stage or ")
        wrong = [f"kept: {first} bytes on {owner} {more[0]}, more than its whole activation"]
    refuse(wrong)
    return times


def _pairs(value: Given, schedule: Schedule, wrong: list[str]) -> tuple[Fraction, ...]:
    """What two stages that overlap take, by rank; a single value is that of all of a rank's."""
    values = _values("overlapped", value, schedule.ranks, "rank", parse_time, wrong)
    shares = schedule.chunks if isinstance(value, _SINGLE) else (1,) * schedule.ranks
    return tuple(time / share for time, share in zip(values, shares, strict=True))


def _shared_out(value: Given, schedule: Schedule, values: Sequence[T]) -> tuple[Fraction, ...]:
    """One value for each replica; a single one is shared out over the stages of a rank."""
    shares = schedule.chunks if isinstance(value, _SINGLE) else (1,) * schedule.ranks
    return tuple(
        Fraction(each) / shares[rank] for each, rank in zip(values, schedule.home, strict=True)
    )


def _values(
    name: str, value: Given, count: int, owner: str, parse: Callable[[Number], T], wrong: list[str]
) -> tuple[T, ...]:
    """``count`` parsed values, zeros where a problem was met; a single one is repeated."""

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
