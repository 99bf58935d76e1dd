"""Strategies in the order of OptCNN's and FlexFlow's figures, and where they are not, that it stays
so.

The published values are those of benchmarks/strategy_order.py;
docs/papers/strategies-in-order.md tells why some orders differ.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

# plain `pytest` puts tests/ alone on the path
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks import strategy_order
from benchmarks.strategy_order import (
    CASES,
    PUBLISHED_NMT,
    Case,
    Order,
    Row,
    orders,
    ranked,
    scenario_of,
    translator,
)
from simdev import run
from simdev.nouns.strategy import SHORT_FORMS, Strategy

SERVER, RING = "parameter-server", "all-reduce"
CNN = ("data-parallel", "model-parallel", "owt")


def case_of(model: str, gpus: int, batch: int = 32) -> Case:
    return next(
        entry for entry in CASES if (entry.model, entry.gpus, entry.batch) == (model, gpus, batch)
    )


@cache
def rows_of(model: str, gpus: int, batch: int, sync: str) -> dict[str, Row]:
    """Those of which something is published, and all where nothing is."""
    case = case_of(model, gpus, batch)
    names = [name for name in SHORT_FORMS if name in case.speed or not case.speed]
    return {row.strategy: row for row in strategy_order.simulated(case, (sync,), names=names)}


def order_of(model: str, batch: int, sync: str, unit: str) -> Order:
    """On 16 GPUs, where there are published values."""
    rows = list(rows_of(model, 16, batch, sync).values())
    return next(entry for entry in orders(case_of(model, 16, batch), rows) if entry.unit == unit)


def speeds(model: str, gpus: int, batch: int, sync: str) -> dict[str, float]:
    return {name: row.samples_s for name, row in rows_of(model, gpus, batch, sync).items()}


INCEPTION = pytest.param("inception-v3", marks=pytest.mark.slow)


@pytest.mark.parametrize("model", ["alexnet", "vgg-16", INCEPTION])
def test_optcnns_speeds_are_in_order(model: str) -> None:
    """Figure 7, on 16 P100, 32 images each."""
    assert order_of(model, 32, SERVER, "samples/s").agrees


@pytest.mark.parametrize("model", ["vgg-16", INCEPTION])
def test_optcnns_traffic_is_in_order(model: str) -> None:
    """Figure 8; every value within a third, data parallel and one weird trick closer."""
    order = order_of(model, 32, SERVER, "GB")
    assert order.agrees
    rows = rows_of(model, 16, 32, SERVER)
    limits = {"data-parallel": 0.05, "owt": 0.12, "model-parallel": 0.3}
    if model == "inception-v3":
        del limits["model-parallel"]  # the next test
    for name, most in limits.items():
        assert rows[name].sent_gb == pytest.approx(rows[name].published_gb, rel=most)


@pytest.mark.slow
@pytest.mark.xfail(reason="40.4 GB of 28: backward ops stand with their forward mate's layer")
def test_inceptions_model_parallel_traffic_is_as_published() -> None:
    row = rows_of("inception-v3", 16, 32, SERVER)["model-parallel"]
    assert row.sent_gb == pytest.approx(row.published_gb, rel=0.3)


def test_alexnets_traffic_is_in_order_where_each_layer_has_a_device_of_its_own() -> None:
    """OptCNN counts 11 layers, pools among them; ours keeps a pool beside its convolution, and
    sends less.
    """
    assert not order_of("alexnet", 32, SERVER, "GB").agrees
    layers = (
        "conv_1 conv_1/max_pool2d conv_2 conv_2/max_pool2d conv_3 conv_4 conv_5 "
        "conv_5/max_pool2d fc_6 fc_7 fc_8"
    )
    placement = {name: f"gpu:{device}" for device, name in enumerate(layers.split())}
    pools = {
        f"{way}{name}*": device
        for name, device in placement.items()
        if "pool" in name
        for way in ("", "grad/")
    }
    others = {f"*{name}/*": device for name, device in placement.items() if "pool" not in name}
    rest = {"images": "gpu:0", "labels": "gpu:10", "loss/*": "gpu:10", "grad/loss/*": "gpu:10"}
    scenario = scenario_of(case_of("alexnet", 16), "model-parallel", SERVER)
    alone = run(replace(scenario, strategy=Strategy(pools | others | rest)))
    sent = {
        name: rows_of("alexnet", 16, 32, SERVER)[name].sent_gb for name in ("data-parallel", "owt")
    }
    sent["model-parallel"] = alone.transfer_bytes / 1e9
    assert ranked(sent) == "data-parallel > model-parallel > owt"
    assert sent["model-parallel"] == pytest.approx(2.3, rel=0.05)


@pytest.mark.parametrize("model", ["alexnet", "vgg-16", INCEPTION])
def test_on_four_gpus_one_weird_trick_leads(model: str) -> None:
    """The order of 16; model parallelism, layer by layer, is last where data parallelism has no
    network to cross.
    """
    simulated = speeds(model, 4, 32, SERVER)
    assert ranked({name: simulated[name] for name in CNN}) == "owt > data-parallel > model-parallel"


def test_a_ring_hides_what_a_server_does_not() -> None:
    """FlexFlow's figure 6 has expert before data parallel on AlexNet: so with a server, not with a
    ring.
    """
    assert order_of("alexnet", 256, SERVER, "samples/s").agrees
    assert not order_of("alexnet", 256, RING, "samples/s").agrees
    simulated = rows_of("alexnet", 16, 256, SERVER)
    for name in ("data-parallel", "expert"):
        assert simulated[name].samples_s == pytest.approx(
            simulated[name].published_samples_s, rel=0.2
        )


@pytest.mark.slow
def test_flexflows_inception_is_a_tie() -> None:
    """3 % apart as published, as far as a plot can be read; 1 % the other way here."""
    simulated = {
        name: entry.samples_s for name, entry in rows_of("inception-v3", 16, 64, SERVER).items()
    }
    assert simulated["expert"] == pytest.approx(simulated["data-parallel"], rel=0.03)


@pytest.mark.slow
def test_flexflows_translator_is_in_order_with_a_ring() -> None:
    """Figure 6 has data parallel before expert; with one server for all it would be the other way
    round.
    """
    assert order_of("nmt", 64, RING, "samples/s").agrees
    assert not order_of("nmt", 64, SERVER, "samples/s").agrees


@pytest.mark.slow
def test_gnmt_is_in_the_translators_order() -> None:
    """Data parallel before expert before layers one after another, on 16 GPUs; on one node the last
    two are one.
    """
    simulated = speeds("gnmt", 16, 64, RING)
    assert simulated["data-parallel"] > simulated["expert"] > simulated["model-parallel"]
    simulated = speeds("gnmt", 4, 64, RING)
    assert (
        simulated["data-parallel"]
        > simulated["owt"]
        > simulated["expert"]
        == simulated["model-parallel"]
    )


ADAPTER = 0.86 * 7e9
"""Bytes/s of a node of the K80 testbed: 56 Gbit/s, of which 0.86 reach an application (the preset's
estimate).
"""
GRADIENTS = 536_015_872


@pytest.mark.slow
def test_flexflows_translator_on_64_k80() -> None:
    """What is sent and computed is as published; the steps differ by what of the gradients' way is
    hidden.
    """
    simulated = {entry.strategy: entry for entry in map(translator, ("data-parallel", "expert"))}
    published = {entry.strategy: entry for entry in PUBLISHED_NMT}
    for name, entry in simulated.items():
        assert entry.sent_gb == pytest.approx(published[name].sent_gb, rel=0.07)
        assert entry.busy_s == pytest.approx(published[name].busy_s, rel=0.1)
        assert entry.step_s < published[name].step_s
    assert simulated["data-parallel"].sent_gb == pytest.approx(2 * 63 * GRADIENTS / 1e9, rel=1e-4)
    assert simulated["data-parallel"].step_s < simulated["expert"].step_s
    # Each node's sum, sent to one node and not hidden, is the whole difference of data parallelism.
    one_by_one = 15 * GRADIENTS / ADAPTER
    assert published["data-parallel"].busy_s / 64 + one_by_one == pytest.approx(1.9, rel=0.02)
    assert simulated["data-parallel"].busy_s / 64 + one_by_one == pytest.approx(1.9, rel=0.05)


@pytest.mark.slow
@pytest.mark.xfail(reason="2.94 of 2.72: expert sends 23.0 GB, 24.2 are published")
def test_flexflows_translator_sends_in_the_published_proportion() -> None:
    simulated = {entry.strategy: entry for entry in map(translator, ("data-parallel", "expert"))}
    published = {entry.strategy: entry for entry in PUBLISHED_NMT}
    proportion = [
        entry["data-parallel"].sent_gb / entry["expert"].sent_gb for entry in (simulated, published)
    ]
    assert proportion[0] == pytest.approx(proportion[1], rel=0.05)


def test_the_benchmark_prints_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(
        "lenet", 4, 4, {"data-parallel": 2, "owt": 1}, {"owt": 3, "data-parallel": 3}, "a figure"
    )
    monkeypatch.setattr(strategy_order, "CASES", (case,))
    strategy_order.main(["lenet", "--json", "--queues", "link"])
    simulated = json.loads(capsys.readouterr().out)
    assert simulated["queues"] == "link"
    assert {row["strategy"] for row in simulated["rows"]} == {*CNN, "expert"}
    assert [order["published"] for order in simulated["orders"]] == [
        "data-parallel > owt",
        "owt = data-parallel",
    ] * 2
    strategy_order.main([])
    assert "a figure" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        strategy_order.main(["no-such-model"])
    assert ranked({"a": 1, "b": 1, "c": 2}) == "c > a = b"
