"""Ops of kinds that simdev does not describe: one pass over memory, told, and refused if strict."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev import CostModel, Graph, Op, Strategy, load_scenario, oracle_of, run, sweep
from simdev.commands import main
from simdev.costs import DeviceSpec, Profile, Row, op_key
from simdev.ground.errors import MissingCostError
from simdev.nouns.graph import Tensor
from simdev.nouns.semantics.dtype import BITS
from simdev.report.page.step import Subject, notes
from simdev.search import search
from worlds.scenarios import question

SPEC = DeviceSpec("d", {"float32": Fraction(10**13)}, Fraction(10**11))
COSTS = CostModel(specs=(SPEC,))
SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)
TENSORS = st.lists(st.tuples(SHAPES, st.sampled_from(sorted(BITS))), max_size=3)


def tensor(shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
    return Tensor(-(-prod(shape) * BITS[dtype] // 8), shape, dtype)


def graph_of(reads: Any, makes: Any, kind: str = "mystery", **fields: Any) -> Graph:
    """An op behind inputs that make what it reads."""
    inputs = tuple(Op(f"i{k}", "input", outputs=(tensor(*t),)) for k, t in enumerate(reads))
    outputs = tuple(tensor(*t) for t in makes)
    names = tuple(op.name for op in inputs)
    return Graph("g", (*inputs, Op("x", kind, inputs=names, outputs=outputs, **fields)))


@given(TENSORS, TENSORS)
def test_it_moves_its_operands_and_outputs_once(reads: Any, makes: Any) -> None:
    graph = graph_of(reads, makes)
    cost = COSTS.cost(graph, len(graph.ops) - 1, "d")
    moved = sum(tensor(*each).bytes for each in (*reads, *makes))
    assert cost is not None
    assert (cost.seconds, cost.rung, cost.rel_err) == (Fraction(moved, 10**11), "memory pass", 1.0)


@given(TENSORS, TENSORS)
def test_operands_as_executed_count(reads: Any, makes: Any) -> None:
    """Views were folded away: the op reads parts of what its inputs made."""
    attrs = {"in": [shape for shape, _ in reads], "dt": [dtype for _, dtype in reads]}
    made = [((10, *shape), dtype) for shape, dtype in reads]
    part, whole = graph_of(made, makes, attrs=attrs), graph_of(reads, makes)
    position = len(whole.ops) - 1
    assert COSTS.cost(part, position, "d") == COSTS.cost(whole, position, "d")


def test_an_expanded_operand_is_one_element() -> None:
    attrs = {"in": [[1000, 1000]], "dt": ["float32"], "strides": [[0, 0]]}
    cost = COSTS.cost(graph_of([((), "float32")], [((5,), "float32")], attrs=attrs), 1, "d")
    assert cost is not None
    assert cost.seconds == Fraction(4 + 20, 10**11)


def test_it_takes_a_launch_at_least() -> None:
    spec = replace(SPEC, launch_gap=Fraction(1, 10**6))
    graph = graph_of([((), "float32")], [((), "float32")])
    cost = CostModel(specs=(spec,)).cost(graph, 1, "d")
    assert cost is not None
    assert cost.seconds == Fraction(215, 10**8)


def test_every_other_rung_goes_before() -> None:
    graph = graph_of([((8,), "float32")], [((8,), "float32")])
    key, seconds = op_key(graph, 1, "d"), Fraction(1, 1000)
    profile = Profile.of_rows({}, [Row(key, seconds)])
    measured = CostModel(profile, (SPEC,)).cost(graph, 1, "d")
    assert measured is not None
    assert (measured.rung, measured.seconds) == ("measured", seconds)
    for fields, rung in ({"time": 2}, "given"), ({"kind": "relu"}, "roofline"):
        cost = COSTS.cost(graph_of([((8,), "float32")], [((8,), "float32")], **fields), 1, "d")
        assert cost is not None
        assert cost.rung == rung


@pytest.mark.parametrize(
    ("graph", "costs"),
    [
        (graph_of([], [((8,), "float32")]), CostModel()),  # no datasheet
        (graph_of([], [((8,), "float32")]), replace(COSTS, strict=True)),
        (graph_of([], [((8,), "float32")], kind="op"), COSTS),  # no kind is told
        (graph_of([((8,), "float32")], [((9,), "float32")], kind="relu"), COSTS),  # no relu
        (graph_of([], [((10**17,), "float64")]), COSTS),  # beyond what times can be
    ],
)
def test_what_has_no_cost_still(graph: Graph, costs: CostModel) -> None:
    assert costs.cost(graph, len(graph.ops) - 1, "d") is None


def test_tensors_without_elements_take_nothing() -> None:
    empty = (((3, 0), "float32"), ((0, 4), "float32"))
    made = graph_of(empty, [((3, 4), "float32")], kind="matmul")
    nothing = graph_of([((0, 4), "float32")], [((0, 4), "float32")], kind="copy")
    seconds = []
    for graph in made, nothing:
        cost = COSTS.cost(graph, len(graph.ops) - 1, "d")
        assert cost is not None
        seconds.append(cost.seconds)
    assert seconds == [Fraction(48, 10**11), 0]


# A step with two such kinds, on every way through simdev.

FLOATS = {"bytes": 4 * 64 * 64, "shape": [64, 64], "dtype": "float32"}


def op(name: str, kind: str, *inputs: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "inputs": list(inputs), "outputs": [FLOATS], **fields}


OPS = [
    op("x", "input"),
    op("w", "parameter", param_bytes=FLOATS["bytes"]),
    op("a", "matmul", "x", "w"),
    op("b", "index", "a"),
    op("c", "relu", "b"),
    op("d", "topk", "c"),
    op("e", "index", "d"),
    op("dw", "matmul", "x", "e", phase="backward", attrs={"transpose_a": True}),
    {"name": "u", "kind": "sgd_update", "inputs": ["w", "dw"], "phase": "update", "outputs": []},
]
PASS_PS = round(2 * FLOATS["bytes"] / 3.35e12 * 1e12)


ALONE = {"placement": {"*": "gpu:0"}}
PARALLEL = {"version": 1, "short": "data-parallel", "devices": ["gpu:0", "gpu:1"]}


@pytest.mark.parametrize("strategy", [ALONE, PARALLEL, {"placement": {"*": "gpu:0", "d": "gpu:1"}}])
def test_it_is_told_wherever_a_step_is_simulated(strategy: Any) -> None:
    scenario = load_scenario(question({"ops": OPS}, "dgx-h100", strategy))
    report = run(scenario)
    assert report.costs["memory pass"] > 0
    misses = {miss.kind: miss for miss in report.cost_misses if miss.rung == "memory pass"}
    assert {kind: (miss.count, miss.rel_err) for kind, miss in misses.items()} == {
        "index": (2, 1.0),
        "topk": (1, 1.0),
    }
    assert misses["topk"].seconds >= PASS_PS / 1e12
    note = "No description of index (2), topk (1): each such op is one pass over memory"
    of_page = "\n".join(notes(Subject("mine", report, scenario)))
    for text in (str(report), report._repr_html_(), of_page):
        assert note in text
    assert "memory pass" in report.to_json()["costs"]
    assert oracle_of(scenario)(scenario.strategy).step_ps == report.step_ps


def test_it_stays_whole_where_others_are_split() -> None:
    report = run(load_scenario(question({"ops": OPS}, "dgx-h100", PARALLEL)))
    assert {(cost.op, cost.kind) for cost in report.whole} >= {("b", "index"), ("d", "topk")}


def test_searches_and_sweeps_know_it() -> None:
    scenario = load_scenario(question({"ops": OPS}, "dgx-h100", ALONE))
    result = search(scenario, "annealing", budget=20)
    assert result.cost.step_ps <= run(scenario).step_ps
    frame = sweep([question({"ops": OPS}, "dgx-h100", ALONE)])
    assert frame["cost_estimated"][0] == 1.0


@pytest.mark.parametrize("strategy", [ALONE, PARALLEL])
def test_a_strict_step_is_refused_and_lists_the_kinds(strategy: Any) -> None:
    scenario = load_scenario(question({"ops": OPS}, "dgx-h100", strategy))
    scenario = replace(scenario, costs=replace(scenario.costs, strict=True))
    line = 'simdev has no description of the kinds of ops "index" (2), "topk" (1)'
    with pytest.raises(MissingCostError) as error:
        run(scenario)
    assert error.value.problems[0] == line
    with pytest.raises(MissingCostError) as error:
        oracle_of(scenario)(scenario.strategy)
    assert error.value.problems[0] == line


def test_the_command_tells_refuses_and_judges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(question({"ops": OPS}, "dgx-h100", ALONE)))
    assert main(["simulate", str(file), "--check"]) == 0
    assert "No description of index (2), topk (1)" in capsys.readouterr().out
    assert main(["simulate", str(file), "--strict"]) == 2
    assert capsys.readouterr().err.startswith(f"{file}: simdev has no description of the kinds")


def test_a_collective_without_ranks_is_no_pass_over_memory() -> None:
    graph = Graph("g", (Op("c", "all_reduce", outputs=(tensor((8,)),)),))
    scenario = load_scenario(question({"ops": OPS}, "dgx-h100", ALONE))
    with pytest.raises(MissingCostError, match=r"names its devices in attrs\.ranks"):
        run(replace(scenario, graph=graph, strategy=Strategy({"c": "gpu:0"})))
