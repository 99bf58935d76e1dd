"""The doctor on units, copies and hostile files, and on the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profile_rows import Row, Writer, checks, matmul, row, scaled, sound
from simdev.commands import main
from simdev.ground.errors import InputError
from simdev.measure.doctor import CHECKS, examine


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
        (["mlp", "--size", "width"], "--size: must be NAME=N"),
        (["mlp", "--size", "width=1.5"], "--size: must be NAME=N"),
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
