"""What autograd keeps of a forward until the backward has run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def saved_tensors(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(number of the autograd node, tensor that it keeps) of all nodes behind a value."""
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for tensor in _kept(node):
            yield node._sequence_nr(), tensor
        stack.extend(before for before, _ in node.next_functions)


def _kept(node: Any) -> Iterator[torch.Tensor]:
    # Nodes of PyTorch's own keep each tensor under a name; those of a Function written in Python
    # keep one tuple.
    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    for name in names:
        found = getattr(node, name)
        for item in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(item, torch.Tensor):
                yield item
