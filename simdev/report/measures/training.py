"""The section of a report on a large model's step: its time by purpose, use of the peak, and memory
by rank; the error beside published runs (``published``); and the reasons why one step takes longer
than another.

The step of a pipeline's rank is tiled like any device's (see ``usage``): computing, exposed
communication, and the bubble. Exposed communication is divided by its purpose (collectives of tp,
of experts, of the replicas, copies to the host, messages to or from other ranks: the first of these
in flight counts). MFU is the share of the devices' peak, in the precision of the layers' matrix
products, that the products of the model alone would need; HFU also counts recomputation
(Korthikanti et al. 2022, section 5).

Each rank is tiled by TERMS, so for any rank of step A and any rank of step B the differences of the
terms add up to the difference of the steps, to the picosecond. The critical ranks are compared,
which wait least for others (bubble and pipeline; ours): on other ranks more of the difference would
be waiting for work that is done elsewhere. Plans use the same terms to say why one is slower
(``search/plan/outcome.py``). A term is a role (``nouns/models/large/roles.py``), which has its
colour in ``figures/charts.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...costs import ROOFLINE
from ...ground.units import PS_PER_SECOND, format_ps
from ...nouns.models.large import modules_again, uses_flash
from ...nouns.models.large.roles import (
    COMPUTES,
    DATA,
    DISPATCH,
    EXPERT,
    HOST,
    PIPELINE,
    ROLES,
    TENSOR,
    LargeStep,
)  # fmt: skip
from ...nouns.models.large.software import setting_of
from ...nouns.taskgraph import Ints, distinct
from ...nouns.trace import DeviceMemory, Trace
from ..table import BYTES, CHANGE, LIMIT, TEXT, TIME, Json, Table, change
from .published import PublishedError, published_error
from .section import Facts, Places, Section, Step
from .spans import runs

BUBBLE = "bubble"
TERMS = (*ROLES, BUBBLE)
Terms = Mapping[str, int]  # ps by TERMS
EXPOSED = (TENSOR, EXPERT, DATA, HOST, PIPELINE)
"""Communication that may be in flight while nothing is computed; the first in flight counts."""
WAITED_FOR = (*EXPOSED, DISPATCH)
ROWS_SHOWN = 32
SHORT_PS = 2 * 10**9  # of a layer's forward: vTrain's hosts needed 1.7 ms to dispatch one


@dataclass(frozen=True, slots=True)
class StageUse:
    """A rank of the pipeline: its device, its layers by stage, its time in ps by TERMS, and its
    memory.
    """

    device: str
    layers: tuple[tuple[int, ...], ...]
    terms: Terms
    memory: DeviceMemory

    @property
    def exposed_ps(self) -> int:
        """The ps of communication that no computing hides."""
        return sum(self.terms[ROLES[role]] for role in EXPOSED)

    def to_json(self) -> Json:
        """One entry of ``stages``."""
        return {
            "device": self.device,
            "layers": [[layers[0], layers[-1]] for layers in self.layers if layers],
            "terms_s": {term: ps / PS_PER_SECOND for term, ps in self.terms.items()},
            "peak_bytes": self.memory.peak,
            "capacity_bytes": self.memory.capacity,
            "peak_by_kind": {kind: size for kind, size in self.memory.at_peak.items() if size},
        }


@dataclass(frozen=True, slots=True)
class Training(Section):
    """The section of a report on a large model's step; shares are from 0 to 1.

    ``stages`` has a device of each rank of the pipeline. ``mfu`` is the share of the devices' peak
    (``large.peak_dtype``) that the matrix products of the model alone would need, ``hfu`` the share
    that all computed products need; ``tokens_per_s`` covers all devices.
    """

    name = "training"
    places = Places(entries=130, lines=10, asides=30, facts=60, tables=10, notes=40)

    large: LargeStep = field(repr=False, compare=False)
    stages: tuple[StageUse, ...]
    mfu: float
    hfu: float
    tokens_per_s: float

    @classmethod
    def of(cls, trace: Trace, large: LargeStep) -> Training:
        """The section of a large model's step."""
        p, model, seconds = large.parallelism, large.model, trace.end_ps / PS_PER_SECOND
        again = modules_again(model, p)
        whole = p.layers_again(large.layers)
        once = model.flops(p.samples)
        twice = model.flops_again(p.samples, p.recompute, again, whole)
        stages = tuple(
            _stage(trace, large, rank, device) for rank, device in enumerate(large.first)
        )
        if not seconds:
            return cls(large, stages, 0.0, 0.0, 0.0)
        # MFU counts the products that the model needs, HFU those computed, with recomputation.
        most = large.peak_flops * seconds
        tokens = p.samples * model.length / seconds
        return cls(large, stages, once / most, (once + twice) / most, tokens)

    @classmethod
    def of_step(cls, step: Step) -> Training | None:
        """The section of a step; None where it is no large model's."""
        return None if step.outcome.large is None else cls.of(step.trace, step.outcome.large)

    @property
    def tokens(self) -> int:
        """Tokens that a step trains on."""
        return self.large.parallelism.samples * self.large.model.length

    @property
    def published(self) -> PublishedError:
        """The error of simulated steps beside published runs that are similar to this step."""
        return published_error(self.large.model, self.large.device)

    @property
    def terms(self) -> dict[str, float]:
        """Seconds by TERMS, the mean over the ranks; they add up to the step time."""
        count = len(self.stages)
        return {
            term: sum(stage.terms[term] for stage in self.stages) / count / PS_PER_SECOND
            for term in TERMS
        }

    def to_json(self) -> Json:
        """The entry ``training`` of ``simdev simulate --json``."""
        large, p = self.large, self.large.parallelism
        return {
            "model": large.model.name,
            "devices": p.devices,
            "samples": p.samples,
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "peak_dtype": large.peak_dtype,
            "flash": uses_flash(large.model, p),
            "published": self.published.to_json(),
            "terms_s": self.terms,
            "stages": [stage.to_json() for stage in self.stages],
            "symmetry": {
                "collapsed": large.collapsed,
                "copies": large.copies,
                "tasks": len(large.role),
                "tasks_of_all": large.counted,
                "why_not": large.why,
            },
        }

    def lines(self) -> Iterator[str]:
        """The model, its degrees and its use of the peak, above the step time."""
        large, p = self.large, self.large.parallelism
        experts = f" x ep {p.ep}" if p.ep > 1 else ""
        experts += f" x etp {p.etp}" if p.is_folded else ""
        context = f" in {p.dp_replicate} groups" if p.dp_replicate > 1 else ""
        context += f" x cp {p.cp}" if p.cp > 1 else ""
        yield (
            f"{large.model.name}: dp {p.dp}{context} x tp {p.tp} x pp {p.pp}{experts}, "
            f"{p.microbatches} microbatches of {p.microbatch} ({p.samples:,} samples a step), "
            f"{large.schedule.name}"
        )
        shares = f"MFU {self.mfu:.1%}, HFU {self.hfu:.1%} of the {large.peak_dtype} peak"
        yield f"{shares}; {self.tokens_per_s:,.0f} tokens/s"
        yield str(self.published)

    def facts(self) -> Facts:
        """The use of the peak."""
        yield f"MFU, HFU ({self.large.peak_dtype})", f"{self.mfu:.1%}, {self.hfu:.1%}"

    def tables(self) -> Iterator[Table]:
        """Time and memory of each rank of the pipeline."""
        used = [term for term in TERMS if any(stage.terms[term] for stage in self.stages)]
        rows = tuple(
            (
                stage.device,
                ", ".join(f"{layers[0]}-{layers[-1]}" for layers in stage.layers if layers),
                *(stage.terms[term] for term in used),
            )
            for stage in self.stages
        )
        columns = {"device": TEXT, "layers": TEXT} | dict.fromkeys(used, TIME)
        title = "Time by rank: computing, exposed communication, and the bubble"
        yield Table(title, columns, rows, shown=ROWS_SHOWN)
        memories = [stage.memory for stage in self.stages]
        kinds = [kind for kind in memories[0].at_peak if any(m.at_peak[kind] for m in memories)]
        rows = tuple(
            (m.device, m.peak, m.capacity, *(m.at_peak[kind] for kind in kinds)) for m in memories
        )
        columns = {"device": TEXT, "peak": BYTES, "capacity": LIMIT} | dict.fromkeys(kinds, BYTES)
        yield Table("Memory at the peak of each rank", columns, rows, shown=ROWS_SHOWN)

    def notes(self) -> Iterator[str]:
        """The assumptions behind the figures."""
        large, count = self.large, len(self.large.role)
        if large.collapsed and large.copies > 1:
            yield (
                f"One device stands for the {large.copies} of its rank of the pipeline, which are "
                f"alike: exact, with {count:,} tasks instead of {large.counted:,}."
            )
        elif large.why:
            yield f"All {large.counted:,} tasks were simulated: {large.why}."
        else:
            yield f"{count:,} tasks were simulated."
        flash = uses_flash(large.model, large.parallelism)
        why = f" (default of {large.model.name})" if large.parallelism.flash is None else ""
        yield (
            f"Attention is one op that keeps no scores (flash){why}."
            if flash
            else f"Attention keeps its scores (no flash){why}."
        )
        yield from self._memory_notes(flash)
        yield from self._host_notes()
        layers = (
            "are the datasheet's roofline with its stated efficiencies"
            if set(self.large.rungs) <= {ROOFLINE}
            else "are those of the measured ops that their kernels are like"
        )
        yield f"Times of layers {layers}; collectives are modelled."
        if self.large.borrowed:
            yield self.large.borrowed

    def _memory_notes(self, flash: bool) -> Iterator[str]:
        """The modules that are recomputed, and the bytes that are offloaded to the host."""
        large = self.large
        chosen = large.parallelism.recompute_modules
        if large.parallelism.recompute == "selective" and flash and chosen == ("core_attn",):
            yield (
                'recompute "selective" changes nothing with flash attention, which never keeps its '
                "scores."
            )
        again = modules_again(large.model, large.parallelism)
        if again:
            yield f"Made again before the backward: {', '.join(sorted(again))}."
        if large.parallelism.recompute_layers is not None:
            count = len(large.parallelism.layers_again(large.layers))
            yield f"Made again before the backward: {count} of {large.model.layers} layers."
        if large.parallelism.offload_layers is not None:
            count = len(large.parallelism.layers_offloaded(large.layers))
            yield f"Activations of {count} of {large.model.layers} layers go to the host."

    def _host_notes(self) -> Iterator[str]:
        """Missing facts about hosts, where they may affect the answer."""
        if self.large.host == "eager" and not self.large.model.host_time:
            yield "Hosts are eager, but graph.host_time tells nothing: dispatching takes no time."
        model, setting = (
            self.large.model,
            setting_of(self.large.model.runs_on, self.large.parallelism),
        )
        is_told = self.large.host == "graph" or (self.large.host != "none" and model.host_time)
        if model.experts and setting.holds_up and not is_told:
            yield (
                "Computing of layers with experts counts what their hosts launch outside of CUDA "
                f"graphs ({setting.graphs}): a bare dispatch each, of the datasheet or 14.2 us."
            )
        layers, times = model.layers, self.large.parallelism.microbatches
        forward = sum(stage.terms["forward"] for stage in self.stages) / (layers * times)
        if self.large.host == "none" and 0 < forward < SHORT_PS:
            yield (
                f"No host is modelled: the forward of a layer takes "
                f"{format_ps(forward)}, and eager ones have been seen to "
                "need 1 to 2 ms for it (cluster.host and graph.host_time)."
            )


