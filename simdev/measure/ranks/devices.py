"""Shows a script GPUs, although all of its tensors are fake tensors of the CPU.

``Devices`` replaces CUDA devices by the CPU in calls of PyTorch. When the script (but not PyTorch
itself) reads a tensor's device, it sees its GPU. In a script that names CUDA, ``Devices`` also
tracks which tensors stay on the CPU: operators on these alone are work of the host, and no ops of
the step. ``pretend`` puts it in place, ``recording`` uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..record import key_of
from ..tracing import is_pytorchs
from .streams import Streams

CPU = torch.device("cpu")
_MOVES = (Tensor.to, Tensor.cuda, Tensor.cpu)
_BACKWARD = Tensor.backward


class Devices(TorchFunctionMode):
    """The devices of a rank; ``running`` is the instance of the rank being captured.

    ``gpu`` is the script's GPU. ``host`` holds the storages (``key_of``) on the CPU. ``is_named``:
    the script has named CUDA, so tensors that it does not move are on the CPU. ``is_users``: the
    current call of PyTorch comes from the script, not from PyTorch itself. ``is_moving``: a tensor
    is being moved between devices.
    """

    running: Devices

    def __init__(self, local_rank: int) -> None:
        super().__init__()
        Devices.running = self
        self.gpu = torch.device("cuda", local_rank)
        self.host: set[int] = set()
        self.is_named = self.is_users = self.is_moving = self.is_default = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls PyTorch with the CPU in place of CUDA."""
        kwargs, is_users = kwargs or {}, _is_users_call()
        if getattr(func, "__name__", "") == "__get__":
            return self._attribute(func, args[0]) if is_users else func(*args, **kwargs)
        if func is _BACKWARD:
            with self:  # a backward may recompute its forward, which names devices
                return torch.autograd.backward(args[0], kwargs.pop("gradient", None), **kwargs)
        args, kwargs = _numbered(func, args, kwargs)
        is_cuda = func is Tensor.cuda or any(map(names_cuda, (*args, *kwargs.values())))
        self.is_named |= is_cuda and is_users
        if func is torch.device:
            is_kept = (
                is_users or not is_cuda or isinstance((*args, *kwargs.values())[0], torch.device)
            )
            return func(*args, **kwargs) if is_kept else CPU
        if func is Tensor.numpy:
            return _numpy(args[0])
        if func is Tensor.__format__ and not args[0].dim():
            return format(args[0].item(), args[1])
        if func in _MOVES:
            return self._moved(func, is_cuda, is_users, args, kwargs)
        before, self.is_users = self.is_users, is_users and not is_cuda
        try:
            result = func(*map(on_cpu, args), **{name: on_cpu(x) for name, x in kwargs.items()})
        finally:
            self.is_users = before
        if is_users and isinstance(result, Tensor) and not isinstance(result, FakeTensor):
            self.place(result, not (is_cuda or self.is_default))  # a tensor made of numbers
        return result

    def set_default(self, device: Any) -> None:
        """Replaces ``torch.set_default_device``."""
        self.is_default = names_cuda(device)
        self.is_named |= self.is_default

    def _attribute(self, func: Any, tensor: Any) -> Any:
        """The value of a tensor's attribute as shown to the script."""
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name in ("device", "is_cuda") and self._is_on_gpu(tensor):
            return self.gpu if name == "device" else True
        return func(tensor)

    def of_fake(self) -> property:
        """A property that replaces ``FakeTensor.device``, which function modes do not intercept."""
        device: Any = FakeTensor.device

        def read(tensor: FakeTensor) -> Any:
            is_shown = _is_users_call() and self._is_on_gpu(tensor)
            return self.gpu if is_shown else device.fget(tensor)

        return property(read)

    def _is_on_gpu(self, tensor: Tensor) -> bool:
        if Streams.running.on_cpu or tensor.device.type != "cpu":
            return False
        local = getattr(tensor, "_local_tensor", tensor)
        return not (self.is_named and key_of(local) in self.host)

    def _moved(
        self, func: Any, to_gpu: bool, is_users: bool, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """The moved tensor, in new memory where the script changes its device."""
        tensor, changed = args[0], {name: on_cpu(x) for name, x in kwargs.items()}
        to_cpu = func is Tensor.cpu or any(map(_names_cpu, (*args[1:], *kwargs.values())))
        to_cpu &= is_users  # to PyTorch itself all tensors are on the CPU anyway
        if to_cpu and not self._is_host(tensor):
            Streams.running.current.synchronize()
        call: Callable[[], Any] = lambda: func(*map(on_cpu, args), **changed)  # noqa: E731
        if func is Tensor.cuda:
            call = lambda: tensor  # noqa: E731
        is_kept = not isinstance(tensor, FakeTensor) or tensor.requires_grad
        if is_kept or not self.is_named or not (to_gpu if self._is_host(tensor) else to_cpu):
            result = call()
            self.place(result, to_cpu and self._is_host(tensor))
            return result
        with self._moving():
            result = call()
            if key_of(result) == key_of(tensor):
                result = torch.empty_like(result)
        self.place(result, to_cpu)
        return result

    def _is_host(self, tensor: Tensor) -> bool:
        return key_of(tensor) in self.host

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self.is_moving = True
        try:
            yield
        finally:
            self.is_moving = False

    def place(self, tensors: Any, is_host: bool) -> None:
        """Notes whether tensors lie on the host or on the GPU."""
        change = self.host.update if is_host else self.host.difference_update
        change({
            key_of(getattr(leaf, "_local_tensor", leaf))
            for leaf in tree_leaves(tensors)
            if isinstance(leaf, Tensor)
        })  # fmt: skip

    def is_hosts(self, inputs: Sequence[Tensor], kwargs: Mapping[str, Any]) -> bool:
        """Whether the CPU runs an operator: all of its inputs lie on the CPU or, without inputs,
        the script creates a tensor without naming a GPU.
        """
        if inputs:
            return all(key_of(tensor) in self.host for tensor in inputs)
        return self.is_users and not self.is_default and not names_cuda(kwargs.get("device"))


def _is_users_call() -> bool:
    """Whether the function that calls this one was called from a file outside of PyTorch."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__":  # of another mode, such as a torch.device
        frame = frame.f_back
    return not is_pytorchs(frame.f_code.co_filename)


def _numbered(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with a CUDA device in place of a bare device number."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": of_number(kwargs["device"])}
    if func is Tensor.to and len(args) > 1:
        args = args[0], of_number(args[1]), *args[2:]
    is_bare = func is torch.device and len(args) == 1
    return (tuple(map(of_number, args)) if is_bare else args), kwargs


def of_number(value: Any) -> Any:
    """The argument, with a CUDA device in place of a bare number."""
    return torch.device("cuda", value) if type(value) is int else value


def reading(change: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with ``change`` applied to each argument: for calls that function modes do not
    intercept.
    """

    def changed(*args: Any, **kwargs: Any) -> Any:
        return function(*map(change, args), **{name: change(x) for name, x in kwargs.items()})

    return changed


def names_cuda(value: Any) -> bool:
    """Whether an argument is a CUDA device."""
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _names_cpu(value: Any) -> bool:
    return value == "cpu" if isinstance(value, str) else value == CPU


def on_cpu(value: Any) -> Any:
    """The argument, with the CPU in place of a CUDA device."""
    if names_cuda(value):
        return "cpu" if isinstance(value, str) else CPU
    return value


class Generator(torch.Generator):
    """A random generator of the CPU, whatever device the script names."""

    def __new__(cls, device: Any = CPU) -> Generator:
        """Makes a generator of the CPU."""
        return super().__new__(cls, CPU)  # type: ignore[call-arg]


def as_list(tensor: Tensor) -> Any:
    """Replaces ``Tensor.tolist`` of a fake tensor: one value, read once, stands for all."""
    return np.full(tuple(tensor.shape), _value(tensor)).tolist()


def _numpy(tensor: Tensor) -> Any:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return np.full(tuple(tensor.shape), _value(tensor), np.dtype(dtype))


def _value(tensor: Tensor) -> Any:
    """The number that ``item()`` returns for a fake tensor, which has no values."""
    return tensor.reshape(-1)[0].item() if tensor.numel() else 0
