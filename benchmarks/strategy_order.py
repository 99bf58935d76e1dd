"""Strategies in the order of the papers' figures: ``python -m benchmarks.strategy_order``.

Data parallel, model parallel, one weird trick and expert, simulated on FlexFlow's P100 testbed for
4 and 16 GPUs, beside what OptCNN (Jia et al., ICML 2018, figures 7 and 8) and FlexFlow (Jia et al.,
MLSys 2019, figure 6) measured on 16; all published values are read off plots (about 3 %). Neither
tells how gradients were added up in these runs, so both a parameter server and a ring are shown.
Links share their bandwidth (``--queues``: another rule of the cluster).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations, pairwise
from typing import Any

from benchmarks.common import figure, print_table
from simdev import Scenario, load_scenario, run
from simdev.nouns.cluster import QUEUES
from simdev.nouns.strategy import SHORT_FORMS

SYNCS = ("parameter-server", "all-reduce")
GPUS_A_NODE = 4
RECURRENT = ("gnmt", "nmt")
"""Models of which ``expert`` is a strategy of its own; for the others it is ``owt``."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model with ``batch`` samples a GPU.

    ``speed``: published samples/s by strategy, ``sent``: GB a step.
    """

    model: str
    batch: int
    gpus: int
    speed: Mapping[str, float] = field(default_factory=dict)
    sent: Mapping[str, float] = field(default_factory=dict)
    source: str = ""


def _optcnn(model: str, speeds: Sequence[float], sent: Sequence[float]) -> Case:
    """Figures 7 and 8, in their order."""
    names = ("model-parallel", "data-parallel", "owt")
    both = (dict(zip(names, values, strict=True)) for values in (speeds, sent))
    return Case(model, 32, 16, *both, "OptCNN, figures 7 and 8")


def _flexflow(model: str, batch: int, data_parallel: float, expert: float) -> Case:
    """Figure 6, told a GPU."""
    speeds = {"data-parallel": 16 * data_parallel, "expert": 16 * expert}
    return Case(model, batch, 16, speeds, source="FlexFlow, figure 6")


CASES = (
    Case("alexnet", 32, 4),
    Case("vgg-16", 32, 4),
    Case("inception-v3", 32, 4),
    Case("gnmt", 64, 4),
    _optcnn("alexnet", (3250, 3150, 4250), (2.3, 9, 1.05)),
    _optcnn("vgg-16", (1050, 1650, 1980), (29, 16, 3.7)),
    _optcnn("inception-v3", (150, 1700, 1740), (28, 2.8, 2.7)),
    _flexflow("alexnet", 256, 640, 950),
    _flexflow("inception-v3", 64, 110, 113),
    _flexflow("nmt", 64, 172, 135),
    Case("gnmt", 64, 16),
)


@dataclass(frozen=True, slots=True)
class Translator:
    """FlexFlow's NMT on 64 K80 by one strategy: seconds and GB a step, seconds that all devices
    compute in sum.
    """

    strategy: str
    step_s: float
    sent_gb: float
    busy_s: float


PUBLISHED_NMT = (
    Translator("data-parallel", 1.9, 65.8, 35.7),
    Translator("expert", 2.6, 24.2, 28.2),
)
"""FlexFlow (MLSys 2019); its own task time is the sum over all GPUs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy of a case: its step, and what is published of it (None: nothing)."""

    model: str
    batch: int
    gpus: int
    sync: str
    strategy: str
    step_s: float
    samples_s: float
    sent_gb: float
    published_samples_s: float | None
    published_gb: float | None


@dataclass(frozen=True, slots=True)
class Order:
    """Strategies by falling values, "owt > data-parallel = model-parallel".

    ``agrees``: no two stand the other way round than published; equal ones do not.
    """

    source: str
    model: str
    batch: int
    gpus: int
    sync: str
    unit: str
    published: str
    simulated: str
    agrees: bool


def scenario_of(case: Case, strategy: str, sync: str, queues: str = "fair") -> Scenario:
    """One strategy of a case on FlexFlow's testbed."""
    nodes = case.gpus // GPUS_A_NODE
    return load_scenario(
        {
            "version": 1,
            "graph": {"model": case.model, "batch": case.batch * case.gpus},
            "cluster": {"preset": "flexflow-p100", "nodes": nodes, "queues": queues},
            "strategy": {"version": 1, "short": strategy, "sync": sync},
        }
    )


def simulated(
    case: Case,
    syncs: Sequence[str] = SYNCS,
    queues: str = "fair",
    names: Sequence[str] = SHORT_FORMS,
) -> list[Row]:
    """A row for each synchronisation and strategy; what is the same question is asked once."""
    known: dict[tuple[str, str], tuple[float, float]] = {}
    rows = []
    for sync in syncs:
        for name in names:
            asked = "owt" if name == "expert" and case.model not in RECURRENT else name
            key = asked, "" if asked == "model-parallel" else sync  # whose weights lie in one place
            if key not in known:
                report = run(scenario_of(case, asked, sync, queues))
                known[key] = report.step_ps / 1e12, report.transfer_bytes / 1e9
            step, sent = known[key]
            speed = case.batch * case.gpus / step
            published = case.speed.get(name), case.sent.get(name)
            rows.append(
                Row(case.model, case.batch, case.gpus, sync, name, step, speed, sent, *published)
            )
    return rows