def tiles(trace: Trace, large: LargeStep, rank: int) -> tuple[Ints, Ints, Ints]:
    """The step of a pipeline's rank cut into spans: the term of each (an index into TERMS), its
    start and its finish in ps.

    The spans tile the step. Neighbours with the same term are joined.
    """
    tasks, device = trace.task_graph.tasks, large.first[rank]
    rows = np.flatnonzero((tasks.source == device) | (tasks.destination == device))
    role, start, finish = large.role[rows], trace.start[rows], trace.finish[rows] + tasks.lag[rows]
    # Between two neighbouring instants nothing starts or ends: one label holds for all of it.
    times = distinct(np.concatenate((start, finish, [0, trace.end_ps])))
    label = np.full(len(times) - 1, TERMS.index(BUBBLE), np.int64)
    # Later labels overwrite earlier ones, so the most important comes last: computing hides others.
    for painted in (*WAITED_FOR[::-1], *range(COMPUTES)):
        of_role = role == painted
        change = np.zeros(len(times), np.int64)
        np.add.at(change, np.searchsorted(times, start[of_role]), 1)
        np.add.at(change, np.searchsorted(times, finish[of_role]), -1)
        label[np.cumsum(change)[:-1] > 0] = painted
    if not len(label):
        return label, label, label
    first, last = runs(label[1:] != label[:-1])
    return label[first], times[first], times[last + 1]


