"""Steps of training that were measured on an H100, against their simulation: ``python -m
benchmarks.h100``.

Every step of ``profiles/h100/measured/steps.jsonl`` is simulated as steps in a row on one GPU with
an eager host, from the rows of its profile (the first four columns of the table tell how the host's
times are found), and every replayed step of ``graphs.jsonl`` as a CUDA graph. Errors are signed:
simulated / measured - 1. Neither the wall time nor the time to enqueue is an input.

rows      the ladder as it ships: the profile's rows, its header, the other profiles
fitted    the classes of ``simdev.costs.dispatch`` fitted to the other models' steps alone, and
          nothing of the profile's header
phases    the host's times by phase of this very step, spread over its ops

Where a step's optimizer is not that of the profile, its updates are those of the step's, by the
ladder. Steps of batch sizes that no profile has are costed by the ladder throughout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import print_table
from benchmarks.measured import H100, KIND, MeasuredStep, graph_of, with_optimizer
from simdev.costs import CostModel, Profile, op_key
from simdev.costs.dispatch import Weight, weights
from simdev.costs.rows import fields_of
from simdev.execution.period import step_time_ps
from simdev.execution.scenario import Scenario, execute
from simdev.files import read_graph, read_profile
from simdev.files.device import device_presets
from simdev.ground.units import PS_PER_SECOND
from simdev.nouns.cluster import Cluster, Device, Host
from simdev.nouns.graph import PHASES, Graph
from simdev.nouns.models import build
from simdev.nouns.strategy import Strategy

AHEAD = Host().ahead
TARGETS = {
    "device-bound, fitted": (0.02, 0.04),
    "host-bound, fitted": (0.10, 0.25),
    "all, phases": (0.04, None),
    "replayed": (0.015, 0.03),
}
"""The median and the worst unsigned error to stay within."""


@dataclass(frozen=True)
class Step:
    """A step that was measured: the line that tells it, its graph, and the costs of its ops."""

    line: Mapping[str, Any]
    graph: Graph
    costs: CostModel
    profiled: bool

    @property
    def model(self) -> str:
        """The model, as its profile is named."""
        return str(self.line["model"]).replace("_", "-")

    @property
    def batch(self) -> int | None:
        """Samples of a step."""
        return self.line["sizes"].get("batch")  # type: ignore[no-any-return]

    @cached_property
    def launches(self) -> list[int]:
        """Kernels by op."""
        return [self.costs.launches(self.graph, i, KIND) for i in range(len(self.graph.ops))]

    @cached_property
    def weights(self) -> list[Weight]:
        """What dispatching each op takes, by class; nothing for leaves."""
        keys = [op_key(self.graph, i, KIND) for i in range(len(self.graph.ops))]
        each = weights(self.graph, keys, self.launches)
        leaf = [self.launches[i] == 0 for i in range(len(keys))]
        return [
            Weight(0, 0, 0) if none else weight for none, weight in zip(leaf, each, strict=True)
        ]

    @cached_property
    def device_ms(self) -> float:
        """The sum of the device's times of its ops."""
        costs = (self.costs.cost(self.graph, i, KIND) for i in range(len(self.graph.ops)))
        return float(sum(cost.seconds for cost in costs if cost is not None)) * 1e3

    def of_phase(self, phase: str) -> Any:
        """Weights of the ops of a phase, together."""
        pairs = zip(self.graph.ops, self.weights, strict=True)
        rows = [weight for op, weight in pairs if op.phase == phase]
        return np.array(rows, np.float64).reshape(-1, 3).sum(axis=0)


@cache
def profiles() -> dict[str, Profile]:
    """The profiles of models and grids on the H100, by name."""
    files = sorted([*H100.glob("*.jsonl"), *H100.glob("grids/*.jsonl")])
    return {path.name.removesuffix(f".{KIND}.jsonl"): read_profile(path) for path in files}


@cache
def costs_for(name: str) -> CostModel:
    """The ladder that asks a profile first, then all others ("" for none first)."""
    others = [profile for other, profile in profiles().items() if other != name]
    first = [profiles()[name]] if name else []
    return CostModel((*first, *others), device_presets())


def step_of(line: Mapping[str, Any]) -> Step:
    """The step of a line of ``steps.jsonl`` or ``graphs.jsonl``."""
    name, sizes = str(line["model"]).replace("_", "-"), line["sizes"]
    profile = profiles()[name]
    header = fields_of(profile.header)
    mine = header["sizes"]
    if any(mine.get(size) != value for size, value in sizes.items()):
        return Step(line, _graph_of(name, sizes, line["optimizer"]), costs_for(""), False)
    graph = with_optimizer(read_graph(H100 / header["graph"]), line["optimizer"])
    return Step(line, graph, costs_for(name), True)


