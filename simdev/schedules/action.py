"""One cell of a schedule: which stage does what for which microbatch."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"


class Action(NamedTuple):
    """``kind`` is F (forward), B (whole backward), I (gradient of the input) or W (gradient of the
    weights).

    The notation is that of torch.distributed.pipelining: stage, kind, microbatch, ``2F0``. A tuple,
    for actions are the keys of large tables, and a dataclass takes several times as long to look
    up.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def needs(action: Action, known: Container[Action]) -> tuple[Action, ...]:
    """The actions that must end before this one, of those that are ``known``.

    A forward needs the forward of the stage before it; a backward, whole or of the input, its own
    forward and the backward of the stage after it; the gradient of the weights needs that of the
    input.
    """
    stage, kind, microbatch = action
    if kind == WEIGHT:
        wanted = [Action(stage, INPUT, microbatch)]
    elif kind == FORWARD:
        wanted = [Action(stage - 1, FORWARD, microbatch)]
    else:
        wanted = [Action(stage, FORWARD, microbatch), Action(stage + 1, kind, microbatch)]
        if wanted[1] not in known:  # the stage after it may do its backward the other way
            wanted[1] = Action(stage + 1, INPUT if kind == BACKWARD else BACKWARD, microbatch)
    return tuple([one for one in wanted if one in known])
