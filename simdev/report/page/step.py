"""The page of one step, as data: headline, pictures and tables, ready for JSON; and the step that a
file is about.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from ...execution.changes import kinds_of
from ...execution.check import check
from ...execution.scenario import Outcome, Scenario, execute, load_scenario, prepare
from ...files import read_run
from ...files.paths import shown
from ...files.reading import label, read_json
from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND, Number, format_bytes, format_seconds
from ...lowering import split
from ...nouns.graph import Graph
from ...nouns.strategy import Parallelism, degrees_over_one
from ..report import Report, analyze
from ..table import SHARE, TEXT, TIME, Table
from ..whatif import FACTOR, RESOURCE, WhatIf
from .timeline import timeline

# What a page answers, in a line: which model on which devices, spread how.

MAKERS = ("NVIDIA ", "AMD ", "Intel ", "GeForce ", "Tesla ")
"""Words of datasheets that nobody needs to know a device by."""


def question_of(scenario: Scenario, report: Report, strategy: Any = None) -> str:
    """The question of a scenario; ``strategy`` is what its file says of it (a path names it)."""
    name = scenario.graph.name or "a graph"
    return f"{name} on {_devices(scenario, report)}, {_spread(scenario, report, strategy)}"


def answered(question: str, report: Report) -> str:
    """The title of a page: the question, how long the step takes, and whether it fits."""
    verdict = "fits" if report.feasible else "does not fit"
    return f"{question}: {format_seconds(report.seconds)}, {verdict}"


def _devices(scenario: Scenario, report: Report) -> str:
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
    name = name.partition(",")[0]  # behind it stands how it was measured
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
    parts = [*degrees_over_one(pipeline.degrees), f"{pipeline.microbatches} microbatches"]
    if pipeline.pp > 1 or of_graph:
        parts.append("own schedule" if pipeline.table else pipeline.schedule)
    return ", ".join(parts)


RESOURCES_NOTE = (
    f"Each line is a simulation of its own. A resource is {FACTOR} times as fast on all machines, "
    "and the step lowered anew: bandwidth without its latency, measured collectives beyond their "
    "smallest time; measured rows of ops follow their datasheets. A gain of 0.0% is no change: "
    "nothing waits for it."
)
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


def read_subject(path: str, price: Number | None = None, value: Any = None) -> Subject:
    """The step of a file: a saved run as it is, a scenario simulated now; ``price`` takes the place
    of that of the scenario (None: that counts). ``value`` is what the file holds, where it was read
    already. Raises SimdevError.
    """
    value = read_json(path) if value is None else value
    name = label(path) if path == "-" else os.path.basename(path)
    is_run = isinstance(value, Mapping) and "spans" in value and "tasks" in value
    # What is wrong with a file that is read by its path names the file already.
    scenario = None if is_run or path == "-" else load_scenario(path)
    try:
        if is_run:
            saved = read_run(value)
            violations = len(check(saved.task_graph, saved.trace))
            return Subject(name, analyze(Outcome(saved.trace)), violations=violations)
        if not isinstance(value, Mapping):
            raise InputError(f"must be an object (a scenario), got {shown(value)}")
        subject = _simulated(name, _priced(scenario or load_scenario(value), price))
        return replace(subject, strategy=value.get("strategy"))
    except InputError as error:
        raise error.within(label(path)) from None


def _priced(scenario: Scenario, price: Number | None) -> Scenario:
    return scenario if price is None else replace(scenario, price=price)


def _simulated(name: str, scenario: Scenario) -> Subject:
    # Prepared once: the kinds of the ops are asked for after the step was lowered.
    prepared = prepare(scenario) if isinstance(scenario.graph, Graph) else None
    report = analyze(execute(scenario, prepared))
    if prepared is None:
        return Subject(name, report, scenario)
    ops = split(prepared, scenario.strategy).prepared.graph.ops
    return Subject(name, report, scenario, {op.name: op.kind for op in ops})


def run_data(subject: Subject, gains: Sequence[WhatIf] = (), tables: bool = True) -> dict[str, Any]:
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
        "facts": [list(fact) for fact in facts(report)],
        "notes": list(notes(subject)),
        # Of several steps the report's path is that of one of them.
        "timeline": timeline(report.trace, report.critical_path if report.steady is None else None),
        "blame": [[blame, ps] for blame, ps in report.blame.items()],
        "sheets": None if sheets is None else tables_json(sheets),
    }


def tables_json(tables: Sequence[Table]) -> list[dict[str, Any]]:
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


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """What stands at the top of the page."""
    yield "step time", format_seconds(report.seconds)
    yield "exactly", f"{report.step_ps:,} ps"
    if report.steady is not None:
        trace_s, steps = report.trace_ps / PS_PER_SECOND, report.steady.steps
        yield "first step", format_seconds(report.steady.first_ps / PS_PER_SECOND)
        rounds = f", in rounds of {report.steady.round}" if report.steady.round > 1 else ""
        yield "whole trace", f"{steps} steps in {format_seconds(trace_s)}{rounds}"
    working, devices = len(report.working), len(report.devices)
    yield "devices that compute", f"{working * report.copies:,} of {devices * report.copies:,}"
    where = f" on the {devices:,} that stand for all" if report.copies > 1 else ""
    yield "ops", f"{sum(device.ops for device in report.working):,}{where}"
    yield "transfers", f"{report.transfer_count:,} of {format_bytes(report.transfer_bytes)}{where}"
    yield "bubble", f"{report.bubble:.1%}"
    if report.hosts:
        yield "waiting for hosts", f"{report.hosted:.1%}"
    yield "exposed communication", f"{report.exposed:.1%}"
    if report.training is not None:
        training = report.training
        yield f"MFU, HFU ({training.large.peak_dtype})", f"{training.mfu:.1%}, {training.hfu:.1%}"
    if report.throughput is not None:
        yield from ((name, text) for name, _, text in report.throughput.facts())
    yield "largest peak", format_bytes(max((m.peak for m in report.memories), default=0))
    yield "engine", report.engine


def notes(subject: Subject) -> Iterator[str]:
    """What has to be known to read the figures."""
    report = subject.report
    if report.steady is not None:
        yield " ".join(report.steady.lines())
        yield (
            "The timeline, memory and load show the whole trace; all other figures are those of "
            "one step."
        )
    if subject.violations:
        yield (
            f"This run breaks the execution contract in {subject.violations} places, so its "
            "figures cannot be trusted: simdev check tells them."
        )
    for _, overflow in report.overflows:
        first = format_seconds(overflow.time_ps / PS_PER_SECOND)
        excess = format_bytes(overflow.excess)
        yield f"{overflow.device}: {excess} over at {first}, with {overflow.task}."
    if report.training is not None:
        yield from report.training.lines()
    yield from report.grounds()
    yield from report.notes()


def _what_if_tables(subject: Subject, gains: Sequence[WhatIf]) -> Iterator[Table]:
    """Of a large model what its machines could be faster in stands first: one can buy that."""
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
    if subject.scenario is not None and not is_large:
        return (
            f"Each line is a simulation of its own with this one thing {FACTOR} times faster. Gaps "
            "stay; a link gets bandwidth, its latency stays."
        )
    links = (
        "Links of a large model are not tried" if is_large else "A saved run does not tell links"
    )
    note = (
        f"Each line is a simulation of its own with this one thing taking 1/{FACTOR} of its "
        f"time. Gaps stay. {links}, so all that goes through a queue is shortened, its latency "
        "too: the most that a faster link could bring. Of a graph's scenario the links "
        "themselves are asked."
    )
    if subject.scenario is None:
        return note
    return (
        f"Devices, queues and phases are tasks that take 1/{FACTOR} of their time, latency "
        "included."
    )
