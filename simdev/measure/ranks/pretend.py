"""A world of ranks and GPUs that are not there, for a script that runs in one process.

Inside ``pretended`` a training script finds what it asks for: a world of any size (PyTorch's own
``fake`` process group, which sends nothing), the environment of ``torchrun``, and a GPU. Nothing is
computed: all tensors are fake. They are tensors of the CPU, because a build of PyTorch without CUDA
cannot run autograd on others; so whatever names a CUDA device is read as the CPU, streams and
events are the stand-ins of ``streams``, and optimizers take the paths that they take on a GPU.

What is not covered is refused by its name. ``scripts`` runs a user's file in here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pickle import dumps, loads
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import checkpoint, device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn import DataParallel, SyncBatchNorm
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes

from ...ground.errors import InputError
from ..tracing import is_users
from . import ddp
from .attention import scaled_dot_product_attention
from .streams import Event, Stream, Streams

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PATIENCE = 600
"""Seconds for which a rank waits for an object of another one."""
POLL = 0.01


@dataclass(frozen=True, slots=True)
class World:
    """The world that a script is shown: its number of ranks, the rank that it is, GPUs a node, and
    the compute capability and bytes of memory of a GPU.
    """

    size: int
    rank: int = 0
    per_node: int = 8
    capability: tuple[int, int] = (9, 0)
    memory: int = 80 * 10**9

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ``torchrun`` puts into the environment of a rank."""
        local = min(self.per_node, self.size)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.rank // local),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }


@contextmanager
def pretended(world: World, mail: Mail) -> Iterator[Streams]:
    """Shows the block a world; yields the streams of its rank. Process-wide, so not twice at once.

    ``mail`` carries the Python objects that ranks send one another.
    """
    streams = Streams()
    Rank.named.clear()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world.environment))
        for target, name, value in _replacements(world, streams, mail):
            stack.enter_context(patch.object(target, name, value, create=True))
        stack.enter_context(_OnCpu())
        try:
            yield streams
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _beside(name: str, *offsets: int) -> Callable[[int, Any], bool]:
    """A comparison of ranks that notes those at these offsets from the other one."""
    compare = getattr(int, name)

    def compared(rank: int, other: Any) -> bool:
        if isinstance(other, int):
            Rank.named.update(int(other) + offset for offset in offsets)
        answer: bool = compare(rank, other)
        return answer

    return compared


class Rank(int):
    """A rank as the script's code is told it. ``named`` are the ranks with which it was compared:
    those that may do otherwise than their neighbours.
    """

    named: ClassVar[set[int]] = set()
    __hash__ = int.__hash__

    __eq__, __ne__ = _beside("__eq__", 0), _beside("__ne__", 0)
    __lt__, __ge__ = _beside("__lt__", -1, 0), _beside("__ge__", -1, 0)
    __gt__, __le__ = _beside("__gt__", 0, 1), _beside("__le__", 0, 1)


class Mail:
    """Python objects from rank to rank, in a store of PyTorch that all captured ranks share.

    ``need`` is called with a rank before its object is waited for, so that whoever runs the ranks
    can start it. A rank that ``stands`` in the place of another one, to be compared with it, reads
    what that one got.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        need: Callable[[int], None] = lambda _: None,
        stands: int | None = None,
    ) -> None:
        self.store, self.rank, self.need, self.stands = store, rank, need, stands
        self._sent: dict[int | None, int] = {}
        self._received: dict[tuple[int, int | None], int] = {}

    def send(self, data: bytes, to: int | None) -> None:
        """Leaves bytes for another rank (None: for all that ask)."""
        number = self._sent[to] = self._sent.get(to, -1) + 1
        self.store.set(f"{self.rank}>{to}:{number}", data)

    def receive(self, source: int) -> bytes:
        """The next bytes from a rank; waits for them. Raises InputError where none come."""
        if self.stands is None:
            return self._taken(source, self.rank)
        return self._taken(source - self.rank + self.stands, self.stands)

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The bytes that one rank gives to all of a group. Raises InputError as ``receive``."""
        if self.stands is not None:
            return self.receive(self.rank)
        if source == self.rank:
            self.send(data, None)
        else:
            data = self._taken(source, None)
        # For ranks that stand in this one's place.
        self.send(data, self.rank)
        return data

    def end(self) -> None:
        """Notes that the rank sends nothing more."""
        if self.stands is None:
            self.store.set(f"{self.rank} ended", b"")

    def _taken(self, source: int, to: int | None) -> bytes:
        number = self._received[source, to] = self._received.get((source, to), -1) + 1
        key, end = f"{source}>{to}:{number}", time.monotonic() + PATIENCE
        if self.stands is None:
            self.need(source)
        while not self.store.check([key]):
            over = self.store.check([f"{source} ended"]) or time.monotonic() > end
            if over and not self.store.check([key]):
                raise InputError(
                    f"rank {self.rank} waits for an object from rank {source}, which sends none"
                )
            time.sleep(POLL)
        return bytes(self.store.get(key))


