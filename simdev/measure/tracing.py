"""Runs a training step under the recorder: on fake tensors, or on real ones where it depends on
their values.

``capture`` calls it. An optimizer is a row of OPTIMIZERS here, with the update that is measured;
its update op is described in ``simdev.nouns.semantics.kinds``, and its state in memory in
``simdev.nouns.memory``.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..ground import PACKAGE
from ..ground.errors import InputError, SimdevError
from .record import Recorder, Scopes, TensorSpec, UntoldBufferError

# An optimizer's update of one parameter: the op, the state, and the same work as calls of PyTorch.


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: the kind of its update op, the number of state tensors per parameter, the
    update of one parameter, and the constructor of PyTorch's optimizer.
    """

    kind: str
    states: int
    update: Callable[..., None]
    make: Callable[[Any], torch.optim.Optimizer]


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of this name: ``sgd-momentum`` or ``adam``. Raises InputError."""
    if name not in OPTIMIZERS:
        raise InputError(f'optimizer: must be one of {", ".join(OPTIMIZERS)}, got "{name}"')
    return OPTIMIZERS[name]


# The updates below run the operators of PyTorch's single-tensor paths (``foreach=False``): its
# fused paths update many parameters at once, and a placement could not put those on several
# devices.


def sgd_momentum_update(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    """A parameter's step of SGD with momentum 0.9, in place."""
    momentum.mul_(0.9).add_(gradient)
    parameter.add_(momentum, alpha=-1e-3)


def adam_update(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """A parameter's step of Adam, in place."""
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    denominator = (second.sqrt() / 0.5).add_(1e-8)
    parameter.addcdiv_(first, denominator, value=-1e-3)


SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=False)
ADAM = partial(torch.optim.Adam, lr=1e-3, foreach=False)
OPTIMIZERS = {
    "sgd-momentum": Optimizer("sgd_momentum_update", 1, sgd_momentum_update, SGD),
    "adam": Optimizer("adam_update", 2, adam_update, ADAM),
}


# Refuses compiled modules and functions: under the recorder they would silently run eagerly.

_HOME = str(Path(torch.__file__).parent)
_LIBRARIES = ("<", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@contextmanager
def refusing_compiled(module: nn.Module) -> Iterator[None]:
    """Raises InputError where the block calls a module, a function, or the ``forward`` of a module
    that torch.compile made.
    """
    # Nothing is compiled before torch._dynamo is imported, and importing it takes seconds.
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    choose = getattr(dynamo, "_callback_from_stance", None)
    if choose is None:
        yield
        return
    names = {id(child): name for name, child in module.named_modules()}

    def refuse(callback: Any) -> Any:
        # Compiled code asks here for the compiler's callback; None and False mean that it runs
        # uncompiled.
        if callback not in (None, False):
            local = sys._getframe(1).f_locals
            _refuse(local["fn"], local["args"], names)
        return choose(callback)

    dynamo._callback_from_stance = refuse
    try:
        with warnings.catch_warnings():
            # PyTorch warns where modules have hooks, and captures set some.
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
        # The name of the compiled module, without the wrapper that holds it.
        path = names.get(id(module), type(module).__name__).replace("_orig_mod", "").strip(".")
        what = f'the module "{path}"' if path else "the module"
        instead = "give the module as it was before: its _orig_mod, or without .compile()"
    elif function.__code__.co_filename.startswith(_HOME):
        return  # PyTorch compiles its own attention, in an eager step too
    else:
        what = f"the function {function.__qualname__}"
        instead = "give the function as it was before"
    raise InputError(
        f"{what} is compiled (torch.compile), and its operators would be those of the eager step: "
        f"{instead}; or import a trace of the compiled step (simdev import TRACE)"
    )


@contextmanager
def refusing_updates() -> Iterator[None]:
    """Raises InputError where the block itself runs a backward or an optimizer: a step has one of
    each, after its loss.
    """
    run = torch.autograd.backward

    def refuse(*_: Any) -> None:
        raise InputError(
            "the step runs a backward or an optimizer of its own: give its loss alone. A step of "
            "several losses and optimizers (a GAN) is a step for each loss; or import the trace of "
            "the whole (simdev import TRACE)"
        )

    hook = register_optimizer_step_pre_hook(refuse)
    torch.autograd.backward = lambda *_, **__: refuse()
    try:
        yield
    finally:
        torch.autograd.backward = run
        hook.remove()


Loss = Callable[..., Tensor]
Gradient = tuple[tuple[int, int], TensorSpec]
"""A gradient's source (record, output), and its spec as the update reads it."""

# Raised by fake tensors where a step needs their values: it is then run on real tensors.
NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    NotImplementedError,
    UntoldBufferError,
)


@dataclass(frozen=True, slots=True)
class Traced:
    """A recorded step: the names of its leaves by record, and the gradients of its parameters by
    name; ``real`` where it ran on real tensors.
    """

    recorder: Recorder
    leaves: Mapping[int, str]
    gradients: Mapping[str, Gradient]
    real: bool


