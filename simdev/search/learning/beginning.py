"""How a learner begins where nobody says: at the best start, or at random."""

from __future__ import annotations

import numpy as np

from ...nouns.taskgraph import Ints
from ..sampling import sampled, uniform
from ..space import mean_ps, rank_of
from ..trial import SearchProblem, Trial, best_start

HANDFUL = 10  # random placements that tell whether to begin among them; ours


def begin(trial: Trial) -> Ints | None:
    """The placement to imitate first (devices by group), or None to begin at random.

    Ours: the starts of local search are scored, then a handful of random placements. Where even the
    best of these is worse than the best start, a learner that began among them would see nothing
    but losses: almost all placements lose to one device where transfers are dear.
    """
    column = best_start(trial)
    if column is None:
        return None
    oracle = trial.problem.oracle
    assert trial.best.base is not None  # it is the start
    start = trial.best.base[1]
    trial.adopt(column, start)
    even = uniform(trial.problem.allowed)
    rows = sampled(even, trial.budget.random.random((HANDFUL, len(even))))
    best = min(rank_of(oracle, trial.score_once(row)) for row in rows)
    return by_group(trial.problem, column)[0] if rank_of(oracle, start) < best else None


def by_group(problem: SearchProblem, column: Ints) -> tuple[Ints, bool]:
    """A placement by op as one by the problem's groups, and whether it splits one of them.

    A split group goes to the device where most of its time is (mean over the devices that know it),
    of those where it may stand; of several to the first.
    """
    times, split = mean_ps(problem.oracle.prepared.duration), False
    row = np.empty(len(problem.choices), np.int64)
    for group, (members, able) in enumerate(
        zip(problem.oracle.groups, problem.choices, strict=True)
    ):
        here = column[list(members)]
        row[group] = here[0]
        if (here != here[0]).any():
            split = True
            spent = [times[list(members)][here == device].sum() for device in able]
            row[group] = able[int(np.argmax(spent))]
    return row, split
