"""Measures the operators of a capture one by one, and the machine's noise while it does so.

Each distinct operator runs on preallocated random inputs, up to three sets in turn, after warm-ups;
its time is the median of the samples. Updates, and all operators of a CPU, run in turns, one after
another as a step runs them: an operator that is repeated alone would read its tensors from a warm
cache, which no step does (on a GPU the timer empties the caches).

``steps`` calls it for captured steps and grids. ``simdev.files.profile`` reads the rows made here;
a new field of a row has to be known there, and to ``doctor`` where it can be wrong.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..nouns.semantics import work
from .capture import Capture
from .kinds import Fields, named_arguments
from .record import Call, TensorSpec, call_of
from .timers import (
    FLUSH_BYTES,
    INPUT_SETS,
    LEAST_SAMPLE_NS,
    Samples,
    Thunk,
    Timer,
    cuda_kernels,
    extent_behind,
    first_line,
    median,
    needs_real,
    thunk_on,
    thunks,
    timing_fields,
    workspace_bytes,
)

# Runs work in a child process, whose death is an error of that work and not the end of the run.

Result = TypeVar("Result")


def isolated(work: Callable[[], Result]) -> Result:
    """The result of ``work``, run in a forked child, which sees all data of this process.

    Raises RuntimeError where ``work`` raised anything, or where the child died. Where a system
    cannot fork, the work runs in this process. A child has no CUDA device, because a CUDA context
    does not survive a fork.
    """
    if not hasattr(os, "fork"):
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that the child lacks the parent's threads; measuring uses a single thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except BaseException:  # Ctrl-C and SIGTERM, which end the child too
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise RuntimeError(f"the process that measured it died ({name})")
    if not answer:
        raise RuntimeError(f"the process that measured it ended with code {status >> 8}")
    # Unpickling is safe: the child is this program.
    fine, result = pickle.loads(answer)
    if not fine:
        raise RuntimeError(result)
    return result  # type: ignore[no-any-return]


def _answer(work: Callable[[], object], writing: int) -> None:
    """Runs the work in the child, writes its result to the pipe and ends the process at once: the
    usual exit of Python would flush the parent's files a second time.
    """
    faulthandler.disable()
    try:
        try:
            answer = pickle.dumps((True, work()))
        except Exception as error:
            answer = pickle.dumps((False, first_line(error)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    except BaseException:
        os._exit(1)
    os._exit(0)


# Keeps the tensors that calls have in a real step, for calls that cannot run on random tensors.


class Keeper(TorchDispatchMode):
    """Keeps copies of the tensors of the first call that equals each wanted call, while active."""

    def __init__(self, wanted: Mapping[str, Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[str, list[Tensor]] = {}
        self._wanted: dict[tuple[Any, tuple[TensorSpec, ...]], list[tuple[str, Call]]] = {}
        for key, call in wanted.items():
            self._wanted.setdefault((call.func, call.specs), []).append((key, call))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator, and keeps its tensors as they were before the call."""
        kwargs = kwargs or {}
        arguments = named_arguments(func, args, kwargs)
        tensors = [
            leaf for leaf in tree_leaves(list(arguments.values())) if isinstance(leaf, Tensor)
        ]
        specs = tuple(map(TensorSpec.of, tensors))
        for key, call in self._wanted.get((func, specs), ()):
            same = call_of(func, arguments, tensors, ())
            # A convolution's backward is measured in two parts, whose arguments may differ.
            if key not in self.kept and (same.args, same.kwargs) == (call.args, call.kwargs):
                self.kept[key] = [_copied(tensor) for tensor in tensors]
        return func(*args, **kwargs)


def keep_from(run: Callable[[], object], wanted: Mapping[str, Call]) -> dict[str, list[Tensor]]:
    """The tensors of each wanted call, by key, from one ``run`` of the step; calls that the run
    does not make are left out.
    """
    if not wanted:
        return {}
    keeper = Keeper(wanted)
    with keeper:
        run()
    return keeper.kept


