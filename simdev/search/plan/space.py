"""The question of a plan (a model, the clusters to try, the costs of their kernels, the global
batch), and the space of plans: every legal way to spread the step at that batch.

A *layout* divides the devices into degrees of parallelism, a *setup* adds the size of a microbatch
and the recomputation, a *plan* adds the schedule and ZeRO. Plans that differ only in name count
once: on a single rank, schedules with the same order of actions; on a single replica, the settings
of ZeRO; and selective recomputation where attention keeps no scores to recompute.

A field of ``Parallelism`` that the caller sets needs nothing here. A field that is tried in every
legal way is a field of Layout, Setup or Plan and an entry of COUNTS or LISTED; the bounds must hold
for it (bounds.py), and tests/search/test_plan_bounds.py compares them with simulation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache, cached_property
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

from ...costs import CostModel
from ...costs.collectives import collective_model
from ...execution.scenario import Scenario, load_scenario
from ...files.reading import shown
from ...files.shape import VERSION
from ...ground.errors import InputError, refuse
from ...ground.units import Number, is_count, parse_price, written
from ...lowering.hybrid import Timings
from ...nouns.cluster import Cluster
from ...nouns.models.large import Transformer, shard_of, uses_flash
from ...nouns.schedules import (
    BIDIRECTIONAL,
    CHUNKED,
    FOLDED,
    NAMES,
    PAIRED,
    SEARCHED,
    check_dualpipe,
    full_name,
    order_of,
    round_of,
)
from ...nouns.schedules.table import check_sizes
from ...nouns.strategy.parallelism import CONTEXTS, DEGREES, MODULES, MOST, RECOMPUTES, Parallelism

SCHEDULES = "1F1B", "Interleaved1F1B", "ZB-H1", "ZB-H2"
"""The schedules that are tried by default."""
PLANNED = tuple(name for name in NAMES if name != "PipeDream")
"""The schedules that a caller may choose: all but PipeDream, whose steps overlap."""
UNCHUNKED = {"Interleaved1F1B": "1F1B", "InterleavedZeroBubble": "ZB-H1"}
"""The schedule that is tried in place of an interleaved schedule where a rank has a single chunk.
On a single rank both do the same. In a pipeline Interleaved1F1B of one chunk warms up twice as far,
and is left out (ours).
"""
ZEROS = 0, 1, 2, 3
COUNTS = (*DEGREES, "microbatch", "chunks")
LISTS = {"offload", "recompute_modules"}
FOLDINGS = None, 1
"""Values of ``etp`` to try: experts cut like all other layers, or whole on a grid of their own."""
LISTED = {
    "schedule": SCHEDULES, "zero": ZEROS, "recompute": RECOMPUTES, "context": CONTEXTS,
    "etp": FOLDINGS, "dp_replicate": (1,),
}  # fmt: skip
FOLLOWS = {
    "global_batch": "is told with the question",
    "microbatches": "follows from the global batch",
    "table": "a plan has a schedule by its name",
    "stage_layers": "layers are dealt out evenly",
    "stages": "goes with a graph of ops",
    "ranks": "goes with a graph of ops",
}


Settings = tuple[tuple[str, Any], ...]
"""Names and values of further fields of Parallelism."""


class Layout(NamedTuple):
    """The degrees of parallelism on a cluster, given by its number among those that are tried."""

    cluster: int
    dp: int
    cp: int
    tp: int
    pp: int
    ep: int
    context: str
    etp: int | None = None
    dp_replicate: int = 1

    @property
    def degrees(self) -> dict[str, Any]:
        """The fields of Parallelism that the layout sets."""
        names = *DEGREES, "etp", "context", "dp_replicate"
        return {name: getattr(self, name) for name in names}


class Setup(NamedTuple):
    """A layout with its microbatches, recomputation, and other settings."""

    layout: Layout
    microbatch: int
    microbatches: int
    recompute: str
    others: Settings

    @property
    def recompute_layers(self) -> int | None:
        """The number of layers of each stage that full recomputation covers (None: all)."""
        layers: int | None = dict(self.others).get("recompute_layers")
        return layers


class Plan(NamedTuple):
    """A setup with its schedule, its chunks, and the level of ZeRO."""

    setup: Setup
    schedule: str
    chunks: int
    zero: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of Parallelism that the plan sets."""
        setup = self.setup
        sizes = {"microbatch": setup.microbatch, "microbatches": setup.microbatches}
        options = {"schedule": self.schedule, "chunks": self.chunks, "zero": self.zero}
        others = {"recompute": setup.recompute, **dict(setup.others)}
        return setup.layout.degrees | sizes | options | others

    @property
    def parallelism(self) -> Parallelism:
        """The parallelism that is simulated."""
        return Parallelism(**self.fields)


