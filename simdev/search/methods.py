"""The methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from .trial import Trial


@dataclass(frozen=True, slots=True)
class Method:
    """A method: the function ``name`` of ``module`` (imported when it is asked for), which is
    handed a Trial.

    ``prepare`` are its usual preparations of the graph. ``budget`` is how many evaluations it may
    use by default; None for methods that end by themselves after a few. ``splits``: it splits ops,
    so there is nothing to prepare.
    """

    module: str
    name: str
    prepare: tuple[str, ...] = ()
    budget: int | None = None
    splits: bool = False

    @property
    def run(self) -> Callable[[Trial], None]:
        """The function."""
        found: Callable[[Trial], None] = getattr(
            import_module(f".{self.module}", __package__), self.name
        )
        return found


BAECHI = ("forward", "coplace", "fuse")

METHODS: Mapping[str, Method] = {
    "single": Method("simple", "single"),
    "round-robin": Method("simple", "round_robin", budget=10_000),
    "expert": Method("expert", "expert"),
    "random": Method("simple", "random", budget=1000),
    "greedy": Method("local", "greedy", budget=100_000),
    "annealing": Method("local", "annealing", budget=20_000),
    "cross-entropy": Method("entropy", "cross_entropy", budget=5000),
    "heft": Method("listing", "heft", budget=10_000),
    "critical-path": Method("listing", "critical_path", budget=10_000),
    "m-topo": Method("baechi", "m_topo", BAECHI, 10_000),
    "m-etf": Method("baechi", "m_etf", BAECHI, 10_000),
    "m-sct": Method("baechi", "m_sct", BAECHI, 10_000),
    "pipedream": Method("pipedream", "pipedream", ("pair",), 10_000),
    "dnn-contiguous": Method("maxload", "dnn_contiguous"),
    "dnn-ip": Method("maxload", "dnn_ip"),
    "dnn-latency": Method("maxload", "dnn_latency"),
    "optcnn": Method("soap", "optcnn", splits=True),
    "flexflow": Method("soap", "flexflow", budget=2000, splits=True),
    "exhaustive": Method("soap", "exhaustive", splits=True),
    "tofu": Method("tofu", "tofu", splits=True),
}