# What replaces what, while a script runs.

Replacement = tuple[Any, str, Any]


def _replacements(world: World, streams: Streams, mail: Mail) -> Iterator[Replacement]:
    device = {**_streaming(streams), **_device(world)}
    yield from ((torch.cuda, name, value) for name, value in device.items())
    yield from ((torch.cpu, name, value) for name, value in _streaming(streams).items())
    yield torch.Tensor, "record_stream", lambda *_: None
    yield torch.Tensor, "pin_memory", lambda tensor, *_: tensor
    yield torch.nn.Module, "_apply", _applied
    # Not by _OnCpu: what a backward computes again runs outside of modes of functions.
    yield F, "scaled_dot_product_attention", scaled_dot_product_attention
    yield torch, "set_default_device", lambda *_: None
    yield from ((torch.accelerator, name, value) for name, value in _accelerator(device).items())
    # There is nothing to be kept of a model without numbers.
    yield torch, "save", lambda *_, **__: None
    yield checkpoint, "save", lambda *_, **__: None
    why = ": a capture starts the ranks by itself; write the script for torchrun, a process a rank"
    yield torch.multiprocessing, "spawn", _refusing("torch.multiprocessing.spawn", why)
    # It draws until all values lie between its bounds, which no fake tensor ever tells.
    yield torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor
    optimizer: Any = sys.modules[torch.optim.Optimizer.__module__]
    types = [*optimizer._foreach_supported_types, FakeTensor]
    yield optimizer, "_foreach_supported_types", types
    for home in (_foreach_utils, optimizer):
        yield (
            home,
            "_get_foreach_kernels_supported_devices",
            lambda: ["cuda"] if streams.on_cpu else ["cpu", "cuda"],
        )
    yield torch.amp.autocast, "__init__", _read_as_cpu(torch.amp.autocast.__init__, 1)
    yield from _meshes()
    yield from _distributed(world, streams, mail)
    yield from ddp.replacements()
    for kind, instead in REFUSED.items():
        yield kind, "__init__", _refusing(kind.__name__, instead)


REFUSED = {
    FullyShardedDataParallel: " (FSDP1): not covered by a capture; use fully_shard",
    DataParallel: ": not covered by a capture; use DistributedDataParallel",
    SyncBatchNorm: ": not covered by a capture; leave BatchNorm as it is",
    CPUOffloadPolicy: ": what lies in the memory of the host is not covered by a capture",
    torch.autograd.graph.save_on_cpu: ": what lies in the memory of the host is not covered by a "
    "capture; let it be computed again (torch.utils.checkpoint)",
}
"""Classes that are refused by their names, and why."""


def _refusing(name: str, why: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise InputError(f"{name}{why}")

    return refuse


def _streaming(streams: Streams) -> Mapping[str, Any]:
    """Streams and events, of ``torch.cuda`` for scripts and of ``torch.cpu`` for PyTorch itself."""
    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *_: streams.current,
        "default_stream": lambda *_: streams.default,
        "set_stream": streams.use,
        "stream": lambda stream: stream if stream is not None else nullcontext(),
        "synchronize": lambda *_, **__: streams.host_waits(),
    }


