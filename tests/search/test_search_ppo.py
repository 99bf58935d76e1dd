"""Proximal policy optimisation by stage, on numbers that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from simdev.learn import rules
from simdev.learn.settings import SpotlightSettings


def tensor(*rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def sampled(placements: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [5, 3], placements [n, 5] and advantages [n]."""
    random = torch.Generator().manual_seed(7)
    logits = torch.randn(5, 3, generator=random, dtype=torch.float64).requires_grad_()
    devices = torch.randint(3, (placements, 5), generator=random)
    return logits, devices, torch.randn(placements, generator=random, dtype=torch.float64)


def chosen(logits: torch.Tensor, devices: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(1).expand(len(devices), -1, -1).gather(2, devices[..., None])[..., 0]


def loss(*arguments: torch.Tensor, entropy: float = 0.0, penalty: float = 0.0) -> torch.Tensor:
    settings = SpotlightSettings(clip=0.2, entropy=entropy, divergence=penalty)
    return rules.ByStage(settings).loss(*arguments)


def test_ratios_are_1_at_the_policy_that_sampled():
    logits, devices, advantages = sampled()
    log_chosen = chosen(logits, devices)
    ones = torch.ones(40, 5).double()
    assert torch.equal(rules.climbed(log_chosen, log_chosen, ones, 0.2), ones)
    assert rules.divergence(log_chosen, log_chosen) == 0
    gain = rules.surrogate(log_chosen, log_chosen, advantages, 0.2)
    assert gain.item() == pytest.approx(5 * advantages.mean().item())


def test_the_first_gradient_is_that_of_the_policy_gradient():
    logits, devices, advantages = sampled()
    log_chosen = chosen(logits, devices)
    zero = torch.zeros_like(log_chosen)
    (ours,) = torch.autograd.grad(
        loss(log_chosen, log_chosen, zero, advantages, penalty=0.5), logits
    )
    reinforce = -(advantages * chosen(logits, devices).sum(1)).mean()
    (theirs,) = torch.autograd.grad(reinforce, logits)
    torch.testing.assert_close(ours, theirs)
    assert ours.abs().max() > 0.01


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope"),
    [
        (1.5, 1.0, 1.2, 0.0),  # likelier than the bound, and better: no further
        (1.5, -2.0, -3.0, -3.0),  # likelier, though worse: all the way back
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -2.0, -1.6, 0.0),
        (1.1, 3.0, 3.3, 3.3),
        (0.9, -3.0, -2.7, -2.7),
    ],
)
def test_clipping_by_hand(ratio, advantage, gain, slope):
    old = tensor([math.log(0.4)])
    log_chosen = (old + math.log(ratio)).requires_grad_()
    result = rules.surrogate(log_chosen, old, tensor(advantage), 0.2)
    result.backward()
    assert result.item() == pytest.approx(gain)
    assert log_chosen.grad is not None
    assert log_chosen.grad.item() == pytest.approx(slope)  # d ratio / d log p is the ratio


def test_every_stage_has_its_ratio():
    """The product of 2 and 1/2 is 1: as one ratio nothing would be clipped."""
    old = tensor([-1.0, -1.0], [-1.0, -1.0])
    log_chosen = old + tensor([math.log(2), -math.log(2)], [0.0, 0.0])
    gain = rules.surrogate(log_chosen, old, tensor(1.0, 0.0), 0.2)
    assert gain.item() == pytest.approx((1.2 + 0.5) / 2)


def test_no_gradient_runs_through_the_old_policy():
    logits, devices, advantages = sampled()
    old, log_chosen = chosen(logits, devices), chosen(logits.detach(), devices)
    log_chosen.requires_grad_()
    zero = torch.zeros_like(old)
    loss(log_chosen, old, zero, advantages, penalty=1.0).backward()
    assert logits.grad is None


def test_the_divergence_is_that_of_the_distributions():
    """Weighted by how often the old policy chooses each device, it is KL(old || new)."""
    old, new = tensor([0.2, 0.5, 0.3])[0], tensor([0.4, 0.4, 0.2])[0]
    exact = (old * (old / new).log()).sum().item()
    terms = [rules.divergence(new[d].log()[None, None], old[d].log()[None, None]) for d in range(3)]
    assert sum(p * t.item() for p, t in zip(old.tolist(), terms, strict=True)) == pytest.approx(
        exact
    )
    assert all(term > 0 for term in terms)


def test_the_loss_counts_entropy_and_divergence():
    old = tensor([-1.0, -1.0])
    log_chosen, entropies = old + tensor([0.1, 0.0]), tensor([0.5, 0.25])
    gain = rules.surrogate(log_chosen, old, tensor(2.0), 0.2).item()
    kl = rules.divergence(log_chosen, old).item()
    total = loss(log_chosen, old, entropies, tensor(2.0), entropy=0.1, penalty=3.0)
    assert total.item() == pytest.approx(-gain - 0.1 * 0.375 + 3.0 * kl)
