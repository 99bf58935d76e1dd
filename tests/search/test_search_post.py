"""Post: the closed forms of its two updates, and what it comes to where one of them is left out."""

from __future__ import annotations

from math import inf
from statistics import median

import numpy as np
import pytest
import torch

from forks import forks
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn import rules
from simdev.learn.post import Post, Settings, advantages, ascended, gradient, stepped
from simdev.nouns.graph import Graph
from simdev.nouns.taskgraph import Floats, Ints
from simdev.search import search
from simdev.search.policy import SavedPolicy
from simdev.search.sampling import frequencies, likeliest, sampled, uniform
from simdev.search.trial import Learning
from toys import RANDOM_MEDIAN, WITHIN, curve, optimum, toy, until_optima
from worlds.clusters import joined
from worlds.graphs import op

GROUPS, DEVICES, BATCH = 7, 3, 10


def surrogate(
    chance: Floats, old: Floats, placements: Ints, gains: Floats, clip: float, kl: float
) -> float:
    """The objective of which ``gradient`` is the slope, with ratios r = new chance / old chance of
    the devices that were drawn.
    """
    groups = np.arange(len(chance))
    ratio = chance[groups, placements] / old[groups, placements]
    gain = gains[:, None]
    least = np.minimum(ratio * gain, np.clip(ratio, 1.0 - clip, 1.0 + clip) * gain)
    is_old = old > 0
    divergence = float((old[is_old] * np.log(old[is_old] / chance[is_old])).sum())
    return float(least.sum() / len(placements)) - kl * divergence


def drawn(seed: int) -> tuple[Floats, Floats, Ints, Floats]:
    """A distribution, another one, placements drawn from the other, and their advantages. A device
    of the first group is not allowed.
    """
    random = np.random.default_rng(seed)
    allowed = np.ones((GROUPS, DEVICES), np.bool_)
    allowed[0, 1] = False
    even = uniform(allowed)
    new, old = (stepped(even, random.normal(size=even.shape) * size, 1.0) for size in (0.9, 0.7))
    rows = sampled(old, random.random((BATCH, GROUPS)))
    return new, old, rows, advantages(random.random(BATCH))


def objective(
    logits: torch.Tensor, old: Floats, rows: Ints, gains: Floats, clip: float, kl: float
) -> torch.Tensor:
    """The objective by the functions of torch: the mean of placements, the sum over groups."""
    new, before = torch.distributions.Categorical(logits=logits), torch.tensor(old)
    log_old = torch.log(before[range(len(old)), rows])
    ratio = torch.exp(new.log_prob(torch.tensor(rows)) - log_old)
    gain = torch.tensor(gains)[:, None]
    least = torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    known = torch.distributions.Categorical(probs=before)
    return least.sum(1).mean() - kl * torch.distributions.kl_divergence(known, new).sum()


def logits_of(chance: Floats) -> torch.Tensor:
    return torch.tensor(np.log(np.maximum(chance, 1e-300)), requires_grad=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("clip", "kl"), [(0.2, 0.0), (0.2, 0.7), (1e9, 0.7)])
def test_the_gradient_in_closed_form_is_that_of_autograd(seed, clip, kl):
    new, old, rows, gains = drawn(seed)
    logits = logits_of(new)
    value = objective(logits, old, rows, gains, clip, kl)
    value.backward()
    assert surrogate(new, old, rows, gains, clip, kl) == pytest.approx(value.item())
    slope = gradient(new, old, rows, gains, clip, kl)
    assert slope == pytest.approx(logits.grad.numpy(), abs=1e-12)
    assert np.abs(slope).max() > 0.01
    assert slope.sum(axis=1) == pytest.approx(0, abs=1e-12)
    assert slope[0, 1] == 0


def test_steps_on_chances_are_steps_on_logits():
    _, old, rows, gains = drawn(5)
    logits = logits_of(old)
    for _ in range(10):
        (slope,) = torch.autograd.grad(objective(logits, old, rows, gains, 0.2, 0.1), logits)
        logits = (logits + 0.8 * slope).detach().requires_grad_()
    chance = ascended(old, rows, gains, 10, 0.8, 0.2, 0.1)
    assert chance == pytest.approx(torch.softmax(logits, 1).detach().numpy(), abs=1e-12)
    assert np.abs(chance - old).max() > 0.05
    before = surrogate(old, old, rows, gains, 0.2, 0.1)
    assert surrogate(chance, old, rows, gains, 0.2, 0.1) > before