def _device(world: World) -> Mapping[str, Any]:
    """The device that ``torch.cuda`` shows to scripts, and its memory."""
    local = min(world.per_node, world.size)
    properties = SimpleNamespace(
        name="GPU", total_memory=world.memory, multi_processor_count=132,
        major=world.capability[0], minor=world.capability[1], is_integrated=False,
    )  # fmt: skip
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: local,
        "device": lambda *_: nullcontext(),
        "nvtx": SimpleNamespace(
            range_push=nothing, range_pop=nothing, mark=nothing, range=lambda *_: nullcontext()
        ),
        "current_device": lambda: world.rank % local,
        "set_device": nothing,
        "init": nothing,
        "empty_cache": nothing,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "reset_peak_memory_stats": nothing,
        "reset_max_memory_allocated": nothing,
        "get_rng_state": nothing,
        "get_rng_state_all": nothing,
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: world.capability,
        "get_device_properties": lambda *_: properties,
        "mem_get_info": lambda *_: (world.memory, world.memory),
        "memory_stats": lambda *_: _Zeros(),
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        "memory_summary": lambda *_, **__: "",
    }


def _accelerator(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Stand-ins of ``torch.accelerator``, made of those of ``torch.cuda``."""
    names = {"current_device_index": "current_device", "set_device_index": "set_device"}
    equal = ("is_available", "device_count", "synchronize", "current_stream", "set_stream")
    answers = {name: device[names.get(name, name)] for name in (*names, *equal)}
    return {**answers, "current_accelerator": lambda *_, **__: CUDA}


def _applied(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """``nn.Module._apply`` as for real tensors: of fake ones it would swap the insides of tensors,
    which fails where anything refers to them weakly.
    """
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            new = fn(parameter)
        if new.device == parameter.device and type(new) is type(parameter.data):
            parameter.data = new
        else:
            module._parameters[name] = torch.nn.Parameter(new, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else fn(buffer)
    return module


class _Zeros(dict[str, int]):
    """Statistics of memory that nothing took: any of them is 0."""

    def __missing__(self, key: str) -> int:
        return 0


def _read_as_cpu(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """The function with "cpu" in place of "cuda" as its argument of that position."""

    def reading(*args: Any, **kwargs: Any) -> Any:
        changed = [_on_cpu(arg) if i == position else arg for i, arg in enumerate(args)]
        return function(*changed, **{name: _on_cpu(value) for name, value in kwargs.items()})

    return reading


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return CPU if isinstance(value, torch.device) and value.type == "cuda" else value


_OF_MESHES = ("__init__", "__getitem__", "_flatten", "_unflatten", "_concatenate", "from_group")


def _meshes() -> Iterator[Replacement]:
    """Device meshes look ranks up in tensors of their own: these are real. What DTensors run to
    learn the shapes of whole tensors is no work of a device.
    """
    for home in (_fsdp_init, _fully_shard):
        name = "_get_post_forward_mesh_info"
        yield home, name, _really(getattr(home, name))
    shapes = ShardingPropagator._propagate_tensor_meta_non_cached
    yield ShardingPropagator, shapes.__name__, _really(shapes)
    mesh = device_mesh.DeviceMesh
    for name in filter(mesh.__dict__.__contains__, _OF_MESHES):
        method = mesh.__dict__[name]
        kind = type(method) if isinstance(method, staticmethod | classmethod) else None
        function = _really(_read_as_cpu(method.__func__ if kind else method, 1))
        function = _of_ranks(function) if name == "__init__" else function
        yield mesh, name, kind(function) if kind else function


def _of_ranks(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a mesh, for which ``init_device_mesh`` numbers the ranks in a tensor."""

    def made(self: Any, device_type: str, mesh: Any = None, **kwargs: Any) -> None:
        if isinstance(mesh, FakeTensor):
            raise InputError(
                "DeviceMesh: the values of a tensor of ranks are not known in a capture; give "
                "lists, or use init_device_mesh"
            )
        numbered = kwargs.get("_rank_map")
        if isinstance(numbered, FakeTensor):
            with _disable_current_modes():
                kwargs["_rank_map"] = torch.arange(len(numbered), dtype=torch.int)
        make(self, device_type, mesh, **kwargs)

    return made


def _really(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on real tensors, unseen by recorders."""

    @wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return real


class _OnCpu(TorchFunctionMode):
    """Reads every CUDA device in a call of PyTorch as the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.cpu:
            Streams.running.current.synchronize()
        if func is torch.device and args and _on_cpu(args[0]) != args[0]:
            return CPU
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_on_cpu, args), **kwargs)


