"""CostModel: where the time of an op comes from, rung by rung.

The graph is asked first (``Op.time``), then the profiles in order, then the estimates
(``estimates``). Every answer carries its rung and its expected error; what no rung knows is None,
never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ..errors import InputError
from ..frozen import freeze
from ..graph import Graph
from ..semantics import traits_of
from ..units import MAX_PS, picoseconds
from .estimates import Estimates
from .groups import Group
from .roofline import is_covered, load_of, no_peak, work_problem
from .rows import KNOWN, RUNGS, OpCost, Profile, op_key
from .spec import DeviceSpec

FREE_OF_COST = OpCost(Fraction(0), "given")
"""What leaves and views take, unless the graph or a profile says otherwise: they compute nothing
and move no byte.
"""


@dataclass(frozen=True)
class CostModel:
    """The ladder over profiles and datasheets; ``strict`` refuses all that was not given or
    measured.

    Raises InputError where two specs are of one kind.
    """

    profiles: tuple[Profile, ...] = ()
    specs: tuple[DeviceSpec, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        freeze(self, "profiles", "specs")
        twice = sorted(
            {
                spec.kind
                for spec in self.specs
                if sum(one.kind == spec.kind for one in self.specs) > 1
            }
        )
        if twice:
            raise InputError(f'specs: two of kind "{kind}"' for kind in twice)

    @cached_property
    def estimates(self) -> Estimates:
        """The rungs below the measured one."""
        return Estimates(self.profiles, {spec.kind: spec for spec in self.specs})

    @cached_property
    def _answers(self) -> dict[str, OpCost | None]:
        return {}

    def cost(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """Cost of one op of the graph on a kind of device, or None where nothing is known."""
        op = graph.ops[position]
        seconds = op.seconds_on(device_kind)
        if seconds is not None:
            return OpCost(seconds, "given")
        if traits_of(op.kind).leaf and not self.profiles:
            return FREE_OF_COST
        return self.cost_of_key(op_key(graph, position, device_kind), op.kind, device_kind)

    def cost_of_key(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        """Cost of an op that is in no graph, by its profile key; ``kind`` and ``device_kind`` are
        those of the key.
        """
        if key not in self._answers:
            self._answers[key] = self._answer(key, kind, device_kind)
        return self._answers[key]

    def _answer(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        for profile in self.profiles:
            row = profile.rows.get(key)
            if row is not None:
                rung = row.source if row.source in RUNGS else "fitted"
                return (
                    None
                    if self.strict and rung not in KNOWN
                    else OpCost(row.seconds, rung, row.rel_err)
                )
        load = load_of(key)
        if traits_of(kind).leaf or (load is not None and load.is_free):
            return FREE_OF_COST
        if load is None or self.strict or not self.estimates.knows(device_kind):
            return None
        found = self.estimates.cost(key, load, device_kind)
        return None if found is None or picoseconds(found.seconds) > MAX_PS else found

    def why_unknown(self, key: str, device_kind: str) -> str:
        """Why nothing is known of an op's cost, for people; "" where its row is all that is
        missing.
        """
        known, answers = self.estimates.kinds, self.estimates.knows(device_kind) and not self.strict
        if known and device_kind not in known and not answers:
            return f"the profiles know {', '.join(known)}"
        if self.strict:
            return ""
        if not answers:
            return "no profile and no datasheet tells of this kind"
        load = load_of(key)
        if load is None:
            return work_problem(key)
        spec = self.estimates.specs.get(device_kind)
        if spec is not None and not is_covered(load, spec):
            return no_peak(spec, load.dtype)
        found = self.estimates.cost(key, load, device_kind)
        return (
            ""
            if found is None
            else f"it is estimated at {float(found.seconds):.3g} s, more than 53 days"
        )

    def group(self, device_kind: str, op_class: str) -> Group:
        """The measured rows of an op class on a kind of device, with the three scalars fitted to
        them.
        """
        return self.estimates.group(device_kind, op_class)
