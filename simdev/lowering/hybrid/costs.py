"""What tasks of a training step cost: layers by the roofline of their device, collectives by their
group's model.

Groups that look alike (the same places in like nodes, with the same neighbours at work) cost the
same, and are asked for once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...collectives import CollectiveModel, flows_wire
from ...costs import DeviceSpec
from ...costs.roofline import Load, Scalars, datasheet_scalars, ideal_seconds, rounded
from ...errors import InputError
from ...models.large import Block
from ...taskgraph import Ints
from ...units import MAX_PS, picoseconds
from .alike import Alike, Flow
from .layout import OWN, Layout


class Costs:
    """Durations (ps) by number: each an array with one for each group of its class."""

    def __init__(
        self, layout: Layout, model: CollectiveModel, specs: Mapping[str, DeviceSpec]
    ) -> None:
        self.layout, self.model, self.cluster, self.specs = layout, model, model.cluster, specs
        self.columns: list[Ints] = []
        self.lags: list[Ints] = []
        self._known: dict[Hashable, int] = {}
        self._scalars: dict[tuple[str, str], Scalars] = {}
        self._loads: dict[tuple[str, tuple[Load, ...]], int] = {}
        self._wires: dict[Hashable, list[tuple[int, int]]] = {}
        kinds = {self.cluster.devices[d].kind for ranks in layout.devices for d in ranks}
        unknown = sorted(kinds - specs.keys())
        if unknown:
            raise InputError(f'no datasheet tells of devices of kind "{kind}"' for kind in unknown)

    @property
    def alike(self) -> bool:
        """Whether all groups of every class cost the same."""
        return all(bool((column == column[0]).all()) for column in (*self.columns, *self.lags))

    def compute(self, rank: int, loads: Sequence[Load]) -> int:
        """The number of what a device of a rank takes for these loads."""
        key = (rank, tuple(loads))
        if key not in self._known:
            kinds = [self.cluster.devices[d].kind for d in self.layout.devices[rank]]
            each = {kind: self._seconds_ps(kind, tuple(loads)) for kind in dict.fromkeys(kinds)}
            self._known[key] = self._add([each[kind] for kind in kinds])
        return self._known[key]

    def _seconds_ps(self, kind: str, loads: tuple[Load, ...]) -> int:
        if (kind, loads) not in self._loads:
            spec, total = self.specs[kind], 0.0
            for load in loads:
                if (kind, load.op_class) not in self._scalars:
                    self._scalars[kind, load.op_class] = datasheet_scalars(spec, load.op_class)
                total += self._scalars[kind, load.op_class].seconds(ideal_seconds(load, spec))
            self._loads[kind, loads] = self._checked(picoseconds(rounded(total)) if loads else 0)
        return self._loads[kind, loads]

    def host(self, rank: int, size: int, rate: Fraction) -> int:
        """The number of a copy to or from host memory."""
        key = ("host", rank, size)
        if key not in self._known:
            ps = self._checked(picoseconds(Fraction(size) / rate), "host_bandwidth")
            self._known[key] = self._add([ps] * self.layout.copies)
        return self._known[key]

    def collective(self, kind: int, rank: int, name: str, size: int) -> int:
        """The number of a collective of a class of groups; ``size`` in bytes as nccl-tests count
        them.
        """
        key = (kind, rank, name, size)
        if key not in self._known:
            found = []
            for place, others in self._places(kind, rank):
                alike = (name, size, place)
                if alike not in self._known:
                    self._known[alike] = self._checked(
                        self.model.cost(name, others[0], size, others[1:]).ps
                    )
                found.append(self._known[alike])
            self._known[key] = self._add(found)
        return self._known[key]

    def _crossed(self, flows: Sequence[Flow]) -> set[int]:
        """The half-links of flows."""
        routes = (self.model.fabric.routes.pieces(*flow) or () for flow in flows)
        return {
            half_link for pieces in routes for piece in pieces for half_link in piece.half_links
        }

    def transfer(self, source: int, destination: int, size: int) -> int:
        """The number of a transfer between ranks of the pipeline: all parts of all replicas send at
        once.
        """
        key = ("transfer", source, destination, size)
        if key not in self._known:
            tp = self.layout.tp
            pairs = list(
                zip(self.layout.devices[source], self.layout.devices[destination], strict=True)
            )
            replicas = [pairs[d * tp : (d + 1) * tp] for d in range(self.layout.dp)]
            found: dict[int, tuple[int, int]] = {}
            for numbers in self._neighbours(replicas):
                near = [replicas[d] for d in numbers]
                alike = (size, self._alike.pattern(near))
                if alike not in self._wires:
                    self._wires[alike] = self._sent(near, size)
                found |= zip(numbers, self._wires[alike], strict=True)
            each = [found[d] for d in range(self.layout.dp) for _ in range(tp)]
            self._known[key] = self._add([one for one, _ in each], [lag for _, lag in each])
        return self._known[key]

    def _neighbours(self, groups: Sequence[Sequence[Flow]]) -> list[list[int]]:
        """The numbers of groups of flows that share nodes, and of those that share nodes with
        these.
        """
        found: list[tuple[set[int], list[int]]] = []
        for number, flows in enumerate(groups):
            nodes, numbers = (
                {self._alike.neighbourhood(device) for flow in flows for device in flow},
                [number],
            )
            for other in [one for one in found if one[0] & nodes]:
                nodes, numbers = nodes | other[0], other[1] + numbers
                found.remove(other)
            found.append((nodes, numbers))
        return [sorted(numbers) for _, numbers in found]

    def _sent(self, groups: Sequence[Sequence[Flow]], size: int) -> list[tuple[int, int]]:
        """How long (ps) the flows of each group take beside those that cross the same links, and
        their latency.
        """
        crossed = [(flows, self._crossed(flows)) for flows in groups]
        found = []
        for _, own in crossed:
            wire = flows_wire(
                self.model.fabric,
                [flow for flows, links in crossed if own & links for flow in flows],
            )
            length = self._checked(picoseconds(Fraction(size) / wire.bandwidth))
            found.append((length, self._checked(picoseconds(wire.latency))))
        return found

    def _add(self, durations: Sequence[int], lags: Sequence[int] | None = None) -> int:
        self.columns.append(np.array(durations, np.int64))
        self.lags.append(np.zeros(1, np.int64) if lags is None else np.array(lags, np.int64))
        return len(self.columns) - 1

    def _checked(self, ps: int, field: str = "microbatch") -> int:
        if ps > MAX_PS:
            raise InputError(f"{field}: a task of the step takes more than 53 days")
        return ps

    def _places(self, kind: int, rank: int) -> list[tuple[Hashable, list[tuple[int, ...]]]]:
        """For each group what tells it from others, and it with the groups of its class that may
        share its links.
        """
        key = ("places", kind, rank)
        if key not in self._kept:
            members = self.layout.members(kind, rank)
            by_node: dict[int, dict[int, None]] = {}
            for group, devices in enumerate(members):
                for device in devices:
                    by_node.setdefault(self._alike.neighbourhood(device), {})[group] = None
            found: list[tuple[Hashable, list[tuple[int, ...]]]] = []
            for group, devices in enumerate(members):
                near = {group: None}
                for device in devices:
                    near |= by_node[self._alike.neighbourhood(device)]
                others = [members[other] for other in near]
                where = self._alike.pattern([[(d, d) for d in one] for one in others])
                found.append((where, others))
            self._kept[key] = found
        return self._kept[key]

    @cached_property
    def _alike(self) -> Alike:
        return Alike(self.cluster)

    @cached_property
    def _kept(self) -> dict[Hashable, list[tuple[Hashable, list[tuple[int, ...]]]]]:
        return {}


def block_loads(block: Block, kind: str) -> tuple[Load, ...]:
    """The loads of an action on a layer: F, B (with what selective recomputation repeats), I or
    W.
    """
    match kind:
        case "F":
            return block.forward
        case "B":
            return block.again + block.backward + block.weight
        case "I":
            return block.again + block.backward
        case _:
            return block.weight


__all__ = ["OWN", "Costs", "block_loads"]
