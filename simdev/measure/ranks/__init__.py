"""Captures a distributed training script as it is, without a GPU and without its other ranks.

``capture_ranks`` runs the script once for each rank that differs, in processes of their own.
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
"""The most ranks that are captured because they differ."""
MOST_NAMED = 8
"""The most ranks that are compared because the script names them."""
AT_ONCE = 16
"""The most ranks that are compared at a time, each in a process of 0.5 GB or so."""


@dataclass(frozen=True)
class Captured:
    """The steps of the ranks that were captured, by rank, and what a person has to know.

    ``world`` is the number of ranks, of which each that is missing does as one of these, and
    ``per_node`` how many of them a node has. Of the missing ones those ``compared`` were run, and
    do so indeed; of all others it is assumed.
    """

    steps: tuple[RankStep, ...]
    world: int
    notes: tuple[str, ...]
    per_node: int = 8
    compared: tuple[int, ...] = ()

    def document(
        self, cluster: Machine, profiles: Sequence[str] | None = None, **settings: Any
    ) -> dict[str, Any]:
        """The scenario on a cluster, as a file has it (``scenario_of``). Raises InputError."""
        world = World(self.world, per_node=self.per_node)
        settings = {"notes": self.notes, "compared": self.compared, **settings}
        return scenario_of(self.steps, world, cluster, profiles, **settings)

    def scenario(
        self, cluster: Machine, profiles: Sequence[str] | None = None, **settings: Any
    ) -> Scenario:
        """The scenario on a cluster: a preset ("dgx-h100"), a path, or an object of one with
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
    """One training step of a distributed script, or of a function, without a GPU.

    ``step`` is the path of a script with its ``arguments``, or a function that trains, or that
    makes (model, inputs, loss). ``mesh``, like {"dp": 8, "tp": 4}, is that of the device mesh which
    such a function is called with. The world has as many ranks as the mesh, or ``world`` of them,
    else one on each device of the ``cluster``; ``per_node`` on a node (default: as the cluster has
    devices there, else 8). ``ranks`` are those to capture; without them the ranks that differ are
    found (``_differing``), with ``compare_all`` among all of them. ``progress`` is called with the
    number of ranks done. ``settings`` take the place of what the script gives its wrappers
    (``settings.SETTINGS``). Raises InputError.
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
    """One step of a training loop in a world of ranks (``capture_ranks``). Raises InputError."""
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
    """Loads what scripts use of PyTorch once, here: every rank is a copy of this process."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401
    from torch._subclasses.fake_tensor import FakeTensorMode

    FakeTensorMode()


class _Runs:
    """The processes that capture ranks. ``done`` are the steps by rank."""

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
        """Starts a rank; it reads the mail of the rank in whose place it stands, where one is
        given.
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
        """Captures these ranks, and all that send them something. Raises InputError."""
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
        """By what a rank does the first rank that does it, of rank 0 and of these, which read what
        rank 0 is sent.
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
        """All ranks of a group, each by itself. Raises InputError where these are too many."""
        if len(group) > MOST_RANKS:
            raise InputError(
                f"no two ranks that were captured of a group of {len(group)} do the same: name "
                "those to capture (--rank)"
            )
        self.finish(group)
        return {f"{rank}": rank for rank in group}

    def captured(self, ranks: Sequence[int]) -> Captured:
        """The steps of these ranks."""
        steps = tuple(self.done[rank] for rank in ranks)
        notes = tuple(dict.fromkeys(note for step in steps for note in step.notes))
        size, per_node = self.world.size, self.world.per_node
        return Captured(steps, size, notes, per_node, self.compared)

    def end(self) -> None:
        """Ends whatever is still running."""
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
    """The ranks whose steps differ: rank 0 and those that it exchanges messages with, and those of
    another sort that are met among samples of its groups, or among all ranks.

    Two ranks are compared with rank 0 that differ from it in every group at once, and those with
    which the script compares its rank; only where they do something else, each group is looked at
    by itself.
    """
    runs.finish([0])
    kept = set(runs.done)
    # A rank that takes part in no group may still be another than the rest of the world.
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
                # No two are alike: nobody stands for anybody.
                here = runs.all_of(group)
            samples, sorts = samples | near, sorts | here
    # Whoever is kept brings those along that it exchanges messages with.
    for rank in sorts.values():
        runs.finish(_peers(runs.done[rank]))
        runs.stands.pop(rank, None)
    kept = runs.done.keys() - runs.stands.keys()
    runs.compared = tuple(sorted(samples - kept))
    return sorted(kept)


def _independent(step: RankStep, known: Collection[int]) -> list[tuple[int, ...]]:
    """The groups of a rank that share no other rank with one another or with those known: the
    dimensions of its mesh along which ranks may be alike.
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
    """Captures one rank, in a process of its own; tells its step or its problems."""
    # What the parent holds by now is no garbage of this process: looking through it takes minutes.
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
    # A parent that was killed ends no rank, and a script may wait for ever.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextlib.contextmanager
def _silent(is_silent: bool) -> Iterator[None]:
    """Hides what a script prints, of all ranks but one, which talks to stderr."""
    if not is_silent:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
