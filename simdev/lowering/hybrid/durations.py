"""The times of the tasks of a large model's step: layers by the cost ladder, collectives by the
model of collectives.

Groups of equal patterns (corresponding places in equal nodes, with the same neighbours at work)
take equally long, so only one of them is computed. Templates get the number of a duration from
``Durations``, and ``expand`` reads the columns; plans use it for lower bounds
(``search.plan.pieces``). ``nouns.models.large.work`` has the loads of kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

import numpy as np

from ...costs import ROOFLINE, CostModel, DeviceSpec
from ...costs.collectives import CollectiveCost, CollectiveModel, flows_wire
from ...costs.groups import device_prefix
from ...costs.roofline import clock_share, datasheet_scalars, ideal_seconds, rounded
from ...ground.errors import InputError
from ...ground.units import MAX_PS, picoseconds
from ...nouns.cluster import Cluster, Host
from ...nouns.models.large.kernels import DTYPE, Kernel, Loads
from ...nouns.models.large.roles import Share
from ...nouns.models.large.software import Dispatcher
from ...nouns.strategy.parallelism import Parallelism
from ...nouns.structure import Groups
from ...nouns.taskgraph import Ints
from ..sharing import refuse_slowing
from ..symmetry import Alike, Flow

# The devices of each rank, and the groups in which ranks communicate. The devices of one rank of
# the pipeline are numbered g = d tp + t by replica d and part t. A *class* of tasks says how the g
# are grouped: each alone, or together where they share a task, as the members of a collective do.

(
    SINGLE, TENSOR, DATA, EXPERT, EXPERT_DATA, CONTEXT, EXPERT_TENSOR, REPLICA, EXPERT_REPLICA,
) = range(9)  # fmt: skip
CLASSES = 9


@dataclass(frozen=True)
class RankGrid:
    """The devices of each rank of the pipeline: ``devices[rank][g]`` are indices into the cluster.

    ``dp`` is the number of replicas of the parameters, which include the ``cp`` parts of a sample.
    Experts are cut into ``ep`` x ``expert_tp`` parts. ZeRO divides states within each of
    ``dp_replicate`` groups of consecutive replicas.
    """

    devices: tuple[tuple[int, ...], ...]
    dp: int
    tp: int
    ep: int
    expert_tp: int
    cp: int = 1
    dp_replicate: int = 1

    @property
    def copies(self) -> int:
        """The number of devices of each rank of the pipeline."""
        return self.dp * self.tp

    @cached_property
    def groups(self) -> tuple[Ints, ...]:
        """The number of the group of each g, by class."""
        g = np.arange(self.copies, dtype=np.int64)
        d, t = np.divmod(g, self.tp)
        # In the grid of experts a device has place e and part u; equal (e, u) have equal experts.
        place, u = np.divmod(g, self.expert_tp)
        parts = self.ep * self.expert_tp
        experts, part = place // self.ep * self.expert_tp + u, g % parts
        within, across = self._shared(d, self.dp, self.tp, t)
        of_experts = self._shared(g // parts, self.copies // parts, parts, part)
        # The parts of a sample are consecutive replicas, too.
        sample = d // self.cp * self.tp + t
        return g, d, within, experts, of_experts[0], sample, place, across, of_experts[1]

    def _shared(self, replica: Ints, count: int, parts: int, part: Ints) -> tuple[Ints, Ints]:
        """The groups that divide the states of a part, and the groups with the same share."""
        group, place = np.divmod(replica, count // self.dp_replicate)
        return group * parts + part, place * parts + part

    def count(self, kind: int) -> int:
        """The number of groups of a class."""
        return int(self.groups[kind][-1]) + 1

    def members(self, kind: int, rank: int) -> list[tuple[int, ...]]:
        """The devices of each group of a class, by group."""
        groups = self.groups[kind]
        devices = np.array(self.devices[rank])[np.argsort(groups, kind="stable")]
        ends = np.cumsum(np.bincount(groups))[:-1]
        return [tuple(group.tolist()) for group in np.split(devices, ends)]

    def degrees(self, kind: int) -> tuple[int, ...]:
        """The degrees that determine the groups of a class, beside the devices of a rank."""
        groups = self.dp_replicate if kind in (DATA, EXPERT_DATA, REPLICA, EXPERT_REPLICA) else 1
        if kind in (EXPERT, EXPERT_DATA, EXPERT_TENSOR, EXPERT_REPLICA):
            return self.expert_tp, self.ep, groups
        return self.tp, self.cp if kind == CONTEXT else 1, groups

    @cached_property
    def collapsed(self) -> RankGrid:
        """The grid with one device for each rank of the pipeline, alone in its groups."""
        return RankGrid(tuple(devices[:1] for devices in self.devices), 1, 1, 1, 1)


def rank_grid(cluster: Cluster, p: Parallelism) -> RankGrid:
    """The grid of the cluster's workers, in their order. Raises InputError where counts differ."""
    usable = cluster.workers
    if len(usable) != p.devices:
        names = [name for name in ("dp", "cp", "tp", "pp") if name != "cp" or p.cp > 1]
        counts = " x ".join(str(getattr(p, name)) for name in names)
        degrees = f"{' x '.join(names)}: {counts} = {p.devices} devices"
        reason = f'{degrees}, but the cluster "{cluster.name}" has {len(usable)}'
        raise InputError(f"{reason}; `simdev plan` tries all degrees that fit it")
    parts = p.replicas, p.tp, p.ep, p.expert_tp, p.cp, p.dp_replicate
    return RankGrid(dealt(cluster, p.pp), *parts)