def test_the_first_step_of_an_update_is_plain_policy_gradient():
    """The ratios are 1 then, so that nothing is clipped."""
    _, old, rows, gains = drawn(6)
    logits = logits_of(old)
    log_chance = torch.log_softmax(logits, 1)[np.arange(GROUPS), rows].sum(1)
    (torch.tensor(gains) * log_chance).mean().backward()
    slope = gradient(old, old, rows, gains, 0.2, 0.0)
    assert slope == pytest.approx(logits.grad.numpy(), abs=1e-12)


def test_advantages_have_no_scale_and_none_where_all_are_equal():
    gains = advantages(np.array([3.0, 1.0, 2.0]))
    assert gains == pytest.approx([-(1.5**0.5), 1.5**0.5, 0])
    assert advantages(np.array([30.0, 10.0, 20.0]) + 7) == pytest.approx(gains)
    assert not advantages(np.full(7, 0.1)).any()


# What it comes to with one of its updates


class Listed(Oracle):
    """Remembers what it is asked."""

    def __init__(self, *nouns: object) -> None:
        super().__init__(*nouns)
        self.asked_for: list[tuple[int, ...]] = []

    def __call__(self, strategy):
        self.asked_for.append(tuple(np.asarray(strategy).tolist()))
        return super().__call__(strategy)


def chains() -> Listed:
    """Twelve ops in three chains on three devices."""
    ops = [op(f"o{i}", 3 + i % 4, *([f"o{i - 3}"] if i > 2 else []), size=2) for i in range(12)]
    cluster = joined(3)
    return Listed(Graph("chains", tuple(ops)), cluster)


def test_without_proximal_updates_it_is_the_cross_entropy_method_placement_by_placement():
    asked_by = {}
    for method, options in {
        "cross-entropy": {},
        "post": {"settings": "published,steps=0", "warm": "random"},
    }.items():
        oracle = chains()
        result = search(oracle, method, 400, seed=3, prepare=[], **options)
        asked_by[method] = oracle.asked_for, result.provenance["evaluations"]
    assert asked_by["post"] == asked_by["cross-entropy"]
    assert len(asked_by["post"][0]) > 350


def test_without_cross_entropy_steps_it_is_tabular_proximal_policy_optimisation():
    """Written once more by autograd: the same distribution after two dozen updates."""
    oracle, budget = chains(), 250
    settings = {"elite": 0, "rate": 0.5, "kl": 0.05}
    result = search(oracle, "post", budget, seed=4, prepare=[], warm="random", settings=settings)
    plain, random = chains(), np.random.default_rng(4)
    single = plain(np.zeros(12, np.int64)).step_ps
    logits, seen = torch.zeros((12, 3), dtype=torch.float64), {(0,) * 12}
    while len(seen) < budget:
        old = torch.softmax(logits, 1).numpy()
        rows, costs = sampled(old, random.random((10, 12))), []
        for row in rows:
            if len(seen) < budget:
                seen.add(tuple(row.tolist()))
                costs.append((plain(row).step_ps / single) ** 0.5)
        if len(costs) < 10:
            break
        gains = (np.mean(costs) - np.array(costs)) / np.std(costs)
        for _ in range(10):
            logits.requires_grad_()
            value = objective(logits, old, rows, gains, 0.2, 0.05)
            (slope,) = torch.autograd.grad(value, logits)
            logits = (logits + 0.5 * slope).detach()
    assert result.policy.weights["chance"] == pytest.approx(torch.softmax(logits, 1).numpy())
    assert result.policy.weights["chance"].max() > 0.9


# Searches


def test_the_optimum_of_a_toy_is_met_sooner_than_by_random_search():
    """One seed in sixty ends before, without doubt about another placement."""
    used = [inf if count is None else count for count in until_optima("post")]
    assert median(used) < min(RANDOM_MEDIAN, WITHIN)
    assert used.count(inf) <= 1


@pytest.mark.parametrize("warm", ["auto", "random", "greedy"])
def test_a_seed_decides(warm):
    runs = [
        search(forks(5), "post", 150, seed=3, prepare=[], warm=warm, n_jobs=jobs)
        for jobs in (None, 1)
    ]
    curves = [curve(run) for run in runs]
    assert curves[0] == curves[1]
    assert (runs[0].policy.weights["chance"] == runs[1].policy.weights["chance"]).all()


