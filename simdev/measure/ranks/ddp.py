"""A stand-in for the reducer of PyTorch's DistributedDataParallel, whose C++ takes no fake tensors.

A script's ``DistributedDataParallel`` remains PyTorch's own module, but leaves its gradients to the
``Reducer`` here, which issues the same operators in Python as PyTorch's (``reducer.cpp`` in
``torch/csrc/distributed/c10d``). Gradients are divided by the number of ranks while they are copied
into buckets; a bucket is all-reduced once it and the buckets before it are full; at the end of the
backward all buckets are awaited and copied back. After the first backward the buckets are rebuilt
in the order in which gradients became ready. PyTorch does so at the next forward; here it is done
at once, so that the second step equals all later ones.

Where a rank would need to know about others, all ranks are taken to be equal: a parameter that it
does not use is used nowhere. ``pretend`` puts the ``replacements`` in place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ...ground.errors import InputError
from ..record import key_of
from .scopes import RankScopes
from .streams import Streams

_REFUSED = ("mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce")
_HOOKS = default_hooks.__name__.rpartition(".")[0]
# Messages of PyTorch's, shortened.
_TWICE = (
    "Expected to mark a variable ready only once: a parameter is used in several backward passes "
    "of one forward (DistributedDataParallel; static_graph=True allows it)"
)
_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration: parameters got no gradient "
    "(DistributedDataParallel; find_unused_parameters=True allows it)"
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of PyTorch's reducer after parameters, buckets and group, in the order of the
    C++ constructor; sizes in bytes.
    """

    sparse: Sequence[bool]
    bucket_bytes: int
    finds_unused: bool
    gradients_are_views: bool
    names: Mapping[int, str]
    first_bucket_bytes: int
    skips_unused: bool = False
    in_python: bool = False
    limits: Sequence[int] = ()
    copies_at_once: bool = False


