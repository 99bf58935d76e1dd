"""Arithmetic on spans [start, finish) in ps, for everything that reads a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..taskgraph import COLLECTIVE, SYNC, TRANSFER, Coded, Ints, Resource, TaskGraph


@dataclass(frozen=True, slots=True)
class Window:
    """[begin_ps, end_ps) of a trace of ``traced`` steps: a stretch as long as ``steps`` of them
    together.

    What a report tells is what happens there, shared out among the steps.
    """

    begin_ps: int
    end_ps: int
    steps: int = 1
    traced: int = 1

    @property
    def length_ps(self) -> int:
        """How long it is, in ps."""
        return self.end_ps - self.begin_ps

    def a_step(self, ps: int) -> int:
        """The part of a time in the window that falls to one step, in ps, rounded up."""
        return -(-ps // self.steps)

    def share(self, ps: int) -> float:
        """The share of the window that a time in it is, 0 of a window of no length."""
        return ps / self.length_ps if self.length_ps else 0.0

    def covered_ps(self, start: Ints, finish: Ints) -> int:
        """The time in ps that the spans cover together within the window."""
        return covered_ps(np.maximum(start, self.begin_ps), np.minimum(finish, self.end_ps))


def transfer_mask(task_graph: TaskGraph) -> NDArray[np.bool_]:
    """True for each task that moves bytes between devices or adds them up on the way, false for
    each that computes.
    """
    tasks = task_graph.tasks
    moves = _of_kinds(task_graph, (TRANSFER, COLLECTIVE, SYNC)) | tasks.flow
    moves |= tasks.source != tasks.destination
    return moves


def sent_mask(task_graph: TaskGraph) -> NDArray[np.bool_]:
    """True for each task that sends: those of ``transfer_mask`` but for what only adds up or
    waits.
    """
    return transfer_mask(task_graph) & ~_of_kinds(task_graph, (SYNC,))


def collective_mask(task_graph: TaskGraph) -> NDArray[np.bool_]:
    """True for each task that is a whole collective."""
    return _of_kinds(task_graph, (COLLECTIVE,))


def _of_kinds(task_graph: TaskGraph, wanted: tuple[str, ...]) -> NDArray[np.bool_]:
    kinds = task_graph.tasks.kind
    if isinstance(kinds, Coded):
        return np.array([label in wanted for label in kinds.labels], np.bool_)[kinds.codes]
    return np.fromiter((kind in wanted for kind in kinds), np.bool_, len(kinds))


def is_compute_stream(task_graph: TaskGraph, resource: Resource) -> bool:
    """Whether the resource is its device's compute stream: it bears the name of that very
    device.
    """
    return resource.device >= 0 and resource.name == task_graph.devices[resource.device]


def told_devices(task_graph: TaskGraph) -> NDArray[np.bool_]:
    """Which devices are worth a row: not those that do nothing and have no memory limit where
    others have one.

    In a cluster of several nodes there are more switches and NICs than devices that run ops.
    """
    limited = task_graph.capacity >= 0
    used = np.zeros(len(limited), np.bool_)
    used[task_graph.tasks.source[~transfer_mask(task_graph)]] = True
    used[task_graph.buffers.device] = True
    return used | limited if limited.any() else np.ones(len(limited), np.bool_)


def covered_ps(start: Ints, finish: Ints) -> int:
    """The time in ps that the spans cover together: the length of their union."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, finish = start[order], finish[order]
    before = np.concatenate((start[:1], np.maximum.accumulate(finish)[:-1]))
    return int(np.maximum(finish - np.maximum(start, before), 0).sum())


def group(keys: Ints, values: Ints, count: int) -> list[Ints]:
    """For each key in 0 ... count - 1 the values that stand beside it, in their order."""
    order = np.argsort(keys, kind="stable")
    borders = np.searchsorted(keys[order], np.arange(1, count))
    return np.split(values[order], borders) if count else []


def ready_ps(task_graph: TaskGraph, release: Ints) -> Ints:
    """When each task became ready: the last release (finish + lag) of its predecessors, 0 without
    any.
    """
    successors = task_graph.tasks.successors
    ready = np.zeros(len(task_graph.tasks), np.int64)
    np.maximum.at(ready, successors.ids, release[successors.owners()])
    return ready
