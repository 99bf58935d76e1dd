"""Simulates the environment of a rank, with other ranks and GPUs that do not exist, for a script
that runs in one process.

Inside ``pretended`` a training script sees a world of any size (PyTorch's own ``fake`` process
group, which sends nothing), the environment of ``torchrun``, and a GPU. Nothing is computed: all
tensors are fake. They are tensors of the CPU, because a build of PyTorch without CUDA cannot run
autograd on others. So CUDA devices are replaced by the CPU, streams and events by the stand-ins of
``streams``, and optimizers are made to take the paths that they take on a GPU.

Features that are not covered are refused by name. ``scripts`` runs a user's file in here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from multiprocessing.process import BaseProcess
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
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes

from ...ground.errors import InputError
from ..tracing import is_users, running_line
from . import ddp
from .attention import scaled_dot_product_attention
from .devices import Devices, Generator, as_list, of_number, on_cpu, reading
from .streams import Event, Stream, Streams

CUDA = torch.device("cuda")
PATIENCE = 600
"""The seconds for which a rank waits for an object from another rank."""
POLL = 0.01


@dataclass(frozen=True, slots=True)
class World:
    """The world that a script sees: the number of ranks, the script's own rank, the GPUs per node,
    and the compute capability and bytes of memory of a GPU.
    """

    size: int
    rank: int = 0
    per_node: int = 8
    capability: tuple[int, int] = (9, 0)
    memory: int = 80 * 10**9

    @property
    def local_rank(self) -> int:
        """The index of the rank on its node."""
        return self.rank % min(self.per_node, self.size)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that ``torchrun`` sets for a rank."""
        local = min(self.per_node, self.size)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.rank // local),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }


@contextmanager
def pretended(world: World, mail: Mail) -> Iterator[Streams]:
    """Runs the block in a pretended world; yields the streams of its rank. The replacements are
    process-wide, so there is one world at a time.

    ``mail`` carries the Python objects that ranks send one another.
    """
    streams, devices = Streams(), Devices(world.local_rank)
    Rank.named.clear()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world.environment))
        stack.enter_context(replaced(_replacements(world, streams, mail, devices)))
        stack.enter_context(devices)
        try:
            yield streams
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _beside(name: str, *offsets: int) -> Callable[[int, Any], bool]:
    """A comparison operator of ranks, which also notes the ranks at these offsets from the compared
    number.
    """
    compare = getattr(int, name)

    def compared(rank: int, other: Any) -> bool:
        if isinstance(other, int):
            Rank.named.update(int(other) + offset for offset in offsets)
        answer: bool = compare(rank, other)
        return answer

    return compared


class Rank(int):
    """The rank number that the script gets. ``named`` collects the ranks with which the script
    compares it: these may do something else than their neighbours.
    """

    named: ClassVar[set[int]] = set()
    __hash__ = int.__hash__

    __eq__, __ne__ = _beside("__eq__", 0), _beside("__ne__", 0)
    __lt__, __ge__ = _beside("__lt__", -1, 0), _beside("__ge__", -1, 0)
    __gt__, __le__ = _beside("__gt__", 0, 1), _beside("__le__", 0, 1)


class Mail:
    """Carries Python objects from rank to rank, in a PyTorch store that all captured ranks share.

    ``need`` is called with a rank before waiting for its object, so that the rank can be started. A
    rank that ``stands`` in the place of another rank, to be compared with it, receives the other
    rank's objects.
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
        """Leaves bytes for another rank (None: for every rank)."""
        number = self._sent[to] = self._sent.get(to, -1) + 1
        self.store.set(f"{self.rank}>{to}:{number}", data)

    def receive(self, source: int) -> bytes:
        """Waits for the next bytes from a rank. Raises InputError where none come."""
        if self.stands is None:
            return self._taken(source, self.rank)
        return self._taken(source - self.rank + self.stands, self.stands)

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The bytes that rank ``source`` gives to its group. Raises InputError as ``receive``."""
        if self.stands is not None:
            return self.receive(self.rank)
        if source == self.rank:
            self.send(data, None)
        else:
            data = self._taken(source, None)
        # A copy for ranks that stand in the place of this rank.
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
                    f"{running_line()}: waits for an object from rank {source}, which sends none"
                )
            time.sleep(POLL)
        return bytes(self.store.get(key))


# The replacements of PyTorch's names while a script runs.

Replacement = tuple[Any, str, Any]
"""A replacement: the owner of a name, the name, and its new value."""


@contextmanager
def replaced(replacements: Iterable[Replacement]) -> Iterator[None]:
    """Runs the block with these replacements."""
    with ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(patch.object(owner, name, value, create=True))
        yield


