"""The pages of one step and of two side by side, as data: headline, pictures and tables, ready for
JSON; and the step that a file is about. Of two steps, parts are matched by their names.

``commands`` (report, compare and the explorer) asks it; the scripts in ``assets/`` draw what it
gives, so a key that is added here has to be read there (``step.js``, ``pages.js``).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np

from ...execution.changes import kinds_of
from ...execution.check import check
from ...execution.scenario import Outcome, Scenario, load_scenario, prepare
from ...files import read_run
from ...files.reading import label, read_json, shown
from ...ground.errors import InputError
from ...ground.units import Number, format_bytes, format_ps, format_seconds
from ...lowering import split
from ...nouns.draws import PERCENTS, TIE_MEANING, Draws, is_tie, percentiles, wins
from ...nouns.graph import Graph
from ...nouns.strategy import Parallelism, degrees_over_one
from ..measures.spans import transfer_mask
from ..measures.spread import task_counts
from ..measures.training import difference, difference_tables
from ..report import Report, Watch, analyze, drawn
from ..table import BYTES, CHANGE, COUNT, SHARE, TEXT, TIME, Json, Table, change
from ..whatif import FACTOR, RESOURCE, WhatIf
from .ops import ROWS_SHOWN, a_step, op_tables, step_tasks, time_table
from .timeline import timeline

# What a page answers, in a line: which model on which devices, spread how.

MAKERS = ("NVIDIA ", "AMD ", "Intel ", "GeForce ", "Tesla ")
"""Words of datasheets that nobody needs to know a device by."""


def question_of(scenario: Scenario, report: Report, strategy: Any = None) -> str:
    """The question of a scenario; ``strategy`` is what its file says of it (a path names it)."""
    name = scenario.graph.name or "a graph"
    return f"{name} on {_devices(scenario)}, {_spread(scenario, report, strategy)}"


def answered(question: str, report: Report) -> str:
    """The title of a page: the question, how long the step takes, and whether it fits."""
    verdict = "fits" if report.feasible else "does not fit"
    return f"{question}: {format_seconds(report.seconds)}, {verdict}"


def _devices(scenario: Scenario) -> str:
    """How many of which; those of hosts only where nothing else computes."""
    names = {spec.kind: _short(spec.name or spec.kind) for spec in scenario.costs.specs}
    devices = [device for device in scenario.cluster.devices if device.runs_ops]
    chosen = [device for device in devices if not device.is_host] or devices
    kinds = Counter(device.kind for device in chosen)
    pipeline = scenario.strategy.pipeline
    if pipeline is not None and len(kinds) == 1:
        kinds = Counter({kind: min(count, pipeline.devices) for kind, count in kinds.items()})
    return " and ".join(f"{count:,} {names.get(kind, kind)}" for kind, count in kinds.items())


def _short(name: str) -> str:
    name = name.partition(",")[0]  # how it was measured comes after it
    for word in MAKERS:
        name = name.removeprefix(word)
    return name


def _spread(scenario: Scenario, report: Report, written: Any) -> str:
    """How the step is spread: by the name of its strategy, its degrees, or where its ops are."""
    strategy = scenario.strategy
    if strategy.pipeline is not None:
        return _degrees(strategy.pipeline, isinstance(scenario.graph, Graph))
    if isinstance(written, str) and written != strategy.short:
        name = PurePath(written).name.partition(".")[0]
        return f"{'placement' if strategy.placement else 'strategy'} {name}"
    if strategy.short is not None:
        return strategy.short
    split = "split and " if strategy.partition else ""
    count = len(report.working)
    where = "all of them" if count == len(report.devices) else f"{count:,} of them"
    return f"{split}placed on {'one device' if count == 1 else where}"


def _degrees(pipeline: Parallelism, of_graph: bool) -> str:
    etp = pipeline.etp if pipeline.is_folded else None
    further = {"etp": etp, "dp_replicate": pipeline.dp_replicate}
    parts = [*degrees_over_one(pipeline.degrees | further), f"{pipeline.microbatches} microbatches"]
    if pipeline.pp > 1 or of_graph:
        parts.append("own schedule" if pipeline.table else pipeline.schedule)
    return ", ".join(parts)


RESOURCES_NOTE = (
    f"Each line is a simulation of its own. A resource is {FACTOR} times as fast on all machines, "
    "and the step lowered anew: bandwidth without its latency, measured collectives beyond their "
    "smallest time; measured rows of ops follow their datasheets. A gain of 0.0% is no change: "
    "nothing waits for it."
)
BINS = 40  # of a histogram
ROWS = 2_000  # of a table that has a row an op


@dataclass(frozen=True, slots=True)
class Subject:
    """One step to report on: its name, what its trace means, and where it comes from.

    ``scenario`` is None for a saved run, and ``kinds``, the kinds of the ops by name, are None for
    that and for a large model. ``violations`` counts what the checker objects to in a saved run.
    ``strategy`` is what the scenario's file says of it.
    """

    name: str
    report: Report
    scenario: Scenario | None = None
    kinds: Mapping[str, str] | None = None
    violations: int = 0
    strategy: Any = None

    @property
    def title(self) -> str:
        """The question with its answer; of a saved run, which tells none, its name."""
        question = self.name
        if self.scenario is not None:
            question = question_of(self.scenario, self.report, self.strategy)
        return answered(question, self.report)


def read_subject(
    path: str,
    price: Number | None = None,
    value: Any = None,
    draws: int = 0,
    seed: int = 0,
    watch: Watch = lambda parts: parts,
) -> Subject:
    """The step of a file: a saved run as it is, a scenario simulated now; ``price`` takes the place
    of that of the scenario (None: that counts). ``value`` is what the file holds, where it was read
    already; ``draws``, ``seed`` and ``watch`` are those of ``report.run``. Raises SimdevError.
    """
    value = read_json(path) if value is None else value
    name = label(path) if path == "-" else os.path.basename(path)
    is_run = isinstance(value, Mapping) and "spans" in value and "tasks" in value
    # What is wrong with a file that is read by its path names the file already.
    scenario = None if is_run or path == "-" else load_scenario(path)
    try:
        if is_run and draws:
            raise InputError("draws: a saved run tells no errors; give its scenario")
        if is_run:
            saved = read_run(value)
            violations = len(check(saved.task_graph, saved.trace))
            return Subject(name, analyze(Outcome(saved.trace)), violations=violations)
        if not isinstance(value, Mapping):
            raise InputError(f"must be an object (a scenario), got {shown(value)}")
        scenario = _priced(scenario or load_scenario(value), price)
        subject = simulated(name, scenario, draws, seed, watch)
        return replace(subject, strategy=value.get("strategy"))
    except InputError as error:
        raise error.within(label(path)) from None


def _priced(scenario: Scenario, price: Number | None) -> Scenario:
    return scenario if price is None else replace(scenario, price=price)


def simulated(
    name: str,
    scenario: Scenario,
    draws: int = 0,
    seed: int = 0,
    watch: Watch = lambda parts: parts,
) -> Subject:
    """The step of a scenario, simulated now; with draws as ``report.run`` makes them. Raises
    SimdevError.
    """
    # Prepared once: the kinds of the ops are asked for after the step was lowered.
    prepared = prepare(scenario) if isinstance(scenario.graph, Graph) else None
    report = analyze(drawn(scenario, prepared, draws, seed, watch))
    if prepared is None:
        return Subject(name, report, scenario)
    ops = split(prepared, scenario.strategy).prepared.graph.ops
    return Subject(name, report, scenario, {op.name: op.kind for op in ops})


def run_data(subject: Subject, gains: Sequence[WhatIf] = (), tables: bool = True) -> Json:
    """All that the page of one step shows; its ``sheets`` are None without ``tables``, which are
    half of the work.
    """
    report = subject.report
    sheets = [*_what_if_tables(subject, gains), *report.tables()] if tables else None
    return {
        "page": "run",
        "title": subject.title,
        "source": subject.name,
        "fits": report.feasible,
        "headline": headline(report),
        "facts": [list(fact) for fact in report.facts()],
        "notes": list(notes(subject)),
        # Of several steps the report's path is that of one of them.
        "timeline": timeline(report.trace, report.critical_path if report.steady is None else None),
        "draws": None if report.draws is None else histogram(report.draws),
        "blame": [[blame, ps] for blame, ps in report.blame.items()],
        "goodput": None if report.goodput is None else report.goodput.curve(),
        "sheets": None if sheets is None else tables_json(sheets),
    }


def tables_json(tables: Sequence[Table]) -> list[Json]:
    """The tables with any rows, as the page takes them."""
    return [table.to_json(ROWS) for table in tables if table.rows]


def headline(report: Report) -> str:
    """The step time, and whether the step fits, in one line."""
    limited = any(memory.capacity is not None for memory in report.memories)
    fits = "fits" if limited else "fits: no device has a memory limit"
    if not report.feasible:
        over = [memory.device for memory, _ in report.overflows]
        fits = f"DOES NOT FIT: {format_bytes(report.memory_excess)} over on {', '.join(over[:4])}"
        fits += f" and {len(over) - 4} more" if len(over) > 4 else ""
    period = "" if report.steady is None else " (the period of steps that follow one another)"
    return f"Step time {format_seconds(report.seconds)}{period}, {fits}"


def notes(subject: Subject) -> Iterator[str]:
    """Sentences that explain the figures."""
    if subject.violations:
        yield (
            f"This run breaks the execution contract in {subject.violations} places, so its "
            "figures cannot be trusted: simdev check tells them."
        )
    yield from subject.report.asides()
    yield from subject.report.notes()


def _what_if_tables(subject: Subject, gains: Sequence[WhatIf]) -> Iterator[Table]:
    """The tables of what-ifs; of a large model the resources of its machines come first, for one
    can buy them.
    """
    resources = [case for case in gains if case.kind == RESOURCE]
    rows = tuple((_resource(subject, case.name), case.step_ps, case.gain) for case in resources)
    columns = {"resource": TEXT, "step time then": TIME, "gain": SHARE}
    yield Table(f"What if the machines were {FACTOR}x faster in it?", columns, rows, RESOURCES_NOTE)
    yield _what_if_table(subject, [case for case in gains if case.kind != RESOURCE])


def _resource(subject: Subject, name: str) -> str:
    """A resource with the kinds of its links, as in "links inside nodes (nvlink)"."""
    kinds = [] if subject.scenario is None else kinds_of(subject.scenario.cluster, name)
    return f"{name} ({', '.join(kinds)})" if kinds else name


def _what_if_table(subject: Subject, gains: Sequence[WhatIf]) -> Table:
    rows = tuple((case.kind, case.name, case.busy_ps, case.step_ps, case.gain) for case in gains)
    columns = {
        "what": TEXT, "name": TEXT, "busy now": TIME, "step time then": TIME, "gain": SHARE,
    }  # fmt: skip
    return Table(f"What if it were {FACTOR}x faster?", columns, rows, _what_if_note(subject))


def _what_if_note(subject: Subject) -> str:
    is_large = subject.report.training is not None
    if subject.scenario is None:
        links = "A saved run does not tell links"
        if is_large:
            links = "Links of a large model are not tried"
        return (
            f"Each line is a simulation of its own with this one thing taking 1/{FACTOR} of its "
            f"time. Gaps stay. {links}, so all that goes through a queue is shortened, its latency "
            "too: the most that a faster link could bring. Of a graph's scenario the links "
            "themselves are asked."
        )
    if is_large:
        return (
            f"Devices, queues and phases are tasks that take 1/{FACTOR} of their time, latency "
            "included."
        )
    return (
        f"Each line is a simulation of its own with this one thing {FACTOR} times faster. Gaps "
        "stay; a link gets bandwidth, its latency stays."
    )


# Two steps side by side: what changed, in tables and on one time axis.

TASKS = 500  # the tasks whose times changed most


def compare_data(first: Subject, second: Subject) -> Json:
    """All that the page of two steps shows."""
    subjects = {"A": first, "B": second}
    reports = [subject.report for subject in subjects.values()]
    return {
        "page": "compare",
        "title": f"{first.name} and {second.name}",
        "fits": all(report.feasible for report in reports),
        "headline": verdict(first, second),
        "facts": [],
        "notes": [
            *reasons(*reports),
            *(f"{letter}: {note}" for letter, s in subjects.items() for note in notes(s)),
        ],
        "names": [subject.name for subject in subjects.values()],
        "headlines": [headline(report) for report in reports],
        "draws": _rivals(*(report.draws for report in reports)),
        "timelines": [timeline(report.trace) for report in reports],
        "sheets": tables_json(list(compare_tables(first, second))),
    }


def verdict(first: Subject, second: Subject) -> str:
    """Which of the two is faster, and by how much."""
    before, after = first.report.step_ps, second.report.step_ps
    a, b = f"A ({first.name})", f"B ({second.name})"
    if before == after:
        return f"{b} takes as long as {a}"
    if not before or not after:
        return f"{b} takes {'some' if after else 'no'} time, {a} {'some' if before else 'none'}"
    slower = after > before
    ratio = after / before if slower else before / after
    if ratio < 1.1:
        how = "longer" if slower else "less time"
        return f"{b} takes {abs(after - before) / before:.2%} {how} than {a}"
    how = f"takes {ratio:.4g} times as long" if slower else f"is {ratio:.4g} times as fast"
    return f"{b} {how} as {a}"


def reasons(first: Report, second: Report) -> Iterator[str]:
    """How sure the verdict is, where both were drawn; and why one of two large models' steps takes
    longer.
    """
    if first.draws is not None and second.draws is not None:
        yield rivalry(first.draws, second.draws)
    if first.training is None or second.training is None:
        return
    yield f"{difference(first.training, second.training).sentence()}."
    counts = first.training.tokens, second.training.tokens
    if counts[0] != counts[1]:
        yield f"A trains on {counts[0]:,} tokens a step, B on {counts[1]:,}."


def rivalry(first: Draws, second: Draws, a: str = "A", b: str = "B") -> str:
    """The share of draws in which each is faster, and by how much; both with common random
    numbers. ``a`` and ``b`` are the names of both.
    """
    share = wins(first.step_ps, second.step_ps)
    low, middle, high = map(_added, percentiles(second.step_ps - first.step_ps))
    tie = f" (a tie: {TIE_MEANING})" if is_tie(share) else ""
    return (
        f"How sure: of {len(first):,} draws (seed {first.seed}) {a} is faster in {share:.1%}, {b} "
        f"in {1 - share:.1%}{tie}; {b} minus {a} is {low} to {high} in 8 of 10 draws, p50 {middle}."
    )


def histogram(draws: Draws, less: Draws | None = None) -> Json:
    """The step times of draws in BINS of equal width, for a picture; those of ``less`` taken away.

    Times are in ps, the percentiles those of PERCENTS.
    """
    column = draws.step_ps if less is None else draws.step_ps - less.step_ps
    counts, edges = np.histogram(column, BINS)
    return {
        "count": len(draws),
        "seed": draws.seed,
        "answer": draws.answer_ps - (0 if less is None else less.answer_ps),
        "percentiles": percentiles(column),
        "from": float(edges[0]),
        "to": float(edges[-1]),
        "counts": counts.tolist(),
    }


def _rivals(first: Draws | None, second: Draws | None) -> Json | None:
    return None if first is None or second is None else histogram(second, first)


def _added(ps: int) -> str:
    return f"{'-' if ps < 0 else '+'}{format_ps(abs(ps))}"


def rivalry_json(first: Draws, second: Draws) -> Json:
    """``rivalry`` for programs; times in ps."""
    share, added = wins(first.step_ps, second.step_ps), percentiles(second.step_ps - first.step_ps)
    return {
        "count": len(first),
        "seed": first.seed,
        "a_faster": share,
        "tie": is_tie(share),
        "added_ps": {f"p{part}": ps for part, ps in zip(PERCENTS, added, strict=True)},
    }


def compare_tables(a: Subject, b: Subject) -> Iterator[Table]:
    """All differences, from the whole to the single task."""
    reports = first, second = a.report, b.report
    yield _step_table(first, second)
    if first.training is not None and second.training is not None:
        yield from difference_tables(first.training, second.training)
    title = "Critical path: what the step time is spent on"
    yield time_table(title, "blame", first.blame, second.blame)
    devices = [{device.name: device for device in report.devices} for report in reports]
    yield _pair_table(
        "Devices", "device", {"busy": TIME, "of step": SHARE, "peak": BYTES}, devices,
        lambda device: (device.busy_ps, device.utilization, device.memory.peak),
    )  # fmt: skip
    links = [{link.name: link for link in report.links if link.transfers} for report in reports]
    yield _pair_table(
        "Links and queues", "queue or link", {"transfers": COUNT, "carried": BYTES, "busy": TIME},
        links, lambda link: (link.transfers, link.bytes, link.busy_ps), busiest_first=True,
    )  # fmt: skip
    yield time_table("Work by kind of task", "kind", *map(_by_kind, reports))
    if a.kinds is not None and b.kinds is not None:
        yield from op_tables((first, a.kinds), (second, b.kinds))
    yield _task_table(first, second)


def _step_table(first: Report, second: Report) -> Table:
    """The step as a whole; its rows have several units, so numbers are written as texts."""

    def figures(report: Report) -> list[tuple[str, float, str]]:
        peak = max((memory.peak for memory in report.memories), default=0)
        ops = sum(device.ops for device in report.devices)
        period = "" if report.steady is None else " (period)"
        return [
            ("step time", report.step_ps, format_seconds(report.seconds) + period),
            ("exposed communication", report.exposed, f"{report.exposed:.1%}"),
            ("bubble", report.bubble, f"{report.bubble:.1%}"),
            *([("waiting for hosts", report.hosted, f"{report.hosted:.1%}")] * bool(report.hosts)),
            ("ops", ops, f"{ops:,}"),
            ("transfers", report.transfer_count, f"{report.transfer_count:,}"),
            ("bytes sent", report.transfer_bytes, format_bytes(report.transfer_bytes)),
            ("largest peak", peak, format_bytes(peak)),
            ("memory over capacity", report.memory_excess, format_bytes(report.memory_excess)),
            *(() if report.throughput is None else report.throughput.figures()),
            *_training_figures(report),
        ]

    left, right = ({row[0]: row[1:] for row in figures(report)} for report in (first, second))
    rows = tuple(
        (name, left[name][1], right[name][1], change(left[name][0], right[name][0]))
        for name in left
        if name in right
    )
    return Table("The step", {"": TEXT, "A": TEXT, "B": TEXT, "change": CHANGE}, rows)


def _training_figures(report: Report) -> Iterator[tuple[str, float, str]]:
    """Figures of a large model's step alone."""
    training = report.training
    if training is not None:
        for name, share in (("MFU", training.mfu), ("HFU", training.hfu)):
            yield name, share, f"{share:.1%} ({training.large.peak_dtype})"