def translator(strategy: str) -> Translator:
    """FlexFlow's NMT, 64 samples a GPU, on its 16 nodes of 4 K80 as the preset has them."""
    scenario = {
        "version": 1,
        "graph": {"model": "nmt", "batch": 64 * 64},
        "cluster": "flexflow-k80",
        "strategy": {"version": 1, "short": strategy},
    }
    report = run(load_scenario(scenario))
    busy = sum(device.busy_ps for device in report.devices)
    return Translator(strategy, report.step_ps / 1e12, report.transfer_bytes / 1e9, busy / 1e12)


def orders(case: Case, rows: Sequence[Row]) -> Iterator[Order]:
    """The published orders of a case beside those of its rows, for each synchronisation."""
    for sync in dict.fromkeys(row.sync for row in rows):
        own = {row.strategy: row for row in rows if row.sync == sync}
        for unit, published in (("samples/s", case.speed), ("GB", case.sent)):
            if published:
                found = {
                    name: own[name].samples_s if unit == "samples/s" else own[name].sent_gb
                    for name in published
                }
                ranks = ranked(published), ranked(found)
                agrees = all(
                    (published[a] - published[b]) * (found[a] - found[b]) >= 0
                    for a, b in combinations(published, 2)
                )
                yield Order(
                    case.source, case.model, case.batch, case.gpus, sync, unit, *ranks, agrees
                )


def ranked(values: Mapping[str, float]) -> str:
    """Names by falling values."""
    names = sorted(values, key=lambda name: -values[name])
    signs = (" = " if values[a] == values[b] else " > " for a, b in pairwise(names))
    return names[0] + "".join(sign + name for sign, name in zip(signs, names[1:], strict=True))


def print_figures(rows: Sequence[Row], found: Sequence[Order]) -> None:
    """The strategies, then the orders."""
    head = (
        "model",
        "strategy",
        "batch",
        "GPUs",
        "sync",
        "step, ms",
        "samples/s",
        "published",
        "GB",
        "published",
    )
    print_table(head, [_cells(row) for row in rows])
    print()
    head = ("figure", "model", "sync", "by", "published", "simulated", "agrees")
    print_table(head, [_order_cells(order) for order in found])


def print_translators(found: Sequence[Translator]) -> None:
    """What is simulated beside what is published."""
    head = (
        "nmt on 64 K80",
        "",
        "step, s",
        "published",
        "GB",
        "published",
        "computing, s",
        "published",
    )
    values = [
        (one.step_s, published.step_s, one.sent_gb, published.sent_gb, one.busy_s, published.busy_s)
        for one, published in zip(found, PUBLISHED_NMT, strict=True)
    ]
    print_table(
        head,
        [(one.strategy, "", *map(figure, row)) for one, row in zip(found, values, strict=True)],
    )


def _cells(row: Row) -> tuple[str, ...]:
    speed, sent = (
        "" if value is None else figure(value)
        for value in (row.published_samples_s, row.published_gb)
    )
    sizes = str(row.batch), str(row.gpus), row.sync
    return (
        *(row.model, row.strategy, *sizes),
        *(figure(row.step_s * 1e3), figure(row.samples_s), speed, figure(row.sent_gb), sent),
    )


def _order_cells(order: Order) -> tuple[str, ...]:
    agrees = "yes" if order.agrees else "no"
    where = order.source, f"{order.model}, {order.batch}", order.sync, order.unit
    return *where, order.published, order.simulated, agrees


def main(arguments: Iterable[str] | None = None) -> None:
    """Simulate, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = sorted({case.model for case in CASES})
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"some of {', '.join(models)} (default: all)"
    )
    parser.add_argument(
        "--queues", choices=QUEUES, default="fair", help="how links are shared (default: fair)"
    )
    parser.add_argument(
        "--k80", action="store_true", help="FlexFlow's NMT on 64 K80 instead (about a minute)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(None if arguments is None else list(arguments))
    unknown = sorted(set(options.models) - set(models))
    if unknown:
        parser.error(f"no case of {', '.join(unknown)}; there are {', '.join(models)}")
    if options.k80:
        translators = [translator(published.strategy) for published in PUBLISHED_NMT]
        if options.json:
            print(json.dumps({"nmt_64x_k80": [asdict(one) for one in translators]}, indent=1))
        else:
            print_translators(translators)
        return
    rows: list[Row] = []
    found: list[Order] = []
    for case in CASES:
        if not options.models or case.model in options.models:
            own = simulated(case, queues=options.queues)
            rows += own
            found += orders(case, own)
    if options.json:
        results: dict[str, Any] = {"queues": options.queues, "rows": [asdict(row) for row in rows]}
        print(json.dumps(results | {"orders": [asdict(order) for order in found]}, indent=1))
    else:
        print_figures(rows, found)


if __name__ == "__main__":
    main()
