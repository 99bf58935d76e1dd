"""Makes the rows of a profile from a trace: chooses the steps, the operators, and their times.

``simdev import TRACE -o FILE.jsonl`` calls ``trace_profile``. ``replay`` makes the keys of
operators, ``updates`` those of an optimizer's step; rows have the fields that ``measure.operators``
writes.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...costs import Profile
from ...files.profile import read_profile
from ...files.reading import PathLike, label, read_source, text_of
from ...ground.errors import InputError
from ...ground.version import __version__
from ..capture import row_key
from ..kinds import Fields
from ..provenance import gpu_kind
from ..steps import Measured, profile_text
from ..timers import median, timing_fields
from .calls import Call, device_calls, fused_row, host_calls, is_fused, kernel_row
from .events import Argument, Event, Events, busy, is_shape, parse_events
from .replay import ATEN, DTYPES, Replayed, Types, UnknownError, fills_new_memory, replayed, shares
from .timeline import host_times
from .updates import OPTIMIZER, Parameter, Timed, gradients_of, optimizer_steps, update_rows

# Reconstructs the calls of a trace's operators; equal calls only once.


class Replay:
    """Reconstructs the calls of operators, and caches them.

    ``types`` is as in ``replayed``. A trace lacks the shapes of a list of more than 30 tensors;
    ``parameters`` are taken for such a list: an operator over so many tensors runs over all
    parameters or their gradients.
    """

    def __init__(self, types: Types, parameters: Sequence[Parameter] = ()) -> None:
        self.types = {**types, **{shape: getattr(torch, dtype) for shape, dtype in parameters}}
        self._shapes = [list(shape) for shape, _ in parameters]
        self._known: dict[str, list[Replayed] | str] = {}

    def _arguments(self, event: Event) -> list[Argument]:
        """The arguments of a call, with the shapes of long lists."""
        given = event.arguments()
        if not event.name.startswith(ATEN + "_foreach") or not self._shapes:
            return given
        return [
            argument._replace(shape=self._shapes, stride=None)
            if argument.type == "TensorList" and argument.shape == []
            else argument
            for argument in given
        ]

    def of(self, event: Event) -> list[Replayed] | str:
        """The call of an operator, or the reason why it cannot be reconstructed."""
        if is_fused(event.name):
            return [Replayed(*fused_row(event))]
        if not event.name.startswith(ATEN):
            return "no operator of PyTorch's own (aten)"
        fills = fills_new_memory(event)
        arguments = self._arguments(event)
        signature = f"{event.name} {event.phase} {fills} {arguments}"
        if signature not in self._known:
            try:
                self._known[signature] = replayed(event, arguments, self.types)
            except UnknownError as error:
                self._known[signature] = str(error)
        return self._known[signature]


def types_of(events: Events) -> Types:
    """The element type of every shape of which the trace determines it: the only type of the shape,
    or else the only floating-point type (the others are masks and indices).
    """
    types: defaultdict[tuple[int, ...], set[torch.dtype]] = defaultdict(set)
    for event in events.spans:
        for argument in event.arguments():
            # Python numbers are also written as tensors without dimensions.
            is_number = argument.shape == [] and argument.type in ("double", "long int")
            if argument.type in DTYPES and is_shape(argument.shape) and not is_number:
                types[tuple(argument.shape)].add(DTYPES[argument.type])
    chosen = {
        shape: known if len(known) == 1 else {dtype for dtype in known if dtype.is_floating_point}
        for shape, known in types.items()
    }
    return {shape: next(iter(known)) for shape, known in chosen.items() if len(known) == 1}


METHOD = "kineto"
LEAST_STEPS = 3  # with at least this many steps the first is warm-up, unless the caller says else
MOST_NOTED = 12
FEW = 0.001  # a smaller share of time that is missing in the rows is not worth a note


@dataclass(frozen=True)
class TraceProfile:
    """A profile made of a trace, the text of its file, and notes for the user."""

    profile: Profile
    text: str
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The number of rows and the kinds of device, for people."""
        return f"{len(self.profile.rows)} rows of {', '.join(self.profile.device_kinds)}"


