"""The cost ladder: fits recover synthetic devices, every rung is where it belongs and tells its
error.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev import CostModel, Graph, InputError, Op, Scenario, Strategy, load_scenario, run
from simdev.cluster import Cluster, Device
from simdev.costs import DeviceSpec, Efficiency, OpCost, Profile, Row, op_key, profile_key
from simdev.costs.fit import Fit, Points, fit_scalars, predicted
from simdev.costs.groups import Neighbours
from simdev.costs.roofline import (
    CLASS_DEFAULT,
    Load,
    Scalars,
    ideal_seconds,
    load_of,
    peak_flops,
    rounded,
)
from simdev.errors import MissingCostError
from simdev.files import read_profile
from simdev.graph import Tensor
from simdev.semantics import work

US = Fraction(1, 10**6)
SPEC = DeviceSpec("fast", {"float32": Fraction(10**14)}, Fraction(10**12))
SLOW = DeviceSpec("slow", {"float32": Fraction(10**12)}, Fraction(10**11))
KNOWN = Scalars(0.62, 0.81, 4e-6)


def key(
    shapes: Sequence[Sequence[int]], out: Sequence[int], kind: str = "matmul", device: str = "fast"
) -> str:
    return profile_key(kind, {}, shapes, ["float32"] * len(shapes), [out], "fwd", device)


def product(m: int, k: int, n: int, device: str = "fast") -> str:
    return key([(m, k), (k, n)], (m, n), "matmul", device)


def relu(count: int, device: str = "fast") -> str:
    return key([(count,)], (count,), "relu", device)


def load(text: str) -> Load:
    found = load_of(text)
    assert found is not None
    return found


def lasting(
    text: str, spec: DeviceSpec = SPEC, scalars: Scalars = KNOWN, factor: float = 1.0
) -> Row:
    """A row of a device that keeps to the model exactly, but for a factor."""
    return Row(text, Fraction(scalars.seconds(ideal_seconds(load(text), spec)) * factor))


def profile(rows: Iterable[Row]) -> Profile:
    return Profile.of_rows({}, list({row.key: row for row in rows}.values()))


def products(count: int, seed: int = 0, device: str = "fast") -> list[str]:
    rng = np.random.default_rng(seed)
    return [product(*map(int, 2 ** rng.uniform(4, 12, 3)), device) for _ in range(count)]


def op_of(text: str, name: str = "a", **fields: Any) -> tuple[Op, ...]:
    """An op with the key, and the ops that make what it reads."""
    _, kind, _, attrs, shapes, dtypes, outs = json.loads(text)
    made = [
        Op(f"{name}_{i}", "input", outputs=(tensor(shape, dtype),), time=0)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    outputs = tuple(tensor(shape, "float32") for shape in outs)
    return *made, Op(
        name, kind, inputs=tuple(op.name for op in made), outputs=outputs, attrs=attrs, **fields
    )


def tensor(shape: Sequence[int], dtype: str) -> Tensor:
    return Tensor(4 * math.prod(shape), tuple(shape), dtype)


def asked(costs: CostModel, text: str, **fields: Any) -> OpCost | None:
    """What a cost model says of the op with a key, on the kind of device that the key names."""
    ops = op_of(text, **fields)
    return costs.cost(Graph("g", ops), len(ops) - 1, json.loads(text)[0])


def answer(costs: CostModel, text: str, **fields: Any) -> OpCost:
    found = asked(costs, text, **fields)
    assert found is not None
    return found


# The three scalars.


def scalars_of(costs: CostModel, op_class: str) -> Scalars:
    fit = costs.estimates.group("fast", op_class).fit
    assert fit is not None
    return fit.scalars


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_fit_recovers_a_known_device(seed: int, noise: float) -> None:
    """Sizes over seven decades, half of them bound by compute."""
    rng = np.random.default_rng(seed)
    known = Scalars(rng.uniform(0.2, 1), rng.uniform(0.2, 1), rng.uniform(1e-6, 2e-5))
    compute = 10 ** rng.uniform(-7, -1, 300)
    memory = compute * 10 ** rng.uniform(-1.5, 1.5, 300)
    points = Points(compute, memory, np.ones(300))
    seconds = predicted(known, points) * np.exp(rng.normal(0, noise, 300))
    found = fit_scalars(Points(compute, memory, seconds))
    ratios = (
        found.compute / known.compute,
        found.memory / known.memory,
        found.overhead / known.overhead,
    )
    assert max(abs(ratio - 1) for ratio in ratios) < 0.02


def test_the_fit_recovers_a_device_from_the_rows_of_its_profile() -> None:
    rows = [lasting(text) for text in products(120)]
    fitted = scalars_of(CostModel((profile(rows),), (SPEC,)), "gemm")
    assert (fitted.compute, fitted.memory, fitted.overhead) == pytest.approx(
        (0.62, 0.81, 4e-6), rel=0.02
    )


def test_a_fit_needs_no_datasheet() -> None:
    """Its scalars are FLOP/s and bytes/s then."""
    rows = [lasting(text) for text in products(120)]
    fitted = scalars_of(CostModel((profile(rows),)), "gemm")
    assert (fitted.compute, fitted.memory) == pytest.approx((0.62e14, 0.81e12), rel=0.02)


def test_what_no_row_shows_is_taken_from_the_datasheet() -> None:
    """Rows that are all bound by memory tell nothing of the peak FLOP/s."""
    costs = CostModel((profile([lasting(relu(2**i + i)) for i in range(8, 26)]),), (SPEC,))
    fitted = scalars_of(costs, "elementwise")
    assert fitted.memory == pytest.approx(0.81, rel=0.02)
    assert fitted.compute == pytest.approx(float(CLASS_DEFAULT.compute or 0))


def test_the_error_of_a_fit_is_that_of_rows_left_out() -> None:
    """Lognormal noise of 10 % errs 8 % in the mean, and an outlier counts."""
    rng = np.random.default_rng(1)
    memory = 10 ** rng.uniform(-6, -2, 400)
    points = Points(memory / 5, memory, (1e-6 + memory / 0.7) * np.exp(rng.normal(0, 0.1, 400)))
    assert Fit(points).error == pytest.approx(0.08, rel=0.15)
    points.seconds[7] /= 41
    assert Fit(points).error == pytest.approx(0.18, rel=0.15)


def test_a_kind_of_few_rows_is_its_class_slowed_down() -> None:
    """Three rows of a kind that takes five times as long as the rest of its class."""
    sizes = [2**i + i for i in range(8, 26)]
    rows = [lasting(relu(size)) for size in sizes]
    rows += [lasting(key([(size,)], (size,), "tanh"), factor=5) for size in sizes[:15:7]]
    fit = CostModel((profile(rows),), (SPEC,)).estimates.group("fast", "elementwise").fit_of("tanh")
    assert fit is not None
    assert fit.scalars.memory == pytest.approx(0.81 / 5, rel=0.05)
    assert fit.scalars.overhead == pytest.approx(5 * 4e-6, rel=0.05)
    assert fit.error < 0.05


# The rungs.


def test_the_datasheet_by_hand() -> None:
    """2 x 1024^3 FLOPs at 0.7 x 100 TFLOP/s and 3 us; 8 MB at 0.75 TB/s and 3 us."""
    costs = CostModel(specs=(SPEC,))
    found = answer(costs, product(1024, 1024, 1024))
    assert (found.seconds, found.rung) == (rounded(3e-6 + 2 * 1024**3 / 0.7e14), "roofline")
    assert found.rel_err == 0.5
    assert answer(costs, relu(10**6)).seconds == rounded(3e-6 + 8e6 / 0.75e12)


def test_a_datasheet_may_know_its_efficiencies() -> None:
    known = {
        "gemm": Efficiency(Fraction(1, 2), overhead=5 * US),
        "default": Efficiency(memory=Fraction(1, 4)),
    }
    costs = CostModel(
        specs=(DeviceSpec("fast", SPEC.flops, SPEC.memory_bandwidth, efficiency=known),)
    )
    assert answer(costs, product(4096, 4096, 4096)).seconds == rounded(5e-6 + 2 * 4096**3 / 0.5e14)
    assert answer(costs, relu(10**6)).seconds == rounded(3e-6 + 8e6 / 0.25e12)


def test_the_peak_of_a_dtype_by_any_of_its_names() -> None:
    low, high, most = Fraction(10**12), Fraction(10**14), Fraction(10**15)
    spec = DeviceSpec("d", {"float32": low, "bfloat16": high, "float8": most}, Fraction(10**12))
    names = ("bf16", "bfloat16", "fp32", "int64", "float8_e4m3fn", "float8_e5m2")
    assert [peak_flops(spec, name) for name in names] == [high, high, low, low, most, most]


def test_the_ladder_from_the_top() -> None:
    text = product(512, 512, 512)
    rows = [lasting(other) for other in products(30)]
    exact = Row(text, 7 * US, rel_err=0.04)
    below: list[tuple[CostModel, str | None]] = [
        (CostModel((profile([*rows, exact]),), (SPEC,)), "measured"),
        (CostModel((profile(rows),), (SPEC,)), "interpolated"),
        (CostModel((profile(rows[:6]),), (SPEC,)), "fitted"),
        (
            CostModel((profile([lasting(product(512, 512, 512, "slow"), SLOW)]),), (SPEC, SLOW)),
            "scaled",
        ),
        (CostModel((profile(rows[:5]),), (SPEC,)), "roofline"),
        (CostModel((profile(rows[:5]),)), None),
        (CostModel(), None),
    ]
    for costs, rung in below:
        found = asked(costs, text)
        assert (found and found.rung) == rung
        assert answer(costs, text, time={"fast": "1 us"}) == OpCost(US, "given")
    assert answer(below[0][0], text) == OpCost(7 * US, "measured", 0.04)


def test_kinds_without_semantics_have_no_estimate() -> None:
    costs = CostModel((profile([lasting(text) for text in products(30)]),), (SPEC,))
    assert asked(costs, key([(8,)], (8,), "no_such_kind")) is None


@pytest.mark.parametrize(
    "costs", [CostModel(), CostModel(specs=(SPEC,)), CostModel(specs=(SPEC,), strict=True)]
)
def test_leaves_and_views_take_no_time(costs: CostModel) -> None:
    free = OpCost(Fraction(0), "given")
    for kind in ("parameter", "input", "constant"):
        assert costs.cost(Graph("g", (Op("a", kind, outputs=(Tensor(4),)),)), 0, "fast") == free
    assert asked(costs, key([(4, 6)], (24,), "reshape")) == free
    assert asked(
        CostModel((profile([Row(key([(4, 6)], (24,), "reshape"), US)]),)),
        key([(4, 6)], (24,), "reshape"),
    ) == (OpCost(US, "measured"))


def test_strict_answers_nothing_below_the_measured_rung() -> None:
    texts = products(30)
    rows = [lasting(text) for text in texts]
    rows[1] = Row(rows[1].key, US, "model:mine")
    strict = CostModel((profile(rows),), (SPEC,), strict=True)
    assert answer(strict, texts[0]).rung == "measured"
    assert asked(strict, texts[1]) is None
    assert asked(strict, product(512, 512, 512)) is None


@pytest.mark.parametrize("i", [0, 11, 29])
def test_interpolation_is_exact_at_measured_points(i: int) -> None:
    """Another phase has another key and the same work; every row is off the model by a factor of
    its own.
    """
    factors = np.exp(np.random.default_rng(3).normal(0, 0.5, 30))
    texts = products(30)
    rows = [lasting(text, factor=factor) for text, factor in zip(texts, factors, strict=True)]
    found = answer(CostModel((profile(rows),), (SPEC,)), texts[i], phase="backward")
    assert found.rung == "interpolated"
    assert found.seconds == rounded(float(rows[i].seconds))
    assert "at 0.00" in found.basis


@pytest.mark.parametrize("specs", [(), (SPEC,)])
def test_a_device_that_keeps_to_the_model_is_estimated_exactly(
    specs: tuple[DeviceSpec, ...],
) -> None:
    texts = products(120)
    costs = CostModel((profile(lasting(text) for text in texts[:100]),), specs)
    for text in texts[100:]:
        assert float(answer(costs, text).seconds) == pytest.approx(
            float(lasting(text).seconds), rel=0.02
        )
        assert answer(costs, text).rel_err == pytest.approx(0, abs=0.02)


@given(st.tuples(*[st.integers(1, 4096)] * 3), st.integers(0, 2), st.integers(1, 4096))
def test_more_work_never_takes_less_time(shape: tuple[int, int, int], axis: int, more: int) -> None:
    larger = tuple(extent + more * (i == axis) for i, extent in enumerate(shape))
    for costs in MODELS:
        small, large = (answer(costs, product(*extents)) for extents in (shape, larger))
        assert large.seconds >= small.seconds * Fraction(9999, 10000)


MODELS = (
    CostModel((profile(lasting(text) for text in products(60)),), (SPEC,)),
    CostModel((profile(lasting(text) for text in products(6)),), (SPEC,)),
    CostModel(
        (profile(lasting(text, SLOW) for text in products(60, device="slow")),), (SPEC, SLOW)
    ),
    CostModel(specs=(SPEC,)),
)


def test_the_expected_error_follows_the_distance() -> None:
    """Products err 2 % from one another, single far ones 100 %: an op far from all rows is told to
    be unsure.
    """
    rng = np.random.default_rng(5)
    near = [lasting(product(256 + i, 256, 256), factor=1 + 0.02 * (i % 2)) for i in range(40)]
    far = [lasting(text, factor=float(np.exp(rng.normal(0, 1)))) for text in products(40, seed=9)]
    group = CostModel((profile(near + far),), (SPEC,)).estimates.group("fast", "gemm")
    close, remote = (
        next(group.estimates(load(text))) for text in (product(270, 256, 257), product(9, 4000, 70))
    )
    assert close.rung == remote.rung == "interpolated"
    assert (close.rel_err or 0) < 0.1 < 0.3 < (remote.rel_err or 0)


# From one device to another.


def test_a_row_is_scaled_by_the_ratio_of_the_rooflines() -> None:
    """The product is bound by compute on both (100 : 1), the relu by memory (10 : 1); 3 us of
    overhead each.
    """
    texts = product(2048, 2048, 2048, "slow"), relu(10**7, "slow")
    default = Scalars(0.7, 0.75, 3e-6)
    rows = [lasting(text, SLOW, default, 1.3) for text in texts]
    costs = CostModel((profile(rows),), (SPEC, SLOW))
    for text in texts:
        wanted = text.replace("slow", "fast")
        found = answer(costs, wanted)
        assert (found.rung, found.basis, found.rel_err) == ("scaled", "from slow", None)
        assert float(found.seconds) == pytest.approx(
            1.3 * float(lasting(wanted, SPEC, default).seconds), rel=1e-5
        )
    assert answer(costs, product(8, 8, 8)).rung == "roofline"


def test_fitted_scalars_are_scaled_to_the_scalars_that_the_target_is_known_to_have() -> None:
    """The source keeps to KNOWN, the target is known to keep to others; by the datasheets alone it
    would be half.
    """
    efficiency = {"gemm": Efficiency(Fraction(62, 200), Fraction(81, 200), 8 * US)}
    known = DeviceSpec("fast", SPEC.flops, SPEC.memory_bandwidth, efficiency=efficiency)
    texts = products(60, device="slow")
    costs = CostModel((profile(lasting(text, SLOW) for text in texts),), (known, SLOW))
    for text in texts[:5]:
        wanted = text.replace("slow", "fast")
        assert float(answer(costs, wanted).seconds) == pytest.approx(
            2 * float(lasting(wanted).seconds), rel=0.02
        )


def test_a_third_device_tells_the_error_of_scaling() -> None:
    """The third is 20 % slower than its datasheet says, everywhere."""
    third = DeviceSpec("third", {"float32": Fraction(10**13)}, Fraction(10**12))
    default, texts = Scalars(0.7, 0.75, 3e-6), products(6)
    rows = [lasting(text.replace("fast", "slow"), SLOW, default) for text in texts]
    rows += [lasting(text.replace("fast", "third"), third, default, 1.25) for text in texts[:4]]
    costs = CostModel((profile(rows),), (SPEC, SLOW, third))
    found = answer(costs, texts[0])
    assert (found.rung, found.basis) == ("scaled", "from slow")
    assert found.rel_err == pytest.approx(0.2, abs=0.03)


def test_rows_of_the_device_itself_tell_the_error_of_scaling_first() -> None:
    default, texts = Scalars(0.7, 0.75, 3e-6), products(8)
    rows = [lasting(text.replace("fast", "slow"), SLOW, default) for text in texts]
    rows += [lasting(text, SPEC, default, 2) for text in texts[:3]]
    found = answer(CostModel((profile(rows),), (SPEC, SLOW)), texts[5])
    assert found.rung == "scaled"
    assert found.rel_err == pytest.approx(0.5, abs=0.05)


def test_of_several_devices_the_one_that_errs_least_is_scaled() -> None:
    """Whatever the order of the profiles: of a noisy source and an exact one, the exact one."""
    noisy = DeviceSpec("noisy", {"float32": Fraction(10**13)}, Fraction(10**12))
    default, texts = Scalars(0.7, 0.75, 3e-6), products(6)
    rows = [
        lasting(text.replace("fast", "noisy"), noisy, default, factor)
        for text, factor in zip(texts, (0.5, 2, 0.5, 2, 0.5, 2), strict=True)
    ]
    exact = [lasting(text.replace("fast", "slow"), SLOW, default) for text in texts]
    own = [lasting(text, SPEC, default) for text in texts[:3]]
    for parts in ((rows, exact), (exact, rows)):
        costs = CostModel((*(profile(part) for part in parts), profile(own)), (SPEC, SLOW, noisy))
        found = answer(costs, texts[5])
        assert (found.rung, found.basis) == ("scaled", "from slow")


def test_near_rows_count_by_the_inverse_fourth_power_of_their_distance() -> None:
    loads = [load(relu(2 ** (8 + 2 * i))) for i in range(8)]
    ratios = np.arange(8.0)
    asked_of = load(relu(2**13))
    places = np.array(
        [
            [math.log(one.flops), math.log(one.read), math.log(one.written)]
            for one in (*loads, asked_of)
        ]
    )
    weights = np.sqrt(np.square(places[:-1] - places[-1]).mean(axis=1)) ** -4.0
    found = Neighbours(loads, ratios).find(asked_of)
    assert found.log_ratio == pytest.approx(weights @ ratios / weights.sum())
    assert found.distance == pytest.approx(math.log(2))


def test_rows_of_other_attributes_lie_farther_off() -> None:
    """The same sizes, transposed and four times as slow, hardly count."""
    plain = [load(product(2**i, 256, 256)) for i in range(6, 10)]
    turned = [replace(one, variant="turned") for one in plain]
    found = Neighbours([*turned, *plain], np.log([4.0] * 4 + [1.0] * 4)).find(
        load(product(130, 256, 256))
    )
    assert found.log_ratio == pytest.approx(0, abs=0.01)


def test_scaling_needs_the_target_known_and_the_source_too() -> None:
    rows = [lasting(product(64, 64, 64, "slow"), SLOW)]
    assert asked(CostModel((profile(rows),), (SLOW,)), product(64, 64, 64)) is None
    assert answer(CostModel((profile(rows),), (SPEC,)), product(64, 64, 64)).rung == "roofline"


# From the profile to the report.


def scenario(costs: CostModel, texts: Sequence[str]) -> Scenario:
    ops = [op for i, text in enumerate(texts) for op in op_of(text, f"op{i}")]
    graph = Graph("g", tuple(ops))
    return Scenario(
        graph,
        Cluster("one", (Device("fast:0", "fast"),)),
        costs,
        Strategy({op.name: "fast:0" for op in ops}),
    )


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
        assert "Expected error, weighted by time" in text


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
        run(scenario(CostModel(specs=(SPEC,)), [key([(8,)], (8,), "no_such_kind")]))


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
    assert "Expected error, weighted by time: not known." in str(report)


# At the door of scenarios.

FLOATS = {"bytes": 4096, "shape": [1024], "dtype": "float32"}
OPS = [
    {"name": "x", "kind": "input", "outputs": [FLOATS]},
    {"name": "a", "kind": "relu", "inputs": ["x"], "outputs": [FLOATS]},
]


def question(kind: str, **parts: Any) -> dict[str, Any]:
    """A relu of 1,024 floats on one device."""
    graph = {"version": 1, "name": "g", "ops": OPS}
    cluster = {"version": 1, "name": "one", "devices": [{"name": "d:0", "kind": kind}], "links": []}
    return {
        "version": 1,
        "graph": graph,
        "cluster": cluster,
        "strategy": {"placement": {"*": "d:0"}},
        **parts,
    }


def datasheet(kind: str, rate: str = "1 GB/s") -> dict[str, Any]:
    return {
        "version": 1,
        "kind": kind,
        "flops": {"float32": "1 TFLOP/s"},
        "memory_bandwidth": rate,
        "launch": "1 us",
    }


def test_a_shipped_datasheet_answers_for_its_kind_of_device() -> None:
    report = run(load_scenario(question("h100-sxm")))
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
        step = run(load_scenario(question(kind, devices=devices))).step_ps
        assert step == pytest.approx(1e6 + 8192 / 0.75e9 * 1e12, rel=1e-5)


def test_without_a_datasheet_or_rows_an_op_fails_as_ever() -> None:
    with pytest.raises(MissingCostError, match='no time for "a" on a device of kind "mine"'):
        run(load_scenario(question("mine")))


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
        load_scenario(question("mine", devices=devices))


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
    report = run(load_scenario(question("h100-sxm", profile={"rows": rows})))
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
        cost = costs._answer(text, json.loads(text)[1], "fast")
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