class Bucket:
    """Gradients that are sent as one flat tensor, ``contents``. ``views`` are its parts by the
    index of the parameter.

    Communication hooks receive it as PyTorch's ``GradBucket``.
    """

    def __init__(self, number: int, count: int, parameters: Mapping[int, Tensor]) -> None:
        self.number, self.count, self.of = number, count, parameters
        size = sum(parameter.numel() for parameter in parameters.values())
        self.contents = torch.empty(size, dtype=next(iter(parameters.values())).dtype)
        self.views = self.parts(self.contents)
        self.pending: set[int] = set()
        self.deferred: list[int] = []
        self.future: Any = None  # of the all_reduce or the hook
        self._sent = self.contents

    def parts(self, flat: Tensor) -> dict[int, Tensor]:
        """The parts of a flat tensor, with the layouts of the parameters."""
        views, offset = {}, 0
        for index, parameter in self.of.items():
            if is_non_overlapping_and_dense_or_false(parameter):
                views[index] = flat.as_strided(parameter.shape, parameter.stride(), offset)
            else:
                views[index] = flat[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        return views

    def buffer(self) -> Tensor:
        """The flat tensor that a hook sends."""
        return self._sent

    def set_buffer(self, buffer: Tensor) -> None:
        """Gives the hook another tensor to send."""
        self._sent = buffer

    def gradients(self) -> list[Tensor]:
        """The gradients: the parts of the tensor that is sent."""
        return list(self.parts(self._sent).values())

    def parameters(self) -> list[Tensor]:
        """The parameters of the bucket."""
        return list(self.of.values())

    def index(self) -> int:
        """The number of the bucket, in the order of sending."""
        return self.number

    def is_last(self) -> bool:
        """Whether it is the last bucket to be sent."""
        return self.number == self.count - 1


class Reducer:
    """Sums the gradients of a ``DistributedDataParallel`` over its ranks, as PyTorch's reducer
    does. Methods without a docstring have the names and roles of PyTorch's.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        buckets: Sequence[Sequence[int]],
        _: Sequence[int],
        group: Any,
        *settings: Any,
    ) -> None:
        self.parameters, self.group, self.settings = parameters, group, Settings(*settings)
        if any(self.settings.sparse):
            raise InputError(
                "DistributedDataParallel: sparse gradients are not covered by a capture"
            )
        self.hook: Callable[[Bucket], Any] | None = None
        self.is_static = self.is_expecting = self.is_unfinished = self.is_rebuilt = False
        self.knows_unused = False
        self.steps = self.next_bucket = 0
        self.order: dict[int, None] = {}
        self.triggered = [0] * len(parameters)
        self.left: list[int] = []
        self.unused: list[int] = []
        self.ready: set[int] = set()
        self.used: set[int] = set()
        self.used_map = torch.zeros(len(parameters), dtype=torch.int32)
        self.used_work: Any = None
        self._fill(buckets)
        self._watch()

    def _fill(self, buckets: Sequence[Sequence[int]]) -> None:
        self.buckets = [
            Bucket(number, len(buckets), {index: self.parameters[index] for index in indices})
            for number, indices in enumerate(buckets)
        ]
        self.bucket_of = {index: bucket for bucket in self.buckets for index in bucket.of}
        RankScopes.running.buckets |= {key_of(bucket.contents) for bucket in self.buckets}

    def _watch(self) -> None:
        # Hooks of AccumulateGrad are also called for undefined gradients.
        made: list[Any] = [parameter.expand_as(parameter).grad_fn for parameter in self.parameters]
        self.nodes = [node.next_functions[0][0] for node in made]
        self.hooks = [
            node.register_hook(partial(self._gradient_came, index))
            for index, node in enumerate(self.nodes)
        ]

    def __getattr__(self, name: str) -> Any:
        raise _refused(f": {name}")

    @property
    def _looks_for_unused(self) -> bool:
        return self.settings.finds_unused and not self.is_static

    @property
    def _is_first_of_static(self) -> bool:
        return self.is_static and self.steps == 1

    # Methods that DistributedDataParallel calls.

    def set_logger(self, _: object) -> None:  # noqa: D102
        pass

    def _set_static_graph(self) -> None:
        self.is_static = True

    def _remove_autograd_hooks(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _check_reducer_finalized(self) -> None:
        if self.is_unfinished:
            raise RuntimeError(_UNFINISHED)

    def prepare_for_forward(self) -> None:  # noqa: D102
        self.steps += 1

    def _rebuild_buckets(self) -> bool:
        self._check_reducer_finalized()
        return False

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:  # noqa: D102
        self.is_expecting, self.next_bucket = True, 0
        self.ready.clear()
        self.left = list(self.triggered)
        for bucket in self.buckets:
            bucket.pending = set(bucket.of)
        if self._looks_for_unused:
            met = _leaves_behind(outputs)
            self.unused = [i for i, p in enumerate(self.parameters) if id(p) not in met]

    def _delay_all_reduce(self) -> None:
        # The first backward of a static graph sends all gradients at its end.
        self._send_used_map()
        self.unused = [index for index, times in enumerate(self.triggered) if not times]
        for index in range(len(self.parameters)):
            self._copy_in(index)
        for bucket in self.buckets:
            self._flush(bucket)
            self._send(bucket)
        self._finish()

    # While a backward runs.

    def _gradient_came(self, index: int, *_: Any) -> None:
        if self.parameters[index].grad is not None:
            self.used.add(index)
        if self._is_first_of_static:
            self.triggered[index] += 1
            self.order.pop(index, None)
            self.order[index] = None
            return
        if not self.is_expecting:
            return
        if not self.ready:
            for unused in self.unused:
                self._mark_ready(unused)
        self.left[index] -= 1
        if not self.is_static or self.left[index] == 0:
            self.order.setdefault(index)
            self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        if index in self.ready:
            raise RuntimeError(_TWICE)
        self.ready.add(index)
        self.is_unfinished = True
        bucket = self.bucket_of[index]
        with RankScopes.running.around(self.parameters[index]):
            self._copy_in(index)
            bucket.pending.remove(index)
            if not bucket.pending:
                self._flush(bucket)
                self._send_in_turn()
        if self.next_bucket == len(self.buckets):
            if self._looks_for_unused:
                self._send_used_map()
            Variable._execution_engine.queue_callback(self._finish)

    @torch.no_grad()
    def _copy_in(self, index: int) -> None:
        bucket, parameter = self.bucket_of[index], self.parameters[index]
        view, gradient = bucket.views[index], parameter.grad
        size = self.group.size()
        if gradient is None:
            view.zero_()
        elif key_of(gradient) == key_of(view):
            if self.hook is None and not self.settings.copies_at_once:
                view.div_(size)
        elif self.settings.copies_at_once:
            bucket.deferred.append(index)
        else:
            if self.hook is None:
                torch.mul(gradient, 1 / size, out=view)
            else:
                view.copy_(gradient)
            if self.settings.gradients_are_views:
                parameter.grad = view

    @torch.no_grad()
    def _flush(self, bucket: Bucket) -> None:
        """Copies the deferred gradients into a bucket (``batched_grad_copy``)."""
        if not self.settings.copies_at_once:
            return
        if bucket.deferred:
            gradients: list[Any] = [self.parameters[index].grad for index in bucket.deferred]
            torch._foreach_copy_([bucket.views[index] for index in bucket.deferred], gradients)
        for index in bucket.deferred if self.settings.gradients_are_views else ():
            self.parameters[index].grad = bucket.views[index]
        bucket.deferred.clear()
        if self.hook is None:
            bucket.contents.div_(self.group.size())

    def _send_in_turn(self) -> None:
        for bucket in self.buckets[self.next_bucket :]:
            if bucket.pending:
                return
            self.next_bucket += 1
            if not self._is_skipped(bucket):
                self._send(bucket)

    def _is_skipped(self, bucket: Bucket) -> bool:
        return self.settings.skips_unused and set(bucket.of) <= set(self.unused)

    def _send(self, bucket: Bucket) -> None:
        bucket.set_buffer(bucket.contents)
        if self.hook is not None:
            bucket.future = self.hook(bucket)
            return
        work = dist.all_reduce(bucket.contents, group=self.group, async_op=True)
        bucket.future = work.get_future()

    def _send_used_map(self) -> None:
        self.used_map.copy_(torch.zeros_like(self.used_map))  # a copy from the host
        self.used_work = dist.all_reduce(self.used_map, group=self.group, async_op=True)

    # At the end of a backward.

    @torch.no_grad()
    def _finish(self) -> None:
        self.is_expecting = self.is_unfinished = False
        for bucket in self.buckets:
            if not self._is_skipped(bucket):
                result = bucket.future.wait()
                flat = result[0] if isinstance(result, list | tuple) else result
                self._copy_out(bucket, bucket.parts(flat))
        if self._looks_for_unused or self._is_first_of_static:
            self.used_work.wait()
        if self._looks_for_unused:
            self.used.clear()
            self.knows_unused = False
        self._rebuild()

    def _learn_unused(self) -> None:
        """Lets the host wait for the map of parameters that other ranks use (all ranks are taken to
        be equal: no others).
        """
        if not self.knows_unused:
            self.used_work.wait()
            Streams.running.current.synchronize()
            self.knows_unused = True

    def _copy_out(self, bucket: Bucket, views: Mapping[int, Tensor]) -> None:
        for index, view in views.items():
            parameter = self.parameters[index]
            if (self.is_static or self.settings.finds_unused) and index not in self.used:
                self._learn_unused()
                continue
            with RankScopes.running.around(parameter):
                self._copy_to_gradient(parameter, view, bucket.views[index])

    def _copy_to_gradient(self, parameter: Tensor, view: Tensor, kept: Tensor) -> None:
        if self.settings.gradients_are_views:
            if key_of(view) != key_of(kept):
                kept.copy_(view)
            parameter.grad = kept
        elif parameter.grad is None:
            parameter.grad = view.clone()
        else:
            parameter.grad.copy_(view)

    def _rebuild(self) -> None:
        """Rebuilds the buckets once, in the order in which gradients became ready."""
        if self.is_rebuilt or self._looks_for_unused:
            return
        self.is_rebuilt = True
        order = [*self.order, *(i for i in range(len(self.parameters)) if i not in self.order)]
        is_last_small = os.environ.get("DDP_SET_LAST_BUCKET_CAP") == "1"
        settings = self.settings
        buckets, _ = c10d._compute_bucket_assignment_by_size(
            [self.parameters[index] for index in order][:: -1 if is_last_small else 1],
            list(settings.limits) or [settings.first_bucket_bytes, settings.bucket_bytes],
            list(settings.sparse),
            order[:: -1 if is_last_small else 1],
        )
        self._fill(buckets[:: -1 if is_last_small else 1])
        for index, parameter in enumerate(self.parameters):
            if settings.gradients_are_views and parameter.grad is not None:
                parameter.grad = self.bucket_of[index].views[index].copy_(parameter.grad)


def _refused(part: str) -> InputError:
    return InputError(f"DistributedDataParallel{part}: not covered by a capture")


def _require_steady(hook: Any) -> None:
    """Refuses PyTorch's hooks that communicate differently in later steps than in the first."""
    for cell in getattr(hook, "__closure__", None) or ():
        _require_steady(cell.cell_contents)  # the inner hook of a wrapping hook
    home = getattr(hook, "__module__", None) or ""
    if home.startswith(_HOOKS) and home != default_hooks.__name__:
        raise _refused(f": the communication hook {hook.__name__}")


def _leaves_behind(outputs: Sequence[Tensor]) -> set[int]:
    """The ``id`` of the parameters that a backward from these outputs reaches."""
    stack = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, leaves = set(stack), set()
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                stack.append(before)
    return leaves


class Logger:
    """A stand-in for the logger of ``DistributedDataParallel``, which logs nothing."""

    def __init__(self, _: Reducer) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., dict[str, Any]]:
        return lambda *_, **__: {}


