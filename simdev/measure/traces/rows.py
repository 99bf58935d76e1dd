"""The rows of a profile from a trace: which operators count, what of their time, and over which
steps.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...costs import Profile
from ...errors import InputError
from ...files.profile import read_profile
from ...files.reading import PathLike, label, read_source, text_of
from ...version import __version__
from .events import OPERATORS, Event, Events, busy, is_shape, parse_events
from .updates import optimizer_step, update_rows

if TYPE_CHECKING:
    import torch

METHOD = "kineto"
LEAST_STEPS = 3
"""From this many steps on the first one is warm-up, unless another number is asked for."""

MOST_TOLD = 12
FEW = 0.001
"""What the rows miss by less than this is not worth a note."""


@dataclass(frozen=True)
class TraceProfile:
    """A profile made of a trace: as a noun, as the text of its file, and what has to be known of
    it.
    """

    profile: Profile
    text: str
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return f"{len(self.profile.rows)} rows of {', '.join(self.profile.device_kinds)}"


@dataclass
class _Found:
    """Samples of one row, in ns, over all steps; ``note`` where its time is a share of something
    larger.
    """

    row: dict[str, Any]
    note: str = ""
    device: list[float] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    launches: int = 0


def import_trace(
    path: PathLike, device: str | None = None, warm_up: int | None = None
) -> TraceProfile:
    """The profile of a trace that ``torch.profiler`` wrote with ``record_shapes=True``.

    ``device`` is the kind of device of its rows (None: that of the GPU that the trace names; a
    trace of a CPU names none). The first ``warm_up`` steps are left out (None: one of three or
    more). Needs PyTorch. Raises InputError.
    """
    raw, data = read_source(path)
    told = {
        "file": os.path.basename(label(path)),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "units": "times in us",
    }
    try:
        return trace_profile(text_of(data, path), device, warm_up, told)
    except InputError as error:
        raise error.within(label(path)) from None


def trace_profile(
    text: str,
    device: str | None = None,
    warm_up: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> TraceProfile:
    """The profile of a trace's text, as ``import_trace`` makes it; ``provenance`` tells of its
    file.
    """
    _require_torch()
    events = parse_events(text)

    kind = _kind(events, device)
    steps, skipped = _steps(events, warm_up)
    reading = _Reading(events)
    for event, number in _operators(events, steps):
        reading.add(event, number)
    reading.finish()
    if not reading.found:
        raise InputError(reading.why_nothing())
    rows = [_row(one, kind) for one in reading.found.values()]
    step = _step_report(reading, steps)
    header = {"device": {"kind": kind, "names": list(events.devices)},
    "tool": f"simdev {__version__}",
              "provenance": {"kind": "imported", "format": "kineto", **(provenance
              or {})}}  # fmt: skip
    method = {"timer": METHOD, "statistic": "median", "steps": len(steps), "warm_up_steps": skipped}
    left = [f"{name}: {reason}" for name, reason in reading.reasons.items()]
    return TraceProfile(
        read_profile({"header": {"v": 1, "header": header}, "rows": rows}),
        _text(rows, header, method, step, left),
        tuple(_notes(reading, events, step, skipped)),
    )


def _text(
    rows: list[dict[str, Any]],
    header: dict[str, Any],
    method: dict[str, Any],
    step: dict[str, Any],
    left: list[str],
) -> str:
    """The text of the profile's file."""
    from ..front import profile_text
    from ..measure import Measured

    return profile_text(Measured(rows, {}, step, method, left), header)


def _kind(events: Events, device: str | None) -> str:
    """The kind of device of the rows. Raises InputError where it is not told."""
    from ..provenance import gpu_kind

    if device is not None:
        return device
    if not events.has_kernels:
        raise InputError("--device: missing; a trace of a CPU does not tell which (epyc-1core, ..)")
    kinds = sorted({gpu_kind(name) for name in events.devices})
    if len(kinds) != 1:
        raise InputError(f"--device: missing; the trace names {', '.join(kinds) or 'no GPU'}")
    return kinds[0]


