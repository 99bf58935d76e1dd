"""The server by HTTP: strangers and broken clients are turned away and take nothing down."""

from __future__ import annotations

import contextlib
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bad.scenarios import scenario
from clients import (
    DEVICES,
    PATIENT,
    Server,
    answered,
    library,
    placements,
    question,
    running,
    written,
)
from simdev.commands.server import METHODS
from simdev.commands.server.http import refusal
from waiting import HANGS, wait_until
from worlds.server import line


def test_http_tells_where_it_is_and_keeps_its_token_private(server: Server) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/"
    assert stat.S_IMODE(server.token_file.stat().st_mode) == 0o600
    assert len(server.token) == 32
    assert set(server.ask("ping")["methods"]) == set(METHODS)


def test_sixteen_clients_at_once_get_the_librarys_answers(server: Server) -> None:
    document = question()
    oracle, handle = library(document), server.ask("load", scenario=document)["scenario"]

    def client(seed: int) -> int:
        connection, wrong, some = server.connect(), 0, placements(12, seed)
        session = oracle.session(some[0])
        name = server.ask("session", connection, scenario=handle, strategy=some[0])["session"]
        for i, entry in enumerate(some):
            wrong += server.ask("score", connection, scenario=handle, strategy=entry) != written(
                oracle(entry)
            )
            moved = server.ask("propose", connection, session=name, unit=i, device=seed % DEVICES)
            wrong += moved != written(session.propose(i, seed % DEVICES))
            wrong += server.ask("accept", connection, session=name) != written(session.accept())
            wrong += server.post(b"{", connection)[1]["error"]["code"] != "malformed"
        replies = server.ask("batch", connection, scenario=handle, strategies=some)
        connection.close()
        return wrong + (replies != [written(oracle(entry)) for entry in some])

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
    assert [server.post(ping, **entry)[0] for entry in good] == [200] * len(good)
    assert [server.post(ping, **entry)[0] for _, entry in bad] == [status for status, _ in bad]
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
        without = refusal([entry for entry in good if entry[0] != name], 80, "t", 10)
        assert without is not None
        assert without[0] == status
        twice = refusal([*good, *[entry for entry in good if entry[0] == name]], 80, "t", 10)
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
        for entry in slow:
            with contextlib.suppress(ConnectionResetError):
                assert entry.recv(100) == b""


def test_bodies_half_sent_take_no_place_of_others(server: Server) -> None:
    """Of 32 connections; each is given 0.3 s."""
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(server.begun(8 * 2**20))
        connection = server.connect()
        for _ in range(60):
            assert "simdev" in server.ask("ping", connection)
        connection.close()


def test_vanishing_clients_lose_nothing_of_others(server: Server) -> None:
    document = question()
    oracle, handle = library(document), server.ask("load", scenario=document)["scenario"]
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
        replies = [server.ask("score", scenario=handle, strategy=entry) for entry in some]
        wait_until(lambda: len(rounds) > 3 or not thread.is_alive())
        replies += [server.ask("score", scenario=handle, strategy=entry) for entry in some[:9]]
    finally:
        stop.set()
        thread.join()
    assert replies == [written(oracle(entry)) for entry in [*some, *some[:9]]]
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
