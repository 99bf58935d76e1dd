"""How far simulated steps of large models were from published ones, by size and precision.

The steps stand in ``presets/published/large-models.json``, which ``python -m benchmarks.published
--update`` writes; ``docs/papers/large-models.md`` has them one by one, with their sources.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ..files.reading import PRESETS
from ..nouns.models.large import Transformer

FILE = PRESETS / "published" / "large-models.json"
SIZES = (
    ("less than 10 billion parameters", 0, 10 * 10**9),
    ("10 to 100 billion parameters", 10 * 10**9, 100 * 10**9),
    ("100 billion parameters and more", 100 * 10**9, 10**30),
)


@dataclass(frozen=True, slots=True)
class PublishedError:
    """Errors of ``steps`` published steps of models of a ``size`` and a ``precision``: the mean of
    |simulated / published - 1|, and the least and the largest of the signed errors (None: there is
    no such step).
    """

    size: str
    precision: str
    steps: int
    mean: float | None = None
    least: float | None = None
    largest: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)

    def __str__(self) -> str:
        of = f"of models of {self.size} in {self.precision}"
        if self.mean is None:
            return f"No step {of} is published to compare with."
        return (
            f"Beside {self.steps} published steps {of} the model was {self.mean:.1%} off in the "
            f"mean, from {self.least:+.1%} to {self.largest:+.1%}."
        )


def published_error(model: Transformer) -> PublishedError:
    """The error of published steps of models of this size and precision."""
    parameters = model.parameters()
    size = next(name for name, least, most in SIZES if least <= parameters < most)
    return next(e for e in published_errors() if (e.size, e.precision) == (size, model.precision))


@cache
def published_errors() -> Sequence[PublishedError]:
    """The errors by size and precision."""
    steps = json.loads(FILE.read_text("utf-8"))["steps"]
    return tuple(
        _error([s for s in steps if s["precision"] == precision and low <= s["parameters"] < high],
               size, precision)
        for precision in ("bfloat16", "float8")
        for size, low, high in SIZES
    )  # fmt: skip


def _error(steps: Sequence[Any], size: str, precision: str) -> PublishedError:
    errors = [step["simulated_s"] / step["published_s"] - 1 for step in steps]
    if not errors:
        return PublishedError(size, precision, 0)
    mean = sum(map(abs, errors)) / len(errors)
    return PublishedError(size, precision, len(errors), mean, min(errors), max(errors))
