"""What learners are offered: checked settings, a start to imitate, placements scored once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from reprlib import repr as brief

import numpy as np
import pytest

import tiny_learner
from forks import fork, forks, mixed
from simdev import Oracle, oracle_of
from simdev.execution.scenario import Scenario
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Host
from simdev.nouns.graph import Graph, Tensor
from simdev.oracle import Cost
from simdev.search import METHODS, confirm, learners, search
from simdev.search.learners import resolved
from simdev.search.run import HANDFUL, begin, problem_of
from simdev.search.trial import Budget, SpentError, Trial
from tiny_learner import Settings
from toys import curve, optimum, toy

pytestmark = pytest.mark.usefixtures("tiny")


def grouped(question: Scenario) -> Trial:
    """A trial of the graph after co-placement, which joins what follows from one to the other."""
    oracle = oracle_of(question)
    problem = problem_of(oracle, question.strategy, "tiny", METHODS["tiny"], ["coplace"])
    return Trial(problem, Budget())


def forks_with(size: int) -> Oracle:
    """The two chains, with outputs of so many bytes, a ps each."""
    small = forks()
    ops = tuple(replace(op, outputs=(Tensor(size),)) for op in small.graph.ops)
    return Oracle(Graph("forks", ops), small.cluster)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (None, Settings()),
        ("published", Settings.published()),
        ({"batch": 2}, Settings(batch=2)),
        ("rate=0.25, batch=2", Settings(batch=2, rate=0.25)),
        ("published,batch=2", Settings(batch=2, rate=0.25)),
        ("batch=2,published", Settings(batch=2, rate=0.25)),
        ("noise=0,shuffled=true,rule=none,label=a b", Settings(4, 0.5, 0, "none", "a b", True)),
        (Settings(batch=9), Settings(batch=9)),
        ({"batch": np.int64(2), "rate": 1}, Settings(batch=2, rate=1.0)),
    ],
)
def test_settings_are_given_by_name_or_as_text(given, settings):
    assert resolved(Settings, given) == settings
    assert search(toy(), "tiny", 1, settings=given).provenance["settings"] == vars(settings)


FIELDS = (
    "there are batch (int, 4), rate (float, 0.5), noise (float, 0.1), rule (count/none, count), "
    "label (str, tiny), shuffled (bool, False)"
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("bach=3", "no 'bach'"),
        ("batch=0", "batch must be a whole number > 0, got '0'"),
        ({"batch": 2.5}, "batch must be a whole number > 0, got 2.5"),
        ({"batch": True}, "batch must be a whole number > 0, got True"),
        ({"batch": 10**400}, f"batch must be at most 1e+30, got {brief(10**400)}"),
        ("batch=" + "9" * 4000, f"batch must be a whole number > 0, got {brief('9' * 4000)}"),
        ("batch=1_0", "batch must be a whole number > 0, got '1_0'"),
        ("rate=\u0663", "rate must be a number > 0, got '\u0663'"),
        ({"rate": float("nan")}, "rate must be a number > 0, got nan"),
        ("rate=1e999", "rate must be a number > 0, got '1e999'"),
        ("noise=-1", "noise must be a number >= 0, got '-1'"),
        ("rule=other", "rule must be of count, none, got 'other'"),
        ({"label": 3}, "label must be a text, got 3"),
        ("shuffled=1", "shuffled must be true or false, got '1'"),
        ({"batch": 0, "rat": 1}, "no 'rat'; batch must be a whole number > 0, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_line_that_lists_the_fields(given, problem):
    with pytest.raises(InputError) as refused:
        search(toy(), "tiny", settings=given)
    assert str(refused.value) == f"settings: {problem}; {FIELDS}"


@pytest.mark.parametrize("given", ["half", 3, ["batch=2"]])
def test_settings_of_another_form_are_refused(given):
    with pytest.raises(InputError, match=r"^settings: must be "):
        search(toy(), "tiny", settings=given)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"warm": "magic"}, "warm: must be one of auto, single, "),
        ({"warm": "tiny"}, "warm: must be one of auto, "),
        ({"warm": "flexflow"}, "warm: must be one of auto, "),
        ({"warm": 3}, "warm: must be a name, got 3"),
        ({"warm": "single:2"}, r"warm: a share of the budget .* must be in \(0, 1\]"),
        ({"warm": "single:x"}, "warm: a share of the budget "),
        ({"warm": "auto:0.5"}, "warm: a share of the budget "),
        ({"train": False}, "train: without training there must be a policy"),
        ({"train": 1}, "train: must be true or false, got 1"),
        ({"n_jobs": 0}, "n_jobs: must be a whole number, not 0, got 0"),
        ({"policy": 3}, "policy: must be a path or a SavedPolicy, got 3"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    with pytest.raises(InputError, match=f"^{problem}"):
        search(toy(), "tiny", **options)


@pytest.mark.parametrize(
    "option", [{"settings": {}}, {"warm": "auto"}, {"policy": "p"}, {"train": False}, {"n_jobs": 1}]
)
def test_methods_that_do_not_learn_take_no_option_of_learners(option):
    (name,) = option
    refused = f"^{name}: goes with methods that learn \\(.*, tiny\\), not with "
    with pytest.raises(InputError, match=refused + "greedy$"):
        search(toy(), "greedy", **option)
    with pytest.raises(InputError, match=refused + "Other$"):
        search(toy(), Other(), **option)


class Other:
    def ask(self) -> np.ndarray:
        return np.zeros(6, np.int64)

    def tell(self, placement: np.ndarray, cost: Cost) -> None:
        pass


@pytest.mark.parametrize("warm", ["m-sct", "annealing", "single"])
def test_a_warm_start_is_a_search_of_its_own_within_the_budget(warm):
    """Its evaluations and its curve are of the learner's search, which never ends above it."""
    result = search(toy(), "tiny", 100, warm=warm)
    alone = search(toy(), warm, 20)
    start = result.details["warm"]
    assert start["name"] == start["beginning"] == warm
    assert start["step_time_s"] == start["imitated_s"] == alone.cost.seconds
    assert start["evaluations"] == alone.provenance["evaluations"]
    count = len(alone.points)
    points = curve(result)
    assert points[:count] == curve(alone)
    assert result.provenance["warm"] == warm
    assert result.provenance["evaluations"] > start["evaluations"]


