"""A launch configuration as a value, and what the exporters share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...lowering.hybrid import even_layers
from ...nouns.models.large import Transformer
from ...nouns.schedules import CHUNKED
from ...nouns.strategy.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class Launch:
    """The ``text`` of a configuration, and ``notes`` on what it cannot say."""

    text: str
    notes: tuple[str, ...] = ()


Exporter = Callable[[Transformer, Parallelism], Launch]


def stage_layers(model: Transformer, p: Parallelism) -> tuple[int, ...]:
    """The layers of each stage."""
    return p.stage_layers or even_layers(model.layers, p.pp * p.chunks)


def is_interleaved(p: Parallelism) -> bool:
    """Whether the schedule is 1F1B of several chunks."""
    return p.chunks > 1 and p.schedule in ("1F1B", "Interleaved1F1B")


def of_1f1b(p: Parallelism) -> Iterator[str]:
    """Why the schedule is not 1F1B, of several chunks or of one."""
    if p.table is not None:
        yield "table: there is no schedule by a table"
    elif p.schedule not in ("1F1B", "Interleaved1F1B"):
        yield f"schedule: {p.schedule}; --set schedule=1F1B,Interleaved1F1B leaves it out"
    elif p.schedule in CHUNKED and p.chunks == 1 and p.pp > 1:
        yield f"schedule: {p.schedule} of one chunk"
    if p.chunks > 1 and p.pp == 1:
        yield f"chunks: {p.chunks} of a single rank"


def narrow_problems(model: Transformer) -> Iterator[str]:
    """Sizes of a model that no framework has a setting for."""
    for name in ("narrow_dispatch", "narrow_saved"):
        if getattr(model, name):
            yield f"{name}: is a setting of the model"
