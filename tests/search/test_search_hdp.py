"""HDP does what its paper says, on questions whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pytest
import torch

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn.hdp import WIDTH, Hierarchical, Ops, bands, ops_of, pure
from simdev.learn.rules import FAILING, Reinforce
from simdev.learn.seq2seq import Seq2Seq, inputs_of
from simdev.learn.settings import HDPSettings as Settings
from simdev.learn.training import Controller, weights_of
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import search
from simdev.search.features import features_of
from simdev.search.space import allowed
from toys import RANDOM_MEDIAN, toy, until_optima
from worlds.clusters import joined

TINY = Settings(groups=3, grouping=4, homing=0.5, hidden=8, embedding=4, aligned=2.0, rate=0.02)
REINFORCE = Reinforce(decay=0.9, entropy=0.0, failing_updates=0)


def described(oracle: Oracle, scaled: bool = True) -> Ops:
    return ops_of(oracle, scaled)


def policy_of(oracle: Oracle, settings: Settings = TINY, loud: float = 1.5) -> Hierarchical:
    """A policy whose distributions are far from even."""
    ops = described(oracle, settings.rows == "scaled")
    policy = Hierarchical(ops, allowed(oracle), settings, seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(loud)
    return policy


def pair() -> Oracle:
    """Three ops, two of which must stand together, and one that can stand on "x" alone."""
    outputs = {"a": (Tensor(3, (1, 3)),), "b": (Tensor(4), Tensor(5, (5,)))}
    kinds = {"a": "relu", "b": "conv", "only": "tanh", "c": "conv", "d": "norm"}
    reads = {"b": ("a",), "only": ("b",), "c": ("only", "b"), "d": ("b", "a")}
    times = {"a": (1, 2), "b": (3, 1), "only": (1,), "c": (1, 1), "d": (2, 2)}
    ops = tuple(
        Op(
            name,
            kind=kind,
            inputs=reads.get(name, ()),
            outputs=outputs.get(name, (Tensor(1),)),
            time={on: f"{ps} ps" for on, ps in zip("xy", times[name], strict=False)},
            colocate="tied" if name in "cd" else None,
        )
        for name, kind in kinds.items()
    )
    devices = [Device("x", "x"), Device("y", "y")]
    return Oracle(Graph("pair", ops), joined(devices))


@pytest.mark.slow
def test_it_meets_the_optimum_of_the_toy_before_random_search():
    met = until_optima("hdp", warm="random")
    assert None not in met
    assert median(met) < RANDOM_MEDIAN


def test_it_meets_the_optimum_of_the_toy():
    assert until_optima("hdp", seeds=[3], warm="random") != [None]


def test_parameters_of_the_published_settings_have_the_codes_shapes():
    """Matrices of nn.LSTM are transposed, and each of the code's is cut in two."""
    oracle, settings = toy(), replace(Settings.published(), hidden=512)
    policy = Hierarchical(described(oracle, scaled=False), allowed(oracle), settings, seed=0)
    groups, devices, kinds = 6, 3, 1
    width = 2 * groups + kinds + 25
    encoder = {f"weight_ih_l0{way}": (1024, width) for way in ("", "_reverse")}
    encoder |= {f"weight_hh_l0{way}": (1024, 256) for way in ("", "_reverse")}
    shapes = {
        "grouper.inner.weight": (64, 46),
        "grouper.outer.weight": (groups, 64),
        **{f"placer.encoder.{name}": shape for name, shape in encoder.items()},
        "placer.encoder.forget": (),
        "placer.device.weight": (devices + 1, 512),  # the last is the go-embedding
        "placer.decoder.weight_ih_l0": (2048, 512),
        "placer.decoder.weight_hh_l0": (2048, 512),
        "placer.decoder.forget": (),
        "placer.attention.memory.weight": (512, 512),
        "placer.attention.state.weight": (512, 512),
        "placer.attention.score.weight": (1, 512),
        "placer.from_state.weight": (devices, 512),
        "placer.from_context.weight": (devices, 512),
    }
    parameters = dict(policy.named_parameters())
    assert {name: tuple(parameter.shape) for name, parameter in parameters.items()} == shapes
    assert parameters["placer.encoder.forget"] == parameters["placer.decoder.forget"] == 1.0
    paper = (settings.groups, settings.bound, settings.temperature, settings.samples)
    assert paper == (256, 5.0, 10.0, 4)
    assert (settings.placements, settings.rate, settings.clip) == (4, 0.1, 1.0)


