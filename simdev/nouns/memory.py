"""Memory as frameworks count it: rounded sizes, gradients and optimizer state, and memory that no
tensor holds.

The execution contract counts the bytes of tensors; so does ``MemoryModel()``. The rest is optional:
sizes rounded as an allocator rounds them, gradients and optimizer state by the optimizer's name,
and reserves for the framework's context and the communication library. Nothing here changes timing.

A scenario's ``options.memory`` is a ``MemoryModel``; lowering sizes buffers by it
(``simdev/lowering/columns.py``), and the report replays the allocator
(``simdev/report/measures/footprint.py``). An optimizer is a row of ``OPTIMIZERS``, and the work of
its update op a row of ``UPDATES`` in ``simdev/nouns/semantics/kinds/elementwise.py``; the temporary
memory of its update is in TEMPORARIES and KEPT of ``simdev/lowering/prepare.py`` (none, where the
kind is not listed). Large models have ``Parallelism.state_bytes`` instead. Captures of PyTorch run
the optimizers of ``simdev/measure/tracing.py``, and traces recognise updates by UPDATE_KINDS of
``simdev/measure/traces/updates.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import is_
from typing import Any

from ..ground.errors import InputError, collecting, refuse
from ..ground.frozen import freeze
from ..ground.units import Number, is_count, parse_bytes, unlisted, written
from .cluster import Cluster, Device
from .graph import Graph, Op
from .semantics import traits_of
from .semantics.dtype import PARAMETERS, bits_of, known

MODELS = ("full", "outputs_only")
FRAMEWORKS = ("auto", "none", "pytorch")
ROUNDING = {"none": 1, "pytorch": 512}  # bytes; PyTorch's CUDA caching allocator, kMinBlockSize
# bytes; recalled as 0.3 to 0.6 GB, by driver and by the kernels that are loaded
CUDA_CONTEXT = 600 * 10**6
# bytes for 2 GPUs, for 4 to 8; aiconfigurator's system tables
NCCL_PAIR, NCCL_GROUP = 342 * 2**20, 392 * 2**20
RESERVES = ("cuda", "nccl")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer: the kind of its ``update`` op, and the state that it keeps for each parameter:
    ``values`` numbers of the parameter's own dtype and ``floats`` numbers of 4 bytes.
    """

    update: str
    values: int
    floats: int


# Mixed precision (ZeRO, section 3.1): parameters and gradients of 2 bytes, and for each a master
# copy of 4 bytes beside the states of 4 bytes; with Adam 2 + 2 + 4 + 4 + 4 = 16 bytes a parameter
# in all.
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer("sgd_update", 0, 0),
    "momentum": Optimizer("sgd_momentum_update", 1, 0),
    "adam": Optimizer("adam_update", 2, 0),
    "mixed-momentum": Optimizer("sgd_momentum_update", 0, 2),
    "mixed-adam": Optimizer("adam_update", 0, 3),
}