Way = tuple[str, int, int]
"""The fields that a plan adds to its setup: schedule, chunks, ZeRO."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of a search: ``counts`` has the allowed numbers of fields that are restricted,
    ``listed`` the values to try of other fields, ``others`` each combination of further settings.
    """

    counts: Mapping[str, tuple[int, ...]]
    listed: Mapping[str, tuple[Any, ...]]
    others: tuple[Settings, ...]


def choices_of(given: Mapping[str, Any] | None) -> Choices:
    """The choices from fields of ``strategy.pipeline``, each a value or a list of values to try.

    Raises InputError.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"options: must be an object of fields and values, got {shown(given)}")
    values = {name: _several(value) for name, value in (given or {}).items()}
    for name in LISTS & values.keys():  # a text is a list of one entry, "" an empty list
        values[name] = tuple(
            tuple(filter(None, [v])) if isinstance(v, str) else v for v in values[name]
        )
    refuse(_problems(values))
    counts = {name: values[name] for name in COUNTS if name in values}
    listed = {name: values.get(name, default) for name, default in LISTED.items()}
    listed["schedule"] = tuple(dict.fromkeys(map(full_name, listed["schedule"])))
    rest = {n: v for n, v in values.items() if n not in counts and n not in listed}
    others = tuple(tuple(zip(rest, each, strict=True)) for each in product(*rest.values()))
    for each in others:
        _parallelism(each)  # refuses settings that no plan could have
    return Choices(counts, listed, others)


def _parallelism(others: Settings, **degrees: Any) -> Parallelism:
    """A Parallelism of these settings, with a recomputation that they are legal with."""
    recompute = _recompute_of(others) or RECOMPUTES["recompute_modules" in dict(others)]
    return Parallelism(**degrees, recompute=recompute, **dict(others))


def _recompute_of(others: Settings) -> str | None:
    """The recomputation that settings need: selective for ``recompute_modules``, full for
    ``recompute_layers``; None where they need none.
    """
    settings = dict(others)
    if settings.get("recompute_modules", MODULES[:1]) != MODULES[:1]:
        return RECOMPUTES[1]
    return None if settings.get("recompute_layers") is None else RECOMPUTES[2]


def _several(value: Any) -> tuple[Any, ...]:
    values = value if isinstance(value, (list, tuple, range)) else [value]
    return tuple(dict.fromkeys(tuple(v) if isinstance(v, list) else v for v in values))


def _problems(values: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    known = {field.name for field in fields(Parallelism)}
    for name, each in values.items():
        if name not in known:
            yield f"{name}: is no field of a pipeline; there are {', '.join(sorted(known))}"
        elif name in FOLLOWS:
            yield f"{name}: {FOLLOWS[name]}"
        elif not each:
            yield f"{name}: has no values"
        elif name == "schedule":
            full = [full_name(v) if isinstance(v, str) else written(v) for v in each]
            wrong = [v for v in full if v not in PLANNED]
            yield from (f"schedule: plans have one of {', '.join(PLANNED)}, got {v}" for v in wrong)
        elif name in (*COUNTS, *LISTED):
            for value in each:
                try:
                    # The fewest replicas that allow this value.
                    fewest = {"ep": 1, "etp": 1, "dp_replicate": 2}.get(name, 0)
                    dp = {"dp": fewest * value} if fewest and value is not None else {}
                    Parallelism(**({name: value} | dp))
                except InputError as error:
                    yield from error.problems


def divisors(number: int) -> list[int]:
    """The divisors of a number, the least first."""
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


@dataclass(frozen=True, slots=True)
class Space:
    """All plans of a model on several clusters; ``devices`` has the number of devices of each."""

    model: Transformer
    devices: tuple[int, ...]
    global_batch: int
    choices: Choices

    def setups(self, illegal: Counter[str]) -> Iterator[Setup]:
        """The legal setups in their order; ``illegal`` counts illegal plans by reason."""
        for number in range(len(self.devices)):
            for layout in self._layouts(number):
                for others in self.choices.others:
                    yield from self._of_layout(layout, others, illegal)

    def plans(self, setup: Setup) -> list[Plan]:
        """The legal plans of a setup in their order."""
        return [Plan(setup, *each) for each in self._ways(setup.layout, setup.microbatches)[0]]

    def count(self, setup: Setup) -> int:
        """How many plans a setup has."""
        return len(self._ways(setup.layout, setup.microbatches)[0])

    def nothing(self) -> str:
        """The message about settings that leave no combination at all, legal or not."""
        needed = {_recompute_of(each) for each in self.choices.others}
        if needed.isdisjoint({None, *self.choices.listed["recompute"]}):
            goes = {"recompute_modules": RECOMPUTES[1], "recompute_layers": RECOMPUTES[2]}
            settings = ", ".join(name for name, kind in goes.items() if kind in needed)
            kinds = " or ".join(kind for kind in goes.values() if kind in needed)
            return f"recompute, {settings}: no combination of these is {kinds}"
        overlaps = all(dict(each).get("ep_comm_overlap") for each in self.choices.others)
        if overlaps and self.choices.listed["recompute"] == RECOMPUTES[2:]:
            return f'ep_comm_overlap: does not go with recompute "{RECOMPUTES[2]}"'
        names = ", ".join(self.choices.counts)
        counts = " or ".join(f"{number:,}" for number in dict.fromkeys(self.devices))
        return f"{names}: no combination of these takes all {counts} devices"

    def _allowed(self, name: str, numbers: Sequence[int]) -> Sequence[int]:
        chosen = self.choices.counts.get(name)
        return numbers if chosen is None else [n for n in numbers if n in chosen]

    def _layouts(self, number: int) -> Iterator[Layout]:
        devices = self.devices[number]
        for tp in self._allowed("tp", divisors(devices)):
            for pp in self._allowed("pp", divisors(devices // tp)):
                rest = devices // tp // pp
                for cp in self._allowed("cp", divisors(rest)):
                    for dp in self._allowed("dp", [rest // cp]):
                        yield from self._of_degrees(number, dp, cp, tp, pp)

    def _of_degrees(self, number: int, dp: int, cp: int, tp: int, pp: int) -> Iterator[Layout]:
        contexts = self.choices.listed["context"]
        for etp in self._foldings(tp):
            # An etp that does not divide the devices is illegal, with its reason (``_misfit``).
            rest = max(dp * cp * tp // (etp or tp), 1)
            for ep in self._allowed("ep", divisors(rest) if self.model.experts else [1]):
                for context in contexts if cp > 1 else contexts[:1]:
                    for groups in self.choices.listed["dp_replicate"]:
                        yield Layout(number, dp, cp, tp, pp, ep, context, etp, groups)

    def _foldings(self, tp: int) -> Sequence[int | None]:
        """The settings of etp that are tried; an etp equal to tp is the same as None."""
        if not self.model.experts:
            return [None]
        etps = self.choices.listed["etp"]
        return list(dict.fromkeys(None if etp == tp else etp for etp in etps))

    def _reason(self, layout: Layout, others: Settings) -> str | None:
        """The reason why no plan can have this layout; None where some plan can."""
        if self.model.layers < layout.pp:
            return f"pp: {layout.pp} stages for {self.model.layers} layers"
        if self.global_batch % layout.dp:
            return f"dp: {layout.dp} does not divide the global batch of {self.global_batch}"
        if not self.zeros(layout):
            return f"dp_replicate: {layout.dp_replicate} groups share nothing out with zero 0"
        return _misfit(self.model, layout._replace(cluster=0, pp=1), others)

    def _of_layout(
        self, layout: Layout, others: Settings, illegal: Counter[str]
    ) -> Iterator[Setup]:
        recomputes, misfit = self._recomputes(layout, others), self._reason(layout, others)
        if misfit is not None:
            illegal[misfit] += 0  # listed even where the count stays 0
        for microbatch in self._microbatches(layout):
            microbatches = max(self.global_batch // layout.dp // microbatch, 1)
            legal, reasons = self._ways(layout, microbatches)
            many = f"microbatches: more than {MOST:,}" if microbatches > MOST else None
            if reason := misfit or many:
                illegal[reason] += (len(legal) + reasons.total()) * len(recomputes)
                continue
            for reason, count in reasons.items():
                illegal[reason] += count * len(recomputes)
            for recompute in recomputes:
                yield Setup(layout, microbatch, microbatches, recompute, others)

    def _microbatches(self, layout: Layout) -> Sequence[int]:
        return self._allowed("microbatch", divisors(max(self.global_batch // layout.dp, 1)))

    def _recomputes(self, layout: Layout, others: Settings) -> tuple[str, ...]:
        chosen = self.choices.listed["recompute"]
        if dict(others).get("ep_comm_overlap"):
            chosen = tuple(name for name in chosen if name != RECOMPUTES[2])
        if (needed := _recompute_of(others)) is not None:
            return tuple(name for name in chosen if name == needed)
        if "none" in chosen and uses_flash(self.model, _parallelism(others)):
            return tuple(name for name in chosen if name != "selective")
        return chosen

    def zeros(self, layout: Layout) -> tuple[int, ...]:
        """The settings of ZeRO that are tried."""
        zeros = self.choices.listed["zero"]
        replicas, etp = layout.dp * layout.cp, layout.etp or layout.tp
        if layout.dp_replicate > 1:  # groups of replicas share something out
            return tuple(zero for zero in zeros if zero)
        # Experts may have replicas where attention has none.
        return zeros if max(replicas, replicas * layout.tp // (layout.ep * etp)) > 1 else zeros[:1]

    def _ways(self, layout: Layout, microbatches: int) -> tuple[list[Way], Counter[str]]:
        """The legal schedules with their chunks and ZeRO, and counts of illegal ones by reason."""
        chunks, names = self.choices.counts.get("chunks"), self.choices.listed["schedule"]
        pp, zeros = layout.pp, self.zeros(layout)
        return _ways(names, chunks, zeros, pp, microbatches, self.model.layers)


@cache
def _misfit(model: Transformer, layout: Layout, others: Settings) -> str | None:
    """The first reason why a layout does not divide the sizes of a model; None where it does."""
    try:
        shard_of(model, _parallelism(others, **layout.degrees))
    except InputError as error:
        return error.problems[0]
    return None


@cache
def _ways(
    names: tuple[str, ...],
    chosen: tuple[int, ...] | None,
    zeros: tuple[int, ...],
    pp: int,
    microbatches: int,
    layers: int,
) -> tuple[list[Way], Counter[str]]:
    legal, illegal = list[Way](), Counter[str]()
    for name, chunks, reason in _schedules(names, chosen, pp, microbatches, layers):
        for zero in zeros:
            is_late = zero >= 2 and name in BIDIRECTIONAL
            why = reason or f"zero: {name} sums gradients of two copies once a step" * is_late
            if why:
                illegal[why] += 1
            else:
                legal.append((name, chunks, zero))
    return legal, illegal


def _schedules(
    names: tuple[str, ...],
    chosen: tuple[int, ...] | None,
    pp: int,
    microbatches: int,
    layers: int,
) -> Iterator[tuple[str, int, str]]:
    """Schedules with their chunks, and the reason why they cannot run; "" where they can."""
    for name in names if pp > 1 else ():
        several = range(2, max(layers // pp, 1) + 1) if chosen is None else chosen
        single = (2,) if name in FOLDED else (1,)
        for chunks in several if name in CHUNKED else single:
            is_other = chunks == 1 and UNCHUNKED.get(name) in names
            if (chosen is None or chunks in chosen) and not is_other:
                yield name, chunks, _unrunnable(name, pp, microbatches, chunks, layers)
    if pp == 1:
        yield from (
            (name, 1, f"pp: {name} needs several ranks") for name in names if name in PAIRED
        )
        if chosen is None or 1 in chosen:
            yield from ((name, 1, "") for name in _alone(names, microbatches))


def _alone(names: Sequence[str], microbatches: int) -> list[str]:
    """The schedules of a single rank, one for each different order of its actions."""
    orders: dict[Any, str] = {}
    for name in (UNCHUNKED.get(name, name) for name in names if name not in PAIRED):
        key: Any = name
        if name not in SEARCHED:  # whose order follows from times
            # Two microbatches are enough to distinguish orders.
            order = order_of(name, 1, min(microbatches, 2))
            key = order.kind.tobytes(), order.microbatch.tobytes()
        orders.setdefault(key, name)
    return list(orders.values())


def _unrunnable(name: str, pp: int, microbatches: int, chunks: int, layers: int) -> str:
    """The reason why a schedule of this name cannot have this number of chunks; "" if it can."""
    if pp * chunks > layers:
        return f"chunks: {pp * chunks} stages for {layers} layers"
    try:
        check_sizes(pp, microbatches, chunks)
        if name in PAIRED:
            check_dualpipe(name, pp, microbatches)
        else:
            round_of(pp, microbatches, chunks)
    except InputError as error:
        return error.problems[0]
    return ""


# The question.

DEFAULTS = {field.name: field.default for field in fields(Parallelism)}
MOST_SAMPLES = 2**24  # samples of a step


@dataclass(frozen=True, eq=False)
class Question:
    """The question of a plan. ``scenarios`` are objects without a strategy, one for each of the
    ``clusters``; ``price`` is in dollars for an hour of a device.
    """

    scenarios: tuple[Mapping[str, Any], ...]
    model: Transformer
    clusters: tuple[Cluster, ...]
    costs: tuple[CostModel, ...]
    global_batch: int
    price: Fraction | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """All values that steps and peaks depend on, with files already read."""
        return self.model, self.clusters, self.costs, self.global_batch

    @cached_property
    def _timings(self) -> dict[int, Timings]:
        return {}

    def timings(self, cluster: int) -> Timings:
        """The timings on a cluster (given by its number), which all plans share.

        Raises InputError.
        """
        if cluster not in self._timings:
            model = collective_model(self.clusters[cluster])
            self._timings[cluster] = Timings(model, self.costs[cluster])
        return self._timings[cluster]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def devices(self) -> tuple[int, ...]:
        """The number of computing devices of each cluster."""
        return tuple(len(cluster.workers) for cluster in self.clusters)

    def scenario(self, plan: Plan) -> dict[str, Any]:
        """The scenario of a plan, for ``load_scenario`` or a file. Its pipeline has ``dp`` and the
        fields that differ from their defaults.
        """
        changed = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plan.fields.items()
            if value != DEFAULTS[name]
        }
        pipeline = {"dp": plan.setup.layout.dp, **changed}
        return {**self.scenarios[plan.setup.layout.cluster], "strategy": {"pipeline": pipeline}}


def question_of(
    model: str | Mapping[str, Any],
    cluster: str | Mapping[str, Any],
    global_batch: int,
    nodes: int | Sequence[int] | None = None,
    length: int | None = None,
    parts: Mapping[str, Any] | None = None,
    price: Number | None = None,
) -> Question:
    """The question of a plan, from names, files or objects of a scenario's parts.

    ``nodes`` is the number of machines of a preset, or several numbers to try; ``length`` the
    tokens of a sample; ``parts`` are further parts of a scenario, like its profile; ``price`` is in
    dollars for an hour of a device. Raises InputError.
    """
    if not is_count(global_batch) or not 0 < global_batch <= MOST_SAMPLES:
        raise InputError(
            f"global_batch: must be a whole number of samples from 1 to {MOST_SAMPLES:,}, got "
            f"{shown(global_batch)}"
        )
    graph = {"version": VERSION, "graph": graph_of(model, length)}
    rest = _priced(parts or {}, price)
    scenarios = tuple({**graph, "cluster": each, **rest} for each in clusters_of(cluster, nodes))
    opened = [_opened(scenario) for scenario in scenarios]
    sizes = opened[0].graph
    assert isinstance(sizes, Transformer)  # a pipeline spreads its graph by sizes alone
    clusters, costs = zip(*((each.cluster, each.costs) for each in opened), strict=True)
    dollars = None if opened[0].price is None else parse_price(opened[0].price)
    return Question(scenarios, sizes, clusters, costs, global_batch, dollars)


def _priced(parts: Mapping[str, Any], price: Number | None) -> dict[str, Any]:
    """Parts of a scenario, with the price (if given) among their options."""
    options = parts.get("options", {})
    if price is None or not isinstance(options, Mapping):
        return dict(parts)
    return {**parts, "options": {**options, "price": price}}


def _opened(scenario: Mapping[str, Any]) -> Scenario:
    opened = load_scenario({**scenario, "strategy": {"pipeline": {"dp": 1}}})
    if not isinstance(opened.graph, Transformer):
        raise InputError(f"model: {opened.graph.name} is a graph of ops, not a model by its sizes")
    if not opened.cluster.workers:
        raise InputError("cluster: has no device that computes")
    return opened


def graph_of(model: str | Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """The ``graph`` of a scenario: a model, with ``length`` tokens a sample if given. Raises
    InputError.
    """
    if not isinstance(model, (str, Mapping)):
        raise InputError(f"model: must be a name, a config.json or an object, got {shown(model)}")
    graph = {"model": model} if isinstance(model, str) else dict(model)
    return graph if length is None else {**graph, "length": length}


def clusters_of(
    cluster: str | Mapping[str, Any], nodes: int | Sequence[int] | None
) -> Iterator[Any]:
    """The ``cluster`` of a scenario for each number of nodes. Raises InputError."""
    if not isinstance(cluster, (str, Mapping)):
        raise InputError(f"cluster: must be a preset, a file or an object, got {shown(cluster)}")
    if nodes is None:
        yield cluster if isinstance(cluster, str) else dict(cluster)
        return
    preset = {"preset": cluster} if isinstance(cluster, str) else dict(cluster)
    counts = list(nodes) if isinstance(nodes, Sequence) else [nodes]
    if not counts:
        raise InputError("nodes: has no values")
    for count in dict.fromkeys(counts):
        yield {**preset, "nodes": count}
