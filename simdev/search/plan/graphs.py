"""A comparison of the planners of papers on a model's graph of ops, at the same global batch. Where
the model is also known by its sizes, the best plans by sizes stand beside them.

Placements and splits take the whole batch at once. Pipelines cut it into microbatches, into the
best number that divides it. PipeDream's plan lets minibatches of the whole batch overlap, so its
throughput follows from its period, not from its step.

``simdev plan --graph`` calls ``plan_graph``. A method of ``search`` joins the table by its name in
SEARCHED.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...execution.scenario import Scenario, load_scenario
from ...files.shape import VERSION
from ...files.strategy import strategy_object
from ...ground.errors import InputError, SimdevError
from ...ground.units import PS_PER_SECOND
from ...nouns.models import MODELS
from ...nouns.models.large import LARGE
from ...report import run
from ..run import require_whole, search
from ..sweep.sweeping import row_of
from .searching import plans_of
from .space import choices_of, clusters_of, graph_of, question_of

if TYPE_CHECKING:
    import pandas as pd

SECONDS = 30.0
SEARCHED = (
    "single", "m-sct", "dnn-contiguous", "dnn-ip", "pipedream", "optcnn", "flexflow", "tofu",
)  # fmt: skip
"""Methods of ``search`` that are rows of the table."""
FORMS = ("data-parallel",)
SCHEDULES = ("1F1B", "GPipe")
METHODS = (*SEARCHED[:1], *FORMS, *SEARCHED[1:], *SCHEDULES)
MOST_MICROBATCHES = 32
BEST = 3  # the number of plans by sizes
COST = "cost_per_million_samples"
COLUMNS = (
    "method", "step_time_s", "samples_per_s", "feasible", "peak_bytes", "devices", "evaluations",
    "seconds", "period_s", COST, "note", "step_time_ps", "scenario",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of a method: its strategy, and notes on the way to it."""

    strategy: Mapping[str, Any]
    microbatches: int = 1
    evaluations: int = 1
    note: str = ""
    period_s: float | None = None