def _stage(trace: Trace, large: LargeStep, rank: int, device: int) -> StageUse:
    label, start, finish = tiles(trace, large, rank)
    totals = np.zeros(len(TERMS), np.int64)
    np.add.at(totals, label, finish - start)
    layers = tuple(tuple(large.layers[stage]) for stage in large.schedule.stages_of[rank])
    terms = dict(zip(TERMS, totals.tolist(), strict=True))
    return StageUse(trace.task_graph.devices[device], layers, terms, trace.memory_of(device))


WAITING = (BUBBLE, ROLES[PIPELINE])
REST = "rest"


def critical_rank(terms: Sequence[Terms]) -> int:
    """The rank that waits least for others (on a tie the first), from the terms of each in ps."""
    return min(range(len(terms)), key=lambda rank: sum(terms[rank][name] for name in WAITING))


@dataclass(frozen=True, slots=True)
class Difference:
    """Step B compared with step A, by the terms of their critical ranks in ps, which add up to the
    steps.
    """

    ranks: tuple[int, int]
    first: Terms
    second: Terms

    @classmethod
    def of(cls, first: Sequence[Terms], second: Sequence[Terms]) -> Difference:
        """The difference from the terms (ps) of all ranks of A and of B (``StageUse.terms``)."""
        ranks = critical_rank(first), critical_rank(second)
        return cls(ranks, first[ranks[0]], second[ranks[1]])

    @property
    def steps_ps(self) -> tuple[int, int]:
        """Both step times."""
        return sum(self.first.values()), sum(self.second.values())

    @property
    def added_ps(self) -> dict[str, int]:
        """The ps that each term takes more in B (negative: less), which add up to the difference of
        the steps.
        """
        return {name: self.second[name] - self.first[name] for name in TERMS}

    def parts(self) -> list[tuple[str, int]]:
        """The additions of each term in thousandths of A's step, the largest first.

        Their sum is the rounded difference of the steps; the remainder of rounding is ``rest``.
        """
        before = self.steps_ps[0]
        rounded = {name: _thousandths(ps, before) for name, ps in self.added_ps.items()}
        parts = sorted(
            (part for part in rounded.items() if part[1]), key=lambda part: -abs(part[1])
        )
        rest = self.share - sum(rounded.values())
        return [*parts, (REST, rest)] if rest else parts

    @property
    def share(self) -> int:
        """The difference of the steps in thousandths of A's."""
        before, after = self.steps_ps
        return _thousandths(after - before, before)

    def _words(self, most: int | None = None) -> str:
        """The first ``most`` parts in words."""
        return ", ".join(f"{name} {part / 10:+.1f}%" for name, part in self.parts()[:most])

    def line(self, most: int) -> str:
        """``+8.2%: bubble +6.1%, tensor +2.4%``, with at most ``most`` terms of B."""
        before, after = self.steps_ps
        if not self.share:
            return "+0.0%" if after >= before else "-0.0%"
        parts = self._words(most)
        return f"{self.share / 10:+.1f}%" + (f": {parts}" if parts else "")

    def sentence(self, first: str = "A", second: str = "B") -> str:
        """``B is 8.2% slower than A: bubble +6.1%, tensor +2.4%, ...``, and the ranks compared."""
        if not self.steps_ps[0]:
            return f"{first} takes no time"
        share, parts = self.share, self._words()
        how = f"{abs(share) / 10:.1f}% {'slower than' if share > 0 else 'faster than'}"
        verdict = f"{second} is {how if share else 'as fast as'} {first}"
        if not parts:
            return verdict
        ranks = f"rank {self.ranks[0]} of {first}, rank {self.ranks[1]} of {second}"
        return f"{verdict}: {parts} (of {first}'s step, on {ranks}, which wait least)"

    def table(self) -> Table:
        """The terms of both ranks."""
        before = self.steps_ps[0]
        rows = [
            (name, self.first[name], self.second[name], ps, ps / before if before else None)
            for name, ps in self.added_ps.items()
            if self.first[name] or self.second[name]
        ]
        columns = {"goes to": TEXT, "A": TIME, "B": TIME, "added": TIME, "of A's step": CHANGE}
        a, b = self.ranks
        title = f"Time of the rank that waits least (A: rank {a}, B: rank {b})"
        return Table(title, columns, tuple(rows))


