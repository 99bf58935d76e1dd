"""Fits the host times of a large model to measured times of whole steps.

The time of a step depends on its hosts only where they hold it up, so a single step says little:
many steps are fitted at once. The objective is the mean |log(simulated / measured)|, which treats
too slow and too fast equally and is robust to outliers. It has kinks and valleys, so the simplex of
Nelder and Mead (scipy) descends from the best point of a grid. Each step is lowered once: host
times change only the durations of dispatches.

``simdev calibrate SCENARIO TABLE.csv`` calls it; ``simdev.nouns.models.large`` uses the host times.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from ...execution.engine import WORTH_COMPILING, choose, simulate
from ...execution.scenario import Scenario, execute, load_scenario
from ...files.reading import PathLike, label, parse_json, read_text
from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND, parse_time
from ...nouns.graph import PHASES
from ...nouns.models.large import Transformer
from ...nouns.models.large.roles import DISPATCH
from ...nouns.taskgraph import Ints, TaskGraph
from ...search.sweep.point import rows_of
from .solve import Floats, optimizers, shortest

STEP = "step"
"""The column of a table with the measured time of a step."""
FEWEST = 6  # twice the number of times that are fitted
_GRID = [10.0**exponent for exponent in (-4.5, -4, -3.5, -3, -2.5, -2)]  # seconds, for all phases
_WIDE, _NARROW = 0.5, 0.1  # sizes of the first and second simplex, in logarithms of times
_DIGITS = Fraction(1, 200)  # a time is written within half a percent
_UNIT = Fraction(1)  # second: the host time at which the durations of dispatches are their shares
WORST_SHOWN = 5
ERRORS = ("before", "fitted", "left_out")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step of a large model: its scenario, its seconds, and its name."""

    scenario: Scenario
    seconds: float
    name: str = ""


@dataclass(frozen=True)
class StepFit:
    """Host times by phase in seconds that fit measured steps; errors are simulated / measured - 1.

    ``before`` are the errors of the scenarios as given, ``fitted`` the errors with the times,
    ``left_out`` the errors with times fitted to the other half of the steps.
    """

    host_time: Mapping[str, Fraction]
    before: tuple[float, ...]
    fitted: tuple[float, ...]
    left_out: tuple[float, ...]
    names: tuple[str, ...]
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """The output of ``simdev calibrate --json``; times in seconds."""
        return {
            "steps": self.source,
            "host_time_s": {phase: float(time) for phase, time in self.host_time.items()},
            "mean_error": {name: self.mean_error(name) for name in ERRORS},
            "errors": {name: list(getattr(self, name)) for name in ERRORS},
            "names": list(self.names),
        }

    def mean_error(self, name: str) -> float:
        """The mean absolute error, for one of ERRORS."""
        return float(np.abs(getattr(self, name)).mean())