@dataclass(frozen=True)
class _Request:
    """The model with its sizes, the cluster and further parts of all scenarios, and the limits of
    searches.
    """

    graph: Mapping[str, Any]
    parts: Mapping[str, Any]
    batch: int
    seconds: float
    seed: int

    def scenario(self, answer: _Answer) -> dict[str, Any]:
        """The scenario of an answer, for ``load_scenario`` or a file."""
        graph = {**self.graph, "batch": self.batch // answer.microbatches}
        return {"version": VERSION, "graph": graph, **self.parts, "strategy": answer.strategy}

    @cached_property
    def plain(self) -> Scenario:
        """The scenario of the whole batch, data parallel, which searches begin with."""
        return load_scenario(self.scenario(_Answer({"short": FORMS[0]})))


def is_graph_alone(model: Any) -> bool:
    """Whether a model has a graph of ops and is no large model with sizes."""
    name = model.get("model") if isinstance(model, Mapping) else model
    return isinstance(name, str) and name in MODELS and name not in LARGE


def plan_graph(
    model: str | Mapping[str, Any],
    cluster: str | Mapping[str, Any],
    global_batch: int,
    nodes: int | None = None,
    length: int | None = None,
    methods: Sequence[str] = METHODS,
    seconds: float = SECONDS,
    seed: int = 0,
    watch: Callable[[Sequence[str]], Sequence[str]] = lambda methods: methods,
    **parts: Any,
) -> pd.DataFrame:
    """The answer of each method for a model's graph, a row each: answers that fit come first, then
    those of more samples a second.

    ``model`` is a name of simdev.nouns.models, or an object like ``{"model": "gnmt-4", "length":
    40}``;
    ``methods`` are names of METHODS, each with ``seconds`` of time; ``watch`` may show progress;
    ``parts`` are further parts of a scenario. ``scenario`` in a row is an object for
    ``load_scenario``; a method that fails is a row with the reason as ``note``. Raises InputError.
    """
    import pandas as pd

    graph = graph_of(model, length)
    if graph.get("model") not in MODELS:
        raise InputError(f"model: no graph is made of {graph.get('model')!r}")
    batch = require_whole("global_batch", global_batch)
    (only,) = clusters_of(cluster, nodes)
    request = _Request(graph, {"cluster": only, **parts}, batch, seconds, seed)
    # read once here: wrong parts are refused before any method runs
    _plain = request.plain
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise InputError(f'methods: must be of {", ".join(METHODS)}, got "{unknown[0]}"')
    rows = [_row(request, method) for method in watch(methods)]
    if request.graph["model"] in LARGE:
        rows += _by_sizes(request)
    rows.sort(key=lambda row: (row["feasible"] is not True, -(row["samples_per_s"] or 0)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(request: _Request, method: str) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        answer = _answer(request, method)
        row = _figures(request.scenario(answer), request.batch, answer.period_s)
        row |= {"evaluations": answer.evaluations, "note": answer.note}
    except SimdevError as error:
        row = dict.fromkeys(COLUMNS) | {"note": " ".join(str(error).split())}
    return row | {"method": method, "seconds": time.perf_counter() - begun}


def _figures(scenario: Mapping[str, Any], batch: int, period_s: float | None) -> dict[str, Any]:
    """The figures of a scenario that trains a whole batch in a step, or in ``period_s``."""
    opened = load_scenario(scenario)
    report = run(opened)
    period_ps = report.step_ps if period_s is None else round(period_s * PS_PER_SECOND)
    assert report.throughput is not None  # it was run as a scenario
    throughput = replace(report.throughput, step_ps=period_ps, samples=batch)
    row = row_of(opened, report, throughput)
    figures = {name: row[name] for name in COLUMNS if name in row}
    return figures | {"period_s": period_s, "scenario": scenario}


def _answer(request: _Request, method: str) -> _Answer:
    if method in FORMS:
        return _Answer({"short": method})
    return _pipelined(request, method) if method in SCHEDULES else _searched(request, method)


def _searched(request: _Request, method: str) -> _Answer:
    """The answer of a search; for PipeDream with the period of its plan, where the plan ran and
    fits.
    """
    result = search(request.plain, method, seed=request.seed, seconds=request.seconds)
    execution = result.details.get("execution", {})
    period = execution.get("period_s") if execution.get("fits") else None
    notes = [
        f"{name} {value:.4g}" for name, value in result.objectives.items() if name != "step_time_s"
    ]
    notes += ["minibatches overlap"] * (period is not None)
    notes += ["time is up"] * (result.provenance["ended"] == "time")
    evaluations = result.provenance["evaluations"]
    return _Answer(strategy_object(result.strategy), 1, evaluations, ", ".join(notes), period)


def _pipelined(request: _Request, schedule: str) -> _Answer:
    """The answer of a pipeline with a stage a device and the best number of microbatches."""
    answers = list(_pipelines(request, schedule))
    if not answers:
        raise InputError(f"global_batch: {request.batch} cannot be cut into microbatches")
    tried = [(run(load_scenario(request.scenario(answer))), answer) for answer in answers]
    _, best = min(tried, key=lambda each: (not each[0].feasible, each[0].step_ps))
    note = f"{best.microbatches} microbatches of {request.batch // best.microbatches}"
    return _Answer(best.strategy, best.microbatches, len(tried), note)


def _pipelines(request: _Request, schedule: str) -> Iterator[_Answer]:
    ranks, due = len(request.plain.cluster.workers), time.perf_counter() + request.seconds
    for count in range(2, min(request.batch, MOST_MICROBATCHES) + 1):
        if request.batch % count == 0 and time.perf_counter() < due:
            fields = {"pp": ranks, "microbatches": count, "schedule": schedule}
            yield _Answer({"pipeline": fields}, count)


def _by_sizes(request: _Request) -> list[dict[str, Any]]:
    """Rows of the best plans of the model by its sizes, whose kernels fuse ops of the graph."""
    begun = time.perf_counter()
    parts = {name: part for name, part in request.parts.items() if name != "cluster"}
    try:
        question = question_of(request.graph, request.parts["cluster"], request.batch, parts=parts)
        plans = plans_of(question, choices_of(None), BEST, progress=False)
    except InputError as error:
        note = " ".join(str(error).split())
        return [dict.fromkeys(COLUMNS) | {"method": "by its sizes", "note": note}]
    seconds = time.perf_counter() - begun
    rows = []
    for scored, _ in plans.answers:
        plan, setup = scored.plan, scored.plan.setup
        dp, tp, pp = setup.layout.dp, setup.layout.tp, setup.layout.pp
        row = _figures(question.scenario(plan), request.batch, None)
        row["method"] = f"by its sizes: dp {dp} x tp {tp} x pp {pp}"
        row["note"] = f"{setup.microbatches} microbatches of {setup.microbatch}, ZeRO {plan.zero}"
        rows.append(row | {"seconds": seconds, "evaluations": plans.counts.simulated})
    return rows