def _copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides, in new memory."""
    with torch.no_grad():
        extent = extent_behind(tensor.shape, tensor.stride())
        flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
        return flat.clone().as_strided(tensor.shape, tensor.stride())


_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)
Progress = Callable[[int, int, str], None]
"""A callback for progress: (done, total, kind of the op just measured)."""

PASSES = 2
WARM_UPS, WARM_UPS_LONG = 5, 1
LONG_S = 0.5  # an operator that lasts longer is warm after one call
MOST_REPS, LEAST_REPS = 200, 10
IDLE_REPEATS, IDLE_REPS = 20, 15
NOISE_LIMIT = 0.05
TURN_WARM_UPS = 2
# Operators that run in turns hold more than the caches together.
TURN_BYTES = 2 * FLUSH_BYTES["cpu"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a capture is measured.

    ``device`` is "cpu" or "cuda"; ``kind`` is the device kind written in the rows; measuring takes
    about ``seconds``; ``flush`` empties the caches before each sample.
    """

    device: str
    kind: str
    seconds: float
    flush: bool = False
    progress: Progress | None = None

    def tell(self, what: str) -> None:
        """Shows the work that precedes the first operator as progress."""
        if self.progress is not None:
            self.progress(0, 1, what)


class Noise:
    """A reference operator that is repeated through the run; the spread of its medians is the
    machine's noise.
    """

    def __init__(self, timer: Timer) -> None:
        generator = torch.Generator().manual_seed(0)
        # A matrix product of moderate size, short on every device.
        x, weight = (
            torch.randn(extent, 512, generator=generator).to(timer.device) for extent in (256, 512)
        )
        self.timer = timer
        self.thunks = [partial(torch.nn.functional.linear, x, weight)]
        self.medians: list[int] = []
        self.wall_per_cpu: list[float] = []
        timer.sample(self.thunks, WARM_UPS, 1)

    def repeat(self) -> None:
        """Measures one more median of the reference operator."""
        samples = self.timer.sample(self.thunks, IDLE_REPS, 1)
        self.medians.append(median(samples.device))
        self.wall_per_cpu.append(median(samples.wall) / max(1, self.medians[-1]))

    def report(self) -> Fields:
        """The coefficient of variation of the medians, and whether it is too large to trust the
        profile.
        """
        cv = statistics.pstdev(self.medians) / statistics.fmean(self.medians)
        return {
            "idle_repeat_cv": round(cv, 4),
            "limit": NOISE_LIMIT,
            "too_noisy": cv > NOISE_LIMIT,
            "repeats": len(self.medians),
            "wall_per_cpu": round(statistics.median(self.wall_per_cpu), 3),
        }


