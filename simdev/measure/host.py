"""The host's times of a step on a GPU, which runs behind its host: by phase, and by operator.

Calls of operators alone tell half of it: in a step the host also runs the modules, builds
autograd's graph and walks it. So the phases of real steps are timed on the host, never waiting for
the device, and each phase is split over its operators by what the profiler saw each of them take.
Nothing here asks what the device does, so that all of it runs on a CPU too.

``steps`` calls it for each step. What it writes under ``host`` in a profile's header is read by
``compare`` and by ``simdev.costs.dispatch``.
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
# A queue of about a thousand launches is what a host runs ahead by before it waits: within this
# time it does not fill one, and phases of few operators never do.
BREATH_NS, MOST_UNWATCHED = 2_000_000, 400
# So many events of the host may lie between two calls: a call that is not among them is missing,
# and the next one is not looked for at the other end of the step.
WINDOW = 128
# A split by what the profiler saw needs half of the operators found at least.
LEAST_MATCHED = 0.5
_WAIT = "simdev::wait"


@dataclass(frozen=True)
class StepParts:
    """A training step in pieces: its module, ``loss()`` and the optimizer."""

    module: nn.Module
    loss: Callable[[], Tensor]
    optimizer: Optimizer
    clear: Callable[[], None]


@dataclass(frozen=True)
class HostTimes:
    """The host's nanoseconds: ``phases``, a list of steps each, and the share of each distinct
    operator by key, one call of it; ``matched`` is the share of the calls that the profiler showed.
    """

    phases: Mapping[str, Sequence[int]]
    of_call: Mapping[str, float]
    matched: float

    def header(self, captured: Capture) -> Fields:
        """The entries of a profile's header on the phases."""
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
    """How many ops of a step belong to a phase."""
    code = PHASE_CODES[phase]
    return sum(n for key, n in captured.counts.items() if captured.rows[key]["phase"] == code)


@dataclass
class Breather:
    """Lets the device catch up before its queue is full, and keeps the time that this took, which
    is not the host's own.
    """

    synchronize: Callable[[], None]
    clock: Callable[[], int] = time.perf_counter_ns
    last: int = 0
    waited: int = 0

    def start(self) -> int:
        """Empties the queue; returns the time from which on the host is timed."""
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
        """Nanoseconds of the host since ``start``."""
        return self.clock() - start - self.waited

    @contextmanager
    def watching(self, forward: bool, backward: bool) -> Iterator[None]:
        """Breathes before every module's forward, and in the backward of modules that run forward
        here.
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
    """Times the host over ``count`` steps, and splits them as ``profiled`` others showed."""
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
    """Parameters of one element in the place of the module's: the optimizer makes as many calls for
    them, and the device is done with each before the next one comes.
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
        """Nanoseconds of the host for one update of all parameters."""
        start = breather.start()
        self.optimizer.step()
        return breather.spent(start)


# What the profiler saw.


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """An event of the host: from ``start`` to ``end`` in ns."""

    start: int
    end: int
    name: str = field(compare=False)


def _profiled(
    step: StepParts, captured: Capture, breather: Breather, many: Mapping[str, bool]
) -> tuple[dict[str, list[float]], float]:
    """The host's time of every dispatched call of forward and backward in one profiled step, as
    ``split`` tells them, and the share of calls that were found.
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
    """The host's time of calls of these ``names``, in their order, in ns: from the end of the call
    before to its own, without waits; None for a call that no span shows.

    So what Python does before a call is that call's. What follows the last one is the last one's.
    ``spans`` are in the order of their starts and hold calls within calls.
    """
    inside = [span for span in spans if within.start <= span.start and span.end <= within.end]
    waits = [span for span in inside if span.name == _WAIT]
    matches: list[Span | None] = []
    place, frontier = 0, within.start
    for name in map(_plain, names):
        # What lies within the call before is a part of that call.
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
    """A call's name without what tells that it is done in place: below autograd PyTorch decides
    that by whether anybody watches.
    """
    space, _, call = name.rpartition("::")
    return f"{space}::{call.strip('_')}"


def _of_calls(
    captured: Capture,
    phases: Mapping[str, Sequence[int]],
    splits: Sequence[Mapping[str, Sequence[float]]],
) -> dict[str, float]:
    """The host's time of one call by key: medians of the profiled steps, so stretched that a phase
    sums to what it took without a profiler.
    """
    shares = {
        key: median(sum(split[key]) / len(split[key]) for split in splits if key in split)
        for key in {key for split in splits for key in split}
    }
    # An update makes as many calls for each parameter.
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