@dataclass
class _RowSamples:
    """Samples of a row, in ns, over all steps: the device's time, the host's time inside the
    operator, and the host's whole time for it in a step. ``note`` is set where the times are shares
    of something larger.
    """

    row: Fields
    note: str = ""
    device: list[float] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    in_step: list[float] = field(default_factory=list)
    launches: int = 0

    def profile_row(self, kind: str) -> Fields:
        """A profile row of schema v1."""
        row = {
            "v": 1,
            **self.row,
            "dev": kind,
            "host_ns": median(self.host),
            "src": "measured",
            "meth": METHOD,
            **timing_fields([round(time) for time in self.device]),
        }
        if self.launches:
            # The time of kernels alone, as CUPTI measures it; gaps between launches come on top.
            row |= {"launches": self.launches, "kernel_ns": row["t_ns"]["p50"]}
        if self.in_step:
            row["host_step_ns"] = round(statistics.median(self.in_step))
        if self.note:
            # Only the whole was measured, not the shares.
            row |= {"src": "fitted", "note": self.note}
        return row


def import_trace(
    path: PathLike, device: str | None = None, warm_up: int | None = None
) -> TraceProfile:
    """The profile of a trace that ``torch.profiler`` wrote with ``record_shapes=True``.

    ``device`` is the kind of device of its rows (None: that of the GPU that the trace names; a
    trace of a CPU names none). The first ``warm_up`` steps are left out (None: one step, where
    there are three or more). Raises InputError.
    """
    raw, data = read_source(path)
    provenance = {
        "file": os.path.basename(label(path)),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "units": "times in us",
    }
    try:
        return trace_profile(text_of(data, path), device, warm_up, provenance)
    except InputError as error:
        raise error.within(label(path)) from None


