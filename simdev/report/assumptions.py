"""What a report rests on beside times: how gradients are synchronised, what collectives cost."""

from __future__ import annotations

from collections.abc import Iterator

from ..scenario import Outcome
from ..strategy import Sync
from ..strategy.sync import BUCKET, FIRST_BUCKET
from ..taskgraph import COLLECTIVE
from .measures.spans import kind_mask


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
        yield f"Gradients are synchronised by {sync.policy} ({sync.transport}), in {cut}."
    elif roles & {"sync", "sum"}:
        # The first bucket is smaller, so that the first messages leave early (PyTorch's DDP).
        sizes = f", the first bucket of {FIRST_BUCKET} bytes, further ones of {BUCKET}"
        yield f"Gradients are synchronised by {sync}{sizes if sync == 'bucketed' else ''}."
    if kind_mask(outcome.trace.task_graph, COLLECTIVE).any() or collectives.cost == "expanded":
        basis = {
            "closed": "closed forms",
            "table": f"{len(collectives.tables)} measured tables, closed forms where these end",
            "expanded": "their messages one by one",
        }[collectives.cost]
        slower = f", slowed {float(collectives.slowdown):g} times beside computing"
        yield (
            f"Collectives rest on {basis} (algorithm {collectives.algorithm})"
            f"{slower if collectives.slowdown != 1 else ''}."
        )