def _replacements(
    world: World, streams: Streams, mail: Mail, devices: Devices
) -> Iterator[Replacement]:
    device = {**_streaming(streams), **_device(world)}
    yield from ((torch.cuda, name, value) for name, value in device.items())
    yield from ((torch.cpu, name, value) for name, value in _streaming(streams).items())
    yield torch.Tensor, "record_stream", _nothing
    yield torch.Tensor, "pin_memory", lambda tensor, *_: tensor
    yield torch.nn.Module, "_apply", _applied
    # Not in Devices, because a forward that a backward recomputes runs outside of function modes.
    yield F, "scaled_dot_product_attention", scaled_dot_product_attention
    yield torch._C._nn, "_parse_to", reading(of_number, torch._C._nn._parse_to)
    yield torch, "set_default_device", devices.set_default
    yield torch, "Generator", Generator
    yield torch.random, "fork_rng", lambda *_, **__: nullcontext()
    yield FakeTensor, "device", devices.of_fake()
    yield from ((torch.accelerator, name, value) for name, value in _accelerator(device).items())
    yield from _surroundings()
    # It redraws until all values lie between its bounds, which would never end on fake tensors.
    yield torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor
    optimizer: Any = sys.modules[torch.optim.Optimizer.__module__]
    types = [*optimizer._foreach_supported_types, FakeTensor]
    for home in (_foreach_utils, optimizer):
        yield home, "_foreach_supported_types", types
        yield (
            home,
            "_get_foreach_kernels_supported_devices",
            lambda: ["cuda"] if streams.on_cpu else ["cpu", "cuda"],
        )
    yield torch.amp.autocast, "__init__", reading(on_cpu, torch.amp.autocast.__init__)
    yield from _meshes()
    yield from _distributed(world, streams, mail)
    yield from ddp.replacements()
    for kind, instead in REFUSED.items():
        yield kind, "__init__", _refusing(kind.__name__, instead)


def _surroundings() -> Iterator[Replacement]:
    """The replacements for files, libraries and processes around a script."""
    # A model of fake tensors has no values to save.
    yield from ((home, "save", _nothing) for home in (torch, checkpoint))
    yield torch, "load", _loaded(torch.load)
    # A build without CUDA lacks the versions of CUDA's libraries, which scripts print and compare.
    yield torch.version, "cuda", "12.8"
    yield torch.backends.cudnn, "version", _answering(91002)
    yield torch.cuda.nccl, "version", _answering((2, 27, 5))
    yield torch.multiprocessing, "spawn", _refusing("torch.multiprocessing.spawn", _RANKS)
    yield os, "fork", _refusing("os.fork", _ALONE)
    yield BaseProcess, "start", _refusing("multiprocessing.Process", _ALONE)
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        yield torch.cuda, name, _refusing(f"torch.cuda.{name}", _GRAPHS)
    yield FakeTensor, "tolist", as_list
    yield torch, "inference_mode", _without_gradients


def _without_gradients(mode: Any = True) -> Any:
    """Replaces ``torch.inference_mode``, in which PyTorch would not decompose operators such as
    ``linear``. Works as a decorator with or without brackets.
    """
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else nullcontext()


REFUSED = {
    FullyShardedDataParallel: " (FSDP1): not covered by a capture; use fully_shard",
    DataParallel: ": not covered by a capture; use DistributedDataParallel",
    SyncBatchNorm: ": not covered by a capture; leave BatchNorm as it is",
    CPUOffloadPolicy: ": what lies in the memory of the host is not covered by a capture",
    torch.autograd.graph.save_on_cpu: ": what lies in the memory of the host is not covered by a "
    "capture; let it be computed again (torch.utils.checkpoint)",
}
"""Classes that are refused, with the text that follows their name in the message."""


_RANKS = ": a capture starts the ranks by itself; write the script for torchrun, a process a rank"
_ALONE = ": a rank is one process in a capture; let the script do it in that one"
_GRAPHS = (
    ": not covered by a capture; let the script run its step eagerly, and simulate the graph by "
    "--host graph, which replays the whole step as one"
)


def _refusing(name: str, why: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        line = running_line()
        raise InputError(f"{line}: {name}{why}" if line else f"{name}{why}")

    return refuse


def _loaded(load: Callable[..., Any]) -> Callable[..., Any]:
    """A ``torch.load`` that loads onto the CPU, whatever device the script names."""
    return lambda file, map_location=None, **options: load(file, map_location="cpu", **options)


def _streaming(streams: Streams) -> Mapping[str, Any]:
    """Stand-ins for streams and events, for ``torch.cuda`` (scripts) and ``torch.cpu`` (PyTorch
    itself).
    """
    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *_: streams.current,
        "default_stream": lambda *_: streams.default,
        "set_stream": streams.use,
        "stream": lambda stream: stream if stream is not None else nullcontext(),
        "synchronize": lambda *_, **__: streams.host_waits(),
    }


_SILENT = (
    "init", "set_device", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "get_rng_state",
    "get_rng_state_all", "set_rng_state", "set_rng_state_all", "set_sync_debug_mode",
)  # fmt: skip
_ZERO = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "memory_cached", "max_memory_cached", "memory_usage", "utilization", "temperature",
    "power_draw", "clock_rate", "initial_seed", "get_sync_debug_mode",
)  # fmt: skip
"""Functions of ``torch.cuda`` that return 0. (Functions of _SILENT do nothing.)"""


