"""Runs an unchanged training script in a pretended world, and records one of its steps.

The recorded step runs from the end of an optimizer's first step to the end of its next step, so
that one-time work (lazy initialisation, the first all_gathers of FSDP) is over. A script need not
mark its steps; where it calls ``simdev.step_ends()``, these calls mark the ends instead. The script
is ended once the step is recorded.

``ranks`` starts a process for every rank that is captured and calls ``captured_rank`` in it.
"""

from __future__ import annotations

import logging
import runpy
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from ...ground.errors import InputError
from ..building import flat_step
from ..tracing import refusing, running_line
from .pretend import Mail, Replacement, World, pretended, replaced
from .recording import RankRecorder
from .scopes import local
from .settings import changed


class StepIsRecordedError(BaseException):
    """Raised to end a script once its step is recorded. A BaseException, so that the script's
    ``except Exception`` does not catch it.
    """


class Steps:
    """Begins and ends the recording of a step, at ends of steps of the first optimizer.

    Recording begins once every optimizer of the script has taken a step, in which it creates its
    state, and at the latest after the second step of the first optimizer. ``late`` is the line that
    was running when no step ended in time; ``begins`` is called at the begin of each step.
    Where the script has marks of its own (``marked``, by ``step_ends``), optimizers end nothing.
    """

    running: Steps | None = None

    def __init__(self, recorder: RankRecorder) -> None:
        self.recorder = recorder
        self.late = ""
        self.begins: Callable[[], None] = lambda: None
        self.marked = False
        self.first: Optimizer | None = None
        self.made: set[int] = set()
        self.optimizers: dict[int, Optimizer] = {}
        self.is_recorded = self._is_warm = False

    def update_begins(self, optimizer: Optimizer, *_: Any) -> None:
        """Notes that an optimizer's step begins."""
        self.optimizers[id(optimizer)] = optimizer
        self.recorder.updating = True

    def update_ends(self, optimizer: Optimizer, *_: Any) -> None:
        """Notes that an optimizer's step has ended."""
        self.recorder.updating = False
        self.first = self.first or optimizer
        if optimizer is self.first and not self.marked:
            if self._is_warm or self.made <= self.optimizers.keys():
                self.ends()
            self._is_warm = True

    def ends(self) -> None:
        """Ends a training step: the script ends if the step was recorded, else the next step is
        recorded.
        """
        if self.recorder.recording:
            self.recorder.end()
            self.is_recorded = True
        if self.is_recorded:
            raise StepIsRecordedError
        self.begins()
        self.recorder.streams.clear()
        self.recorder.scopes.begin()
        for optimizer in self.optimizers.values():
            self._add_state(optimizer)
        self.recorder.recording = True

    def _add_state(self, optimizer: Optimizer) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            tensor = local(parameter)
            states = [local(x) for x in optimizer.state[parameter].values() if _is_state(x)]
            self.recorder.add_parameter(tensor, states)


def step_ends() -> None:
    """Marks the end of a training step, for a capture; does nothing otherwise.

    A script needs it where its first optimizer does not step exactly once in each training step.
    """
    steps = Steps.running
    if steps is None:
        return
    if steps.recorder.recording and not steps.marked:
        raise InputError(
            "simdev.step_ends() is called by a module that the script imports, behind a step of an "
            "optimizer: call it in the script itself"
        )
    steps.marked = True
    steps.ends()


def _expect_marks(code: Any) -> None:
    # Known before the script runs: the first step of an optimizer would else begin the recording.
    if isinstance(code, CodeType) and Steps.running is not None:
        Steps.running.marked |= step_ends.__name__ in code.co_names
        for inner in code.co_consts:
            _expect_marks(inner)


def _is_state(value: Any) -> bool:
    # A tensor of a single number is the optimizer's count of steps.
    return isinstance(value, torch.Tensor) and local(value).numel() > 1


Program = Callable[[], None]
"""A training loop, run as a rank of a world that is set up around it."""


def captured_rank(
    program: Program, world: World, mail: Mail, settings: Mapping[str, Any] | None = None
) -> RankRecorder:
    """The records of one step of a training loop, run as a rank of a world, with ``settings`` of
    its wrappers changed.

    Raises InputError for a loop that fails, ends before a second step, or uses a feature that is
    not covered.
    """
    with running(world, mail) as steps:
        with changed(settings or {}), _bounded(steps):
            try:
                program()
            except BaseException:
                # A script may catch the end of its step and raise something else.
                if not (steps.is_recorded or steps.late):
                    raise
        if steps.is_recorded:
            return steps.recorder
    late = f"{steps.late}: no step of an optimizer ended within {LONGEST:,} CPU seconds"
    raise InputError(
        f"{late if steps.late else 'ended before its second step'}; two steps of an optimizer are "
        "needed, the first warms up (or mark the ends of steps by simdev.step_ends())"
    )


LONGEST = 900
"""The CPU seconds for which a script may run without ending a step."""


