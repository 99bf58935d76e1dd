"""Paths to the fields of a scenario, and the values that the command line and a grid give them."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdev.files import read_cluster, read_preset, read_scenario
from simdev.files.cluster import cluster_object
from simdev.files.reading import read_json
from simdev.ground.errors import InputError
from simdev.search.sweep import parse_settings, points, sweep
from simdev.search.sweep.fields import Every, parse_path, si_values, slow_bandwidths, with_field
from worlds.scenarios import TINY

ALL = Every.ENTRY


def changed(document: dict[str, Any], path: str, value: Any, folder: str = "") -> dict[str, Any]:
    return with_field(document, path, value, folder, read_json)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("cluster", ("cluster",)),
        ("cluster.links[*].bandwidth", ("cluster", "links", ALL, "bandwidth")),
        ("cluster.devices[12].memory", ("cluster", "devices", 12, "memory")),
        ("cluster.device_kinds.rtx-2080.memory", ("cluster", "device_kinds", "rtx-2080", "memory")),
        ('strategy.placement["encoder/*"]', ("strategy", "placement", "encoder/*")),
        (r'strategy.placement["a.\"b\" = [c]"]', ("strategy", "placement", 'a."b" = [c]')),
        ("profile[0]", ("profile", 0)),
        ("options.memory.optimizer", ("options", "memory", "optimizer")),
    ],
)
def test_paths(text: str, steps: tuple[Any, ...]) -> None:
    assert parse_path(text) == steps


@pytest.mark.parametrize(
    "text",
    ["", ".", "x", "clusters.x", "cluster.", "cluster..x", "cluster x", ".cluster", "cluster[",
    "cluster[-1]",
     "cluster[1.5]", "cluster['a']", 'cluster["a]', "cluster[x]", "cluster[*", 'cluster["\\x"]',
     "[0]", "cluster=1"],
)  # fmt: skip
def test_what_is_no_path_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_path(text)
    (problem,) = error.value.problems
    assert problem.startswith(f"{text}: ")


@given(st.lists(st.one_of(st.text(), st.integers(0, 10**6), st.just(ALL)), max_size=5))
def test_every_path_can_be_written(steps: list[Any]) -> None:
    written = [
        json.dumps(step) if isinstance(step, str) else "*" if step is ALL else str(step)
        for step in steps
    ]
    assert parse_path("graph" + "".join(f"[{step}]" for step in written)) == ("graph", *steps)


def test_a_field_is_changed_in_a_copy_that_shares_the_rest() -> None:
    before = json.dumps(TINY)
    edited = changed(TINY, "cluster.devices[1].memory", "8 GB")
    assert edited["cluster"]["devices"] == [{"name": "gpu:0"}, {"name": "gpu:1", "memory": "8 GB"}]
    assert edited["graph"] is TINY["graph"]
    assert edited["cluster"]["devices"][0] is TINY["cluster"]["devices"][0]
    assert json.dumps(TINY) == before


def test_objects_on_the_way_are_made() -> None:
    assert changed(TINY, "options.memory.optimizer", "adam")["options"] == {
        "memory": {"optimizer": "adam"}
    }


def test_the_bandwidth_of_a_cluster_is_that_of_every_link() -> None:
    then = TINY["cluster"]["links"]["all_to_all"]["bandwidth"]
    assert changed(TINY, "cluster.bandwidth", "2 GB/s")["cluster"]["links"] == {
        "all_to_all": {"bandwidth": "2 GB/s", "measured_bandwidth": then}
    }
    assert changed(TINY, "cluster.bandwidth", then)["cluster"]["links"] == TINY["cluster"]["links"]
    links = [
        {"ends": ["gpu:0", "gpu:1"], "bandwidth": 1},
        {"ends": ["gpu:1", "gpu:2"], "kind": "slow"},
    ]
    listed = TINY | {"cluster": {"links": links, "link_kinds": {"slow": {"bandwidth": 1}}}}
    edited = changed(listed, "cluster.latency", "3 us")
    assert edited == changed(listed, "cluster.links[*].latency", "3 us")
    assert [link["latency"] for link in edited["cluster"]["links"]] == ["3 us", "3 us"]
    with pytest.raises(InputError, match=r"cluster\.bandwidth: the cluster has no links"):
        changed(TINY | {"cluster": {"devices": []}}, "cluster.bandwidth", 1)


def test_a_slowed_link_keeps_its_share_of_the_bandwidth_of_every_link() -> None:
    """So a cluster that was written link by link is swept like its file, which says ``slow``."""
    links = [{"ends": [a, b], "bandwidth": "8 GB/s"} for a, b in (("a", "b"), ("b", "c"))]
    devices = [{"name": name} for name in "abc"]
    file = {"devices": devices, "links": links, "slow": {"b - a": 0.25}}
    for cluster in file, cluster_object(read_cluster(file)):
        edited = changed(TINY | {"cluster": cluster}, "cluster.bandwidth", "4 GB/s")["cluster"]
        swept = read_cluster(edited)
        assert [link.bandwidth for link in swept.links] == [10**9, 4 * 10**9]
        assert [link.bandwidth for link in swept.without_stragglers.links] == [4 * 10**9] * 2
        assert [link.bandwidth for link in swept.as_measured.links] == [8 * 10**9] * 2
    for wrong in None, "x", 0:
        links = [links[0] | {"slowed": wrong}]
        edited = changed(TINY | {"cluster": {"links": links}}, "cluster.bandwidth", 1)
        assert edited["cluster"]["links"][0]["bandwidth"] == 1


@pytest.mark.parametrize(
    ("path", "value", "like"),
    [
        ("cluster.nodes", 2, {"nodes": 2}),
        ("cluster.network", "40 Gbit/s", {"network": "40 Gbit/s"}),
        ("cluster.queues", "fair", {"queues": "fair"}),
        ("cluster.transfer", "per-consumer", {"transfer": "per-consumer"}),
    ],
)
def test_settings_of_a_preset(path: str, value: Any, like: dict[str, Any]) -> None:
    document = {"graph": {"ops": []}, "cluster": "dgx-a100-80", "strategy": {}}
    assert read_scenario(changed(document, path, value)).cluster == read_preset(
        "dgx-a100-80", **like
    )


@pytest.mark.parametrize(
    "path", ["cluster.bandwidth", "cluster.links[*].bandwidth", "cluster.link_kinds.nvlink.lanes"]
)
def test_links_keep_what_they_were_when_collectives_were_measured(path: str) -> None:
    document = {"graph": {"ops": []}, "cluster": "dgx-h100", "strategy": {}}
    as_it_is = read_scenario(document).cluster
    edited = changed(document, path, 2 if path.endswith("lanes") else "2 GB/s")
    cluster = read_scenario(edited).cluster
    assert cluster.collectives == as_it_is.collectives
    rates = {link.bandwidth for link in cluster.as_measured.links}
    assert rates == {link.bandwidth for link in as_it_is.links}
    # A field set again is still measured at what the preset says.
    again = read_scenario(changed(edited, "cluster.bandwidth", "3 GB/s")).cluster
    assert {link.bandwidth for link in again.as_measured.links} == rates
    for other, value in (("cluster.network", "10 Gbit/s"), ("cluster.devices[0].memory", "8 GB")):
        there = read_scenario(changed(document, other, value)).cluster
        assert there.as_measured is there


@pytest.mark.parametrize("links", [5, "x", [5], [{"ends": 5}], {"all_to_all": 5}, None])
def test_links_that_are_none_are_left_to_their_reader(links: Any) -> None:
    kinds = {"a": {"bandwidth": "1 GB/s"}, "b": 5}
    document = {"graph": {"ops": []}, "cluster": {"links": links, "link_kinds": kinds}}
    edited = changed(document, "cluster.link_kinds.a.bandwidth", "2 GB/s")
    assert edited["cluster"]["links"] == links


def test_other_fields_of_a_preset_open_it() -> None:
    document = {
        "graph": {"ops": []},
        "cluster": {"preset": "dgx-a100-80", "nodes": 2},
        "strategy": {},
    }
    plain = read_preset("dgx-a100-80", 2, network="40 Gbit/s")
    for paths in (("cluster.network", "cluster.latency"), ("cluster.latency", "cluster.network")):
        values = {"cluster.network": "40 Gbit/s", "cluster.latency": "77 us"}
        edited = document
        for path in paths:
            edited = changed(edited, path, values[path])
        cluster = read_scenario(edited).cluster
        assert len(cluster.devices) == len(plain.devices)
        rates = {(link.ends, link.bandwidth) for link in cluster.links}
        assert rates == {(link.ends, link.bandwidth) for link in plain.links}
        assert any(float(link.latency) == 77e-6 for link in cluster.links)


def test_parts_in_files_are_opened_and_not_written(tmp_path: Path) -> None:
    for part in ("graph", "cluster", "strategy"):
        (tmp_path / f"{part}.json").write_text(json.dumps(TINY[part]))
    named: dict[str, Any] = {part: f"{part}.json" for part in ("graph", "cluster", "strategy")}
    edited = changed(named, "cluster.bandwidth", 5, str(tmp_path))
    assert edited["cluster"]["links"]["all_to_all"]["bandwidth"] == 5
    edited = changed(edited, 'strategy["placement"].b', "gpu:0", str(tmp_path))
    assert edited["strategy"] == {"placement": {"a": "gpu:0", "b": "gpu:0"}}
    assert json.loads((tmp_path / "strategy.json").read_text()) == TINY["strategy"]
    with pytest.raises(InputError, match=r"graph\.ops\[0\]\.time: .*none\.json: no such file"):
        changed({"graph": "none.json"}, "graph.ops[0].time", 5, str(tmp_path))


def test_a_bare_placement_and_a_short_form_become_strategies() -> None:
    edited = changed(TINY, "strategy.order", "program")["strategy"]
    assert edited == {"placement": TINY["strategy"], "order": "program"}
    assert changed({"strategy": "data-parallel"}, "strategy.sync", "sharded")["strategy"] == {
        "short": "data-parallel",
        "sync": "sharded",
    }


def test_the_name_of_a_policy_is_opened_to_its_settings() -> None:
    part = {"short": "data-parallel", "sync": "local-sgd"}
    assert changed({"strategy": part}, "strategy.sync.every", 8)["strategy"] == {
        "short": "data-parallel",
        "sync": {"policy": "local-sgd", "every": 8},
    }


def test_a_file_named_in_a_value_is_looked_for_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_text('{"a": "gpu:0", "b": "gpu:0"}')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.json").write_text('{"a": "gpu:1", "b": "gpu:1"}')
    (tmp_path / "deep" / "s.json").write_text(json.dumps(TINY))
    results = sweep("deep/s.json", {"strategy": ["one.json", "two.json"]})
    assert list(results["status"]) == ["ok", "ok"]
    assert list(results["strategy"]) == ["one.json", "two.json"]
    with pytest.raises(InputError, match=r"deep/three\.json: no such file"):
        sweep("deep/s.json", {"strategy": ["one.json", "three.json"]})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cluster.devices[7].memory", "there is no entry [7], only 2"),
        ("cluster.devices.memory", '"memory" leads into a list'),
        ("cluster[0].x", "[0] leads into an object"),
        ("graph.ops[0].time.x", '"x" leads into "1 us"'),
        ("options[*].x", "there is no entry"),
        ("graph.ops[0].outputs[0].bytes[*]", "[*] leads into 8000"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep([TINY], {path: [1]})
    assert refused.value.problems == (f"[0]: {path}=1: {message}",)


def test_the_length_of_paths_decides_their_order() -> None:
    results = sweep(
        TINY, {"cluster.nodes": [2], "cluster": ["dgx-1v"], "strategy": [{"*": "gpu:0"}]}
    )
    assert results["cluster.nodes"][0] == 2
    assert results["cluster"][0] == "dgx-1v"
    assert results["cluster_name"][0] == "dgx-1v, nodes 2"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4,8Gbit/s", ["1Gbit/s", "2Gbit/s", "4Gbit/s", "8Gbit/s"]),
        ("1, 2 GB/s,500MB/s", ["1 GB/s", "2 GB/s", "500MB/s"]),
        ("1,2,4", [1, 2, 4]),
        ("1.5,2e3", [Decimal("1.5"), Decimal("2e3")]),
        ("5us,auto", ["5us", "auto"]),
        ("true,null,link", [True, None, "link"]),
        ("4x-rtx-2080,dgx-1v", ["4x-rtx-2080", "dgx-1v"]),
        ('{"a": "x,y"},data-parallel,[1,2]', [{"a": "x,y"}, "data-parallel", [1, 2]]),
        ('"1",1', ["1", 1]),
        ('"a,\\"b",c', ['a,"b', "c"]),
    ],
)
def test_values(text: str, values: list[Any]) -> None:
    edited = parse_settings([f"cluster.x={text}"])["cluster.x"]
    assert edited == values
    assert list(map(type, edited)) == list(map(type, values))


def test_every_problem_of_the_settings_is_told_at_once() -> None:
    with pytest.raises(InputError) as error:
        parse_settings(["x=1", "cluster.a", "cluster.b=", 'cluster["a=b"].c=1'])
    assert len(error.value.problems) == 3
    assert parse_settings(['cluster["a=b"].c=1']) == {'cluster["a=b"].c': [1]}


def test_points_are_every_combination_the_first_field_slowest() -> None:
    grid = {"graph.a": [1, 2], "graph.b": ["x", "y"]}
    shown = [(point["graph.a"], point["graph.b"]) for point in points(grid)]
    assert shown == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert points([{"graph.a": [1]}, {"graph.b": [2]}]) == [{"graph.a": 1}, {"graph.b": 2}]
    assert points(None) == points({}) == points([]) == [{}]


@pytest.mark.parametrize("values", ["abc", 3, {"a": 1}, None])
def test_values_must_be_a_list(values: Any) -> None:
    with pytest.raises(InputError, match=r"graph\.batch: must be a list of values"):
        points({"graph.batch": values})


@pytest.mark.parametrize(
    ("values", "edited"),
    [
        (["1 us", 2e-6, "3ms"], ("s", [1e-6, 2e-6, 3e-3])),
        (["8 GB", "1 KiB"], ("bytes", [8e9, 1024.0])),
        (["8 Gbit/s"], ("bytes_per_s", [1e9])),
        (["1 TFLOP/s"], ("flop_per_s", [1e12])),
        (["1 us", "8 GB"], None),
        ([1, 2], None),
        (["link", "1 GB"], None),
        (["1", "2"], None),
        ([None, "1 GB"], None),
    ],
)
def test_quantities_of_one_sort_are_told_in_si_too(values: list[Any], edited: Any) -> None:
    assert si_values(values) == edited


def test_columns_of_what_was_set() -> None:
    grid = [
        {
            "graph.name": ["x"],
            "cluster.bandwidth": ["1 GB/s"],
            "cluster.latency": [1e-6],
            "graph.provenance": [{"n": 1}],
        },
        {"cluster.links[*].hold_latency": [True, False]},
    ]
    results = sweep(TINY, grid)
    kinds = {str(name): str(kind) for name, kind in results.dtypes.items()}
    assert list(results)[1 : list(results).index("status")] == [
        "graph.name",
        "cluster.bandwidth",
        "cluster.bandwidth_bytes_per_s",
        "cluster.latency",
        "graph.provenance",
        "cluster.links[*].hold_latency",
    ]
    assert (kinds["cluster.latency"], kinds["cluster.links[*].hold_latency"]) == (
        "float64",
        "boolean",
    )
    assert list(results["graph.provenance"].fillna("")) == ['{"n": 1}', "", ""]
    assert list(results["cluster.bandwidth_bytes_per_s"].fillna(0)) == [1e9, 0, 0]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("cluster.bandwidth=25", "25"),
        ("cluster.links[*].bandwidth=2e9,5e5,100", "500000"),
        ("cluster.network=100", "100"),
        ("cluster.network.bandwidth=1.5", "1.5"),
        ("cluster.bandwidth=1,25Gbit/s", None),
        ("cluster.bandwidth=25B/s", None),
        ("cluster.bandwidth=25000000", None),
        ("cluster.latency=25", None),
        ("graph.batch=16,32", None),
        ("cluster.network={}", None),
    ],
)
def test_a_bandwidth_without_a_unit_is_asked_about_once(setting, shown):
    path = setting.partition("=")[0]
    wanted = [f"{path}={shown} is {shown} B/s; write {shown}GB/s or {shown}Gbit/s"] if shown else []
    assert slow_bandwidths(parse_settings([setting])) == wanted


@pytest.mark.parametrize("value", [10**400, -(10**400), Decimal("1e400"), math.inf])
def test_a_value_that_no_table_holds_is_refused_before_anything_runs(value: object) -> None:
    with pytest.raises(InputError, match=r"out of range: -?(1e\+400|Infinity)"):
        points({"cluster.bandwidth": [1, value]})
    assert slow_bandwidths({"cluster.bandwidth": [value]}) == []