def _device(world: World) -> Mapping[str, Any]:
    """Stand-ins for functions of ``torch.cuda`` that describe the device and its memory."""
    local = min(world.per_node, world.size)
    properties = SimpleNamespace(
        name="GPU", total_memory=world.memory, multi_processor_count=132, warp_size=32,
        major=world.capability[0], minor=world.capability[1], is_integrated=False, uuid="GPU",
        max_threads_per_multi_processor=2048, L2_cache_size=50 * 2**20,
    )  # fmt: skip
    memory = SimpleNamespace(_record_memory_history=_nothing, _dump_snapshot=_nothing)
    answers = {
        "is_available": True, "is_initialized": True, "is_bf16_supported": True,
        "device_count": local, "current_device": world.local_rank, "device": nullcontext(),
        "get_device_name": properties.name, "get_device_capability": world.capability,
        "get_device_properties": properties, "mem_get_info": (world.memory, world.memory),
        "memory_stats": _Zeros(), "memory_summary": "", "memory_snapshot": [],
        "is_current_stream_capturing": False, "can_device_access_peer": True,
        "get_allocator_backend": "native",
    }  # fmt: skip
    answers |= dict.fromkeys(_SILENT) | dict.fromkeys(_ZERO, 0)
    return {
        **{name: _answering(value) for name, value in answers.items()},
        "nvtx": SimpleNamespace(
            range_push=_nothing, range_pop=_nothing, mark=_nothing, range=lambda *_: nullcontext()
        ),
        "profiler": SimpleNamespace(start=_nothing, stop=_nothing, profile=nullcontext),
        "memory": SimpleNamespace(**vars(torch.cuda.memory) | vars(memory)),
    }


def _answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_nothing = _answering(None)


def _accelerator(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Stand-ins for ``torch.accelerator``, made from those for ``torch.cuda``."""
    names = {"current_device_index": "current_device", "set_device_index": "set_device"}
    equal = (
        "is_available", "device_count", "synchronize", "current_stream", "set_stream",
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "memory_stats", "empty_cache", "reset_peak_memory_stats",
    )  # fmt: skip
    answers = {name: device[names.get(name, name)] for name in (*names, *equal)}
    return {**answers, "current_accelerator": lambda *_, **__: CUDA}


def _applied(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Replaces ``nn.Module._apply``, and treats fake tensors like real ones. PyTorch's would swap
    the contents of fake tensors, which fails for tensors with weak references.
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
    """Statistics of unused memory: every entry is 0."""

    def __missing__(self, key: str) -> int:
        return 0


_OF_MESHES = ("__init__", "__getitem__", "_flatten", "_unflatten", "_concatenate", "from_group")


def _meshes() -> Iterator[Replacement]:
    """The replacements that run device meshes on real tensors, in which they look up ranks, and
    that hide the calls by which DTensors compute the shapes of whole tensors: no device runs these.
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
        function = _really(reading(on_cpu, method.__func__ if kind else method))
        function = _of_ranks(function) if name == "__init__" else function
        yield mesh, name, kind(function) if kind else function


def _of_ranks(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor of a device mesh, with the tensor of ranks that ``init_device_mesh`` makes
    replaced by a real one.
    """

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
    """The function, run on real tensors and hidden from recorders."""

    @wraps(function)
    def real(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return real


# Process groups are PyTorch's fake ones, whatever backend the script names.


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

    # The sends and receives of a batch are launched together, as with NCCL.
    yield c10d.Backend, "supports_coalescing", True
    schedule = schedules._PipelineSchedule
    yield schedule, "_warmup_p2p", _voting(schedule._warmup_p2p, mail)


def _voting(warm_up: Callable[..., None], mail: Mail) -> Callable[..., None]:
    """The warm-up of pipeline stages, in which they exchange numbers in tensors and branch on them.
    Here the tensors are real, and are carried by ``mail``.
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
"""Collectives over Python objects that are refused."""


def _objects(mail: Mail) -> dict[str, Callable[..., Any]]:
    """Stand-ins for the collectives over Python objects. Gathers of all ranks return this rank's
    object for every rank.
    """

    def named(rank: Any = None, group: Any = None, place: Any = None) -> int:
        """A rank of the world, given directly or by its place in a group."""
        if place is None:
            return rank or 0
        return dist.get_global_rank(group, place) if group is not None else int(place)

    def send(
        objects: Any, dst: Any = None, group: Any = None, group_dst: Any = None, **_: Any
    ) -> None:
        mail.send(dumps(objects), named(dst, group, group_dst))

    def receive(
        objects: Any, src: Any = None, group: Any = None, group_src: Any = None, **_: Any
    ) -> int:
        source = named(src, group, group_src)
        objects[:] = loads(mail.receive(source))
        return source

    def broadcast(
        objects: Any, src: Any = None, group: Any = None, group_src: Any = None, **_: Any
    ) -> None:
        objects[:] = loads(mail.broadcast(dumps(objects), named(src, group, group_src)))

    def gather(objects: Any, value: Any, *_: Any, **__: Any) -> None:
        objects[:] = [value] * len(objects)

    return {
        "send_object_list": send,
        "recv_object_list": receive,
        "all_gather_object": gather,
        "broadcast_object_list": broadcast,
        **{name: _refusing(name, ": not covered by a capture") for name in OTHER_OBJECTS},
    }