@contextmanager
def _bounded(steps: Steps) -> Iterator[None]:
    """Ends the block where it runs for more than LONGEST without a step, as in an endless loop."""

    def end(*_: Any) -> None:
        steps.late = running_line()
        raise StepIsRecordedError

    def begin() -> None:
        signal.setitimer(signal.ITIMER_PROF, LONGEST, 1)

    before, steps.begins = signal.signal(signal.SIGPROF, end), begin
    begin()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_file(file: Path, arguments: Sequence[str]) -> None:
    """Runs a script as ``python FILE ARGUMENTS`` does. Raises InputError where it exits with an
    error.
    """
    path = [str(file.parent), *sys.path]
    with patch.object(sys, "argv", [str(file), *arguments]), patch.object(sys, "path", path):
        try:
            _expect_marks(compile(file.read_bytes(), str(file), "exec"))
            runpy.run_path(str(file), run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise InputError(f"the script ended with {error.code}") from None
        except KeyboardInterrupt:
            raise InputError("the script ended with KeyboardInterrupt") from None


def run_function(step: Callable[..., Any], mesh: Mapping[str, int]) -> None:
    """Runs a function that trains by itself and returns None, or that returns (model, inputs,
    loss), which are then trained for two steps with AdamW. The loss is called as ``loss(model,
    *inputs)`` and may be left out where the model returns it (``building.flat_step``).

    The process group is initialised before. The function is called with a device mesh where
    ``mesh`` gives its dimensions and their sizes. Raises InputError.
    """
    dist.init_process_group("nccl")
    names, sizes = tuple(mesh), tuple(mesh.values())
    shape = (device_mesh.init_device_mesh("cuda", sizes, mesh_dim_names=names),) if mesh else ()
    _expect_marks(getattr(step, "__code__", None))
    made = step(*shape)
    if made is None:
        return
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise InputError("must return None or (model, inputs, loss)")
    model, inputs, *loss = made
    tensors, loss_of = flat_step(model, inputs, loss[0] if loss else None)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss_of(model, *tensors).backward()
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def running(world: World, mail: Mail) -> Iterator[Steps]:
    """Runs the block as a rank of a world, on fake tensors, under a recorder."""
    # Made before anything is replaced: its import inspects all functions of PyTorch.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as stack:
        stack.enter_context(refusing("captured"))
        stack.enter_context(warnings.catch_warnings())
        # deepcopy of a module reads the data pointer, which is harmless for a fake tensor.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        warnings.filterwarnings("ignore", "DTensor random operators may not have complete")
        # It logs every exception that it raises; the error message suffices.
        logging.getLogger(FakeTensorMode.__module__).setLevel(logging.CRITICAL)
        streams = stack.enter_context(pretended(world, mail))
        recorder = RankRecorder(streams, world.rank)
        steps = Steps.running = Steps(recorder)
        for hook in (
            register_optimizer_step_pre_hook(steps.update_begins),
            register_optimizer_step_post_hook(steps.update_ends),
        ):
            stack.callback(hook.remove)
        stack.enter_context(replaced(chain(_replacements(steps), recorder.replacements())))
        stack.enter_context(mode)
        stack.enter_context(recorder)
        stack.enter_context(recorder.scopes.watching())
        try:
            yield steps
        finally:
            Steps.running = None


def _replacements(steps: Steps) -> Iterator[Replacement]:
    """The replacements that note optimizers and memory, and those of loaders and compilers."""
    make, recorder = Optimizer.__init__, steps.recorder

    def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        steps.made.add(id(optimizer))
        make(optimizer, *args, **kwargs)

    yield Optimizer, "__init__", made
    yield from _loading(recorder)
    resize = torch.UntypedStorage.resize_

    def resizing(storage: Any, size: int) -> Any:
        recorder.note_size(storage, size)
        return resize(storage, size)

    yield torch.UntypedStorage, "resize_", resizing  # FSDP resizes what it gathered
    yield from _uncompiled(recorder)


def _loading(recorder: RankRecorder) -> Iterator[Replacement]:
    """The replacements that let data loaders load in this process, unrecorded: loading is no work
    of a device.
    """
    make = DataLoader.__init__
    here = dict(num_workers=0, timeout=0, prefetch_factor=None, persistent_workers=False)

    def made(*args: Any, **kwargs: Any) -> None:
        make(**{**signature(make).bind(*args, **kwargs).arguments, **here, "pin_memory": False})

    yield DataLoader, "__init__", made
    for home, name in ((DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__")):
        yield home, name, recorder.resting()(getattr(home, name))


def _uncompiled(recorder: RankRecorder) -> Iterator[Replacement]:
    """The replacements that let compiled modules and functions run eagerly, with a note."""

    def note() -> None:
        recorder.notes[
            f"{running_line()}: torch.compile is passed over; the step is that of eager operators"
        ] = None

    def compile_(model: Any = None, **options: Any) -> Any:
        note()
        return model if model is not None else lambda function: function

    yield torch, "compile", compile_
    yield torch.nn.Module, "compile", lambda *_, **__: note()
