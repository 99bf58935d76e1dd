"""Makes graphs of exported PyTorch programs (``torch.export``), with the recorder that captures
modules.

A program is run once on fake tensors, restored to the modules that it was exported from. So its ops
have the names, kinds and attributes of the captured module, and a profile measured of the module
also serves the program.

``simdev import`` of a .pt2 file calls ``import_program``; the file's calls are run by ``exported``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..files.graph import read_graph
from ..files.program import read_program
from ..ground.errors import InputError
from ..nouns.graph import Graph
from .capture import capture, capture_forward
from .exported import Exported
from .tracing import argument_names, with_argument_names

ProgramSource = str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True)
class Program:
    """A graph made of PyTorch code, and notes for the user, a line each."""

    graph: Graph
    notes: tuple[str, ...] = ()


def import_program(
    source: ProgramSource | ExportedProgram | nn.Module,
    inputs: Sequence[Any] | None = None,
    optimizer: str | None = None,
    name: str = "model",
) -> Program:
    """The graph of an exported program (or of its .pt2 file), or of a module called with
    ``inputs``.

    Without an ``optimizer`` (``sgd-momentum`` or ``adam``) the graph is the forward pass; with one
    it is the whole step, and the program must return its loss, one number. Dynamic dimensions have
    the sizes of ``inputs`` (None: of the program's example inputs). A .pt2 file is read for its
    calls and shapes only: none of its code is run, nothing in it is unpickled, and no weights are
    read. Raises InputError.
    """
    if isinstance(source, nn.Module):
        if inputs is None:
            raise InputError("inputs: a module needs those that it is called with")
        names = argument_names(source)
        return Program(_graph(source, tuple(inputs), {}, names, optimizer, name))
    if not isinstance(source, ExportedProgram):
        return _import_file(source, inputs, optimizer, name)
    example = source.example_inputs
    if inputs is None and example is None:
        raise InputError("the program was saved without example inputs, which tell its sizes")
    args, kwargs = (tuple(inputs), {}) if inputs is not None else example or ((), {})
    notes = _notes(bool(source.range_constraints), optimizer)
    module = _with_modules(source, notes)
    names = [name for name in source.graph_signature.user_inputs if isinstance(name, str)]
    return Program(_graph(module, args, kwargs, names, optimizer, name), tuple(notes))


def _import_file(
    source: ProgramSource, inputs: Sequence[Any] | None, optimizer: str | None, name: str
) -> Program:
    """The graph of a .pt2 file, made without running its code or reading its values."""
    saved = read_program(source)
    program = Exported(saved)
    args = program.inputs if inputs is None else program.fitting(inputs)

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        return program.run(*tensors)

    graph = _traced(program.module, args, call, program.names, optimizer, name)
    return Program(graph, tuple(_notes(saved.varies, optimizer)))


def _notes(varies: bool, optimizer: str | None) -> list[str]:
    dynamic = "dynamic dimensions have the sizes of the example inputs"
    forward = (
        "the forward pass alone: an --optimizer makes the whole step of a program that returns its "
        "loss"
    )
    return [dynamic] * varies + [forward] * (optimizer is None)


def _with_modules(program: ExportedProgram, notes: list[str]) -> nn.Module:
    """The program as the modules that it was exported from, where PyTorch can restore them, else as
    a single module.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.unflatten(program)
    except Exception:
        # Programs whose modules share parts in ways unknown to unflatten are run as one module.
        notes.append(
            "the modules of the program cannot be told apart: ops are named by their kinds alone"
        )
        return program.module()


def _graph(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    optimizer: str | None,
    name: str,
) -> Graph:
    leaves, spec = tree_flatten((args, dict(kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = tree_unflatten(filled, spec)
        return module(*positional, **named)

    return _traced(module, [leaves[place] for place in places], call, names, optimizer, name)


def _traced(
    module: nn.Module,
    tensors: Sequence[Tensor],
    call: Callable[..., Any],
    names: Sequence[str],
    optimizer: str | None,
    name: str,
) -> Graph:
    if len(names) == len(tensors):
        call = with_argument_names(call, "_", *names)
    if optimizer is None:
        return read_graph(capture_forward(module, tensors, call, name).graph)
    return read_graph(capture(module, tensors, _scalar(call), optimizer, name).graph)


def _scalar(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the call's first output, and refuses one that is no loss."""

    @wraps(call)
    def loss(module: nn.Module, *tensors: Tensor) -> Tensor:
        outputs = call(module, *tensors)
        first = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
        if not isinstance(first, Tensor) or first.numel() != 1 or not first.is_floating_point():
            raise InputError(
                "optimizer: the program returns no loss (one number) that a step could minimise"
            )
        return first.reshape(())

    return loss
