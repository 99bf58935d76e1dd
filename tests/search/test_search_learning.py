"""Policies, their training and what is kept of them, on questions small enough to enumerate."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from simdev.ground.errors import InputError
from simdev.learn.policy import BARRED, Policy, chosen, entropies, inverse, likeliest
from simdev.learn.rules import Reinforce
from simdev.learn.seq2seq import Seq2Seq, inputs_of
from simdev.learn.settings import PlacerSettings
from simdev.learn.training import Controller, imitate, keep, set_weights, weights_of
from simdev.search import search
from simdev.search.features import features_of
from simdev.search.policy import SavedPolicy
from simdev.search.trial import Budget, Learning
from toys import toy


class Tabular(Policy):
    """Independent choices: a softmax over logits u [G, D] for each group, all 0 at first."""

    def __init__(self, allowed: np.ndarray) -> None:
        super().__init__(allowed)
        self.logits = torch.nn.Parameter(torch.zeros(self.groups, self.devices))

    def _masked(self) -> torch.Tensor:
        return self.logits.masked_fill(~self.allowed, BARRED)

    def forward(self, placements: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [n, G, D], the same for all n placements."""
        return self._masked().log_softmax(-1).expand(len(placements), -1, -1)

    def _sampled(self, uniforms: torch.Tensor) -> torch.Tensor:
        chances = self._masked().softmax(-1).expand(len(uniforms), -1, -1)
        return inverse(chances, uniforms)

    def _decoded(self) -> torch.Tensor:
        return likeliest(self._masked())


ALL = torch.tensor(list(product(range(2), repeat=3)))  # of 3 groups on 2 devices
SIGNALS = np.array([1.0, 0.8, 1.3, 1.1, 0.9, 1.7, 1.2, 1.05])


def toy_policy(attention: str = "dot", barred: bool = False, loud: float = 1.5) -> Seq2Seq:
    """A network for the toy's 6 groups on 3 devices, whose distributions are far from even."""
    allowed = np.ones((6, 3), np.bool_)
    if barred:
        allowed[2, 0] = allowed[4, 1:] = False
    groups = features_of(toy())
    settings = PlacerSettings(8, 4, attention, 2.0, forget=0.0, bound=5.0)
    policy = Seq2Seq(inputs_of(groups), allowed, settings, seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(loud)
    return policy


def tabular(groups: int = 3, devices: int = 2) -> Tabular:
    policy = Tabular(np.ones((groups, devices), np.bool_))
    with torch.no_grad():
        policy.logits.copy_(torch.linspace(-1.0, 1.0, groups * devices).view(groups, devices) ** 2)
    return policy.double()


def gradient(policy: Policy, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, policy.parameters())])


def test_reinforce_follows_the_gradient_of_the_expected_signal():
    """All 8 placements, each weighed by its chance: the mean of the estimates is the slope of the
    expected signal by every logit, worked out by hand.
    """
    policy = tabular()
    log_chosen = chosen(policy(ALL), ALL)
    chance = log_chosen.sum(1).exp().detach()
    assert chance.sum().item() == pytest.approx(1.0)
    weighed = 8 * chance * (1.0 - torch.from_numpy(SIGNALS))  # the loss takes the mean of 8
    rule = Reinforce(decay=0.9, entropy=0.0, failing_updates=0)
    loss = rule.loss(log_chosen, log_chosen.detach(), entropies(policy(ALL)), weighed)
    estimated = gradient(policy, loss).view(3, 2)
    expected = float(chance.numpy() @ SIGNALS)
    marginal = policy.logits.softmax(-1)
    for group, device in product(range(3), range(2)):
        here = (ALL[:, group] == device).numpy()
        given = float((chance.numpy()[here] @ SIGNALS[here]) / chance.numpy()[here].sum())
        slope = marginal[group, device].item() * (given - expected)
        assert estimated[group, device].item() == pytest.approx(slope, abs=1e-12)


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_the_networks_gradient_is_that_of_the_expected_signal(attention: str):
    policy = toy_policy(attention, loud=1.0).double()
    rows = torch.tensor(list(product(range(3), repeat=6)))
    signals = torch.from_numpy(np.random.default_rng(0).random(len(rows)) + 0.5)
    log_chosen = chosen(policy(rows), rows)
    chance = log_chosen.sum(1).exp()
    assert chance.sum().item() == pytest.approx(1.0)
    exact = gradient(policy, (chance * signals).sum())
    log_chosen = chosen(policy(rows), rows)
    weighed = len(rows) * chance.detach() * (0.7 - signals)
    rule = Reinforce(decay=0.9, entropy=0.0, failing_updates=0)
    loss = rule.loss(log_chosen, log_chosen.detach(), torch.zeros(1), weighed)
    torch.testing.assert_close(gradient(policy, loss), exact, rtol=1e-6, atol=1e-9)
    assert exact.abs().max() > 1e-4


