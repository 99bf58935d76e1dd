"""Generated schedules: by hand, and equal to PyTorch's tables."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace
from typing import Any

import pytest

from schedule_shapes import SHAPES, gpipe, table
from simdev.ground.errors import InputError
from simdev.nouns.schedules import SCHEDULES, aligned, named_schedule, read_csv, schedule_csv


def test_gpipe_by_hand() -> None:
    assert table(gpipe(2, 2)) == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]


def test_1f1b_by_hand() -> None:
    first, last = table(named_schedule("1F1B", 3, 4))[::2]
    assert first == ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"]
    assert last == ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"]


def test_zero_bubble_by_hand() -> None:
    """Figure 3 of the paper, in small: the first rank splits nothing off, the last delays by p - 1
    or 2 (p - 1).
    """
    assert [" ".join(row) for row in table(named_schedule("ZB-H1", 2, 3))] == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]
    assert [" ".join(row) for row in table(named_schedule("ZB-H2", 2, 4))] == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1I0 1F1 1I1 1F2 1I2 1W0 1F3 1I3 1W1 1W2 1W3",
    ]


def test_interleaved_by_hand() -> None:
    first = table(named_schedule("Interleaved1F1B", 2, 2, 2))[0]
    assert first == ["0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_generated_table_is_a_schedule(shape: tuple[str, int, int, int]) -> None:
    name, ranks, microbatches, chunks = shape
    schedule = named_schedule(*shape)  # checked when it is made
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (
        ranks,
        ranks * chunks,
        microbatches,
    )
    assert schedule.rank_of == tuple(stage % ranks for stage in range(ranks * chunks))
    assert schedule.chunks == (chunks,) * ranks
    assert schedule.name == name
    assert len(schedule.actions) == ranks * chunks * microbatches * (
        3 if name.startswith(("ZB", "InterleavedZ")) else 2
    )


def test_names_are_as_pytorch_takes_them() -> None:
    assert named_schedule("interleaved1f1b", 2, 2, 2) == named_schedule("Interleaved1F1B", 2, 2, 2)
    assert named_schedule("1F1B", 2, 2, 2) == named_schedule("Interleaved1F1B", 2, 2, 2)
    assert named_schedule("interleaved", 2, 2, 2).name == "Interleaved1F1B"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("1F2B", 2, 2), 'schedule: must be one of GPipe, 1F1B, .*, got "1F2B"'),
        (("1F1B", 0, 2), "stages: must be at least 1, got 0"),
        (("1F1B", 2, -1), "microbatches: must be at least 1, got -1"),
        (("interleaved", 2, 2, 0), "chunks: must be at least 1, got 0"),
        (("GPipe", 2, 2, 2), "chunks: GPipe runs one stage a rank"),
        (("interleaved", 2, 5, 2), "microbatches: 2 chunks a rank need a multiple of 2"),
        (("1F1B", 10**6, 10**6), "more than 2,000,000 actions"),
    ],
)
def test_a_schedule_that_cannot_be_generated(arguments: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        named_schedule(*arguments)


@pytest.fixture(scope="module")
def pytorch() -> Any:
    return pytest.importorskip("torch.distributed.pipelining.schedules")


def theirs(rows: Any) -> list[list[str]]:
    return [[str(a) for a in row if a is not None and a.is_compute_op] for row in rows]


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (4, 8), (5, 7)])
def test_single_stage_tables_equal_pytorch(pytorch: Any, ranks: int, microbatches: int) -> None:
    own = SimpleNamespace(_num_stages=ranks, _n_microbatches=microbatches)
    for name, kind in (("GPipe", pytorch.ScheduleGPipe), ("1F1B", pytorch.Schedule1F1B)):
        order = kind._get_pipeline_order(own)
        # PyTorch 2.13 numbers the forwards of the last rank of 1F1B from 1 in this listing (it runs
        # them from 0).
        sound = ranks - 1 if name == "1F1B" else ranks
        ours = table(named_schedule(name, ranks, microbatches))
        assert theirs(order[rank] for rank in range(sound)) == ours[:sound]


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), (4, 8, 2), (4, 8, 3), (4, 10, 2), (4, 3, 2), (3, 6, 1)]
)
@pytest.mark.parametrize("name", ["Interleaved1F1B", "InterleavedZeroBubble"])
def test_interleaved_tables_equal_pytorch(
    pytorch: Any, name: str, shape: tuple[int, int, int]
) -> None:
    ranks, microbatches, chunks = shape
    own = SimpleNamespace(
        pp_group_size=ranks,
        n_local_stages=chunks,
        _n_microbatches=microbatches,
        microbatches_per_round=microbatches // max(1, microbatches // ranks),
    )
    kind = getattr(pytorch, f"Schedule{name}")
    order = [kind._calculate_single_rank_operations(own, rank) for rank in range(ranks)]
    if chunks == 1:  # our one chunk has no rounds
        own.microbatches_per_round = microbatches
    assert theirs(order) == table(named_schedule(name, *shape))


def test_zb_h1_is_pytorchs_interleaved_zero_bubble_of_one_chunk(pytorch: Any) -> None:
    own = SimpleNamespace(
        pp_group_size=4, n_local_stages=1, _n_microbatches=8, microbatches_per_round=4
    )
    kind = pytorch.ScheduleInterleavedZeroBubble
    order = [kind._calculate_single_rank_operations(own, rank) for rank in range(4)]
    assert theirs(order) == table(named_schedule("ZB-H1", 4, 8))


@pytest.mark.parametrize("name", SCHEDULES)
def test_pytorch_takes_our_csv(pytorch: Any, name: str) -> None:
    """Parsed by its notation, passed by its validation, and run by its simulator of
    communication.
    """
    chunks = 2 if name.startswith("Interleaved") else 1
    schedule = aligned(named_schedule(name, 4, 8, chunks))
    lines = csv.reader(io.StringIO(schedule_csv(schedule)))
    order = {
        rank: [pytorch._Action.from_str(cell) for cell in line] for rank, line in enumerate(lines)
    }
    home = pytorch._validate_schedule(order, 4, schedule.stages, 8)
    assert tuple(home[stage] for stage in range(schedule.stages)) == schedule.rank_of
    lowered = pytorch._add_send_recv(
        {rank: [a for a in row if a is not None] for rank, row in order.items()},
        stage_to_rank=lambda stage: home[stage],
        num_stages=schedule.stages,
    )
    assert pytorch._simulate_comms_compute(lowered, lambda stage: home[stage], schedule.stages)


def test_pytorchs_lowered_table_reads_as_the_plain_one(pytorch: Any) -> None:
    """Sends, receives and the reduction of gradients follow from the table, and become empty
    slots.
    """
    schedule = named_schedule("Interleaved1F1B", 2, 4, 2)
    order = {
        r: [pytorch._Action.from_str(str(a)) for a in row] for r, row in enumerate(schedule.rows)
    }
    lowered = pytorch._add_send_recv(order, stage_to_rank=lambda stage: stage % 2, num_stages=4)
    lowered = {rank: pytorch._add_reduce_grad(row, 4) for rank, row in lowered.items()}
    text = "\n".join(",".join(map(str, lowered[rank])) for rank in range(2))
    assert "SEND_F" in text
    assert "REDUCE_GRAD" in text
    assert table(read_csv(text)) == table(schedule)


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 6), (3, 7)])
def test_a_v_shaped_table_of_pytorch_reads(pytorch: Any, p: int, m: int) -> None:
    """DualPipeV: rank r holds stages r and 2p - 1 - r, and overlaps a forward with a backward; ours
    is the same table.
    """
    stages, home = 2 * p, [*range(p), *reversed(range(p))]
    own = SimpleNamespace(pp_group_size=p, num_stages=stages, _num_stages=stages)
    own._n_microbatches, own.stage_index_to_group_rank = m, dict(enumerate(home))
    rows = [
        pytorch.ScheduleDualPipeV._calculate_single_rank_operations(own, rank) for rank in range(p)
    ]
    text = "\n".join(",".join("" if a is None else str(a) for a in row) for row in rows)
    assert "OVERLAP_F_B" in text
    schedule = read_csv(text, "DualPipeV")
    assert (schedule.rank_of, schedule.microbatches) == (tuple(home), m)
    ours = named_schedule("dualpipev", p, m, 2)
    assert ours.actions == schedule.actions
    assert ours.pairs == schedule.pairs
