"""Fits recover synthetic devices, every rung of the cost ladder is where it belongs and tells its
error.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

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
    product,
    products,
    profile,
    relu,
)
from simdev import CostModel, Graph, Op
from simdev.costs import DeviceSpec, Efficiency, OpCost, Row
from simdev.costs.groups import Fit, Points, fit_scalars, predicted
from simdev.costs.roofline import CLASS_DEFAULT, Scalars, peak_flops, rounded
from simdev.costs.surface import NUGGETS, OTHER_VARIANT, RANGE, RANGE_OF_BYTES, Neighbours
from simdev.nouns.graph import Tensor

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


def test_kinds_without_semantics_have_a_pass_over_memory_alone() -> None:
    costs = CostModel((profile([lasting(text) for text in products(30)]),), (SPEC,))
    cost = asked(costs, key([(8,)], (8,), "no_such_kind"))
    assert cost is not None
    assert (cost.rung, cost.rel_err) == ("memory pass", 1.0)


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


def test_the_expected_error_follows_the_distance() -> None:
    """Products err 2 % from one another, single far ones 100 %: an op far from all rows is told to
    be unsure.
    """
    rng = np.random.default_rng(5)
    near = [lasting(product(256 + i, 256, 256), factor=1 + 0.02 * (i % 2)) for i in range(40)]
    far = [lasting(text, factor=float(np.exp(rng.normal(0, 1)))) for text in products(40, seed=9)]
    estimates = CostModel((profile(near + far),), (SPEC,)).estimates
    close, remote = (
        next(estimates.estimates(load(text), "fast"))
        for text in (product(270, 256, 257), product(9, 4000, 70))
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


def test_near_rows_count_as_in_simple_kriging() -> None:
    """One row: its ratio falls with the distance. Two, one by the other: solved by hand."""
    first, second, between = (load(relu(2**i)) for i in (10, 13, 12))
    # Bytes read and written both grow by the factor.
    octave = math.log(2) * math.sqrt(2) / RANGE_OF_BYTES
    found = Neighbours([second], np.array([1.0])).find(between)
    nugget = NUGGETS[0]
    alone = math.exp(-octave) / (1 + nugget)
    assert found.log_ratio == pytest.approx(alone)
    assert found.distance == pytest.approx(octave * RANGE)
    likeness = np.exp([-2 * octave, -octave])
    across = math.exp(-3 * octave)
    weights = np.linalg.solve([[1 + nugget, across], [across, 1 + nugget]], likeness)
    both = Neighbours([first, second], np.array([2.0, 1.0])).find(between)
    assert both.log_ratio == pytest.approx(weights @ [2.0, 1.0])
    assert both.variance == pytest.approx(1 - weights @ likeness)
    turned = Neighbours([replace(second, variant="turned")], np.array([1.0])).find(between)
    assert turned.log_ratio == pytest.approx(OTHER_VARIANT * alone)


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
