"""A question for a server, and clients that send it."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np

from simdev import load_scenario
from simdev.oracle import Cost, Oracle
from waiting import HANGS
from worlds.server import line

DEVICES, OPS = 4, 40


ROOT = Path(__file__).resolve().parents[2]


HAS_PROC = Path("/proc/self/status").exists()


def question(memory: int | None = None) -> dict[str, Any]:
    """A scenario of a layered graph of 40 ops, the first two in a group, on 4 devices."""
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


def library(document: dict[str, Any]) -> Oracle:
    loaded = load_scenario(document)
    return Oracle(loaded.graph, loaded.cluster, loaded.costs)


def placements(count: int, seed: int = 0) -> list[list[int]]:
    """Random placements: device indices by group."""
    return np.random.default_rng(seed).integers(0, DEVICES, (count, OPS - 1)).tolist()


def written(cost: Cost) -> dict[str, Any]:
    return {
        "seconds": cost.seconds,
        "feasible": cost.feasible,
        "memory_excess": cost.memory_excess,
        "step_ps": cost.step_ps,
        "peaks": list(cost.peaks),
    }


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


IMPATIENT = """
import sys
from simdev.commands.server import ServerState
from simdev.commands.server.http import Patience, serve
serve(ServerState(), 0, sys.stdout, Patience(connections=32, head=1.5, body=1.5))
"""


PATIENT = IMPATIENT.replace(
    "connections=32, head=1.5, body=1.5",
    f"connections=32, requests=2, head=2, body={HANGS}, drain={HANGS}",
)


class Server:
    """A server in a child process, and requests to it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        place = json.loads(self.process.stdout.readline())
        self.url, self.token_file = place["url"], Path(place["token_file"])
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
        channel = connection or self.connect()
        channel.request("POST", "/", body, self.headers | headers)
        response = channel.getresponse()
        result = response.status, json.loads(response.read())
        if connection is None:
            channel.close()
        return result

    def ask(self, method: str, connection: HTTPConnection | None = None, **params: Any) -> Any:
        status, reply = self.post(line(method, 7, **params), connection)
        assert (status, reply["id"]) == (200, 7)
        return reply["result"] if "result" in reply else reply["error"]

    def raw(self, text: bytes) -> socket.socket:
        """A connection that has sent these bytes. {HEAD} stands for valid headers without the
        length.
        """
        head = (
            f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer "
            f"{self.token}\r\n"
        )
        channel = socket.create_connection(("127.0.0.1", self.port), timeout=HANGS)
        channel.sendall(
            text.replace(b"{HEAD}", head.encode() + b"Content-Type: application/json\r\n")
        )
        return channel

    def begun(self, length: int) -> socket.socket:
        """A connection that has sent the head of a request, with ``length`` bytes still to come."""
        channel = self.raw(b"{HEAD}Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % length)
        assert channel.recv(65536).startswith(b"HTTP/1.1 100 ")
        return channel

    def status(self, text: bytes) -> int:
        """The status of the reply to these bytes; 0 where the connection is just closed."""
        with self.raw(text) as channel:
            answer = channel.recv(65536)
        return int(answer.split()[1]) if answer else 0

    def stop(self) -> tuple[int, str]:
        """Stops the server; returns its exit code and stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, error = self.process.communicate(timeout=HANGS)
        return self.process.returncode, error


def answered(connection: socket.socket) -> Any:
    """The reply to the request that was sent on a connection."""
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
            assert (code, error) == (0, ""), error
        assert not server.token_file.exists()