def test_ops_are_described_by_type_shapes_and_neighbours():
    """ "only" has no choice, so it is neither placed nor anybody's neighbour."""
    oracle = pair()
    ops = described(oracle, scaled=False)
    assert [oracle.groups[group] for group in ops.where] == [(0,), (1,), (3, 4)]
    assert ops.kinds == 3
    assert ops.rows.shape == (3, WIDTH) == (3, 46)
    none = [-1.0] * 5
    shapes = ops.rows[:, 1:26].reshape(3, 5, 5).tolist()
    assert shapes[0] == [[1, 3, -1, -1, -1], none, none, none, none]
    assert shapes[1] == [[4, -1, -1, -1, -1], [5, -1, -1, -1, -1], none, none, none]
    near = ops.rows[:, 26:].reshape(3, 10, 2)[:, :3].tolist()
    assert near[0] == [[1, 1], [2, 1], [0, 0]]
    assert near[1] == [[0, -1], [2, 1], [0, 0]]
    assert near[2] == [[0, -1], [1, -1], [0, 0]]
    # "norm" is the longest of the two that stand together.
    assert [("conv", "norm", "relu")[kind] for kind in ops.kind] == ["relu", "conv", "norm"]
    scaled = described(oracle).rows
    assert np.abs(scaled).max() <= 1.0
    assert (scaled[:, 1:26] == -1).sum() == (ops.rows[:, 1:26] == -1).sum()


def test_groups_are_described_by_edges_types_and_shapes_in_columns_of_their_own():
    """The ops are a and b, and "c" with "d"; each row is divided by its maximum + 1."""
    policy = policy_of(pair(), replace(TINY, rows="raw", groups=2))
    rows = policy.described(torch.tensor([[0, 0, 1], [1, 1, 1]]))
    assert rows.shape == (2, 2, 2 + 2 + 3 + 25)
    sent, read, types, shapes = rows.double().split([2, 2, 3, 25], 2)
    # a and b: an edge between them and two to the others; 1 + 4, 3 and 5 are their extents.
    assert sent[0, 0].numpy() * 6 == pytest.approx([1, 2])
    assert read[0, 0].numpy() * 6 == pytest.approx([1, 0])
    assert types[0, 0].numpy() * 6 == pytest.approx([1, 0, 1])  # conv, norm, relu
    assert shapes[0, 0, :6].numpy() * 6 == pytest.approx([5, 3, 0, 0, 0, 5])
    # The others: nothing but the two edges, and two tensors of one byte.
    assert read[0, 1].numpy() * 3 == pytest.approx([2, 0])
    assert types[0, 1].numpy() * 3 == pytest.approx([0, 1, 0])
    assert not rows[1, 0].any()  # an empty group
    assert sent[1, 1, 1] == read[1, 1, 1]


def test_grouping_and_placement_are_one_sample_whose_gradient_is_that_of_the_expected_signal():
    """All 2^3 groupings x 3^2 placements of three ops, each weighed by its chance."""
    oracle = pair()
    policy = policy_of(oracle, replace(TINY, groups=2), loud=1.0).double()
    samples = torch.tensor(list(product(range(2), repeat=3 + 2)))
    log_chosen, _ = policy.judge(samples)
    chance = log_chosen.sum(1).exp()
    assert chance.sum().item() == pytest.approx(1.0)
    rows = policy.placements(samples)
    signals = torch.tensor([oracle(row).step_ps / 4.0 for row in rows.numpy()]).double()
    parameters = list(policy.parameters())
    exact = torch.autograd.grad((chance * signals).sum(), parameters)
    log_chosen, _ = policy.judge(samples)
    weighed = len(samples) * chance.detach() * (0.7 - signals)
    loss = REINFORCE.loss(log_chosen, log_chosen.detach(), torch.zeros(1), weighed)
    for estimated, slope in zip(torch.autograd.grad(loss, parameters), exact, strict=True):
        torch.testing.assert_close(estimated, slope, rtol=1e-6, atol=1e-9)
    assert exact[0].abs().max() > 1e-6  # the grouper's
    # A grouper has no say beside its own choice: chances of groups are a table's.
    table = policy.grouper().softmax(-1).detach()
    by_group = chance.detach() @ (samples[:, :3] == 1).double()
    torch.testing.assert_close(by_group, table[:, 1])


def test_samples_follow_the_chances_and_several_placements_share_a_grouping():
    policy = policy_of(toy(), replace(TINY, placements=4))
    uniforms = torch.from_numpy(np.random.default_rng(1).random((402, policy.choices)))
    samples = policy.sample(uniforms)
    groupings = samples[:, :6]
    assert torch.equal(groupings[:400:4], groupings[3:400:4])
    assert torch.equal(groupings[400], groupings[401])
    chances = policy.grouper().softmax(-1)
    frequencies = torch.stack([(groupings[::4] == group).float().mean(0) for group in range(3)], 1)
    torch.testing.assert_close(frequencies, chances.detach(), atol=0.2, rtol=0)
    # The distribution function of each chosen device, given those before, passes its number.
    logits = policy.placer.logits(policy._read(groupings), samples[:, None, 6:])[:, 0]
    ends = logits.softmax(-1).double().cumsum(-1)
    chosen = ends.gather(-1, samples[:, 6:, None]).squeeze(-1)
    assert (uniforms[:, 6:] <= chosen + 1e-6).all()
    assert logits.softmax(-1).std(0).max() > 0.01