def _graph_of(name: str, sizes: Mapping[str, int], optimizer: str) -> Graph:
    """The step of a size that no profile has: as captured where it was, else simdev's own."""
    captured = graph_of(MeasuredStep(name, sizes, optimizer, {}))
    if captured is not None:
        return captured
    mine = {key: sizes[key] for key in ("batch", "length") if key in sizes}
    return build(name, **mine, optimizer=optimizer.removeprefix("sgd-"))


# The host's times.


def waited(step: Step) -> dict[str, bool]:
    """Phases in which the host, timed from a step's begin, may have been ahead of the device by
    more launches than it can, so that its time is not all its own work.
    """
    host, device = step.line["host_ms"], step.line["device_ms"]
    waits, queued, behind = {}, 0.0, 0.0
    for phase in PHASES:
        pairs = zip(step.graph.ops, step.launches, strict=True)
        launches = sum(count for op, count in pairs if op.phase == phase)
        issued = min(launches, behind * launches / host[phase])
        waits[phase] = queued + issued > AHEAD
        behind = max(0.0, behind + device[phase] - host[phase])
        queued = min(AHEAD, launches * behind / device[phase])
    return waits


def fit(steps: Iterable[Step]) -> Any:
    """Milliseconds of the classes (light, heavy, first): least squares of the relative errors of
    the phases in which the host cannot have waited.
    """
    from scipy.optimize import nnls

    rows = []
    for step in steps:
        for phase, waits in waited(step).items():
            if not waits:
                rows.append(step.of_phase(phase) / step.line["host_ms"][phase])
    return nnls(np.array(rows), np.ones(len(rows)))[0]


def hosted(step: Step, ms: Iterable[float]) -> Graph:
    """The step's graph with the host's milliseconds of each op."""
    ops = (
        replace(op, host_time=Fraction(f"{time:.6f}") / 1000, launches=count)
        for op, time, count in zip(step.graph.ops, ms, step.launches, strict=True)
    )
    return replace(step.graph, ops=tuple(ops))


def by_classes(step: Step, classes: Any) -> Graph:
    """With times by class."""
    return hosted(step, (float(np.dot(weight, classes)) for weight in step.weights))


def by_phases(step: Step, classes: Any) -> Graph:
    """With the host's times of this step's own phases, spread as the classes are; a phase in which
    the host may have waited tells no more than an upper bound.
    """
    own, waits = step.line["host_ms"], waited(step)
    shares = {phase: own[phase] / float(np.dot(step.of_phase(phase), classes)) for phase in PHASES}
    shares = {phase: min(1.0, share) if waits[phase] else share for phase, share in shares.items()}
    pairs = zip(step.graph.ops, step.weights, strict=True)
    return hosted(step, (shares[op.phase] * float(np.dot(w, classes)) for op, w in pairs))


# Steps.


@cache
def measured_steps() -> tuple[Step, ...]:
    """The steps that were measured as they ran."""
    return tuple(map(step_of, _lines("steps.jsonl")))


@cache
def replayed_steps() -> tuple[Step, ...]:
    """The steps that were replayed as CUDA graphs."""
    return tuple(map(step_of, _lines("graphs.jsonl")))


def _lines(name: str) -> Iterator[Mapping[str, Any]]:
    for line in (H100 / "measured" / name).read_text().splitlines():
        yield json.loads(line)


def scenario_of(graph: Graph, costs: CostModel, host: Host | None = None) -> Scenario:
    """Steps in a row on one GPU."""
    cluster = Cluster("h100", (Device("gpu:0", KIND),), host=host or Host(ahead=AHEAD))
    strategy = Strategy({"*": "gpu:0"}, order="program")
    return Scenario(graph, cluster, costs, strategy, engine="compiled", steps="repeated")


def simulated(graph: Graph, costs: CostModel, host: Host | None = None) -> float:
    """Seconds of a step, of steps in a row, on one GPU."""
    return step_time_ps(execute(scenario_of(graph, costs, host)).trace) / PS_PER_SECOND


