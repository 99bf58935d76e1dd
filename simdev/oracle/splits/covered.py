"""Which strategies and questions the compiled path of splits knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ...lowering import Prepared
from ...nouns.strategy import Order, Strategy
from .columns import NotCoveredError

FREE = ("placement", "partition", "sync", "collectives", "order")
ORDERS = Order("fifo"), Order("program")
COVERED = ("all-reduce", "parameter-server", "sharded")
"""Ways to add gradients up, each tensor by itself."""
FREE_OF_COLLECTIVES = ("algorithm", "cost", "tables", "chunks")
"""Fields of a strategy, and of its collectives, that may be anything here; others must be left out.
"""


def require_covered(prepared: Prepared, strategy: Strategy) -> None:
    """Raise NotCoveredError where lowering has to answer for the strategy, or the question."""
    cluster, default, ops = prepared.cluster, Strategy(), prepared.graph.ops
    covered = (
        strategy.sync in COVERED
        and strategy.order in ORDERS
        and _equal(strategy, default, FREE)
        and _equal(strategy.collectives, default.collectives, FREE_OF_COLLECTIVES)
        and cluster.transfer == "once-per-device"
        and prepared.memory.model == "full"
        and not any(device.staging for device in cluster.devices)
        and not prepared.fabric.shares_rates
        and not prepared.rings
    )
    named = not any(
        op.control_inputs or "#" in op.name or len(op.made) < len(op.outputs) for op in ops
    )
    if not (covered and named and ops):
        raise NotCoveredError


def _equal(value: Any, other: Any, but: Sequence[str]) -> bool:
    """Whether two values of a dataclass have equal fields, some left out."""
    names = (field.name for field in fields(other) if field.name not in but)
    return all(getattr(value, name) == getattr(other, name) for name in names)