def test_with_groups_frozen_it_is_colocrls_update():
    """With a placer that reads ColocRL's rows, and every op at home in a group of its own."""
    oracle = toy()
    settings = replace(TINY, groups=6, homing=1e4, entropy=2.0)
    policy = policy_of(oracle, settings, loud=1.0)
    inputs = inputs_of(features_of(oracle))
    colocrl = Seq2Seq(inputs, allowed(oracle), settings, seed=5)
    policy.placer = colocrl.placer
    policy.described = lambda groupings: colocrl.rows().expand(len(groupings), -1, -1).detach()
    rule, gains = Reinforce(0.9, 2.0, 0), np.linspace(-1.0, 1.0, 7)
    rows = np.random.default_rng(0).integers(3, size=(7, 6))
    stages = inputs.stages
    assert np.array_equal(policy.where.numpy(), stages)
    samples = np.hstack([np.tile(np.arange(6), (7, 1)), rows[:, stages]])
    assert np.array_equal(policy.placements(torch.from_numpy(samples)).numpy(), rows)
    slope, before = Controller(policy, rule).gradient(weights_of(policy), samples, None, gains)
    expected, chosen = Controller(colocrl, rule).gradient(weights_of(colocrl), rows, None, gains)
    placer = sum(parameter.numel() for parameter in colocrl.placer.parameters())
    assert not slope[:-placer].any()
    assert not before[:, :6].any()
    np.testing.assert_allclose(slope[-placer:], expected[-placer:], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(before[:, 6:], chosen[:, stages], rtol=1e-5)
    assert np.abs(expected[-placer:]).max() > 0.01


def test_an_op_stands_elsewhere_where_its_groups_device_cannot_have_it():
    oracle = pair()
    policy = policy_of(oracle)
    rows = policy.placements(torch.tensor([[0, 1, 2, 1, 0, 1]]))
    assert rows.tolist() == [[1, 0, 0, 1]]
    fixed = search(oracle, "hdp", 30, settings={"hidden": 8})
    assert fixed.strategy.placement["only"] == "x"
    bound = policy_of(oracle)
    bound.allowed[0, 1] = False
    assert bound.placements(torch.tensor([[0, 1, 2, 1, 0, 1]])).tolist() == [[0, 0, 0, 1]]


def test_homes_are_bands_or_of_one_device_each():
    assert bands(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    devices = np.array([2, 2, 0, 2, 0, 2, 2, 1, 2, 2])
    homes = pure(devices, 5)
    assert all(len(set(devices[homes == group])) == 1 for group in range(homes.max() + 1))
    assert homes[0] == 0
    assert homes.max() + 1 == 5
    assert pure(devices, 2).tolist() == bands(10, 2).tolist()


def test_a_warm_start_is_imitated_through_the_groups():
    oracle = toy()
    settings = {"groups": 4, "hidden": 8, "embedding": 4, "differing": 0.3, "rate": 0.02}
    result = search(oracle, "hdp", 60, warm="greedy:0.5", settings=settings)
    assert result.details["imitation"]["differing"] <= 0.3
    assert result.details["groups"] == {"most": 4, "in_use": 4}
    again = search(oracle, "hdp", 1, policy=result.policy, train=False)
    assert again.provenance["settings"]["groups"] == 4
    weights = dict(result.policy.weights)
    weights["grouper.home"] = weights["grouper.home"] + 9
    with pytest.raises(InputError, match=r"^policy: grouper\.home must hold groups from 0 to 3"):
        search(oracle, "hdp", 5, policy=replace(result.policy, weights=weights))


def test_groups_of_a_warm_start_are_left_by_few_ops_whatever_their_rows():
    """Plain numbers make logits large: without homes nearly all ops would be in one group."""
    policy = policy_of(toy(), replace(TINY, groups=4, homing=0.0, rows="raw"), loud=9.0)
    assert policy.grouper().softmax(-1).amax(1).mean() > 0.6
    policy.settle(np.array([2, 0, 1, 1, 0, 2]), 0.3)
    sample, moved = policy.imitating(torch.tensor([2, 0, 1, 1, 0, 2]))
    assert moved.sum() == 2 * 6
    log_chosen, _ = policy.judge(sample[None])
    assert (1.0 - log_chosen[0, :6].exp()).sum() <= 0.15
    assert policy.placements(sample[None]).tolist() == [[2, 0, 1, 1, 0, 2]]


def test_what_cannot_be_is_told():
    with pytest.raises(InputError, match=r"^settings: hidden must be even"):
        search(toy(), "hdp", 20, settings="hidden=7")
    alone = Oracle(pair().graph, Cluster("one", (Device("x", "x"),), ()))
    assert search(alone, "hdp", 5).cost.feasible


def test_the_baseline_may_begin_with_a_failing_signal():
    rule = Reinforce(0.9, 0.0, 1000, FAILING)
    assert rule.advantages(np.array([1.0, 3.0])).tolist() == [9.0, 7.0]
    assert rule.advantages(np.array([9.2])).tolist() == pytest.approx([0.0])
