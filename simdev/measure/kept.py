"""Keeps the tensors that calls really have in a step, for calls that random tensors cannot stand
for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .kinds import named_arguments
from .record import Call, TensorSpec, call_of


class Keeper(TorchDispatchMode):
    """While active, keeps copies of the tensors of the first call that equals each wanted one."""

    def __init__(self, wanted: Mapping[str, Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[str, list[Tensor]] = {}
        self._wanted: dict[tuple[Any, tuple[TensorSpec, ...]], list[tuple[str, Call]]] = {}
        for key, call in wanted.items():
            self._wanted.setdefault((call.func, call.specs), []).append((key, call))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator, and keeps its tensors as they were before."""
        kwargs = kwargs or {}
        arguments = named_arguments(func, args, kwargs)
        tensors = [
            leaf for leaf in tree_leaves(list(arguments.values())) if isinstance(leaf, Tensor)
        ]
        specs = tuple(map(TensorSpec.of, tensors))
        for key, call in self._wanted.get((func, specs), ()):
            same = call_of(func, arguments, tensors, ())
            # A backward of a convolution is measured in two parts: what is wanted of it may differ.
            if key not in self.kept and (same.args, same.kwargs) == (call.args, call.kwargs):
                self.kept[key] = [_copied(tensor) for tensor in tensors]
        return func(*args, **kwargs)


def keep_from(run: Callable[[], object], wanted: Mapping[str, Call]) -> dict[str, list[Tensor]]:
    """The tensors of each wanted call, by key, of one ``run`` of the step; those that the step does
    not show are left out.
    """
    if not wanted:
        return {}
    keeper = Keeper(wanted)
    with keeper:
        run()
    return keeper.kept


def _copied(tensor: Tensor) -> Tensor:
    """A copy of the same strides, over memory of its own."""
    with torch.no_grad():
        extent = 1 + sum(
            (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        extent = extent if tensor.numel() else 0
        flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
        return flat.clone().as_strided(tensor.shape, tensor.stride())
