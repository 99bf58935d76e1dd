"""ColocRL does what its paper says, on questions whose answers are known."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median

import joblib
import numpy as np
import pytest

from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn.settings import ColocRLSettings as Settings
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import Result, learners, search
from toys import RANDOM_MEDIAN, WITHIN, curve, toy, until_optima
from worlds.clusters import joined

TINY = {"hidden": 8, "embedding": 4, "samples": 10, "rate": 0.02}
DECODE = """
import sys, torch
from simdev.search import search
from toys import toy
torch.set_num_threads(2)
found = search(toy(), "colocrl", 1, policy=sys.argv[1], train=False)
print(torch.backends.cpu.get_cpu_capability(), *found.strategy.placement.values())
"""


def learned(oracle: Oracle, **options: object) -> Result:
    """What the policy finds likeliest after a search from random placements."""
    result = search(oracle, "colocrl", **{"budget": 300, "warm": "random", **options})
    return search(oracle, "colocrl", 1, policy=result.policy, train=False)


def dear() -> Oracle:
    """A chain on three devices, of which the first is the fastest, and a transfer takes longer than
    any op.
    """
    kinds = ("fast", "middle", "slow")
    time = {kind: f"{ps} ps" for kind, ps in zip(kinds, (10, 15, 20), strict=True)}
    ops = [
        Op(f"o{i}", inputs=(f"o{i - 1}",) if i else (), outputs=(Tensor(50),), time=time)
        for i in range(6)
    ]
    devices = [Device(kind, kind) for kind in kinds]
    return Oracle(Graph("chain", tuple(ops)), joined(devices))


def test_it_meets_the_optimum_of_the_toy_before_random_search():
    met = until_optima("colocrl", warm="random")
    assert None not in met
    assert median(met) < RANDOM_MEDIAN / 2 < WITHIN


def test_where_transfers_are_dear_it_learns_the_best_single_device():
    answers = [learned(dear(), seed=seed, settings={"rate": 0.01}) for seed in range(5)]
    devices = [set(answer.strategy.placement.values()) for answer in answers]
    assert all(len(used) == 1 for used in devices)
    assert devices.count({"fast"}) >= 4


def test_it_learns_to_fit():
    """On one device no op fits: nearly nine of ten random placements fail."""
    oracle = toy(least=10)
    fits = [oracle(row).feasible for row in np.random.default_rng(0).integers(3, size=(100, 6))]
    assert sum(fits) < 50
    result = learned(oracle, settings="failing_updates=5")
    assert result.cost.feasible


def test_the_same_seed_gives_the_same_curve_in_one_process_or_two():
    options = {"budget": 60, "seed": 4, "settings": TINY | {"controllers": 2}}
    runs = [search(toy(), "colocrl", n_jobs=jobs, **options) for jobs in (1, None)]
    with joblib.parallel_config("threading", n_jobs=2):
        runs.append(search(toy(), "colocrl", **options))
    points = [curve(run) for run in runs]
    assert points[0] == points[1] == points[2]
    weights = [run.policy.weights for run in runs]
    for name, array in weights[0].items():
        assert np.array_equal(array, weights[1][name])
        assert np.array_equal(array, weights[2][name])
    other = search(toy(), "colocrl", 60, seed=5, settings=TINY)
    assert not np.array_equal(other.policy.weights["kind.weight"], weights[0]["kind.weight"])


def test_a_saved_policy_decodes_the_same_on_another_machine(tmp_path: Path):
    """Without vector instructions and with other threads sums are added in another order."""
    result = search(toy(), "colocrl", 100, seed=1, settings=TINY)
    result.policy.save(tmp_path / "policy.safetensors")
    here = search(toy(), "colocrl", 1, policy=result.policy, train=False)
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    there = subprocess.run(
        [sys.executable, "-c", DECODE, str(tmp_path / "policy.safetensors")],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    capability, *placement = there.stdout.split()
    assert capability in ("DEFAULT", "NO")
    assert placement == list(here.strategy.placement.values())


def test_a_policy_goes_on_where_it_was_saved_and_refuses_other_sizes():
    result = search(toy(), "colocrl", 30, settings=TINY)
    assert result.policy.settings == asdict(Settings(**TINY))
    again = search(toy(), "colocrl", 30, policy=result.policy)
    assert again.provenance["settings"] == result.policy.settings
    with pytest.raises(InputError, match=r"policy: kind\.weight has the shape"):
        search(toy(), "colocrl", 30, policy=result.policy, settings={"embedding": 5})


def test_a_warm_start_is_imitated():
    result = search(toy(), "colocrl", 30, warm="greedy", settings=TINY | {"differing": 0.3})
    assert result.details["imitation"]["differing"] <= 0.3
    assert result.details["warm"]["beginning"] == "greedy"


def test_published_settings_are_the_papers():
    published = Settings.published()
    assert (published.hidden, published.attention, published.aligned) == (512, "additive", 0.0)
    result = search(toy(), "colocrl", 20, settings="published,hidden=8")
    assert result.provenance["settings"]["attention"] == "additive"


def test_without_pytorch_it_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learners, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'^colocrl needs PyTorch: pip install "simdev\[torch\]"$'):
        search(toy(), "colocrl", 20)