def answers(step: Step) -> dict[str, float]:
    """Signed errors of a measured step, by how the host's times are found."""
    classes = fit(other for other in measured_steps() if other.model != step.model)
    graphs = {
        "rows": step.graph,
        "fitted": by_classes(step, classes),
        "phases": by_phases(step, classes),
    }
    wall = step.line["wall_s"]
    return {how: simulated(graph, step.costs) / wall - 1 for how, graph in graphs.items()}


def replayed(step: Step) -> float:
    """Signed error of a replayed step."""
    return simulated(step.graph, step.costs, Host("graph")) / (step.line["graph_ms"] / 1e3) - 1


def figures() -> dict[str, Any]:
    """Every error, and the medians and the worst of each group."""
    steps = [
        {
            "model": step.model,
            "batch": step.batch,
            "profiled": step.profiled,
            "bound": "host" if _host_bound(step) else "device",
            "device_ms": step.device_ms,
            "wall_ms": step.line["wall_s"] * 1e3,
            **answers(step),
        }
        for step in measured_steps()
    ]
    graphs = [
        {"model": step.model, "batch": step.batch, "profiled": step.profiled}
        | {"graph_ms": step.line["graph_ms"], "replayed": replayed(step)}
        for step in replayed_steps()
    ]
    return {"steps": steps, "graphs": graphs, "groups": dict(_groups(steps, graphs))}


def _host_bound(step: Step) -> bool:
    """Whether a step took clearly longer than its device works."""
    return step.line["wall_s"] * 1e3 > 1.1 * step.device_ms


def _groups(
    steps: Sequence[Mapping[str, Any]], graphs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, float]]]:
    everything = [step["phases"] for step in steps if step["profiled"]]
    yield "all, phases", _summary(everything)
    for bound in ("device", "host"):
        group = [step for step in steps if step["profiled"] and step["bound"] == bound]
        for how in ("rows", "fitted", "phases"):
            yield f"{bound}-bound, {how}", _summary([step[how] for step in group])
    rest = [step["fitted"] for step in steps if not step["profiled"]]
    yield "no profile, fitted", _summary(rest)
    yield "replayed", _summary([step["replayed"] for step in graphs if step["profiled"]])


def _summary(errors: Sequence[float]) -> dict[str, float]:
    sizes = [abs(error) for error in errors]
    return {"median": median(sizes), "worst": max(sizes), "count": len(sizes)}


def print_figures(results: Mapping[str, Any]) -> None:
    """The tables."""
    head = ("step", "profile", "bound by", "device ms", "wall ms", "rows", "fitted", "phases")
    print_table(head, [_cells(step) for step in results["steps"]])
    print()
    rows = [
        (_name(step), "yes" if step["profiled"] else "no", f"{step['graph_ms']:.2f}", _signed(step))
        for step in results["graphs"]
    ]
    print_table(("replayed graph", "profile", "ms", "error"), rows)
    print()
    body = [
        (name, f"{group['count']}", f"{group['median']:.1%}", f"{group['worst']:.1%}", _most(name))
        for name, group in results["groups"].items()
    ]
    print_table(("group", "steps", "median", "worst", "at most"), body)


def _signed(step: Mapping[str, Any]) -> str:
    return f"{step['replayed']:+.1%}"


def _most(name: str) -> str:
    return " / ".join(f"{most:.1%}" for most in TARGETS.get(name, ()) if most is not None)


def _name(step: Mapping[str, Any]) -> str:
    return step["model"] + ("" if step["batch"] is None else f" b{step['batch']}")


def _cells(step: Mapping[str, Any]) -> tuple[str, ...]:
    errors = (f"{step[how]:+.1%}" for how in ("rows", "fitted", "phases"))
    profiled = "yes" if step["profiled"] else "no"
    times = (f"{step['device_ms']:.2f}", f"{step['wall_ms']:.2f}")
    return (_name(step), profiled, step["bound"], *times, *errors)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables, the figures as JSON, or the fit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--fit", action="store_true", help="print the classes fitted to all steps")
    args = parser.parse_args(argv)
    if args.fit:
        light, heavy, first = (1e3 * ms for ms in fit(measured_steps()))
        sheet = next(sheet for sheet in device_presets() if sheet.kind == KIND)
        bare = float(sheet.dispatch or 1) * 1e6
        print(f"light {light:.2f} us, heavy {heavy:.2f} us, first {first:.2f} us")
        ratios = ", ".join(f"{us / bare:.2f}" for us in (light, heavy, first))
        print(f"in bare dispatches of {bare:.1f} us: {ratios}")
        return 0
    results = figures()
    print(json.dumps(results, indent=1)) if args.json else print_figures(results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