Reserve = Number | Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The options that say how memory is counted; the defaults are the execution contract's. Raises
    InputError.

    - ``model``: ``full``, or ``outputs_only`` as in Placeto's simulator: only outputs of ops, each
      until its last consumer on any device has finished; no copies, parameters, states or
      workspace.
    - ``framework``: ``pytorch`` counts like ``torch.cuda.max_memory_allocated``: rounded sizes, and
      beside tensors the scratch memory of operators, of updates and of cuBLAS; the Report then
      replays the allocator over consecutive steps. ``none`` does not; ``auto`` does where a profile
      was measured by PyTorch on a CUDA device.
    - ``rounding``: ``pytorch`` rounds every tensor up to 512 bytes, and the Report replays the
      caching allocator. ``expandable``: the replay has expandable segments.
    - ``optimizer``: ``sgd``, ``momentum``, ``adam``, ``mixed-momentum`` or ``mixed-adam`` sets the
      state bytes of every op that owns parameters; none: as the graph says. ``gradients``: copies
      of gradients, each of the parameters' bytes, 0, 1 or 2 (2: with the flat copy of data-parallel
      buckets); none: as the graph says. ``dtype``: the dtype of parameters whose op has none.
    - ``context``, ``communication``: bytes reserved on each device that runs ops: a size, ``cuda``
      (for the context), ``nccl`` (for communication), or a table of these by device kind.
    """

    model: str = "full"
    framework: str = "auto"
    rounding: str = "none"
    expandable: bool = False
    optimizer: str | None = None
    gradients: int | None = None
    dtype: str | None = None
    context: Reserve = 0
    communication: Reserve = 0

    def __post_init__(self) -> None:
        freeze(self, "context", "communication")
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", known(self.dtype) or self.dtype)
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from unlisted(self, model=MODELS, framework=FRAMEWORKS, rounding=ROUNDING)
        yield from unlisted(self, optimizer=(None, *OPTIMIZERS), dtype=(None, *PARAMETERS))
        if self.gradients is not None and not (is_count(self.gradients) and self.gradients <= 2):
            yield f"gradients: must be 0, 1 or 2 copies, got {written(self.gradients)}"
        if self.model == "outputs_only" and len(self.changes) > 1:
            yield (
                'model: "outputs_only" counts nothing but outputs, as they are: leave the '
                "other options out"
            )
        if self.expandable and self.rounding in ROUNDING and self.unit == 1:
            yield 'expandable: means something only with "rounding": "pytorch"'
        for name, preset in zip(("context", "communication"), RESERVES, strict=True):
            yield from self._reserve_problems(name, preset)

    def _reserve_problems(self, name: str, preset: str) -> Iterator[str]:
        value = getattr(self, name)
        sizes = value if isinstance(value, Mapping) else {None: value}
        for kind, size in sizes.items():
            try:
                parse_bytes(0 if size == preset else size)
            except ValueError as error:
                key = "" if kind is None else f'["{kind}"]'
                yield f'{name}{key}: {error}; or "{preset}"'

    @property
    def changes(self) -> dict[str, Any]:
        """The options that differ from the contract's."""
        options = ((option, getattr(self, option.name)) for option in fields(self))
        return {option.name: value for option, value in options if value != option.default}

    @property
    def unit(self) -> int:
        """The size in bytes that every allocation is a multiple of."""
        return ROUNDING["pytorch" if self.is_pytorch else self.rounding]

    @property
    def is_pytorch(self) -> bool:
        """Whether memory is counted as PyTorch's own counter does."""
        return self.framework == "pytorch"

    def within(self, measured: bool) -> MemoryModel:
        """The model with "auto" settled; ``measured``: PyTorch measured a profile on CUDA."""
        automatic = measured and self.framework == "auto" and self.model == "full"
        return replace(self, framework="pytorch") if automatic else self

    def rounded(self, size: int) -> int:
        """The bytes that a tensor of ``size`` bytes occupies; none for an empty one."""
        return -(-size // self.unit) * self.unit

    def context_bytes(self, cluster: Cluster) -> tuple[int, ...]:
        """Bytes of the framework's context, by device."""
        return tuple(_reserved(self.context, device, CUDA_CONTEXT) for device in cluster.devices)

    def communication_bytes(self, cluster: Cluster) -> tuple[int, ...]:
        """Bytes of the communication library's buffers, by device; NCCL's need two devices."""
        ends = sum(device.runs_ops for device in cluster.devices)
        preset = 0 if ends < 2 else NCCL_PAIR if ends == 2 else NCCL_GROUP
        return tuple(_reserved(self.communication, device, preset) for device in cluster.devices)


def _reserved(value: Reserve, device: Device, preset: int) -> int:
    if not device.runs_ops:
        return 0
    size = value.get(device.kind, 0) if isinstance(value, Mapping) else value
    return preset if size in RESERVES else parse_bytes(size)


def with_training_state(graph: Graph, memory: MemoryModel) -> Graph:
    """The graph with the gradients and the optimizer state that the memory model sets.

    It is the graph itself where nothing changes. Raises InputError where a mixed-precision
    optimizer meets parameters that are not of 2 bytes, or of unknown dtype.
    """
    if memory.optimizer is None and memory.gradients is None:
        return graph
    problems: list[str] = []
    ops = []
    for i, op in enumerate(graph.ops):
        with collecting(problems, f"ops[{i}]: "):
            ops.append(_trained(op, memory))
    refuse(problems)
    # The same object, since caches are keyed by the graph object.
    unchanged = all(map(is_, ops, graph.ops))
    return graph if unchanged else replace(graph, ops=tuple(ops))


def _trained(op: Op, memory: MemoryModel) -> Op:
    state, grad = op.state_bytes, op.grad_bytes
    if memory.optimizer is not None:
        state = state_bytes(op, memory.optimizer, memory.dtype)
    if memory.gradients is not None:
        grad = memory.gradients * op.param_bytes
    changed = (state, grad) != (op.state_bytes, op.grad_bytes)
    return replace(op, state_bytes=state, grad_bytes=grad) if changed else op


def state_bytes(op: Op, optimizer: str, dtype: str | None = None) -> int:
    """The bytes that an optimizer keeps for the parameters of an op.

    ``dtype`` is the parameters' dtype where the op has none. Raises InputError.
    """
    kept = OPTIMIZERS[optimizer]
    if not op.param_bytes or not kept.floats:
        return kept.values * op.param_bytes
    if traits_of(op.kind).leaf == "parameter" and op.outputs:
        dtype = op.outputs[0].dtype or dtype
    if dtype is None:
        raise InputError(
            f'the dtype of the parameters of "{op.name}" is not known; tell it by '
            "options.memory.dtype"
        )
    if bits_of(dtype) != 16 or op.param_bytes % 2:
        raise InputError(
            f'"{op.name}" has parameters of {dtype}; {optimizer} keeps masters of parameters of 2 '
            "bytes"
        )
    return kept.floats * 4 * (op.param_bytes // 2)
