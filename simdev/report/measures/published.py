"""The errors of simulated steps of large models: beside published runs of similar steps, and of two
layouts of a model relative to each other.

The runs are in ``presets/published/large-models.json``, which ``python -m benchmarks.published
--update`` writes: a line for each setting that was run, with the seconds of every release that ran
it. ``docs/papers/large-models.md`` has many of them one by one, with their sources.

A run is similar to a step if they share the device, the precision, the kind (dense, or a mixture of
experts) and the software. Where fewer than FEW runs share all four, runs that share fewer of them
are used, in the order of LIKE; every figure says which were matched.

Plans of one model on one system are compared with each other. An error that all of them share (of a
kernel, a clock, a release of the software) multiplies all their steps by the same factor and
changes no order, so the absolute error says little about the order. Its certainty follows from
pairs of layouts of one model, on one device and from one source, in the published runs
(``LayoutError``). For a kind of models with too few such pairs, pairs from several sources are
used; since their releases of the software differ too, that figure is rather too large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from itertools import combinations
from math import expm1, log
from statistics import fmean

from ...files.reading import PRESETS
from ...nouns.cluster import Cluster
from ...nouns.models.large import Transformer
from ..table import Json

FILE = PRESETS / "published" / "large-models.json"
COLUMNS = (
    "step", "model", "parameters", "device", "precision", "kind", "software", "published_s",
    "simulated_s",
)  # fmt: skip
"""The columns of a line of the file; ``published_s`` are pairs of a source and seconds."""
KEYS = ("device", "precision", "kind", "software")
GENERATION, FRAMEWORK = "generation", "framework"
GENERATIONS = {
    "a100-40": "Ampere", "a100-80": "Ampere", "h100-sxm": "Hopper", "h100-500w": "Hopper",
    "h200-sxm": "Hopper", "b200": "Blackwell", "b300": "Blackwell", "gb200": "Blackwell",
    "gb300": "Blackwell",
}  # fmt: skip
"""The architectures of NVIDIA's devices, where several kinds of device have the same."""
LIKE = (
    KEYS,
    ("device", "precision", "kind", FRAMEWORK),
    (GENERATION, "precision", "kind", FRAMEWORK),
    ("precision", "kind", FRAMEWORK),
    ("kind", FRAMEWORK),
    ("kind",),
    (),
)
"""The keys that runs have to share with a step, the closest match first. The keys that are dropped
last changed errors most: kind and software decide which kernels there are, the precision and the
device how fast they are.
"""
FEW, FEW_PAIRS = 3, 5  # the fewest runs for a range, and pairs for a mean (ours)

Keys = Mapping[str, str]


@dataclass(frozen=True)
class PublishedRun:
    """A line of the file."""

    step: str
    model: str
    parameters: int
    device: str
    precision: str
    kind: str
    software: str
    published_s: Sequence[tuple[str, float]]
    simulated_s: float

    @cached_property
    def keys(self) -> Keys:
        """The keys by which runs are matched."""
        return _keys(self.device, self.precision, self.kind, self.software)

    @property
    def errors(self) -> list[float]:
        """The signed errors of the simulated step, by source."""
        return [self.simulated_s / seconds - 1 for _, seconds in self.published_s]

    @property
    def biases(self) -> dict[str, float]:
        """The mean logarithm of simulated over published time, by source."""
        logs: dict[str, list[float]] = {}
        for source, seconds in self.published_s:
            logs.setdefault(source, []).append(log(self.simulated_s / seconds))
        return {source: fmean(each) for source, each in logs.items()}

    def is_rival(self, other: PublishedRun) -> bool:
        """Whether two runs have the same model and system."""
        mine, others = ((r.model, r.parameters, r.keys) for r in (self, other))
        return mine == others


def kind_of(model: Transformer) -> str:
    """The kind of a model: dense, or a mixture of experts."""
    return "moe" if model.experts else "dense"


def kinds_of(cluster: Cluster) -> str:
    """The kinds of the devices of a cluster that compute."""
    return " and ".join(dict.fromkeys(cluster.devices[d].kind for d in cluster.workers))


def keys_of(model: Transformer, device: str) -> Keys:
    """The keys of the steps of a model on devices of a kind."""
    return _keys(device, model.precision, kind_of(model), model.runs_on)


def _keys(device: str, *others: str) -> Keys:
    keys = dict(zip(KEYS, (device, *others), strict=True))
    # The framework of "megatron-bridge" is "megatron".
    framework = keys["software"].partition("-")[0]
    return {**keys, GENERATION: GENERATIONS.get(device, device), FRAMEWORK: framework}


