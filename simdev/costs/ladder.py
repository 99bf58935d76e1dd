"""CostModel: where the time of an op comes from, rung by rung.

given         the graph says it (``Op.time``)
measured      a row of a profile, the first profile that has one
interpolated  nearest measured rows of the op class on this kind of device (``Surface``)
fitted        three scalars fitted to those rows (``Fit``)
scaled        what was measured in another dtype or on another kind of device, times the ratio of
              the two rooflines of the op class and dtype
roofline      the datasheet, with its efficiencies or the class default
memory pass   bytes of operands and outputs over the datasheet's bandwidth, for kinds of ops of
              which simdev has no description

``CostModel`` answers given and measured (a row's own source is its rung) and the memory pass,
``Estimates`` the others. A new rung needs its name in ``rows.RUNGS``, which says how rungs are
listed; the order in which they are asked is that of ``Estimates.cost`` and ``Estimates.estimates``.

Every answer carries its rung and its expected error, which for an estimate is what its rung does to
rows left out; what no rung knows is None, never a guess.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..ground.errors import InputError
from ..ground.registry import provided
from ..ground.units import MAX_PS, picoseconds
from ..nouns.graph import NO_KIND, Graph
from ..nouns.semantics import is_described, operand_shapes, traits_of, whole_bytes
from ..nouns.semantics.keys import load_of, op_key, work_problem
from .dispatch import Dispatches, HostCost
from .estimates import Estimates
from .roofline import DeviceSpec, is_covered, no_peak, pace_of
from .rows import KNOWN, RUNGS, OpCost, Profile

# What leaves and views take, unless the graph or a profile says otherwise: they compute nothing and
# move no byte.
FREE_OF_COST = OpCost(Fraction(0), "given")


_LEARNT: dict[Any, Estimates] = {}
"""Estimates fitted to the rows that ship, by the identities of their profiles."""
Source = Profile | str | os.PathLike[str] | Mapping[str, Any]
"""A profile, the path of its file, or what the file says: ``{"header": {}, "rows": []}``."""


@dataclass(frozen=True, init=False)
class CostModel:
    """The ladder over profiles and datasheets; ``strict`` refuses all that was not given or
    measured.

    ``profiles`` are one or several, each a Profile or the path of its file:
    ``CostModel("profiles/x.jsonl")``. With None a Scenario of a large model chooses: it takes the
    measured rows that ship for its devices, each kind of device its own. With () there are no rows,
    so datasheets alone. ``shipped`` are the datasheets of the devices that shipped rows were
    measured on (None: the caller named the profiles); other datasheets of these kinds, in
    ``specs``, are of machines that are faster or slower. ``specs`` are datasheets; a Scenario finds
    the shipped ones of the kinds of a cluster and of profiles. Raises InputError where two specs
    are of one kind, and for a file that is no profile.
    """

    profiles: tuple[Profile, ...]
    specs: tuple[DeviceSpec, ...]
    strict: bool
    shipped: tuple[DeviceSpec, ...] | None

    def __init__(
        self,
        profiles: Source | Iterable[Source] | None = None,
        specs: Iterable[DeviceSpec] = (),
        strict: bool = False,
        shipped: tuple[DeviceSpec, ...] | None = None,
    ) -> None:
        object.__setattr__(self, "shipped", () if profiles is None else shipped)
        profiles = () if profiles is None else profiles
        # A text and a mapping are iterable, too, but are one profile.
        if isinstance(profiles, (str, Mapping)) or not isinstance(profiles, Iterable):
            profiles = (profiles,)
        object.__setattr__(self, "profiles", tuple(map(_opened, profiles)))
        object.__setattr__(self, "specs", tuple(specs))
        object.__setattr__(self, "strict", strict)
        counts = Counter(spec.kind for spec in self.specs)
        twice = sorted(kind for kind, count in counts.items() if count > 1)
        if twice:
            raise InputError(f'specs: two of kind "{kind}"' for kind in twice)

    def completed(
        self,
        specs: tuple[DeviceSpec, ...],
        rows: tuple[Profile, ...] = (),
        shipped: tuple[DeviceSpec, ...] | None = (),
    ) -> CostModel:
        """The ladder with these datasheets, and where its profiles were left open with these rows,
        measured on devices of the datasheets ``shipped``; remembered with what it learns: scenarios
        are made by the hundred from one.
        """
        if self.shipped is None:
            rows, shipped = self.profiles, None
        before, after = (tuple(map(id, profiles)) for profiles in (self.profiles, rows))
        if len(specs) == len(self.specs) and before == after:
            return self
        kinds = tuple(spec.kind for spec in specs), after
        if kinds not in self._variants:
            self._variants[kinds] = replace(self, profiles=rows, specs=specs, shipped=shipped)
        return self._variants[kinds]

    @cached_property
    def _variants(self) -> dict[Any, CostModel]:
        return {}

    @cached_property
    def estimates(self) -> Estimates:
        """The rungs below the measured one."""
        if not self.shipped:
            return Estimates(self.profiles, {spec.kind: spec for spec in self.specs})
        # Fitting takes seconds, and the same rows teach the same whatever stands beside them.
        key = tuple(map(id, self.profiles))
        if key not in _LEARNT:
            known = {spec.kind: spec for spec in self.shipped}
            _LEARNT[key] = Estimates(self.profiles, known, carries=False)
        return _LEARNT[key]

    def cost(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """Cost of one op of the graph on a kind of device, or None where nothing is known."""
        op = graph.ops[position]
        seconds = op.seconds_on(device_kind)
        if seconds is not None:
            return OpCost(seconds, "given")
        if traits_of(op.kind).leaf and not self.profiles:
            return FREE_OF_COST
        key = op_key(graph, position, device_kind)
        known = self.cost_of_key(key, op.kind, device_kind)
        return known if known or self.strict else self.memory_pass(graph, position, device_kind)

    def memory_pass(self, graph: Graph, position: int, device_kind: str) -> OpCost | None:
        """The last rung: None for an op that simdev has a description of, and where no datasheet
        tells the bandwidth.
        """
        if not _is_undescribed(graph, position):
            return None
        cost = self.estimates.memory_pass(whole_bytes(graph, position), device_kind)
        return None if cost is None or picoseconds(cost.seconds) > MAX_PS else cost

    def cost_of_key(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        """Cost of an op that is in no graph, by its profile key; ``kind`` and ``device_kind`` are
        those of the key.
        """
        answers = self.estimates.answers
        if key not in answers:
            answers[key] = self._answer(key, kind, device_kind)
        return answers[key]

    def host_cost(self, graph: Graph, position: int, device_kind: str) -> HostCost | None:
        """The cost of dispatching one op of the graph to the host of a kind of device; None where
        nothing is known.
        """
        return self._dispatches.column(graph, device_kind)[position]

    @cached_property
    def _dispatches(self) -> Dispatches:
        return Dispatches(self.profiles, self.estimates.specs)

    def launches(self, graph: Graph, position: int, device_kind: str) -> int:
        """How many kernels one op of the graph launches on a kind of device."""
        return self._dispatches.launches(graph, device_kind)[position]

    def _answer(self, key: str, kind: str, device_kind: str) -> OpCost | None:
        row = next((profile.rows[key] for profile in self.profiles if key in profile.rows), None)
        if row is not None:
            # A row whose source is no rung (somebody's own model) is an estimate, which ``strict``
            # refuses; it is told as fitted.
            rung = row.source if row.source in RUNGS else "fitted"
            allowed = rung in KNOWN or not self.strict
            seconds = row.device_seconds(pace_of(self.estimates.specs.get(device_kind)))
            # The door bounds rows at the usual gap: a datasheet's may be a million times longer.
            allowed = allowed and picoseconds(seconds) <= MAX_PS
            return OpCost(seconds, rung, row.rel_err) if allowed else None
        load = load_of(key)
        if traits_of(kind).leaf or (load is not None and load.is_free):
            return FREE_OF_COST
        if load is None or self.strict or not self.estimates.knows(device_kind):
            return None
        cost = self.estimates.cost(key, load, device_kind)
        return None if cost is None or picoseconds(cost.seconds) > MAX_PS else cost

    def why_unknown(self, key: str, device_kind: str) -> str:
        """Why nothing is known of an op's cost, for people; "" where its row is all that is
        missing.
        """
        estimates = self.estimates
        answers = estimates.knows(device_kind) and not self.strict
        if estimates.kinds and device_kind not in estimates.kinds and not answers:
            return f"the profiles know {', '.join(estimates.kinds)}"
        if self.strict:
            return ""
        if not answers:
            return "no profile and no datasheet tells of this kind"
        load, spec = load_of(key), estimates.specs.get(device_kind)
        if load is None:
            return work_problem(key)
        if spec is not None and not is_covered(load, spec):
            return no_peak(spec, load.dtype)
        cost = estimates.cost(key, load, device_kind)
        if cost is None:
            return ""
        return f"it is estimated at {float(cost.seconds):.3g} s, more than 53 days"


def _is_undescribed(graph: Graph, position: int) -> bool:
    """Whether simdev knows of an op of a graph no more than the bytes of its tensors."""
    op = graph.ops[position]
    if not is_described(op.kind):
        return op.kind != NO_KIND
    # Of a kind that is described, but keys leave out tensors without elements.
    shapes = (*operand_shapes(graph, position), *(tensor.shape for tensor in op.made))
    return (
        any(0 in (shape or ()) for shape in shapes) and load_of(op_key(graph, position, "")) is None
    )


def _opened(source: Source) -> Profile:
    if isinstance(source, Profile):
        return source
    if not isinstance(source, (str, os.PathLike, Mapping)):
        raise InputError(f"profiles: must be profiles or paths of their files, got {source!r}")
    # By its name: files stand floors above, and only whoever gives a path needs their reader.
    profile: Profile = provided("read_profile")(source)
    return profile