def trace_profile(
    text: str,
    device: str | None = None,
    warm_up: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> TraceProfile:
    """The profile of a trace's text, as in ``import_trace``; ``provenance`` describes its file."""
    events = parse_events(text)
    kind = kind_of_device(events, device)
    steps, skipped, marked = steps_of(events, warm_up)
    reading = _Reading(events, steps, marked)
    if not reading.rows:
        raise InputError(
            "no shapes of operators: profile with record_shapes=True"
            if any("shapes" in reason for reason in reading.reasons.values())
            else "no operator of which a row could be made"
        )
    rows = [samples.profile_row(kind) for samples in reading.rows.values()]
    step = _step_report(reading, steps)
    header = {
        "device": {"kind": kind, "names": list(events.devices)},
        "tool": f"simdev {__version__}",
        "provenance": {"kind": "imported", "format": "kineto", **(provenance or {})},
    }
    method = {"timer": METHOD, "statistic": "median", "steps": len(steps), "warm_up_steps": skipped}
    unmeasured = [f"{name}: {reason}" for name, reason in reading.reasons.items()]
    return TraceProfile(
        read_profile({"header": {"v": 1, "header": header | {"step": step}}, "rows": rows}),
        profile_text(Measured(rows, {}, step, method, unmeasured), header),
        tuple(_notes(reading, steps, skipped, marked)),
    )


def kind_of_device(events: Events, device: str | None) -> str:
    """The kind of device of the rows: ``device``, else by the trace. Raises InputError."""
    if device is not None:
        return device
    if not events.kernels:
        reason = "a trace of a CPU does not tell which; any name will do (epyc-1core, my-cpu)"
        raise InputError(f"--device: missing; {reason}")
    kinds = sorted({gpu_kind(name) for name in events.devices})
    if len(kinds) != 1:
        raise InputError(f"--device: missing; the trace names {', '.join(kinds) or 'no GPU'}")
    return kinds[0]


def steps_of(events: Events, warm_up: int | None) -> tuple[list[Event], int, bool]:
    """The steps that count, the number left out as warm-up, and whether the trace marks steps.

    A profiler without a schedule marks none: then the steps of an optimizer, if several, separate
    them. Without these too the list is empty: the whole trace is a step. Raises InputError.
    """
    marked = bool(events.steps)
    # Sorted by time: numbers start again when a profiler is started again.
    steps = sorted(events.steps or optimizer_steps(events), key=lambda step: step.start)
    count = len(steps)
    if warm_up is not None and warm_up < 0:
        raise InputError(f"--warm-up: must not be negative, got {warm_up}")
    if warm_up and not count:
        raise InputError("--warm-up: the trace marks no steps (profiler.step())")
    skipped = warm_up if warm_up is not None else int(count >= LEAST_STEPS)
    if count and skipped >= count:
        raise InputError(f"--warm-up: {skipped} of {count} steps leaves none")
    return steps[skipped:], skipped, marked


class _Reading:
    """The samples of all rows, and the operators that could not become rows, with the reasons
    (``reasons``) and their ns (``left_out``).

    ``unclaimed`` are the kernels that no operator launched; ``fused`` counts the calls of compiled
    kernels, and their ns.
    """

    def __init__(self, events: Events, steps: Sequence[Event], marked: bool) -> None:
        self.events = events
        self.has_kernels = bool(events.kernels)
        self.types = types_of(events)
        gradients = gradients_of(events, steps[0].start if steps else 0)
        self.parameters = [parameter for _, parameter in gradients]
        self.rows: dict[str, _RowSamples] = {}
        self.reasons: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.totals: defaultdict[int, float] = defaultdict(float)
        self.unclaimed: list[Event] = []
        self.fused, self.calls = [0, 0], 0
        # By step of an optimizer: its span, the number of the training step, its timed operators.
        self._updates: dict[int, tuple[Event, int, list[Timed]]] = {}
        # For each operator of an optimizer: the number of kernels, and the host's ns.
        self._launches: Counter[int] = Counter()
        self._in_step: Counter[int] = Counter()
        self._replay = Replay(self.types, self.parameters)
        calls = calls_of(events, steps)
        # A CPU is its own host.
        self._hosts = host_times(events, calls, steps, marked) if self.has_kernels else {}
        for call in calls:
            self._add_call(call)
        self._add_updates()

    def _add_call(self, call: Call) -> None:
        kernels = [kernel for _, kernel in call.kernels]
        time = busy(kernels) if kernels else call.host_ns
        event = call.event
        self.calls += 1
        if event is None and is_fused(call.name):
            self._add_rows(call, [kernel_row(call.name, call.phase)], time)
            return
        if event is None:
            self.unclaimed += kernels
            return
        for span in event.above():
            if span.name.startswith(OPTIMIZER):
                self._updates.setdefault(id(span), (span, call.step, []))[2].append((event, time))
                self._launches[id(event)] += len(kernels)
                self._in_step[id(event)] += self._hosts.get(id(call), 0)
                return
        parts = self._replay.of(event)
        if isinstance(parts, str):
            self._leave_out(event.name, parts, time)
            return
        self._add_rows(call, [part.row for part in parts], time)

    def _add_rows(self, call: Call, rows: Sequence[Fields], time: int) -> None:
        """Adds a call's time, divided among its rows."""
        if is_fused(call.name):
            self.fused = [self.fused[0] + 1, self.fused[1] + time]
        note = "its share of one operator's time, by operations" if len(rows) > 1 else ""
        for row, share in zip(rows, shares(rows) if note else [1.0] * len(rows), strict=True):
            # The launches are divided too: all rows together are the call.
            launches = -(-len(call.kernels) // len(rows))
            in_step = self._hosts[id(call)] / len(rows) if self._hosts else 0.0
            self._add(row, time * share, call.host_ns // len(rows), in_step, launches, note)
            self.totals[call.step] += time * share

    def _add_updates(self) -> None:
        """Makes rows of the optimizer's steps."""
        # The first step of an optimizer creates its state with other operators than later steps:
        # the kind follows from all steps together.
        updates = self._updates.values()
        present = {event.name for _, _, operators in updates for event, _ in operators}
        note = "its share of an optimizer's step, by elements"
        for step, number, operators in updates:
            rows = update_rows(step, operators, present, self.types, self.parameters)
            time = sum(duration for _, duration in operators)
            if not rows:
                self._add_unknown(step, number, operators)
                continue
            self.totals[number] += time
            kernels, in_step = (
                sum(counts[id(event)] for event, _ in operators)
                for counts in (self._launches, self._in_step)
            )
            # A few kernels over lists of all parameters are less than one launch for each row.
            host, launches = step.duration // len(rows), round(kernels / len(rows))
            for row, share in rows:
                self._add(row, time * share, host, in_step / len(rows), launches, note)

    def _add_unknown(self, step: Event, number: int, operators: Sequence[Timed]) -> None:
        """Makes rows of the operators of an optimizer without an update op in simdev."""
        for event, time in operators:
            parts = self._replay.of(event)
            if isinstance(parts, str) or len(parts) != 1:
                reason = "an optimizer whose updates simdev does not know"
                self._leave_out(step.name, reason, time)
                continue
            row = parts[0].row | {"phase": "opt"}
            in_step, launches = self._in_step[id(event)], self._launches[id(event)]
            self._add(row, time, event.duration, in_step, launches, "")
            self.totals[number] += time

    def _leave_out(self, name: str, reason: str, time: int) -> None:
        self.reasons.setdefault(name, reason)
        self.left_out[name] += time

    def _add(
        self, row: Fields, time: float, host: int, in_step: float, launches: int, note: str
    ) -> None:
        samples = self.rows.setdefault(row_key(row), _RowSamples(row, note))
        samples.device.append(time)
        samples.host.append(host)
        samples.in_step += [in_step] if self._hosts else []
        samples.launches = max(samples.launches, launches)


def calls_of(events: Events, steps: Sequence[Event]) -> Sequence[Call]:
    """The calls of all steps: by their kernels, where the trace has any."""
    return device_calls(events, steps) if events.kernels else list(host_calls(events, steps))


def _step_report(reading: _Reading, steps: Sequence[Event]) -> Fields:
    """The header's entry ``step``: the sum of the rows in a step, and the step's time on the host,
    in seconds.
    """
    count = max(1, len(steps))
    rows_ns = statistics.median(reading.totals[i] for i in range(count))
    times: dict[str, float] = {
        "rows_s": rows_ns,
        "left_out_s": sum(reading.left_out.values()) / count,
    }
    if reading.has_kernels:
        times["unclaimed_s"] = busy(reading.unclaimed) / count
    if reading.fused[0]:
        times["compiled_s"] = reading.fused[1] / count
    if steps:
        times["step_s"] = statistics.median(step.duration for step in steps)
    return {"steps": len(steps)} | {name: round(time) / 1e9 for name, time in times.items()}


def _notes(reading: _Reading, steps: Sequence[Event], skipped: int, marked: bool) -> Iterator[str]:
    count = max(1, len(steps))
    if skipped:
        yield f"left out {skipped} of {len(steps) + skipped} steps as warm-up"
    if not steps:
        yield "the trace marks no steps: every call counts, those of the warm-up too"
    elif not marked:
        yield f"the trace marks no steps: {len(steps) + skipped} are told by the optimizer's"
    if not reading.has_kernels:
        yield "times of a CPU hold the profiler's own work on every operator inside"
    total = sum(reading.totals.values()) / count
    unclaimed = busy(reading.unclaimed) / count
    if unclaimed > FEW * total:
        yield (f"{unclaimed / 1e6:.3f} ms a step of kernels belong to no operator and are left out")
    if reading.fused[0]:
        calls, time = (amount / count for amount in reading.fused)
        yield (
            f"{calls:.0f} of {reading.calls / count:.0f} calls a step, {time / total:.1%} of the "
            "rows' time, are kernels that a compiler fused: of what they compute a trace tells the "
            "tensors and no more"
        )
    shared = Counter(samples.note for samples in reading.rows.values() if samples.note)
    for note, rows in shared.items():
        yield f"{rows} rows are no measurements: each has {note}"
    for name, left in reading.left_out.most_common(MOST_NOTED):
        yield f"left out {name} ({left / count / 1e6:.3f} ms a step): {reading.reasons[name]}"
