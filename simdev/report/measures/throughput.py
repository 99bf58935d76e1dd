"""How many samples and tokens a second a step trains on, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ...execution.scenario import Scenario
from ...ground.units import PS_PER_SECOND, format_number, parse_price
from ...nouns.graph import Graph
from ...nouns.semantics import traits_of

MILLION, HOUR = 10**6, 3600
COSTS = ("cost_per_step", "cost_per_million_samples", "cost_per_million_tokens")
"""In dollars."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a step of ``step_ps`` trains on, and what an hour of its devices costs.

    ``samples`` and ``tokens`` are those of a whole step, of all microbatches of all
    replicas; None: not known. ``microbatches`` are those of a replica (None: it has none).
    ``devices`` are all workers of the cluster, for they are paid whether they work or not,
    ``price`` the dollars of an hour of each (None: not told).
    """

    step_ps: int
    samples: int | None
    tokens: int | None
    microbatches: int | None
    devices: int
    price: Fraction | None

    @classmethod
    def of(cls, scenario: Scenario, step_ps: int) -> Throughput:
        """Of a scenario whose step takes so long."""
        graph, strategy = scenario.graph, scenario.strategy
        pipeline, tokens = strategy.pipeline, None
        count = strategy.accumulate if pipeline is None else pipeline.microbatches
        if isinstance(graph, Graph):
            each = samples_of(graph) if scenario.samples is None else scenario.samples
            samples = None if each is None else each * count
        else:
            samples = 0 if pipeline is None else pipeline.samples
            tokens = samples * graph.length
        price = None if scenario.price is None else parse_price(scenario.price)
        devices = len(scenario.cluster.workers)
        is_cut = pipeline is not None or count > 1
        return cls(step_ps, samples, tokens, count if is_cut else None, devices, price)

    @property
    def samples_per_s(self) -> float | None:
        """Samples trained on by second, on all devices."""
        return self._rate(self.samples)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens trained on by second, on all devices."""
        return self._rate(self.tokens)

    def cost(self, part: int | None = None) -> float | None:
        """Dollars of a step, or of a million of what it has ``part`` of (None: not known)."""
        if self.price is None:
            return None
        step = self.price * self.devices * Fraction(self.step_ps, PS_PER_SECOND) / HOUR
        return float(step if part is None else step * MILLION / part)

    def to_json(self) -> dict[str, float]:
        """What is known of it; samples, tokens and dollars."""
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

    def facts(self) -> Iterator[tuple[str, float, str]]:
        """What is known by second and in dollars: its name, its value, and that as a text."""
        for name, rate in (("samples/s", self.samples_per_s), ("tokens/s", self.tokens_per_s)):
            if rate is not None:
                yield name, rate, format_number(rate)
        figures = self.to_json()
        for name in COSTS:
            if name in figures:
                yield name.replace("_", " "), figures[name], f"${format_number(figures[name])}"

    def lines(self) -> Iterator[str]:
        """A line for a terminal, where anything is known."""
        # Of a large model the lines above have the batch and the tokens by second.
        skipped = "tokens/s" if self.tokens is not None else ""
        parts = [
            f"{text} {name.removeprefix('cost ')}"
            for name, _, text in self.facts()
            if name != skipped
        ]
        if parts:
            has_batch = self.samples is not None and not skipped
            yield (f"{self.samples:,} samples a step: " if has_batch else "") + ", ".join(parts)

    def _rate(self, part: int | None) -> float | None:
        return None if not part or not self.step_ps else part * PS_PER_SECOND / self.step_ps


def samples_of(graph: Graph) -> int | None:
    """Samples of a step, the first dimension of all inputs; None where they do not tell.

    They do where one of them has that dimension alone, as labels have, or more than two: of tokens
    (n, length) the first may be time, too.
    """
    shapes = [
        op.outputs[0].shape
        for op in graph.ops
        if traits_of(op.kind).leaf == "input" and op.outputs and op.outputs[0].shape
    ]
    firsts = {shape[0] for shape in shapes if shape}
    is_plain = any(len(shape) != 2 for shape in shapes if shape)
    return firsts.pop() if len(firsts) == 1 and is_plain else None