def trace_step(
    module: nn.Module,
    inputs: Sequence[Tensor],
    loss: Callable[..., Any],
    training: bool,
    real: bool = False,
) -> Traced:
    """Records the step ``loss(module, *inputs)``, with its backward where ``training``.

    Some steps depend on values (by branches, by lengths, by the sizes of a library's buffers). With
    ``real`` such a step runs on copies of the real tensors, and holds all of its memory meanwhile.
    The module keeps its parameters, buffers and gradients. Raises InputError for a step that fails,
    and without ``real`` for one that asks for values.
    """
    step = _Step(module, loss)
    with refusing("captured"), refusing_compiled(module):
        state = step.state().values()
        if any(map(is_lazy, state)):
            # A lazy module gets its shapes in its first call.
            with torch.no_grad():
                loss(module, *inputs)
        try:
            return _Tracer(step, inputs, training, _mode((*state, *inputs)), real).traced()
        except NEEDS_VALUES as error:
            if not real:
                raise InputError(
                    "the step depends on the values of tensors and cannot be captured: "
                    f"{str(error).splitlines()[0]}"
                ) from None
        return _Tracer(step, inputs, training, None).traced()


def _mode(tensors: Iterable[Tensor]) -> FakeTensorMode:
    """The mode of the tensors that are fake already, else a new mode: modes do not mix."""
    modes = (tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
    return next(modes, None) or FakeTensorMode()


class _Step(nn.Module):
    """A module together with the loss of its step, so that ``functional_call`` can run the loss
    with other parameters.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def state(self) -> dict[str, Tensor]:
        """Parameters, then buffers, each once: in the order of the leaves and of the updates."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def forward(self, use: Callable[[Tensor], None], *inputs: Tensor) -> None:
        """Computes the loss and passes it to ``use`` while the parameters are exchanged, so that a
        backward that recomputes its forward (checkpoints) reads the same parameters.
        """
        with refusing_updates():
            loss = self.loss(self.module, *inputs)
        use(loss)


class _Tracer:
    """One recorded run of a step, on fake tensors of ``mode`` (None: on copies of the real ones).
    With ``exact`` it raises UntoldBufferError where a fake tensor hides the size of a buffer.
    """

    def __init__(
        self,
        step: _Step,
        inputs: Sequence[Tensor],
        training: bool,
        mode: FakeTensorMode | None,
        exact: bool = False,
    ) -> None:
        # Fake tensors have shapes and no memory: a step of any size is captured in seconds.
        self.step, self.training, self.mode = step, training, mode
        convert = None if mode is None else mode.from_tensor
        make = convert or _copied
        self.state = {key: make(tensor) for key, tensor in step.state().items()}
        self.batch = list(map(convert, inputs) if convert else inputs)
        names = {id(child): key for key, child in step.module.named_modules()}
        self.recorder = Recorder(Scopes(names), convert, exact)
        self.leaves = {
            self.recorder.add_leaf("parameter", tensor): key for key, tensor in self.state.items()
        }
        self.leaves |= {
            self.recorder.add_leaf("input", tensor): key
            for key, tensor in zip(_input_names(step.loss), self.batch, strict=False)
        }

    def traced(self) -> Traced:
        watching = self.recorder.scopes.watching()
        modes = (self.mode or nullcontext(), self.recorder, watching)
        try:
            with torch.set_grad_enabled(self.training), modes[0], modes[1], modes[2]:
                # The module stays as it is: its parameters are others for this call alone.
                torch.func.functional_call(self.step, self.state, (self._use, *self.batch))
        finally:
            self.recorder.forget_gradients()
        gradients = {
            key: (self.recorder.source_of(tensor.grad), TensorSpec.of(tensor.grad))
            for key, tensor in self.state.items()
            if tensor.is_leaf and tensor.grad is not None
        }
        return Traced(self.recorder, self.leaves, gradients, self.mode is None)

    def _use(self, value: Tensor) -> None:
        if not self.training:
            return
        if not value.requires_grad:
            raise InputError("the loss depends on no parameter that requires a gradient")
        self.recorder.note_saved(value)
        self.recorder.scopes.recomputing = True
        self.recorder.phase = "backward"
        value.backward()


def _copied(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


@contextmanager
def refusing(done: str) -> Iterator[None]:
    """Turns any exception of a step's code into InputError, with its place in the user's code. The
    message is "the step cannot be ``done``", for example "captured".
    """
    try:
        yield
    except SimdevError:
        raise
    except Exception as error:
        # The user's code and PyTorch's may raise any exception.
        reason = f"{reason_of(error)}{_place(error)}"
        raise InputError(f"the step cannot be {done}: {reason}") from error


def reason_of(error: Exception) -> str:
    """The first line of an error's message, after the error's type unless PyTorch raised it."""
    lines = str(error).strip().splitlines() or ["no reason told"]
    kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
    return kind + lines[0]


def _place(error: Exception) -> str:
    """The innermost line of the user's code that an error passed through, as " (file, line n)"."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if is_users(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def is_pytorchs(file: str) -> bool:
    """Whether a source file is PyTorch's or simdev's."""
    return file.startswith((_HOME, str(PACKAGE)))


def is_users(file: str) -> bool:
    """Whether a source file is the user's own, of neither PyTorch, simdev nor another library."""
    return not (is_pytorchs(file) or file.startswith(_LIBRARIES))


def running_line() -> str:
    """The line of the user's code that is running ("train.py:12"), or "" where none is (in hooks of
    autograd).
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def argument_names(function: Callable[..., Any]) -> list[str]:
    """The names of the positional arguments of a function or a module; empty where Python knows no
    names, because the function is written in C or takes *tensors.
    """
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def with_argument_names(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The function, with its arguments renamed to ``names``: the recorder names inputs by them."""
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(name, kind) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _input_names(loss: Callable[..., Any]) -> list[str]:
    """The names of the batch's tensors: the arguments of the loss after the module, then input_0,
    input_1, ...
    """
    names = argument_names(loss)[1:]
    return names + [f"input_{i}" for i in range(len(names), 64)]
