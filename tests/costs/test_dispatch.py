"""What dispatching costs a host: what rows, headers and datasheets tell, in this order."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from devices import SPEC, US, profile
from simdev import CostModel, Graph, Op
from simdev.costs import HostCost, Profile, Row, op_key
from simdev.costs.dispatch import FIRST, HEAVY, LIGHT
from simdev.files import read_graph, read_profile
from simdev.files.device import device_presets
from simdev.nouns.graph import Tensor

H100 = Path(__file__).parents[2] / "profiles" / "h100"
OUT = (Tensor(32, (8,), "float32"),)
GRAPH = Graph(
    "g",
    (
        Op("w", "parameter", outputs=OUT, param_bytes=32),
        Op("relu", "relu", inputs=("w",), outputs=OUT),
        Op("relu_1", "relu", inputs=("relu",), outputs=OUT),
        Op("softmax", "softmax", inputs=("relu_1",), outputs=OUT),
        Op("told", "softmax", inputs=("softmax",), outputs=OUT, host_time="7 us", launches=3),
        Op("update", "adam_update", "update", inputs=("w", "told")),
    ),
)


def row(graph: Graph, position: int, **details: Any) -> Row:
    key = op_key(graph, position, "fast")
    return Row(key, 5 * US, details={"op": json.loads(key)[1], **details})


def costs(rows: list[Row] | None = None, dispatch: Any = None, **header: Any) -> CostModel:
    profiles = () if rows is None else (Profile({"header": header}, profile(rows).rows),)
    return CostModel(profiles, (replace(SPEC, dispatch=dispatch),))


def of(model: CostModel, name: str, graph: Graph = GRAPH) -> HostCost | None:
    names = [op.name for op in graph.ops]
    return model.host_cost(graph, names.index(name), "fast")


def test_what_nobody_tells_is_unknown_and_one_launch() -> None:
    """The defaults of rule 9: a graph without measured rows was not captured on a device."""
    model = costs()
    assert of(model, "relu") is None
    assert of(model, "w") == HostCost(Fraction(0), 1, "given")
    assert of(model, "told") == HostCost(7 * US, 3, "given")
    assert [model.launches(GRAPH, i, "fast") for i in range(6)] == [1, 1, 1, 1, 3, 1]


def test_bare_calls_tell_what_a_step_spends() -> None:
    calls = {"host_ns": 10_000, "kernel_ns": 1000, "launches": 1}
    rows = [row(GRAPH, 1, **calls), row(GRAPH, 5, host_ns=99, kernel_ns=9, launches=7)]
    model = costs(rows)
    found = [of(model, op.name) for op in GRAPH.ops]
    seconds = [cost.seconds for cost in found if cost is not None]
    ten = 10 * US
    # An update is a light dispatch a launch; the second relu is no longer the first of its key.
    light, heavy = LIGHT + FIRST, HEAVY + FIRST
    assert seconds == [0, ten * light, ten * LIGHT, ten * heavy, 7 * US, ten * (7 * LIGHT + FIRST)]
    assert {cost.rung for cost in found if cost is not None} == {"given", "estimated"}
    assert [model.launches(GRAPH, i, "fast") for i in range(6)] == [0, 1, 1, 1, 3, 7]


@pytest.mark.parametrize(("told", "bare"), [(None, 10), (14, 14), (8, 8), (16, 10), (5, 10)])
def test_rows_rescale_a_datasheet_only_where_they_tell_of_another_host(
    told: int | None, bare: int
) -> None:
    rows = [row(GRAPH, 1, host_ns=10_000, kernel_ns=1000, launches=1)]
    found = of(costs(rows, None if told is None else told * US), "relu_1")
    assert found is not None
    assert (found.seconds, found.rung) == (bare * US * LIGHT, "estimated")


def test_a_datasheet_tells_of_hosts_that_nobody_measured() -> None:
    found = of(costs(dispatch=5 * US), "softmax")
    assert found is not None
    assert (found.rung, found.rel_err) == ("datasheet", 0.5)
    assert found.seconds == 5 * US * (HEAVY + FIRST)
    # The rows of a CPU tell no kernels: their calls are the op itself.
    found = of(costs([row(GRAPH, 1, host_ns=10_000, launches=1)], 5 * US), "softmax")
    assert found is not None
    assert found.rung == "datasheet"


def test_times_of_a_real_step_go_first() -> None:
    step = {"phases": {"forward": {"host_s": 0.0006, "ops": 3}}}
    rows = [row(GRAPH, 1, host_step_ns=21_500, launches=2), row(GRAPH, 3, host_ns=10_000)]
    model = costs(rows, 5 * US, host=step)
    assert of(model, "relu") == HostCost(Fraction("21.5") * US, 2, "measured")
    found = of(model, "softmax")
    assert found is not None
    assert (found.seconds, found.rung) == (200 * US, "estimated")
    # A trace's row of one of many updates has a share of the optimizer's step.
    share = replace(rows[0], source="fitted", details={**rows[0].details, "note": "its share"})
    found = of(costs([share]), "relu")
    assert found == HostCost(Fraction("21.5") * US, 2, "estimated", 0.2, "its share")


@pytest.mark.parametrize(
    "header",
    [
        *({"host": {"phases": {"forward": part}}} for part in (
            {"host_s": "soon", "ops": 3}, {"host_s": 1, "ops": [3]}, {"host_s": -1, "ops": 3},
            {"host_s": float("nan"), "ops": 3}, {"host_s": 1, "ops": 0}, 7,
            {"host_s": 1e30, "ops": 3},
        )),
        {"host": {"phases": [1]}},
        *({"step": {"ops": 2, "phases": part}} for part in (
            [1], {"forward": {"measured_step_s": "soon"}}, {"forward": {"measured_step_s": [1]}},
        )),
    ],
)  # fmt: skip
def test_headers_that_tell_no_numbers_tell_nothing(header: dict[str, Any]) -> None:
    calls = {"host_ns": 10_000, "kernel_ns": 1000, "launches": 1}
    rows = [row(GRAPH, 1, **calls), row(GRAPH, 5, **calls)]
    assert of(costs(rows, **header), "relu") == of(costs(rows), "relu")


def test_what_would_take_longer_than_any_time_is_unknown() -> None:
    """A bare call of 50 days may be: several of them are not."""
    model = costs([row(GRAPH, 1, host_ns=43 * 10**14, kernel_ns=1000, launches=1)])
    assert of(model, "softmax") is None
    rows = profile([row(GRAPH, 1, kernel_ns=1000, launches=5 * 10**6)])
    for gap, known in ((Fraction(1, 2), True), (Fraction(1), False)):
        slow = CostModel((rows,), (replace(SPEC, launch_gap=gap),))
        assert (slow.cost(GRAPH, 1, "fast") is not None) == known


def test_a_copy_into_memory_that_is_there_is_a_bare_call_and_a_clone_is_none() -> None:
    """A clone follows views of a module, and autograd notes it: 70 to 115 us of the host in traces
    of an H100 whose bare calls take 14 us.
    """
    made = [Op(kind, kind, inputs=("w",), outputs=OUT) for kind in ("copy", "clone")]
    graph = Graph("g", (GRAPH.ops[0], *made))
    estimates = [of(costs(dispatch=10 * US), op.name, graph) for op in made]
    assert [cost.seconds for cost in estimates if cost] == [
        10 * US * (LIGHT + FIRST),
        10 * US * (HEAVY + FIRST),
    ]


def test_halves_of_a_convolution_s_backward_are_one_call() -> None:
    image, weight = Tensor(64, (1, 1, 4, 4), "float32"), Tensor(4, (1, 1, 1, 1), "float32")
    ops = [Op("x", "input", outputs=(image,)), Op("w", "parameter", outputs=(weight,))]
    for name, reads, made in (("input", ("x", "w"), image), ("weight", ("x", "x"), weight)):
        ops.append(Op(name, f"conv2d_backward_{name}", "backward", reads, outputs=(made,)))
    graph = Graph("g", tuple(ops))
    model = costs(dispatch=10 * US)
    found = [of(model, name, graph) for name in ("input", "weight")]
    assert [cost.seconds for cost in found if cost] == [
        10 * US * (HEAVY + FIRST),
        10 * US * (LIGHT + FIRST),
    ]


@pytest.mark.parametrize("model", ["gnmt", "mlp", "nasnet-mobile"])
def test_forward_of_a_model_that_the_host_holds_up_on_an_h100(model: str) -> None:
    rows = read_profile(H100 / f"{model}.h100-sxm.jsonl")
    graph = read_graph(H100 / rows.header["header"]["graph"])
    measured = [json.loads(x) for x in (H100 / "measured/steps.jsonl").read_text().splitlines()]
    batch = rows.header["header"]["sizes"]["batch"]
    (step,) = (x for x in measured if (x["model"], x["sizes"]["batch"]) == (model, batch))
    ladder = CostModel((rows,), device_presets())
    ops = [i for i, op in enumerate(graph.ops) if op.phase == "forward"]
    found = [ladder.host_cost(graph, i, "h100-sxm") for i in ops]
    total = 1e3 * float(sum(cost.seconds for cost in found if cost is not None))
    assert None not in found
    assert total == pytest.approx(step["host_ms"]["forward"], rel=0.25)


def test_a_step_that_the_host_held_up_tells_its_phases() -> None:
    calls = {"host_ns": 10_000, "kernel_ns": 1000, "launches": 1}
    rows = [row(GRAPH, i, **calls) for i in (1, 3, 5)]
    step = {"ops": 5, "phases": {"forward": {"measured_step_s": 0.001}}}
    plain, held = (of(costs(rows, **header), "relu_1") for header in ({}, {"step": step}))
    assert plain is not None
    assert held is not None
    # Within 15 % of what its phase lasted: the difference of two runs.
    forward = (2 * LIGHT + FIRST + 2 * HEAVY + FIRST) * 10 * US
    assert 0.8 < float(held.seconds / plain.seconds * forward) / 0.001 < 1.0
    other = {**step, "ops": 6}  # of another graph
    assert of(costs(rows, step=other), "relu_1") == plain


def test_parts_of_a_split_op_have_a_first_dispatch_each() -> None:
    ops = tuple(
        Op(f"relu{i}#{part}", "relu", inputs=("x",), outputs=OUT) for i in range(2) for part in "01"
    )
    graph = Graph("split", (Op("x", "input", outputs=OUT), *ops))
    model = costs([row(GRAPH, 1, host_ns=10_000, kernel_ns=1000, launches=1)])
    found = [of(model, op.name, graph) for op in ops]
    first, light = 10 * US * (LIGHT + FIRST), 10 * US * LIGHT
    assert [cost and cost.seconds for cost in found] == [first, first, light, light]
