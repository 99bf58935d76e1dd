"""A cache of the outputs of operators on fake tensors. A training step repeats the same calls in
every layer and microbatch, and PyTorch's own cache is slow: to look up a call it checks every
property that any tensor may have.

``Shapes`` caches calls on plain tensors only, and leaves all others to PyTorch. ``recording`` uses
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

META = torch.device("meta")
_VALUES = frozenset({
    torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view,
})  # fmt: skip
"""Tags of operators whose outputs depend on values, or that change the shape of an input."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A recipe for an output: the argument of this index itself (``layout`` None), or a tensor of
    this layout in the memory of that argument or, with ``argument`` None, in new memory.
    """

    argument: int | None
    layout: tuple[Any, ...] | None = None  # shape, stride, offset
    dtype: torch.dtype | None = None

    def again(self, args: Sequence[Any], mode: Any, device: torch.device) -> Any:
        """The output for other arguments of the same shapes."""
        if self.layout is None:
            return None if self.argument is None else args[self.argument]
        shape, stride, offset = self.layout
        if self.argument is None:
            with torch._C._DisableTorchDispatch():
                made = torch.empty_strided(shape, stride, dtype=self.dtype, device=META)
            return FakeTensor(mode, made, device)
        storage = args[self.argument].untyped_storage()
        with in_kernel_invocation_manager(mode):
            made = torch.empty(0, dtype=self.dtype, device=META)
            made.set_(storage, offset, shape, stride)
        return FakeTensor(mode, made, device)


class Shapes:
    """A cache of outputs, by operator, shapes and other arguments. An entry is None where the call
    must be left to PyTorch.
    """

    def __init__(self) -> None:
        self._made: dict[Any, tuple[bool, tuple[_Made, ...], Any, Any] | None] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The outputs of an operator, with all its effects on the arguments."""
        key = _key(func, args, kwargs)
        if key is None:
            return func(*args, **kwargs)
        if key not in self._made:
            result = func(*args, **kwargs)
            self._made[key] = _remembered(func, args, kwargs, result)
            return result
        made = self._made[key]
        if made is None:
            return func(*args, **kwargs)
        is_tuple, parts, mode, device = made
        if is_tuple:
            return tuple(part.again(args, mode, device) for part in parts)
        return parts[0].again(args, mode, device)


def _key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The cache key of a call: everything that its outputs depend on. None where an argument is no
    plain value or fake tensor.
    """
    if func.namespace != "aten":
        return None
    parts = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    if not _add(parts, args):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _add(parts, (value,)):
            return None
    return tuple(parts)


def _add(parts: list[Any], values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.constant is not None or value.layout is not torch.strided:
                return False
            parts += (
                value.dtype,
                value.fake_device,
                value.shape,
                value.stride(),
                value.storage_offset(),
            )
            parts += (value.is_conj(), value.is_neg(), value.untyped_storage().nbytes())
        elif kind in (list, tuple):
            parts += (kind, len(value))
            if not _add(parts, value):
                return False
        elif isinstance(value, Tensor):
            return False
        else:
            parts += (kind, value)  # with the type, because 1 == 1.0
    return True


def _remembered(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[bool, tuple[_Made, ...], Any, Any] | None:
    if not _VALUES.isdisjoint(func.tags):
        return None
    outputs = result if isinstance(result, tuple) else (result,)
    fakes = [output for output in outputs if type(output) is FakeTensor]
    if not fakes or len(fakes) < sum(output is not None for output in outputs):
        return None
    mode, device = fakes[0].fake_mode, fakes[0].fake_device
    parts = tuple(_made(args, kwargs, output) for output in outputs)
    if any(part is None for part in parts) or any(fake.fake_device != device for fake in fakes):
        return None
    known: tuple[_Made, ...] = tuple(filter(None, parts))
    again = (part.again(args, mode, device) for part in known)
    is_equal = all(map(_are_alike, outputs, again))
    return (isinstance(result, tuple), known, mode, device) if is_equal else None


def _made(args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> _Made | None:
    """The recipe for an output; None where it lies in memory of a tensor inside a list or of a
    keyword argument.
    """
    if output is None:
        return _Made(None)
    behind = output.untyped_storage()._cdata
    for number, value in enumerate(args):
        if value is output:
            return _Made(number)
    layout = (tuple(output.shape), tuple(output.stride()), output.storage_offset())
    for number, value in enumerate(args):
        if type(value) is FakeTensor and value.untyped_storage()._cdata == behind:
            return _Made(number, layout, output.dtype)
    inner: list[Any] = [*kwargs.values(), *(v for x in args if isinstance(x, list) for v in x)]
    if any(isinstance(x, Tensor) and x.untyped_storage()._cdata == behind for x in inner):
        return None
    return _Made(None, layout, output.dtype)


_ASKED: tuple[Callable[[Tensor], Any], ...] = (
    Tensor.stride, Tensor.storage_offset, Tensor.is_conj, Tensor.is_neg, Tensor.is_inference,
    torch._C._dispatch_key_set, lambda x: (x.shape, x.dtype, x.requires_grad),
    lambda x: x.untyped_storage().nbytes(),
)  # fmt: skip


def _are_alike(first: Any, second: Any) -> bool:
    """Whether two outputs are the same object, or equal in everything that a program can query."""
    if first is second:
        return True
    alike: bool = first.constant is None and all(ask(first) == ask(second) for ask in _ASKED)
    return alike
