"""Graphs of exported PyTorch programs (``torch.export``), by the recorder that captures modules.

A program is run once on fake tensors, as its modules were before they were exported, so that its
ops have the names, kinds and attributes of a captured module, and a profile that was measured of
the module answers for the program.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import InputError
from ..files.graph import read_graph
from ..graph import Graph
from .capture import capture, capture_forward

ProgramSource = str | os.PathLike[str] | BinaryIO
PICKLED = ("custom_obj", "opaque_obj")
"""How names of pickled objects in an archive begin."""


@dataclass(frozen=True)
class Program:
    """A graph made of PyTorch code, and what a user has to know of it, a line each."""

    graph: Graph
    notes: tuple[str, ...] = ()


def import_program(
    source: ProgramSource | ExportedProgram | nn.Module,
    inputs: Sequence[Any] | None = None,
    optimizer: str | None = None,
    name: str = "model",
) -> Program:
    """The graph of an exported program (or the .pt2 file of one), or of a module called with
    ``inputs``.

    Without an ``optimizer`` (``sgd-momentum`` or ``adam``) it is the forward pass; with one the
    whole step, and the program must return its loss, one number. Dynamic dimensions have the sizes
    of the example inputs (``inputs``: other ones). A .pt2 file is read by ``torch.export.load``,
    which can run code: read those of people whom you trust. Files that hold pickled objects are
    refused. Raises InputError.
    """
    if isinstance(source, nn.Module):
        if inputs is None:
            raise InputError("inputs: a module needs those that it is called with")
        names = _positional(inspect.signature(source.forward))
        return Program(_graph(source, tuple(inputs), {}, names, optimizer, name))
    notes: list[str] = []
    program = source if isinstance(source, ExportedProgram) else load_program(source)
    example = program.example_inputs
    if inputs is None and example is None:
        raise InputError("the program was saved without example inputs, which tell its sizes")
    args, kwargs = (tuple(inputs), {}) if inputs is not None else example or ((), {})
    if program.range_constraints:
        notes.append("dynamic dimensions have the sizes of the example inputs")
    module = _with_modules(program, notes)
    if optimizer is None:
        notes.append(
            "the forward pass alone: an --optimizer makes the whole step of a program that returns "
            "its loss"
        )
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return Program(_graph(module, args, kwargs, names, optimizer, name), tuple(notes))


def load_program(source: ProgramSource) -> ExportedProgram:
    """The program of a .pt2 file. Raises InputError."""
    # Before PyTorch opens it: loading is when pickled objects would run.
    _refuse_pickles(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(source)
    except Exception as error:
        # What the file holds is taken apart by PyTorch, which raises whatever it stumbles over.
        reason = next(iter(str(error).splitlines()), "")[:200]
        raise InputError(
            f"not a program that this PyTorch can load: {type(error).__name__}: {reason}"
        ) from None


def _refuse_pickles(source: ProgramSource) -> None:
    """Raises InputError for an archive that is none of torch.export's, or that holds objects to
    unpickle.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            names = archive.namelist()
            if not any(name.endswith("archive_format") for name in names) or not any(
                "/models/" in f"/{name}" for name in names
            ):
                raise InputError("not an archive of torch.export.save (of PyTorch 2.7 or later)")
            configs = [
                json.loads(archive.read(name)) for name in names if name.endswith("_config.json")
            ]
            _refuse_sample(archive, names)
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged archive: {error}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    for config in configs:
        entries = config.get("config", {}) if isinstance(config, dict) else {}
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            if isinstance(entry, Mapping) and (
                str(entry.get("path_name", "")).startswith(PICKLED) or entry.get("use_pickle")
            ):
                raise InputError(f"{key}: a pickled object, which could run code: refused")
    if not isinstance(source, (str, os.PathLike)):
        source.seek(0)


def _refuse_sample(archive: zipfile.ZipFile, names: Sequence[str]) -> None:
    """Raises InputError where example inputs are more than tensors and plain values."""
    for name in names:
        if "/sample_inputs/" in f"/{name}":
            try:
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
            except Exception as error:
                raise InputError(
                    f"{name}: example inputs that only unpickling could read: refused"
                ) from error


def _with_modules(program: ExportedProgram, notes: list[str]) -> nn.Module:
    """The program as the modules that it was exported from, where PyTorch can tell them, else as
    one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.unflatten(program)
    except Exception:
        # Programs whose modules share parts in ways that unflatten does not know are run as they
        # are.
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

    if len(names) == len(places):
        # The recorder names the inputs of a step by the arguments of what it calls.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(argument, kind) for argument in ("_", *names)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    tensors = [leaves[place] for place in places]
    if optimizer is None:
        return read_graph(capture_forward(module, tensors, call, name).graph)
    return read_graph(capture(module, tensors, _scalar(call), optimizer, name).graph)


def _scalar(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call's first output, which must be a loss."""

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


def _positional(signature: inspect.Signature) -> list[str]:
    """The names of the arguments that may be given by place."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, p in signature.parameters.items() if p.kind in kinds]
