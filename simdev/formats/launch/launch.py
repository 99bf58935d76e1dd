"""A launch configuration as a value, and what the exporters share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...lowering.hybrid import even_layers
from ...nouns.models.large import Transformer
from ...nouns.models.large.software import SOFTWARE, dispatcher_of, graphs_of
from ...nouns.schedules import CHUNKED
from ...nouns.strategy.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class Launch:
    """The ``text`` of a configuration, and ``notes`` on settings that it cannot express."""

    text: str
    notes: tuple[str, ...] = ()


Exporter = Callable[[Transformer, Parallelism], Launch]


def stage_layers(model: Transformer, p: Parallelism) -> tuple[int, ...]:
    """The layers of each stage."""
    return p.stage_layers or even_layers(model.layers, p.pp * p.chunks)


def gathers_again(p: Parallelism) -> bool:
    """Whether parameters are gathered for the backward again."""
    return p.zero == 3 and p.reshard_after_forward


def is_interleaved(p: Parallelism) -> bool:
    """Whether the schedule is 1F1B of several chunks."""
    return p.chunks > 1 and p.schedule in ("1F1B", "Interleaved1F1B")


def of_1f1b(p: Parallelism) -> Iterator[str]:
    """The reasons why the schedule is not 1F1B, plain or interleaved."""
    if p.table is not None:
        yield "table: there is no schedule by a table"
    elif p.schedule not in ("1F1B", "Interleaved1F1B"):
        yield f"schedule: {p.schedule}; --set schedule=1F1B,Interleaved1F1B leaves it out"
    elif p.schedule in CHUNKED and p.chunks == 1 and p.pp > 1:
        yield f"schedule: {p.schedule} of one chunk"
    if p.chunks > 1 and p.pp == 1:
        yield f"chunks: {p.chunks} of a single rank"


NARROW = "narrow_dispatch", "narrow_saved"
LINEAR = "linear_heads", "attention_gate", "shared_gate"


def size_problems(model: Transformer, names: Sequence[str]) -> Iterator[str]:
    """Problems of the sizes (of ``names``) that a model uses and a framework cannot set."""
    yield from (f"{name}: is a setting of the model" for name in names if getattr(model, name))


def setting_problems(model: Transformer, p: Parallelism) -> Iterator[str]:
    """The reasons why experts or CUDA graphs cannot run as they were simulated."""
    name = dispatcher_of(model.runs_on, p)
    if model.experts and p.ep > 1 and name != "alltoall":
        yield f"token_dispatcher: {name}; --set token_dispatcher=alltoall"
    if (graphs := graphs_of(model.runs_on, p)) != "none":
        yield f"cuda_graphs: {graphs}; --set cuda_graphs=none leaves them out"
    if p.ep_comm_overlap and p.ep > 1:
        yield "ep_comm_overlap: true"


def software_note(model: Transformer, framework: str) -> Iterator[str]:
    """A note where another software's kernels were simulated."""
    if model.runs_on.partition("-")[0] != framework:
        software = f'"software": "{framework}" in graph simulates its own'
        has_row = framework in SOFTWARE
        yield f"kernels were simulated as {model.runs_on} runs them" + f"; {software}" * has_row
