"""Answering one question: a row of figures, or the reason why there is none."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..analysis import Report
from ..analysis.path import BLAMES
from ..costs import KNOWN, CostModel
from ..errors import InputError, SimdevError
from ..files import read_scenario
from ..graph import Graph
from ..lowering import Prepared
from ..scenario import Scenario, load_scenario, prepare, run, scenario_of
from .question import Question, file_digest
from .version import engine_version

T = TypeVar("T")
OK, INFEASIBLE, FAILED = "ok", "infeasible", "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The row of a question, ready for JSON; one that is not ``lasting`` hangs on the machine and
    is asked again.
    """

    key: str
    row: Mapping[str, Any]
    lasting: bool = True


class _ChangedError(SimdevError):
    """A file no longer is what its question was asked of."""


class Known:
    """What a process has read and prepared for earlier questions, by digest; what was used longest
    ago makes room.
    """

    def __init__(self, most: int = 16) -> None:
        self._most, self._lock = most, threading.Lock()
        self._found: OrderedDict[Hashable, Any] = OrderedDict()

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gave when this name was asked for first."""
        with self._lock:
            if name in self._found:
                self._found.move_to_end(name)
                known: T = self._found[name]
                return known
        made = make()
        with self._lock:
            self._found[name] = made
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made

    def first(self, name: Hashable, value: T) -> T:
        """The value that was given with this name first."""
        return self.once(name, lambda: value)


def answer(question: Question, known: Known) -> Answer:
    """Simulate the scenario. What is wrong with it is told in the row.

    Raises InputError where this process runs another simdev than the one that asks.
    """
    if question.version != engine_version():
        raise InputError(
            f"a worker runs simdev {engine_version()}, this sweep {question.version}: "
            "install the same"
        )
    try:
        scenario = _scenario(question, known)
        return Answer(
            question.key, row_of(scenario, run(scenario, _prepared(question, scenario, known)))
        )
    except _ChangedError as error:
        return Answer(question.key, failed(str(error)), lasting=False)
    except SimdevError as error:
        return Answer(question.key, failed(_reason(question, error)))
    except (MemoryError, OSError, RecursionError) as error:
        return Answer(
            question.key,
            failed(f"{type(error).__name__}: {error}".removesuffix(": ")),
            lasting=False,
        )
    except Exception as error:
        told = f"a bug in simdev, not in your files: {type(error).__name__}: {error}"
        return Answer(question.key, failed(told), lasting=False)


def _scenario(question: Question, known: Known) -> Scenario:
    """The scenario with parts that earlier ones had too: what hangs on a graph or a profile is
    computed once.
    """
    told, digests = question.scenario, question.digests
    if isinstance(told, Scenario):
        nouns = {noun: getattr(told, noun) for noun in ("graph", "cluster", "costs")}
        return replace(
            told,
            **{noun: known.first((noun, digests[noun]), value) for noun, value in nouns.items()},
        )

    def reading(part: str, value: Any, read: Callable[[Any], Any]) -> Any:
        # A model's name is a graph to one reader and sizes to another; a strategy may name a table.
        name = part.partition("[")[0], digests[part], read.__name__, digests.get("table")
        return known.once(name, lambda: read(_unchanged(value, digests[part])))

    parts = read_scenario(told, reading, try_placement=False)
    sources = tuple(
        digest for part, digest in digests.items() if part.startswith(("profile", "devices"))
    )
    named = ("costs", sources, tuple(spec.kind for spec in parts.specs))
    costs = known.once(named, lambda: CostModel(parts.profiles, parts.specs))
    return scenario_of(parts, costs=costs)


def _prepared(question: Question, scenario: Scenario, known: Known) -> Prepared | None:
    """What lowering needs, shared with scenarios of other strategies, and in part with those on
    other clusters.
    """
    if not isinstance(scenario.graph, Graph):
        return None
    # What is kept under an id keeps its object, so no other one gets this id meanwhile.
    alike = question.digests["graph"], id(scenario.costs), repr(scenario.memory)
    first = known.once(("asked", *alike), lambda: prepare(scenario))
    return known.once(
        ("prepared", *alike, question.digests["cluster"]), lambda: first.on(scenario.cluster)
    )


def _unchanged(value: Any, digest: str) -> Any:
    """The value; a file must still have the content that it was asked with: the answer is kept
    under its key.
    """
    if (
        isinstance(value, str)
        and not digest.startswith(("name:", "unreadable"))
        and file_digest(value) != digest
    ):
        raise _ChangedError(f"{value}: changed during the sweep; run it again")
    return value


def _reason(question: Question, error: SimdevError) -> str:
    """What ``simdev simulate`` says of the scenario: reading it whole tells more than stopping at
    the first problem.
    """
    told = question.scenario
    if isinstance(error, InputError) and not isinstance(told, Scenario):
        try:
            load_scenario(told)
        except SimdevError as whole:
            return str(whole)
    return str(error)


def failed(reason: str) -> dict[str, Any]:
    """The row of a scenario that has no step time."""
    return {"status": FAILED, "reason": reason}


def row_of(scenario: Scenario, report: Report) -> dict[str, Any]:
    """The figures of a report; their names are those of ``simdev simulate --json`` where it tells
    them too.

    Of a large model ``ops`` are those simulated, where one device may stand for many alike.
    """
    graph, training, working = scenario.graph, report.training, report.working
    ops = (
        len(graph.ops) if isinstance(graph, Graph) else sum(device.ops for device in report.devices)
    )
    over = [device for device in report.devices if device.memory.overflow is not None]
    return {
        "status": OK if report.feasible else INFEASIBLE,
        "reason": "; ".join(_excess(device.memory) for device in over) or None,
        "graph_name": graph.name,
        "cluster_name": scenario.cluster.name,
        "ops": ops,
        "devices": len(working) if training is None else training.plan.parallelism.devices,
        "step_time_s": report.seconds,
        "step_time_ps": report.step_ps,
        "first_step_s": None if report.steady is None else report.steady.first_ps / 1e12,
        "trace_s": None if report.steady is None else report.trace_ps / 1e12,
        "steps": None if report.steady is None else report.steady.steps,
        "cycle": None if report.steady is None else report.steady.cycle,
        "feasible": report.feasible,
        "memory_excess_bytes": report.memory_excess,
        "peak_bytes": max((device.memory.peak for device in report.devices), default=0),
        "utilization": sum(device.utilization for device in working) / len(working)
        if working
        else 0.0,
        "bubble": report.bubble,
        "exposed_communication": report.exposed,
        "transfers": report.transfer_count,
        "transfer_bytes": report.transfer_bytes,
        **{f"blame_{blame}_s": ps / 1e12 for blame, ps in report.blame.items()},
        "cost_estimated": math.fsum(
            share for rung, share in report.costs.items() if rung not in KNOWN
        ),
        "cost_rel_err": report.cost_rel_err,
        "mfu": None if training is None else training.mfu,
        "engine": report.engine,
    }


COLUMNS: Mapping[str, Any] = {
    "status": "str",
    "reason": "str",
    "graph_name": "str",
    "cluster_name": "str",
    "ops": "Int64",
    "devices": "Int64",
    "step_time_s": "float64",
    "step_time_ps": "Int64",
    "first_step_s": "float64",
    "trace_s": "float64",
    "steps": "Int64",
    "cycle": "Int64",
    "feasible": "boolean",
    "memory_excess_bytes": "Int64",
    "peak_bytes": "Int64",
    "utilization": "float64",
    "bubble": "float64",
    "exposed_communication": "float64",
    "transfers": "Int64",
    "transfer_bytes": "Int64",
    **{f"blame_{blame}_s": "float64" for blame in BLAMES},
    "cost_estimated": "float64",
    "cost_rel_err": "float64",
    "mfu": "float64",
    "engine": "str",
}
"""The columns of ``row_of`` with their types in a DataFrame."""


def _excess(memory: Any) -> str:
    return f"{memory.device}: {memory.peak - memory.capacity} bytes over its {memory.capacity}"
