"""Answering one point: a row of figures, or the reason why there is none."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...costs import KNOWN, CostModel
from ...execution.scenario import Scenario, load_scenario, prepare, require_possible, scenario_of
from ...files import read_scenario
from ...ground.errors import InputError, SimdevError
from ...lowering import Prepared
from ...nouns.graph import Graph
from ...report import Report, run
from ...report.results import RATES
from .point import SweepPoint, engine_version, file_digest

T = TypeVar("T")
OK, INFEASIBLE, FAILED = "ok", "infeasible", "failed"


@dataclass(frozen=True, slots=True)
class Answer:
    """The row of a point, ready for JSON; only a ``lasting`` row is kept in the journal: a failure
    of the scenario itself is, one of the machine, of a changed file or of simdev (a bug) is not, so
    the next sweep tries it again.
    """

    key: str
    row: Mapping[str, Any]
    lasting: bool = True


class _ChangedError(SimdevError):
    """A file no longer is what its point was made of."""


class Memo:
    """What a process has read and prepared for earlier points, by digest; what was used longest ago
    makes room.
    """

    def __init__(self, most: int = 16) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gave when this name was asked for first."""
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
                value: T = self._values[name]
                return value
        # Outside the lock: threads of one process may read different files at once.
        made = make()
        with self._lock:
            self._values[name] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made


def answer(point: SweepPoint, memo: Memo) -> Answer:
    """Simulate the scenario. What is wrong with it is told in the row.

    Raises InputError where this process runs another simdev than the sweep.
    """
    if point.version != engine_version():
        raise InputError(
            f"a worker runs simdev {engine_version()}, this sweep {point.version}: install the same"
        )
    try:
        scenario = _scenario(point, memo)
        row = row_of(scenario, run(scenario, _prepared(point, scenario, memo)))
        return Answer(point.key, row)
    except _ChangedError as error:
        return Answer(point.key, failed(str(error)), lasting=False)
    except SimdevError as error:
        return Answer(point.key, failed(_reason(point, error)))
    except (MemoryError, OSError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        return Answer(point.key, failed(reason), lasting=False)
    except Exception as error:
        return Answer(point.key, failed(bug(error)), lasting=False)


def problem_of(point: SweepPoint, memo: Memo) -> str | None:
    """Why a scenario cannot be, as far as that is known before it is lowered; None where it may."""
    try:
        scenario = _scenario(point, memo)
        require_possible(scenario, _prepared(point, scenario, memo))
    except _ChangedError:
        return None
    except SimdevError as error:
        return _reason(point, error)
    except Exception:
        return None  # what is wrong with the machine, or a bug, is told in its row
    return None


def bug(error: Exception) -> str:
    """What an error says that simdev did not raise on purpose."""
    return f"a bug in simdev, not in your files: {type(error).__name__}: {error}"


def _scenario(point: SweepPoint, memo: Memo) -> Scenario:
    """The scenario with parts shared with earlier points: what hangs on a graph or a profile is
    computed once.
    """
    source, digests = point.scenario, point.digests
    if isinstance(source, Scenario):
        nouns: dict[str, Any] = {}
        for noun in ("graph", "cluster", "costs"):
            value = getattr(source, noun)
            nouns[noun] = memo.once((noun, digests[noun]), lambda value=value: value)  # type: ignore[misc]
        return replace(source, **nouns)

    def reading(part: str, value: Any, read: Callable[[Any], Any]) -> Any:
        # A model's name is a graph to one reader and sizes to another; both that and a strategy may
        # name a file.
        others = digests.get("config"), digests.get("table")
        name = part.partition("[")[0], digests[part], read.__name__, others
        return memo.once(name, lambda: read(_unchanged(value, digests[part])))

    parts = read_scenario(source, reading, try_placement=False)
    profiles = tuple(
        digest for part, digest in digests.items() if part.startswith(("profile", "devices"))
    )
    name = ("costs", parts.profiles is None, profiles, tuple(spec.kind for spec in parts.specs))
    return scenario_of(parts, costs=memo.once(name, lambda: CostModel(parts.profiles, parts.specs)))


def _prepared(point: SweepPoint, scenario: Scenario, memo: Memo) -> Prepared | None:
    """What lowering needs, shared with scenarios of other strategies, and in part with those on
    other clusters.
    """
    if not isinstance(scenario.graph, Graph):
        return None
    # What is kept under an id keeps its object, so no other gets this id meanwhile.
    name = point.digests["graph"], id(scenario.costs), repr(scenario.memory)
    first = memo.once(("first", *name), lambda: prepare(scenario))
    cluster = scenario.cluster
    return memo.once(("prepared", *name, point.digests["cluster"]), lambda: first.on(cluster))


def _unchanged(value: Any, digest: str) -> Any:
    """The value; a file must still have the content under whose key the answer is kept."""
    is_file = isinstance(value, str) and not digest.startswith(("name:", "unreadable"))
    if is_file and file_digest(value) != digest:
        raise _ChangedError(f"{value}: changed during the sweep; run it again")
    return value


def _reason(point: SweepPoint, error: SimdevError) -> str:
    """What ``simdev simulate`` says of the scenario."""
    # Reading it whole tells more than the sweep, which stops at the first part with a problem.
    if isinstance(error, InputError) and not isinstance(point.scenario, Scenario):
        try:
            load_scenario(point.scenario)
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
    devices, steady = report.devices, report.steady
    rates = report.throughput.to_json() if report.throughput else {}
    over = [device.memory for device in devices if device.memory.overflow is not None]
    return {
        "status": OK if report.feasible else INFEASIBLE,
        "reason": "; ".join(map(_excess, over)) or None,
        "graph_name": graph.name,
        "cluster_name": scenario.cluster.name,
        "ops": len(graph.ops) if isinstance(graph, Graph) else sum(d.ops for d in devices),
        "devices": training.large.parallelism.devices if training else len(working),
        "step_time_s": report.seconds,
        "step_time_ps": report.step_ps,
        "first_step_s": steady and steady.first_ps / 1e12,
        "trace_s": steady and report.trace_ps / 1e12,
        "steps": steady and steady.steps,
        "cycle": steady and steady.cycle,
        "feasible": report.feasible,
        "memory_excess_bytes": report.memory_excess,
        "peak_bytes": max((device.memory.peak for device in devices), default=0),
        "utilization": sum(d.utilization for d in working) / max(len(working), 1),
        "bubble": report.bubble,
        "exposed_communication": report.exposed,
        "transfers": report.transfer_count,
        "transfer_bytes": report.transfer_bytes,
        **{f"blame_{blame}_s": ps / 1e12 for blame, ps in report.blame.items()},
        "cost_estimated": math.fsum(
            share for rung, share in report.costs.items() if rung not in KNOWN
        ),
        "cost_rel_err": report.cost_rel_err,
        "mfu": training and training.mfu,
        **{name: rates.get(name) for name in RATES},
        "engine": report.engine,
    }


def _excess(memory: Any) -> str:
    return f"{memory.device}: {memory.peak - memory.capacity} bytes over its {memory.capacity}"