def test_where_a_device_has_little_memory_it_ends_with_what_fits():
    found = search(toy(least=15), "post", WITHIN, prepare=[], warm="random")
    assert found.cost.feasible
    assert found.cost.step_ps == optimum(least=15)[0]


def test_what_it_imitates_is_left_by_a_few_groups_only(trial_of):
    """Of 300: so many at the beginning, and no more by the uniform share after a cross-entropy
    step.
    """
    ops = tuple(op(f"o{i}", 1 + i % 7) for i in range(300))
    cluster = joined(4)
    oracle = Oracle(Graph("loads", ops), cluster)
    start = np.arange(300) % 4
    trial = trial_of(oracle)
    trial.learning = Learning(Settings(), warm=start)
    begun = Post(trial)
    random = np.random.default_rng(0)

    def apart() -> float:
        rows = sampled(begun.chance, random.random((500, 300)))
        return float((rows != likeliest(begun.chance)).sum(axis=1).mean())

    assert likeliest(begun.chance).tolist() == start.tolist()
    assert apart() == pytest.approx(3, abs=0.3)
    begun.round()
    assert apart() < 3 + 300 * 0.03


def test_it_ends_where_nothing_new_is_sampled():
    """A distribution without doubt, and nothing mixed in."""
    chance = frequencies(np.zeros((1, 7), np.int64), 2)
    oracle = forks()
    saved = search(oracle, "post", 20, prepare=[]).policy
    sure = SavedPolicy("post", 0, 2, 7, saved.graph, {"explore": 0}, {"chance": chance})
    for train in (True, False):
        found = search(oracle, "post", 50, prepare=[], policy=sure, train=train)
        assert found.provenance["ended"] == "done"
        assert found.provenance["evaluations"] <= 2


def test_a_saved_distribution_goes_on_and_can_be_judged_without_learning():
    first = search(toy(), "post", 300, prepare=[])
    sure = likeliest(first.policy.weights["chance"])
    again = search(toy(), "post", 40, prepare=[], policy=first.policy, train=False)
    assert again.policy.weights["chance"] == pytest.approx(first.policy.weights["chance"])
    assert again.cost.step_ps <= toy()(sure).step_ps
    on = search(toy(), "post", 40, prepare=[], policy=first.policy)
    assert on.policy.weights["chance"] != pytest.approx(first.policy.weights["chance"])


def test_what_is_judged_without_learning_is_the_policy_and_no_single_device():
    """Of three devices, none of which is as good or as bad as this placement."""
    chance = frequencies(np.array([[0, 1, 2, 0, 1, 2]]), 3)
    saved = search(toy(), "post", 20, prepare=[]).policy
    sure = SavedPolicy("post", 0, 3, 6, saved.graph, {}, {"chance": chance})
    for budget in (1, 50):
        judged = search(toy(), "post", budget, prepare=[], policy=sure, train=False)
        assert judged.provenance["evaluations"] == 1
        assert judged.cost.step_ps == toy()([0, 1, 2, 0, 1, 2]).step_ps


def test_the_objective_is_that_of_networks():
    """One formula in two languages: by logarithms in torch, by chances here."""
    new, old, rows, gains = drawn(0)
    groups = range(GROUPS)
    logs = [torch.tensor(np.log(chance[groups, rows])) for chance in (new, old)]
    value = rules.surrogate(*logs, torch.tensor(gains), 0.2)
    assert surrogate(new, old, rows, gains, 0.2, 0.0) == pytest.approx(value.item())


def test_what_contradicts_is_refused():
    with pytest.raises(InputError, match="samples must be a multiple of batch, got 50 and 7"):
        search(forks(), "post", 20, prepare=[], settings={"batch": 7, "samples": 50})
    kept = search(forks(), "post", 20, prepare=[]).policy
    even = np.full((7, 2), 0.5)
    tables = [np.ones((7, 3)), even * np.nan, even * 1e308, even.astype(complex), even.astype(str)]
    for weights in ({}, *({"chance": table} for table in tables)):
        wrong = SavedPolicy("post", 0, 2, 7, kept.graph, {}, weights)
        with pytest.raises(InputError, match="policy: must hold chances 7 x 2"):
            search(forks(), "post", 20, prepare=[], policy=wrong)
