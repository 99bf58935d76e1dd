"""Parts of a scenario that disturb a step (noise, pauses) or a long run (failures). Their keys are
the fields of the nouns.

``files/scenario.py`` reads them as it reads its options. Another such part needs a reader in
BESIDE, a key of the scenario's shape, and a field of Scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import TypedDict

from ..ground.errors import collecting, refuse
from ..nouns.disturbances import Disturbances, Pauses
from ..nouns.failures import Failures
from .shape import keys_of


@keys_of(Failures)
class FailuresShape(TypedDict, total=False):
    """Failures of a long run, and its checkpoints."""


@keys_of(Pauses)
class PausesShape(TypedDict, total=False):
    """Stretches in which devices stand still."""


@keys_of(Disturbances)
class DisturbancesShape(TypedDict, total=False):
    """Noise and pauses of a step."""

    compute: Any
    communication: Any
    hosts: Any
    devices: Any
    pauses: PausesShape


def _disturbances(given: Mapping[str, Any]) -> Disturbances:
    problems, whole = list[str](), dict(given)
    if "pauses" in given:
        with collecting(problems, "pauses."):
            whole["pauses"] = Pauses(**given["pauses"])
    refuse(problems)
    return Disturbances(**whole)


BESIDE: Mapping[str, Callable[[Any], Any]] = {
    "disturbances": _disturbances,
    "failures": lambda given: Failures(**given),
}
"""The readers of parts that are never files of their own, by key."""
