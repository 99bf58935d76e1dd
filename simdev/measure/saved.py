"""What autograd keeps of a forward pass for the backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def saved_tensors(value: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(number of the autograd node, tensor that it keeps) of all nodes behind a value."""
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # Nodes of PyTorch's C++ keep each tensor under a name; those of a Function written in
        # Python keep one tuple.
        names = [
            name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"
        ]
        for leaf in tree_leaves([getattr(node, name) for name in names if not _packed(node, name)]):
            if isinstance(leaf, Tensor):
                yield node._sequence_nr(), leaf
        stack.extend(before for before, _ in node.next_functions)


def _packed(node: Any, name: str) -> bool:
    """Whether hooks keep something else in a tensor's place; to look at it would compute it anew
    (checkpoints) or fetch it.
    """
    raw = getattr(node, f"_raw{name}" if name.startswith("_") else "_raw_saved_tensors", None)
    return any(getattr(saved, "unpack_hook", None) is not None for saved in tree_leaves(raw))
