"""The profile doctor: every warning on a profile made to deserve it, and silence on one that does
not.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev.cli import main
from simdev.errors import InputError
from simdev.measure.doctor import CHECKS, examine
from simdev.measure.doctor.plausible import inside
from simdev.measure.doctor.sheet import Sample

Row = dict[str, Any]
SPEEDS = {"epyc-1core": (100e9, 47e9), "h100-sxm": (67e12, 3.35e12)}
"""FLOP/s in float32 and bytes/s of the datasheets."""


def row(
    op: str,
    inputs: Sequence[Sequence[int]],
    out: Sequence[Sequence[int]],
    p50: float,
    phase: str = "fwd",
    dev: str = "epyc-1core",
    attrs: dict[str, Any] | None = None,
    spread: float = 0.05,
    reps: int | None = 50,
    **more: Any,
) -> Row:
    p10, p90 = round(p50 * (1 - spread / 2)), round(p50 * (1 + spread / 2))
    times = {"p10": p10, "p50": round(p50), "p90": p90, "min": p10, "n": reps}
    return {
        "v": 1,
        "op": op,
        "attrs": attrs or {},
        "in": inputs,
        "dt": ["float32"] * len(inputs),
        "out": out,
        "dev": dev,
        "phase": phase,
        "t_ns": {name: value for name, value in times.items() if value is not None},
        "src": "measured",
        "meth": "thread-cpu-time+rotate",
        **more,
    }


def matmul(
    m: int, k: int, n: int, slowdown: float = 1.5, dev: str = "epyc-1core", **more: Any
) -> Row:
    """A product that takes so many times what the datasheet allows, and a launch."""
    peak, bandwidth = SPEEDS[dev]
    ideal = max(2 * m * n * k / peak, 4 * (m * k + k * n + m * n) / bandwidth)
    return row("matmul", [[m, k], [k, n]], [[m, n]], 2000 + 1e9 * ideal * slowdown, dev=dev, **more)


def sound(dev: str = "epyc-1core", **more: Any) -> list[Row]:
    """Rows that nothing is to be said against."""
    return [
        matmul(m, k, 512, dev=dev, **more) for m in (16, 64, 256, 1024) for k in (64, 512, 2048)
    ]


def header(rows: Iterable[Row], **more: Any) -> dict[str, Any]:
    text = "".join(json.dumps(one) + "\n" for one in rows)
    return {"sha256_of_rows": hashlib.sha256(text.encode()).hexdigest(), **more}


Writer = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    """Writes rows, with a header that fits them, to a file."""

    def writer(rows: Sequence[Row], name: str = "p.jsonl", **more: Any) -> Path:
        lines = [{"v": 1, "header": header(rows, **more)}, *rows]
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return writer


def checks(*files: Path) -> list[str]:
    return [warning.check for warning in examine(files)]


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


# Units.


def scaled(rows: Iterable[Row], factor: float) -> list[Row]:
    return [
        one | {"t_ns": {k: v if k == "n" else round(v * factor) for k, v in one["t_ns"].items()}}
        for one in rows
    ]


def test_a_row_in_another_unit_is_a_stranger_among_its_like(write: Writer) -> None:
    big = [matmul(1024, k, 1024) for k in (256, 512, 768, 1024)]
    for factor, way in ((1e-3, "too short"), (1e3, "too long"), (1024, "too long")):
        found = examine([write([*sound(), *big, *scaled([matmul(512, 1024, 1024)], factor)])])
        (unit,) = [str(warning) for warning in found if warning.check == "units"]
        assert "about 1,000 times off their like: matmul [512, 1024]x[1024, 1024] fwd" in unit
        assert way in unit


@pytest.mark.parametrize("factor", [1e-3, 1 / 1024, 1e-6, 1e3, 1e6])
def test_a_whole_profile_in_another_unit(factor: float, write: Writer) -> None:
    big = [matmul(m, 1024, 1024) for m in (256, 512, 1024, 2048)]
    assert "units" in checks(write(scaled([*sound(), *big], factor)))


def test_a_sum_in_another_unit_than_the_step(write: Writer) -> None:
    assert checks(write(sound(), step={"ratio": 1024.0})) == ["header", "units"]


@pytest.mark.parametrize(
    ("field", "factor", "message"),
    [
        ("flops", 0.5, "flops off by 2 (multiply-adds for operations)"),
        ("flops", 1e-9, "flops off by 1,000,000,000, too small"),
        ("out_bytes", 1 / 1024, "out_bytes off by 1,024, too small"),
        ("out_bytes", 1000, "out_bytes off by 1,000, too large"),
        ("br", 8, "br off by 8 (bits for bytes), too large"),
    ],
)
def test_counts_in_another_unit(field: str, factor: float, message: str, write: Writer) -> None:
    right = {
        "flops": 2 * 300 * 512 * 512,
        "out_bytes": 4 * 300 * 512,
        "br": 4 * (300 * 512 + 512 * 512),
    }
    assert checks(write([*sound(), matmul(300, 512, 512) | right])) == []
    (found,) = examine([write([*sound(), matmul(300, 512, 512) | {field: right[field] * factor}])])
    assert found.check == "work"
    assert message in found.message


# Copies.


def test_a_copy_under_another_name(write: Writer) -> None:
    first, second = write(sound(), "a.jsonl"), write(sound(), "b.jsonl", model="other")
    found = examine([first, second])
    assert [(warning.check, warning.file) for warning in found] == [("copies", str(second))]
    assert "byte for byte" in found[0].message


def test_the_same_times_in_another_order(write: Writer) -> None:
    found = examine([write(sound(), "a.jsonl"), write(sound()[::-1], "b.jsonl")])
    assert [warning.message.startswith("its times are those of") for warning in found] == [True]


@pytest.mark.parametrize(("factor", "told"), [(1, "epyc-1core,"), (10, "epyc-1core times 10,")])
def test_the_times_of_one_device_under_the_name_of_another(
    factor: int, told: str, write: Writer
) -> None:
    rows = scaled(sound(), 1)
    copied = [one | {"dev": "cpu-x"} for one in scaled(rows, factor)]
    (found,) = [warning for warning in examine([write(rows + copied)]) if warning.check == "copies"]
    assert f"the times of cpu-x are those of {told}" in found.message
    across = examine([write(rows, "a.jsonl"), write(copied, "b.jsonl")])
    assert [warning.check for warning in across if warning.check != "dispatch"] == ["copies"]


def test_two_devices_with_times_of_their_own_are_no_copies(write: Writer) -> None:
    other = [one | {"dev": "cpu-x"} for one in scaled(sound(), 1.3)]
    other[0]["t_ns"]["p50"] += 1
    spread = [
        one | {"t_ns": one["t_ns"] | {"p50": one["t_ns"]["p50"] + 10 * i}}
        for i, one in enumerate(other)
    ]
    assert "copies" not in checks(write(sound(), "a.jsonl"), write(spread, "b.jsonl"))


def test_profiles_of_one_device_under_other_conditions(write: Writer) -> None:
    def made(name: str, rows: list[Row], torch: str) -> Path:
        return write(rows, name, device={"kind": "epyc-1core", "torch": torch})

    slower = scaled(sound(), 1.1)
    slower[0]["t_ns"]["p50"] += 3
    rows = [
        one | {"t_ns": one["t_ns"] | {"p50": one["t_ns"]["p50"] + 7 * i}}
        for i, one in enumerate(slower)
    ]
    found = examine([made("a.jsonl", sound(), "2.1"), made("b.jsonl", rows, "2.13")])
    assert [(warning.check, "device.torch 2.13" in warning.message) for warning in found] == [
        ("clocks", True)
    ]
    assert examine([made("a.jsonl", sound(), "2.1"), made("b.jsonl", rows, "2.1")]) == []


# The command line, and files that are no profiles.


def test_the_doctor_on_the_command_line(write: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (
        write(sound(), "good.jsonl"),
        write([*sound(), matmul(8, 8, 8, reps=5)], "bad.jsonl"),
    )
    assert main(["profile", "doctor", str(good)]) == 0
    assert capsys.readouterr().out == "1 profile, nothing to warn of\n"
    assert main(["profile", "doctor", str(bad)]) == 0
    assert capsys.readouterr().out.startswith(f"{bad}: repetitions: fewer than 10")
    assert main(["profile", "doctor", "--strict", str(bad)]) == 3
    assert main(["profile", "doctor", "--strict", str(good)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor"], "doctor: name the profiles to look at"),
        (["mlp", "gnmt"], 'unknown argument "gnmt": one MODEL at a time'),
        (["mlp", "--strict"], "--strict: goes with the doctor"),
        (["mlp", "--size", "width"], "--size: must be written NAME=N"),
        (["mlp", "--size", "width=1.5"], "--size: must be written NAME=N"),
        (["--grid", "nothing"], "grid: must be among gemm, conv"),
        ([], "MODEL: missing"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert message in capsys.readouterr().err


GOOD = json.dumps(matmul(8, 8, 8))
HOSTILE = {
    "truncated": (GOOD + "\n" + GOOD[: len(GOOD) // 2], "line 2: column"),
    "nan_p50": (GOOD.replace('"p50": ', '"p50": NaN, "x": '), "NaN is not a number in JSON"),
    "infinite_p90": (
        GOOD.replace('"p90": ', '"p90": -Infinity, "x": '),
        "-Infinity is not a number in JSON",
    ),
    "negative": (json.dumps(matmul(8, 8, 8) | {"t_ns": {"p50": -4}}), "must be from 0 to 53 days"),
    "version": (json.dumps(matmul(8, 8, 8) | {"v": 3}), "v: must be 1"),
    "duplicated_field": (GOOD.replace('"v": 1', '"v": 1, "op": "add"'), "op"),
    "duplicated_row": (GOOD + "\n" + GOOD, "line 2: the same operator as line 1"),
    "no_json": ("hello", "line 1"),
    "binary": ("\x00\x01\x02", "line 1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_profile_is_a_clear_error(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = HOSTILE[name]
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    assert main(["profile", "doctor", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert str(path) in told.err
    assert message in told.err


def test_a_missing_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        examine([tmp_path / "none.jsonl"])
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-9])
    with pytest.raises(InputError, match="damaged gzip"):
        examine([path])
    path.write_bytes(gzip.compress((GOOD + "\n").encode()))
    assert checks(path) == []


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=4)
    | st.floats(allow_nan=False, width=32),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    attrs=st.dictionaries(
        st.sampled_from(["stride", "padding", "dilation", "groups", "strides", "in"]), anything
    ),
    told=st.dictionaries(
        st.sampled_from(["step", "noise", "method", "device", "schema", "flags"]), anything
    ),
    extra=st.dictionaries(st.sampled_from(["flops", "br", "out_bytes", "rel_err"]), anything),
    times=st.dictionaries(st.sampled_from(["p10", "p90", "min", "n", "cv"]), anything),
    kind=st.sampled_from(
        ["conv2d", "conv2d_backward_input", "matmul", "embedding", "softmax", "my_op"]
    ),
    shapes=st.lists(st.lists(st.integers(0, 2**60), max_size=4), max_size=4),
)
def test_nothing_that_a_profile_says_makes_the_doctor_fail(
    tmp_path_factory: pytest.TempPathFactory,
    attrs: Any,
    told: Any,
    extra: Any,
    times: Any,
    kind: str,
    shapes: list[list[int]],
) -> None:
    odd = row(kind, shapes[:2], shapes[2:], 100, attrs=attrs) | extra
    odd["t_ns"] |= times
    path = tmp_path_factory.mktemp("odd") / "p.jsonl"
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in ({"v": 1, "header": told}, *sound(), odd))
    )
    try:
        assert all(str(warning).startswith(str(path)) for warning in examine([path, path]))
    except InputError as error:
        assert error.file == str(path)  # noqa: PT017  - a clear error is as good as a warning


def test_every_check_is_a_generator_of_text() -> None:
    assert len(CHECKS) == 13
    assert all(check.__doc__ for check in CHECKS.values())