@pytest.mark.parametrize("prepare", [None, [], ["coplace"], ["pair", "coplace"]])
@pytest.mark.parametrize("warm", ["m-sct", "greedy"])
def test_what_is_imitated_is_prepared_as_the_caller_says_or_as_usual(warm, prepare):
    """So the row of that method in a comparison is what the learner began at."""
    result = search(fork(), "tiny", 50, warm=warm, prepare=prepare)
    alone = search(fork(), warm, 10, prepare=prepare)
    start = result.details["warm"]
    assert start["step_time_s"] == alone.cost.seconds
    assert start["prepare"] == alone.provenance["prepare"]
    # What keeps groups apart is placed again with each of them together.
    assert start["evaluations"] - start["split"] == alone.provenance["evaluations"]
    if prepare is not None:
        assert alone.provenance["groups"] == result.provenance["groups"]


def test_a_share_of_the_budget_may_be_said():
    start = search(toy(), "tiny", 100, warm="annealing:0.6").details["warm"]
    assert start["evaluations"] == search(toy(), "annealing", 60).provenance["evaluations"] == 60


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_warm_start_is_the_answer_where_nothing_is_left_to_learn_with(budget):
    result = search(toy(), "tiny", budget, warm="annealing:1")
    assert result.provenance["ended"] == "budget"
    assert result.provenance["evaluations"] == budget
    assert result.cost == search(toy(), "annealing", budget).cost


def test_a_part_of_a_budget_has_limits_of_its_own_and_counts_in_the_whole():
    counts: list[int] = []
    whole = Budget(100, 50.0, 7, counts.append)
    part = whole.part(0.2, most=1000)
    assert (part.limit, part.seconds, part.seed) == (20, 10.0, 7)
    assert whole.part(0.2, most=5).limit == 5
    assert whole.part(0.001).limit == 1
    assert (Budget().part(0.2).limit, Budget().part(0.2).seconds) == (None, None)
    assert part.random.random() == np.random.default_rng(7).random()
    whole.count()
    part.count()
    assert (part.evaluations, whole.evaluations, counts) == (1, 2, [1, 2])


