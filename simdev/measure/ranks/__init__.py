"""Captures an unchanged distributed training script, without a GPU and without running all ranks.

``capture_ranks`` runs the script once for each rank whose step differs, each in its own process.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import SIG_IGN, SIGINT, Signals, signal
from threading import Thread
from typing import Any

from torch._C._distributed_c10d import FileStore

from ...execution.scenario import Scenario, load_scenario
from ...ground.ending import unfinished
from ...ground.errors import InputError, within
from ...ground.jobs import uncollected
from .pretend import Mail, World
from .scenario import Machine, machine_of, scenario_of, world_of
from .scripts import Program, captured_rank, run_file, run_function
from .writing import RankStep, RankWriter

MOST_RANKS = 64
"""The greatest number of differing ranks that are captured."""
MOST_NAMED = 8
"""The greatest number of ranks that are compared because the script names them."""
AT_ONCE = 16
"""The greatest number of ranks that run at a time, each in a process of about 0.5 GB."""


@dataclass(frozen=True)
class Captured:
    """The steps of the captured ranks, in the order of ranks, and notes for people.

    ``world`` is the number of ranks, ``per_node`` their number on a node. Every rank that is not
    captured is taken to do the same as a captured one. The ranks in ``compared`` were run to
    confirm this; for all others it is assumed.
    """

    steps: tuple[RankStep, ...]
    world: int
    notes: tuple[str, ...]
    per_node: int = 8
    compared: tuple[int, ...] = ()

    def document(
        self, cluster: Machine, profiles: Sequence[str] | None = None, **settings: Any
    ) -> dict[str, Any]:
        """The scenario on a cluster, in files' format (``scenario_of``). Raises InputError."""
        world = World(self.world, per_node=self.per_node)
        settings = {"notes": self.notes, "compared": self.compared, **settings}
        return scenario_of(self.steps, world, cluster, profiles, **settings)

    def scenario(
        self, cluster: Machine, profiles: Sequence[str] | None = None, **settings: Any
    ) -> Scenario:
        """The scenario on a cluster, which is a preset ("dgx-h100"), a path, or an object with
        settings ({"preset": "dgx-h100", "nodes": 2}). Raises InputError.
        """
        return load_scenario(self.document(cluster, profiles, **settings))


def capture_ranks(
    step: str | Path | Callable[..., Any],
    world: int | None = None,
    ranks: Sequence[int] = (),
    *,
    mesh: Mapping[str, int] | None = None,
    cluster: Machine | None = None,
    arguments: Sequence[str] = (),
    per_node: int | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda _: None,
    compare_all: bool = False,
) -> Captured:
    """Captures one training step of a distributed script, or of a function, without a GPU.

    ``step`` is the path of a script with its ``arguments``, or a function that trains or that
    returns (model, inputs, loss). Such a function is called with a device mesh of the dimensions
    ``mesh``, like {"dp": 8, "tp": 4}. The number of ranks is that of the mesh, or ``world``, or the
    number of devices of the ``cluster``; ``per_node`` of them share a node (default: the devices of
    the cluster's node, else 8). ``ranks`` are the ranks to capture; without them the ranks that
    differ are searched (``_differing``), with ``compare_all`` among all ranks. ``progress`` is
    called with the number of ranks done. ``settings`` replace arguments that the script passes to
    its wrappers (``settings.SETTINGS``). Raises InputError.
    """
    shape = dict(mesh or {})
    size = prod(shape.values()) if shape and world is None else world
    if shape and size != prod(shape.values()):
        raise InputError(f"mesh: has {prod(shape.values())} ranks, the world {size}")
    if cluster is None:
        whole = World(size or 1, per_node=per_node or 8)
    else:
        whole = world_of(machine_of(cluster, size)[1], size, per_node)
    program = partial(run_function, step, shape) if callable(step) else _of_file(step, arguments)
    with within(getattr(step, "__name__", str(step))):
        return capture_program(program, whole, ranks, progress, settings, compare_all)


def _of_file(file: str | Path, arguments: Sequence[str]) -> partial[None]:
    path = Path(file)
    if not path.is_file():
        raise InputError("no such file", str(file))
    return partial(run_file, path, arguments)


