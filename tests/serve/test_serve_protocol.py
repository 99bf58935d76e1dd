"""The protocol without a stream: answers equal the library's, and no request, however broken, is
answered by a bug.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from bad.scenarios import scenario
from clients import DEVICES, HOSTILE, OPS, library, placements, question, written
from simdev import load_scenario
from simdev.commands.server import METHODS, Limits, ServerState, respond
from simdev.execution.scenario import Outcome
from simdev.files import read_strategy
from simdev.report import analyze, run
from worlds.server import ask, line


@pytest.mark.parametrize("memory", [None, 12_000])
def test_answers_equal_the_library_bit_for_bit(state: ServerState, memory: int | None) -> None:
    document = question(memory)
    oracle, handle = library(document), ask(state, "load", scenario=document)["scenario"]
    strategies: list[Any] = [
        *placements(30),
        document["strategy"],
        {"placement": document["strategy"], "order": "program"},
    ]
    expected = [
        written(oracle(candidate if isinstance(candidate, list) else read_strategy(candidate)))
        for candidate in strategies
    ]
    assert [
        ask(state, "score", scenario=handle, strategy=candidate) for candidate in strategies
    ] == expected
    assert ask(state, "batch", scenario=handle, strategies=strategies) == expected
    assert ask(state, "score", scenario=handle) == expected[30]
    assert memory is None or len({candidate["feasible"] for candidate in expected}) == 2


def test_a_trace_equals_the_librarys(state: ServerState) -> None:
    document = question()
    oracle, handle = library(document), ask(state, "load", scenario=document)["scenario"]
    reply = ask(state, "trace", scenario=handle)
    tasks = reply.pop("tasks")
    report = run(load_scenario(document)).to_json()
    assert reply == report | {"engine": reply["engine"]}
    placement = placements(1)[0]
    reply = ask(state, "trace", scenario=handle, strategy=placement)
    trace = oracle.trace(placement)
    assert reply["tasks"]["start_ps"] == trace.start.tolist()
    assert reply["tasks"]["name"] == list(trace.task_graph.tasks.name)
    assert reply["step_time_ps"] == analyze(Outcome(trace)).step_ps
    assert len(tasks["name"]) == len(tasks["kind"]) == len(tasks["finish_ps"])


def test_a_walk_of_moves_equals_the_library(state: ServerState) -> None:
    document, chance = question(), random.Random(1)
    oracle, handle = library(document), ask(state, "load", scenario=document)["scenario"]
    session = oracle.session(document["strategy"])
    opened = ask(state, "session", scenario=handle)
    name = opened["session"]
    assert opened["cost"] == written(session.cost)
    for _ in range(60):
        unit = chance.choice([chance.randrange(OPS - 1), f"op{chance.randrange(OPS)}", "first"])
        where = chance.choice([chance.randrange(DEVICES), f"gpu:{chance.randrange(DEVICES)}"])
        assert ask(state, "propose", session=name, unit=unit, device=where) == written(
            session.propose(unit, where)
        )
        if chance.random() < 0.5:
            assert ask(state, "accept", session=name) == written(session.accept())
        else:
            session.reject()
            assert ask(state, "reject", session=name) == written(session.cost)
    assert ask(state, "accept", session=name)["code"] == "input"


def test_a_handle_names_the_content(state: ServerState, tmp_path: Path) -> None:
    document = question()
    (tmp_path / "graph.json").write_text(json.dumps(document["graph"] | {"version": 1}))
    (tmp_path / "s.json").write_text(json.dumps(document | {"version": 1, "graph": "graph.json"}))
    turned = document | {"strategy": dict(reversed(document["strategy"].items()))}
    handles = {
        ask(state, "load", scenario=candidate)["scenario"]
        for candidate in (document, turned, str(tmp_path / "s.json"), document)
    }
    assert len(handles) == 1
    assert ask(state, "load", scenario=question(1))["scenario"] not in handles
    assert len(ask(state, "stats")["scenarios"]) == 2


def test_what_was_used_longest_ago_makes_room(state: ServerState) -> None:
    first, second = (
        ask(state, "load", scenario=question(memory))["scenario"] for memory in (None, 10**6)
    )
    names = [
        ask(state, "session", scenario=candidate)["session"]
        for candidate in (first, first, second, second)
    ]
    assert ask(state, "propose", session=names[0], unit=0, device=0)["code"] == "unknown_session"
    assert "seconds" in ask(state, "propose", session=names[1], unit=0, device=0)
    ask(state, "load", scenario=question(10**7))
    assert ask(state, "score", scenario=second)["code"] == "unknown_scenario"
    assert ask(state, "propose", session=names[2], unit=0, device=0)["code"] == "unknown_session"
    assert "seconds" in ask(state, "propose", session=names[1], unit=0, device=0)
    assert ask(state, "stats")["sessions"] == 1


def test_hostile_requests_are_told_what_is_wrong(state: ServerState) -> None:
    for request, code in HOSTILE.items():
        reply = json.loads(respond(state, request).body)
        assert reply["error"]["code"] == code, request[:80]
        assert reply["error"]["message"]
        assert all(len(problem) <= 600 for problem in reply["error"]["problems"])
    assert ask(state, "stats")["errors"] == len(HOSTILE)


def test_wrong_strategies_and_moves_are_told(state: ServerState) -> None:
    handle = ask(state, "load", scenario=question())["scenario"]
    width = OPS - 1
    wrong: list[Any] = [
        [],
        [0],
        [0] * (width - 1) + [-1],
        [9] * width,
        [0] * (width - 1) + [2**63],
        [2**64] * width,
    ]
    wrong += [
        [10**400] * width,
        [True] * width,
        [0.5] * width,
        ["gpu:0"] * width,
        [None] * width,
        [[0]] * width,
    ]
    wrong += [
        None,
        7,
        "x",
        {},
        {"op0": 7},
        {"*": "gpu:9"},
        {"op0": "gpu:0"},
        {"version": 2, "placement": {}},
    ]
    everything = {"*": "gpu:0"}
    wrong += [{"placement": everything, "order": "x"}]
    wrong += [{"placement": everything, "order": {"policy": "fixed", "sequence": {"x": []}}}]
    for candidate in wrong:
        assert ask(state, "score", scenario=handle, strategy=candidate)["code"] in (
            "invalid",
            "input",
        ), candidate
        error = ask(state, "batch", scenario=handle, strategies=[[0] * width, candidate])
        assert error["code"] in ("invalid", "input")
        assert "strategies[1]" in error["message"]
        assert ask(state, "trace", scenario=handle, strategy=candidate)["code"] in (
            "invalid",
            "input",
        )
        assert ask(state, "session", scenario=handle, strategy=candidate)["code"] in (
            "invalid",
            "input",
        )
    assert ask(state, "batch", scenario=handle, strategies=[[0]] * 601)["code"] == "too_large"
    assert ask(state, "batch", scenario=handle, strategies=[]) == []
    name = ask(state, "session", scenario=handle)["session"]
    moves: list[tuple[Any, Any]] = [
        ("x", 0),
        (0, "x"),
        (-1, 0),
        (width, 0),
        (0, 4),
        (10**30, 0),
        (True, 0),
        (0, None),
    ]
    for unit, device in [*moves, ([], 0), (0.5, 0)]:
        assert ask(state, "propose", session=name, unit=unit, device=device)["code"] in (
            "invalid",
            "input",
        )
    program = {"placement": everything, "order": "program"}
    assert "order" in ask(state, "session", scenario=handle, strategy=program)["message"]


def test_mutated_requests_never_reach_a_bug(state: ServerState) -> None:
    chance = random.Random(3)
    handle = ask(state, "load", scenario=json.loads(scenario()))["scenario"]
    name = ask(state, "session", scenario=handle)["session"]
    valid = [
        line("load", scenario=json.loads(scenario())),
        line("score", scenario=handle, strategy=[0, 1]),
        line("score", scenario=handle, strategy={"placement": {"*": "gpu:1"}, "order": "fifo"}),
        line("batch", scenario=handle, strategies=[[0, 1], {"*": "gpu:0"}]),
        line("propose", session=name, unit="a", device=1),
    ]
    tokens = [
        b"",
        b"0",
        b"-1",
        b"1e999",
        b'"',
        b"{",
        b"]",
        b"null",
        b"NaN",
        b"\x00",
        b"\xc3",
        b"9" * 500,
        b",",
        b'"a":',
    ]
    for _ in range(3000):
        request = bytearray(chance.choice(valid))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(request))
            request[at : at + chance.randint(0, 4)] = chance.choice(tokens)
        reply = json.loads(respond(state, bytes(request)).body)
        assert reply.get("error", {}).get("code") != "internal", bytes(request)


def test_files_outside_the_root_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out.json"
    inside.mkdir()
    outside.write_text(scenario())
    (inside / "s.json").write_text(scenario())
    (inside / "leads_out.json").write_text(scenario(graph="../out.json"))
    (inside / "link.json").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    state = ServerState(root=str(inside))
    assert "scenario" in ask(state, "load", scenario=str(inside / "s.json"))
    for path in (
        outside,
        inside / "leads_out.json",
        inside / "link.json",
        inside / ".." / "out.json",
    ):
        assert "outside the folder" in ask(state, "load", scenario=str(path))["message"]
    assert "not a regular file" in ask(state, "load", scenario=str(inside / "pipe"))["message"]
    for nowhere in (tmp_path / "none.json", inside / ".." / "none" / "s.json", Path("/none.json")):
        assert "outside the folder" in ask(state, "load", scenario=str(nowhere))["message"]
    (inside / "dangling.json").symlink_to(tmp_path / "none.json")
    assert (
        "outside the folder"
        in ask(state, "load", scenario=str(inside / "dangling.json"))["message"]
    )
    assert "no such file" in ask(state, "load", scenario=str(inside / "none.json"))["message"]
    for part in ("graph", "cluster", "profile", "devices", "strategy"):
        named = json.loads(scenario(**{part: str(outside)}))
        assert "outside the folder" in ask(state, "load", scenario=named)["message"], part
    preset = json.loads(scenario(cluster="4x-rtx-2080"))
    assert "scenario" in ask(state, "load", scenario=preset)


def test_limits_of_time_and_reply() -> None:
    state = ServerState(Limits(reply_bytes=300))
    handle = ask(state, "load", scenario=question())["scenario"]
    assert ask(state, "trace", scenario=handle)["code"] == "too_large"


def test_an_unforeseen_error_is_an_answer(
    state: ServerState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (
        (ZeroDivisionError("x"), "internal"),
        (RecursionError(), "internal"),
        (MemoryError(), "too_large"),
    )
    for error, code in cases:

        def broken(state: ServerState, error: Exception = error) -> None:
            raise error

        monkeypatch.setitem(METHODS, "ping", broken)
        assert ask(state, "ping")["code"] == code
    assert "ZeroDivisionError" in capsys.readouterr().err
