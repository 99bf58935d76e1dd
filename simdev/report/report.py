"""Report: the meaning of a step's trace, in numbers for scripts and notebooks and as text.

It consists of sections (``measures.section``), each with its own lines, tables, notes, facts and
JSON; text, JSON and pages walk over them. A new figure is a part of a section. It needs a property
here only where other code reads it from a Report by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import chain
from typing import Any

from ..costs import CostMiss
from ..execution.scenario import Outcome, Scenario, Stage, execute, load_scenario, lowered
from ..files.reading import PathLike
from ..ground.errors import OutOfMemoryError, refuse
from ..ground.units import PS_PER_SECOND
from ..lowering import Prepared
from ..lowering.symmetry import Expanded, Symmetry
from ..nouns.draws import Draws, draws_problems
from ..nouns.trace import DeviceMemory, Overflow
from .measures.costs import Costs
from .measures.footprint import Footprint
from .measures.goodput import LongRun
from .measures.hosts import Hosts, HostUse, Idle
from .measures.path import CriticalPath, Segment
from .measures.pipeline import PipelineUse
from .measures.section import Facts, Section, Step, parts_in_order, sections_of
from .measures.spread import SplitCost, Splits
from .measures.throughput import Throughput
from .measures.training import Training
from .measures.usage import LIVE_SHOWN, Devices, DeviceUse, Links, LinkUse, Memory
from .table import Json, Table, table_html, table_text

Watch = Callable[[Sequence[Any]], Sequence[Any]]
"""A function that returns its argument, perhaps with a progress bar around it."""


@dataclass(frozen=True, eq=False, repr=False)
class Report(Step):
    """The analysis of one trace. Times are integer ps (``..._ps``) or seconds, sizes bytes, shares
    0 to 1. Every figure is computed when it is first read.

    Where the trace holds several steps, ``steady`` describes how they repeat, and all other figures
    are for one step: ``step_ps`` is the period of steps; other figures are measured over
    ``window``, a number of whole periods, and divided by its number of steps. Memory covers the
    whole trace, up to ``trace_ps``. Where a ``symmetry`` lets some devices represent others, the
    trace holds only the former; devices, links and hosts of the report are all of the cluster's.
    """

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """All sections that apply to the step, by name."""
        return sections_of(self)

    @property
    def seconds(self) -> float:
        """The step time in seconds; where steps repeat, their period."""
        return self.step_ps / PS_PER_SECOND

    @property
    def trace_ps(self) -> int:
        """The end of the whole trace in ps."""
        return self.trace.end_ps

    @property
    def feasible(self) -> bool:
        """Whether every device stays within its memory."""
        return self.trace.feasible

    @property
    def memory_excess(self) -> int:
        """The largest excess over a capacity in bytes, 0 where everything fits."""
        return self.trace.memory_excess

    @property
    def engine(self) -> str:
        """The engine that ran the step."""
        return self.trace.engine

    @property
    def devices(self) -> tuple[DeviceUse, ...]:
        """The use of every device, in the order of the cluster."""
        return self[Devices].uses

    @property
    def working(self) -> tuple[DeviceUse, ...]:
        """The devices that run any op."""
        return self[Devices].working

    @property
    def memories(self) -> tuple[DeviceMemory, ...]:
        """The memory of every device over the whole trace, in the order of the cluster."""
        return self[Memory].memories

    @property
    def overflows(self) -> tuple[tuple[DeviceMemory, Overflow], ...]:
        """The devices that exceed their memory, each with the first moment at which it does."""
        return self[Memory].overflows

    @property
    def links(self) -> tuple[LinkUse, ...]:
        """The use of every queue or link."""
        return self[Links].uses

    @property
    def transfer_count(self) -> int:
        """The number of transfers of a step."""
        return self[Links].count

    @property
    def transfer_bytes(self) -> int:
        """Bytes of all transfers of a step."""
        return self[Links].bytes

    @property
    def critical_path(self) -> tuple[Segment, ...]:
        """The segments that tile the step (``path``)."""
        return self[CriticalPath].segments

    @property
    def blame(self) -> dict[str, int]:
        """The time of a step's critical path by blame, in ps; the values add up to ``step_ps``."""
        return dict(self[CriticalPath].blame)

    @property
    def held(self) -> float:
        """The share of the step that launches hold (blame ``launch``)."""
        return self[CriticalPath].held

    @property
    def idle(self) -> float:
        """The share of working devices' time in which they do not compute: the sum of ``exposed``,
        ``hosted`` and ``bubble``.
        """
        return self[Idle].idle

    @property
    def exposed(self) -> float:
        """The share of working devices' time in exposed communication (``usage``)."""
        return self[Idle].exposed

    @property
    def hosted(self) -> float:
        """The share of working devices' time in which they wait only for hosts (``usage``)."""
        return self[Idle].hosted

    @property
    def bubble(self) -> float:
        """The share of working devices' time in which others compute for them (``usage``)."""
        return self[Idle].bubble

    @property
    def costs(self) -> Mapping[str, float]:
        """The share of the time of all ops that comes from each rung of the cost ladder
        (``costs.RUNGS``).
        """
        return self[Costs].rungs

    @property
    def cost_misses(self) -> tuple[CostMiss, ...]:
        """The estimates of op times, the longest first."""
        return self.outcome.misses

    @property
    def cost_rel_err(self) -> float | None:
        """The expected relative error of op times, weighted by time (None: not known)."""
        return self.outcome.rel_err

    @property
    def footprint(self) -> Footprint | None:
        """How memory was counted (None: as the execution contract counts it)."""
        return self.get(Footprint)

    @property
    def splits(self) -> tuple[SplitCost, ...]:
        """The cost of splitting each op."""
        section = self.get(Splits)
        return () if section is None else section.splits

    @property
    def whole(self) -> tuple[SplitCost, ...]:
        """The ops that take time and are not split although others are."""
        section = self.get(Splits)
        return () if section is None else section.whole

    @property
    def synchronised(self) -> int | None:
        """The number of gradients that a policy synchronises (None: there is no policy)."""
        return self.outcome.synchronised

    @property
    def training(self) -> Training | None:
        """The section of a large model's step."""
        return self.get(Training)

    @property
    def pipeline(self) -> PipelineUse | None:
        """The section of a schedule from the times of its stages."""
        return self.get(PipelineUse)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a pipeline over a graph."""
        return self.outcome.stages

    @property
    def hosts(self) -> tuple[HostUse, ...]:
        """The threads that dispatch ops."""
        return self[Hosts].uses

    @property
    def symmetry(self) -> Symmetry | Expanded | None:
        """The devices simulated in place of others, or the reason why all were simulated although
        some look alike.
        """
        return self.outcome.symmetry

    @property
    def draws(self) -> Draws | None:
        """The draws from the expected errors of costs (None: nothing was drawn)."""
        return self.outcome.draws

    @property
    def throughput(self) -> Throughput | None:
        """Samples, tokens and dollars (None where only a trace is known)."""
        return self.get(Throughput)

    @property
    def goodput(self) -> LongRun | None:
        """The long run with failures (None where the scenario has no ``failures``)."""
        return self.get(LongRun)

    def require_feasible(self) -> Report:
        """The report itself. Raises OutOfMemoryError for the device that exceeds its memory
        first.
        """
        if not self.overflows:
            return self
        memory, first = min(self.overflows, key=lambda over: over[1].time_ps)
        capacity, live = memory.capacity or 0, first.live[:LIVE_SHOWN]
        needed = capacity + first.excess
        raise OutOfMemoryError(first.device, first.time_ps, first.task, needed, capacity, live)

    def to_json(self) -> Json:
        """The object that ``simdev simulate --json`` prints, ready for ``json.dumps``."""
        figures = Json()
        for entries in parts_in_order(self.sections, "entries"):
            _merge(figures, entries)
        return figures

    def lines(self) -> Iterator[str]:
        """The step time, and the facts that a reader of it has to know."""
        return chain.from_iterable(parts_in_order(self.sections, "lines"))

    def asides(self) -> Iterator[str]:
        """The lines that the page shows above the notes."""
        return chain.from_iterable(parts_in_order(self.sections, "asides"))

    def facts(self) -> Facts:
        """(name, figure) at the top of the page."""
        return chain.from_iterable(parts_in_order(self.sections, "facts"))

    def tables(self) -> Iterator[Table]:
        """The figures of the step, for a terminal, a notebook and a page."""
        return chain.from_iterable(parts_in_order(self.sections, "tables"))

    def notes(self) -> Iterator[str]:
        """Sentences that explain the figures."""
        return chain.from_iterable(parts_in_order(self.sections, "notes"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        tables = (table_text(table) for table in self.tables() if table.rows and table.shown)
        fits = self[Memory].verdict()
        return "\n\n".join(["\n".join(self.lines()), "\n".join(fits), *tables, *self.notes()])

    def __repr__(self) -> str:
        fits = "feasible" if self.feasible else f"{self.memory_excess} bytes over"
        return (
            f"Report({self.seconds:.9g} s, {fits}, {len(self.devices)} devices, "
            f"engine {self.engine!r})"
        )

    def _repr_html_(self) -> str:
        # The text has the notebook's own colour, for its background may be light or dark.
        fits = self[Memory].verdict()
        edge = f"4px solid {'#1a7f37' if self.feasible else '#c01c28'};padding-left:8px"
        parts = [
            f"<p><b>{'<br/>'.join(map(escape, self.lines()))}</b></p>",
            f'<pre style="border-left:{edge}">{escape(chr(10).join(fits))}</pre>',
            *(table_html(table) for table in self.tables() if table.rows and table.shown),
            *(f"<p>{escape(note)}</p>" for note in self.notes()),
        ]
        return f"<div>{''.join(parts)}</div>"


def _merge(figures: Json, entries: Mapping[str, Any]) -> None:
    """Add entries to an object of JSON; objects of one key become one."""
    for name, entry in entries.items():
        if isinstance(entry, dict) and name in figures:
            _merge(figures[name], entry)
        else:
            figures[name] = entry


def run(
    scenario: Scenario | PathLike | Mapping[str, Any],
    prepared: Prepared | None = None,
    draws: int = 0,
    seed: int = 0,
    watch: Watch = lambda parts: parts,
) -> Report:
    """The report of a scenario, given as such, as a file or as an object: it is lowered, simulated
    and analyzed (see ``load_scenario`` and ``execute``). Raises InputError, MissingCostError,
    DeadlockError.

    ``draws`` is the number of times that costs are drawn from their expected errors
    (``Report.draws``); equal seeds give equal draws. A step that does not fit is a result, not an
    error (``Report.feasible``).
    """
    question = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    return analyze(drawn(question, prepared, draws, seed, watch))


def drawn(
    scenario: Scenario,
    prepared: Prepared | None = None,
    draws: int = 0,
    seed: int = 0,
    watch: Watch = lambda parts: parts,
) -> Outcome:
    """The outcome of a scenario, with ``draws`` draws (0: none); ``watch`` as in ``draws_of``."""
    if draws == 0:
        return execute(scenario, prepared)
    from ..oracle.draws import draws_of

    refuse(draws_problems(draws, seed))
    question = lowered(scenario, prepared)
    outcome = question.outcome(question.trace())
    return replace(outcome, draws=draws_of(question, draws, seed, watch=watch))


def analyze(outcome: Outcome, replays: bool = True) -> Report:
    """The report of the outcome of a scenario.

    A trace alone can be analyzed too: ``analyze(Outcome(trace))``. Without ``replays`` the report
    lacks the memory that PyTorch's allocator reserves, whose replay takes longer than all the rest.
    """
    return Report(outcome, replays)
