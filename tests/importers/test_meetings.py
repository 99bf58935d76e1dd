"""Communications of several ranks: which are one, one order of all, and what cannot end."""

from __future__ import annotations

import pytest

from simdev.ground.errors import InputError
from simdev.nouns.meetings import RECEIVE, SEND, Communication, Meetings, meetings_of, merged


def collective(rank, position, kind="all_reduce", size=8, **more):
    return Communication(rank, position, kind, size, label=f"train.py:{position + 1}", **more)


def message(rank, position, kind, peer, size=8, **more):
    return Communication(
        rank, position, kind, size, peer=peer, label=f"train.py:{position + 1}", **more
    )


def of(*calls: Communication, ranks: int = 2) -> Meetings:
    return meetings_of(calls, range(ranks))


def test_the_order_of_all_ranks_keeps_that_of_each_and_joins_what_meets():
    """Rank 0: a, all_reduce, b; rank 1: c, d, all_reduce."""
    met = of(collective(0, 1), collective(1, 2))
    assert merged({0: 3, 1: 3}, met) == [
        ((0, 0),),
        ((1, 0),),
        ((1, 1),),
        ((0, 1), (1, 2)),
        ((0, 2),),
    ]


def test_groups_of_one_name_and_other_ranks_meet_apart_in_their_own_order():
    pairs = [
        (rank, {"group": "tp", "ranks": (rank - rank % 2 + 1, rank - rank % 2)})
        for rank in range(4)
    ]
    met = of(*(collective(rank, 0, **group) for rank, group in pairs), ranks=4)
    assert [[call.rank for call in met.of[rank, 0]] for rank in range(4)] == [
        [1, 0], [1, 0], [3, 2], [3, 2],
    ]  # fmt: skip
    assert not met.problems


def test_of_a_group_only_the_ranks_that_are_there_meet():
    """Ranks 0 and 8 of a world of 16, which is told whole."""
    world = tuple(range(16))
    met = meetings_of([collective(0, 0, ranks=world), collective(8, 0, ranks=world)], (0, 8))
    assert [call.rank for call in met.of[0, 0]] == [0, 8]
    far = meetings_of([message(0, 0, SEND, 4)], (0, 8))
    assert not far.of
    assert not far.problems


def test_messages_cross_where_a_send_does_not_wait_or_a_batch_has_its_sends_first():
    def exchange(blocking: bool):
        calls = [
            message(rank, place, kind, 1 - rank, blocking=blocking or kind == RECEIVE)
            for rank in range(2)
            for place, kind in enumerate((SEND, RECEIVE))
        ]
        return merged({0: 2, 1: 2}, of(*calls))

    assert exchange(blocking=False) == [((1, 0), (0, 1)), ((0, 0), (1, 1))]
    with pytest.raises(InputError) as caught:
        exchange(blocking=True)
    assert str(caught.value) == (
        "ranks wait for each other: rank 0, train.py:1 waits in send of 8 bytes for rank 1; "
        "rank 1, train.py:1 waits in send of 8 bytes for rank 0"
    )


@pytest.mark.parametrize(
    ("calls", "problem"),
    [
        (
            [collective(0, 0), collective(1, 3, "all_gather")],
            "rank 1, train.py:4: all_gather of 8 bytes, but all_reduce of 8 bytes on rank 0, "
            "train.py:1",
        ),
        (
            [collective(0, 0), collective(1, 3, size=9)],
            "rank 1, train.py:4: all_reduce of 9 bytes, but all_reduce of 8 bytes on rank 0, "
            "train.py:1",
        ),
        (
            [collective(0, 0), collective(0, 1, "broadcast"), collective(1, 0)],
            "rank 1: 1 collectives of all ranks, but 2 on rank 0; broadcast of 8 bytes of rank 0, "
            "train.py:2 waits for it",
        ),
        (
            [collective(0, 0, group="dp", ranks=(0, 1))],
            'rank 1: takes no part in the collectives of the group "dp"; all_reduce of 8 bytes of '
            "rank 0, train.py:1 waits for it",
        ),
        (
            [message(1, 4, RECEIVE, 0)],
            "0 sends from rank 0 to 1 with tag 0, 1 receives; recv of 8 bytes of rank 1, "
            "train.py:5 waits for rank 0",
        ),
        (
            [message(0, 0, SEND, 1), message(1, 4, RECEIVE, 0, 4)],
            "rank 1, train.py:5: recv of 4 bytes, but send of 8 bytes on rank 0, train.py:1",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_told_with_ranks_ops_and_lines(calls, problem):
    met = of(*calls)
    assert met.problems == (problem,)
    with pytest.raises(InputError):
        merged({0: 9, 1: 9}, met)


def test_groups_in_another_order_are_a_deadlock_that_names_every_rank():
    """Rank 0: tp, dp; rank 1: dp, tp; rank 2 waits for neither."""
    groups = ("tp", "dp"), ("dp", "tp")
    calls = [
        collective(rank, place, group=group, ranks=(0, 1))
        for rank, order in enumerate(groups)
        for place, group in enumerate(order)
    ]
    with pytest.raises(InputError) as caught:
        merged({2: 1, 0: 2, 1: 2}, of(*calls, ranks=3))
    assert str(caught.value) == (
        "ranks wait for each other: rank 0, train.py:1 waits in all_reduce of 8 bytes of the group "
        '"tp" for rank 1; rank 1, train.py:1 waits in all_reduce of 8 bytes of the group "dp" for '
        "rank 0"
    )
