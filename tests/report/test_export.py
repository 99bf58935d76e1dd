"""Chrome Trace Event JSON and Graphviz: what is written reads back as what happened."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from simdev.nouns.trace import Trace
from simdev.report.export import export_chrome_trace
from worlds.scenarios import World, worlds
from worlds.traces import HOSTILE, Span, hostile, trace_of, two_devices


def exported(trace: Trace) -> list[dict[str, Any]]:
    file = io.StringIO()
    count = export_chrome_trace(trace, file)
    # Numbers stay text: floats could not tell whether they are exact.
    found = json.loads(file.getvalue(), parse_float=str)
    assert found["displayTimeUnit"] == "ns"
    assert len(found["traceEvents"]) == count
    return found["traceEvents"]


def ps(text: str) -> int:
    whole, fraction = text.split(".")
    assert len(fraction) == 6
    return int(whole + fraction)


def of(events: list[dict[str, Any]], *phases: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] in phases]


def threads(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    named = (event for event in of(events, "M") if event["name"] == "thread_name")
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def test_slices_by_hand() -> None:
    events = exported(two_devices())
    names = threads(events)
    found = [
        (names[e["pid"], e["tid"]], e["name"], e["cat"], e["ts"], e["dur"], e["args"])
        for e in of(events, "X")
    ]
    sent = ("a:0>gpu:1", "transfer", "0.000010", "0.000006", {"task": 4, "bytes": 6})
    assert found == [
        ("gpu:0", "a", "forward", "0.000000", "0.000010", {"task": 0}),
        ("gpu:0", "b", "forward", "0.000012", "0.000008", {"task": 1}),
        ("send gpu:0", *sent),
        ("gpu:1", "c", "backward", "0.000020", "0.000005", {"task": 2}),
        ("gpu:1", "d", "update", "0.000026", "0.000004", {"task": 3}),
        ("recv gpu:1", *sent),
    ]


def test_processes_are_devices_and_links() -> None:
    events = exported(
        trace_of([Span("a", 0, 1, "gpu:0"), Span("x", 1, 2, "link gpu:0>gpu:1", "a", to=1)])
    )
    named = {e["args"]["name"]: e["pid"] for e in of(events, "M") if e["name"] == "process_name"}
    assert named == {"gpu:0": 1, "gpu:1": 2, "links": 3}
    assert {e["tid"] for e in of(events, "X")}.isdisjoint(named.values())


def test_arrows_lead_from_producer_over_queues_to_consumers() -> None:
    events = exported(two_devices())
    names = threads(events)
    starts = {e["id"]: e for e in of(events, "s")}
    pairs = [(starts[e["id"]], e) for e in of(events, "f")]
    assert [
        (names[s["pid"], s["tid"]], s["ts"], names[f["pid"], f["tid"]], f["ts"]) for s, f in pairs
    ] == [
        ("gpu:0", "0.000000", "send gpu:0", "0.000010"),
        ("recv gpu:1", "0.000010", "gpu:1", "0.000020"),
        ("recv gpu:1", "0.000010", "gpu:1", "0.000026"),
        ("send gpu:0", "0.000010", "recv gpu:1", "0.000010"),
    ]


def test_timestamps_are_exact_beyond_doubles() -> None:
    late = 2**60 + 1
    (event,) = of(exported(trace_of([Span("a", late, late + 10**12 + 1, "gpu:0")])), "X")
    assert (ps(event["ts"]), ps(event["dur"])) == (late, 10**12 + 1)


def check_slices(events: list[dict[str, Any]], trace: Trace) -> None:
    """Slices of a thread follow one another, and tell of every task when it ran."""
    rows = defaultdict(list)
    for event in of(events, "X"):
        start = ps(event["ts"])
        task = event["args"]["task"]
        rows[event["pid"], event["tid"]].append((start, start + ps(event["dur"])))
        assert rows[event["pid"], event["tid"]][-1] == (trace.start[task], trace.finish[task])
    assert {event["args"]["task"] for event in of(events, "X")} == set(range(len(trace.start)))
    assert rows.keys() <= threads(events).keys()
    for spans in rows.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def check_arrows(events: list[dict[str, Any]]) -> None:
    """Each arrow has two ends, in the order of time, each at the start of a slice of its thread."""
    begins = {(e["pid"], e["tid"], e["ts"]) for e in of(events, "X")}
    starts, ends = ({e["id"]: e for e in of(events, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == len(of(events, "s")) == len(of(events, "f"))
    for number, end in ends.items():
        assert ps(starts[number]["ts"]) <= ps(end["ts"])
        assert {(e["pid"], e["tid"], e["ts"]) for e in (end, starts[number])} <= begins


def check_counters(events: list[dict[str, Any]], trace: Trace) -> None:
    """The counters replay to the memory of the trace."""
    replayed = defaultdict(list)
    for event in of(events, "C"):
        replayed[event["pid"] - 1].append((ps(event["ts"]), event["args"]["bytes"]))
    for device, memory in enumerate(trace.memory):
        assert replayed[device] == list(
            zip(memory.time.tolist(), memory.level.tolist(), strict=True)
        )


@given(worlds())
def test_random_worlds_read_back(world: World) -> None:
    events = exported(world.trace)
    check_slices(events, world.trace)
    check_arrows(events)
    check_counters(events, world.trace)


def test_hostile_names_read_back() -> None:
    events = exported(hostile())
    check_slices(events, hostile())
    assert set(HOSTILE) < {event["name"] for event in of(events, "X")}
    assert set(HOSTILE[:2]) < set(threads(events).values())


def test_files_plain_and_compressed_hold_the_same(tmp_path: Path) -> None:
    plain, packed, again = tmp_path / "t.json", tmp_path / "t.json.gz", tmp_path / "u.json.gz"
    for file in (plain, packed, again):
        export_chrome_trace(two_devices(), file)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()
    assert plain.read_bytes().isascii()
    assert export_chrome_trace(two_devices(), str(plain)) == len(
        json.loads(plain.read_text())["traceEvents"]
    )


def test_an_empty_trace_is_valid(tmp_path: Path) -> None:
    assert [event["ph"] for event in exported(trace_of([]))] == ["M"] * 8
    with pytest.raises(OSError, match="nowhere"):
        export_chrome_trace(two_devices(), tmp_path / "nowhere" / "t.json")


def test_more_events_than_a_chunk() -> None:
    trace = trace_of([Span(f"a{i}", i, i + 1, "gpu:0") for i in range(25_000)])
    check_slices(exported(trace), trace)
