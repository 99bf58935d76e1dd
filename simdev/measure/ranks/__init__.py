"""Captures a distributed training script as it is, without a GPU and without its other ranks.

``capture_script`` runs the script once for each rank that differs, in processes of their own.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...ground.errors import InputError
from .pretend import Mail, World
from .scripts import captured_rank
from .writing import RankStep, RankWriter

MOST_RANKS = 64
"""The most ranks that are captured because they differ."""
PATIENCE = timedelta(minutes=10)
"""How long a rank waits for an object of another one."""


@dataclass(frozen=True)
class Captured:
    """The steps of the ranks that were captured, by rank, and what a person has to know.

    ``world`` is the number of ranks, of which each that is missing does as one of these.
    """

    steps: tuple[RankStep, ...]
    world: int
    notes: tuple[str, ...]


def capture_script(
    file: str | Path,
    arguments: Sequence[str] = (),
    world: World | None = None,
    ranks: Sequence[int] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Captured:
    """One step of a training script in a world of ranks.

    ``ranks`` are those to capture; without them the ranks that differ are found: rank 0 with all
    ranks that it exchanges messages with, and of each of its groups two more that are compared.
    ``progress`` is called with the number of ranks done. Raises InputError.
    """
    world = world or World(1)
    path = Path(file)
    if not path.is_file():
        raise InputError("no such file", str(file))
    with tempfile.TemporaryDirectory() as folder:
        runs = _Runs(path, tuple(arguments), world, Path(folder), progress)
        try:
            if ranks:
                runs.finish(ranks)
                return runs.captured(sorted(runs.done))
            return runs.captured(_differing(runs))
        finally:
            runs.end()


class _Runs:
    """The processes that capture ranks. ``done`` are the steps by rank."""

    def __init__(
        self,
        file: Path,
        arguments: tuple[str, ...],
        world: World,
        folder: Path,
        progress: Callable[[int], None],
    ) -> None:
        self.file, self.arguments, self.world, self.progress = file, arguments, world, progress
        self.store = str(folder / "mail")
        self.done: dict[int, RankStep] = {}
        self.notes: dict[str, None] = {}
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
        # PyTorch is loaded here already: a copy of this process starts at once.
        context = multiprocessing.get_context("fork")
        mine, its = context.Pipe()
        world = replace(self.world, rank=rank)
        target = partial(_child, self.file, self.arguments, world, self.store, stands, its)
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
            code = self._running[rank][0].exitcode
            raise InputError(f"rank {rank}: its process ended with {code}") from None
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

    def captured(self, ranks: Sequence[int]) -> Captured:
        """The steps of these ranks."""
        steps = tuple(self.done[rank] for rank in ranks)
        notes = dict.fromkeys(note for step in steps for note in step.notes)
        return Captured(steps, self.world.size, (*self.notes, *notes))

    def end(self) -> None:
        """Ends whatever is still running."""
        for process, _ in self._running.values():
            process.kill()
            process.join()


def _peers(step: RankStep) -> list[int]:
    """The ranks with which a rank exchanges messages."""
    return sorted({m.peer for m in step.messages.values() if m.kind == "p2p" and m.peer is not None})


def _groups(step: RankStep) -> list[tuple[int, ...]]:
    """The groups of more than one rank in which a rank takes part."""
    groups = (m.group for m in step.messages.values() if m.kind != "p2p")
    return list(dict.fromkeys(group for group in groups if len(group) > 1))


def _differing(runs: _Runs) -> list[int]:
    """The ranks whose steps differ: rank 0 and those that it exchanges messages with, and of each
    of its groups one rank of every sort that is met among three samples.
    """
    runs.finish([0])
    kept = set(runs.done)
    for group in _groups(runs.done[0]):
        samples = sorted({group[1], group[len(group) // 2], group[-1]} - kept)
        for rank in samples:
            runs.start(rank, stands=0)
        runs.finish([])
        sorts = {runs.done[0].fingerprint: 0}
        for rank in samples:
            sorts.setdefault(runs.done[rank].fingerprint, rank)
        if len(samples) == 3 and len(sorts) == 4:
            if len(group) > MOST_RANKS:
                raise InputError(
                    f"ranks 0, {', '.join(map(str, samples))} all differ, in a group of "
                    f"{len(group)}: name the ranks to capture (--rank)"
                )
            runs.finish(group)
            kept |= set(group)
            continue
        kept |= set(sorts.values())
        others = [str(rank) for rank in sorts.values() if rank]
        told = f"; {', '.join(others)} differs and is simulated, too" if others else ""
        runs.notes[
            f"the {len(group)} ranks of the group {group[0]} to {group[-1]} are taken as rank 0, "
            f"after captures of {', '.join(map(str, samples))}{told}"
        ] = None
    return sorted(kept)


def _child(
    file: Path,
    arguments: Sequence[str],
    world: World,
    store: str,
    stands: int | None,
    pipe: Connection,
) -> None:
    """Captures one rank, in a process of its own; tells its step or its problems."""
    mail = Mail(dist.FileStore(store, -1), world.rank, lambda rank: pipe.send(("need", rank)), stands)
    mail.store.set_timeout(PATIENCE)
    with _silent(world.rank > 0):
        try:
            recorder = captured_rank(file, arguments, world, mail)
            pipe.send(("step", RankWriter(recorder).step()))
        except InputError as error:
            pipe.send(("problems", error.problems))


@contextlib.contextmanager
def _silent(is_silent: bool) -> Iterator[None]:
    """Hides what a script prints, of all ranks but one."""
    if not is_silent:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
