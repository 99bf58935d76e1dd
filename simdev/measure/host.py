"""Measures the host's times of a step on a GPU, by phase and by operator.

Timing operators alone shows half of the host's work: in a step the host also runs the modules,
builds autograd's graph and walks it. So the phases of real steps are timed on the host, without
waiting for the device, and each phase is split among its operators in proportion to the times that
the profiler saw. Nothing here depends on the device, so all of it runs on a CPU too.

``steps`` calls it for each step. ``compare`` and ``simdev.costs.dispatch`` read the entries that it
writes under ``host`` in a profile's header.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.nn.modules import module as modules
from torch.profiler import ProfilerActivity, record_function

from ..costs import PHASE_CODES
from ..nouns.graph import PHASES
from .capture import Capture
from .kinds import Fields
from .timers import profiler
from .tracing import Optimizer

HOST_STEPS, HOST_WARM_UPS, PROFILED_STEPS = 7, 2, 3
# A host can run about a thousand launches ahead before it has to wait. Within BREATH_NS it does not
# fill this queue, and a phase of at most MOST_UNWATCHED operators never does.
BREATH_NS, MOST_UNWATCHED = 2_000_000, 400
# A call is searched among this many following events of the host; beyond them it counts as missing,
# so that it is not mistaken for a call of the same name at the other end of the step.
WINDOW = 128
# A phase is split by the profiler's times only where at least this share of its ops was matched.
LEAST_MATCHED = 0.5
_WAIT = "simdev::wait"


@dataclass(frozen=True)
class StepParts:
    """A training step in pieces: its module, ``loss()``, the optimizer, and ``clear()``, which
    clears the gradients.
    """

    module: nn.Module
    loss: Callable[[], Tensor]
    optimizer: Optimizer
    clear: Callable[[], None]


@dataclass(frozen=True)
class HostTimes:
    """The host's times in ns. ``phases`` lists each phase's times over the steps; ``of_call`` is
    the time of one call of each distinct operator, by key; ``matched`` is the share of the calls
    that the profiler showed.
    """

    phases: Mapping[str, Sequence[int]]
    of_call: Mapping[str, float]
    matched: float

    def header(self, captured: Capture) -> Fields:
        """The entries about phases in a profile's header."""
        return {
            "phases": {
                phase: {
                    "host_s": round(median(times) / 1e9, 9),
                    "ops": ops_of_phase(captured, phase),
                }
                for phase, times in self.phases.items()
            },
            "steps": len(self.phases["forward"]),
            "matched": round(self.matched, 4),
            "method": "phases on the host's clock without waiting for the device, split over "
            "operators as the profiler saw them",
        }


def ops_of_phase(captured: Capture, phase: str) -> int:
    """The number of a step's ops that belong to a phase."""
    code = PHASE_CODES[phase]
    return sum(n for key, n in captured.counts.items() if captured.rows[key]["phase"] == code)


