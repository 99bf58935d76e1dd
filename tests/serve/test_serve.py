"""The server: answers equal the library's, and no client, however broken, takes it down."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bad.scenarios import scenario
from simdev import load_scenario
from simdev.cli import main
from simdev.files import read_strategy
from simdev.oracle import Cost, Oracle
from simdev.report import analyze, run
from simdev.scenario import Outcome
from simdev.serve import METHODS, Limits, ServerState, respond
from simdev.serve.http import refusal
from waiting import HANGS, wait_until

ROOT = Path(__file__).resolve().parents[2]
DEVICES, OPS = 4, 40
HAS_PROC = Path("/proc/self/status").exists()


def question(memory: int | None = None) -> dict[str, Any]:
    """A layered graph of 40 ops, in which the first two are one group, on 4 devices."""
    chance = random.Random(5)
    ops: list[dict[str, Any]] = []
    for i in range(OPS):
        inputs = sorted({f"op{chance.randrange(max(0, i - 8), i)}" for _ in range(2)}) if i else []
        size, time_us = chance.choice([0, 100, 4096]), chance.choice([0, 1, 5])
        ops.append(
            {
                "name": f"op{i}",
                "time": f"{time_us} us",
                "outputs": [{"bytes": size}],
                "inputs": inputs,
            }
        )
    ops[0]["colocate"] = ops[1]["colocate"] = "first"
    devices = [
        {"name": f"gpu:{d}"} | ({} if memory is None else {"memory": memory})
        for d in range(DEVICES)
    ]
    links = {"all_to_all": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    cluster = {"devices": devices, "links": links}
    return {
        "graph": {"ops": ops},
        "cluster": cluster,
        "strategy": {f"op{i}": f"gpu:{i // 14}" for i in range(OPS)},
    }


def library(asked: dict[str, Any]) -> Oracle:
    found = load_scenario(asked)
    return Oracle(found.graph, found.cluster, found.costs)


def placements(count: int, seed: int = 0) -> list[list[int]]:
    """Device indices by group."""
    return np.random.default_rng(seed).integers(0, DEVICES, (count, OPS - 1)).tolist()


def written(cost: Cost) -> dict[str, Any]:
    return {
        "seconds": cost.seconds,
        "feasible": cost.feasible,
        "memory_excess": cost.memory_excess,
        "step_ps": cost.step_ps,
        "peaks": list(cost.peaks),
    }


def line(method: str, identity: Any = 1, **params: Any) -> bytes:
    return json.dumps({"id": identity, "method": method, "params": params}).encode()


def ask(state: ServerState, method: str, **params: Any) -> Any:
    """The result of a request, or its error."""
    reply = json.loads(respond(state, line(method, 7, **params)))
    assert reply["id"] == 7
    return reply["result"] if "result" in reply else reply["error"]


@pytest.fixture
def state() -> ServerState:
    return ServerState(Limits(request_bytes=200_000, batch=600, scenarios=2, sessions=3))


# The protocol, without a stream.


@pytest.mark.parametrize("memory", [None, 12_000])
def test_answers_equal_the_library_bit_for_bit(state: ServerState, memory: int | None) -> None:
    asked = question(memory)
    oracle, handle = library(asked), ask(state, "load", scenario=asked)["scenario"]
    strategies: list[Any] = [
        *placements(30),
        asked["strategy"],
        {"placement": asked["strategy"], "order": "program"},
    ]
    expected = [
        written(oracle(one if isinstance(one, list) else read_strategy(one))) for one in strategies
    ]
    assert [ask(state, "score", scenario=handle, strategy=one) for one in strategies] == expected
    assert ask(state, "batch", scenario=handle, strategies=strategies) == expected
    assert ask(state, "score", scenario=handle) == expected[30]
    assert memory is None or len({one["feasible"] for one in expected}) == 2


def test_a_trace_equals_the_librarys(state: ServerState) -> None:
    asked = question()
    oracle, handle = library(asked), ask(state, "load", scenario=asked)["scenario"]
    found = ask(state, "trace", scenario=handle)
    tasks = found.pop("tasks")
    report = run(load_scenario(asked)).to_json()
    assert found == report | {"engine": found["engine"]}
    placement = placements(1)[0]
    found = ask(state, "trace", scenario=handle, strategy=placement)
    trace = oracle.trace(placement)
    assert found["tasks"]["start_ps"] == trace.start.tolist()
    assert found["tasks"]["name"] == list(trace.task_graph.tasks.name)
    assert found["step_time_ps"] == analyze(Outcome(trace)).step_ps
    assert len(tasks["name"]) == len(tasks["kind"]) == len(tasks["finish_ps"])


def test_a_walk_of_moves_equals_the_library(state: ServerState) -> None:
    asked, chance = question(), random.Random(1)
    oracle, handle = library(asked), ask(state, "load", scenario=asked)["scenario"]
    mine = oracle.session(asked["strategy"])
    opened = ask(state, "session", scenario=handle)
    name = opened["session"]
    assert opened["cost"] == written(mine.cost)
    for _ in range(60):
        unit = chance.choice([chance.randrange(OPS - 1), f"op{chance.randrange(OPS)}", "first"])
        where = chance.choice([chance.randrange(DEVICES), f"gpu:{chance.randrange(DEVICES)}"])
        assert ask(state, "propose", session=name, unit=unit, device=where) == written(
            mine.propose(unit, where)
        )
        if chance.random() < 0.5:
            assert ask(state, "accept", session=name) == written(mine.accept())
        else:
            mine.reject()
            assert ask(state, "reject", session=name) == written(mine.cost)
    assert ask(state, "accept", session=name)["code"] == "input"


def test_a_handle_names_the_content(state: ServerState, tmp_path: Path) -> None:
    asked = question()
    (tmp_path / "graph.json").write_text(json.dumps(asked["graph"] | {"version": 1}))
    (tmp_path / "s.json").write_text(json.dumps(asked | {"version": 1, "graph": "graph.json"}))
    turned = asked | {"strategy": dict(reversed(asked["strategy"].items()))}
    handles = {
        ask(state, "load", scenario=one)["scenario"]
        for one in (asked, turned, str(tmp_path / "s.json"), asked)
    }
    assert len(handles) == 1
    assert ask(state, "load", scenario=question(1))["scenario"] not in handles
    assert len(ask(state, "stats")["scenarios"]) == 2


def test_what_was_used_longest_ago_makes_room(state: ServerState) -> None:
    first, second = (
        ask(state, "load", scenario=question(memory))["scenario"] for memory in (None, 10**6)
    )
    names = [
        ask(state, "session", scenario=one)["session"] for one in (first, first, second, second)
    ]
    assert ask(state, "propose", session=names[0], unit=0, device=0)["code"] == "unknown_session"
    assert "seconds" in ask(state, "propose", session=names[1], unit=0, device=0)
    ask(state, "load", scenario=question(10**7))
    assert ask(state, "score", scenario=second)["code"] == "unknown_scenario"
    assert ask(state, "propose", session=names[2], unit=0, device=0)["code"] == "unknown_session"
    assert "seconds" in ask(state, "propose", session=names[1], unit=0, device=0)
    assert ask(state, "stats")["sessions"] == 1


HOSTILE = {
    b"": "malformed",
    b"{": "malformed",
    b'{"id": 1, "method": "pi': "malformed",
    b"[]": "malformed",
    b"7": "malformed",
    b"\xff\xfe": "malformed",
    b'"\\ud800"': "malformed",
    b"[" * 100_000: "malformed",
    b'{"a":' * 30_000: "malformed",
    b'{"id": NaN, "method": "ping"}': "malformed",
    b'{"id": 1, "id": 2, "method": "ping"}': "malformed",
    b'{"id": ' + b"9" * 5000 + b', "method": "ping"}': "malformed",
    b'{"id": ' + b"9" * 300 + b', "method": "ping"}': "invalid",
    b'{"id": 1.5, "method": "ping"}': "invalid",
    b'{"id": true, "method": "ping"}': "invalid",
    b'{"id": [], "method": "ping"}': "invalid",
    b'{"id": "' + b"x" * 300 + b'", "method": "ping"}': "invalid",
    b'{"method": "ping", "parms": {}}': "invalid",
    b'{"method": "ping", "params": []}': "invalid",
    b'{"method": "ping", "params": {"x": 1}}': "invalid",
    b"{}": "unknown_method",
    b'{"method": "__class__"}': "unknown_method",
    b'{"method": ["ping"]}': "unknown_method",
    b'{"method": ' + b"9" * 4000 + b"}": "unknown_method",
    line("load"): "invalid",
    line("load", scenario=7): "invalid",
    line("load", scenario=""): "invalid",
    line("load", scenario="a\0b"): "invalid",
    line("load", scenario="-"): "input",
    line("load", scenario="/dev/zero"): "input",
    line("load", scenario="nowhere.json"): "input",
    line("load", scenario="."): "input",
    line("load", scenario={}): "input",
    line(
        "load", scenario={"graph": "-", "cluster": "./-", "strategy": "-/", "profile": ["-"]}
    ): "input",
    line("load", scenario={"graph": {"ops": [{"name": "<script>" * 9}] * 999}}): "input",
    line("score", scenario="nothing"): "unknown_scenario",
    line("score", scenario=["nothing"]): "invalid",
    line("score"): "invalid",
    line("propose", session="s0", unit=0, device=0): "unknown_session",
    line("propose", session={}, unit=0, device=0): "invalid",
    b" " * 200_001: "too_large",
}


def test_hostile_requests_are_told_what_is_wrong(state: ServerState) -> None:
    for request, code in HOSTILE.items():
        reply = json.loads(respond(state, request))
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
    for one in wrong:
        assert ask(state, "score", scenario=handle, strategy=one)["code"] in ("invalid", "input"), (
            one
        )
        error = ask(state, "batch", scenario=handle, strategies=[[0] * width, one])
        assert error["code"] in ("invalid", "input")
        assert "strategies[1]" in error["message"]
        assert ask(state, "trace", scenario=handle, strategy=one)["code"] in ("invalid", "input")
        assert ask(state, "session", scenario=handle, strategy=one)["code"] in ("invalid", "input")
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
        reply = json.loads(respond(state, bytes(request)))
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
    state = ServerState(Limits(seconds=-1.0, reply_bytes=300))
    handle = ask(state, "load", scenario=question())["scenario"]
    assert ask(state, "batch", scenario=handle, strategies=placements(1))["code"] == "too_late"
    assert ask(state, "trace", scenario=handle)["code"] == "too_large"
    state.closed = True
    assert ask(state, "batch", scenario=handle, strategies=placements(1))["code"] == "stopping"


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


# On stdin and stdout.


def served(text: bytes, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "simdev", "serve", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, cwd=ROOT, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(one) for one in done.stdout.splitlines()]


def test_stdio_answers_each_line_in_order() -> None:
    asked = question()
    handle = ask(ServerState(), "load", scenario=asked)["scenario"]
    some = placements(20)
    requests = [line("load", "first", scenario=asked)]
    requests += [line("score", i, scenario=handle, strategy=one) for i, one in enumerate(some)]
    requests += [
        b"",
        b"   \r",
        b"x" * 50_000,
        b"x" * 50_001,
        b"y" * 300_000,
        line("ping", "tail"),
        b'{"id": "half',
    ]
    replies = served(b"\n".join(requests), "--max-bytes", "50000")
    assert [reply["id"] for reply in replies] == [
        "first",
        *range(20),
        None,
        None,
        None,
        "tail",
        None,
    ]
    assert [reply["result"] for reply in replies[1:21]] == [
        written(library(asked)(one)) for one in some
    ]
    codes = [reply["error"]["code"] for reply in replies if "error" in reply]
    assert codes == ["malformed", "too_large", "too_large", "malformed"]


def test_stdio_stops_when_asked_and_survives_what_is_hostile() -> None:
    hostile = [one for one in HOSTILE if one.strip()]
    replies = served(b"\n".join([*hostile, line("shutdown"), line("ping")]))
    assert len(replies) == len(hostile) + 1
    assert replies[-1]["result"] == {"stopping": True}
    assert served(b"") == []
    assert len(served(line("ping"))) == 1


def test_stdio_ends_quietly_when_nobody_reads() -> None:
    command = [sys.executable, "-m", "simdev", "serve"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line("ping") + b"\n")
            process.stdin.close()
        assert process.wait(HANGS) == 141
        assert process.stderr.read() == b""


def test_wrong_options_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max-bytes", "0", "--port", "70000"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--http", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


# By HTTP.

IMPATIENT = """
import sys
from simdev.serve import ServerState
from simdev.serve.http import Patience, serve
serve(ServerState(), 0, sys.stdout, Patience(clients=32, head=0.6, body=0.6))
"""
PATIENT = IMPATIENT.replace(
    "clients=32, head=0.6, body=0.6", f"clients=2, head=2, body={HANGS}, drain={HANGS}"
)


class Server:
    """A server in a process of its own, and requests to it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.url, self.token_file = told["url"], Path(told["token_file"])
        self.port, self.token = (
            int(self.url.rstrip("/").rpartition(":")[2]),
            self.token_file.read_text().strip(),
        )
        self.headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=HANGS)

    def post(
        self, body: bytes, connection: HTTPConnection | None = None, **headers: str
    ) -> tuple[int, Any]:
        mine = connection or self.connect()
        mine.request("POST", "/", body, self.headers | headers)
        response = mine.getresponse()
        found = response.status, json.loads(response.read())
        if connection is None:
            mine.close()
        return found

    def ask(self, method: str, connection: HTTPConnection | None = None, **params: Any) -> Any:
        status, reply = self.post(line(method, 7, **params), connection)
        assert (status, reply["id"]) == (200, 7)
        return reply["result"] if "result" in reply else reply["error"]

    def raw(self, text: bytes) -> socket.socket:
        """A connection that has sent these bytes. {HEAD} stands for good headers but for the
        length.
        """
        head = (
            f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer "
            f"{self.token}\r\n"
        )
        found = socket.create_connection(("127.0.0.1", self.port), timeout=HANGS)
        found.sendall(
            text.replace(b"{HEAD}", head.encode() + b"Content-Type: application/json\r\n")
        )
        return found

    def begun(self, length: int) -> socket.socket:
        """A connection whose request is under way, with a body of so many bytes still to come."""
        found = self.raw(b"{HEAD}Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % length)
        assert found.recv(65536).startswith(b"HTTP/1.1 100 ")
        return found

    def status(self, text: bytes) -> int:
        """The status of the reply to these bytes; 0 where the connection is just closed."""
        with self.raw(text) as mine:
            answer = mine.recv(65536)
        return int(answer.split()[1]) if answer else 0

    def stop(self) -> tuple[int, str]:
        """The exit code and stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, error = self.process.communicate(timeout=HANGS)
        return self.process.returncode, error


def answered(connection: socket.socket) -> Any:
    """The reply to the request that a connection has sent."""
    response = HTTPResponse(connection)
    response.begin()
    return json.loads(response.read())


@contextlib.contextmanager
def running(*command: str) -> Iterator[Server]:
    server = Server(command)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            code, error = server.stop()
            assert (code, error) == (0, "")
        assert not server.token_file.exists()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("-c", IMPATIENT) as found:
        yield found


def test_http_tells_where_it_is_and_keeps_its_token_private(server: Server) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/"
    assert stat.S_IMODE(server.token_file.stat().st_mode) == 0o600
    assert len(server.token) == 32
    assert set(server.ask("ping")["methods"]) == set(METHODS)


def test_sixteen_clients_at_once_get_the_librarys_answers(server: Server) -> None:
    asked = question()
    oracle, handle = library(asked), server.ask("load", scenario=asked)["scenario"]

    def client(seed: int) -> int:
        connection, wrong, some = server.connect(), 0, placements(12, seed)
        mine = oracle.session(some[0])
        name = server.ask("session", connection, scenario=handle, strategy=some[0])["session"]
        for i, one in enumerate(some):
            wrong += server.ask("score", connection, scenario=handle, strategy=one) != written(
                oracle(one)
            )
            moved = server.ask("propose", connection, session=name, unit=i, device=seed % DEVICES)
            wrong += moved != written(mine.propose(i, seed % DEVICES))
            wrong += server.ask("accept", connection, session=name) != written(mine.accept())
            wrong += server.post(b"{", connection)[1]["error"]["code"] != "malformed"
        found = server.ask("batch", connection, scenario=handle, strategies=some)
        connection.close()
        return wrong + (found != [written(oracle(one)) for one in some])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(client, range(16))) == [0] * 16


def test_strangers_are_turned_away(server: Server) -> None:
    ping = line("ping")
    good = [
        {"Host": f"localhost:{server.port}"},
        {"Host": f"[::1]:{server.port}"},
        {"Origin": "http://localhost:8000"},
        {"Content-Type": "application/json; charset=utf-8"},
    ]
    bad = [
        (403, {"Host": f"evil.example:{server.port}"}),
        (403, {"Host": "127.0.0.1"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "http://localhost.evil.example"}),
        (401, {"Authorization": "Bearer " + "0" * 32}),
        (401, {"Authorization": server.token}),
        (401, {"Authorization": f"Bearer {server.token} \u00e9"}),
        (415, {"Content-Type": "text/plain"}),
        (415, {"Content-Type": ""}),
    ]
    assert [server.post(ping, **one)[0] for one in good] == [200] * len(good)
    assert [server.post(ping, **one)[0] for _, one in bad] == [status for status, _ in bad]
    for method, path, status in (("GET", "/", 405), ("OPTIONS", "/", 405), ("POST", "/x", 404)):
        connection = server.connect()
        connection.request(method, path, ping, server.headers)
        assert connection.getresponse().status == status
        connection.close()


def test_judging_needs_each_header_once() -> None:
    good = [
        (b"host", b"127.0.0.1:80"),
        (b"authorization", b"Bearer t"),
        (b"content-type", b"application/json"),
        (b"content-length", b"10"),
    ]
    assert refusal(good, 80, "t", 10) is None
    statuses = {b"host": 403, b"authorization": 401, b"content-type": 415, b"content-length": 411}
    for name, status in statuses.items():
        without = refusal([one for one in good if one[0] != name], 80, "t", 10)
        assert without is not None
        assert without[0] == status
        twice = refusal([*good, *[one for one in good if one[0] == name]], 80, "t", 10)
        assert twice is not None
    for length, status in (
        (b"11", 413),
        (b"-1", 400),
        (b"+1", 400),
        (b"1e3", 400),
        (b"9" * 5000, 400),
        (b"", 400),
    ):
        verdict = refusal([*good[:3], (b"content-length", length)], 80, "t", 10)
        assert verdict is not None
        assert verdict[0] == status


def test_malformed_and_oversized_requests(server: Server) -> None:
    cases = {
        b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n": 400,
        b"GET\r\n\r\n": 400,
        b"{HEAD}Content-Length: -5\r\n\r\n": 400,
        b"{HEAD}Content-Length: 5\r\nContent-Length: 6\r\n\r\n": 400,
        b"{HEAD}\r\n": 411,
        b"{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n": 411,
        b"{HEAD}Content-Length: 1000000000\r\n\r\n": 413,
        b"{HEAD}X: " + b"x" * 20_000: 400,
    }
    for text, status in cases.items():
        assert server.status(text) == status, text[:60]
    status, reply = server.post(b" " * (8 * 2**20 + 1))
    assert (status, reply["error"]["code"]) == (413, "too_large")
    assert server.post(b" " * (8 * 2**20))[1]["error"]["code"] == "malformed"
    assert "simdev" in server.ask("ping")


def test_slow_clients_are_cut_off_and_hold_nobody_up(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(server.raw(b"POST / HTTP/1.1\r\nHost: x")) for _ in range(200)]
        bodies = [
            stack.enter_context(server.raw(b'{HEAD}Content-Length: 50\r\n\r\n{"id"'))
            for _ in range(5)
        ]
        connection = server.connect()
        for _ in range(60):
            assert "simdev" in server.ask("ping", connection)
        connection.close()
        assert [body.recv(65536).split()[1] for body in bodies] == [b"408"] * 5
        for one in slow:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(100) == b""


def test_more_requests_than_places_are_asked_to_come_again() -> None:
    with running("-c", PATIENT) as server:
        body = line("ping")
        held = [server.begun(len(body)) for _ in range(2)]
        status, reply = server.post(body)
        assert (status, reply["error"]["code"]) == (503, "busy")
        for one in held:
            one.sendall(body)
            assert answered(one)["result"]["simdev"]
            one.close()
        assert "simdev" in server.ask("ping")


def test_vanishing_clients_lose_nothing_of_others(server: Server) -> None:
    asked = question()
    oracle, handle = library(asked), server.ask("load", scenario=asked)["scenario"]
    some, rounds = placements(300, 9), []
    body = line("batch", scenario=handle, strategies=placements(100, 8))
    stop = threading.Event()

    def vanish() -> None:
        while not stop.is_set():
            # before the reply
            server.raw(b"{HEAD}Content-Length: %d\r\n\r\n" % len(body) + body).close()
            server.raw(b"{HEAD}Content-Length: 5000\r\n\r\n" + body[:99]).close()  # amid the body
            server.raw(b"").close()
            rounds.append(1)
            stop.wait(0.02)

    thread = threading.Thread(target=vanish)
    thread.start()
    try:
        found = [server.ask("score", scenario=handle, strategy=one) for one in some]
        wait_until(lambda: len(rounds) > 3 or not thread.is_alive())
        found += [server.ask("score", scenario=handle, strategy=one) for one in some[:9]]
    finally:
        stop.set()
        thread.join()
    assert found == [written(oracle(one)) for one in [*some, *some[:9]]]
    assert len(rounds) > 3


def test_sigterm_lets_requests_under_way_finish() -> None:
    with running("-c", PATIENT) as server:
        handle = server.ask("load", scenario=question())["scenario"]
        idle = server.raw(b"POST / HTT")
        body = line("batch", scenario=handle, strategies=placements(2500, 4))
        with server.begun(len(body)) as batch:
            server.process.send_signal(signal.SIGTERM)
            batch.sendall(body)
            assert len(answered(batch)["result"]) == 2500
        _, error = server.process.communicate(timeout=HANGS)
        assert (server.process.returncode, error) == (0, "")
        idle.close()
    with pytest.raises(ConnectionRefusedError):
        server.connect().connect()


def test_a_client_can_stop_the_server_and_no_log_has_the_token() -> None:
    with running("-m", "simdev", "serve", "--http") as server:
        server.status(b"{HEAD}Content-Length: -5\r\n\r\n")
        assert server.ask("shutdown") == {"stopping": True}
        out, error = server.process.communicate(timeout=HANGS)
        assert server.process.returncode == 0
        assert server.token not in out + error


def test_http_reads_files_of_its_folder_only(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(scenario())
    with running("-m", "simdev", "serve", "--http", "--root", str(tmp_path)) as server:
        assert "scenario" in server.ask("load", scenario=str(tmp_path / "s.json"))
        assert "outside" in server.ask("load", scenario="scenarios/gnmt-1x-cpu.json")["message"]


# Memory.


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def stdio_growth(calls: int) -> tuple[int, int, float]:
    """Resident bytes after a warm-up and after so many mixed calls, each answer checked, and the
    calls a second.
    """
    asked = question()
    oracle, some = library(asked), placements(2000)
    expected = [written(oracle(one)) for one in some]
    others = [line("load", scenario=question(10**6 + i)) for i in range(11)]
    with subprocess.Popen(
        [sys.executable, "-m", "simdev", "serve"], stdin=-1, stdout=-1, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018

        def talk(*requests: bytes) -> list[Any]:
            process.stdin.write(b"".join(one + b"\n" for one in requests))  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return [json.loads(process.stdout.readline()) for _ in requests]  # type: ignore[union-attr]

        handle = talk(line("load", scenario=asked))[0]["result"]["scenario"]
        kinds = [
            lambda i: line("score", scenario=handle, strategy=some[i % len(some)]),
            lambda i: b"{" * (i % 90 + 1),
            lambda i: line("session", scenario=handle, strategy=some[i % 7]),
            lambda i: others[i % len(others)] if i % 50 == 3 else line("ping"),
            lambda i: line("score", scenario=handle, strategy=[i] * 3),
        ]
        talk(line("batch", scenario=handle, strategies=placements(10_000, 1)))  # fills the cache
        mixed = [kinds[i % 5](i) for i in range(10_000)]
        parts = [mixed[at : at + 50] for at in range(0, len(mixed), 50)]
        for part in parts[:40]:
            talk(*part)
        before, started = resident(process.pid), time.monotonic()
        for turn in range(calls // 50):
            at = turn % len(parts)
            replies = talk(*parts[at])
            assert [one["result"] for one in replies[::5]] == [
                expected[(50 * at + i) % 2000] for i in range(0, 50, 5)
            ]
        return before, resident(process.pid), calls / (time.monotonic() - started)


@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_calls() -> None:
    before, after, rate = stdio_growth(20_000)
    print(
        f"stdio, 20,000 calls: {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_a_hundred_thousand_calls() -> None:
    before, after, rate = stdio_growth(100_000)
    print(
        f"stdio, 100,000 calls: {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_a_hundred_thousand_http_calls() -> None:
    asked, clients = question(), 16
    oracle = library(asked)
    some = placements(2000)
    expected = [written(oracle(one)) for one in some]
    with running("-m", "simdev", "serve", "--http") as server:
        handle = server.ask("load", scenario=asked)["scenario"]
        server.ask("batch", scenario=handle, strategies=placements(10_000, 1))

        def client(job: tuple[int, int]) -> int:
            seed, calls = job
            connection, good = server.connect(), 0
            for i in range(seed, seed + calls):
                if i % 50 == 0:
                    server.raw(b"{HEAD}Content-Length: 99\r\n\r\n{").close()
                if i % 10 == 0:
                    good += (
                        server.post(b"{" * (i % 90), connection)[1]["error"]["code"] == "malformed"
                    )
                else:
                    found = server.ask(
                        "score", connection, scenario=handle, strategy=some[i % len(some)]
                    )
                    good += found == expected[i % len(some)]
            connection.close()
            return good

        with ThreadPoolExecutor(clients) as pool:
            assert sum(pool.map(client, [(i * 100, 200) for i in range(clients)])) == clients * 200
            before, started = resident(server.process.pid), time.monotonic()
            assert sum(pool.map(client, [(i * 100, 6250) for i in range(clients)])) == 100_000
            after, rate = resident(server.process.pid), 100_000 / (time.monotonic() - started)
    print(
        f"http, 100,000 calls: {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before
