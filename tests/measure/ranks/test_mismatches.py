"""Ranks of captured scripts that do not fit together: each message names both, what they call and
the lines of the script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simdev.ground.errors import InputError
from simdev.measure.ranks import capture_program
from simdev.measure.ranks.joining import joined
from simdev.measure.ranks.pretend import World

HERE = r"test_mismatches.py:\d+"


def other_size(rank: int) -> None:
    dist.all_reduce(torch.zeros(16 if rank == 1 else 8))


def other_kind(rank: int) -> None:
    dist.broadcast(torch.zeros(8), 0) if rank == 1 else dist.all_reduce(torch.zeros(8))


def other_root(rank: int) -> None:
    dist.broadcast(torch.zeros(8), rank)


def skipping(rank: int) -> None:
    if rank != 1:
        dist.all_reduce(torch.zeros(8))


def other_order(rank: int) -> None:
    for size in (8, 4) if rank else (4, 8):
        dist.all_reduce(torch.zeros(size))


def other_communicator(rank: int) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second) if rank else (second, first):
        dist.all_reduce(torch.zeros(8), group=group)


def no_receive(rank: int) -> None:
    if rank == 0:
        dist.send(torch.zeros(8), 1)


def no_send(rank: int) -> None:
    if rank == 0:
        dist.recv(torch.zeros(8), 1)


def short_receive(rank: int) -> None:
    dist.recv(torch.zeros(4), 0) if rank else dist.send(torch.zeros(8), 1)


def both_receive_first(rank: int) -> None:
    dist.recv(torch.zeros(8), 1 - rank)
    dist.send(torch.zeros(8), 1 - rank)


def both_at_once(rank: int) -> None:
    pair = (
        dist.P2POp(dist.irecv, torch.zeros(8), 1 - rank),
        dist.P2POp(dist.isend, torch.zeros(8), 1 - rank),
    )
    for work in dist.batch_isend_irecv(list(pair)):
        work.wait()


def no_object(rank: int) -> None:
    if rank == 0:
        dist.recv_object_list([None], src=1)


def gathered_object(rank: int) -> None:
    dist.gather_object(rank, [None] * 2 if rank == 0 else None)


def join(body: Callable[[int], None]) -> None:
    def train() -> None:
        dist.init_process_group("nccl")
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            body(dist.get_rank())
            optimizer.step()
            optimizer.zero_grad()

    joined(capture_program(train, World(2)).steps, ["gpu:0", "gpu:1"], "script")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            other_size,
            f"rank 1, {HERE}: all_reduce of 64 bytes, but all_reduce of 32 bytes on rank 0, {HERE}",
        ),
        (
            other_kind,
            f"rank 1, {HERE}: broadcast of 32 bytes with root 0, but all_reduce .* rank 0, {HERE}",
        ),
        (other_root, "broadcast of 32 bytes with root 1, but broadcast .* with root 0 on rank 0"),
        (
            skipping,
            f"rank 1: takes no part .*; all_reduce of 32 bytes of rank 0, {HERE} waits for it",
        ),
        (
            other_order,
            f"rank 1, {HERE}: all_reduce of 32 bytes, but all_reduce of 16 bytes on rank 0, {HERE}",
        ),
        (
            other_communicator,
            f"rank 0, {HERE} waits in all_reduce .* for rank 1; rank 1, {HERE} waits .* for rank 0",
        ),
        (
            no_receive,
            f"1 sends from rank 0 to 1 .*, 0 receives; send .* of rank 0, {HERE} waits for rank 1",
        ),
        (
            no_send,
            f"0 sends from rank 1 to 0 .*, 1 receives; recv .* of rank 0, {HERE} waits for rank 1",
        ),
        (no_object, f"rank 0: {HERE}: waits for an object from rank 1, which sends none"),
        (gathered_object, "gather_object: not covered by a capture"),
        (
            short_receive,
            f"rank 1, {HERE}: recv of 16 bytes, but send of 32 bytes on rank 0, {HERE}",
        ),
        (
            both_receive_first,
            f"rank 0, {HERE} waits in recv .* for rank 1; rank 1, {HERE} waits .* for rank 0",
        ),
    ],
)
def test_a_mismatch_names_both_ranks_and_lines(body: Callable[[int], None], message: str) -> None:
    with pytest.raises(InputError, match=message):
        join(body)


def test_a_batch_of_a_receive_and_a_send_is_no_circle() -> None:
    join(both_at_once)


def test_objects_of_one_rank_reach_all() -> None:
    """Ranks that are only compared get what the rank that they stand for got."""

    def train() -> None:
        dist.init_process_group("nccl")
        objects: list[Any] = [{"width": 4, "steps": 2} if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(objects, src=0)
        back: list[Any] = [dist.get_rank()]
        dist.broadcast_object_list(back, src=1)
        model = nn.Linear(objects[0]["width"], back[0])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(objects[0]["steps"]):
            model(torch.randn(2, 4)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()

    captured = capture_program(train, World(4))
    assert [m.bytes for m in captured.steps[0].messages.values()] == [4 * 4 * 1, 4 * 1]
    assert captured.compared
