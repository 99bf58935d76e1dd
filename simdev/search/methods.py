"""The table of methods: the function of each method and its defaults, by name.

``search``, comparisons, the commands and the server read METHODS. The rows of methods that learn
are in ``simdev/learn/methods.py``; the README states the number of all methods.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

from ..ground.registry import provided
from .trial import Trial


@dataclass(frozen=True, slots=True)
class Method:
    """A method of search, and its defaults.

    - ``path``: "module:function" below ``simdev``, imported when the method is run.
    - ``prepare``: the default preparations of the graph. ``budget``: the default number of
      evaluations; None for methods that end by themselves after a few.
    - ``splits``: it splits ops, so it takes no preparations. ``ranks``: it can plan ops that run on
      several devices at once. ``chains``: it can walk in several chains at once (chains.py).
    - ``random``: another seed may give another answer, as for every learner.
    - ``learner``: for a method that learns, the path of its class of settings (learners.py).
      ``keeps``: its policy can be saved, loaded as a start, and evaluated.
    - ``torch``: it needs PyTorch; where that is missing it is refused before any evaluation.
    - ``general``: for a learner whose policies can place any graph, the path of a callable that
      makes a learner of several graphs from a trial (``simdev.learn.pretraining.GeneralLearner``).
    """

    path: str
    prepare: tuple[str, ...] = ()
    budget: int | None = None
    splits: bool = False
    ranks: bool = True
    chains: bool = False
    learner: str | None = None
    keeps: bool = True
    random: bool = False
    torch: bool = False
    general: str | None = None

    @property
    def run(self) -> Callable[[Trial], None]:
        """The function that runs the method on a Trial."""
        function: Callable[[Trial], None] = resolve_name(f"simdev.{self.path}")
        return function

    @property
    def draws(self) -> bool:
        """Whether a seed matters."""
        return self.random or self.learner is not None

    @property
    def settings(self) -> type[Any]:
        """The class of a learner's settings."""
        kind: type[Any] = resolve_name(f"simdev.{self.learner}")
        return kind


BAECHI = ("forward", "coplace", "fuse")  # as in its documented runs

OWN: Mapping[str, Method] = {
    "single": Method("search.blackbox:single"),
    "round-robin": Method("search.blackbox:round_robin", budget=10_000),
    "expert": Method("search.expert:expert"),
    "random": Method("search.blackbox:random", budget=1000, random=True),
    "greedy": Method("search.blackbox:greedy", budget=100_000, chains=True, random=True),
    "annealing": Method("search.annealing:annealing", budget=20_000, chains=True, random=True),
    "adaptive": Method("search.annealing:adaptive", budget=20_000, chains=True, random=True),
    "cross-entropy": Method("search.blackbox:cross_entropy", budget=5000, random=True),
    "brkga": Method(
        "search.brkga:brkga",
        ("pair",),
        5000,
        learner="search.brkga:Settings",
        keeps=False,
    ),
    "heft": Method("search.listing:heft", budget=10_000),
    "critical-path": Method("search.listing:critical_path", budget=10_000),
    "m-topo": Method("search.baechi:m_topo", BAECHI, 10_000),
    "m-etf": Method("search.baechi:m_etf", BAECHI, 10_000),
    "m-sct": Method("search.baechi:m_sct", BAECHI, 10_000),
    "pipedream": Method("search.pipedream.placer:pipedream", ("pair",), 10_000, ranks=False),
    "dnn-contiguous": Method("search.maxload.placers:dnn_contiguous", ranks=False),
    "dnn-ip": Method("search.maxload.placers:dnn_ip", ranks=False),
    "dnn-latency": Method("search.maxload.placers:dnn_latency", ranks=False),
    "optcnn": Method("search.soap.optcnn:optcnn", splits=True, ranks=False),
    "flexflow": Method(
        "search.soap.flexflow:flexflow",
        budget=2000,
        splits=True,
        ranks=False,
        chains=True,
        random=True,
    ),
    "exhaustive": Method("search.soap.exhaustive:exhaustive", splits=True, ranks=False),
    "tofu": Method("search.tofu.plan:tofu", splits=True, ranks=False),
}


class _Methods(UserDict[str, Method]):
    """The methods of this package, then the learners, which ``simdev.learn`` registers: that
    package is loaded when the table is first read.
    """

    def __init__(self) -> None:
        """Leave ``data`` to the property below: the ``__init__`` of UserDict would set it."""

    @cached_property
    def data(self) -> dict[str, Method]:  # type: ignore[override]
        return {**OWN, **provided("methods")}


METHODS: Mapping[str, Method] = _Methods()


def name_of(method: object) -> str:
    """The name of a method; for an object of the caller's, the name of its class."""
    return method if isinstance(method, str) else type(method).__name__