def difference(first: Training, second: Training) -> Difference:
    """The difference of two large models' steps, A and B."""
    return Difference.of(*([stage.terms for stage in step.stages] for step in (first, second)))


def difference_tables(first: Training, second: Training) -> Iterator[Table]:
    """Tables of A beside B: time by term, and memory by kind."""
    yield difference(first, second).table()
    a, b = (max(step.stages, key=lambda stage: stage.memory.peak) for step in (first, second))
    held, other = a.memory.at_peak, b.memory.at_peak
    rows = [(kind, held.get(kind, 0), other.get(kind, 0)) for kind in {**held, **other}]
    rows.append(("all", a.memory.peak, b.memory.peak))
    shown = tuple((kind, x, y, change(x, y)) for kind, x, y in rows if x or y)
    title = f"Memory of the fullest rank at its peak (A: {a.device}, B: {b.device})"
    yield Table(title, {"holds": TEXT, "A": BYTES, "B": BYTES, "change": CHANGE}, shown)


def _thousandths(part_ps: int, whole_ps: int) -> int:
    """A part in thousandths, rounded half away from 0, so that swapping A and B only changes the
    sign.
    """
    if not whole_ps:
        return 0
    size = (2000 * abs(part_ps) + whole_ps) // (2 * whole_ps)
    return size if part_ps >= 0 else -size
