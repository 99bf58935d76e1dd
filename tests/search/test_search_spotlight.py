"""Spotlight: stages, PPO by stage, and what it finds on questions with a known answer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn import rules, seq2seq, training
from simdev.learn.rules import FAILING
from simdev.learn.seq2seq import ByStage
from simdev.learn.settings import SpotlightSettings as Settings
from simdev.nouns.cluster import Cluster, Link
from toys import RANDOM_MEDIAN, WITHIN, curve, optimum, toy, unprepared, until_optima

QUICK = {"hidden": 16, "embedding": 8, "rate": 0.02}
SMALL = {"hidden": 8, "embedding": 4, "samples": 6, "rate": 0.02}
searched = partial(unprepared, "spotlight", settings=SMALL, warm="random")


@pytest.fixture
def batches(monkeypatch) -> list[dict[str, Any]]:
    """What the rule is handed in each batch: its signals, and both log-probabilities by epoch."""
    seen: list[dict[str, Any]] = []
    advantages, loss = ByStage.advantages, ByStage.loss

    def spy_advantages(self: ByStage, signals: np.ndarray) -> np.ndarray:
        seen.append({"signals": signals, "new": [], "old": []})
        return advantages(self, signals)

    def spy_loss(self: ByStage, new: torch.Tensor, old: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen[-1]["new"].append(new.detach().clone())
        seen[-1]["old"].append(old.clone())
        return loss(self, new, old, *rest)

    monkeypatch.setattr(rules.ByStage, "advantages", spy_advantages)
    monkeypatch.setattr(rules.ByStage, "loss", spy_loss)
    return seen


def test_the_optimum_is_met_before_random_search_would():
    met = until_optima("spotlight", WITHIN // 2, warm="random", settings=QUICK)
    assert None not in met
    assert median(met) < RANDOM_MEDIAN / 2


def test_old_probabilities_stay_fixed_inside_a_batch(batches):
    searched(toy(), 30)
    assert len(batches) > 3
    for batch in batches:
        assert len(batch["old"]) == len(batch["new"]) == Settings().epochs > 1
        assert torch.equal(batch["new"][0], batch["old"][0])  # the first epoch's ratios are 1
        assert all(torch.equal(old, batch["old"][0]) for old in batch["old"])
        assert not torch.equal(batch["new"][-1], batch["old"][-1])
    # The next batch is judged by the policy that sampled it.
    assert not torch.equal(batches[1]["old"][0], batches[0]["old"][0])
    assert batches[0]["old"][0].shape == (SMALL["samples"], 6)


def test_placements_that_cannot_be_are_part_of_their_batch(batches):
    """No route joins "even" and "right": most random placements cannot be."""
    whole = toy()
    links = (Link(("even", "left"), 10**12),)
    cluster = Cluster("torn", whole.cluster.devices, links)
    result = searched(Oracle(whole.graph, cluster), 60)
    assert result.details["impossible"]["placements"] > 10
    assert all(len(batch["signals"]) == SMALL["samples"] for batch in batches)
    failing = [(batch["signals"] == FAILING).mean() for batch in batches]
    assert failing[0] > 0.3
    assert np.mean(failing[-3:]) < 0.6 * np.mean(failing[:3])  # and it learns from them
    assert np.isfinite(result.cost.seconds)


def test_it_ends_with_what_fits(batches):
    """Of the six ops only one fits on "left", to which the fastest placement sends three."""
    result = searched(toy(least=15), 120)
    assert result.cost.feasible
    assert result.cost.step_ps <= 1.1 * optimum(least=15)[0]
    # What does not fit is slower, not failing: how far it is from fitting is told.
    assert len(np.unique(batches[0]["signals"])) == SMALL["samples"]
    assert batches[0]["signals"].max() < FAILING


def test_the_same_seed_gives_the_same_curve():
    curves = [curve(searched(toy(), 40, seed)) for seed in (1, 1, 2)]
    assert curves[0] == curves[1] != curves[2]


def test_a_warm_start_is_imitated_and_improved():
    result = searched(toy(), 100, warm="m-etf")
    details = result.details
    assert details["warm"]["beginning"] == "m-etf"
    assert details["imitation"]["differing"] <= Settings().differing
    assert result.cost.seconds < details["warm"]["imitated_s"]


def test_advantages_by_hand():
    rule = ByStage(Settings(decay=0.5))
    assert rule.advantages(np.array([1.0, 3.0])).tolist() == [1.0, -1.0]  # the first mean: 2
    assert rule.advantages(np.array([0.0, 8.0])).tolist() == [0.5, -1.5]  # 2, and 4 apart
    assert rule.advantages(np.array([3.0, 3.0])).tolist() == [0.0, 0.0]  # nothing is better
    plain = ByStage(Settings(decay=0.5, normalised=False))
    assert plain.advantages(np.array([0.0, 8.0])).tolist() == [4.0, -4.0]
    assert plain.advantages(np.array([5.0, 5.0])).tolist() == [-1.0, -1.0]


def test_settings_reach_the_network_and_the_training(monkeypatch):
    seen: list[tuple[Any, ...]] = []
    loop = training.Loop.__init__

    def spy(self: training.Loop, *given: Any) -> None:
        loop(self, *given)
        seen.append((self, *given))

    monkeypatch.setattr(training.Loop, "__init__", spy)
    settings = replace(Settings(), hidden=8, attention="additive", samples=7, norm=0.5)
    searched(toy(), 20, settings=settings)
    ((started, _, policy, _, norm, overflow_fails),) = seen
    assert policy.placer.decoder.hidden_size == 8
    assert isinstance(policy.placer.attention, seq2seq.Additive)
    assert sum(map(len, started._shares)) == 7
    assert (norm, overflow_fails) == (settings.norm, False)
    assert norm != settings.clip
    assert (Settings.published().hidden, Settings.published().attention) == (512, "additive")
    with pytest.raises(InputError, match="hidden"):
        searched(toy(), 10, settings="hidden=0")
