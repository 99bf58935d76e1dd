"""The genetic algorithm: what keys stand for, how they breed, and what its searches come to."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from forks import forks, mixed
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.search import search
from simdev.search.brkga import Decoder, next_generation, offspring
from simdev.search.space import choices
from toys import RANDOM_MEDIAN, WITHIN, curve, optimum, toy, until_optima
from worlds.measured_gnmt import cluster, gnmt

ALLOWED = np.array([[True, False, True], [False, True, False], [True, True, True]])
DECODERS = ("share", "affinity")


@pytest.mark.parametrize("name", DECODERS)
def test_random_keys_are_random_placements_on_devices_that_are_allowed(name):
    decoder, random = Decoder(name, ALLOWED), np.random.default_rng(0)
    rows = decoder.placements(random.random((6000, 3, decoder.width)))
    often = (rows[..., None] == np.arange(3)).mean(axis=0)
    assert often == pytest.approx(ALLOWED / ALLOWED.sum(axis=1, keepdims=True), abs=0.03)
    assert not often[~ALLOWED].any()


def test_a_key_cuts_its_range_into_equal_parts():
    decoder = Decoder("share", ALLOWED)
    keys = np.array([[0.0, 0.0, 0.0], [0.49, 0.9, 0.34], [0.5, 0.5, 0.99]])[..., None]
    assert decoder.placements(keys).tolist() == [[0, 1, 0], [0, 1, 1], [2, 1, 2]]


@pytest.mark.parametrize("name", DECODERS)
def test_keys_of_a_placement_stand_for_it(name):
    decoder, random = Decoder(name, ALLOWED), np.random.default_rng(1)
    for row in ([0, 1, 0], [2, 1, 1], [2, 1, 2]):
        keys = decoder.keys(np.array(row), random)
        assert decoder.placements(keys[None])[0].tolist() == row
        assert ((keys >= 0) & (keys < 1)).all()


def test_children_have_each_key_of_one_of_their_parents_and_most_of_the_elite():
    elite, others = np.full((2, 1000, 1), 0.2), np.full((5, 1000, 1), 0.8)
    children = offspring(elite, others, 4, 0.7, np.random.default_rng(2))
    assert children.shape == (4, 1000, 1)
    assert set(np.unique(children)) == {0.2, 0.8}
    assert (children == 0.2).mean() == pytest.approx(0.7, abs=0.03)


def test_the_elite_survive_as_they_are_and_mutants_are_new():
    keys = np.random.default_rng(3).random((10, 50, 1))
    after = next_generation(keys, 3, 2, 0.7, np.random.default_rng(4))
    assert after.shape == keys.shape
    assert (after[:3] == keys[:3]).all()
    assert np.isin(after[3:8], keys).all()
    assert not np.isin(after[8:], keys).any()


# Searches


def test_the_optimum_of_a_toy_is_met_sooner_than_by_random_search():
    used = until_optima("brkga", settings="population=30")
    assert None not in used
    assert median(used) < min(RANDOM_MEDIAN, WITHIN)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_seed_decides_however_many_threads_there_are(decoder):
    runs = [
        search(
            forks(5), "brkga", 90, seed=3, prepare=[], n_jobs=jobs,
            settings={"population": 20, "decoder": decoder},
        )
        for jobs in (None, 1, 3)
    ]  # fmt: skip
    curves = [curve(run) for run in runs]
    assert curves[0] == curves[1] == curves[2]
    assert len({tuple(run.strategy.placement.items()) for run in runs}) == 1
    assert len({run.provenance["evaluations"] for run in runs}) == 1


def test_it_beats_random_search_on_a_measured_graph():
    oracle = Oracle(gnmt(), cluster("parallel"))
    steps = {
        method: median(
            search(oracle, method, 600, seed, prepare=["coplace"], **options).cost.step_ps
            for seed in range(3)
        )
        for method, options in {
            "random": {},
            "brkga": {"warm": "random", "settings": "population=30"},
        }.items()
    }
    assert steps["brkga"] < 0.97 * steps["random"]


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_it_imitates_is_in_the_first_population(decoder):
    """So nothing is worse, and two mutants in place of the rest cannot change that."""
    given = search(toy(), "annealing", 2000)
    assert given.cost.step_ps == optimum()[0]
    settings = {"population": 4, "elite": 0.25, "mutants": 0.5, "decoder": decoder}
    found = search(toy(), "brkga", 2010, prepare=[], warm="annealing:0.99", settings=settings)
    assert found.cost.step_ps == given.cost.step_ps
    assert found.details["warm"]["imitated_s"] == found.cost.seconds


def test_where_a_device_has_little_memory_it_ends_with_what_fits():
    found = search(toy(least=15), "brkga", WITHIN, prepare=[], warm="random")
    assert found.cost.feasible
    assert found.cost.step_ps < 1.1 * optimum(least=15)[0]


def test_groups_keep_to_devices_that_can_run_them():
    oracle = mixed()
    allowed = [devices.tolist() for devices in choices(oracle)]
    found = search(oracle, "brkga", 30, prepare=[])
    placed = [oracle.placement(found.strategy.placement)[members[0]] for members in oracle.groups]
    assert all(device in able for device, able in zip(placed, allowed, strict=True))


@pytest.mark.parametrize("settings", ["elite=0.7,mutants=0.3", "population=1"])
def test_a_population_without_children_is_refused(settings):
    with pytest.raises(InputError, match="must leave some of a population"):
        search(forks(), "brkga", 20, prepare=[], settings=settings)
