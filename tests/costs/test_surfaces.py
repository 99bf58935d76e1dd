"""Efficiencies by dtype, rates that grow with the extents, and what carries over to other dtypes
and kinds of device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from devices import SLOW, SPEC, US, answer, lasting, load, products, profile
from simdev import CostModel
from simdev.costs import DeviceSpec, Efficiency, Row, profile_key
from simdev.costs.roofline import Scalars, datasheet_scalars, ideal_seconds, rounded
from simdev.costs.surface import NUGGETS, Neighbours
from simdev.nouns.semantics import work

BOTH = {"float32": Fraction(10**13), "bfloat16": Fraction(10**14)}
POWERS = [2**i for i in range(3, 11)]
SHEET = DeviceSpec("fast", BOTH, Fraction(10**12), family="hbm")


def product(m: int, k: int, n: int, dtype: str, device: str = "fast") -> str:
    return profile_key("matmul", {}, [(m, k), (k, n)], [dtype] * 2, [(m, n)], "fwd", device)


def sizes(count: int) -> list[tuple[int, int, int]]:
    drawn = 2 ** np.random.default_rng(1).uniform(5, 12, (count, 3))
    return [(m, k, n) for m, k, n in (8 * (drawn / 8).round()).astype(int).tolist()]


def test_an_efficiency_of_another_dtype_is_not_used() -> None:
    known = {"bfloat16": Efficiency(Fraction("0.79")), "float16": Efficiency(1)}
    costs = CostModel(specs=(replace(SHEET, efficiency={"gemm": known}),))
    wide, narrow = (answer(costs, product(4096, 4096, 4096, name)) for name in BOTH)
    assert wide.seconds == rounded(3e-6 + 2 * 4096**3 / 0.7e13)
    assert wide.basis == "datasheet: class default, its efficiency is of bfloat16 and float16"
    assert narrow.seconds == rounded(3e-6 + 2 * 4096**3 / 0.79e14)
    assert narrow.basis == "datasheet"


@pytest.mark.parametrize("name", ["any", "float32"])
def test_a_dtype_that_is_computed_as_another_takes_its_efficiency(name: str) -> None:
    spec = replace(SHEET, flops={"float32": Fraction(10**13)})
    spec = replace(spec, efficiency={"gemm": {name: Efficiency(Fraction(1, 2))}})
    assert datasheet_scalars(spec, "gemm", "bfloat16").compute == 0.5


def test_no_class_default_exceeds_what_products_sustain() -> None:
    spec = replace(SHEET, sustained={"bfloat16": Fraction(51 * 10**12)})
    found = [datasheet_scalars(spec, "gemm", name).compute for name in BOTH]
    assert found == [0.7, 0.51]


def test_rows_of_another_dtype_answer_by_the_ratio_of_rooflines() -> None:
    """A device that keeps to its datasheet, which knows both dtypes; one was measured."""
    known = {
        "bfloat16": Efficiency(Fraction("0.8"), Fraction(1, 2), 4 * US),
        "float32": Efficiency(Fraction("0.6"), Fraction(1, 2), 8 * US),
    }
    spec = replace(SHEET, efficiency={"gemm": known})
    scalars = {name: datasheet_scalars(spec, "gemm", name) for name in BOTH}
    rows = [lasting(product(*size, "bfloat16"), spec, scalars["bfloat16"]) for size in sizes(60)]
    costs = CostModel((profile(rows),), (spec,))
    for size in sizes(5):
        text = product(*size, "float32")
        found = answer(costs, text)
        assert (found.rung, found.basis) == ("scaled", "from bfloat16, fitted")
        truth = lasting(text, spec, scalars["float32"]).seconds
        assert float(found.seconds) == pytest.approx(float(truth), rel=0.03)
        assert (found.rel_err or 0) >= 0.12


def test_rows_of_other_dtypes_are_told() -> None:
    rows = [lasting(product(*size, name), SHEET) for name in BOTH for size in sizes(20)]
    found = answer(CostModel((profile(rows),), (SHEET,)), product(72, 80, 88, "float32"))
    assert found.basis.startswith("nearest of 20 rows and 20 of other dtypes by the ratio")


@pytest.mark.parametrize(
    ("family", "rung"), [("hbm", "scaled"), ("cpu", "roofline"), ("", "roofline")]
)
def test_grids_carry_over_between_devices_of_a_sort(family: str, rung: str) -> None:
    slow, fast = replace(SLOW, family=family), replace(SPEC, family="hbm")
    default = Scalars(0.7, 0.75, 3e-6)
    rows = [lasting(text, slow, default, 1.5) for text in products(60, device="slow")]
    costs = CostModel((profile(rows),), (slow, fast))
    text = products(3, seed=4)[0]
    found = answer(costs, text)
    assert found.rung == rung
    if rung == "scaled":
        assert found.basis == "from slow, interpolated there"
        truth = 1.5 * float(lasting(text, fast, default).seconds)
        assert float(found.seconds) == pytest.approx(truth, rel=0.05)


def test_rates_that_grow_with_an_extent_are_learnt() -> None:
    """Products reach half of their rate at 96 columns: three scalars err, the surface does not."""

    def slowed(size: tuple[int, int, int]) -> Row:
        text = product(*size, "float32")
        compute, memory = ideal_seconds(load(text), SHEET)
        seconds = 4e-6 + max(compute / 0.8 * (1 + 96 / size[2]), memory / 0.8)
        return Row(text, Fraction(seconds))

    rows = [slowed(size) for size in sizes(160)]
    estimates = CostModel((profile(rows[:120]),), (SHEET,)).estimates
    errors: dict[str, list[float]] = {}
    for row in rows[120:]:
        for cost in estimates.estimates(load(row.key), "fast"):
            errors.setdefault(cost.rung, []).append(abs(float(cost.seconds / row.seconds) - 1))
    assert np.mean(errors["interpolated"]) < 0.03 < 0.1 < np.mean(errors["fitted"])


def norm(kind: str, channels: int, values: int, dtype: str = "float32") -> str:
    shape, row, name = (values // 64, channels, 8, 8), (channels,), f"batch_norm{kind}"
    operands, made = [shape, row, row], [shape, row, row]
    if kind:
        operands = [shape, shape, row, row, row]
    return profile_key(name, {}, operands, [dtype] * len(operands), made, "fwd", "fast")


def few_channels(text: str) -> Row:
    """A block a channel: 64 of them reach half of the bandwidth that floats of 4 bytes reach."""
    asked = load(text)
    _, memory = ideal_seconds(asked, SHEET)
    excess = 64 / asked.extents[0] * (2 if asked.dtype == "bfloat16" else 1)
    return Row(text, Fraction(4e-6 + memory / 0.75 * (1 + excess)))


def erred(rows: list[Row], row: Row) -> float:
    estimates = CostModel((profile(rows),), (SHEET,)).estimates
    found = next(estimates.estimates(load(row.key), "fast"))
    assert found.rung == "interpolated"
    return float(found.seconds / row.seconds) - 1


def norms(kind: str, channels: Iterable[int], dtype: str = "float32") -> list[Row]:
    values = [2**i for i in range(10, 18)]
    return [few_channels(norm(kind, count, size, dtype)) for count in channels for size in values]


def steady_norm(rows: int, size: int) -> Row:
    """Norms of rows that reach their bandwidth however few there are."""
    shapes, made = [(rows, size), (size,), (size,)], [(rows, size), (rows, 1), (rows, 1)]
    attrs = {"normalized_shape": [size]}
    text = profile_key("layer_norm", attrs, shapes, ["float32"] * 3, made, "fwd", "fast")
    return Row(text, Fraction(4e-6 + ideal_seconds(load(text), SHEET)[1] / 0.75))


def test_a_gradient_slows_as_its_forward_does() -> None:
    """No row tells how the backward goes with few channels; those of its forward do, not those of
    another norm.
    """
    rows = norms("_backward", [1024])
    rows += [steady_norm(2**i, 2**k) for i in range(3, 11) for k in range(10, 18)]
    asked = few_channels(norm("_backward", 8, 2**16))
    assert erred(rows, asked) < -0.5
    assert erred([*rows, *norms("", POWERS)], asked) == pytest.approx(0, abs=0.2)


def test_what_lacks_blocks_costs_by_the_element_in_any_dtype() -> None:
    rows = [*norms("", POWERS), *norms("", POWERS[5:], "bfloat16")]
    asked = few_channels(norm("", 8, 2**16, "bfloat16"))
    assert erred(rows, asked) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(("noise", "nuggets"), [(0.0, NUGGETS[:1]), (1.0, NUGGETS[2:])])
def test_rows_that_are_unlike_count_together(noise: float, nuggets: tuple[float, ...]) -> None:
    """A smooth field is followed; of one that jumps from size to size the mean is."""
    loads = [load(product(*size, "float32")) for size in sizes(60)]
    jumps = np.random.default_rng(2).normal(size=len(loads))
    smooth = np.array([sum(np.log(each.extents)) for each in loads]) / 10
    assert Neighbours(loads, noise * jumps + (1 - noise) * smooth).nugget in nuggets


def test_the_attention_of_cudnn_has_its_work() -> None:
    """Its sums of exponentials have an axis of one more."""
    heads, row = (2, 8, 64, 32), (2, 8, 64, 1)
    found = work(
        "scaled_dot_product_cudnn_attention", {}, [heads] * 3, [heads, row], ["float32"] * 3
    )
    assert found is not None
    assert found.flops == 2 * 8 * 64 * 64 * (2 * 32 + 2 * 32 + 5)
    assert found.bytes_written == 4 * (2 * 8 * 64 * 32 + 2 * 8 * 64)
