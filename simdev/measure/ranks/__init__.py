"""Captures a distributed training script as it is, without a GPU and without its other ranks.

``capture_script`` runs the script once for each rank that differs, in processes of their own.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import FileStore

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
    _load()
    with tempfile.TemporaryDirectory() as folder:
        runs = _Runs(path, tuple(arguments), world, Path(folder), progress)
        try:
            if ranks:
                runs.finish(ranks)
                return runs.captured(sorted(runs.done))
            return runs.captured(_differing(runs))
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

    def sorts(self, ranks: Iterable[int]) -> dict[str, int]:
        """By what a rank does the first rank that does it, of rank 0 and of these, which read what
        rank 0 is sent.
        """
        samples = sorted(ranks)
        for rank in samples:
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
        notes = dict.fromkeys(note for step in steps for note in step.notes)
        return Captured(steps, self.world.size, (*self.notes, *notes))

    def end(self) -> None:
        """Ends whatever is still running."""
        for process, _ in self._running.values():
            process.kill()
            process.join()


def _peers(step: RankStep) -> list[int]:
    """The ranks with which a rank exchanges messages."""
    return sorted(
        {m.peer for m in step.messages.values() if m.kind == "p2p" and m.peer is not None}
    )


def _groups(step: RankStep) -> list[tuple[int, ...]]:
    """The groups of more than one rank in which a rank takes part."""
    groups = (m.group for m in step.messages.values() if m.kind != "p2p")
    return list(dict.fromkeys(group for group in groups if len(group) > 1))


def _differing(runs: _Runs) -> list[int]:
    """The ranks whose steps differ: rank 0 and those that it exchanges messages with, and those of
    another sort that are met among samples of its groups.

    Two ranks are compared with rank 0 that differ from it in every group at once; only where they
    do something else, each group is looked at by itself.
    """
    runs.finish([0])
    kept = set(runs.done)
    groups = _independent(runs.done[0], kept)
    samples = {sum(group[i] for group in groups) for i in (1, -1)} - kept
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
    alike = runs.world.size - len(kept)
    if alike:
        others = sorted(samples - kept)
        checked = f"captures of {', '.join(map(str, others))} say so" if others else "not checked"
        told = ", ".join(map(str, sorted(kept)))
        runs.notes[f"ranks {told} stand for the {alike} others: {checked}"] = None
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
    file: Path,
    arguments: Sequence[str],
    world: World,
    store: str,
    stands: int | None,
    pipe: Connection,
) -> None:
    """Captures one rank, in a process of its own; tells its step or its problems."""
    mail = Mail(FileStore(store, -1), world.rank, lambda rank: pipe.send(("need", rank)), stands)
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
