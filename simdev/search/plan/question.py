"""The question of a plan: a model, the clusters that are tried, what their kernels cost, the global
batch; and the scenario of a plan as an object, which every other verb opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from ...costs import CostModel
from ...execution.scenario import Scenario, load_scenario
from ...files.reading import shown
from ...files.shape import VERSION
from ...ground.errors import InputError
from ...ground.units import Number, is_count, parse_price
from ...nouns.cluster import Cluster
from ...nouns.models.large import Transformer
from ...nouns.strategy.parallelism import Parallelism
from .space import Plan

DEFAULTS = {field.name: field.default for field in fields(Parallelism)}
MOST = 2**24  # samples of a step


@dataclass(frozen=True, eq=False)
class Question:
    """``scenarios`` are objects without a strategy, one for each of the ``clusters``; ``price`` is
    in dollars, of an hour of a device.
    """

    scenarios: tuple[Mapping[str, Any], ...]
    model: Transformer
    clusters: tuple[Cluster, ...]
    costs: tuple[CostModel, ...]
    global_batch: int
    price: Fraction | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """All that steps and peaks depend on, files read."""
        return self.model, self.clusters, self.costs, self.global_batch

    @property
    def devices(self) -> tuple[int, ...]:
        """How many compute, by cluster."""
        return tuple(len(cluster.workers) for cluster in self.clusters)

    def scenario(self, plan: Plan) -> dict[str, Any]:
        """That of a plan, for ``load_scenario`` or a file: what is told differs from a default."""
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
    """The question that names, files or objects of a scenario's parts ask.

    ``nodes`` of a preset, or several counts of them; ``length`` tokens of a sample; ``parts`` are
    further ones of a scenario, like its profile; ``price`` in dollars is that of an hour of a
    device. Raises InputError.
    """
    if not is_count(global_batch) or not 0 < global_batch <= MOST:
        raise InputError(
            f"global_batch: must be a whole number of samples from 1 to {MOST:,}, got "
            f"{shown(global_batch)}"
        )
    graph = {"version": VERSION, "graph": _graph(model, length)}
    rest = _priced(parts or {}, price)
    scenarios = tuple({**graph, "cluster": each, **rest} for each in _clusters(cluster, nodes))
    opened = [_opened(scenario) for scenario in scenarios]
    sizes = opened[0].graph
    assert isinstance(sizes, Transformer)  # a pipeline spreads its graph by sizes alone
    clusters, costs = zip(*((each.cluster, each.costs) for each in opened), strict=True)
    dollars = None if opened[0].price is None else parse_price(opened[0].price)
    return Question(scenarios, sizes, clusters, costs, global_batch, dollars)


def _priced(parts: Mapping[str, Any], price: Number | None) -> dict[str, Any]:
    """Parts of a scenario with a price among their options, where there is one."""
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


def _graph(model: str | Mapping[str, Any], length: int | None) -> dict[str, Any]:
    if not isinstance(model, (str, Mapping)):
        raise InputError(f"model: must be a name, a config.json or an object, got {shown(model)}")
    graph = {"model": model} if isinstance(model, str) else dict(model)
    return graph if length is None else {**graph, "length": length}


def _clusters(cluster: str | Mapping[str, Any], nodes: int | Sequence[int] | None) -> Iterator[Any]:
    """The cluster for each count of nodes."""
    if not isinstance(cluster, (str, Mapping)):
        raise InputError(f"cluster: must be a preset, a file or an object, got {shown(cluster)}")
    if nodes is None:
        yield cluster
        return
    preset = {"preset": cluster} if isinstance(cluster, str) else dict(cluster)
    counts = list(nodes) if isinstance(nodes, Sequence) else [nodes]
    if not counts:
        raise InputError("nodes: has no values")
    for count in dict.fromkeys(counts):
        yield {**preset, "nodes": count}