def dealt(cluster: Cluster, pp: int) -> tuple[tuple[int, ...], ...]:
    """The workers of each rank of a pipeline."""
    # Ranks of the pipeline are outermost, for pp needs links inside a node least, and tp most.
    workers, each = tuple(cluster.workers), len(cluster.workers) // pp
    return tuple(workers[rank * each : (rank + 1) * each] for rank in range(pp))


Crossing = tuple[list[int], int]
"""Replicas that may share links, and the number of the pattern of all that they send."""


# The seconds of a dispatch where the datasheet gives none, for launches of a host that cannot run
# ahead and for copies of a tensor: a bare dispatch on the host of the measured H100
# (profiles/h100).
DISPATCH = Fraction(142, 10**7)


class Timings:
    """Times on a cluster that do not depend on degrees, so that many steps on it can share them.

    Raises InputError where tasks slow each other there, which large models do not support.
    """

    def __init__(self, model: CollectiveModel, costs: CostModel) -> None:
        refuse_slowing(model.cluster, "a large model")
        self.model, self.cluster, self.costs = model, model.cluster, costs
        self.specs = {spec.kind: spec for spec in costs.specs}
        # For each kind whose datasheet differs from that of the device on which the shipped rows
        # were measured: the latter.
        shipped = {spec.kind: spec for spec in costs.shipped or ()}
        self._source = {
            kind: spec.measured_as or kind
            for kind, spec in self.specs.items()
            if (spec.measured_as or kind) in shipped
        }
        self._measured = {
            kind: shipped[source]
            for kind, source in self._source.items()
            if shipped[source] != self.specs[kind]
        }
        self.alike = Alike(model.cluster)
        self.patterns: dict[Hashable, int] = {}
        self.flows: list[list[list[Flow]]] = []  # the first of each pattern
        self.places: dict[Hashable, tuple[list[int], list[int]]] = {}
        self.parts: dict[Hashable, list[Crossing]] = {}
        # Cached: every layer and stage calls them, with few different arguments.
        self.load_ps, self._scalars = cache(self._load_ps), cache(datasheet_scalars)
        self.collective, self.sent = cache(self._collective), cache(self._sent)
        self.dispatched_ps = cache(self._dispatched_ps)

    def pattern(self, groups: list[list[Flow]]) -> int:
        """The number of the pattern of these groups of flows."""
        number = self.patterns.setdefault(self.alike.pattern(groups), len(self.patterns))
        if number == len(self.flows):
            self.flows.append(groups)
        return number

    def nodes(self, pattern: int) -> int:
        """The number of nodes of the first group of a pattern."""
        return len({self.alike.neighbourhood(device) for device, _ in self.flows[pattern][0]})

    def _collective(self, name: str, size: int, pattern: int) -> CollectiveCost:
        """The cost of a collective of the first group of a pattern beside those of others."""
        group, *beside = [tuple(device for device, _ in flows) for flows in self.flows[pattern]]
        return self.model.cost(name, group, size, beside)

    def collective_ps(self, name: str, size: int, pattern: int) -> int:
        """The ps of ``collective``."""
        return self.collective(name, size, pattern).ps

    def _dispatched_ps(self, size: int, pattern: int, rate: Fraction) -> int:
        """The ps to send tokens within the first group of a pattern: inside a node at a share
        ``rate`` of the bandwidth between two devices, between nodes as an all_to_all.
        """
        if self.nodes(pattern) > 1:
            return self.collective_ps("all_to_all", size, pattern)
        (first, _), (second, _) = self.flows[pattern][0][:2]
        wire = flows_wire(self.model.fabric, [(first, second)])
        return _checked(picoseconds(Fraction(size) / (rate * wire.bandwidth) + wire.latency))

    def _sent(self, size: int, pattern: int) -> list[tuple[int, int]]:
        """The ps that the flows of each group of a pattern take, and their latency in ps.

        Groups that cross the same half-links share their bandwidth.
        """
        groups = self.flows[pattern]
        crossed, sent = [self._crossed(flows) for flows in groups], []
        for links in crossed:
            near = (flows for flows, others in zip(groups, crossed, strict=True) if links & others)
            wire = flows_wire(self.model.fabric, [flow for flows in near for flow in flows])
            length = _checked(picoseconds(Fraction(size) / wire.bandwidth))
            sent.append((length, picoseconds(wire.latency)))
        return sent

    def _crossed(self, flows: Sequence[Flow]) -> set[int]:
        """The half-links of flows."""
        routes = (self.model.fabric.routes.pieces(*flow) or () for flow in flows)
        return {link for pieces in routes for piece in pieces for link in piece.half_links}

    def _load_ps(self, kind: str, loads: Loads) -> int:
        # Added in a loop: sum() compensates rounding on newer Pythons, so results would differ.
        total, known = 0.0, dict[int, float]()
        for load in loads:
            # Many experts share a load object.
            if id(load) not in known:
                known[id(load)] = self.part(kind, load).seconds
            total += known[id(load)]
        return _checked(picoseconds(rounded(total)) if loads else 0)

    def part(self, kind: str, load: Kernel) -> Share:
        """The cost of a kernel: by the ladder that of an op like it, else by the datasheet."""
        if self.costs.profiles and load.key:
            source = self._source.get(kind, kind)
            key = device_prefix(source) + load.key[len(device_prefix("")) :]
            cost = self.costs.cost_of_key(key, load.like, source)
            # A datasheet estimate is better made for the kernel itself than for an op like it.
            if cost is not None and cost.rung != ROOFLINE:
                seconds = float(cost.seconds) * load.share * self._changed(kind, load)
                return Share(seconds, cost.rung, cost.rel_err, load.op_class, key)
        if load.launches:
            seconds = float(load.launches * self.dispatch(kind))
            return Share(seconds, ROOFLINE, None, "host", f"launch on {kind}")
        seconds = self._by_datasheet(self.specs[kind], load)
        name = f"{load.family} {load.dtype} {load.flops} {load.read} {load.written} on {kind}"
        error = self.costs.estimates.datasheet_error(load, self._source.get(kind, kind))
        return Share(seconds, ROOFLINE, error, load.op_class, name)

    def dispatch(self, kind: str) -> Fraction:
        """The seconds in which the host of a kind of device dispatches a small op."""
        seconds = self.specs[kind].dispatch
        return DISPATCH if seconds is None else seconds

    def _changed(self, kind: str, load: Kernel) -> float:
        """The time of a kernel relative to its time on the measured device, by datasheets."""
        then = self._measured.get(kind)
        if then is None:
            return 1.0
        return self._by_datasheet(self.specs[kind], load) / self._by_datasheet(then, load)

    def _by_datasheet(self, spec: DeviceSpec, load: Kernel) -> float:
        chip = self._measured.get(spec.kind)
        same = chip if spec.measured_as else None
        scalars = self._scalars(spec, load.op_class, load.dtype, same)
        if load.attains:
            scalars = replace(scalars, compute=load.attains * clock_share(spec, chip))
        return scalars.seconds(ideal_seconds(load, spec))