@dataclass
class Breather:
    """Lets the device catch up before its queue is full, and adds up the time of these waits, which
    is not counted as the host's.
    """

    synchronize: Callable[[], None]
    clock: Callable[[], int] = time.perf_counter_ns
    last: int = 0
    waited: int = 0

    def start(self) -> int:
        """Empties the queue; returns the moment from which the host is timed."""
        self.synchronize()
        self.waited, self.last = 0, self.clock()
        return self.last

    def breathe(self, *_: Any) -> None:
        """Waits where the host may have run far ahead."""
        before = self.clock()
        if before - self.last < BREATH_NS:
            return
        with record_function(_WAIT):
            self.synchronize()
        self.last = self.clock()
        self.waited += self.last - before

    def spent(self, start: int) -> int:
        """The host's nanoseconds since ``start``, without waits."""
        return self.clock() - start - self.waited

    @contextmanager
    def watching(self, forward: bool, backward: bool) -> Iterator[None]:
        """Calls ``breathe`` before every module's forward where ``forward``, and where ``backward``
        in the backward of each module whose forward runs inside this block.
        """

        def watch(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(self.breathe)

        with ExitStack() as stack:
            if forward:
                stack.callback(modules.register_module_forward_pre_hook(self.breathe).remove)
            if backward:
                stack.callback(modules.register_module_forward_hook(watch).remove)
            yield


def measure_host(
    step: StepParts,
    captured: Capture,
    synchronize: Callable[[], None],
    count: int = HOST_STEPS,
    profiled: int = PROFILED_STEPS,
) -> HostTimes:
    """Times the host over ``count`` steps, and splits the times among the operators in proportion
    to ``profiled`` further steps.
    """
    breather = Breather(synchronize)
    many = {phase: ops_of_phase(captured, phase) > MOST_UNWATCHED for phase in PHASES}
    twins = _Twins(step, synchronize)
    phases: dict[str, list[int]] = {phase: [] for phase in PHASES}
    for i in range(HOST_WARM_UPS + count):
        times = {
            "forward": _forward(step, breather, many["forward"]),
            "backward": _backward(step, breather, many["backward"]),
            "update": twins.run(breather),
        }
        for phase, taken in times.items():
            phases[phase].extend([taken] * (i >= HOST_WARM_UPS))
    splits = [_profiled(step, captured, breather, many) for _ in range(profiled)]
    of_call = _of_calls(captured, phases, [split for split, _ in splits])
    return HostTimes(phases, of_call, min(matched for _, matched in splits))


def _forward(step: StepParts, breather: Breather, many: bool) -> int:
    with breather.watching(many, False):
        start = breather.start()
        step.clear()
        value = step.loss()
        spent = breather.spent(start)
    del value
    return spent


def _backward(step: StepParts, breather: Breather, many: bool) -> int:
    step.clear()
    with breather.watching(False, many):
        value = step.loss()
        start = breather.start()
        value.backward()
        return breather.spent(start)


class _Twins:
    """One-element twins of the module's parameters: the optimizer makes the same calls for them,
    and the device finishes each call before the next, so that the host never waits.
    """

    def __init__(self, step: StepParts, synchronize: Callable[[], None]) -> None:
        trained = [p for p in step.module.parameters() if p.requires_grad]
        self.parameters = [
            nn.Parameter(torch.zeros(1, dtype=p.dtype, device=p.device)) for p in trained
        ]
        for parameter in self.parameters:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = step.optimizer.make(self.parameters)
        self.synchronize = synchronize

    def run(self, breather: Breather) -> int:
        """The host's nanoseconds for one update of all parameters."""
        start = breather.start()
        self.optimizer.step()
        return breather.spent(start)


# Splitting a phase among its operators by a profiled step.


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """An event of the host: from ``start`` to ``end`` in ns."""

    start: int
    end: int
    name: str = field(compare=False)


def _profiled(
    step: StepParts, captured: Capture, breather: Breather, many: Mapping[str, bool]
) -> tuple[dict[str, list[float]], float]:
    """The host's times of the calls of forward and backward in one profiled step (as ``split``
    computes them), by key, and the share of calls that the profiler showed.
    """
    step.clear()
    breather.start()
    with profiler(ProfilerActivity.CPU) as trace:
        watching = breather.watching(many["forward"], many["backward"])
        with watching, record_function("simdev::forward"):
            value = step.loss()
        breather.start()
        with record_function("simdev::backward"):
            value.backward()
    breather.synchronize()
    spans = sorted(
        Span(event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in trace.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CPU
    )
    times: dict[str, list[float]] = {}
    seen = 0
    for phase in ("forward", "backward"):
        within = next(span for span in spans if span.name == f"simdev::{phase}")
        calls = [call for call in captured.dispatches if call.phase == phase]
        shares = split(within, spans, [call.name for call in calls])
        seen += sum(share is not None for share in shares)
        for call, share in zip(calls, shares, strict=True):
            for key in call.keys:
                if share is not None:
                    times.setdefault(key, []).append(share / len(call.keys))
    return times, seen / max(1, len([c for c in captured.dispatches if c.phase != "update"]))


def split(within: Span, spans: Sequence[Span], names: Sequence[str]) -> list[float | None]:
    """The host's time of each call of ``names``, in ns: from the end of the previous call to the
    end of this one, without waits. None for a call that no span shows.

    A call's time so includes the Python code before it; the last call's time also includes the rest
    of ``within``. ``spans`` are ordered by start, and include calls nested in other calls.
    """
    inside = [span for span in spans if within.start <= span.start and span.end <= within.end]
    waits = [span for span in inside if span.name == _WAIT]
    matches: list[Span | None] = []
    place, frontier = 0, within.start
    for name in map(_plain, names):
        # Spans inside the previous call are a part of that call.
        while place < len(inside) and inside[place].start < frontier:
            place += 1
        near = inside[place : place + WINDOW]
        match = next((span for span in near if _plain(span.name) == name), None)
        matches.append(match)
        frontier = frontier if match is None else match.end
    shares: list[float | None] = []
    before, last = within.start, max((i for i, span in enumerate(matches) if span), default=-1)
    for i, match in enumerate(matches):
        if match is None:
            shares.append(None)
            continue
        end = within.end if i == last else match.end
        waited = sum(max(0, min(w.end, end) - max(w.start, before)) for w in waits)
        shares.append(float(end - before - waited))
        before = match.end
    return shares


def _plain(name: str) -> str:
    """A call's name without the underscores that mark it as private or in place: which variant
    PyTorch dispatches below autograd depends on whether a dispatch mode is active.
    """
    space, _, call = name.rpartition("::")
    return f"{space}::{call.strip('_')}"


def _of_calls(
    captured: Capture,
    phases: Mapping[str, Sequence[int]],
    splits: Sequence[Mapping[str, Sequence[float]]],
) -> dict[str, float]:
    """The host's time of one call, by key: medians over the profiled steps, scaled so that the
    calls of a phase sum to the time that the phase took without a profiler.
    """
    shares = {
        key: median(sum(split[key]) / len(split[key]) for split in splits if key in split)
        for key in {key for split in splits for key in split}
    }
    # Updates count equally: each makes the same number of calls.
    shares |= {key: 1.0 for key, row in captured.rows.items() if row["phase"] == "opt"}
    of_call: dict[str, float] = {}
    for phase, times in phases.items():
        code = PHASE_CODES[phase]
        keys = [k for k in shares if captured.rows[k]["phase"] == code]
        known = sum(captured.counts[k] for k in keys)
        if known < LEAST_MATCHED * ops_of_phase(captured, phase):
            continue
        whole = sum(captured.counts[k] * shares[k] for k in keys)
        scale = median(times) * known / max(1, ops_of_phase(captured, phase)) / max(1.0, whole)
        of_call |= {k: shares[k] * scale for k in keys}
    return of_call