def _pair_table(
    title: str,
    column: str,
    figures: Mapping[str, str],
    parts: list[Json],
    cells: Callable[[Any], tuple[Any, ...]],
    busiest_first: bool = False,
) -> Table:
    """Each figure of A beside that of B, by name; None where a step has no part of that name."""
    rows = []
    for name in {**parts[0], **parts[1]}:
        pair = [
            cells(of_step[name]) if name in of_step else (None,) * len(figures) for of_step in parts
        ]
        rows.append((name, *(cell for both in zip(*pair, strict=True) for cell in both)))
    if busiest_first:
        rows.sort(key=lambda row: -max(row[-2] or 0, row[-1] or 0))
    columns = {f"{figure} {step}": kind for figure, kind in figures.items() for step in "AB"}
    return Table(title, {column: TEXT} | columns, tuple(rows), shown=ROWS_SHOWN)


def _by_kind(report: Report) -> Mapping[str, int]:
    """The time of one step's tasks in ps by kind, on all devices that are alike."""
    rows, trace = a_step(report), report.trace
    times = Counter[str]()
    moves = transfer_mask(trace.task_graph)[rows].tolist()
    counts = task_counts(trace.task_graph, report.symmetry)
    lengths = ((trace.finish - trace.start) * counts)[rows].tolist()
    for kind, moving, length in zip(trace.task_graph.tasks.kind[rows], moves, lengths, strict=True):
        times["transfer" if moving and kind != "collective" else kind] += length
    steps = trace.task_graph.steps // trace.task_graph.rounds
    return {kind: -(-ps // steps) for kind, ps in times.items()}


def _task_table(first: Report, second: Report) -> Table:
    """The tasks of both steps whose time, start or place changed, the largest changes of time
    first.
    """
    a, b = step_tasks(first), step_tasks(second)
    both = [(name, *a[name], *b[name]) for name in a if name in b and a[name] != b[name]]
    rows = [
        (name, here, there, length, long, long - length, start, late, late - start)
        for name, here, start, length, there, late, long in both
    ]
    # Much later matters less than much longer: lateness is inherited from what came before.
    rows.sort(key=lambda row: (-abs(row[5]), -abs(row[8])))
    columns = {"task": TEXT, "on A": TEXT, "on B": TEXT} | dict.fromkeys(
        ("time A", "time B", "added", "start A", "start B", "later by"), TIME
    )
    note = (
        f"{len(a.keys() - b.keys()):,} tasks are in A only, {len(b.keys() - a.keys()):,} in B "
        f"only; {len(rows):,} of those in both changed."
    )
    return Table("Tasks that changed most", columns, tuple(rows[:TASKS]), note, ROWS_SHOWN)
