"""What the slider of speed answers equals what a profile says of a device that is really so slow,
read and simulated like any other.
"""

from __future__ import annotations

import json
from pathlib import Path

import simdev
from simdev.commands.explorer import explorer_of
from simdev.files.examples import examples_folder

ALEXNET = examples_folder() / "profiles" / "graphs" / "alexnet-b128.json"
MEASURED = examples_folder() / "profiles" / "alexnet.epyc-1core.jsonl"
TIMES = ("min", "p10", "p50", "p90", "wall")


def two_cores(profile: Path) -> Path:
    """A scenario beside the profile: convolutions on one core, the rest on another."""
    kind = json.loads(MEASURED.read_text().splitlines()[0])["header"]["device"]["kind"]
    cluster = {
        "version": 1,
        "name": "two cores",
        "devices": [{"name": f"cpu:{d}", "kind": kind, "gap": "3 us"} for d in range(2)],
        "links": [{"ends": ["cpu:0", "cpu:1"], "bandwidth": "1 GB/s", "latency": "10 us"}],
    }
    scenario = {
        "version": 1,
        "graph": str(ALEXNET),
        "cluster": cluster,
        "profile": [str(profile)],
        "strategy": {"placement": {"*": "cpu:0", "*fc*": "cpu:1", "*linear*": "cpu:1"}},
    }
    place = profile.with_suffix(".scenario.json")
    place.write_text(json.dumps(scenario))
    return place


def slower(line: str, times: int) -> str:
    row = json.loads(line)
    if "t_ns" in row:
        row["t_ns"] |= {name: times * row["t_ns"][name] for name in TIMES}
    return json.dumps(row)


def test_half_the_speed_is_a_profile_of_twice_the_times(tmp_path: Path) -> None:
    lines = MEASURED.read_text().splitlines()
    profiles = [tmp_path / name for name in ("measured.jsonl", "twice.jsonl")]
    for times, profile in enumerate(profiles, 1):
        profile.write_text("\n".join(slower(line, times) for line in lines) + "\n")
    measured, twice = map(two_cores, profiles)
    explorer = explorer_of(str(measured))
    before, expected = simdev.run(str(measured)), simdev.run(str(twice))
    assert before.transfer_count
    assert before.costs["measured"] == 1
    assert expected.step_ps > before.step_ps
    turned = explorer.page({"speed": 0.5}, tables=False)["timeline"]
    assert turned["step"] == expected.step_ps
    assert turned["tasks"]["start"] == expected.trace.start.tolist()
