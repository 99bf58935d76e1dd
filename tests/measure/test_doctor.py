"""The profile doctor: every warning on a profile made to deserve it, and silence on one that does
not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profile_rows import Row, Writer, checks, matmul, row, sound
from simdev.measure.doctor import examine
from simdev.measure.doctor.checks import inside
from simdev.measure.doctor.sheet import Sample


def test_a_sound_profile_has_no_warnings(write: Writer) -> None:
    assert examine([write(sound())]) == []


def test_a_profile_without_a_header_or_rows_has_no_warnings(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in sound()))
    assert examine([path]) == []
    path.write_text("")
    assert examine([path]) == []


def convolution(kind: str, p50: float, **more: Any) -> Row:
    x, weight, made = [4, 16, 32, 32], [32, 16, 3, 3], [4, 32, 32, 32]
    shapes = {
        "conv2d": ([x, weight], [made]),
        "conv2d_backward_input": ([made, weight], [x]),
        "conv2d_backward_weight": ([made, x], [weight]),
    }
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    phase = "bwd" if "backward" in kind else "fwd"
    return row(kind, *shapes[kind], p50, phase, attrs=attrs, **more)


def trained(forward: float, of_input: float, of_weight: float) -> list[Row]:
    """A convolution with both halves of its backward, in ns."""
    return [
        convolution("conv2d", forward),
        convolution("conv2d_backward_input", of_input),
        convolution("conv2d_backward_weight", of_weight),
    ]


# Each check by itself: rows, header, and a part of the one warning.
FAULTS: list[tuple[str, list[Row], dict[str, Any], str]] = [
    ("noise", sound(), {"noise": {"too_noisy": True, "idle_repeat_cv": 0.2}}, "strays by 0.2"),
    ("header", sound(), {"step": {"ratio": 0.4}}, "add up to 0.4 of the step"),
    ("header", sound(), {"schema": 2}, "schema 2 is not known here"),
    (
        "header",
        sound(),
        {"sha256_of_rows": "0" * 64},
        "not those that the header's sha256_of_rows was taken of",
    ),
    (
        "quantiles",
        [*sound(), matmul(8, 8, 8) | {"t_ns": {"p50": 9000, "p10": 9500, "n": 20}}],
        {},
        "out of order",
    ),
    (
        "quantiles",
        [*sound(), matmul(8, 8, 8) | {"t_ns": {"p50": 9000, "p10": "x", "n": 20}}],
        {},
        "no numbers",
    ),
    (
        "quantiles",
        [*sound(), matmul(8, 8, 8) | {"t_ns": {"p50": 9000, "min": -1, "n": 20}}],
        {},
        "out of order",
    ),
    (
        "quantiles",
        [*sound(), matmul(8, 8, 8) | {"t_ns": {"p50": 0, "n": 20}}],
        {},
        "no time: 1 of 13 rows",
    ),
    (
        "repetitions",
        [*sound(), matmul(8, 8, 8, reps=5)],
        {},
        "fewer than 10 repetitions (least 5) in 1 of 13 rows",
    ),
    (
        "repetitions",
        [*sound(), matmul(8, 8, 8, reps=None)],
        {},
        "not told in 1 of 13 rows: matmul [8, 8]x[8, 8] fwd",
    ),
    (
        "spread",
        [*sound(), matmul(8, 8, 8, spread=0.5)],
        {},
        "more than 20% of the median in 1 of 13 rows",
    ),
    (
        "roofline",
        [*sound(), matmul(1024, 4096, 512, slowdown=0.8)],
        {},
        "faster than the datasheet allows in 1 of 13",
    ),
    (
        "dispatch",
        [matmul(m, 64, 64, slowdown=300) for m in (16, 24, 32)],
        {},
        "no op of epyc-1core takes less than",
    ),
    (
        "clocks",
        [*sound(), matmul(8, 8, 8, meth="wall+rotate")],
        {},
        "mixed clocks: thread-cpu-time, wall",
    ),
    (
        "clocks",
        sound(),
        {"method": {"timer": "events+filler"}},
        "mixed clocks: events, thread-cpu-time",
    ),
    ("clocks", sound(), {"device": {"kind": "k80"}}, "mixed devices: epyc-1core, k80"),
    (
        "backward",
        [*sound(), *trained(20e6, 1e6, 2e6)],
        {},
        "conv2d [4, 16, 32, 32]x[32, 16, 3, 3] fwd (0.15 times)",
    ),
    ("backward", [*sound(), *trained(4e6, 20e6, 20e6)], {}, "(10 times)"),
    (
        "monotone",
        [*sound(), matmul(900, 2048, 512, slowdown=6), matmul(2400, 2048, 512)],
        {},
        "faster than smaller",
    ),
]


@pytest.mark.parametrize(("check", "rows", "more", "message"), FAULTS)
def test_a_fault_is_warned_of_and_nothing_else(
    check: str, rows: list[Row], more: dict[str, Any], message: str, write: Writer
) -> None:
    found = examine([write(rows, **more)])
    assert [warning.check for warning in found] == [check]
    assert message in str(found[0])


@pytest.mark.parametrize("backward", [(2e6, 3e6), (16e6, 15e6)])
def test_a_backward_within_half_and_eight_times_is_fine(
    backward: tuple[float, float], write: Writer
) -> None:
    assert checks(write([*sound(), *trained(4e6, *backward)])) == []


def test_a_product_s_backward_is_found_by_its_shapes(write: Writer) -> None:
    attrs = {"transpose_b": True}
    forward = row("linear", [[64, 512], [1024, 512], [1024]], [[64, 1024]], 1e6, attrs=attrs)
    of_input = row("matmul", [[64, 1024], [1024, 512]], [[64, 512]], 1e6, "bwd")
    of_weight = row(
        "matmul", [[64, 1024], [64, 512]], [[1024, 512]], 90e6, "bwd", attrs={"transpose_a": True}
    )
    assert "backward" in checks(write([*sound(), forward, of_input, of_weight]))
    assert "backward" in checks(write([*sound(), forward, of_weight | {"phase": "bwd_weight"}]))
    assert checks(write([*sound(), forward, of_input])) == []


def test_the_backward_of_a_lookup_may_write_the_whole_table(write: Writer) -> None:
    forward = row("embedding", [[30000, 512], [64]], [[64, 512]], 50e3)
    rows = [forward, row("embedding_backward", [[64, 512], [64]], [[30000, 512]], 20e6, "bwd")]
    for one in rows:
        one["dt"] = [("int64" if shape == [64] else "float32") for shape in one["in"]]
    assert checks(write([*sound(), *rows])) == []


def test_a_convolution_by_winograd_may_be_faster_than_its_flops(write: Writer) -> None:
    ideal = 2 * 4 * 32 * 32 * 32 * 16 * 9 / 100e9 * 1e9
    assert checks(write([*sound(), convolution("conv2d", ideal / 2)])) == []
    assert checks(write([*sound(), convolution("conv2d", ideal / 8)])) == ["roofline"]
    strided = convolution("conv2d", ideal / 2)
    strided["attrs"] = {"stride": [1, 1], "padding": [2, 2], "dilation": [2, 2]}
    assert checks(write([*sound(), strided])) != []


def test_padding_is_not_multiplied() -> None:
    def share(x: list[int], weight: list[int], made: list[int], **attrs: Any) -> float:
        key = json.dumps(["d", "conv2d", "fwd", attrs, [x, weight], ["float32"] * 2, [made]])
        return inside(Sample(key, 1.0, {}))

    assert share([1, 1, 5], [1, 1, 3], [1, 1, 5], padding=[1]) == pytest.approx(13 / 15)
    assert share([1, 1, 5], [1, 1, 3], [1, 1, 3], padding=[1], stride=[2]) == pytest.approx(7 / 9)
    assert share([1, 1, 5, 5], [1, 1, 3, 3], [1, 1, 5, 5], padding=[1, 1]) == pytest.approx(
        (13 / 15) ** 2
    )
    assert share([1, 1, 5], [1, 1, 3], [1, 1, 3], padding=[0]) == 1
    # What is no list of whole numbers, or does not fit, is left alone; so is what would take for
    # ever to count.
    assert share([1, 1, 5], [1, 1, 3], [1, 1, 5], padding="same") == 1
    assert share([1, 1, 5], [1, 1, 3], [1, 1, 5], padding=[1, 1]) == 1
    assert share([1, 1, 2**59], [1, 1, 3], [1, 1, 2**59], padding=[1]) == 1


def test_the_bandwidth_binds_only_what_no_cache_holds(write: Writer) -> None:
    def relu(elements: int) -> Row:
        return row("relu", [[elements]], [[elements]], 8 * elements / 47e9 * 1e9 / 2)

    assert checks(write([*sound(), relu(2**20)])) == []
    assert checks(write([*sound(), relu(2**20)], method={"flush": True})) == ["roofline"]
    assert checks(write([*sound(), relu(2**27)])) == ["roofline"]


def test_tf32_is_allowed_for_unless_the_header_says_no(write: Writer) -> None:
    events = {"meth": "events+filler", "dev": "h100-sxm"}
    fast = matmul(4096, 4096, 4096, slowdown=0.5, **events)
    rows = [*sound(**events), fast]
    assert checks(write(rows)) == checks(write(rows, flags={"tf32": True})) == []
    assert checks(write(rows, flags={"tf32": False})) == ["roofline"]


def test_rows_that_were_not_measured_need_no_repetitions(write: Writer) -> None:
    assert checks(write([*sound(), matmul(8, 8, 8, reps=None, src="fitted")])) == []