def test_the_baseline_moves_and_failing_placements_train_at_first_only():
    rule = Reinforce(decay=0.5, entropy=0.0, failing_updates=2)
    assert rule.advantages(np.array([1.0, 3.0])).tolist() == [1.0, -1.0]  # the first mean
    assert rule.advantages(np.array([10.0, 2.0])).tolist() == [-8.0, 0.0]
    # From now on what fails does not count, and the baseline begins anew.
    assert rule.advantages(np.array([10.0, 2.0, 4.0])).tolist() == [0.0, 1.0, -1.0]
    assert rule.advantages(np.array([10.0, 10.0])).tolist() == [0.0, 0.0]
    assert rule.advantages(np.array([2.0])).tolist() == [1.0]
    assert rule.advantages(np.array([2.0])).tolist() == [0.5]


def test_entropy_weighs_as_much_where_signals_differ_little():
    """Of signals a hundred times nearer to each other the loss is a hundredth, and so its slope."""
    policy, rule = tabular(), Reinforce(decay=0.9, entropy=2.0, failing_updates=0)
    slopes = []
    for scale in (1.0, 0.01):
        log_chances = policy(ALL)
        log_chosen = chosen(log_chances, ALL)
        gains = torch.from_numpy(scale * (1.1 - SIGNALS))
        loss = rule.loss(log_chosen, log_chosen.detach(), entropies(log_chances), gains)
        slopes.append(gradient(policy, loss))
    torch.testing.assert_close(slopes[1], 0.01 * slopes[0])
    alone = Reinforce(decay=0.9, entropy=0.0, failing_updates=0)
    loss = alone.loss(chosen(policy(ALL), ALL), torch.zeros(1), torch.zeros(1), gains)
    assert not torch.allclose(gradient(policy, loss), slopes[1])


@pytest.mark.parametrize("attention", ["dot", "additive"])
@pytest.mark.parametrize("barred", [False, True])
def test_samples_follow_the_chances_that_the_network_tells_at_once(attention: str, barred: bool):
    """At every stage the device is the one where the distribution function, by the log-chances
    given the devices before, passes the number that was drawn.
    """
    policy = toy_policy(attention, barred)
    uniforms = torch.from_numpy(np.random.default_rng(1).random((300, 6)))
    rows = policy.sample(uniforms)
    chances = policy(rows).detach().double().exp()
    assert chances.sum(-1).numpy() == pytest.approx(np.ones((300, 6)), abs=1e-6)
    ends = chances.cumsum(-1).gather(-1, rows.unsqueeze(-1)).squeeze(-1)
    begins = ends - chances.gather(-1, rows.unsqueeze(-1)).squeeze(-1)
    assert (uniforms <= ends + 1e-6).all()
    assert (uniforms >= begins - 1e-6).all()
    if barred:
        assert (rows[:, 2] != 0).all()
        assert (rows[:, 4] == 0).all()
    # The policy is worth the test: choices hang on those before them.
    assert chances.std(0).max() > 0.05
    assert 0.1 < chances.amax(-1).mean() < 0.95


def test_the_likeliest_placement_is_that_of_the_chances():
    policy = toy_policy().double()
    row = policy.decode()
    assert torch.equal(policy(row[None])[0].argmax(-1), row)
    assert Tabular(np.array([[False, True, True]])).decode().tolist() == [1]  # the first of equal


