"""Random chains for PipeDream's planner, and machines to partition them over."""

from __future__ import annotations

from simdev.search.pipedream.plan import Level, Profile
from worlds.tape import Tape


def layered(tape: Tape, groups: int, machines: int, levels: int = 2) -> tuple[Profile, list[Level]]:
    """A random chain of up to ``groups`` groups (seconds, activations and parameters in bytes), and
    levels of machines.
    """
    count = 1 + tape.number(groups)
    columns = [
        tuple(tape.pick(*choice) for _ in range(count))
        for choice in ((1.0, 2.0, 5.0), (0, 3, 8), (0, 1, 9))
    ]
    profile = Profile(*columns, tuple((i, i + 1) for i in range(count - 1)))
    return profile, [
        Level(1 + tape.number(machines), float(tape.pick(1, 4, 100))) for _ in range(levels)
    ]