@cache
def published_runs() -> Sequence[PublishedRun]:
    """All lines of the file."""
    return [PublishedRun(*line) for line in json.loads(FILE.read_text("utf-8"))["steps"]]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The keys, with the step's values, that published runs share with a step (``matched``), and
    the keys that too few of them share (``unmatched``).
    """

    matched: Keys
    unmatched: Keys

    def words(self, runs: str) -> str:
        """The runs in words: "16 published runs of dense models in bfloat16 on h100-sxm"."""
        keys = self.matched
        kinds = {"dense": " of dense models", "moe": " of mixtures of experts"}
        text = runs + (kinds[keys["kind"]] if "kind" in keys else " of large models")
        text += f" in {keys['precision']}" if "precision" in keys else ""
        device = keys.get("device") or keys.get(GENERATION)
        text += f" on {device}" if device else ""
        # "megatron*" includes other tools that set up Megatron.
        software = keys.get("software") or f"{keys.get(FRAMEWORK, '')}*"
        text += f" by {software}" if software != "*" else ""
        missed = ", ".join(f"{name} {value}" for name, value in self.unmatched.items())
        return text + (f" (too few of {missed})" if missed else "")

    def to_json(self) -> Json:
        """Its fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PublishedError(Likeness):
    """Errors of ``runs`` published runs: the mean of |simulated / published - 1|, and the least and
    the largest of the signed errors.
    """

    runs: int
    mean: float
    least: float
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.words(f'Beside {self.runs} published runs')} the model was {self.mean:.1%} off "
            f"in the mean, from {self.least:+.1%} to {self.largest:+.1%}."
        )


@dataclass(frozen=True, slots=True)
class LayoutError(Likeness):
    """The mean error of the ratio of two layouts' steps beside the published ratio, over ``pairs``
    of runs of one model, precision, device and software, and from one source unless ``mixed``.
    """

    pairs: int
    mean: float
    mixed: bool

    def __str__(self) -> str:
        sources = "several sources" if self.mixed else "one source"
        pairs = f"{self.pairs} pairs of published runs of {sources},"
        return (
            f"the {self.mean:.1%} by which two layouts of one model were off beside each other, in "
            f"the mean of {self.words(pairs)}"
        )

    def ties(self, step: float, least: float) -> bool:
        """Whether a step is longer than the shortest step by at most this error."""
        return step <= least * (1 + self.mean)


def published_error(model: Transformer, device: str) -> PublishedError:
    """The error beside published runs that are similar to a model's steps on a kind of device."""
    return _error_of(tuple(keys_of(model, device).items()))


@cache
def _error_of(keys: tuple[tuple[str, str], ...]) -> PublishedError:
    return _error(*_nearest(dict(keys), _errors))


def _error(matched: Keys, unmatched: Keys, errors: Sequence[float]) -> PublishedError:
    mean = fmean(map(abs, errors))
    return PublishedError(matched, unmatched, len(errors), mean, min(errors), max(errors))


def layout_error(model: Transformer, device: str) -> LayoutError:
    """The error of layouts relative to each other, from runs of similar models."""
    return _layout_error_of(tuple(keys_of(model, device).items()))


@cache
def _layout_error_of(keys: tuple[tuple[str, str], ...]) -> LayoutError:
    # Dense models say nothing about the exchange of experts, so pairs of the same kind from several
    # sources are better than pairs of another kind from one source.
    for mixed, ways in ((False, [names for names in LIKE if "kind" in names]), (True, LIKE)):
        pairs = partial(_pairs, mixed=mixed)
        matched, unmatched, values = _nearest(dict(keys), pairs, ways, FEW_PAIRS)
        if len(values) >= FEW_PAIRS:
            break
    return LayoutError(matched, unmatched, len(values), expm1(fmean(values)), mixed)


def published_errors() -> Iterator[PublishedError]:
    """The errors of all runs, grouped by their keys, in the order of the file."""
    for keys in dict.fromkeys(tuple(run.keys.items()) for run in published_runs()):
        runs = [run for run in published_runs() if run.keys == dict(keys)]
        yield _error({name: dict(keys)[name] for name in KEYS}, {}, _errors(runs))


def _nearest(
    keys: Keys,
    figures: Callable[[Sequence[PublishedRun]], list[float]],
    ways: Sequence[Sequence[str]] = LIKE,
    few: int = FEW,
) -> tuple[Keys, Keys, list[float]]:
    """The keys that the closest runs share with a step, the keys by which they differ, and their
    figures. The closest runs are found by the first of ``ways`` with at least ``few`` figures, else
    by the last.
    """
    for names in ways:
        wanted = {name: keys[name] for name in names}
        runs = [run for run in published_runs() if wanted.items() <= run.keys.items()]
        values = figures(runs)
        if len(values) >= few:
            break
    # Keys that all of them happen to share were matched as well.
    shared = {name for name in KEYS if all(run.keys[name] == keys[name] for run in runs)}
    matched = {name: keys[name] for name in keys if name in wanted or name in shared}
    return matched, {name: keys[name] for name in KEYS if name not in matched}, values


def _errors(runs: Sequence[PublishedRun]) -> list[float]:
    return [error for run in runs for error in run.errors]


def _pairs(runs: Sequence[PublishedRun], mixed: bool) -> list[float]:
    """|log| of the simulated over the published ratio of two runs' steps, for each pair: the mean
    over the sources that both have, or with ``mixed`` from the means over all sources.
    """
    # A run that was simulated in two ways, because its source leaves details open, counts once.
    first: dict[tuple[str, str], PublishedRun] = {}
    for run in runs:
        first.setdefault((run.model, str(run.published_s)), run)
    distances = []
    for a, b in combinations(first.values(), 2):
        if a.is_rival(b):
            x, y = a.biases, b.biases
            if mixed:
                distances.append(abs(fmean(x.values()) - fmean(y.values())))
            elif common := [source for source in x if source in y]:
                distances.append(fmean(abs(x[source] - y[source]) for source in common))
    return distances
