"""Sections on the step time, on repeated steps, and on samples, tokens and dollars.

Reports, plans (``search/plan/outcome.py``) and sweeps take samples, tokens and dollars from
``Throughput``; a new figure there needs its column in ``results.MEANINGS`` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ...execution.period import Steady
from ...execution.scenario import Scenario
from ...ground.units import PS_PER_SECOND, format_number, format_seconds, parse_price
from ...nouns.graph import Graph
from ...nouns.semantics import traits_of
from ...nouns.structure import is_of_ranks
from ..table import Json
from .section import Facts, Places, Section, Step

MILLION, HOUR = 10**6, 3600
COSTS = ("cost_per_step", "cost_per_million_samples", "cost_per_million_tokens")
"""In dollars."""


@dataclass(frozen=True, slots=True)
class StepTime(Section):
    """The step time, and the ``engine`` that gave it."""

    name = "step time"
    places = Places(entries=10, lines=30, asides=None, facts=10)

    step_ps: int
    engine: str

    @classmethod
    def of_step(cls, step: Step) -> StepTime:
        """The time of any step."""
        return cls(step.step_ps, step.trace.engine)

    @property
    def seconds(self) -> float:
        """The step time in seconds."""
        return self.step_ps / PS_PER_SECOND

    def lines(self) -> Iterator[str]:
        """The step time, rounded and exact."""
        exact = f"{self.step_ps:,} ps, engine {self.engine}"
        yield f"Step time {format_seconds(self.seconds)}  ({exact})"

    def facts(self) -> Facts:
        """The step time, rounded and exact."""
        yield "step time", format_seconds(self.seconds)
        yield "exactly", f"{self.step_ps:,} ps"

    def entries(self) -> Json:
        """The step time in both units."""
        return {"step_time_s": self.seconds, "step_time_ps": self.step_ps}


@dataclass(frozen=True, slots=True)
class Engine(Section):
    """The engine that ran the step."""

    name = "engine"
    places = Places(entries=20, facts=90)

    engine: str

    @classmethod
    def of_step(cls, step: Step) -> Engine:
        """The engine of any step."""
        return cls(step.trace.engine)

    def facts(self) -> Facts:
        """The name of the engine."""
        yield self.name, self.engine

    def to_json(self) -> str:
        """The name of the engine."""
        return self.engine


@dataclass(frozen=True, slots=True)
class Repeated(Section):
    """The period of steps, where several were simulated."""

    name = "repeated"
    places = Places(entries=80, lines=40, asides=10, facts=20)

    steady: Steady

    @classmethod
    def of_step(cls, step: Step) -> Repeated | None:
        """The section of steps that repeat."""
        return None if step.steady is None else cls(step.steady)

    def lines(self) -> Iterator[str]:
        """Sentences on the period of steps."""
        return self.steady.lines()

    def asides(self) -> Iterator[str]:
        """The lines joined into one, and a sentence on what the figures cover."""
        yield " ".join(self.lines())
        yield (
            "The timeline, memory and load show the whole trace; all other figures are those of "
            "one step."
        )

    def facts(self) -> Facts:
        """The time of the first step and of all."""
        first, whole = (ps / PS_PER_SECOND for ps in (self.steady.first_ps, self.steady.trace_ps))
        yield "first step", format_seconds(first)
        rounds = f", in rounds of {self.steady.round}" if self.steady.round > 1 else ""
        yield "whole trace", f"{self.steady.steps} steps in {format_seconds(whole)}{rounds}"

    def entries(self) -> Json:
        """The times of all steps."""
        return self.steady.to_json()


@dataclass(frozen=True, slots=True)
class Throughput(Section):
    """The samples that a step of ``step_ps`` trains on, and the price of an hour of its devices.

    ``samples`` and ``tokens`` cover the whole step, with all microbatches of all replicas (None:
    not known). ``microbatches`` is the number per replica (None: there are none). ``devices``
    counts all workers of the cluster, for they are paid whether they work or not; ``price`` is in
    dollars for an hour of each (None: not given). ``is_large``: the step is a large model's.
    """

    name = "throughput"
    places = Places(entries=120, lines=50, asides=None, facts=70)

    step_ps: int
    samples: int | None
    tokens: int | None
    microbatches: int | None
    devices: int
    price: Fraction | None
    is_large: bool

    @classmethod
    def of(cls, scenario: Scenario, step_ps: int) -> Throughput:
        """The throughput of a scenario whose step takes ``step_ps``."""
        graph, strategy = scenario.graph, scenario.strategy
        pipeline = strategy.pipeline
        count = strategy.accumulate if pipeline is None else pipeline.microbatches
        if isinstance(graph, Graph):
            each = samples_of(graph) if scenario.samples is None else scenario.samples
            samples = None if each is None else each * count
            tokens = scenario.tokens
        else:
            samples = 0 if pipeline is None else pipeline.samples
            tokens = samples * graph.length
        price = None if scenario.price is None else parse_price(scenario.price)
        devices = len(scenario.cluster.workers)
        is_cut = pipeline is not None or count > 1
        is_large = not isinstance(graph, Graph)
        return cls(step_ps, samples, tokens, count if is_cut else None, devices, price, is_large)

    @classmethod
    def of_step(cls, step: Step) -> Throughput | None:
        """The section of a step whose scenario is known."""
        scenario = step.outcome.scenario
        return None if scenario is None else cls.of(scenario, step.step_ps)

    @property
    def samples_per_s(self) -> float | None:
        """Samples trained on by second, on all devices."""
        return self._rate(self.samples)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens trained on by second, on all devices."""
        return self._rate(self.tokens)

    def cost(self, part: int | None = None) -> float | None:
        """Dollars for a step, or for a million samples or tokens where a step has ``part`` of them
        (None: not known).
        """
        if self.price is None:
            return None
        step = self.price * self.devices * Fraction(self.step_ps, PS_PER_SECOND) / HOUR
        return float(step if part is None else step * MILLION / part)

    def to_json(self) -> dict[str, float]:
        """The known figures: samples, tokens and dollars."""
        figures: dict[str, float | None] = {
            "global_batch": self.samples,
            "microbatches": self.microbatches,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "cost_per_step": self.cost(),
            "cost_per_million_samples": self.cost(self.samples) if self.samples else None,
            "cost_per_million_tokens": self.cost(self.tokens) if self.tokens else None,
        }
        return {name: figure for name, figure in figures.items() if figure is not None}

    def figures(self) -> Iterator[tuple[str, float, str]]:
        """(name, value, value as a text) of the known figures per second and in dollars."""
        for name, rate in (("samples/s", self.samples_per_s), ("tokens/s", self.tokens_per_s)):
            if rate is not None:
                yield name, rate, format_number(rate)
        figures = self.to_json()
        for name in COSTS:
            if name in figures:
                yield name.replace("_", " "), figures[name], f"${format_number(figures[name])}"

    def facts(self) -> Facts:
        """The known figures per second and in dollars."""
        yield from ((name, text) for name, _, text in self.figures())

    def lines(self) -> Iterator[str]:
        """A line for a terminal, where anything is known."""
        # For a large model other lines already have the batch and the tokens per second.
        skipped = "tokens/s" if self.is_large else ""
        parts = [
            f"{text} {name.removeprefix('cost ')}"
            for name, _, text in self.figures()
            if name != skipped
        ]
        if parts:
            has_batch = self.samples is not None and not skipped
            yield (f"{self.samples:,} samples a step: " if has_batch else "") + ", ".join(parts)

    def _rate(self, part: int | None) -> float | None:
        return None if not part or not self.step_ps else part * PS_PER_SECOND / self.step_ps


def samples_of(graph: Graph) -> int | None:
    """Samples of a step: the first dimension that all inputs share; None where it is not clear.

    It is clear where an input has only this dimension, as labels have, or more than two. (The first
    dimension of two may be time instead of samples.) Graphs of ranks give None, for ranks have
    batches of their own and may stand for other ranks.
    """
    if is_of_ranks(graph):
        return None
    shapes = [
        op.outputs[0].shape
        for op in graph.ops
        if traits_of(op.kind).leaf == "input" and op.outputs and op.outputs[0].shape
    ]
    firsts = {shape[0] for shape in shapes if shape}
    is_plain = any(len(shape) != 2 for shape in shapes if shape)
    return firsts.pop() if len(firsts) == 1 and is_plain else None