class Durations:
    """Durations by number. ``columns`` has for each number an array of ps, with an entry for each
    group of its class, or a single entry for all.

    ``lags`` are the latencies after the durations, in the same form; ``parts`` the costs of the
    kernels of each duration; ``tabled`` the share of a collective's time that comes from tables.
    Raises InputError where a kind of device has no datasheet, or a task takes too long.
    """

    def __init__(
        self, parallelism: Parallelism, timings: Timings, has_host_times: bool = False
    ) -> None:
        self.has_host_times = has_host_times
        self.timings, self.costs = timings, timings.costs
        self.cluster, self.specs = timings.cluster, timings.specs
        self.parallelism = parallelism
        self.grid = rank_grid(self.cluster, parallelism)
        ranks = [[self.cluster.devices[d] for d in devices] for devices in self.grid.devices]
        self._kinds = [[device.kind for device in devices] for devices in ranks]
        self._sorts = [[(d.kind, Fraction(d.speed)) for d in devices] for devices in ranks]
        self._message = _checked(
            picoseconds(Fraction(parallelism.message_latency)), "message_latency"
        )
        self.columns: list[Ints] = []
        self.lags: list[Ints] = []
        self.parts: dict[int, tuple[Share, ...]] = {}
        self.tabled: dict[int, float] = {}
        # Cached: every layer and stage calls them, with few different arguments.
        self.compute, self.copy = cache(self._compute), cache(self._copy)
        self.thread, self.host = cache(self._thread), cache(self._host)
        self.collective, self.transfer = cache(self._collective), cache(self._transfer)
        self.beside, self.dispatched = cache(self._beside), cache(self._dispatched)
        kinds = {kind for each in self._kinds for kind in each}
        unknown = sorted(kinds - self.specs.keys())
        if unknown:
            raise InputError(f'no datasheet tells of devices of kind "{kind}"' for kind in unknown)

    @property
    def alike(self) -> bool:
        """Whether all groups of every class take equally long."""
        return all(bool((column == column[0]).all()) for column in (*self.columns, *self.lags))

    def _compute(self, rank: int, loads: Loads, part: int = 0, parts: int = 1) -> int:
        """The number of the duration of these loads, or of one of equal parts of them, on the
        devices of a rank.
        """
        loads = self._computed(rank, loads)
        kinds, sorts = self._kinds[rank], self._sorts[rank]
        taken = {sort: self._load_ps(*sort, loads) for sort in dict.fromkeys(sorts)}
        times = [taken[sort] for sort in (sorts if len(taken) > 1 else sorts[:1])]
        # Rounding makes the parts add up to the whole.
        number = self._add([ps * (part + 1) // parts - ps * part // parts for ps in times])
        shares = (self.timings.part(kinds[0], load) for load in loads)
        self.parts[number] = tuple(
            share._replace(seconds=share.seconds / parts) for share in shares
        )
        return number

    def _load_ps(self, kind: str, speed: Fraction, loads: Loads) -> int:
        """The ps of loads on a device of a kind that runs at a share ``speed`` of its speed."""
        return _checked(-int(-self.timings.load_ps(kind, loads) // speed))

    def _host(self, rank: int) -> Host | None:
        """The host that dispatches the ops of a rank's devices.

        Raises InputError where they have several, or one thread for several devices.
        """
        hosts = {self.cluster.host_of(d) for d in self.grid.devices[rank]}
        if len(hosts) > 1:
            raise InputError(f"cluster.host: the devices of rank {rank} have hosts that differ")
        (host,) = hosts
        if host is not None and host.threads != "device":
            raise InputError(
                'cluster.host.threads: a large model has a process a device; write "device"'
            )
        return host

    def is_replayed(self, rank: int) -> bool:
        """Whether the host of a rank replays the whole step as a CUDA graph."""
        host = self.host(rank)
        return host is not None and host.mode == "graph"

    def _computed(self, rank: int, loads: Loads) -> Loads:
        """The loads, without those of host launches where a thread or a graph does these."""
        is_told = self.has_host_times and self.host(rank) is not None
        if not (is_told or self.is_replayed(rank)):
            return loads
        return tuple(load for load in loads if not load.launches)

    def _thread(self, seconds: Fraction) -> int:
        """The number of a duration of ``seconds`` on a host's thread."""
        return self._add([_checked(picoseconds(seconds), "host_time")])

    def _copy(self, size: int) -> int:
        """The number of the duration of a copy to or from host memory."""
        seconds = Fraction(size) / self.parallelism.host_rate
        return self._add([_checked(picoseconds(seconds), "host_bandwidth")] * self.grid.copies)

    def _listed(self, rank: int, size: int, parts: int) -> int:
        """The ps to copy a list of ``parts`` tensors, each by a kernel that the host launches."""
        part = -(-size // parts)
        copy = (Kernel("part", "data_movement", DTYPE, 0, part, part, ""),)
        each = (
            max(picoseconds(self.timings.dispatch(kind)), self.timings.load_ps(kind, copy))
            for kind in dict.fromkeys(self._kinds[rank])
        )
        return parts * max(each)

    def _collective(self, kind: int, rank: int, name: str, size: int, parts: int = 0) -> int:
        """The number of the duration of a collective of a class of groups; ``size`` is in bytes, as
        nccl-tests counts them; a list of ``parts`` is copied part by part.
        """
        places, numbers = self._places(kind, rank)
        costs = [self.timings.collective(name, size, pattern) for pattern in places]
        more = self._message + (self._listed(rank, size, parts) if parts else 0)
        durations = [_checked(cost.ps + more) for cost in costs]
        number = self._add([durations[n] for n in numbers] if len(places) > 1 else durations)
        self.tabled[number] = min(cost.tabled for cost in costs)
        return number

    def _dispatched(self, rank: int, size: int, dispatcher: Dispatcher, is_launched: bool) -> int:
        """The number of the duration of sending tokens to experts, or back."""
        places, numbers = self._places(EXPERT, rank)
        rate = dispatcher.rate_over(self.grid.ep)
        if rate is None:
            return self.collective(EXPERT, rank, "all_to_all", size)
        more = self._message + picoseconds(dispatcher.overhead) * is_launched
        times = (self.timings.dispatched_ps(size, pattern, rate) for pattern in places)
        durations = [_checked(ps + more) for ps in times]
        return self._add([durations[n] for n in numbers] if len(places) > 1 else durations)

    def _beside(self, rank: int, moved: int, loads: Loads, share: Fraction, kept: Fraction) -> int:
        """The number of the duration that is left of a collective (number ``moved``) beside a
        ``share`` of these loads; at least its share ``kept`` is left.
        """
        kinds, loads = dict.fromkeys(self._kinds[rank]), self._computed(rank, loads)
        hidden = min(self.timings.load_ps(kind, loads) for kind in kinds) * share
        times = self.columns[moved].tolist()
        number = self._add([max(ps - int(hidden), int(ps * kept)) for ps in times])
        self.tabled[number] = self.tabled.get(moved, 0.0)
        return number

    def nodes(self, kind: int, rank: int) -> int:
        """The most nodes of a group of a class."""
        return max(map(self.timings.nodes, self._places(kind, rank)[0]))

    def _places(self, kind: int, rank: int) -> tuple[list[int], list[int]]:
        """The patterns of a class of groups, and for each group the place of its pattern."""
        # The rank and the number of its devices determine its devices.
        key = kind, rank, self.grid.copies, *self.grid.degrees(kind)
        if key not in self.timings.places:
            self.timings.places[key] = self._places_of(kind, rank)
        return self.timings.places[key]

    def _places_of(self, kind: int, rank: int) -> tuple[list[int], list[int]]:
        members, home_of = self.grid.members(kind, rank), self.timings.alike.neighbourhood
        homes = [dict.fromkeys(map(home_of, devices)) for devices in members]
        by_home: dict[int, dict[int, None]] = {}
        for group, home in ((group, home) for group, near in enumerate(homes) for home in near):
            by_home.setdefault(home, {})[group] = None
        places: dict[int, int] = {}
        numbers: list[int] = []
        for group, near in enumerate(homes):
            # The group itself comes first, then its neighbours in their order.
            beside = {group: None}
            for home in near:
                beside |= by_home[home]
            # Patterns are kept by number, because they are as long as all of their groups together.
            pattern = self.timings.pattern([[(d, d) for d in members[other]] for other in beside])
            numbers.append(places.setdefault(pattern, len(places)))
        return list(places), numbers

    def _transfer(self, source: int, destination: int, size: int) -> int:
        """The number of the duration of a transfer between ranks, which all parts of all replicas
        send at once.
        """
        tp, dp = self.parallelism.tp, self.parallelism.replicas
        sent: dict[int, tuple[int, int]] = {}
        for numbers, pattern in self._parts(source, destination):
            sent |= zip(numbers, self.timings.sent(size, pattern), strict=True)
        if len(set(sent.values())) == 1:
            tp = dp = 1
        durations, lags = zip(*(sent[d] for d in range(dp) for _ in range(tp)), strict=True)
        return self._add(durations, [_checked(lag + self._message) for lag in lags])

    def _parts(self, source: int, destination: int) -> list[Crossing]:
        """The replicas in sets that share nodes, for only these can slow each other."""
        key = source, destination, self.grid.copies, self.grid.tp
        if key not in self.timings.parts:
            tp, devices = self.grid.tp, self.grid.devices
            pairs = list(zip(devices[source], devices[destination], strict=True))
            replicas = [pairs[d * tp : (d + 1) * tp] for d in range(self.grid.dp)]
            self.timings.parts[key] = [
                (each, self.timings.pattern([replicas[d] for d in each]))
                for each in self._neighbours(replicas)
            ]
        return self.timings.parts[key]

    def _neighbours(self, groups: Sequence[Sequence[Flow]]) -> Iterable[list[int]]:
        """The sets of groups of flows that share nodes, directly or through others."""
        near, first = Groups(len(groups)), dict[int, int]()
        for number, flows in enumerate(groups):
            homes = {self.timings.alike.neighbourhood(device) for flow in flows for device in flow}
            near.unite([(first.setdefault(home, number), number) for home in homes])
        parts: dict[int, list[int]] = {}
        for number, root in enumerate(near.roots()):
            parts.setdefault(root, []).append(number)
        return parts.values()

    # Where all groups are equal, a single entry serves all until tasks are made.
    def _add(self, durations: Sequence[int], lags: Sequence[int] = (0,)) -> int:
        self.columns.append(np.array(durations, np.int64))
        self.lags.append(np.array(lags, np.int64))
        return len(self.columns) - 1


def _checked(ps: int, field: str = "microbatch") -> int:
    if ps > MAX_PS:
        raise InputError(f"{field}: a task of the step takes more than 53 days")
    return ps