def _steps(events: Events, warm_up: int | None) -> tuple[list[Event], int]:
    """The steps that count (none: the trace marks no steps), and how many were left out.

    Raises InputError.
    """
    steps = [event for _, event in events.steps]
    if warm_up is not None and warm_up < 0:
        raise InputError(f"--warm-up: must not be negative, got {warm_up}")
    skipped = warm_up if warm_up is not None else int(len(steps) >= LEAST_STEPS)
    if steps and skipped >= len(steps):
        raise InputError(f"--warm-up: {skipped} of {len(steps)} steps leaves none")
    if warm_up and not steps:
        raise InputError("--warm-up: the trace marks no steps (profiler.step())")
    return sorted(steps[skipped:], key=lambda step: step.start), skipped


def _operators(events: Events, steps: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """(operator that counts, number of its step), outermost first: composites are passed by for
    what they call.
    """
    from .replay import ATEN, is_composite

    composite: dict[str, bool] = {}
    starts = [step.start for step in steps]
    stack = list(reversed(events.roots))
    while stack:
        event = stack.pop()
        if event.category == "user_annotation" or event.category not in OPERATORS:
            stack.extend(reversed(event.children))
            continue
        if event.name.startswith(ATEN) and event.name not in composite:
            composite[event.name] = is_composite(event.name)
        counts = event.name.startswith(ATEN) and not composite[event.name]
        if not counts and any(child.category in OPERATORS for child in event.children):
            stack.extend(reversed(event.children))
        elif not steps:
            yield event, 0
        elif (number := bisect_right(starts, event.start) - 1) >= 0 and event.start < steps[
            number
        ].end:
            yield event, number


class _Reading:
    """Collects the samples of all rows, and what could not become one."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.types = _types(events)
        self.found: dict[str, _Found] = {}
        self.reasons: dict[str, str] = {}
        self.left: Counter[str] = Counter()
        self.updates: dict[int, tuple[Event, int, list[tuple[Event, int]]]] = {}
        self.totals: defaultdict[int, float] = defaultdict(float)
        self.claimed: set[int] = set()
        self._rows: dict[str, list[dict[str, Any]] | str] = {}

    def add(self, event: Event, number: int) -> None:
        """One more operator of the step with this number."""
        kernels = self.events.kernels(event) if self.events.has_kernels else []
        if self.events.has_kernels and not kernels:
            return  # a view, or work of the host alone
        self.claimed |= {id(kernel) for kernel in kernels}
        time = busy(kernels) if kernels else event.duration
        step = optimizer_step(event)
        if step is not None:
            self.updates.setdefault(id(step), (step, number, []))[2].append((event, time))
            return
        rows = self._rows_of(event)
        if isinstance(rows, str):
            self.reasons.setdefault(event.name, rows)
            self.left[event.name] += time
            return
        from .replay import shares

        for row, share in zip(
            rows, shares(rows) if len(rows) > 1 else [1.0] * len(rows), strict=True
        ):
            note = "its share of one operator's time, by operations" if len(rows) > 1 else ""
            self._add(row, time * share, event.duration, len(kernels), note)
            self.totals[number] += time * share

    def finish(self) -> None:
        """Makes rows of the optimizer's steps."""
        # The first step of an optimizer makes its state and runs others than those that follow:
        # they tell its kind.
        present = {
            event.name for _, _, operators in self.updates.values() for event, _ in operators
        }
        for step, number, operators in self.updates.values():
            rows = update_rows(step, [event for event, _ in operators], present, self.types)
            time = sum(one for _, one in operators)
            if not rows:
                self.reasons.setdefault(
                    step.name, "an optimizer whose updates simdev does not know"
                )
                self.left[step.name] += time
                continue
            self.totals[number] += time
            for row, share in rows:
                self._add(
                    row,
                    time * share,
                    step.duration,
                    0,
                    "its share of an optimizer's step, by elements",
                )

    def _add(self, row: dict[str, Any], time: float, host: int, launches: int, note: str) -> None:
        from ..capture import row_key

        one = self.found.setdefault(row_key(row), _Found(row, note))
        one.device.append(time)
        one.host.append(host)
        one.launches = max(one.launches, launches)

    def _rows_of(self, event: Event) -> list[dict[str, Any]] | str:
        """The rows of an operator, or why there are none; calls that are alike are put together
        once.
        """
        from .replay import ATEN, UnknownError, fills_new_memory, rows_of

        if not event.name.startswith(ATEN):
            return "no operator of PyTorch's own (aten)"
        told = (
            event.args.get(name)
            for name in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
        )
        signature = f"{event.name} {event.phase} {fills_new_memory(event)} {list(told)}"
        if signature not in self._rows:
            try:
                self._rows[signature] = rows_of(event, self.types)
            except UnknownError as error:
                self._rows[signature] = str(error)
        return self._rows[signature]

    def why_nothing(self) -> str:
        """Why no row was found."""
        if any("shapes" in reason for reason in self.reasons.values()):
            return "no shapes of operators: profile with record_shapes=True"
        return "no operator of which a row could be made"


def _types(events: Events) -> dict[tuple[int, ...], torch.dtype]:
    """The type of elements of every shape that the trace tells with one type only."""
    from .replay import DTYPES

    found: dict[tuple[int, ...], set[torch.dtype]] = {}
    for root in events.roots:
        for event in root.inside():
            shapes, kinds = event.args.get("Input Dims"), event.args.get("Input type")
            if isinstance(shapes, list) and isinstance(kinds, list):
                for shape, kind in zip(shapes, kinds, strict=False):
                    if isinstance(kind, str) and kind in DTYPES and is_shape(shape):
                        found.setdefault(tuple(shape), set()).add(DTYPES[kind])
    return {shape: next(iter(types)) for shape, types in found.items() if len(types) == 1}


def _row(one: _Found, kind: str) -> dict[str, Any]:
    """A profile row of schema v1."""
    from ..timers import median, quantile

    times = sorted(round(time) for time in one.device)
    p10, p50, p90 = quantile(times, 0.1), median(times), quantile(times, 0.9)
    row = {
        "v": 1,
        **one.row,
        "dev": kind,
        "t_ns": {"p10": p10, "p50": p50, "p90": p90, "min": times[0], "n": len(times)},
        "host_ns": median(one.host),
        "src": "measured",
        "meth": METHOD,
        "rel_err": round((p90 - p10) / (2 * max(1, p50)), 4),
    }
    if one.launches:
        row["launches"] = one.launches
    if one.note:
        row |= {"src": "fitted", "note": one.note}  # the whole was measured, the shares were not
    return row


def _step_report(reading: _Reading, steps: Sequence[Event]) -> dict[str, Any]:
    """What the rows add up to in a step, beside the step's own time on the host."""
    count = max(1, len(steps))
    totals = [reading.totals[i] for i in range(count)]
    found: dict[str, Any] = {"steps": len(steps), "rows_s": round(statistics.median(totals)) / 1e9}
    found["left_out_s"] = round(sum(reading.left.values()) / count) / 1e9
    if reading.events.has_kernels:
        found["unclaimed_s"] = round(_unclaimed(reading, steps) / count) / 1e9
    if steps:
        found["step_s"] = round(statistics.median(step.duration for step in steps)) / 1e9
    return found


def _unclaimed(reading: _Reading, steps: Sequence[Event]) -> int:
    """Nanoseconds of kernels that no operator launched: graphs that are launched as one,
    communication.
    """
    events = reading.events
    kernels = [
        one
        for ran in (*events.by_correlation.values(), *events.by_operator.values())
        for one in ran
    ]
    first, last = (steps[0].start, steps[-1].end) if steps else (0, max(one.end for one in kernels))
    return busy(
        [one for one in kernels if first <= one.start < last and id(one) not in reading.claimed]
    )


def _notes(
    reading: _Reading, events: Events, step: Mapping[str, Any], skipped: int
) -> Iterator[str]:
    if skipped:
        yield f"left out {skipped} of {len(events.steps)} steps as warm-up"
    if not events.steps:
        yield "the trace marks no steps: every call counts, those of the warm-up too"
    if not events.has_kernels:
        yield "times of a CPU hold the profiler's own work on every operator inside"
    if step.get("unclaimed_s", 0) > FEW * step["rows_s"]:
        yield (
            f"{step['unclaimed_s'] * 1e3:.3f} ms a step of kernels belong to no operator "
            "and are left out"
        )
    for note in dict.fromkeys(one.note for one in reading.found.values() if one.note):
        count = sum(one.note == note for one in reading.found.values())
        yield f"{count} rows are no measurements: each has {note}"
    for name, time in reading.left.most_common(MOST_TOLD):
        yield (
            f"left out {name} ({time / max(1, step['steps']) / 1e6:.3f} ms a step): "
            f"{reading.reasons[name]}"
        )


def _require_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InputError('a trace of PyTorch needs PyTorch: install the extra "simdev[torch]"')
