"""What scenarios name: presets, and files by paths relative to the scenario."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from bad.profiles import row
from simdev.files import preset_names, read_preset, read_scenario
from simdev.files.cluster import CLUSTERS
from simdev.ground.errors import InputError
from worlds.scenarios import question, written


def test_presets_load_and_tell_where_their_numbers_come_from() -> None:
    assert "4x-rtx-2080" in preset_names()
    for name in preset_names():
        assert read_preset(name).name == name
        provenance = json.loads((CLUSTERS / f"{name}.json").read_text())["provenance"]
        assert provenance
        for path, entry in provenance.items():
            assert {"value", "source", "kind", "date"} <= set(entry), (name, path)
            assert entry["kind"] in ("measured", "datasheet", "fitted"), (name, path)


def test_the_preset_of_four_rtx_2080_holds_the_published_numbers() -> None:
    cluster = read_preset("4x-rtx-2080")
    assert [device.memory for device in cluster.devices] == [8 * 10**9] * 4
    assert {(link.bandwidth, link.latency) for link in cluster.links} == {
        (5_700_000_000, Fraction(134, 10**6))
    }
    assert (len(cluster.links), cluster.queues) == (6, "half-duplex")
    with pytest.raises(InputError, match='no preset "x"; there are'):
        read_preset("x")


def test_paths_are_relative_to_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("scenarios", "graphs", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "graphs/g.json").write_text('{"version": 1, "ops": [{"name": "a"}]}')
    (tmp_path / "scenarios/p.jsonl").write_text(row())
    absolute = tmp_path / "s.json"
    absolute.write_text('{"a": "gpu:3"}')
    scenario = {
        "version": 1,
        "graph": "../graphs/g.json",
        "cluster": "4x-rtx-2080",
        "profile": "p.jsonl",
    }
    written(tmp_path / "scenarios/x.json", scenario | {"strategy": str(absolute)})
    monkeypatch.chdir(tmp_path / "elsewhere")
    parts = read_scenario("../scenarios/x.json")
    assert (len(parts.graph.ops), parts.cluster.name, len(parts.profiles)) == (1, "4x-rtx-2080", 1)
    assert parts.strategy.placement == {"a": "gpu:3"}


def test_a_file_with_the_name_of_a_preset_comes_first(tmp_path: Path) -> None:
    (tmp_path / "4x-rtx-2080").write_text(
        '{"version": 1, "name": "mine", "devices": [{"name": "d"}]}'
    )
    scenario = question({"ops": []}, "4x-rtx-2080", {})
    written(tmp_path / "s.json", scenario)
    assert read_scenario(tmp_path / "s.json").cluster.name == "mine"
