"""Nouns copy what they are given: what is written into a container later changes no answer."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdev import (
    Cluster,
    CostModel,
    Device,
    Graph,
    Link,
    Op,
    Oracle,
    Scenario,
    Strategy,
    Tensor,
    run,
)
from simdev.costs import DeviceSpec, Efficiency, Profile, Row
from simdev.costs.collectives import CollectiveTable
from simdev.execution.scenario import fingerprint, prepare
from simdev.ground.frozen import FrozenDict, frozen
from simdev.nouns.memory import MemoryModel
from simdev.nouns.strategy import Collectives, Configuration, Order
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.search.sweep import sweep
from worlds.clusters import joined
from worlds.scenarios import question

WORDS = st.text(max_size=3)
NESTED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
ANCHORS = [[1, Fraction(1)], [2, Fraction(2)]]

# By noun: what it is given, in containers that can be written into.
NOUNS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "tensor": (Tensor, {"bytes": 64, "shape": [4, 4]}),
    "op": (
        Op,
        {
            "name": "a",
            "inputs": ["x", "y:1"],
            "control_inputs": ["z"],
            "outputs": [Tensor(4)],
            "attrs": {"in": [[3, 4], [4]], "deep": {"ranks": ["gpu:0"]}},
            "time": {"gpu": "1 us", "cpu": 2},
        },
    ),
    "graph": (Graph, {"name": "g", "ops": [Op("a"), Op("b")]}),
    "link": (Link, {"ends": ["gpu:0", "gpu:1"], "bandwidth": 1}),
    "cluster": (
        Cluster,
        {
            "name": "c",
            "devices": [Device("gpu:0"), Device("gpu:1")],
            "links": [Link(("gpu:0", "gpu:1"), 1)],
            "provenance": {"gpu": {"source": ["a sheet"]}},
        },
    ),
    "priority": (Order, {"policy": "priority", "priority": {"a": 1}}),
    "sequence": (Order, {"policy": "fixed", "sequence": {"gpu:0": ["a", "b"]}}),
    "configuration": (Configuration, {"split": {"sample": 2}, "devices": ["gpu:0", "gpu:1"]}),
    "collectives": (
        Collectives,
        {"tables": [CollectiveTable("p2p", 2, ((1, Fraction(1)), (2, Fraction(2))))]},
    ),
    "table": (CollectiveTable, {"collective": "p2p", "ranks": 2, "anchors": ANCHORS}),
    "strategy": (
        Strategy,
        {
            "placement": {"a": "gpu:0"},
            "partition": {"b": Configuration({"sample": 2})},
            "tensors": {"b:0": {0: 2}},
            "short": "owt",
            "devices": ["gpu:0", "gpu:1"],
        },
    ),
    "parallelism": (
        Parallelism,
        {"stage_layers": [1, 2], "offload": ["optimizer"], "host_bandwidth": 1e9},
    ),
    "memory": (MemoryModel, {"context": {"gpu": "1 MB"}, "communication": {"gpu": 5}}),
    "row": (Row, {"key": "k", "seconds": Fraction(1), "details": {"in": [[3, 4]]}}),
    "profile": (
        Profile,
        {"header": {"device": {"name": "x"}}, "rows": {"k": Row("k", Fraction(1))}},
    ),
    "costs": (
        CostModel,
        {
            "profiles": [Profile({}, {})],
            "specs": [DeviceSpec("v", {"float32": Fraction(10**9)}, 10**9)],
        },
    ),
    "datasheet": (
        DeviceSpec,
        {
            "kind": "v100",
            "flops": {"float32": Fraction(10**9)},
            "memory_bandwidth": Fraction(10**9),
            "efficiency": {"gemm": Efficiency(Fraction(1, 2))},
            "provenance": {"flops": ["a sheet"]},
        },
    ),
}


def containers(value: Any) -> list[Any]:
    """Every dict and list in a value, itself included."""
    held = list(value.values()) if isinstance(value, dict) else value
    inside = (
        [one for item in held for one in containers(item)]
        if isinstance(held, (list, tuple))
        else []
    )
    return [value, *inside] if isinstance(value, (dict, list)) else inside


def spoil(data: st.DataObject, container: Any) -> None:
    """Write anything anywhere into a container."""
    junk = data.draw(NESTED)
    if isinstance(container, dict):
        key = data.draw(st.sampled_from([*container, "new"]))
        data.draw(st.sampled_from([container.clear, lambda: container.update({key: junk})]))()
    else:
        changes = [container.clear, lambda: container.append(junk), container.reverse]
        data.draw(st.sampled_from(changes))()


@pytest.mark.parametrize("noun", NOUNS)
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_written_into_a_container_later_changes_no_noun(noun, data):
    make, fields = NOUNS[noun]
    mine = copy.deepcopy(fields)
    made, untouched = make(**mine), make(**copy.deepcopy(fields))
    for container in containers(mine)[1:]:
        if data.draw(st.booleans()):
            spoil(data, container)
    assert made == untouched
    assert fingerprint(made) == fingerprint(untouched)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_hands_out_nothing_that_can_be_written_into(noun: str) -> None:
    make, fields = NOUNS[noun]
    made = make(**copy.deepcopy(fields))
    kept = [getattr(made, name) for name in fields]
    assert [one for one in containers(kept)[1:] if not isinstance(one, FrozenDict)] == []
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)


@given(NESTED)
def test_a_frozen_value_is_the_value_in_tuples(value: Any) -> None:
    kept = frozen(value)
    assert json.dumps(kept) == json.dumps(value)
    assert frozen(kept) == kept
    assert pickle.loads(pickle.dumps(kept)) == kept
    hash(kept)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(a=2),
        lambda one: one.__setitem__("a", 2),
        lambda one: one.__delitem__("a"),
        lambda one: one.setdefault("b", 2),
        lambda one: one.pop("a"),
        lambda one: one.popitem(),
        lambda one: one.clear(),
        lambda one: one.__ior__({"b": 2}),
    ],
)
def test_a_frozen_dict_refuses_to_change(change: Callable[[FrozenDict[str, int]], Any]) -> None:
    kept = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(kept)
    assert kept == {"a": 1}
    assert kept | {"b": 2} == {"a": 1, "b": 2}


def layers(count: int = 4) -> Graph:
    """A chain of products, each of 8 samples."""
    made = (Tensor(8 * 16 * 4, (8, 16), "float32"),)
    ops = [Op("x", "input", outputs=made)]
    for k in range(count):
        weight = Op(
            f"w{k}",
            "parameter",
            outputs=(Tensor(16 * 16 * 4, (16, 16), "float32"),),
            param_bytes=16 * 16 * 4,
        )
        ops += [
            weight,
            Op(f"y{k}", "matmul", inputs=(ops[-1].name, f"w{k}"), outputs=made, time=f"{k + 3} us"),
        ]
    return Graph("layers", tuple(ops))


def machine(queues: str) -> Cluster:
    return joined(4, prefix="gpu:", queues=queues, bandwidth="1 GB/s", latency="1 us")


CHOICES = [
    Configuration({"sample": 2}, ("gpu:0", "gpu:1"), "divided"),
    Configuration({"sample": 4}, (), "divided"),
    Configuration({}, ("gpu:3",)),
    Configuration({"sample": 2}, ("gpu:2", "gpu:3"), "divided"),
]


@pytest.mark.parametrize("queues", ["half-duplex", "fair"])
@pytest.mark.parametrize("way", ["oracle", "trace", "in_full", "run", "prepared", "session"])
def test_a_loop_that_writes_into_one_partition_gets_an_answer_of_each(queues, way):
    """One dict, one strategy a turn: every answer is that of a question asked afresh."""
    graph, cluster = layers(), machine(queues)
    oracle = Oracle(graph, cluster)
    shared = prepare(Scenario(graph, cluster, CostModel(), Strategy()))
    answer: dict[str, Callable[[Strategy], int]] = {
        "oracle": lambda asked: oracle(asked).step_ps,
        "trace": lambda asked: oracle.trace(asked).end_ps,
        "in_full": lambda asked: oracle.in_full(asked).step_ps,
        "run": lambda asked: run(Scenario(graph, cluster, CostModel(), asked)).step_ps,
        "prepared": lambda asked: run(Scenario(graph, cluster, CostModel(), asked), shared).step_ps,
        "session": lambda asked: oracle.session(asked).cost.step_ps,
    }
    part: dict[str, Configuration] = {}
    split = {"sample": 2}
    seen, kept = set(), []
    for k in range(4):
        for choice in [*CHOICES, Configuration(split, (), "divided")]:
            part[f"y{k}"] = choice
            kept.append((Strategy(partition=part), dict(part)))
            seen.add(answer[way](kept[-1][0]))
            assert afresh(kept[-1][1], queues) == answer[way](kept[-1][0])
        split["sample"] = 6 - split["sample"]  # a dict of a configuration, too
    assert len(seen) > 4
    assert [answer[way](asked) for asked, _ in kept] == [afresh(told, queues) for _, told in kept]


def afresh(partition: dict[str, Configuration], queues: str) -> int:
    """The step time of a question that shares nothing with any other."""
    configurations = [(k, tuple(c.split.items()), c.devices, c.time) for k, c in partition.items()]
    return step_ps_of(tuple(configurations), queues)


@cache
def step_ps_of(configurations: tuple[Any, ...], queues: str) -> int:
    partition = {
        k: Configuration(dict(split), devices, time) for k, split, devices, time in configurations
    }
    strategy = Strategy(partition=partition)
    return run(Scenario(layers(), machine(queues), CostModel(), strategy)).step_ps


def test_a_sweep_of_one_object_that_is_written_into_has_a_row_of_each() -> None:
    """a 1 us on x, 1 kB at 1 GB/s to b 2 us on y; without the transfer where b is on x."""
    ops = [
        {"name": "a", "time": "1 us", "outputs": [{"bytes": 1000}]},
        {"name": "b", "time": "2 us", "inputs": ["a"]},
    ]
    links = {"all_to_all": {"bandwidth": "1 GB/s"}}
    parts: dict[str, Any] = question(
        {"ops": ops},
        {"devices": [{"name": "x"}, {"name": "y"}], "links": links},
        {"placement": {"a": "x"}},
    )

    def turns() -> Iterator[dict[str, Any]]:
        for device in ("x", "y", "x"):
            parts["strategy"]["placement"]["b"] = device
            yield parts

    assert sweep(turns())["step_time_ps"].tolist() == [3_000_000, 4_000_000, 3_000_000]


def test_changes_that_are_written_into_before_they_are_accepted_stay_what_was_proposed() -> None:
    oracle = Oracle(layers(), machine("half-duplex"))
    session = oracle.session(Strategy(partition={f"y{k}": CHOICES[0] for k in range(4)}))
    changes: dict[str, Configuration | None] = {"y1": CHOICES[1]}
    proposed = session.propose(changes)
    changes["y2"] = CHOICES[2]
    assert session.accept() == proposed
    assert session.strategy.partition == {f"y{k}": CHOICES[int(k == 1)] for k in range(4)}


def test_a_session_keeps_its_start_when_the_array_is_written_into() -> None:
    oracle = Oracle(layers(), machine("half-duplex"))
    start = np.zeros(len(oracle.graph.ops), np.int64)
    session = oracle.session(start)
    start[:] = 1
    session.propose(1, 2)
    session.reject()
    assert session.placement.tolist() == [0] * len(start)
