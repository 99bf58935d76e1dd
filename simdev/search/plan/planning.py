"""``plan``: the best ways to spread the step of a large model, at a fixed global batch."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...units import is_count
from .outcome import Counts, Plans, Scored
from .question import Question, question_of
from .scoring import score
from .space import Choices, Space, choices_of

if TYPE_CHECKING:
    import pandas as pd

TOP = 10
REASONS_SHOWN = 5


def plan(
    model: str | Mapping[str, Any],
    cluster: str | Mapping[str, Any],
    global_batch: int,
    nodes: int | Sequence[int] | None = None,
    sequence: int | None = None,
    options: Mapping[str, Any] | None = None,
    top: int = TOP,
    price: float | None = None,
    progress: bool | None = None,
    **parts: Any,
) -> pd.DataFrame:
    """The best plans of a large model that fit, a row each, the fastest first.

    Parameters
    ----------
    model, cluster
        As a scenario has them: a name, a file (``config.json``), or an object.
    global_batch
        Samples of a step: dp x microbatches x microbatch.
    nodes
        Machines of a preset, or several counts, each of which is tried.
    sequence
        Words of a sample (None: the model's).
    options
        Fields of ``strategy.pipeline``: a value that all plans have, or a list of those to try.
        What is not named is tried in every legal way: degrees, microbatch, chunks, schedule
        (``space.SCHEDULES``), zero, recompute, context. Anything else is as a scenario has it.
    top
        So many plans.
    price
        Of an hour of a device, for the column ``cost_per_million_tokens``.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.
    parts
        Further parts of a scenario: ``profile``, ``devices``.

    The first row is the best of all plans there are: none is left out but those proved slower or
    too large (docs/plan.md). Raises InputError where no combination is legal, with the reasons.
    """
    question = question_of(model, cluster, global_batch, nodes, sequence, parts)
    return plans_of(question, choices_of(options), top, price, progress).frame


def plans_of(
    question: Question,
    choices: Choices,
    top: int = TOP,
    price: float | None = None,
    progress: bool | None = None,
) -> Plans:
    """The best plans of a question, with what became of all others. Raises InputError."""
    if not is_count(top) or not top:
        raise InputError(f"top: must be a whole number of at least 1, got {top!r}")
    from tqdm import tqdm

    begun = time.perf_counter()
    space = Space(question.model, question.devices, question.global_batch, choices)
    illegal: Counter[str] = Counter()
    setups = list(space.setups(illegal))
    every = [each for setup in setups for each in space.plans(setup)]
    if not every:
        raise InputError(_nothing(illegal))
    hidden = None if progress is None else not progress
    scored: list[Scored] = []
    refused: Counter[str] = Counter()
    for place, each in enumerate(
        tqdm(every, delay=2, disable=hidden, unit="plan", desc="plan", file=sys.stderr)
    ):
        row = score(question, each)
        if "reason" in row:
            refused[row["reason"]] += 1
        else:
            scored.append(Scored(place, each, row))
    fitting = sorted((s for s in scored if s.row["fits"]), key=lambda s: s.order)
    counts = Counts(
        illegal, len(every), simulated=len(scored), overflowing=len(scored) - len(fitting),
        refused=refused, least_bytes=min((s.row["peak_bytes"] for s in scored), default=None),
    )  # fmt: skip
    front = tuple(_front(fitting, question))
    seconds = time.perf_counter() - begun
    return Plans(question, tuple(fitting[:top]), front, counts, seconds, price)


def _nothing(illegal: Counter[str]) -> list[str]:
    """Why there is no plan at all."""
    most = [f"{reason}: {count:,} combinations" for reason, count in illegal.most_common()]
    return most[:REASONS_SHOWN] or ["options: no combination of them takes all devices"]


def _front(fitting: Sequence[Scored], question: Question) -> list[Scored]:
    """Those that no other beats in step, memory and devices at once."""
    front: list[Scored] = []
    for scored in fitting:
        devices = question.devices[scored.plan.setup.layout.cluster]
        if not any(
            other.row["peak_bytes"] <= scored.row["peak_bytes"]
            and question.devices[other.plan.setup.layout.cluster] <= devices
            for other in front
        ):
            front.append(scored)
    return front
