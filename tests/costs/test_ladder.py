"""The cost ladder in reports and scenarios, what it computes and when, and hostile input."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices import (
    MODELS,
    SLOW,
    SPEC,
    US,
    answer,
    asked,
    key,
    lasting,
    load,
    op_of,
    product,
    products,
    profile,
    relu,
)
from simdev import CostModel, Graph, InputError, Scenario, load_scenario, run
from simdev.costs import DeviceSpec, Efficiency, Row, op_key
from simdev.costs.roofline import rounded
from simdev.files import read_profile
from simdev.ground.errors import MissingCostError
from simdev.nouns.semantics import work
from worlds.scenarios import alone, question

# From the profile to the report.


def scenario(costs: CostModel, texts: Sequence[str]) -> Scenario:
    ops = [op for i, text in enumerate(texts) for op in op_of(text, f"op{i}")]
    return alone(Graph("g", tuple(ops)), "fast", costs=costs)


def test_the_step_on_one_device_is_the_exact_sum_of_its_rows() -> None:
    rng = np.random.default_rng(2)
    texts = products(40)
    rows = [Row(text, Fraction(int(rng.integers(10**6, 10**9)), 10**12)) for text in texts]
    report = run(scenario(CostModel((profile(rows),)), texts))
    assert report.step_ps == sum(row.seconds for row in rows) * 10**12
    assert (report.costs, report.cost_misses, report.cost_rel_err) == ({"measured": 1.0}, (), 0.0)


def test_the_report_tells_what_was_not_measured() -> None:
    texts = products(30)
    costs = CostModel((profile(lasting(text) for text in texts),), (SPEC,))
    wanted = [texts[0], relu(10**6), relu(10**6), relu(4 * 10**6)]
    report = run(scenario(costs, wanted))
    seconds = [float(answer(costs, text).seconds) for text in wanted]
    assert report.costs == pytest.approx(
        {"measured": seconds[0] / sum(seconds), "roofline": sum(seconds[1:]) / sum(seconds)}
    )
    assert [
        (miss.op, miss.kind, miss.device_kind, miss.count, miss.rung) for miss in report.cost_misses
    ] == [
        ("op3", "relu", "fast", 1, "roofline"),
        ("op1", "relu", "fast", 2, "roofline"),
    ]
    assert report.cost_misses[1].seconds == pytest.approx(2 * seconds[1])
    assert report.cost_rel_err == pytest.approx(0.5 * sum(seconds[1:]) / sum(seconds))
    found = json.loads(json.dumps(report.to_json()))
    assert found["cost_misses"][0] | {"time_s": 0} == {
        "op": "op3",
        "kind": "relu",
        "device_kind": "fast",
        "count": 1,
        "time_s": 0,
        "rung": "roofline",
        "rel_err": 0.5,
        "basis": "datasheet",
    }
    assert found["cost_rel_err"] == report.cost_rel_err
    for text in (str(report), report._repr_html_()):
        assert "Op times that were not measured" in text
        assert "op3" in text
        assert "(expected error " in text


def test_strict_names_every_op_that_was_not_measured() -> None:
    texts = products(30)
    costs = CostModel((profile(lasting(text) for text in texts),), (SPEC,), strict=True)
    with pytest.raises(MissingCostError) as found:
        run(scenario(costs, [texts[0], relu(8), product(5, 6, 7)]))
    assert [problem.split(" on a")[0] for problem in found.value.problems] == [
        'ops[4]: no given or measured time for "op1"',
        'ops[7]: no given or measured time for "op2"',
    ]


def test_what_no_rung_knows_fails_by_name() -> None:
    with pytest.raises(MissingCostError, match='no time for "op0" on a device of kind "fast"'):
        run(scenario(CostModel(), [key([(8,)], (8,), "no_such_kind")]))


def test_an_estimate_beyond_what_times_can_be_fails_by_name() -> None:
    costs = CostModel(specs=(DeviceSpec("fast", {"float32": Fraction(10**6)}, Fraction(10**6)),))
    reason = r'"op0" on a device of kind "fast" \(it is estimated at .* s, more than 53 days; key'
    with pytest.raises(MissingCostError, match=reason):
        run(scenario(costs, [product(2**16, 2**16, 2**16)]))


def test_an_estimate_that_tells_no_error_leaves_that_of_the_step_unknown() -> None:
    costs = CostModel((profile([lasting(relu(4096, "slow"), SLOW)]),), (SPEC, SLOW))
    report = run(scenario(costs, [relu(4096)]))
    assert report.costs == {"scaled": 1.0}
    assert report.cost_rel_err is None
    assert report.to_json()["cost_rel_err"] is None
    assert "(expected error not known)" in str(report)


# At the door of scenarios.

FLOATS = {"bytes": 4096, "shape": [1024], "dtype": "float32"}
OPS = [
    {"name": "x", "kind": "input", "outputs": [FLOATS]},
    {"name": "a", "kind": "relu", "inputs": ["x"], "outputs": [FLOATS]},
]


def relu_on(kind: str, **parts: Any) -> dict[str, Any]:
    """A relu of 1,024 floats on one device, as its file tells it."""
    cluster = {"version": 1, "devices": [{"name": "d:0", "kind": kind}]}
    return question({"ops": OPS}, cluster, {"placement": {"*": "d:0"}}, **parts)


def datasheet(kind: str, rate: str = "1 GB/s") -> dict[str, Any]:
    return {
        "version": 1,
        "kind": kind,
        "flops": {"float32": "1 TFLOP/s"},
        "memory_bandwidth": rate,
        "launch": "1 us",
    }


def test_a_shipped_datasheet_answers_for_its_kind_of_device() -> None:
    report = run(load_scenario(relu_on("h100-sxm")))
    assert report.costs == {"roofline": 1.0}
    assert [miss.op for miss in report.cost_misses] == ["a"]


def test_a_scenario_brings_its_own_datasheets(tmp_path: Path) -> None:
    """1 us, and 8,192 bytes at 0.75 GB/s; its own datasheet goes before a shipped one."""
    (tmp_path / "d.json").write_text(json.dumps(datasheet("h100-sxm")))
    for devices in (
        datasheet("mine"),
        [datasheet("h100-sxm"), datasheet("mine")],
        str(tmp_path / "d.json"),
    ):
        kind = "mine" if isinstance(devices, dict) else "h100-sxm"
        step = run(load_scenario(relu_on(kind, devices=devices))).step_ps
        assert step == pytest.approx(1e6 + 8192 / 0.75e9 * 1e12, rel=1e-5)


def test_without_a_datasheet_or_rows_an_op_fails_as_ever() -> None:
    with pytest.raises(MissingCostError, match='no time for "a" on a device of kind "mine"'):
        run(load_scenario(relu_on("mine")))


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        ([datasheet("mine"), datasheet("mine")], 'devices: two of kind "mine"'),
        ([datasheet("mine", "1 GB")], r"devices\[0\]\.memory_bandwidth: "),
        (7, "devices: must be a path or an object, got 7"),
    ],
)
def test_broken_datasheets_of_a_scenario_are_told(devices: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_scenario(relu_on("mine", devices=devices))


def test_rows_of_another_kind_are_scaled_by_shipped_datasheets() -> None:
    row = {
        "v": 1,
        "op": "relu",
        "attrs": {},
        "in": [[1024]],
        "dt": ["float32"],
        "out": [[1024]],
        "dev": "p100",
    }
    rows = [row | {"phase": "fwd", "t_ns": {"p50": 9000}}]
    report = run(load_scenario(relu_on("h100-sxm", profile={"rows": rows})))
    assert [(miss.rung, miss.basis) for miss in report.cost_misses] == [("scaled", "from p100")]


# Only what is asked for is computed, and always alike.


def test_no_table_is_built_while_every_op_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = products(30)
    costs = CostModel((profile(lasting(text) for text in texts),), (SPEC,))
    monkeypatch.setattr("simdev.costs.ladder.rows_by_class", None)
    assert all(answer(costs, text).rung == "measured" for text in texts)
    with pytest.raises(TypeError):
        asked(costs, product(5, 6, 7))


def test_an_op_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = CostModel((profile(lasting(text) for text in products(30)),), (SPEC,))
    first = answer(costs, product(5, 6, 7))
    monkeypatch.setattr("simdev.costs.ladder.load_of", None)
    assert answer(costs, product(5, 6, 7)) is first


def test_estimates_are_the_same_after_a_copy_and_in_another_order_of_questions() -> None:
    rng = np.random.default_rng(7)
    rows = [lasting(text, factor=float(np.exp(rng.normal(0, 0.2)))) for text in products(60)]
    wanted = [*products(10, seed=8), relu(10**6)]
    costs = CostModel((profile(rows),), (SPEC,))
    found = [asked(costs, text) for text in wanted]
    again = CostModel((profile(rows),), (SPEC,))
    assert [asked(again, text) for text in reversed(wanted)] == found[::-1]
    copy = pickle.loads(pickle.dumps(costs))
    assert copy == costs
    assert [asked(copy, text) for text in wanted] == found


def test_estimates_have_six_digits() -> None:
    found = answer(MODELS[0], product(123, 457, 789)).seconds
    assert found == Fraction(f"{float(found):.5e}")
    assert rounded(1.23456789e-5) == Fraction("0.0000123457")


# Hostile input.


def test_two_datasheets_of_one_kind_are_refused() -> None:
    with pytest.raises(InputError, match='specs: two of kind "fast"'):
        CostModel(specs=(SPEC, SPEC))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"flops": {}}, "flops: must name the peak of one dtype"),
        ({"flops": {"float32": Fraction(0)}}, r"flops\.float32: must be"),
        ({"flops": {"float32": Fraction(10**22)}}, r"flops\.float32: must be"),
        # TFLOP/s, unit forgotten
        ({"flops": {"float32": Fraction(67)}}, r"flops\.float32: must be from 10\^6"),
        (
            {"flops": {"fp32": Fraction(10**13), "float16": Fraction(10**12)}},
            'flops.fp32: write it "float32"',
        ),
        (
            {"flops": {"floaty": Fraction(10**13)}},
            'flops: no dtype "floaty"; there are float64, float32',
        ),
        ({"memory_bandwidth": Fraction(-1)}, "memory_bandwidth: must be"),
        ({"memory_bandwidth": Fraction(3350)}, r"memory_bandwidth: must be from 10\^6"),
        ({"launch": Fraction(2)}, "launch: must be"),
        ({"kind": ""}, "kind: must be 1 to 256 printable characters"),
        (
            {"efficiency": {"gem": Efficiency(Fraction(1, 2))}},
            'efficiency: no op class "gem"; there are default, gemm',
        ),
    ],
)
def test_datasheets_that_cannot_be(fields: dict[str, Any], problem: str) -> None:
    whole: dict[str, Any] = {
        "kind": "d",
        "flops": {"float32": Fraction(10**12)},
        "memory_bandwidth": Fraction(10**11),
    }
    with pytest.raises(InputError, match=problem):
        DeviceSpec(**(whole | fields))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Efficiency(compute=Fraction(0)), "compute: must be a fraction"),
        (lambda: Efficiency(memory=Fraction(5)), "memory: must be a fraction"),
        (lambda: Efficiency(overhead=Fraction(-1)), "overhead: must be"),
    ],
)
def test_efficiencies_that_cannot_be(make: Callable[[], Efficiency], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make()


EXTENTS = st.one_of(st.integers(0, 9), st.sampled_from([2**20, 2**40, 2**60, 10**30, -1]))
SHAPES = st.lists(st.one_of(st.none(), st.lists(EXTENTS, max_size=3)), max_size=3)
ROWS = st.fixed_dictionaries(
    {
        "v": st.just(1),
        "op": st.sampled_from(["matmul", "relu", "add", "conv2d", "no_such_kind", "softmax"]),
        "attrs": st.dictionaries(
            st.sampled_from(["dim", "transpose_a", "strides"]),
            st.integers(-1, 2) | st.text(max_size=2),
        ),
        "in": SHAPES,
        "dt": st.lists(
            st.one_of(st.none(), st.sampled_from(["float32", "bf16", "int64", "?"])), max_size=3
        ),
        "out": SHAPES,
        "dev": st.just("fast"),
        "phase": st.just("fwd"),
        "t_ns": st.fixed_dictionaries({"p50": st.integers(0, 10**12)}),
    }
)


@given(st.lists(ROWS, max_size=24), st.lists(ROWS, min_size=1, max_size=3), st.booleans())
def test_hostile_rows_give_a_positive_time_or_none(
    rows: list[Any], wanted: list[Any], has_spec: bool
) -> None:
    try:
        found = read_profile({"rows": rows})
    except InputError:
        return
    costs = CostModel((found,), (SPEC,) if has_spec else ())
    for text in [text for row in wanted for text in keys_of(row)]:
        cost = costs.cost_of_key(text, json.loads(text)[1], "fast")
        assert cost is None or cost.rung == "measured" or cost.seconds > 0
        assert cost is None or cost.rel_err is None or cost.rel_err >= 0


def keys_of(row: dict[str, Any]) -> list[str]:
    try:
        return list(read_profile({"rows": [row]}).rows)
    except InputError:
        return []


@pytest.mark.parametrize(
    "rows",
    [
        [Row(relu(i), Fraction(0)) for i in range(1, 12)],
        [Row(relu(1000), US)],
        [Row(relu(i), US) for i in range(1, 12)],
        [Row(relu(1000 + i), US * 10 ** (i % 7)) for i in range(20)],
        [Row(relu(i), 4 * 10**6 * Fraction(1)) for i in range(1, 12)],
    ],
    ids=["no time", "one row", "all alike", "wild", "53 days"],
)
def test_profiles_that_teach_nothing(rows: list[Row]) -> None:
    found = answer(CostModel((profile(rows),), (SPEC,)), relu(5000))
    assert 0 < found.seconds < 10**8
    assert math.isfinite(found.rel_err or 0)


def test_the_work_of_an_op_is_asked_of_its_semantics() -> None:
    found = load(product(3, 5, 7))
    same = work("matmul", {}, [(3, 5), (5, 7)], [(3, 7)], ["float32"] * 2, None)
    assert same is not None
    assert (found.flops, found.read, found.written) == (
        same.flops,
        same.bytes_read,
        same.bytes_written,
    )
    assert found.flops == 2 * 3 * 5 * 7
    assert found.op_class == "gemm"


def test_keys_of_graph_and_test_agree() -> None:
    ops = op_of(product(3, 5, 7))
    assert op_key(Graph("g", ops), len(ops) - 1, "fast") == product(3, 5, 7)
