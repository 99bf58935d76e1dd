"""Placeto does what its paper says, on questions whose answers are known."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import log
from statistics import median

import numpy as np
import pytest

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn.settings import PlacetoSettings as Settings
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import search
from simdev.search.features import Nodes, features_of
from toys import RANDOM_MEDIAN, toy, until_optima
from worlds.clusters import joined

torch = pytest.importorskip("torch")
from simdev.learn.placeto import learner as placeto  # noqa: E402
from simdev.learn.placeto import network  # noqa: E402

TINY = {"hidden": 4, "rounds": 1, "episodes": 2, "refresh": 2, "epochs": 1, "parts": 1}


def chain(groups: int) -> Oracle:
    """Ops one after another on three devices, every third with two inputs."""
    ops = [
        Op(
            f"o{i}",
            inputs=tuple(f"o{k}" for k in {i - 1, i - 3 if i % 3 == 0 else i - 1} if k >= 0),
            outputs=(Tensor(i % 7),),
            time=f"{i % 5 + 1} ps",
        )
        for i in range(groups)
    ]
    devices = [Device(f"d{i}", "alike") for i in range(3)]
    return Oracle(Graph("chain", tuple(ops)), joined(devices))


def permuted(nodes: Nodes, order: np.ndarray) -> Nodes:
    """A graph with its groups renumbered: the first is what was ``order[0]``."""
    number = np.argsort(order)
    rows = {
        name: getattr(nodes, name)[order] for name in ("seconds", "able", "output_bytes", "order")
    }
    return replace(nodes, **rows, source=number[nodes.source], target=number[nodes.target])


def chances(
    nodes: Nodes, devices: np.ndarray, groups: np.ndarray, **settings: object
) -> np.ndarray:
    """What the first weights say of the visited groups [n, D]."""
    chosen = Settings(**settings)
    policy = network.PlacetoNetwork(3, chosen, seed=1)
    visited = torch.zeros(1, 1, len(nodes))
    rows = torch.from_numpy(devices)[None, None], visited, torch.from_numpy(groups)[None]
    graph = network.structure_of(nodes, chosen.pooling == "mean")
    with torch.no_grad():
        return policy(graph, network.States(*rows))[0, 0].numpy()


@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_renumbered_groups_get_the_same_chances(pooling: str):
    nodes, random = features_of(chain(20)), np.random.default_rng(0)
    devices, order = random.integers(3, size=20), random.permutation(20)
    visited = np.array([4, 11, 19])
    there = np.argsort(order)[visited]
    settings = {"pooling": pooling, "stay": 0.5}
    before = chances(nodes, devices, visited, **settings)
    after = chances(permuted(nodes, order), devices[order], there, **settings)
    assert np.abs(before - after).max() < 1e-4
    assert np.ptp(before, axis=0).max() > 1e-4  # groups differ


def test_the_same_weights_place_twenty_groups_and_five_hundred():
    small, large = (
        chances(features_of(chain(count)), np.zeros(count, np.int64), np.array([count // 2]))
        for count in (20, 500)
    )
    assert small.shape == large.shape == (1, 3)
    assert np.isfinite(large).all()
    assert abs(np.exp(large).sum() - 1) < 1e-5


def test_returns_are_what_the_step_gains_until_the_end():
    values = np.random.default_rng(0).random((3, 9))
    gains = values[:, :-1] - values[:, 1:]
    assert np.allclose(placeto.returns(gains), values[:, :-1] - values[:, -1:])
    least = np.array([[min(row[i + 1 :]) for i in range(8)] for row in values])
    assert np.allclose(placeto.returns(gains, "best"), values[:, :-1] - least)
    by_hand = gains[:, 5] + 0.5 * gains[:, 6] + 0.25 * gains[:, 7]
    assert np.allclose(placeto.returns(gains, "end", 0.5)[:, 5], by_hand)


def test_the_baseline_is_the_mean_at_the_same_visit_of_the_last_episodes():
    baseline = placeto.Baseline(history=3)
    gained = np.arange(8.0).reshape(4, 2)
    assert np.allclose(baseline.advantages(gained[:1]), [[-0.5, 0.5]])
    assert np.allclose(baseline.advantages(gained[1:]), gained[1:] - gained[1:].mean(axis=0))


@pytest.mark.parametrize("undo", [False, True])
def test_an_episode_visits_every_group_and_its_gains_add_up(trial_of, undo: bool):
    settings = Settings(**TINY, start="first", undo=undo, stay=0.0, passes=2)
    trial = trial_of(toy())
    trial.learning = replace(trial.learning, settings=settings)
    learner = placeto.Placeto(trial)
    task = learner.task(trial)
    played = learner.sample(task)
    assert np.concatenate(task.visits).tolist() == [*task.structure.order] * 2
    assert played.gains.shape == (2, 12)
    begun = toy()(np.zeros(6, np.int64)).step_ps
    for episode, gains in enumerate(played.gains):
        last = played.states.devices[-1, episode].numpy().copy()
        bad = log(trial.score_once(last).step_ps / begun) + log(begun / task.reference)
        # The gains so far lead to where the last moment began: what is taken back counts as none.
        assert bad == pytest.approx(log(begun / task.reference) - gains[:-2].sum())
        assert bad <= log(begun / task.reference) or not undo


def test_an_episode_that_teaches_nothing_is_evaluated_less_often(trial_of):
    counts = []
    for every in (1, 2):
        trial = trial_of(toy())
        trial.learning = replace(trial.learning, settings=Settings(**TINY, every=every, stay=0.0))
        learner = placeto.Placeto(trial)
        task = learner.task(trial)
        before = trial.distinct
        played = learner.sample(task, every)
        counts.append(trial.distinct - before)
        assert np.any(played.gains[:, 1::2])
        assert every == 1 or not np.any(played.gains[:, ::2])
    assert counts[1] < counts[0]


def test_with_one_epoch_in_one_part_the_gradient_is_reinforces(trial_of):
    settings = Settings(**TINY, entropy=0.0)
    trial = trial_of(toy())
    trial.learning = replace(trial.learning, settings=settings)
    learner = placeto.Placeto(trial)
    task = learner.task(trial)
    played = learner.sample(task)
    gained = torch.rand(played.devices.shape)
    learner._loss(task, played, gained, torch.arange(3), 0.0).backward()
    climbed = [weight.grad.clone() for weight in learner.network.parameters()]
    learner.adam.zero_grad()
    log_chances = learner.network(task.structure, played.states)
    log_chosen = log_chances.gather(-1, played.devices[..., None])[..., 0]
    (-(log_chosen * gained).mean()).backward()
    for weight, gradient in zip(learner.network.parameters(), climbed, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-6)


def test_it_meets_the_optimum_of_the_toy_before_random_search():
    met = until_optima("placeto", 150, warm="random", settings=TINY | {"refresh": 6, "episodes": 4})
    assert None not in met
    assert median(met) < RANDOM_MEDIAN / 2


def test_a_policy_is_tied_to_the_number_of_devices_alone():
    result = search(toy(), "placeto", 20, prepare=(), settings=TINY)
    assert result.policy.graph == ""
    assert result.policy.settings == asdict(Settings(**TINY))
    again = search(chain(30), "placeto", 20, policy=result.policy, train=False)
    assert again.provenance["evaluations"] == 20
    devices = [Device(f"d{i}", "alike") for i in range(2)]
    two = Oracle(chain(5).graph, joined(devices))
    with pytest.raises(InputError, match=r"^policy: places on 3 devices; there are 2$"):
        search(two, "placeto", 20, policy=result.policy)


def test_the_same_seed_gives_the_same_curve():
    runs = [
        search(toy(), "placeto", 30, seed, prepare=(), settings=TINY | {"starts": True})
        for seed in (3, 3, 4)
    ]
    weights = [run.policy.weights["sent.weights.0"] for run in runs]
    assert runs[0].points[-1].step_ps == runs[1].points[-1].step_ps
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def test_a_warm_start_is_imitated_where_episodes_begin_elsewhere():
    options = TINY | {"start": "random", "differing": 1.0, "rate": 0.02, "stay": 0.0}
    result = search(toy(), "placeto", 60, prepare=(), warm="greedy", settings=options)
    assert result.details["imitation"]["differing"] <= 1.0


def test_published_settings_are_the_papers():
    published = Settings.published()
    assert (published.refresh, published.rounds, published.history) == (1, 8, 10)
    assert (published.discount, published.clip, published.epochs) == (1.0, 1.25, 1)
    result = search(toy(), "placeto", 12, prepare=(), settings="published,episodes=1")
    assert result.provenance["settings"]["scale"] == "linear"