def test_an_interrupted_warm_start_keeps_its_best(monkeypatch):
    def interrupted(trial: Trial) -> None:
        trial.score(np.zeros(6, np.int64))
        raise KeyboardInterrupt

    monkeypatch.setattr("simdev.search.annealing.annealing", interrupted)
    result = search(toy(), "tiny", warm="annealing")
    assert result.provenance["ended"] == "interrupted"
    assert result.cost == toy()(np.zeros(6, np.int64))
    assert result.policy is None


def test_a_warm_start_that_is_refused_says_so():
    with pytest.raises(InputError, match=r"^warm: single: no device can run every op"):
        search(mixed(), "tiny", warm="single")


def test_where_a_warm_start_plans_nothing_the_best_start_stands_for_it(monkeypatch):
    def spent(trial: Trial) -> None:
        raise SpentError

    monkeypatch.setattr("simdev.search.baechi.m_sct", spent)
    start = search(toy(), "tiny", 60, warm="m-sct").details["warm"]
    assert start["step_time_s"] == search(toy(), "single").cost.seconds


def test_starts_in_place_of_a_plan_stay_within_the_budget_too(monkeypatch):
    def spent(trial: Trial) -> None:
        raise SpentError

    monkeypatch.setattr("simdev.search.baechi.m_sct", spent)
    result = search(toy(), "tiny", 2, warm="m-sct")
    assert result.provenance["evaluations"] == 2
    assert result.provenance["ended"] == "budget"


def test_a_split_group_goes_where_most_of_its_time_is_and_is_scored_too(monkeypatch):
    """Co-placement joins a, b and t: 202 ps on one device with s, where b apart makes it 102."""
    problem = grouped(fork()).problem
    row, split = problem.by_group(np.array([0, 0, 1, 1]))
    assert (row.tolist(), split) == ([0, 1], True)  # b and t take 101 ps, a 100
    tiny_learner.register(monkeypatch, "coplace")
    result = search(fork(), "tiny", 50, warm="greedy")
    warm = result.details["warm"]
    assert warm["split"]
    assert warm["prepare"] == []
    assert (warm["step_time_s"], warm["imitated_s"]) == (102e-12, 202e-12)
    assert result.cost.step_ps == 102


def test_a_group_that_is_not_split_stays_where_it_stands():
    row, split = grouped(fork()).problem.by_group(np.array([0, 1, 1, 1]))
    assert (row.tolist(), split) == ([0, 1], False)


def test_auto_begins_at_the_best_start_only_where_random_placements_are_worse(trial_of):
    """Where a transfer takes longer than all ops, whatever is not on one device is."""
    dear, cheap = trial_of(forks_with(1000)), trial_of(forks_with(0))
    assert begin(dear).tolist() == [0] * 7
    assert begin(cheap) is None
    for trial in (dear, cheap):
        assert trial.distinct <= 1 + HANDFUL
        assert trial.budget.evaluations >= trial.distinct


def test_auto_tells_how_it_began():
    dear = search(forks_with(1000), "tiny", 60)
    assert dear.details["warm"]["beginning"] == "the best start"
    assert dear.details["warm"]["imitated_s"] == search(forks_with(1000), "single").cost.seconds
    cheap = search(forks_with(0), "tiny", 60)
    assert cheap.details["warm"]["beginning"] == "random"
    assert cheap.details["warm"]["imitated_s"] is None
    assert "warm" not in search(toy(), "tiny", 10, warm="random").details


def test_a_placement_is_scored_once_by_group_or_by_op(trial_of):
    oracle = forks()
    trial = trial_of(oracle, limit=3)
    row = np.array([0, 1, 0, 1, 0, 1, 0])
    cost = trial.score_once(row)
    assert trial.score_once(row.copy()) is cost
    assert trial.score_once(oracle.placement(row)) is cost
    trial.score_once(np.zeros(7, np.int64))
    assert (trial.budget.evaluations, trial.distinct) == (2, 2)
    trial.score_once(np.ones(7, np.int64))
    with pytest.raises(SpentError):
        trial.score_once(row)


