"""Refuses what torch.compile made: it would run eagerly, without a word, while operators are
watched.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..ground.errors import InputError

_HOME = str(Path(torch.__file__).parent)


@contextmanager
def refusing_compiled(module: nn.Module) -> Iterator[None]:
    """Raises InputError where the block calls what torch.compile made: a module, a function, or the
    ``forward`` of a module.
    """
    # Nothing is compiled before torch._dynamo is imported, and importing it takes seconds.
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    choose = getattr(dynamo, "_callback_from_stance", None)
    if choose is None:
        yield
        return
    names = {id(child): name for name, child in module.named_modules()}

    def refuse(callback: Any) -> Any:
        # Whoever runs what was compiled asks for the compiler; None and False are for running it
        # uncompiled.
        if callback not in (None, False):
            local = sys._getframe(1).f_locals
            _refuse(local["fn"], local["args"], names)
        return choose(callback)

    dynamo._callback_from_stance = refuse
    try:
        with warnings.catch_warnings():
            # Of whoever watches modules, as captures do.
            warnings.filterwarnings("ignore", r"Using .torch\.compile\(module\). when there are")
            yield
    finally:
        dynamo._callback_from_stance = choose


def _refuse(function: Any, arguments: Sequence[Any], names: Mapping[int, str]) -> None:
    # PyTorch puts a frame of its own around modules that it defines itself.
    function = inspect.unwrap(function)
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if getattr(function, "__name__", "") == "forward" and module is None:
        module = next(iter(arguments), None)  # compiled where its class is defined
    if isinstance(module, nn.Module):
        # The name of what was compiled, not of the module that holds it.
        path = names.get(id(module), type(module).__name__).replace("_orig_mod", "").strip(".")
        what = f'the module "{path}"' if path else "the module"
        instead = "give the module as it was before: its _orig_mod, or without .compile()"
    elif function.__code__.co_filename.startswith(_HOME):
        return  # attention of PyTorch's own, which is no other in an eager step
    else:
        what = f"the function {function.__qualname__}"
        instead = "give the function as it was before"
    raise InputError(
        f"{what} is compiled (torch.compile), and its operators would be those of the eager step: "
        f"{instead}; or import a trace of the compiled step (simdev import TRACE)"
    )
