"""``plan``: the best ways to spread the step of a large model, at a fixed global batch."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ...execution.scenario import fingerprint
from ...ground.errors import InputError, steered
from ...ground.units import Number, is_count
from ..sweep import Journal
from ..sweep.point import engine_version
from .bounds import Bounds
from .folding import Scored
from .outcome import Plans
from .question import Question, question_of
from .scoring import Scores
from .searching import Search, degrees
from .space import Choices, Plan, Space, choices_of

if TYPE_CHECKING:
    import pandas as pd

TOP = 10
REASONS_SHOWN = 5


def plan(
    model: str | Mapping[str, Any],
    cluster: str | Mapping[str, Any],
    global_batch: int,
    nodes: int | Sequence[int] | None = None,
    length: int | None = None,
    options: Mapping[str, Any] | None = None,
    top: int = TOP,
    price: Number | None = None,
    front: bool = False,
    alike: bool = False,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **parts: Any,
) -> pd.DataFrame:
    """The best plans of a large model that fit, a row each, the fastest first, each of other
    degrees. Plans within 1 % of one another are one row, that of the simplest
    (``search/plan/folding.py``).

    Parameters
    ----------
    model, cluster
        As a scenario has them: a name, a file (``config.json``), or an object.
    global_batch
        Samples of a step: dp x microbatches x microbatch.
    nodes
        Machines of a preset, or several counts, each of which is tried.
    length
        Tokens of a sample (None: the model's).
    options
        Fields of ``strategy.pipeline``: a value that all plans have, or a list of those to try.
        What is not named is tried in every legal way: degrees, microbatch, chunks, schedule
        (``space.SCHEDULES``), zero, recompute, context. Anything else is as a scenario has it.
    top
        So many answers.
    price
        Of an hour of a device in dollars, for the column ``cost_per_million_tokens``; it stands in
        the scenarios, too.
    front
        Whether to look for the whole front of step time, memory and devices, too: all plans that
        no other beats in all three. It takes longer.
    alike
        Whether every plan is a row of its own: those of equal degrees (as they are where all have
        these), and those within 1 % of one another.
    n_jobs
        So many plans are simulated at once (``simdev.ground.jobs``), which changes no answer.
    journal
        A file to which every plan that is simulated is appended at once, and not simulated again.
    progress
        Whether to show a bar on stderr, from two seconds on; None: where stderr is a terminal.
    parts
        Further parts of a scenario: ``profile``, ``devices``.

    Notes
    -----
    The first row is within 1 % of the best of all plans there are, under this model of the
    machine: none is left out but those proved slower or too large (``search/plan/bounds.py``).
    Raises InputError where no combination is legal, with the reasons.
    """
    question = question_of(model, cluster, global_batch, nodes, length, parts, price)
    choices = choices_of(options)
    return plans_of(question, choices, top, front, alike, n_jobs, journal, progress).frame


def plans_of(
    question: Question,
    choices: Choices,
    top: int = TOP,
    front: bool = False,
    alike: bool = False,
    n_jobs: int | None = None,
    journal: str | os.PathLike[str] | None = None,
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
    total = sum(map(space.count, setups))
    if not total:
        raise InputError(_nothing(illegal) or space.nothing())
    hidden = None if progress is None else not progress
    digest = fingerprint((engine_version(), question.content)) if journal else ""
    with nullcontext() if journal is None else Journal(journal, None, "plan") as book, tqdm(
        total=total, delay=2, disable=hidden, unit="plan", desc="plan", file=steered(sys.stderr),
        leave=False,
    ) as bar:  # fmt: skip
        kept = _Kept(book, digest)
        every = alike or len({degrees(setup) for setup in setups}) == 1
        search = Search(
            space,
            Bounds(question, space.choices.listed["schedule"]),
            Scores(question, n_jobs),
            top,
            front,
            every,
            not alike,
            kept.get,
            kept.add,
        )
        search.run(setups, bar.update)
    counts = search.counts(illegal, total)
    points = tuple(_front(search.fitting, question)) if front else ()
    seconds = time.perf_counter() - begun
    return Plans(question, tuple(search.best), points, counts, seconds, not alike)


class _Kept:
    """The figures of plans in a journal, if there is one."""

    def __init__(self, journal: Journal | None, digest: str) -> None:
        self._journal, self._digest = journal, digest

    def _key(self, plan: Plan) -> str:
        return fingerprint((self._digest, plan.fields, plan.setup.layout.cluster))

    def get(self, plan: Plan) -> Mapping[str, Any] | None:
        """Those of a plan, None where they are not known."""
        return None if self._journal is None else self._journal.rows.get(self._key(plan))

    def add(self, plan: Plan, row: Mapping[str, Any]) -> None:
        """Keeps those of a plan. What could not be simulated is tried again."""
        if self._journal is not None and "reason" not in row:
            self._journal.add(self._key(plan), engine_version(), row)


def _nothing(illegal: Counter[str]) -> list[str]:
    """Why there is no plan at all."""
    most = [f"{reason}: {count:,} combinations" for reason, count in illegal.most_common()]
    return most[:REASONS_SHOWN]


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
