"""Bytes of server policies are those of their formula: of every parameter each worker sends its
gradient to the server and gets the sum back, unless it is the server itself.
"""

from __future__ import annotations

from random import Random

import pytest

from simdev.nouns.cluster import QUEUES
from simdev.nouns.models.layers import Layer
from simdev.nouns.strategy import sync_policy
from simdev.report import run
from worlds.clusters import machines
from worlds.scenarios import synchronised

POLICIES = ("parameter-server", "sliced", "p3")


def check_bytes(seed: int) -> None:
    """So many bytes a step whatever the queues, how they are held, and how messages are cut."""
    chance = Random(seed)
    workers, host = chance.randint(2, 4), chance.random() < 0.5
    layers = [Layer(1, 1, chance.randint(1, 60)) for _ in range(chance.randint(1, 3))]
    # A server that is asked for its sums is sent a note a parcel, too.
    settings = {"reply": "broadcast", "segment": chance.randint(8, 64)}
    settings["hold"] = chance.choice(("together", "in-turn"))
    servers = ("host:0",) if host else ("gpu:0",)
    sync = sync_policy(POLICIES[seed % len(POLICIES)], servers=servers, **settings)
    cluster = machines(workers, QUEUES[seed % len(QUEUES)], host)
    report = run(synchronised(layers, cluster, sync))
    parameters = sum(layer.parameters for layer in layers)
    senders = workers if host else workers - 1
    assert report.transfer_bytes == 2 * senders * 4 * parameters


@pytest.mark.parametrize("seed", range(12))
def test_a_message_counts_once_however_many_queues_it_passes(seed: int) -> None:
    check_bytes(seed)


@pytest.mark.slow
def test_the_formula_on_a_thousand_random_questions() -> None:
    for seed in range(1000):
        check_bytes(seed)
