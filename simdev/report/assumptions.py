"""What a report rests on beside times: how gradients are synchronised, what collectives cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..costs import MEMORY_PASS, MEMORY_PASS_ERROR, CostMiss
from ..costs.collectives import shipped_tables
from ..execution.scenario import Outcome
from ..ground.units import MAX_BYTES
from ..lowering.origins import HostOrigins
from ..nouns.memory import MemoryModel
from ..nouns.strategy import Sync, settled_cost
from ..nouns.strategy.sync import BUCKET, FIRST_BUCKET
from ..nouns.taskgraph import COLLECTIVE

LEAST = 0.0005  # share of a time that is told


def assumptions(outcome: Outcome) -> Iterator[str]:
    """How gradients are synchronised, and what collectives rest on, where there are any."""
    strategy, splitting = outcome.strategy, outcome.splitting
    if strategy is None:
        return
    sync, collectives = strategy.sync, strategy.collectives
    roles = {origin.role for origin in splitting.origins.values()} if splitting else set()
    if isinstance(sync, Sync):
        parts = {
            f"buckets of {sync.bucket} bytes": sync.bucket,
            f"slices of {sync.slice_parameters} parameters": sync.slice_parameters,
            f"an even piece a server from {sync.even_parameters} parameters": sync.even_parameters,
        }
        cut = next((part for part, size in parts.items() if size is not None), "whole gradients")
        if sync.every is None:
            yield f"Gradients are synchronised by {sync.policy} ({sync.transport}), in {cut}."
        else:
            pieces = "all at once" if sync.bucket == MAX_BYTES else f"in {cut}"
            after = "every step" if sync.every == 1 else f"each round of {sync.every} steps"
            yield f"Parameters are averaged by {sync.policy} after {after}, {pieces}."
    elif roles & {"sync", "sum"}:
        # The first bucket is smaller, so that the first messages leave early (PyTorch's DDP).
        sizes = f", the first bucket of {FIRST_BUCKET} bytes, further ones of {BUCKET}"
        yield f"Gradients are synchronised by {sync}{sizes if sync == 'bucketed' else ''}."
    if outcome.trace.task_graph.of_kind(COLLECTIVE).any() or collectives.cost == "expanded":
        tables, cluster = collectives.tables, outcome.scenario and outcome.scenario.cluster
        if cluster and not tables:
            tables = shipped_tables(cluster.collectives)
        basis = {
            "closed": "closed forms",
            "table": f"{len(tables)} measured tables, closed forms where these end",
            "expanded": "their messages one by one",
        }[settled_cost(collectives.cost, collectives.algorithm, bool(tables))]
        slower = f", slowed {float(collectives.slowdown):g} times beside computing"
        yield (
            f"Collectives rest on {basis} (algorithm {collectives.algorithm})"
            f"{slower if collectives.slowdown != 1 else ''}."
        )


def rests_on(
    costs: Mapping[str, float],
    rel_err: float | None,
    origins: HostOrigins | None,
    memory: MemoryModel | None,
) -> Iterator[str]:
    """What the estimate of a step rests on, in one line: where the times of ops come from, with
    their expected error, those of hosts (None: there is none), and how memory was counted (None: as
    tensors ask for it). Nothing where no origin is known, as of a trace alone.
    """
    if not costs:
        return
    parts = ["op times " + shares(costs)]
    if rel_err != 0:
        parts[0] += f" (expected error {'not known' if rel_err is None else f'{rel_err:.1%}'})"
    parts.append("no host" if origins is None else _hosts(origins))
    counted = "tensors ask" if memory is None else "its options say"
    if memory is not None and memory.is_pytorch:
        counted = "PyTorch counts"
    yield f"Rests on: {'; '.join(parts)}; memory as {counted}."


def undescribed(misses: Iterable[CostMiss]) -> Iterator[str]:
    """The kinds of ops of which no more is known than the bytes of their tensors, in one line; none
    where there is no such kind.
    """
    counts = Counter[str]()
    for miss in misses:
        counts[miss.kind] += miss.count if miss.rung == MEMORY_PASS else 0
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in counts.items() if count)
    if kinds:
        error = f"expected error {MEMORY_PASS_ERROR:.0%}"
        yield f"No description of {kinds}: each such op is one pass over memory, {error}."


def shares(rungs: Mapping[str, float]) -> str:
    """How much of a time each rung of the ladder told; what rounds to nothing is left out."""
    return ", ".join(f"{100 * part:.3g}% {rung}" for rung, part in rungs.items() if part >= LEAST)


def _hosts(origins: HostOrigins) -> str:
    if not origins.rungs:
        return "host times unknown"
    unknown = f", {origins.unknown:,} unknown" if origins.unknown else ""
    return f"host times {shares(origins.rungs)}{unknown}"