def test_a_learner_meets_the_optimum_of_a_toy():
    """Of 729 placements; so the plumbing loses none of what it samples."""
    result = search(toy(), "tiny", 300, seed=1, settings="noise=0.5,batch=12")
    assert result.cost.step_ps == optimum()[0]


def test_a_policy_of_an_interrupted_search_is_kept(monkeypatch):
    score = Trial.score

    def stops(trial: Trial, placement: np.ndarray) -> Cost:
        if trial.budget.evaluations == 20:
            raise KeyboardInterrupt
        return score(trial, placement)

    monkeypatch.setattr(Trial, "score", stops)
    result = search(toy(), "tiny", 100)
    assert result.provenance["ended"] == "interrupted"
    assert result.policy is not None
    assert result.policy.weights["chance"].shape == (6, 3)


def test_versions_of_what_learns_are_told():
    """The same weights and random numbers may give other sums by another PyTorch."""
    pytest.importorskip("torch")
    assert "torch" in search(toy(), "colocrl", 4).provenance["versions"]
    assert "torch" not in search(toy(), "tiny", 40).provenance["versions"]
    assert "torch" not in search(toy(), "single").provenance["versions"]


def test_a_learner_without_pytorch_is_refused_before_anything_is_evaluated(monkeypatch):
    monkeypatch.setitem(METHODS, "tiny", replace(METHODS["tiny"], torch=True))
    monkeypatch.setattr(learners, "find_spec", lambda name: None)
    counts = list[int]()
    for warm in ("auto", "greedy"):
        with pytest.raises(InputError, match=r"^tiny needs PyTorch: "):
            search(toy(), "tiny", 40, warm=warm, progress=counts.append)
    assert not counts


def test_importing_searches_loads_nothing_that_only_learners_need():
    names = ("torch", "safetensors", "gymnasium", "matplotlib", "pandas", "joblib")
    code = f"import sys, simdev.search; print(*(name for name in {names} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("post", "kl=1e308", r"kl must be at most 1e\+30"),
        ("post", "kl=1e9", "too large or too small"),
        ("post", "explore=5", "explore must be at most 1,"),
        ("brkga", "elite=1e308", "elite must be at most 1,"),
        ("colocrl", "temperature=1e-308", "too large or too small"),
        ("colocrl", "bound=1e9", r"bound must be at most 1e\+06"),
    ],
)
def test_settings_that_lead_to_no_finite_numbers_are_refused(method, settings, reason):
    with pytest.raises(InputError, match=rf"^settings: {reason}"):
        search(toy(), method, 40, settings=settings)


def test_more_controllers_than_samples_are_as_many_as_these():
    few, many = (
        search(toy(), "colocrl", 20, settings=f"hidden=8,samples=4,controllers={count}")
        for count in (4, 9)
    )
    assert few.points[-1].step_ps == many.points[-1].step_ps
    assert few.provenance["evaluations"] == many.provenance["evaluations"]


@pytest.mark.parametrize("option", [{"train": False}, {"policy": "p"}])
def test_a_learner_without_a_policy_takes_no_option_of_them(option):
    with pytest.raises(InputError, match=rf"^{next(iter(option))}: brkga learns no policy$"):
        search(toy(), "brkga", 20, **option)


def test_numbers_of_jobs_may_be_of_numpy():
    assert search(toy(), "post", 20, n_jobs=np.int64(1)).provenance["evaluations"] == 20
    with pytest.raises(InputError, match=r"not 0, got np\.int64"):
        search(toy(), "post", 20, n_jobs=np.int64(0))


@pytest.mark.parametrize("mode", ["eager", "graph", "none"])
def test_a_learner_places_ops_that_hosts_dispatch(mode):
    question = toy()
    cluster = replace(question.cluster, host=Host(mode, 2, "device", "3 ps"))
    oracle = Oracle(question.graph, cluster)
    result = search(oracle, "post", 40)
    assert result.points[-1].step_ps < result.points[0].step_ps
    assert confirm(oracle, result) == ()
