"""What notebooks show of a graph, a cluster and a strategy."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from simdev import Cluster, Device, Graph, Op, Strategy
from simdev.files import read_preset
from simdev.ground.units import format_bytes
from simdev.nouns.graph import Tensor
from simdev.nouns.models import build
from simdev.nouns.strategy import Configuration, Parallelism
from simdev.report.nouns import html_of

HOSTILE = "<script>&\"'"


def texts(noun: object) -> list[str]:
    """The cells of its HTML, which is well-formed."""
    html = noun._repr_html_()  # type: ignore[attr-defined]
    assert set(re.findall('color:[^"]*', html)) <= {"color:inherit"}
    return [text for element in ElementTree.fromstring(html).iter() for text in element.itertext()]


def test_a_graph_is_its_ops_by_kind() -> None:
    graph = build("resnet-50")
    shown = texts(graph)
    assert shown[0].startswith("Graph resnet-50-b64: 837 ops (445 forward, 231 backward, 161 up")
    held = sum(op.param_bytes for op in graph.ops)
    assert shown[0].endswith(f" {format_bytes(held)} of parameters")
    kinds = {op.kind for op in graph.ops}
    assert f"... and {len(kinds) - 8} more" in shown
    assert "batch_norm" in shown


def test_a_cluster_is_its_devices_and_links_by_what_is_alike() -> None:
    shown = texts(read_preset("dgx-1v"))
    assert shown[0].startswith("Cluster dgx-1v: ")
    assert "v100" in shown
    assert "gpu:0, gpu:1, gpu:2, 5 more" in shown


def test_a_strategy_is_its_entries_by_device() -> None:
    split = {"d": Configuration({"n": 2}, ("gpu:0", "gpu:1"))}
    shown = texts(Strategy({"a": "gpu:0", "b": "gpu:0", "c*": "gpu:1"}, partition=split))
    assert shown[0] == "Strategy: order fifo, sync all-reduce"
    assert "a, b" in shown
    assert "n 2" in shown
    assert texts(Strategy(pipeline=Parallelism(pp=4)))[0].startswith("Strategy: pipeline of dp 1")


def test_a_pipeline_is_told_with_all_degrees_that_change_something() -> None:
    plain, full = Parallelism(dp=4, tp=2, pp=4), Parallelism(dp=4, cp=2, tp=2, pp=4, ep=8)
    assert "pipeline of dp 4 x tp 2 x pp 4, order" in texts(Strategy(pipeline=plain))[0]
    assert "pipeline of dp 4 x cp 2 x tp 2 x pp 4, ep 8, " in texts(Strategy(pipeline=full))[0]


@pytest.mark.parametrize(
    "noun",
    [
        Graph(HOSTILE, (Op(HOSTILE, HOSTILE, outputs=(Tensor(1),)),)),
        Cluster(HOSTILE, (Device(HOSTILE, HOSTILE),)),
        Strategy({HOSTILE: HOSTILE}),
    ],
)
def test_texts_are_escaped(noun: object) -> None:
    assert HOSTILE in "".join(texts(noun))
    assert "<script" not in html_of(noun)


def test_nothing_else_is_shown() -> None:
    with pytest.raises(TypeError, match="a str"):
        html_of("a")
