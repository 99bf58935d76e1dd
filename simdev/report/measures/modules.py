"""The cost of each module of a training script: its communication, the exposed part of this, and
the memory that it holds at the peak.

It applies to graphs whose ops belong to ranks (captures, traces) and have modules in their names.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...lowering.build import GRADIENT_OF, STATE_OF
from ...nouns.graph import Graph
from ...nouns.semantics import is_linear, traits_of
from ...nouns.structure import OUTSIDE, is_of_ranks, rank_module, unrolled, weights_of
from ...nouns.taskgraph import BUFFER_KINDS, Ints
from ...nouns.trace import DeviceMemory, Trace
from ..table import BYTES, NUMBER, SHARE, TEXT, TIME, Json, Table, fields_json
from .section import Places, Section, Step
from .spans import Window, sent_mask
from .usage import Devices, exposed_ps

_PREFIX = re.compile(f"^({STATE_OF}|{GRADIENT_OF})")
_NUMBER = re.compile(r"(?<![^/])[0-9]+(?![^/])")
REST = "the framework"  # memory that belongs to no module: workspaces
OPTIMIZER = "the optimizer"


@dataclass(frozen=True, slots=True)
class Calls:
    """The collectives and messages of one kind in modules that differ only by their numbers.

    ``calls`` and ``bytes`` are per rank and step, ``busy_ps`` is the time under way, ``exposed_ps``
    the part of it that keeps the rank waiting; all are means over the simulated ranks.
    """

    call: str
    module: str
    phase: str
    calls: float
    bytes: float
    busy_ps: int
    exposed_ps: int


@dataclass(frozen=True, slots=True)
class Modules(Section):
    """The communication of modules, the most exposed first; ``memory`` has the bytes that the
    fullest device (``device``) holds at its peak, by module and kind of buffer.
    """

    name = "modules"
    places = Places(entries=55, tables=5)

    calls: tuple[Calls, ...]
    device: str
    memory: Mapping[str, Mapping[str, int]]
    step_ps: int

    @classmethod
    def of_step(cls, step: Step) -> Modules | None:
        """The section; None where the ops of the graph do not belong to ranks."""
        scenario = step.outcome.scenario
        graph = None if scenario is None else scenario.graph
        if not isinstance(graph, Graph) or not is_of_ranks(graph):
            return None
        fullest = max(step.trace.memory, key=lambda memory: memory.peak)
        memory = _by_module(step.trace, fullest, graph)
        return cls(_calls(step, graph), fullest.device, memory, step.step_ps)

    def tables(self) -> Iterator[Table]:
        """Two tables: a row for each kind of call, and a row for each module that holds memory."""
        rows = tuple(
            (
                each.call, each.module, each.phase, _plain(each.calls), round(each.bytes),
                each.busy_ps, each.exposed_ps, each.exposed_ps / (self.step_ps or 1),
            )
            for each in self.calls
        )  # fmt: skip
        columns = {
            "call": TEXT, "module": TEXT, "phase": TEXT, "calls": NUMBER, "bytes": BYTES,
            "busy": TIME, "exposed": TIME, "of step": SHARE,
        }  # fmt: skip
        note = "Of a rank and a step. Exposed: the rank computes nothing while it is under way."
        yield Table("Communication by module", columns, rows, note)
        kinds = [k for k in BUFFER_KINDS if any(held.get(k) for held in self.memory.values())]
        held = sorted(self.memory.items(), key=lambda item: -sum(item[1].values()))
        yield Table(
            f"Peak memory by module, on {self.device}",
            {"module": TEXT, "in all": BYTES} | dict.fromkeys(kinds, BYTES),
            tuple((name, sum(of.values()), *(of.get(k, 0) for k in kinds)) for name, of in held),
        )

    def to_json(self) -> Json:
        """Both tables."""
        calls = [fields_json(each) for each in self.calls]
        return {"communication": calls, "device": self.device, "peak_bytes": dict(self.memory)}


def _calls(step: Step, graph: Graph) -> tuple[Calls, ...]:
    trace, window, ranks = step.paced, step.window, len(step[Devices].working) or 1
    sums: dict[tuple[str, str, str], Ints] = defaultdict(lambda: np.zeros(4, np.int64))
    for name, (count, busy, waited) in _by_op(trace, window).items():
        op = graph.ops[graph.index[name]]
        size = int(op.attrs.get("bytes", 0))
        key = op.kind, _module(graph, name) or "", op.phase
        sums[key] += np.array((count, size * count, busy * count, waited), np.int64)
    per = ranks * window.steps
    made = (
        Calls(*key, calls / per, size / per, busy // per, waited // per)
        for key, (calls, size, busy, waited) in ((k, row.tolist()) for k, row in sums.items())
    )
    return tuple(sorted(made, key=lambda each: (-each.exposed_ps, -each.busy_ps)))


def _by_op(trace: Trace, window: Window) -> dict[str, tuple[int, int, int]]:
    """(number of computing devices that take part, ps from start to release, ps that these devices
    wait for it together), by name of each op that sends.
    """
    tasks, released = trace.task_graph.tasks, trace.finish + trace.task_graph.tasks.lag
    count, exposed = exposed_ps(trace, window)
    rows: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(sent_mask(trace.task_graph) & (count > 0)).tolist():
        rows[tasks.name[tasks.op[row]]].append(row)
    return {
        name: (
            int(count[of].max()),
            int(released[of].max() - trace.start[of].min()),
            int(exposed[of].sum()),
        )
        for name, of in rows.items()
    }


def _plain(mean: float) -> float:
    return int(mean) if mean == int(mean) else round(mean, 2)


def folded(module: str) -> str:
    """The module with a star for each number, so that layers become one: "layers/*/wq". Numbers of
    calls and wrappers (like "_checkpoint_wrapped_module") are removed.
    """
    parts = unrolled(module).split("/")
    bare = "/".join(part for part in parts if not part.startswith("_"))
    named = {"": "the model itself", OUTSIDE: "outside of modules"}
    return named.get(bare) or _NUMBER.sub("*", bare)


def _module(graph: Graph, name: str) -> str | None:
    """The module of an op or of one of its buffers, without numbers; None for an op of no rank."""
    op = _PREFIX.sub("", name)
    position = graph.index.get(op, graph.index.get(op.rpartition(":")[0]))
    if position is not None and graph.ops[position].phase == "update":
        return OPTIMIZER
    module = rank_module(op)
    return None if module is None else folded(module)


def _by_module(trace: Trace, memory: DeviceMemory, graph: Graph) -> dict[str, dict[str, int]]:
    """The bytes that a device holds at its peak, by module and kind of buffer. Modules are cut
    after their first number: "layers/*".
    """
    buffers = trace.task_graph.buffers
    kinds = dict(zip(buffers.name, buffers.kind.tolist(), strict=True))
    gradients = _gradients(graph)
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for name, size in memory.live_at_peak:
        whole = _module(graph, name) or REST
        top = whole[: whole.index("*") + 1] if "*" in whole else whole.partition("/")[0]
        kind = "gradients" if name in gradients else BUFFER_KINDS[kinds[name]]
        held[top][kind] += size
    return {name: dict(of) for name, of in held.items()}


def _gradients(graph: Graph) -> set[str]:
    """The buffers of parameter gradients: tensors of the backward that an update reads, and the
    tensors that these are sums, copies or parts of, on all ranks.
    """
    waiting, names = list(weights_of(graph).gradients), set[str]()
    while waiting:
        position, output = waiting.pop()
        op = graph.ops[position]
        name = f"{op.name}:{output}"
        if op.phase == "backward" and name not in names:
            names.add(name)
            if is_linear(op) or "ranks" in op.attrs or traits_of(op.kind).packs:
                waiting += map(graph.resolve, op.inputs)
    return names
