"""Clients of the oracle: search, its methods and results, and the Gymnasium environment."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import simdev.search.env  # noqa: F401 (registers the environment)
from simdev import Oracle
from simdev.cluster import Cluster, Device, Link
from simdev.costs import CostModel
from simdev.errors import InputError
from simdev.graph import Graph, Op, Tensor
from simdev.oracle import Cost, oracle_of
from simdev.scenario import Scenario
from simdev.search import METHODS, Result, blackbox, compare, confirm, run, search
from simdev.search.trial import Trial
from simdev.strategy import Order, Strategy
from strategies import UNIT, op

ID = "simdev/Placement-v0"


def forks(memory: int | None = None) -> Oracle:
    """Two chains of three ops between a source and a sink, on two devices: best apart, and not on
    one device.
    """
    ops = [op("source", 1, size=1, param_bytes=2)]
    for chain in "ab":
        ops += [
            op(f"{chain}{i}", 4, f"{chain}{i - 1}" if i else "source", size=1) for i in range(3)
        ]
    ops.append(op("sink", 1, "a2", "b2"))
    ops = [replace(one, colocate="a01") if one.name in ("a0", "a1") else one for one in ops]
    devices = [Device("g0", memory=memory), Device("g1", memory=memory)]
    return Oracle(Graph("forks", tuple(ops)), Cluster.all_to_all("two", devices, bandwidth=UNIT))


def best_of_all(oracle: Oracle) -> Cost:
    found = map(oracle, product((0, 1), repeat=len(oracle.groups)))
    return min(found, key=lambda cost: (cost.memory_excess, cost.step_ps))


# Search

PLACERS = [name for name, method in METHODS.items() if not method.splits]
SEARCHES = ["random", "greedy", "annealing", "cross-entropy"]
BUDGETS = {"random": 1500, "cross-entropy": 1500, "annealing": 1500, "greedy": 1500}


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("memory", [None, 5])
def test_small_questions_are_solved(method, memory):
    oracle = forks(memory)
    found = search(oracle, method, BUDGETS[method], seed=1)
    assert found.cost == oracle(found.strategy)
    best = best_of_all(oracle).step_ps
    assert found.cost.step_ps == best if method != "greedy" else found.cost.step_ps <= best * 1.5
    assert found.cost.feasible
    assert not found.obstacles


@pytest.mark.parametrize("method", PLACERS)
def test_every_method_answers_and_is_confirmed(method):
    oracle = forks(5)
    found = search(oracle, method, 300, seed=2)
    assert confirm(oracle, found) == ()
    assert found.objectives["step_time_s"] == found.cost.seconds
    assert found.provenance["method"] == method
    assert found.provenance["evaluations"] <= 300
    assert found.cost.step_ps >= best_of_all(oracle).step_ps or not found.cost.feasible
    if (
        method != "single"
        and "max_load_ms" not in found.objectives
        and "period_s" not in found.objectives
    ):
        assert found.cost.feasible


@pytest.mark.parametrize("method", SEARCHES)
def test_the_curve_falls_to_the_best(method):
    found = search(forks(5), method, 100, seed=2)
    curve = found.curve
    assert list(curve.columns) == [
        "evaluation",
        "cpu_seconds",
        "step_time_s",
        "memory_excess_bytes",
    ]
    keys = list(zip(curve.memory_excess_bytes, curve.step_time_s, strict=True))
    assert keys == sorted(keys, reverse=True)
    assert keys[-1] == (0, found.cost.seconds)
    assert curve.evaluation.is_monotonic_increasing
    assert curve.evaluation.iloc[-1] == found.provenance["evaluations"]


@pytest.mark.parametrize("method", PLACERS)
def test_a_seed_decides(method):
    runs = [search(forks(5), method, 60, seed) for seed in (3, 3)]
    assert runs[0].strategy == runs[1].strategy
    assert runs[0].cost == runs[1].cost
    assert [(p.evaluation, p.step_ps) for p in runs[0].points] == [
        (p.evaluation, p.step_ps) for p in runs[1].points
    ]


def test_another_seed_tries_others():
    runs = [search(forks(), "random", 5, seed) for seed in (3, 4)]
    assert [p.step_ps for p in runs[0].points] != [p.step_ps for p in runs[1].points]


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("budget", [1, 2, 7, 70])
def test_methods_stop_on_budget(method, budget):
    oracle = forks()
    found = search(oracle, method, budget)
    assert found.provenance["evaluations"] <= budget
    assert found.provenance["ended"] in ("budget", "done")


def test_methods_stop_on_time():
    found = search(forks(), "random", seconds=0.05)
    assert found.provenance["ended"] == "time"


@pytest.mark.parametrize("seed", range(8))
def test_annealing_climbs_from_a_start_that_every_move_improves(seed):
    """Everything on one device is the start: what its moves worsen, nothing, is no measure of how
    far to climb.
    """
    times = (17, 21, 20, 56, 31, 95, 49, 42)
    ops = tuple(op(f"op{i}", time) for i, time in enumerate(times))
    oracle = Oracle(
        Graph("loads", ops),
        Cluster.all_to_all("three", [Device(f"g{d}") for d in range(3)], bandwidth=1),
    )
    loads = (np.bincount(one, times, 3).max() for one in product(range(3), repeat=len(ops)))
    assert search(oracle, "annealing", 3000, seed=seed).cost.step_ps == min(loads) == 112


def test_annealing_beats_random_search():
    ops = [op(f"o{i}", 1 + i % 5, *([f"o{i - 3}"] if i > 2 else []), size=2) for i in range(60)]
    cluster = Cluster.all_to_all("four", [Device(f"g{d}") for d in range(4)], bandwidth=UNIT)
    oracle = Oracle(Graph("chains", tuple(ops)), cluster)
    found = {method: search(oracle, method, 3000).cost.step_ps for method in SEARCHES}
    assert found["annealing"] < 0.8 * found["random"]
    assert max(found["greedy"], found["cross-entropy"]) < found["random"]


def test_cross_entropy_replaces_its_distribution_by_the_frequencies_among_the_best(monkeypatch):
    """With nothing explored, the chances of the second round are fifths: five placements of fifty
    are followed.
    """
    chances: list[np.ndarray] = []
    sample = blackbox._sample

    def watched(trial: Trial, chance: np.ndarray) -> np.ndarray:
        chances.append(chance)
        return sample(trial, chance)

    monkeypatch.setattr(blackbox, "_sample", watched)
    monkeypatch.setattr(blackbox, "EXPLORE", 0.0)
    search(forks(), "cross-entropy", 60, seed=1)
    fifths = chances[50] * 5
    assert fifths.sum(axis=1) == pytest.approx(5)
    assert fifths == pytest.approx(fifths.round())


def test_the_scenarios_own_placement_is_a_start():
    oracle = forks()
    best = min(product((0, 1), repeat=7), key=lambda one: oracle(one).step_ps)
    scenario = Scenario(oracle.graph, oracle.cluster, oracle.costs, Strategy(oracle.named(best)))
    for method in ("greedy", "annealing"):
        assert search(scenario, method, 3).cost.step_ps == best_of_all(oracle).step_ps


def test_where_nothing_fits_the_least_excess_is_best_and_the_reason_is_told():
    oracle = forks(1)
    found = search(oracle, "random", 500)
    assert not found.cost.feasible
    assert found.cost.memory_excess == best_of_all(oracle).memory_excess
    assert "g0: needs" in found.obstacles[0]
    assert any(
        line.startswith("source: needs 3 bytes to run, more than the 1 of any device")
        for line in found.obstacles
    )


def test_what_persists_may_be_too_much_for_all_devices_together():
    ops = [op(f"o{i}", 1, param_bytes=4) for i in range(3)]
    cluster = Cluster.all_to_all(
        "two", [Device("g0", memory=5), Device("g1", memory=5)], bandwidth=UNIT
    )
    found = search(Oracle(Graph("large", tuple(ops)), cluster), "greedy")
    assert (
        found.obstacles[-1]
        == "all devices: 12 bytes of parameters, gradients and states, 10 bytes of memory"
    )


def test_an_interrupt_keeps_the_best_so_far():
    class Stops:
        """Asks for three placements, then Ctrl-C."""

        asked = 0

        def ask(self) -> np.ndarray:
            self.asked += 1
            if self.asked > 3:
                raise KeyboardInterrupt
            return np.full(7, self.asked % 2)

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            pass

    found = search(forks(), Stops())
    assert (found.provenance["ended"], found.provenance["evaluations"]) == ("interrupted", 3)
    assert found.cost.step_ps == 26


@pytest.mark.parametrize("method", ["dnn-ip", "dnn-latency"])
def test_an_interrupt_of_an_integer_program_keeps_the_split_that_was_known(method, monkeypatch):
    from simdev.search.maxload import placers

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(placers, "integer_program", interrupted)
    monkeypatch.setattr(placers, "latency_program", interrupted)
    found = search(forks(), method)
    assert (found.provenance["ended"], found.provenance["evaluations"]) == ("interrupted", 1)
    assert found.cost.feasible


def test_a_point_of_the_curve_is_never_without_its_placement(trial_of):
    """Ctrl-C while the best is being kept."""

    class Asked(Oracle):
        def placement(self, *given: object) -> np.ndarray:
            if trial.budget.evaluations == 2:
                raise KeyboardInterrupt
            return super().placement(*given)

    small = forks()
    oracle = Asked(small.graph, small.cluster, small.costs)
    trial = trial_of(oracle)
    trial.score(np.zeros(7, np.int64))
    with pytest.raises(KeyboardInterrupt):
        trial.score(np.array([0, 0, 0, 1, 1, 1, 1]))
    best = trial.best
    assert len(best.points) == 1
    assert best.placement[1].step_ps == best.points[-1].step_ps


@pytest.mark.parametrize("method", PLACERS)
def test_groups_hold_where_ops_are_placed_freely_first(method):
    oracle = forks(9)
    found = search(oracle, method, 60, seed=1, prepare=["adjust"], seconds=5)
    assert confirm(oracle, found) == ()
    assert found.strategy.placement["a0"] == found.strategy.placement["a1"]


def test_other_peaks_than_those_told_are_a_finding():
    found = search(forks(9), "single")
    wrong = replace(found, cost=replace(found.cost, peaks=(0, 0)))
    assert [one.rule for one in confirm(forks(9), wrong)] == ["peak"]


def test_a_method_of_ones_own():
    class Sweep:
        """All on one device, then on the other; remembers what it is told."""

        def __init__(self) -> None:
            self.told: list[tuple[int, int]] = []

        def ask(self) -> np.ndarray:
            return np.full(7, len(self.told) % 2)

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            self.told.append((int(placement[0]), cost.step_ps))

    method = Sweep()
    found = search(forks(), method, 2)
    assert found.cost.step_ps == 26
    assert method.told == [(0, 26), (1, 26)]
    assert found.provenance["method"] == "Sweep"


def mixed() -> Oracle:
    ops = [Op("a", time={"gpu": 1}), Op("b", time={"cpu": 1}), Op("c", time={"gpu": 2, "cpu": 1})]
    devices = (Device("g0"), Device("c0", "cpu"), Device("hub", "switch"))
    links = (Link(("g0", "hub"), 1), Link(("c0", "hub"), 1))
    return Oracle(Graph("mixed", tuple(ops)), Cluster("mixed", devices, links))


@pytest.mark.parametrize(
    "method", [name for name in PLACERS if name not in ("single", "pipedream")]
)
def test_groups_keep_to_devices_that_can_run_them(method):
    oracle = mixed()
    found = search(oracle, method, 30)
    assert found.strategy.placement["a"] == "g0"
    assert found.strategy.placement["b"] == "c0"
    assert found.strategy.placement["c"] in ("g0", "c0")


def test_what_search_refuses():
    with pytest.raises(InputError, match="must be one of single, round-robin, expert, random"):
        search(forks(), "magic", 3)
    with pytest.raises(InputError, match="budget: must be a whole number of at least 1, got 0"):
        search(forks(), "random", 0)
    with pytest.raises(InputError, match="seconds: must be a number > 0"):
        search(forks(), "random", seconds=0.0)
    for seed in (-1, 0.5, "a"):
        with pytest.raises(InputError, match="seed: must be a whole number of at least 0"):
            search(forks(), "random", 1, seed=seed)
    for budget in ("3", 2.5, True):
        with pytest.raises(InputError, match="budget: must be a whole number of at least 1"):
            search(forks(), "random", budget)
    for seconds in ("3", True, float("nan")):
        with pytest.raises(InputError, match="seconds: must be a number > 0"):
            search(forks(), "random", seconds=seconds)
    for unknown in (5, None, object()):
        with pytest.raises(
            InputError, match="method: must be a name, or an object with ask and tell"
        ):
            search(forks(), unknown)
    with pytest.raises(InputError, match="prepare: must be a list of names"):
        search(forks(), "random", 1, prepare="coplace")
    for method in METHODS:
        with pytest.raises(InputError, match="there is nothing to place"):
            search(Oracle(Graph("empty", ()), forks().cluster), method, 1)
    with pytest.raises(InputError, match="there is nothing to place"):
        Oracle(Graph("empty", ()), forks().cluster).session([])
    with pytest.raises(InputError, match="prepare: must be of colocate"):
        search(forks(), "random", 1, prepare=["shuffle"])
    with pytest.raises(InputError, match="no device can run every op"):
        search(mixed(), "single")
    with pytest.raises(InputError, match="every device must be able"):
        search(mixed(), "pipedream")
    nowhere = Oracle(Graph("none", (Op("a", time={"tpu": 1}),)), mixed().cluster)
    for method in METHODS:
        with pytest.raises(InputError, match=r'ops\[0\]: no device on which "a"'):
            search(nowhere, method, 30)
    oracle = forks()
    order = Order("fixed", sequence={"g0": ("source",)})
    with pytest.raises(InputError, match="belong to one placement"):
        search(
            Scenario(oracle.graph, oracle.cluster, oracle.costs, Strategy({"*": "g0"}, order)),
            "single",
        )


def test_compare_prints_the_table_of_papers():
    table = compare(["single", "greedy", "dnn-contiguous"], {"free": forks(), "tight": forks(5)})
    assert table.question.tolist()[:3] == ["free"] * 3
    assert table.method.tolist()[:3] == ["single", "greedy", "dnn-contiguous"]
    free = table[table.question == "free"].set_index("method")
    assert free.step_ms["single"] == 26e-9
    assert free.against_single["single"] == 1.0
    assert free.against_single["greedy"] > 1.0
    assert free.max_load_ms["dnn-contiguous"] > 0


def test_a_method_that_refuses_a_question_has_a_row_that_says_why():
    table = compare(
        ["greedy", "single", "pipedream"], {"mixed": mixed(), "free": forks()}, budget=20
    )
    assert table.shape[0] == 6
    assert table.reason.tolist()[1:3] == [
        "single: no device can run every op of the graph",
        "pipedream: every device must be able to run every op",
    ]
    assert table.step_ms.isna().tolist() == [False, True, True, False, False, False]
    assert table.fits.tolist() == [True, False, False, True, True, True]
    oracle = forks()
    fixed = Strategy({"*": "g0"}, Order("fixed", sequence={"g0": ("source",)}))
    wrong = Scenario(oracle.graph, oracle.cluster, oracle.costs, fixed)
    assert "belong to one placement" in compare(["single"], {"fixed": wrong}).reason[0]
    with pytest.raises(InputError, match="method: must be one of"):
        compare(["single", "magic"], {"free": forks()})


def test_a_table_of_nothing_has_its_columns():
    names = [
        "question",
        "method",
        "step_ms",
        "against_single",
        "fits",
        "peak_bytes",
        "placing_s",
        "evaluations",
    ]
    for table in (compare([], {"free": forks()}), compare(["single"], {})):
        assert list(table.columns) == [*names, "reason"]
        assert table.empty


def test_a_question_is_prepared_once(monkeypatch):
    made = []
    monkeypatch.setattr(
        run, "oracle_of", lambda question: made.append(question) or oracle_of(question)
    )
    compare(["single", "greedy", "annealing"], {"fork": fork()}, budget=10)
    assert [type(one) for one in made].count(Scenario) == 1


def test_a_result_as_json_holds_plain_numbers():
    found = search(forks(5), "annealing", 50)
    assert isinstance(found, Result)
    text = json.dumps(found.to_json(), allow_nan=False)
    told = json.loads(text)
    assert told["step_time_s"] == found.cost.seconds
    assert told["versions"]["simdev"]
    assert told["curve"]["evaluation"][-1] == 50


def test_a_trial_counts_walks_and_scores(trial_of):
    oracle = forks()
    trial = trial_of(oracle, limit=4)
    walk = trial.walk(np.zeros(7, np.int64))
    walk.propose(1, 1)
    walk.accept()
    trial.score(np.zeros(7, np.int64))
    assert trial.budget.evaluations == 3
    assert walk.where == [0, 1, 0, 0, 0, 0, 0]
    assert trial.budget.share == 0.75


def test_cross_entropy_remembers_samples_by_a_digest(trial_of):
    """However many groups there are: what is known of a sample takes as much room."""
    trial, known = trial_of(forks()), {}
    row = np.zeros(7, np.int64)
    assert blackbox._rank(trial, row, known) == blackbox._rank(trial, row.copy(), known)
    assert blackbox._rank(trial, np.ones(7, np.int64), known) is not None
    assert [len(name) for name in known] == [16, 16]
    assert trial.budget.evaluations == 2


# Starts, and placements that cannot be


def fork() -> Scenario:
    """Two ops of 100 ps between two of 1 ps; the scenario places them apart, which co-placement
    would not.
    """
    ops = (op("s", 1), op("a", 100, "s"), op("b", 100, "s"), op("t", 1, "a", "b"))
    machine = Cluster.all_to_all("two", [Device("g0"), Device("g1")], bandwidth=UNIT)
    return Scenario(Graph("fork", ops), machine, CostModel(), Strategy({"*": "g0", "b": "g1"}))


@pytest.mark.parametrize("method", ["greedy", "annealing"])
@pytest.mark.parametrize("budget", [1, 40])
def test_the_own_placement_is_kept_where_a_preparation_does_not_allow_it(method, budget):
    found = search(fork(), method, budget, prepare=["coplace"])
    assert found.cost.step_ps == 102
    assert found.strategy.placement["b"] == "g1"
    assert found.details["own_placement"].startswith('keeps "a", "b", "t" apart')
    assert confirm(oracle_of(fork()), found) == ()


def test_the_own_placement_is_the_start_of_walks_where_groups_allow_it():
    scenario = replace(fork(), strategy=Strategy({"s": "g1", "*": "g0"}))
    found = search(scenario, "greedy", 2, prepare=["coplace"])
    assert "own_placement" not in found.details
    assert found.points[0].step_ps == 202


def test_a_start_is_asked_once():
    """A single device (both are alike), then moves: of six groups that can move, one device
    each.
    """
    asked = []
    search(forks(), "greedy", progress=asked.append)
    oracle = forks()
    moves = len(oracle.groups)
    assert (len(asked) - 1) % moves == 0


def parted(duplex: str | None) -> Oracle:
    """Devices of which some pairs have no route: none at all, or back from g1 to g0."""
    ops = [
        op("s", 1, size=1),
        op("a", 100, "s", size=1),
        op("b", 100, "s", size=1),
        op("t", 1, "b", size=1),
    ]
    links = () if duplex is None else (Link(("g0", "g1"), UNIT, duplex=duplex),)
    return Oracle(Graph("fork", tuple(ops)), Cluster("two", (Device("g0"), Device("g1")), links))


ANSWER_ANYWHERE = [name for name in METHODS if not METHODS[name].splits]


@pytest.mark.parametrize("method", ANSWER_ANYWHERE)
@pytest.mark.parametrize("duplex", [None, "simplex"])
def test_a_placement_that_cannot_be_is_no_end_of_a_search(method, duplex):
    oracle = parted(duplex)
    found = search(oracle, method, 60, seed=1)
    assert confirm(oracle, found) == ()
    if duplex is None:
        assert found.cost.step_ps == 202
        if method in ("round-robin", "pipedream", "dnn-contiguous"):
            assert found.details["planned"] is False
    elif method in ("greedy", "annealing", "random"):
        assert found.cost.step_ps <= 104
        assert found.details["impossible"]["placements"] > 0
        assert "no route joins them" in found.details["impossible"]["last"]


def test_the_own_placement_is_the_last_resort():
    """No device runs everything, and no route joins the two: only what the scenario says can be."""
    times = [{"gpu": 1}, {"cpu": 1}, *[{"gpu": 1, "cpu": 1}] * 8]
    reads = [() if i < 2 else (f"o{i - 2}",) for i in range(10)]
    ops = [
        Op(f"o{i}", inputs=inputs, outputs=(Tensor(1),), time=time)
        for i, (inputs, time) in enumerate(zip(reads, times, strict=True))
    ]
    machine = Cluster("two", (Device("g0"), Device("c0", "cpu")), ())
    own = {f"o{i}": "g0" if i % 2 == 0 else "c0" for i in range(10)}
    scenario = Scenario(Graph("two chains", tuple(ops)), machine, CostModel(), Strategy(own))
    for method in (
        "random",
        "greedy",
        "annealing",
        "cross-entropy",
        "heft",
        "m-etf",
        "round-robin",
    ):
        found = search(scenario, method, 20)
        assert found.strategy.placement == own or method in ("heft", "m-etf", "round-robin")
        assert confirm(oracle_of(scenario), found) == ()


def test_where_no_placement_can_be_that_is_what_is_told():
    ops = (Op("a", time={"gpu": 1}, outputs=(Tensor(1),)), Op("b", inputs=("a",), time={"cpu": 1}))
    oracle = Oracle(Graph("apart", ops), Cluster("two", (Device("g0"), Device("c0", "cpu")), ()))
    for method in ANSWER_ANYWHERE:
        if method not in ("single", "pipedream", "dnn-ip", "dnn-contiguous", "dnn-latency"):
            with pytest.raises(InputError, match='from "g0" to "c0", but no route joins them'):
                search(oracle, method, 70, prepare=[])


def test_a_method_of_ones_own_is_told_what_cannot_be():
    class Tries:
        """Apart, then on one device, then nonsense."""

        def __init__(self) -> None:
            self.told: list[float] = []

        def ask(self) -> np.ndarray:
            return [np.array([0, 1, 0, 1]), np.zeros(4, np.int64), np.array([0, 0, 0, 2])][
                len(self.told)
            ]

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            self.told.append(cost.seconds)

    method = Tries()
    assert search(parted(None), method, 2).cost.step_ps == 202
    assert method.told == [float("inf"), 202e-12]
    with pytest.raises(InputError, match=r"is not in 0\.\.1"):
        search(parted(None), Tries(), 3)


# Collectives on ranks


def ranked(**groups: str) -> Scenario:
    """An all-reduce over both devices between two ops and two others."""
    ops = [
        op("a", 5, size=1000),
        op("b", 5, size=1000),
        Op(
            "ar",
            "all_reduce",
            inputs=("a", "b"),
            outputs=(Tensor(1000), Tensor(1000)),
            attrs={"ranks": ["d0", "d1"]},
        ),
        op("c", 9, "ar:0"),
        op("d", 9, "ar:1"),
    ]
    ops = [replace(one, colocate=groups.get(one.name)) for one in ops]
    machine = Cluster.all_to_all("two", [Device("d0"), Device("d1")], bandwidth=UNIT)
    own = Strategy({"*": "d0", "b": "d1", "d": "d1"})
    return Scenario(Graph("ranked", tuple(ops)), machine, CostModel(), own)


# whose models know no op on several devices
FLAT = ("pipedream", "dnn-contiguous", "dnn-ip", "dnn-latency")


@pytest.mark.parametrize("method", [name for name in PLACERS if name not in (*FLAT, "single")])
def test_what_a_collective_reads_stands_on_its_ranks(method):
    scenario = ranked()
    found = search(scenario, method, 60, seed=1)
    assert (found.strategy.placement["a"], found.strategy.placement["b"]) == ("d0", "d1")
    assert confirm(oracle_of(scenario), found) == ()
    assert "impossible" not in found.details


def test_collectives_that_cannot_be_placed_are_refused():
    for method in (*FLAT, *(name for name in METHODS if METHODS[name].splits)):
        with pytest.raises(InputError, match=f'{method}: "ar" runs on several devices at once'):
            search(ranked(), method)
    with pytest.raises(InputError, match="no device can run every op"):
        search(ranked(), "single")
    with pytest.raises(
        InputError,
        match=r'ops\[0\]: "a" and its group must stand on d0 and on d1, where collectives',
    ):
        search(ranked(a="x", b="x"), "greedy")


# One measure


def test_what_a_walk_accepts_is_the_result(trial_of):
    """Three devices over capacity: a move that leaves the fullest as it is counts, where it empties
    another.
    """
    ops = [op(f"o{i}", 1, param_bytes=size) for i, size in enumerate((9, 4, 4, 1))]
    devices = [Device("g0", memory=2), Device("g1", memory=5), Device("g2", memory=5)]
    scenario = Scenario(
        Graph("held", tuple(ops)),
        Cluster.all_to_all("three", devices, bandwidth=UNIT),
        CostModel(),
        Strategy({"o0": "g0", "o1": "g1", "o2": "g1", "o3": "g2"}),
    )
    oracle = oracle_of(scenario)
    trial = trial_of(oracle, scenario.strategy)
    walk = trial.walk(trial.problem.start)
    assert walk.cost.memory_excess == 7
    for group, device in ((2, 2), (0, 1)):
        if walk.improve(group, device):
            placement, cost = trial.best.placement
            assert (placement.tolist(), cost) == (walk.where, walk.cost)
    assert walk.where[2] == 2


# The environment


def make(oracle: Oracle, **options: float) -> gymnasium.Env:
    return gymnasium.make(ID, oracle=oracle, **options)


@pytest.mark.parametrize("memory", [None, 5, 0])
def test_the_environment_passes_the_checker_of_gymnasium(memory):
    check_env(make(forks(memory)).unwrapped)


def episode(env: gymnasium.Env, actions: list[int]) -> tuple[float, dict[str, object]]:
    """The last reward and info; the others are 0."""
    observation, _ = env.reset(seed=0)
    for at, action in enumerate(actions):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        assert (terminated, truncated) == (at == len(actions) - 1, False)
        assert terminated or reward == 0
    assert env.observation_space.contains(observation)
    return reward, info


def test_the_reward_is_the_step_relative_to_the_best_single_device():
    oracle, actions = forks(), [0, 0, 0, 1, 1, 1, 0]
    reward, info = episode(make(oracle), actions)
    cost = oracle(actions)
    assert oracle([0] * 7).step_ps == 26
    assert reward == -cost.step_ps / 26
    assert (info["seconds"], info["feasible"], info["memory_excess"]) == (cost.seconds, True, 0)
    assert info["placement"].tolist() == actions
    assert episode(make(oracle), [0] * 7)[0] == -1


def test_what_does_not_fit_is_penalised_by_its_relative_excess():
    oracle = forks(4)
    cost = oracle([0] * 7)
    assert cost.memory_excess == 1
    assert episode(make(oracle), [0] * 7)[0] == -1 - 1 / 4
    assert episode(make(oracle, penalty=10), [0] * 7)[0] == -1 - 10 / 4


def test_a_masked_action_costs_a_reference_step_and_goes_to_the_fastest_device():
    ops = (Op("a", time={"gpu": 1}), Op("b", time={"gpu": 3, "cpu": 2}))
    cluster = Cluster.all_to_all("two", [Device("g0"), Device("c0", "cpu")], bandwidth=1)
    env = make(Oracle(Graph("mixed", ops), cluster))
    _, info = env.reset()
    assert info["action_mask"].tolist() == [1, 0]
    _, reward, terminated, _, info = env.step(np.int64(1))
    assert (reward, terminated, info["error"]) == (-1, False, "group 0 cannot stand on device 1")
    assert info["placement"].tolist() == [0, -1]
    assert "error" not in env.step(np.int64(1))[-1]
    assert episode(env, [0, 1])[0] == -2 / 4


def test_no_placement_that_runs_is_worse_than_one_without_a_route():
    ops = (op("a", 1, size=10), op("b", 1, "a"))
    apart = make(Oracle(Graph("apart", ops), Cluster("apart", (Device("g0"), Device("g1")))))
    reward, info = episode(apart, [0, 1])
    assert reward == -1000
    assert "no route joins them" in info["error"]
    slow = make(
        Oracle(
            Graph("slow", ops),
            Cluster.all_to_all("slow", [Device("g0"), Device("g1")], bandwidth=1),
        )
    )
    reward, info = episode(slow, [0, 1])
    assert reward == -1000
    assert info["seconds"] > 9


@pytest.mark.parametrize("seed", range(5))
def test_observations_are_those_of_a_dense_table(seed):
    """What is read from where and the loads so far, by loops over a random graph with groups."""
    luck = np.random.default_rng(seed)
    ops = [op("o0", 1, size=3)]
    for i in range(1, 12):
        inputs = [f"o{j}" for j in sorted(set(luck.integers(0, i, 3).tolist()))]
        ops.append(op(f"o{i}", i % 4, *inputs, size=int(luck.integers(0, 9))))
    ops = [replace(one, colocate=f"c{i % 2}") if i % 3 == 0 else one for i, one in enumerate(ops)]
    oracle = Oracle(
        Graph("dense", tuple(ops)),
        Cluster.all_to_all("three", list(map(Device, "abc")), bandwidth=UNIT),
    )
    row = {i: at for at, members in enumerate(oracle.groups) for i in members}
    sent = np.zeros((len(oracle.groups),) * 2)
    for consumer, reads in enumerate(oracle.graph.reads):
        for producer, output in reads:
            if row[producer] != row[consumer]:
                sent[row[producer], row[consumer]] += (
                    oracle.graph.ops[producer].outputs[output].bytes
                )
    time = [sum(float(ops[i].time) for i in members) for members in oracle.groups]
    env = make(oracle)
    observation, _ = env.reset()
    places = luck.integers(0, 3, len(oracle.groups)).tolist()
    for now, place in enumerate(places):
        read, load = np.zeros(3), np.zeros(3)
        for earlier in range(now):
            read[places[earlier]] += sent[earlier, now]
            load[places[earlier]] += time[earlier]
        assert observation[2] == pytest.approx(sent[now].sum() / sent.sum())
        assert observation[9:12] == pytest.approx(read / sent.sum())
        assert observation[12:15] == pytest.approx(load / sum(time))
        observation, *_ = env.step(np.int64(place))


def test_the_observation_tells_loads_and_what_is_read_from_where():
    """Of a 26 ps graph: source on g1 (1 ps, 3 of 9 bytes), then a0 and a1 (8 ps), which read 1 of 7
    bytes sent.
    """
    env = make(forks())
    env.reset()
    observation, *_ = env.step(np.int64(1))
    devices, group = observation[3:13].reshape(5, 2), observation[:3]
    assert group == pytest.approx([1 / 7, 2 / 9, 1 / 7])
    assert devices.ravel() == pytest.approx([8 / 26, 8 / 26, 1, 1, 0, 1 / 7, 0, 1 / 26, 0, 3 / 9])
    assert observation[13:].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_steps_out_of_place_raise():
    env = make(forks()).unwrapped
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    env.reset()
    for action in (-1, 2):
        with pytest.raises(InputError, match=r"is not in 0\.\.1"):
            env.step(np.int64(action))
    with pytest.raises(InputError, match="nothing to place"):
        make(Oracle(Graph("empty", ()), forks().cluster))
