"""What a Report adds where memory is counted otherwise than the contract counts it: tables, notes
and JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..memory import MemoryModel
from ..taskgraph import OUTSIDE
from ..trace import DeviceMemory, Trace
from ..units import format_bytes, format_seconds
from .allocator import AllocatorUse, allocator_use
from .table import Table, shorten

DEVICES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Footprint:
    """How memory was counted, and where PyTorch's rounding was asked for, what its allocator
    reserves, by device.
    """

    memory: MemoryModel
    allocators: tuple[AllocatorUse, ...]


def footprint(trace: Trace, memory: MemoryModel) -> Footprint | None:
    """None where memory is counted as the contract counts it."""
    if not memory.changes:
        return None
    return Footprint(
        memory, allocator_use(trace, memory.expandable) if memory.rounding == "pytorch" else ()
    )


def footprint_json(found: Footprint) -> dict[str, Any]:
    """The options that differ from the defaults, and the allocators' peaks by device."""
    devices = {
        use.device: {
            "requested_bytes": use.requested,
            "allocated_bytes": use.allocated,
            "reserved_bytes": use.reserved,
            "outside_bytes": use.outside,
            "flushes": use.flushes,
            "failed": use.failed
            and dict(zip(("time_ps", "buffer", "bytes"), use.failed, strict=True)),
        }
        for use in found.allocators
    }
    return {"options": _options(found.memory)} | ({"allocator": devices} if devices else {})


def _options(memory: MemoryModel) -> dict[str, Any]:
    return {
        name: value if isinstance(value, (str, int)) else _plain(value)
        for name, value in memory.changes.items()
    }


def _plain(value: Any) -> Any:
    """Quantities as JSON can hold them."""
    return (
        {kind: _plain(one) for kind, one in value.items()}
        if hasattr(value, "items")
        else str(value)
    )


def footprint_tables(found: Footprint, memories: Sequence[DeviceMemory]) -> Iterator[Table]:
    """What these devices hold at their peaks, by kind, and what their allocators reserve."""
    shown = memories[:DEVICES_SHOWN]
    kinds = [kind for kind in shown[0].at_peak if any(memory.at_peak[kind] for memory in shown)]
    title = "Held at the peak" + (
        f" (the first {len(shown)} devices)" if len(shown) < len(memories) else ""
    )
    body = tuple(
        (kind, *(format_bytes(memory.at_peak[kind]) for memory in shown)) for kind in kinds
    )
    yield Table(title, ("<kind", *(shorten(memory.device, 20) for memory in shown)), body)
    if found.allocators:
        head = ("<device", "requested", "allocated", "reserved", "outside", "in all")
        title = f"PyTorch's caching allocator, peaks (outside it: {', '.join(OUTSIDE)})"
        uses = {use.device: use for use in found.allocators}
        body = tuple(_allocator_row(uses[memory.device]) for memory in memories)
        yield Table(title, head, body, len(uses) - len(body))


def _allocator_row(use: AllocatorUse) -> tuple[str, ...]:
    sizes = (use.requested, use.allocated, use.reserved, use.outside, use.reserved + use.outside)
    return shorten(use.device, 20), *map(format_bytes, sizes)


def footprint_notes(found: Footprint) -> Iterator[str]:
    """How memory was counted, and where an allocator came to its limit."""
    told = ", ".join(f"{name} {value}" for name, value in _options(found.memory).items())
    yield f"Memory is counted with {told}."
    for use in found.allocators:
        if use.failed is not None:
            time_ps, buffer, size = use.failed
            yield (
                f"{use.device}: at {format_seconds(time_ps / 1e12)} its allocator "
                f"cannot serve {format_bytes(size)} "
                f"for {buffer}, though cached segments were given back."
            )
        elif use.flushes:
            yield (
                f"{use.device}: its allocator gives cached segments back {use.flushes} "
                "times for want of memory."
            )
