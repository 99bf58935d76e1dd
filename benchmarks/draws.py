"""Draws of errors: what they cost beside the oracle, and how far costs of a class err together:
``python -m benchmarks.draws [--json] [--quick]``.

The draws are those of a placed GNMT, of which all costs of ops and links err. Times are
medians of calls that took turns, the draws on two threads; the control tells how many cores the
machine gives. The shared part: of every profiled model its
rows are estimated without it, by the rows of the others and by the datasheet alone; of the errors
(logarithms) over their expected sigmas two of one model and class correlate by so much. A step of
ops that were measured alone: the time that the header of a profile tells of the phases that its
device held up, beside the sum of their rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.common import gnmt, random_placements, settle
from benchmarks.figures import Figure, main
from benchmarks.ladder import SHIPPED
from benchmarks.oracle import both_cores
from simdev import Oracle
from simdev.costs import CostModel, Profile
from simdev.costs.drawn import ErrorSource, drawn_factors, sigma_of
from simdev.costs.groups import measured_rows
from simdev.costs.ladder import Estimates
from simdev.costs.roofline import ROOFLINE_ERROR, pace_of
from simdev.costs.rows import fields_of
from simdev.execution.factors import Factors
from simdev.execution.scenario import Scenario, lowered
from simdev.files import read_graph, read_profile
from simdev.files.device import device_presets
from simdev.nouns.semantics.keys import load_of
from simdev.nouns.taskgraph import TaskGraph
from simdev.oracle.draws import draws_of

DRAWS, CORES, TARGET, ERROR = 200, 2, 250, 0.2
GRID = "grid"  # no model
HELD = 1.1  # of the device's time: a phase that took longer was held up by its host


class Size(NamedTuple):
    """How often the draws take turns with evaluations."""

    turns: int


def ops_err(task_graph: TaskGraph) -> Factors:
    """The rule that draws the errors of ops: those that take equally long have one cost."""
    times, cost = np.unique(task_graph.tasks.duration, return_inverse=True)
    drawn = drawn_factors([ErrorSource("ops", str(ps), ERROR) for ps in times.tolist()], 0, DRAWS)
    return lambda draw: drawn[draw][cost]


def speeds(queues: str, size: Size) -> Iterator[Figure]:
    """Draws of a placed GNMT over one evaluation, peaks of memory included on both sides."""
    prepared = gnmt(queues)
    oracle, placements = (
        Oracle(prepared.graph, prepared.cluster, cache=0),
        random_placements(prepared),
    )
    strategy = oracle.strategy(placements[0])
    question = lowered(Scenario(prepared.graph, prepared.cluster, CostModel(), strategy))
    cost, draws = oracle(placements[0]), draws_of(question, 2, more=[ops_err])
    assert (draws.answer_ps, draws.answer_peaks.tolist()) == (cost.step_ps, list(cost.peaks))
    settle()
    once, draws_cpu, draws_wall = list[float](), list[float](), list[float]()
    for _ in range(size.turns):
        cpu = time.process_time()
        for column in placements:
            assert oracle(column).peaks
        once.append((time.process_time() - cpu) / len(placements))
        cpu, wall = time.process_time(), time.perf_counter()
        draws_of(question, DRAWS, more=[ops_err], n_jobs=CORES)
        draws_cpu.append(time.process_time() - cpu)
        draws_wall.append(time.perf_counter() - wall)
    part, name = f"GNMT, 4 devices, {queues}", f"{DRAWS} draws / one oracle(), both with peaks"
    ratio = median(draws_cpu) / median(once)
    yield Figure(part, f"{name}: CPU a core of {CORES}", ratio / CORES, "x")
    yield Figure(part, f"{name}: CPU in all", ratio, "x")
    wall = median(draws_wall) / median(once)
    yield Figure(part, f"{name}: wall", wall, "x", TARGET, False)
    yield Figure(part, "oracle() with peaks", 1e6 * median(once), "us")


def together(groups: Sequence[Sequence[float]]) -> float:
    """The correlation of two of one group about zero: mean product of pairs over mean square; each
    member counts alike.
    """
    rows = [np.array(group) for group in groups if len(group) > 1]
    pairs = sum((z.sum() ** 2 - (z**2).sum()) / (len(z) - 1) for z in rows)
    return float(pairs / sum((z**2).sum() for z in rows))


def shared(folder: Path, kind: str) -> Iterator[Figure]:
    """How far errors of a class go together, on the profiled models of a kind of device."""
    specs = {spec.kind: spec for spec in device_presets()}
    profiles = {path.name: read_profile(path) for path in sorted(folder.glob("*.jsonl"))}
    datasheet = Estimates((), specs)
    by_rows, by_sheet = (defaultdict[tuple[str, str], list[float]](list) for _ in range(2))
    for name in (name for name in profiles if not name.startswith(GRID)):
        others = tuple(profile for other, profile in profiles.items() if other != name)
        for op_class, rows, sheet in errors(profiles[name], others, kind, datasheet):
            by_rows[name, op_class] += rows
            by_sheet[name, op_class] += sheet
    for title, groups in (("rows of other models", by_rows), ("the datasheet", by_sheet)):
        z = np.concatenate(list(groups.values()))
        yield Figure(
            kind, f"shared part, by {title}, {len(z):,} rows", together([*groups.values()]), ""
        )
        inside = float((np.abs(z) < 1.2816).mean())
        yield Figure(kind, f"rows within the 10th to 90th percentile, by {title}", inside, "")


def errors(
    held: Profile, others: Sequence[Profile], kind: str, datasheet: Estimates
) -> Iterator[tuple[str, list[float], list[float]]]:
    """By held-out row its class, and the errors over their sigmas by rows and by the datasheet;
    empty where it has no answer.
    """
    model, pace = Estimates(tuple(others), datasheet.specs), pace_of(datasheet.specs.get(kind))
    known = {row.key for row in measured_rows(others, kind)}
    for row in measured_rows((held,), kind):
        load = load_of(row.key)
        if row.key in known or load is None or load.is_free:
            continue
        seconds, scores = float(row.device_seconds(pace)), []
        answers = model.cost(row.key, load, kind), datasheet.roofline(load, kind)
        for cost, error in zip(answers, (None, ROOFLINE_ERROR), strict=True):
            expected = None if cost is None else error or cost.rel_err
            score = []
            if cost is not None and cost.seconds and expected:
                score = [float(np.log(seconds / float(cost.seconds))) / sigma_of(expected)]
            scores.append(score)
        yield load.op_class, scores[0], scores[1]


def in_steps(folder: Path, kind: str) -> Figure:
    """How far the rows of a model are together from its step, the mean over profiled models."""
    errors = []
    for path in sorted(folder.glob("*.jsonl")):
        profile = read_profile(path)
        header = fields_of(profile.header)
        if "step" not in header:
            continue
        graph, costs = read_graph(folder / header["graph"]), CostModel(profile, device_presets())
        rows, measured = 0.0, 0.0
        for phase, step in header["step"]["phases"].items():
            of_phase = [i for i, op in enumerate(graph.ops) if op.phase == phase]
            known = (costs.cost(graph, i, kind) for i in of_phase)
            seconds = float(sum(cost.seconds for cost in known if cost is not None))
            if step["measured_step_s"] < HELD * seconds:  # else its host held it up
                rows, measured = rows + seconds, measured + step["measured_step_s"]
        errors += [abs(measured / rows - 1)] if rows else []
    name = f"a step over the sum of its rows, mean |error| of {len(errors)} models"
    return Figure(kind, name, sum(errors) / len(errors), "")


def run(size: Size, say: Callable[[str], None]) -> list[Figure]:
    """Everything. Raises AssertionError where two answers differ."""
    figures = []
    for queues in ("half-duplex", "parallel"):
        say(f"GNMT, {queues} ...")
        figures += speeds(queues, size)
    name = "control: two plain processes / one (wall): cores that the machine gives now"
    figures.append(Figure("machine", name, both_cores(), "x"))
    for folder, kind in ((SHIPPED, "epyc-1core"), (SHIPPED / "h100", "h100-sxm")):
        say(f"profiles of {kind} ...")
        figures += [*shared(folder, kind), in_steps(folder, kind)]
    return figures


if __name__ == "__main__":
    main("draws", __doc__, run, Size(15), Size(3), "wall time, medians")
