"""The options of learners: what they are asked for, and the start that they are given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from typing import Any

from ..ground.errors import InputError, prefixed, refuse
from ..ground.jobs import is_serial, require_joblib
from ..ground.units import exact
from ..nouns.taskgraph import Ints
from ..oracle import Cost
from .features import VERSION
from .learning.beginning import begin, by_group
from .learning.needs import require_torch
from .learning.settings import Settings, resolved
from .methods import METHODS
from .policy import SavedPolicy, load_policy, require_method, require_policy
from .running import run_within
from .space import IMPOSSIBLE
from .trial import Learning, Trial

OF_POLICIES = ("policy", "train")  # options that go with learners of policies alone
AUTO, RANDOM = "auto", "random"
SHARE = 0.2  # of the budget that a warm start may use; ours
EVALUATED = 100  # placements that a policy is judged by, where it does not learn; ours


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """What a caller of ``search`` says to a learner; None: nothing."""

    settings: Settings | object | None = None
    warm: str | None = None
    policy: SavedPolicy | str | os.PathLike[str] | None = None
    train: bool = True
    n_jobs: int | None = None

    def given(self) -> Iterator[str]:
        """The names of those that are given."""
        for name in ("settings", "warm", "policy", "n_jobs"):
            if getattr(self, name) is not None:
                yield name
        if self.train is not True:
            yield "train"


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Checked options of a learner: ``warm`` is a name, ``share`` the part of the budget that it
    may use.
    """

    method: str
    learning: Learning
    warm: str
    share: float

    def provenance(self) -> dict[str, Any]:
        """What a result says of them."""
        learning = self.learning
        warm = self.warm if learning.policy is None else "policy"
        return {"settings": asdict(learning.settings), "warm": warm, "train": learning.train}


def requested(method: object, options: LearnerOptions) -> Request | None:
    """The checked options of a learner; None for other methods.

    Raises InputError for options that cannot be, and for any that is given to another method.
    """
    if not isinstance(method, str) or METHODS[method].learner is None:
        name = method if isinstance(method, str) else type(method).__name__
        refuse(of_learners_alone(option, name) for option in options.given())
        return None
    if not METHODS[method].keeps:
        refuse(keeps_none(option, method) for option in options.given() if option in OF_POLICIES)
    if not isinstance(options.train, bool):
        raise InputError(f"train: must be true or false, got {options.train!r}")
    if not options.train and options.policy is None:
        raise InputError("train: without training there must be a policy to evaluate")
    if not is_serial(options.n_jobs):
        require_joblib()
    warm, share = _warm(options)
    policy = _policy(method, options.policy)
    base = {} if policy is None else policy.settings
    settings = resolved(METHODS[method].settings, options.settings, base)
    jobs = None if options.n_jobs is None else int(options.n_jobs)
    learning = Learning(settings, None, RANDOM, policy, options.train, jobs)
    return Request(method, learning, warm, share)


def keeps_none(option: str, name: str) -> str:
    """Why a learner of this name cannot be given an option of policies."""
    return f"{option}: {name} learns no policy"


def of_learners_alone(option: str, name: str) -> str:
    """Why a method of this name cannot be given an option of learners."""
    learners = ", ".join(name for name in METHODS if METHODS[name].learner)
    return f"{option}: goes with methods that learn ({learners}), not with {name}"


def _warm(options: LearnerOptions) -> tuple[str, float]:
    """The name of a start, and its share of the budget."""
    if options.warm is None:
        return AUTO, SHARE
    if not isinstance(options.warm, str):
        raise InputError(f"warm: must be a name, got {options.warm!r}")
    if options.policy is not None:
        raise InputError("warm: the search begins with a policy; it takes no other start")
    name, colon, text = options.warm.partition(":")
    starts = [name for name, method in METHODS.items() if not (method.splits or method.learner)]
    if name not in (AUTO, *starts):
        listed = ", ".join([AUTO, *starts])
        raise InputError(f'warm: must be one of {listed}, got "{options.warm}"')
    try:
        share = float(exact(text)) if colon else SHARE
    except ValueError:
        share = nan
    if not 0 < share <= 1 or (colon and name in (AUTO, RANDOM)):
        raise InputError(
            "warm: a share of the budget belongs to a method and must be in (0, 1], got "
            f'"{options.warm}"'
        )
    return name, share


def _policy(method: str, given: object) -> SavedPolicy | None:
    """The policy to begin with, of this method."""
    if given is None or isinstance(given, SavedPolicy):
        policy = given
    elif isinstance(given, (str, os.PathLike)):
        try:
            policy = load_policy(given)
        except InputError as error:
            raise InputError(f"policy: {error}") from None
    else:
        raise InputError(f"policy: must be a path or a SavedPolicy, got {given!r}")
    if policy is not None:
        with prefixed("policy: "):
            require_method(policy, method)
    return policy


def beginning(trial: Trial, request: Request, prepare: Sequence[str] | None) -> Learning:
    """What a learner begins with, scored; ``details`` of the trial tell of it.

    Preparations that the caller names hold for a method that is imitated too; None leaves each to
    its own. So a comparison's row of that method is what its learners imitate. Raises SpentError,
    InputError where PyTorch is missing, and InputError or DeadlockError where the start has no
    answer.
    """
    # Here, not where options are checked: a comparison goes on without a method that is refused.
    if METHODS[request.method].torch:
        require_torch(request.method)
    learning, best = request.learning, trial.best
    if learning.policy is not None:
        with prefixed("policy: "):
            require_policy(learning.policy, request.method, VERSION, trial.problem.oracle)
        return replace(learning, beginning="policy")
    if request.warm == RANDOM:
        return learning
    auto = request.warm == AUTO
    names = None if auto else METHODS[request.warm].prepare if prepare is None else prepare
    row, cost, split = _auto(trial) if names is None else _imitated(trial, request, names)
    name = "the best start" if auto else request.warm
    if cost is IMPOSSIBLE:  # its groups cannot stand so, and nobody shall imitate that
        row = None
    best.details["warm"] = {
        "name": request.warm,
        "beginning": RANDOM if row is None else name,
        "prepare": None if names is None else list(names),
        "step_time_s": best.points[-1].step_ps / 1e12 if best.points else None,
        "imitated_s": None if row is None else cost.seconds,
        "split": split,
        "evaluations": trial.budget.evaluations,
    }
    return learning if row is None else replace(learning, warm=row, beginning=name)


def _auto(trial: Trial) -> tuple[Ints | None, Cost, bool]:
    """The best start where random placements are worse, its cost, and that it splits no group."""
    row = begin(trial)
    return row, IMPOSSIBLE if row is None else trial.score_once(row), False


def _imitated(
    trial: Trial, request: Request, preparations: Sequence[str]
) -> tuple[Ints | None, Cost, bool]:
    """The answer of another method by the groups of this problem, its cost, and whether it splits
    some of them.
    """
    with prefixed("warm: "):
        inner = run_within(trial, request.warm, request.share, preparations)
    assert inner.best.placement is not None
    column, cost = inner.best.placement
    row, split = by_group(trial.problem, column)
    if not split:
        trial.adopt(column, cost)
    return row, trial.score_once(row), split
