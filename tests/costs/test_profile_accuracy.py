"""The benchmark of the cost ladder: on a synthetic device, and the table in the docs is what it
prints today.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ladder import (
    BEGIN,
    END,
    RUNGS,
    Errors,
    main,
    markdown,
    measure,
    misses,
    table,
    update,
)
from simdev import InputError
from simdev.costs import DeviceSpec, Profile, Row, profile_key
from simdev.costs.roofline import Scalars, ideal_seconds
from simdev.nouns.semantics.keys import load_of

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reference" / "errors.md"
SPECS = {
    "fast": DeviceSpec("fast", {"float32": Fraction(10**14)}, Fraction(10**12)),
    "slow": DeviceSpec("slow", {"float32": Fraction(10**12)}, Fraction(10**11)),
}
# by so many percent the table may be off: fits on another processor, or a better ladder
POINTS = 2.0


def rows(device: str, noise: float) -> list[Row]:
    """80 products on a device that keeps to the model of its datasheet, twice as slow, but for
    lognormal noise.
    """
    rng = np.random.default_rng(0)
    found = {}
    for m, k, n in (2 ** rng.uniform(4, 12, (80, 3))).astype(int).tolist():
        key = profile_key("matmul", {}, [(m, k), (k, n)], ["float32"] * 2, [(m, n)], "fwd", device)
        load = load_of(key)
        assert load is not None
        seconds = Scalars(0.35, 0.375, 6e-6).seconds(ideal_seconds(load, SPECS[device])) * np.exp(
            rng.normal(0, noise)
        )
        found[key] = Row(key, Fraction(seconds))
    return list(found.values())


def test_each_rung_errs_as_much_as_it_must() -> None:
    """Half of the datasheet's speed: its error is a half; the ratio of two such devices is
    right.
    """
    for errors in measure([Profile.of_rows({}, rows("fast", 0.0) + rows("slow", 0.0))], SPECS):
        means = {rung: np.mean(errors.found[rung]) for rung in RUNGS}
        assert (errors.op_class, errors.rows) == ("gemm", 80)
        assert means["roofline"] == pytest.approx(0.5, abs=1e-3)
        assert max(means[rung] for rung in ("interpolated", "fitted", "scaled", "ladder")) < 0.01


def test_the_error_told_is_the_error_made() -> None:
    for errors in measure([Profile.of_rows({}, rows("fast", 0.2) + rows("slow", 0.2))], SPECS):
        made = np.mean(errors.found["ladder"])
        assert 0.1 < made < 0.3
        assert np.mean(errors.expected) == pytest.approx(made, rel=0.4)


def test_targets_that_are_missed_are_listed() -> None:
    found = Errors(
        "d", "gemm", 2, {"interpolated": [0.1, 0.3], "fitted": [0.1, 0.3], "roofline": [3.0]}
    )
    assert misses([found]) == ["d gemm: interpolated 20.0 % of 16 %"]
    assert table([found])[1] == [
        "d",
        "gemm",
        "2",
        "20.0 / 20.0",
        "20.0 / 20.0",
        "-",
        "300.0 / 300.0",
        "-",
        "-",
    ]


def test_the_command_prints_tables_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from simdev.files import write_profile

    write_profile(Profile.of_rows({}, rows("fast", 0.1)), tmp_path / "p.jsonl")
    assert main(["--profiles", str(tmp_path / "p.jsonl"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["device"], found["op_class"], found["rows"]) == ("fast", "gemm", 80)
    assert found["rungs"]["fitted"]["answers"] == 80
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old{END}\nafter")
    assert main(["--profiles", str(tmp_path / "p.jsonl"), "--update", str(page)]) == 0
    assert "Over target:" in capsys.readouterr().out
    assert page.read_text().startswith(f"before\n{BEGIN}| device | op class |")
    assert page.read_text().endswith(f" |{END}\nafter")
    assert main(["--profiles", str(tmp_path / "q.jsonl")]) == 2
    assert (
        main(["--profiles", str(tmp_path / "p.jsonl"), "--update", str(tmp_path / "p.jsonl")]) == 2
    )
    assert "has no place for the table" in capsys.readouterr().err


def test_a_page_without_a_place_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(InputError, match="has no place for the table"):
        update(tmp_path / "page.md", table([]))
    assert (tmp_path / "page.md").read_text() == "nothing"


@pytest.mark.slow
def test_the_table_of_the_docs_is_what_the_benchmark_prints() -> None:
    """A rung that errs by two points more than the docs say is a regression."""
    from benchmarks.ladder import shipped

    told = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].splitlines()
    today = markdown(table(shipped())).splitlines()
    assert [line.split(" | ")[:3] for line in told] == [line.split(" | ")[:3] for line in today], (
        "run the --update"
    )
    for before, after in zip(told[2:], today[2:], strict=True):
        for old, new in zip(before.split(" | ")[3:], after.split(" | ")[3:], strict=True):
            pairs = zip(old.strip(" |").split(" / "), new.strip(" |").split(" / "), strict=True)
            assert all(a == b or abs(float(a) - float(b)) <= POINTS for a, b in pairs), (
                before,
                after,
            )
