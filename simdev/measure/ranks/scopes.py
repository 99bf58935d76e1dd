"""The modules of a captured script, and the gradients of their parameters, by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..record import Instance, Scopes, key_of


def in_backward() -> bool:
    """Whether autograd runs a backward now."""
    return bool(torch._C._current_graph_task_id() >= 0)


def _class_name(module: nn.Module) -> str:
    return type(getattr(module, "module", module)).__name__


_WRAPPERS = re.compile(r"(_checkpoint_wrapped_module|_orig_mod)(\.|$)")


def unwrapped(name: str) -> str:
    """The qualified name of a module or parameter without the modules wrapped around it."""
    return _WRAPPERS.sub("", name).removesuffix(".")


class RankScopes(Scopes):
    """The modules of a script, whose names are not given: a module that is called outside of all
    others is a root, and the modules inside it are named relative to it. ``roots`` are pairs
    (prefix of names, module).
    """

    running: RankScopes

    def __init__(self) -> None:
        super().__init__({})
        RankScopes.running = self
        self.names: dict[int, str] = {}
        self.roots: list[tuple[str, nn.Module]] = []
        self.of_parameter: dict[int, str] = {}
        self.is_orphan = False
        self.buckets: set[int] = set()  # memory of the buckets in which gradients are sent

    def enter(self, module: nn.Module, *_: Any) -> None:
        """Notes that a module's forward begins."""
        if id(module) not in self.names and not self.current:
            self._add_root(module, _class_name(module) if self.roots else "")
        self.recomputing = in_backward()
        super().enter(module)

    def _add_root(self, module: nn.Module, prefix: str) -> None:
        self.names[id(module)] = prefix
        root = module.module if isinstance(module, DistributedDataParallel) else module
        self.roots.append((prefix, root))
        for name, child in root.named_modules(prefix=prefix):
            self.names.setdefault(id(child), unwrapped(name))
            for parameter in child.parameters(recurse=False):
                self.of_parameter.setdefault(id(parameter), name)

    def begin(self) -> None:
        """Begins a step. Where there are several roots, each is named by its class from now on."""
        self.counts.clear()
        if len(self.roots) > 1 and not self.roots[0][0]:
            roots = [module for _, module in self.roots]
            taken = Counter(map(_class_name, roots))
            self.names, self.roots, self.of_parameter = {}, [], {}
            for number, module in enumerate(roots):
                name = _class_name(module)
                self._add_root(module, name if taken[name] == 1 else f"{name}_{number}")

    def gradients(self) -> dict[int, str]:
        """A name for each gradient (the parameter's with "_grad"), by its memory (``key_of``)."""
        return {
            key_of(local(parameter.grad)): f"{unwrapped(name)}_grad"
            for prefix, module in self.roots
            for name, parameter in module.named_parameters(prefix=prefix)
            if parameter.grad is not None
        }

    def at_dispatch(self, phase: str) -> Instance:
        """The modules of an operator; for an operator that accumulates a gradient, the parameter's
        module. Sets ``is_orphan`` for an operator of a backward whose forward op is not known.
        """
        self.is_orphan = False
        if phase == "backward" and not self.current:
            node: Any = torch._C._current_autograd_node()
            name = self.of_parameter.get(id(getattr(node, "variable", None)))
            if name is not None:
                return ((name, 0),)
            self.is_orphan = node is None or node._sequence_nr() not in self.of_node
        return super().at_dispatch(phase)

    @contextmanager
    def around(self, parameter: Tensor) -> Iterator[None]:
        """Attributes the operators of the block to the module of a parameter."""
        self.stack.append(((self.of_parameter.get(id(parameter), ""), 0),))
        try:
            yield
        finally:
            self.stack.pop()


def local(tensor: Any) -> Any:
    """The part of a tensor that lies on this rank."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
