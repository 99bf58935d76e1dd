"""Schedules as text, faults of tables, times of stages, versions of weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedule_shapes import SHAPES, gpipe, table
from simdev.ground.errors import InputError
from simdev.nouns.schedules import (
    Action,
    aligned,
    named_schedule,
    read_csv,
    schedule_csv,
    stage_times,
    weight_versions,
)


def problems(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_csv(text)
    return list(caught.value.problems)


@given(st.sampled_from(SHAPES), st.booleans())
def test_csv_round_trip(shape: tuple[str, int, int, int], grid: bool) -> None:
    schedule = named_schedule(*shape)
    schedule = aligned(schedule) if grid else schedule
    again = read_csv(schedule_csv(schedule), schedule.name)
    assert again == replace(schedule, asynchronous=False)


def test_csv_is_what_pythons_csv_module_writes() -> None:
    assert schedule_csv(aligned(gpipe(2, 1))) == "0F0,,,0B0\r\n,1F0,1B0\r\n"


def test_csv_reads_blanks_empty_cells_and_a_last_empty_line() -> None:
    assert read_csv(" 0F0 ,, 0B0\n,1F0,1B0,\n\n").rows == (
        (Action(0, "F", 0), None, Action(0, "B", 0)),
        (None, Action(1, "F", 0), Action(1, "B", 0), None),
    )


def test_aligned_puts_no_action_before_what_it_waits_for() -> None:
    schedule = aligned(named_schedule("ZB-H1", 3, 4))
    slot = {
        action: i for row in schedule.rows for i, action in enumerate(row) if action is not None
    }
    for action, at in slot.items():
        if action.kind == "F" and action.stage:
            assert slot[Action(action.stage - 1, "F", action.microbatch)] < at
        if action.kind == "I" and action.stage < 2:
            assert slot[Action(action.stage + 1, "I", action.microbatch)] < at
    assert table(schedule) == table(named_schedule("ZB-H1", 3, 4))


GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["the schedule holds no action"]),
        (",,\n", ["the schedule holds no action"]),
        (
            GOOD.replace("1F1", "1X1"),
            ['rank 1, slot 2: "1X1" is no action; write stage, F, B, I or W, and micro'],
        ),
        (GOOD.replace("1F1", "F1"), ['rank 1, slot 2: "F1" is no action']),
        (GOOD.replace("1F1", "1F"), ['rank 1, slot 2: "1F" is no action']),
        (GOOD.replace("1F1", "1F99999999"), ['rank 1, slot 2: "1F99999999" is no action']),
        (GOOD.replace("1F1", "１F1"), ['rank 1, slot 2: "１F1" is no action']),  # noqa: RUF001
        (GOOD.replace("1F1", "1f1"), ['rank 1, slot 2: "1f1" is no action']),
        (GOOD + ",1B1", ["rank 1, slot 4: 1B1 stands at rank 1, slot 3 already"]),
        (GOOD + ",0B1", ["rank 1, slot 4: 0B1 stands at rank 0, slot 3 already"]),
        (GOOD.replace(",1B1", ""), ["rank 1: 1B1 is missing (or 1I1 and 1W1)"]),
        (GOOD.replace(",1F1", ""), ["rank 1: 1F1 is missing"]),
        (GOOD.replace("1B1", "1I1"), ["rank 1, slot 3: 1I1, but 1W1 is missing"]),
        (GOOD.replace("1B1", "1W1"), ["rank 1, slot 3: 1W1, but 1I1 is missing"]),
        (GOOD + ",1W1", ["rank 1, slot 4: 1W1, but 1B1 (slot 3) is the whole backward"]),
        (
            GOOD.replace("1F0,1B0", "1B0,1F0"),
            ["rank 1, slot 0: 1B0 stands before 1F0 (slot 1), which it needs"],
        ),
        (
            GOOD.replace("1B1", "1W1,1I1"),
            ["rank 1, slot 3: 1W1 stands before 1I1 (slot 4), which it needs"],
        ),
        (
            GOOD.replace("1F", "2F").replace("1B", "2B"),
            ["stage 1: no rank runs it, but stage 2 stands in the table"],
        ),
        (GOOD.replace("0,", "7,"), ["microbatch 0: no rank runs it, but microbatch 7"]),
        (GOOD + "\n,,\n2F0,2B0", ["rank 2: has no action"]),
        ("0F0,1F0,0B0\n1B0", ["rank 1, slot 0: 1B0 belongs to stage 1, which runs on rank 0"]),
        ("0" * 200_000, ["not CSV: field larger than field limit"]),
    ],
)
def test_a_fault_names_rank_slot_and_action(text: str, told: list[str]) -> None:
    found = problems(text)
    assert len(found) == len(told), found
    for problem, start in zip(found, told, strict=True):
        assert start in problem


def runs(rows: list[list[str]]) -> bool:
    """Whether ranks that do their rows in order, each action once it can, come to an end: by the
    plainest way.
    """
    done: set[str] = set()
    left = [list(row) for row in rows]
    progress = True
    while progress:
        progress = False
        for row in left:
            while row:
                stage, kind, microbatch = int(row[0][0]), row[0][1], row[0][2]
                wanted = {"F": [], "W": [{f"{stage}I{microbatch}"}]}.get(
                    kind, [{f"{stage}F{microbatch}"}]
                )
                if kind == "F" and stage:
                    wanted = [{f"{stage - 1}F{microbatch}"}]
                if kind in "BI" and stage < 2:
                    wanted.append({f"{stage + 1}{one}{microbatch}" for one in "BI"})
                if not all(done & one for one in wanted):
                    break
                done.add(row.pop(0))
                progress = True
    return not any(left)


@given(st.data())
def test_an_order_is_refused_exactly_where_it_cannot_end(data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    kinds = ["FB" if one else "FIW" for one in whole]
    cells = [[f"{stage}{kind}{i}" for i in range(2) for kind in kinds[stage]] for stage in range(3)]
    # Few swaps: a shuffled row nearly always stands in its own way.
    rows = []
    for row in cells:
        for i in data.draw(st.lists(st.integers(0, len(row) - 2), max_size=3)):
            row[i], row[i + 1] = row[i + 1], row[i]
        rows.append(row)
    text = "\n".join(",".join(row) for row in rows)
    if runs(rows):
        assert table(read_csv(text)) == rows
    else:
        assert problems(text)


def test_a_cycle_between_ranks_is_told_as_a_circle() -> None:
    """Rank 0 wants to end microbatch 0 before it starts 1; rank 1 does 1 forward before it goes
    back on 0.
    """
    assert problems("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1") == [
        (
            "deadlock: rank 0, slot 1: 0B0 waits for 1B0 (slot 2 of rank 1), which stands "
            "behind 1F1 (slot 1)"
        ),
        (
            "deadlock: rank 1, slot 1: 1F1 waits for 0F1 (slot 2 of rank 0), which stands "
            "behind 0B0 (slot 1)"
        ),
    ]


def test_who_only_waits_for_the_circle_is_not_told() -> None:
    found = problems("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2F1,2B0,2B1")
    assert [problem.split(":")[1].strip() for problem in found] == [
        "rank 1, slot 1",
        "rank 2, slot 1",
    ]


def test_many_faults_are_told_at_once_but_not_without_end() -> None:
    assert len(problems("0F0,0X,0Y\n1Z")) == 3
    assert len(problems(",".join(f"0F{i}" for i in range(1000)))) == 20


def test_one_time_is_shared_by_the_stages_of_a_rank() -> None:
    times = stage_times(
        named_schedule("interleaved", 2, 2, 3), "3ms", "6 ms", activation=10, kept=4
    )
    assert (
        set(times.forward)
        == {times.backward[0] / 2}
        == {stage_times(gpipe(1, 1), "1ms", 0).forward[0]}
    )
    assert (times.activation, times.kept) == ((4,) * 6, (2,) * 6)  # a third of 10 bytes, rounded up


def test_a_list_has_a_time_for_each_stage() -> None:
    times = stage_times(
        named_schedule("interleaved", 2, 2, 2), ["1ms", "2ms", 3, 4], 0, comm=[1, 2, 3]
    )
    assert [float(one) for one in times.forward] == [0.001, 0.002, 3, 4]
    assert times.comm == (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"forward": "1 parsec"}, 'forward: has the unknown unit "parsec"'),
        ({"backward": -1}, "backward: must not be negative"),
        ({"weight": float("nan")}, "weight: must be finite"),
        ({"forward": [1, 2]}, "forward: must hold 1 value or 3, one for each stage, got 2"),
        ({"forward": [1, "x", 2]}, r"forward\[1\]: must be a number"),
        ({"comm": [1]}, "comm: must hold 1 value or 2, one for each pair of neighbours, got 1"),
        ({"activation": "1.5"}, "activation: must be a whole number of bytes"),
        ({"activation": 5, "kept": 6}, "kept: 6 bytes on stage 0, more than its whole activation"),
    ],
)
def test_bad_times(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        stage_times(gpipe(3, 1), **({"forward": 1, "backward": 1} | arguments))


def test_weight_versions_of_pipedream() -> None:
    """Stage s of p stashes p - s versions; fewer where there are too few microbatches; a flush
    needs one.
    """
    assert weight_versions(named_schedule("PipeDream", 5, 20)) == (5, 4, 3, 2, 1)
    assert weight_versions(named_schedule("PipeDream", 5, 2)) == (2, 2, 2, 2, 1)
    assert weight_versions(named_schedule("1F1B", 5, 20)) == (1,) * 5


def test_rows_keep_their_empty_slots() -> None:
    assert read_csv("0F0,,0B0").rows[0] == (Action(0, "F", 0), None, Action(0, "B", 0))