def capture_program(
    program: Program,
    world: World,
    ranks: Sequence[int] = (),
    progress: Callable[[int], None] = lambda _: None,
    settings: Mapping[str, Any] | None = None,
    compare_all: bool = False,
) -> Captured:
    """Captures one step of a training loop in a world of ranks (``capture_ranks``). Raises
    InputError.
    """
    _load()
    with tempfile.TemporaryDirectory() as folder, unfinished(folder), uncollected():
        runs = _Runs(program, world, Path(folder), progress, settings or {})
        try:
            if ranks:
                runs.finish(ranks)
                return runs.captured(sorted(runs.done))
            return runs.captured(_differing(runs, compare_all))
        finally:
            runs.end()


def _load() -> None:
    """Imports PyTorch's modules that scripts use, once: every rank is a fork of this process."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode()


class _Runs:
    """The processes that capture ranks. ``done`` holds the captured steps by rank."""

    def __init__(
        self,
        program: Program,
        world: World,
        folder: Path,
        progress: Callable[[int], None],
        settings: Mapping[str, Any],
    ) -> None:
        self.program, self.world, self.progress = program, world, progress
        self.settings = settings
        self.store = str(folder / "mail")
        self.done: dict[int, RankStep] = {}
        self.compared: tuple[int, ...] = ()
        self.stands: dict[int, int] = {}
        self._running: dict[int, tuple[Any, Connection]] = {}

    def start(self, rank: int, stands: int | None = None) -> None:
        """Starts a rank. With ``stands`` it receives the messages of that rank in place of its own,
        so that the two can be compared.
        """
        if rank in self.done or rank in self._running:
            return
        if not 0 <= rank < self.world.size:
            raise InputError(f"rank {rank}: the world has {self.world.size} ranks")
        if stands is not None:
            self.stands[rank] = stands
        context = multiprocessing.get_context("fork")
        mine, its = context.Pipe()
        world = replace(self.world, rank=rank)
        target = partial(_child, self.program, self.settings, world, self.store, stands, its)
        process = context.Process(target=target, daemon=True)
        process.start()
        its.close()
        self._running[rank] = process, mine

    def finish(self, ranks: Sequence[int]) -> None:
        """Captures these ranks, and all ranks that send them messages. Raises InputError."""
        for rank in ranks:
            self.start(rank)
        while self._running:
            pipes = {pipe: rank for rank, (_, pipe) in self._running.items()}
            for pipe in wait(list(pipes)):
                self._hear(pipes[pipe], pipe)  # type: ignore[index, arg-type]

    def _hear(self, rank: int, pipe: Connection) -> None:
        try:
            word, value = pipe.recv()
        except EOFError:
            process = self._running.pop(rank)[0]
            process.join()
            raise InputError(f"rank {rank}: its process {_ending(process.exitcode)}") from None
        if word == "need":
            self.start(value)
            return
        self._running.pop(rank)[0].join()
        if word == "problems":
            raise InputError([f"rank {rank}: {problem}" for problem in value])
        self.done[rank] = value
        self.progress(len(self.done))
        if rank not in self.stands:
            for peer in _peers(value):
                self.start(peer)

    def sorts(self, ranks: Iterable[int]) -> dict[str, int]:
        """Runs these ranks with the messages of rank 0. Returns, for each distinct fingerprint
        among rank 0 and these, the first rank that has it.
        """
        samples = sorted(ranks)
        for first in range(0, len(samples), AT_ONCE):
            for rank in samples[first : first + AT_ONCE]:
                self.start(rank, stands=0)
            self.finish([])
        sorts: dict[str, int] = {}
        for rank in (0, *samples):
            sorts.setdefault(self.done[rank].fingerprint, rank)
        return sorts

    def all_of(self, group: Sequence[int]) -> dict[str, int]:
        """Captures all ranks of a group, each as distinct. Raises InputError where they are too
        many.
        """
        if len(group) > MOST_RANKS:
            raise InputError(
                f"no two ranks that were captured of a group of {len(group)} do the same: name "
                "those to capture (--rank)"
            )
        self.finish(group)
        return {f"{rank}": rank for rank in group}

    def captured(self, ranks: Sequence[int]) -> Captured:
        """The answer with the steps of these ranks."""
        steps = tuple(self.done[rank] for rank in ranks)
        notes = tuple(dict.fromkeys(note for step in steps for note in step.notes))
        size, per_node = self.world.size, self.world.per_node
        return Captured(steps, size, notes, per_node, self.compared)

    def end(self) -> None:
        """Ends all processes that are still running."""
        for process, _ in self._running.values():
            process.kill()
            process.join()


def _ending(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"was ended by {Signals(-code).name}"


def _peers(step: RankStep) -> list[int]:
    """The ranks with which a rank exchanges messages."""
    return sorted(
        {m.peer for m in step.messages.values() if m.kind == "p2p" and m.peer is not None}
    )


def _groups(step: RankStep) -> list[tuple[int, ...]]:
    """The groups of more than one rank in which a rank takes part."""
    groups = (m.group for m in step.messages.values() if m.kind != "p2p")
    return list(dict.fromkeys(group for group in groups if len(group) > 1))


def _differing(runs: _Runs, compare_all: bool) -> list[int]:
    """The ranks whose steps differ: rank 0, the ranks that it exchanges messages with, and every
    rank with a new fingerprint among samples of its groups (or among all ranks).

    The samples are two ranks that differ from rank 0 in all of its groups at once, and the ranks
    with which the script compares its own rank. Only where their steps differ from rank 0's is each
    group sampled separately.
    """
    runs.finish([0])
    kept = set(runs.done)
    # Without groups, the whole world is treated as a group: ranks may still differ.
    groups = _independent(runs.done[0], kept)
    if not groups and runs.world.size > 1:
        groups = [tuple(range(runs.world.size))]
    samples = {sum(group[i] for group in groups) for i in (1, -1)}
    ranks = range(runs.world.size)
    named = [rank for rank in runs.done[0].named if rank in ranks]
    samples = (samples | set(ranks if compare_all else named[:MOST_NAMED])) - kept
    sorts = runs.sorts(samples)
    if len(sorts) > 1:
        for group in groups:
            near = {group[1], group[len(group) // 2], group[-1]}
            here = runs.sorts(near)
            if len(here) == 4:
                # All four steps differ: no rank can represent another.
                here = runs.all_of(group)
            samples, sorts = samples | near, sorts | here
    # With each kept rank the ranks that it exchanges messages with are kept too.
    for rank in sorts.values():
        runs.finish(_peers(runs.done[rank]))
        runs.stands.pop(rank, None)
    kept = runs.done.keys() - runs.stands.keys()
    runs.compared = tuple(sorted(samples - kept))
    return sorted(kept)


def _independent(step: RankStep, known: Collection[int]) -> list[tuple[int, ...]]:
    """The groups of a rank that share no other rank with one another or with ``known``: the
    dimensions of its mesh along which ranks may do the same.
    """
    chosen: list[tuple[int, ...]] = []
    seen = set(known)
    for group in sorted(_groups(step), key=len):
        if seen.isdisjoint(set(group) - {step.rank}):
            chosen.append(group)
            seen |= set(group)
    return chosen


def _child(
    program: Program,
    settings: Mapping[str, Any],
    world: World,
    store: str,
    stands: int | None,
    pipe: Connection,
) -> None:
    """Captures one rank in a child process; sends its step or its problems through the pipe."""
    # Excludes the parent's objects from garbage collection: scanning them would take minutes.
    gc.freeze()
    gc.enable()  # tensors live as long as in a training loop
    # Ctrl-C reaches every process of a terminal; the parent ends this one.
    signal(SIGINT, SIG_IGN)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    mail = Mail(FileStore(store, -1), world.rank, lambda rank: pipe.send(("need", rank)), stands)
    with _silent(world.rank > 0):
        try:
            recorder = captured_rank(program, world, mail, settings)
            mail.end()
            pipe.send(("step", RankWriter(recorder).step()))
        except InputError as error:
            pipe.send(("problems", error.problems))


def _end_with(parent: int) -> None:
    # A killed parent cannot end its ranks, and a script may wait for ever: so each rank watches.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextlib.contextmanager
def _silent(is_silent: bool) -> Iterator[None]:
    """Hides the output of a script; where not ``is_silent``, sends its stdout to stderr."""
    if not is_silent:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