def test_chances_of_a_tabular_policy_are_independent():
    policy = tabular()
    rows = policy.sample(torch.from_numpy(np.random.default_rng(0).random((4000, 3))))
    frequencies = torch.stack([(rows == device).double().mean(0) for device in range(2)], 1)
    torch.testing.assert_close(frequencies, policy.logits.softmax(-1).detach(), atol=0.03, rtol=0)


def test_a_placement_is_imitated_until_few_groups_differ():
    policy, placement = toy_policy(loud=1.0), np.array([2, 0, 1, 1, 0, 2])
    imitated = imitate(Budget(), policy, placement, 0.03, 0.1)
    differing = imitated["differing"]
    assert 0 < imitated["updates"] < 300
    assert differing <= 0.1
    uniforms = torch.from_numpy(np.random.default_rng(2).random((500, 6)))
    away = (policy.sample(uniforms).numpy() != placement).sum(1).mean()
    # Where an early group differs the later ones are not bound to the placement any more: how much
    # that is depends on the weights at the beginning, hence on the number of kinds of ops.
    assert away == pytest.approx(differing, abs=0.15)


def test_controllers_take_the_weights_that_they_are_sent():
    """And answer the same whatever they were asked before, as other processes would."""
    first, second = toy_policy(), toy_policy(loud=1.0)
    weights, rule = weights_of(first), Reinforce(0.9, 0.1, 0)
    uniforms, gains = np.random.default_rng(0).random((5, 6)), np.linspace(-1, 1, 5)
    answers = []
    for policy in (first, second):
        controller = Controller(policy, rule)
        rows = controller.sample(weights, uniforms)
        slope, before = controller.gradient(weights, rows, None, gains)
        again, _ = controller.gradient(weights, rows, before, gains)
        assert np.array_equal(slope, again)
        answers.append((rows, slope))
    assert np.array_equal(answers[0][0], answers[1][0])
    assert np.array_equal(answers[0][1], answers[1][1])
    assert np.abs(answers[0][1]).max() > 0
    set_weights(second, 2 * weights)
    assert np.array_equal(weights_of(second), 2 * weights)


def test_networks_leave_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = toy_policy(), toy_policy()
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(weights_of(first), weights_of(second))


@pytest.mark.parametrize("table", [[np.nan, 1], [1, -np.inf], [1e300, 0], ["a", "b"], [1j, 0]])
def test_weights_that_are_no_finite_numbers_are_refused(table, trial_of):
    """By a policy that has taken over none of them."""
    policy, trial = Tabular(np.ones((1, 2), np.bool_)), trial_of(toy())
    kept = SavedPolicy("tabular", 0, 2, 1, "", {}, {"logits": np.array([table])})
    trial.learning = Learning(policy=kept)
    with pytest.raises(InputError, match=r"^policy: logits must hold finite numbers"):
        keep("tabular", trial, policy)
    assert not weights_of(policy).any()


def test_entropies_weigh_less_as_the_budget_is_used_up(monkeypatch):
    """Linearly, by what is left of it."""
    weights, gradient = [], Controller.gradient

    def spy(self, *arguments):
        weights.append(arguments[4])
        return gradient(self, *arguments)

    monkeypatch.setattr(Controller, "gradient", spy)
    search(toy(), "colocrl", 43, warm="random", settings={"samples": 10, "decodes": 9})
    assert 0.6 < weights[0] < 0.8  # after what is evaluated before
    assert 0 <= weights[-1] < 10 / 43
    # An update evaluates its samples, but for those that were evaluated before.
    assert ((np.diff(weights) > -11 / 43) & (np.diff(weights) < 0)).all()


@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_a_policy_works_wholly_on_the_device_where_it_is(attention):
    """On PyTorch's device without data: what mixed it with the CPU would raise."""
    policy = toy_policy(attention).to("meta")
    log_chosen, spread = policy.judge(torch.zeros(5, 6, dtype=torch.int64, device="meta"))
    rows = policy.sample(torch.zeros(5, 6, dtype=torch.float64, device="meta"))
    assert log_chosen.shape == spread.shape == rows.shape == (5, 6)
    assert {part.device.type for part in (log_chosen, spread, rows)} == {"meta"}


def test_a_gpu_that_is_not_there_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"^settings: device is cuda, and PyTorch sees no GPU"):
        search(toy(), "colocrl", 20, settings="device=cuda")