# Process groups: PyTorch's fake ones, whatever backend is asked for.


def _distributed(world: World, streams: Streams, mail: Mail) -> Iterator[Replacement]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin, group = dist.init_process_group, dist.new_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        streams.on_cpu = kwargs.get("backend", *args[:1]) == "gloo"
        kept = {key: kwargs[key] for key in ("timeout", "pg_options") if key in kwargs}
        begin("fake", rank=world.rank, world_size=world.size, store=FakeStore(), **kept)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return group(*args, **{**kwargs, "backend": "fake"})

    homes = (dist, dist.distributed_c10d, device_mesh)
    values = {"init_process_group": init_process_group, "new_group": new_group}
    values |= _objects(mail)
    rank_in = dist.get_rank

    def get_rank(group: Any = None) -> int:
        is_asked = group is None and is_users(sys._getframe(1).f_code.co_filename)
        return Rank(rank_in(group)) if is_asked else rank_in(group)

    values["get_rank"] = get_rank
    for name in ("barrier", "monitored_barrier"):
        values[name] = lambda *_, **__: streams.current.synchronize()
    for home in homes:
        for name, value in values.items():
            if hasattr(home, name):
                yield home, name, value
    from torch.distributed.pipelining import schedules

    # Sends and receives of a batch go together, as NCCL has it.
    yield c10d.Backend, "supports_coalescing", True
    schedule = schedules._PipelineSchedule
    yield schedule, "_warmup_p2p", _voting(schedule._warmup_p2p, mail)


def _voting(warm_up: Callable[..., None], mail: Mail) -> Callable[..., None]:
    """The first words of pipeline stages to one another: numbers in tensors, on which depends how
    each goes on. They are real ones and come by mail.
    """

    def send(tensor: Any, dst: int, **_: Any) -> None:
        mail.send(dumps(tensor.tolist()), dst)

    def receive(tensor: Any, src: int, **_: Any) -> None:
        tensor.copy_(torch.tensor(loads(mail.receive(src))))

    def voting(*args: Any, **kwargs: Any) -> None:
        with patch.multiple(dist, send=send, recv=receive):
            _really(warm_up)(*args, **kwargs)

    return voting


OTHER_OBJECTS = ("gather_object", "scatter_object_list")
"""Collectives over Python objects that are refused by their names."""


def _objects(mail: Mail) -> dict[str, Callable[..., Any]]:
    """The collectives over Python objects. What only all ranks together know is answered as if all
    ranks were equal.
    """

    def whole(group: Any, rank: int) -> int:
        return dist.get_global_rank(group, rank) if group is not None else rank

    def send(
        objects: Any, dst: Any = None, group: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        mail.send(dumps(objects), dst if dst is not None else whole(group, group_dst))

    def receive(
        objects: Any, src: Any = None, group: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        source = src if src is not None else whole(group, group_src)
        objects[:] = loads(mail.receive(source))
        return int(source)

    def broadcast(
        objects: Any, src: Any = None, group: Any = None, group_src: Any = None, **_: Any
    ) -> None:
        source = whole(group, group_src) if group_src is not None else src or 0
        objects[:] = loads(mail.broadcast(dumps(objects), source))

    def gather(objects: Any, value: Any, *_: Any, **__: Any) -> None:
        objects[:] = [value] * len(objects)

    return {
        "send_object_list": send,
        "recv_object_list": receive,
        "all_gather_object": gather,
        "broadcast_object_list": broadcast,
        **{name: _refusing(name, ": not covered by a capture") for name in OTHER_OBJECTS},
    }
