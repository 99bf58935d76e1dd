"""Tables of measured collectives: anchors, measurements, shipped tables and published figures."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closed_forms import ring, ring_wire
from collective_clusters import TABLE, bus, simulated_ring
from peers import measured_all_reduces
from simdev.costs.collectives import (
    CollectiveTable,
    collective_model,
    collective_names,
    table_of_rows,
)
from simdev.files import read_preset
from simdev.files.collectives import read_collectives
from simdev.ground.errors import InputError

MIB = 2**20


PCIE_BOXES = ("l40s-8x", "rtx-pro-6000-8x")


def test_tables_are_exact_at_anchors_lines_between_and_never_below_the_first() -> None:
    assert [TABLE.seconds(size) for size, _ in TABLE.anchors] == [
        seconds for _, seconds in TABLE.anchors
    ]
    assert TABLE.seconds(2560) == Fraction(21, 10**6)
    assert TABLE.seconds(0) == TABLE.seconds(511) == Fraction(10, 10**6)
    assert TABLE.seconds(4096 + 3072) == Fraction(48, 10**6)


def test_beyond_a_table_that_does_not_grow_its_last_bandwidth_holds() -> None:
    flat = CollectiveTable("all_gather", 2, ((10, Fraction(2)), (20, Fraction(1))))
    assert flat.seconds(40) == 2


@given(
    st.lists(
        st.tuples(st.integers(1, 2**40), st.integers(1, 10**9)),
        min_size=2,
        unique_by=lambda row: row[0],
    )
)
def test_between_anchors_nothing_leaves_their_range(rows: list[tuple[int, int]]) -> None:
    anchors = tuple((size, Fraction(time, 10**9)) for size, time in sorted(rows))
    table = CollectiveTable("all_reduce", 2, anchors)
    for (low, start), (high, end) in itertools.pairwise(anchors):
        middle = table.seconds((low + high) // 2)
        assert min(start, end) <= middle <= max(start, end)
    assert table.seconds(2**50) > 0


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(1, 1.0)], "rows: at least two sizes are needed"),
        ([(0, 1.0), (2, 1.0)], r"rows\[0\]: bytes must be a whole number > 0, got 0"),
        ([(float("nan"), 1.0), (2, 1.0)], r"rows\[0\]: bytes must be a whole number > 0, got nan"),
        ([(float("inf"), 1.0), (2, 1.0)], r"rows\[0\]: bytes must be a whole number > 0, got inf"),
        ([(1, 0.0), (2, 1.0)], r"rows\[0\]: seconds must be > 0"),
        ([(1, float("nan")), (2, 1.0)], r"rows\[0\]: seconds: must be finite"),
    ],
)
def test_bad_measurements_are_refused(rows: list[tuple[int, float]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        table_of_rows("all_reduce", 2, rows)


def test_measurements_may_be_columns_of_numpy() -> None:
    sizes, times = np.array([1024, 4096]), np.array([1e-5, 2e-5])
    assert table_of_rows("all_reduce", 2, zip(sizes, times, strict=True)) == table_of_rows(
        "all_reduce", 2, [(1024, "1e-5"), (4096, "2e-5")]
    )


def test_bad_tables_are_refused() -> None:
    with pytest.raises(InputError, match="source: must be one of measured, fitted"):
        CollectiveTable("all_reduce", 2, ((1, Fraction(1)), (2, Fraction(2))), "guessed")
    with pytest.raises(InputError) as error:
        CollectiveTable("all_sum", 1, ((2, Fraction(1)), (2, Fraction(0))))
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        "collective",
        "ranks",
        "anchors[1]",
        "anchors[1]",
    ]


def test_a_line_needs_no_anchors_but_its_ends() -> None:
    rows = [(2**k, 1e-5 + 2**k / 1e9) for k in range(9, 30)]
    table = table_of_rows("all_reduce", 8, rows)
    assert len(table.anchors) == 10
    assert table.error(rows)[1] < 1e-4
    assert table_of_rows("all_reduce", 8, rows[::-1]) == table


def test_tables_of_half_the_sizes_tell_the_other_half() -> None:
    """vTrain's all-reduces on 2 to 8 A100, 1 MiB to 1 GiB: mean error on sizes that no table was
    built from.
    """
    for ranks, rows in measured_all_reduces().items():
        for anchors in (6, 8, 10):
            mean, worst = table_of_rows("all_reduce", ranks, rows[::2], anchors).error(rows[1::2])
            print(f"{ranks} GPUs, {anchors} anchors: mean {mean:.2%}, largest {worst:.1%}")
            assert mean <= 0.02
    # As nccl-tests measures: sizes that double. The rest are left out.
    for ranks, rows in measured_all_reduces().items():
        doubling = [row for row in rows if (row[0] // MIB).bit_count() == 1]
        mean, worst = table_of_rows("all_reduce", ranks, doubling).error(rows)
        print(f"{ranks} GPUs, doubling sizes: mean {mean:.2%}, largest {worst:.1%}")
        assert mean <= 0.03


@pytest.mark.parametrize("name", [name for name in collective_names() if name != "p100-pcie"])
def test_shipped_tables_miss_left_out_sizes_by_little(name: str) -> None:
    import json

    from simdev.costs.collectives import COLLECTIVE_PRESETS

    tables = json.loads((COLLECTIVE_PRESETS / f"{name}.json").read_text())["tables"]
    told = [table["left_out"] for table in tables]
    assert all(one["sizes"] == 11 for one in told)
    assert sum(one["mean"] for one in told) / len(told) <= 0.07


# Reference figures of the same measurements: us at 512 B, bus bandwidth in GB/s at 16 and 512 MiB.
FIGURES = {
    ("a100-sxm", 8): (22.6, 136, 222),
    ("h100-sxm", 2): (6.2, 204, 318),
    ("h100-sxm", 8): (15.6, 241, 445),
    ("h200-sxm", 8): (16.0, 241, 461),
    ("b200-sxm", 8): (25.1, 296, 704),
    ("gb200", 4): (15.6, 251, 628),
    ("l40s-pcie", 2): (7.7, 20, 20),
    ("l40s-pcie", 4): (11.9, 5.1, 5.2),
    ("l40s-pcie", 8): (22.6, 1.5, 1.4),
    ("rtx-pro-6000-pcie", 8): (24.6, 24, 25),
}


@pytest.mark.parametrize(("name", "ranks"), FIGURES)
def test_shipped_tables_hold_the_published_figures(name: str, ranks: int) -> None:
    (table,) = [
        one
        for one in read_collectives(name)
        if (one.collective, one.ranks) == ("all_reduce", ranks)
    ]
    least, middle, large = FIGURES[name, ranks]
    assert float(table.seconds(512)) * 1e6 == pytest.approx(least, rel=0.01)
    for size, rate in ((16 * MIB, middle), (512 * MIB, large)):
        assert bus("all_reduce", ranks, size, table.seconds(size)) == pytest.approx(rate, rel=0.04)


@pytest.mark.parametrize("name", PCIE_BOXES)
def test_pcie_boxes_fall_with_more_gpus_measured_and_simulated(name: str) -> None:
    box = read_preset(name)
    size = 512 * MIB
    tables = [
        bus("all_reduce", n, size, collective_model(box).cost("all_reduce", range(n), size).seconds)
        for n in (2, 4, 8)
    ]
    links = [bus("all_reduce", n, size, simulated_ring(box, range(n), size)) for n in (2, 4, 8)]
    print(f"{name}: tables {tables}, simulated {links} GB/s over 2, 4 and 8 GPUs")
    assert tables[0] > tables[1] > tables[2]
    assert links[0] >= links[1] >= links[2]
    assert links[0] > 1.3 * links[2]
    closed = [ring("all_reduce", n, size, ring_wire(box, range(n))) for n in (2, 4, 8)]
    assert links == [
        pytest.approx(bus("all_reduce", n, size, one), rel=1e-2)
        for n, one in zip((2, 4, 8), closed, strict=True)
    ]


def test_l40s_simulated_as_measured() -> None:
    box = read_preset("l40s-8x")
    rates = [
        bus("all_reduce", n, 512 * MIB, simulated_ring(box, range(n), 512 * MIB)) for n in (2, 4, 8)
    ]
    assert rates == [pytest.approx(rate, rel=0.05) for rate in (20.1, 5.2, 1.4)]