def broadcast_coalesced(group: Any, tensors: Sequence[Tensor], size: int, source: int = 0) -> None:
    """Broadcasts tensors from rank ``source`` to its group, in flat tensors of ``size`` bytes."""
    if not tensors:
        return
    buckets, _ = c10d._compute_bucket_assignment_by_size(list(tensors), [size])
    sent = []
    with torch.no_grad():
        for bucket in buckets:
            flat = torch.cat([tensors[index].reshape(-1) for index in bucket])
            work = dist.broadcast(flat, group=group, group_src=source, async_op=True)
            sent.append((bucket, flat, work))
        for bucket, flat, work in sent:
            work.wait()
            parts = flat.split([tensors[index].numel() for index in bucket])
            for index, part in zip(bucket, parts, strict=True):
                tensors[index].copy_(part.view(tensors[index].shape))


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """The replacements (owner, name, value) that put these stand-ins in place of PyTorch's."""
    begin = DistributedDataParallel.__init__

    def init(module: Any, *args: Any, **kwargs: Any) -> None:
        for name in _REFUSED:
            if kwargs.get(name) is not None:
                raise InputError(f"DistributedDataParallel({name}=...) is not covered by a capture")
        # All parameters lie on the CPU, so no device is named: module, device_ids, output_device.
        kwargs = {
            name: x for name, x in kwargs.items() if name not in ("device_ids", "output_device")
        }
        begin(module, *(None if i in (1, 2) else arg for i, arg in enumerate(args)), **kwargs)

    def register(reducer: Reducer, state: Any, hook: Callable[[Any, Bucket], Any]) -> None:
        _require_steady(hook)
        reducer.hook = partial(hook, state)

    def register_builtin(reducer: Reducer, kind: Any) -> None:
        is_half = kind == c10d.BuiltinCommHookType.FP16_COMPRESS
        hook = default_hooks.fp16_compress_hook if is_half else default_hooks.allreduce_hook
        register(reducer, reducer.group, hook)

    yield DistributedDataParallel, "__init__", init
    yield DistributedDataParallel, "_check_comm_hook", lambda *_: None
    yield dist, "Reducer", Reducer
    yield dist, "Logger", Logger
    yield dist, "_verify_params_across_processes", lambda *_: None
    yield dist, "_broadcast_coalesced", broadcast_coalesced
    yield dist, "_register_comm_hook", register
    yield dist, "_register_builtin_comm_hook", register_builtin
