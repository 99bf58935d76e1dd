"""In which calls of which modules a step is while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Instance = tuple[tuple[str, int], ...]
"""Modules entered, outermost first: qualified name and which call of it this is, within the call
around it.
"""


@dataclass
class Scopes:
    """Which modules are running, and which ran when an autograd node was made."""

    names: Mapping[int, str]
    stack: list[Instance] = field(default_factory=list)
    counts: dict[tuple[Instance, str], int] = field(default_factory=dict)
    of_node: dict[int, Instance] = field(default_factory=dict)
    recomputing: bool = False
    autocast: str | None = None

    @property
    def current(self) -> Instance:
        """The innermost call of a module that is running."""
        return self.stack[-1] if self.stack else ()

    def enter(self, module: nn.Module, *_: Any) -> None:
        """A module's forward begins."""
        self._note_autocast()
        name = self.names.get(id(module))
        around = self.current
        if name is None:
            self.stack.append(around)
            return
        index = self.counts.get((around, name), 0)
        if self.recomputing:
            # What a checkpoint computes anew is no further call of the module.
            index = max(0, index - 1)
        else:
            self.counts[around, name] = index + 1
        self.stack.append((*around, (name, index)))

    def _note_autocast(self) -> None:
        # Only where modules are called: below autograd, where operators are seen, it is off.
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def leave(self, *_: Any) -> None:
        """A module's forward ends."""
        self.stack.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the forward of all modules."""
        from torch.nn.modules import module

        before = module.register_module_forward_pre_hook(self.enter)
        after = module.register_module_forward_hook(self.leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def new_node(self) -> int | None:
        """Number of the autograd node of the operator dispatched now; None where an operator before
        has it.
        """
        # Autograd numbers its node just before it dispatches the op, so the first op seen belongs
        # to that number.
        number = torch._C._autograd._get_sequence_nr() - 1
        return None if number in self.of_node else number

    def at_dispatch(self, phase: str) -> Instance:
        """Where an operator belongs that is dispatched now."""
        # A module that runs within the backward is computed anew, and makes nodes of its own.
        if phase == "forward" or self.current:
            number = self.new_node()
            if number is not None:
                self.of_node[number] = self.current
            return self.current
        node = torch._C._current_autograd_node()
        return () if node is None else self.of_node.get(node._sequence_nr(), ())