def read_steps(scenario: PathLike, table: PathLike) -> tuple[MeasuredStep, ...]:
    """The steps of a CSV table. Its columns are fields of the scenario, as in sweeps, and ``step``.

    Raises InputError with every line that cannot be read.
    """
    lines = list(csv.DictReader(read_text(table).splitlines()))
    file, columns = label(table), list(lines[0]) if lines else []
    if STEP not in columns:
        raise InputError(f'needs a column "{STEP}", beside fields of the scenario', file)
    if any(None in line for line in lines):
        raise InputError("has a line of more cells than the first", file)
    settings = [{name: _value(line[name]) for name in columns if name != STEP} for line in lines]
    steps: list[MeasuredStep] = []
    problems: list[str] = []
    rows = zip(lines, rows_of([scenario], settings), strict=True)
    for number, (line, row) in enumerate(rows, 2):
        try:
            if row.point is None:
                raise InputError(str(row.problem))
            question = row.point.scenario
            whole = question if isinstance(question, Scenario) else load_scenario(question)
            name = ", ".join(str(value) for value in row.settings.values())
            steps.append(MeasuredStep(whole, _seconds(line[STEP]), name))
        except InputError as error:
            problems += [f"line {number}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems, file)
    return tuple(steps)


def _value(text: str | None) -> Any:
    """The value of a cell: parsed where it is JSON, else the text itself."""
    try:
        return parse_json(text or "")
    except InputError:
        return text


def _seconds(text: str | None) -> float:
    try:
        seconds = float(parse_time(text or ""))
    except ValueError as error:
        raise InputError(f"{STEP}: {error}") from None
    if seconds <= 0:
        raise InputError(f"{STEP}: must be > 0, got {text}")
    return seconds


def calibrate_steps(steps: Sequence[MeasuredStep], source: str = "") -> StepFit:
    """The host times of the phases that fit the steps best, with their errors, also on steps that
    were left out of the fit.

    Raises InputError for fewer than FEWEST steps and for a step without a host; SimdevError without
    scipy.
    """
    if len(steps) < FEWEST:
        raise InputError(f"needs {FEWEST} measured steps at least, got {len(steps)}", source)
    models = [_Lowered.of(step) for step in steps]
    times = _fitted(models)
    # A half is every other step: neighbours in a table are often similar.
    halves = [models[::2], models[1::2]]
    left_out = np.zeros(len(models))
    for half, others in ((0, halves[1]), (1, halves[0])):
        left_out[half::2] = _errors(halves[half], _fitted(others))
    written = {
        phase: shortest(float(time), Fraction(float(time)) * _DIGITS)
        for phase, time in zip(PHASES, times, strict=True)
    }
    rounded = np.array([float(written[phase]) for phase in PHASES])
    return StepFit(
        written,
        tuple(
            execute(step.scenario).trace.end_ps / PS_PER_SECOND / step.seconds - 1 for step in steps
        ),
        tuple(_errors(models, rounded).tolist()),
        tuple(left_out.tolist()),
        tuple(step.name for step in steps),
        source,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Lowered:
    """A lowered step. ``fixed`` are the durations (ps) of its tasks with host times of zero,
    ``shares`` by phase the durations of dispatches that a host time of one second adds.
    """

    task_graph: TaskGraph
    fixed: Ints
    shares: Floats
    seconds: float

    @classmethod
    def of(cls, step: MeasuredStep) -> _Lowered:
        model = step.scenario.graph
        if not isinstance(model, Transformer):
            raise InputError("host_time: is fitted to steps of large models; this graph has ops")
        shares = []
        for phase in PHASES:
            timed = replace(model, host_time={phase: _UNIT})
            outcome = execute(replace(step.scenario, graph=timed))
            assert outcome.large is not None
            dispatches = outcome.large.role == DISPATCH
            task_graph = outcome.trace.task_graph
            shares.append(np.where(dispatches, task_graph.tasks.duration, 0))
        if not dispatches.any():
            raise InputError(
                'host_time: no device has an eager host; write "host": {} in the cluster'
            )
        fixed = np.where(dispatches, 0, task_graph.tasks.duration)
        return cls(task_graph, fixed, np.array(shares, np.float64), step.seconds)

    def ratio(self, times: Floats) -> float:
        """The simulated time over the measured time, with host times in seconds by phase."""
        duration = self.fixed + np.rint(times @ self.shares).astype(np.int64)
        tasks = replace(self.task_graph.tasks, duration=duration)
        # Called hundreds of times, so it uses the engine that "auto" chooses for large graphs.
        engine = choose("auto", WORTH_COMPILING)
        trace = simulate(replace(self.task_graph, tasks=tasks), engine)
        return trace.end_ps / PS_PER_SECOND / self.seconds


def _errors(models: Sequence[_Lowered], times: Floats) -> Floats:
    return np.array([model.ratio(times) - 1 for model in models])


def _fitted(models: Sequence[_Lowered]) -> Floats:
    """The seconds by phase with the least mean |log(simulated / measured)|."""
    minimize = optimizers().minimize

    def badness(logs: Floats) -> float:
        ratios = 1 + _errors(models, np.exp(logs))
        return float(np.abs(np.log(ratios)).mean())

    starts = [np.full(len(PHASES), np.log(time)) for time in _GRID]
    best: Floats = min(starts, key=badness)
    # Twice: a new simplex can leave a valley in which the first has shrunk.
    for width in (_WIDE, _NARROW):
        corners = np.vstack((best, best + width * np.eye(len(best))))
        options = {"initial_simplex": corners, "xatol": 1e-3, "fatol": 1e-6, "maxiter": 400}
        best = minimize(badness, best, method="Nelder-Mead", options=options).x
    return np.exp(best)


def steps_text(fit: StepFit) -> str:
    """The fitted times, the errors before and after, and the steps with the largest errors."""
    return "\n".join(_lines(fit))


def _lines(fit: StepFit) -> Iterator[str]:
    yield f"Host times fitted to {len(fit.names):,} measured steps of {fit.source}"
    for phase, time in fit.host_time.items():
        of = "a step" if phase == "update" else "a layer and microbatch"
        yield f"  {phase:<8}  {float(time) * 1e3:.4g} ms {of}"
    names = ("before", "fitted", "fitted to the other half")
    for name, errors in zip(names, (fit.before, fit.fitted, fit.left_out), strict=True):
        size = np.abs(np.array(errors))
        yield (
            f"Errors {name}: mean {size.mean():.1%}, median {np.median(size):.1%}, signed "
            f"{np.mean(errors):+.1%}, worst {size.max():.1%}"
        )
    order = np.argsort(-np.abs(np.array(fit.fitted)), kind="stable")[:WORST_SHOWN]
    yield "Worst as fitted: " + "; ".join(f"{fit.names[i]}: {fit.fitted[i]:+.1%}" for i in order)
