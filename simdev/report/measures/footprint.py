"""How memory was counted, where that is not the execution contract's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...ground.units import PS_PER_SECOND, format_bytes, format_seconds
from ...nouns.memory import MemoryModel
from ...nouns.taskgraph import OUTSIDE
from ..table import BYTES, NUMBER, TEXT, Table
from .replay import AllocatorUse, allocator_use
from .section import Places, Section, Step
from .usage import DEVICES_SHOWN


@dataclass(frozen=True)
class Footprint(Section):
    """How memory was counted, and where PyTorch's rounding was asked for, what its allocator
    reserves, by device.
    """

    name = "memory"
    places = Places(entries=70, tables=40, notes=50)

    memory: MemoryModel
    allocators: tuple[AllocatorUse, ...]

    @classmethod
    def of_step(cls, step: Step) -> Footprint | None:
        """None where memory is counted as the contract counts it. The allocators are replayed for
        every device, those among them that others stand for.
        """
        memory = step.outcome.memory
        if not memory.changes:
            return None
        if memory.unit == 1 or not step.replays:
            return cls(memory, ())
        uses = allocator_use(step.trace, memory.expandable, memory.is_pytorch)
        if step.alike is not None:
            uses = tuple(replace(use, device=name) for name, use in step.alike.spread(uses))
        return cls(memory, uses)

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from the defaults, as JSON can hold them."""
        return {
            name: value if isinstance(value, (str, int)) else _plain(value)
            for name, value in self.memory.changes.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The options, and the allocators' peaks by device."""
        devices = {use.device: use.to_json() for use in self.allocators}
        return {"options": self.options} | ({"allocator": devices} if devices else {})

    def entries(self) -> dict[str, Any]:
        """Its own entry, and for each device what its allocator holds, in bytes."""
        devices = {
            use.device: {"allocated_bytes": use.allocated, "reserved_bytes": use.reserved}
            for use in self.allocators
        }
        return {self.name: self.to_json(), "devices": devices}

    def tables(self) -> Iterator[Table]:
        """What the allocators reserve."""
        rows = tuple(
            (
                use.device, use.requested, use.allocated, use.reserved, use.outside,
                use.reserved + use.outside, use.flushes,
            )
            for use in self.allocators
            if use.reserved
        )  # fmt: skip
        sizes = dict.fromkeys(("requested", "allocated", "reserved", "outside", "in all"), BYTES)
        title = f"PyTorch's caching allocator, peaks (outside it: {', '.join(OUTSIDE)})"
        yield Table(title, {"device": TEXT} | sizes | {"flushes": NUMBER}, rows)

    def notes(self) -> Iterator[str]:
        """How memory was counted, and where an allocator came to its limit."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        yield f"Memory is counted with {options}."
        troubled = [use for use in self.allocators if use.failed is not None or use.flushes]
        for use in troubled[:DEVICES_SHOWN]:
            if use.failed is not None:
                time_ps, buffer, size = use.failed
                yield (
                    f"{use.device}: at {format_seconds(time_ps / PS_PER_SECOND)} its allocator "
                    f"cannot serve {format_bytes(size)} for {buffer}, though cached segments were "
                    "given back."
                )
            else:
                yield (
                    f"{use.device}: its allocator gives cached segments back {use.flushes} times "
                    "for want of memory."
                )
        if len(troubled) > DEVICES_SHOWN:
            yield f"... and {len(troubled) - DEVICES_SHOWN:,} more devices."


def _plain(value: Any) -> Any:
    """Quantities as JSON can hold them; some are given by kind of device."""
    if hasattr(value, "items"):
        return {kind: _plain(amount) for kind, amount in value.items()}
    return str(value)