@dataclass
class _Budget:
    """The time that is left, shared equally among the units (operators) still to be measured."""

    end: float
    total: int
    noise: Noise
    progress: Progress | None
    done: int = 0

    def share(self, units: int = 1) -> float:
        """Seconds for the next units. Runs the reference operator first where a repeat is due."""
        if self.done * IDLE_REPEATS // self.total >= len(self.noise.medians):
            self.noise.repeat()
        return max(0.0, self.end - time.monotonic()) * units / (self.total - self.done)

    def finish(self, kind: str) -> None:
        """Counts a unit as done and reports the progress."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, kind)


class OperatorRun:
    """Measures a capture's operators within about ``seconds``, and collects their samples by key.

    ``step`` runs the real step once: operators that cannot run on random tensors use its tensors.
    """

    def __init__(
        self,
        captured: Capture,
        timer: Timer,
        noise: Noise,
        conditions: Conditions,
        seconds: float,
        step: Callable[[], object] | None = None,
    ) -> None:
        self.captured, self.timer, self.kind, self.step = captured, timer, conditions.kind, step
        self.samples: dict[str, list[Samples]] = {key: [] for key in captured.calls}
        self.shown: dict[str, Fields] = {}
        self.failed: dict[str, str] = {}
        self.kept: dict[str, list[Tensor]] = {}
        self.isolated: set[str] = set()
        self.turned: set[str] = set()
        self.interrupted = False
        end = time.monotonic() + seconds
        self.budget = _Budget(end, PASSES * len(captured.calls), noise, conditions.progress)

    def measure(self) -> None:
        """Goes through the operators several times: a slow spell of the machine then affects a few
        samples of each operator, not all samples of a few. An interrupt ends it; the samples taken
        until then are kept.
        """
        try:
            self.keep([key for key, call in self.captured.calls.items() if needs_real(call)])
            for _ in range(PASSES):
                self.go_through()
        except KeyboardInterrupt:
            self.interrupted = True

    def keep(self, keys: Sequence[str]) -> None:
        """Keeps the tensors that these operators have in a real step, where a step is given.

        From now on these operators are measured in a child process. Only operators that might crash
        are, because each costs a fork.
        """
        self.isolated.update(keys)
        wanted = {key: self.captured.calls[key] for key in keys}
        if self.step is not None:
            self.kept |= keep_from(self.step, wanted)

    def go_through(self) -> None:
        """One pass through all operators."""
        for keys in self._groups():
            share = self.budget.share(len(keys))
            if len(keys) > 1:
                sets = {key: thunks for key in keys for thunks in self._running(key)}
                self.turned.update(sets)
                for turn in measure_in_turns(list(sets.values()), self.timer, share):
                    for key, samples in zip(sets, turn, strict=True):
                        self.samples[key].append(samples)
            elif keys[0] not in self.failed:
                self._measure(keys[0], share)
            for key in keys:
                self.budget.finish(self.captured.rows[key]["op"])

    def _groups(self) -> Iterator[list[str]]:
        """Groups of keys of operators that run in turns. On a CPU a group's inputs just exceed
        TURN_BYTES; all updates are one group; every other operator is a group by itself.
        """
        calls, rows = self.captured.calls, self.captured.rows
        group: list[str] = []
        held = 0
        for key in calls:
            if rows[key]["phase"] == "opt":
                continue
            if self.timer.device != "cpu" or key in self.isolated:
                yield [key]
                continue
            group.append(key)
            held += INPUT_SETS * sum(spec.bytes for spec in calls[key].specs)
            if held > TURN_BYTES:
                yield group
                group, held = [], 0
        yield from filter(None, (group, [key for key in calls if rows[key]["phase"] == "opt"]))

    def _running(self, key: str) -> Iterator[list[Thunk]]:
        """The calls of an operator on its input sets, where it runs on random tensors. Yields
        nothing otherwise: the operator is then measured by itself, if at all.
        """
        if key in self.failed or key in self.isolated:
            return
        try:
            sets = self._thunks(key)
            with torch.no_grad():
                sets[0]()
        except _REFUSALS:
            self._measure(key, 0.0)
        else:
            yield sets

    def _measure(self, key: str, seconds: float) -> None:
        try:
            self.samples[key].append(self._sampled(key, seconds))
        except _REFUSALS as error:
            if key not in self.isolated:
                # It needs values that only a real step has: fetch them from one.
                self.keep([key])
                if key in self.kept:
                    self._measure(key, seconds)
                    return
            row = self.captured.rows[key]
            self.failed[key] = f"{row['op']} {row['in']}: {first_line(error)}"

    def _sampled(self, key: str, seconds: float) -> Samples:
        call = self.captured.calls[key]
        if key not in self.isolated:
            return measure_call(call, self.timer, seconds)
        if key not in self.kept and self.timer.device == "cuda":
            # A wrong index on a GPU would end this process, and CUDA cannot run in a forked child.
            raise RuntimeError("only a real step has its values, and none showed them")

        def work() -> tuple[Samples, Fields]:
            sets = self._thunks(key)
            return measure_call(call, self.timer, seconds, sets), _shown(sets, self.timer.device)

        alone = work if self.timer.device == "cuda" else lambda: isolated(work)
        samples, self.shown[key] = alone()
        return samples

    def _thunks(self, key: str) -> list[Thunk]:
        call = self.captured.calls[key]
        if key in self.kept:
            return [thunk_on(call, self.kept[key])]
        return thunks(call, self.timer.device)

    def rows(self) -> tuple[list[Fields], list[str]]:
        """The rows of the measured operators, in the order of the step, and for each of the others
        the reason why it was not measured.
        """
        made, unmeasured = [], []
        for key, samples in self.samples.items():
            row = self.captured.rows[key]
            if key in self.failed:
                unmeasured.append(self.failed[key])
            elif not samples:
                unmeasured.append(f"{row['op']} {row['in']}: interrupted")
            else:
                made.append(self._row(key, joined(samples)))
        return made, unmeasured

    def _row(self, key: str, samples: Samples) -> Fields:
        """A profile row of schema v1."""
        row, call = self.captured.rows[key], self.captured.calls[key]
        made = sum(spec.bytes for spec in call.made)
        amount = work(row["op"], row["attrs"], row["in"], row["out"], row["dt"])
        timing = timing_fields(samples.device)
        timing["t_ns"]["wall"] = median(samples.wall)
        shown = self.shown.get(key) or _shown(self._thunks(key), self.timer.device)
        method = self.timer.method + ("+in-turns" if key in self.turned else "")
        return {
            "v": 1,
            **row,
            "dev": self.kind,
            **timing,
            "host_ns": median(samples.host or samples.wall),
            "batch": samples.batch,
            "flops": None if amount is None else amount.flops,
            "br": sum(spec.bytes for spec in call.specs) if amount is None else amount.bytes_read,
            # An update has no outputs: it writes every tensor that it reads except the gradient.
            "bw": (made or call.specs[0].bytes * (len(call.specs) - 1))
            if amount is None
            else amount.bytes_written,
            "out_bytes": made,
            "saved": self.captured.saved.get(key, 0),
            **shown,
            "src": "measured",
            "meth": method + ("+step-inputs" if key in self.kept else ""),
        }


def _shown(sets: Sequence[Thunk], device: str) -> Fields:
    """The scratch memory and, on a GPU, the kernels of a call, determined by running it again."""
    shown = {"ws": workspace_bytes(sets[0], device), "launches": 1}
    if device == "cuda":
        launches, kernel_ns = cuda_kernels(sets)
        # Where CUPTI may not be used no kernels are seen: then their number is unknown.
        if launches:
            shown |= {"launches": launches, "kernel_ns": kernel_ns}
    return shown


def measure_call(
    call: Call, timer: Timer, seconds: float, sets: Sequence[Thunk] | None = None
) -> Samples:
    """Samples of one call in one pass, within about ``seconds``. The call runs on random inputs, or
    as the thunks ``sets`` run it. Warm-ups and the least number of repetitions run in any case.
    """
    sets = thunks(call, timer.device) if sets is None else sets
    with torch.no_grad():
        warm = timer.sample(sets, WARM_UPS_LONG, 1)
        if min(warm.device) < LONG_S * 1e9:
            warm = timer.sample(sets, WARM_UPS - WARM_UPS_LONG, 1)
        each = max(1, min(warm.device))
        # Only on a CPU: a GPU's events cost no system call, and its filler hides one launch.
        batch = max(1, min(64, LEAST_SAMPLE_NS // each)) if timer.device == "cpu" else 1
        cost = max(1, min(warm.wall)) * batch / 1e9
        reps = max(LEAST_REPS // PASSES, min(MOST_REPS // PASSES, int(seconds / cost)))
        return timer.sample(sets, reps, batch)


def measure_in_turns(
    of_calls: Sequence[Sequence[Thunk]], timer: Timer, seconds: float
) -> Iterator[list[Samples]]:
    """The samples of each call, turn by turn: a turn runs every call once, on its next input set.
    Takes about ``seconds``; warm-ups and the least number of repetitions run in any case.

    Results are kept for a turn, as a step keeps them, so that the next call writes to other memory.
    """
    reps, begin, turn = LEAST_REPS // PASSES, time.monotonic(), 0
    while turn < TURN_WARM_UPS + reps:
        kept: list[Any] = []
        chosen = [_keeping(sets[turn % len(sets)], kept) for sets in of_calls]
        with torch.no_grad():
            samples = [timer.sample([thunk], 1, 1) for thunk in chosen]
        turn += 1
        if turn > TURN_WARM_UPS:
            yield samples
        elif turn == TURN_WARM_UPS:
            each = max(1e-9, (time.monotonic() - begin) / TURN_WARM_UPS)
            reps = max(reps, min(MOST_REPS // PASSES, int(seconds / each) - TURN_WARM_UPS))


def _keeping(thunk: Thunk, kept: list[Any]) -> Thunk:
    def run() -> Any:
        kept.append(thunk())
        return kept[-1]

    return run


def joined(passes: Sequence[Samples]) -> Samples:
    """The samples of several passes as one."""
    device, wall, host = (
        [sample for part in passes for sample in getattr(part, name)]
        for name in ("device", "wall", "host")
    )
    return Samples(device, wall, host, passes[0].batch)
