"""A process that dies, and a client that leaves or does not read, cost no other client a request,
a process or memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients import ROOT, Server, answered, question, running
from simdev.commands.server.http import private_file
from stuck import LARGE, alive, stuck, trace, under_way, workers
from waiting import HANGS, wait_until
from worlds.server import line


@pytest.fixture
def server() -> Iterator[Server]:
    with running("-c", stuck(HANGS)) as started:
        yield started


def test_a_scenario_that_makes_room_answers_what_is_under_way(
    server: Server, tmp_path: Path
) -> None:
    first = server.ask("load", scenario=question(10**7))["scenario"]
    with under_way(server, trace(first, str(tmp_path / "done")), 1) as (client,):
        wait_until(lambda: len(workers(server)) == 3)
        for i in (1, 2):
            server.ask("load", scenario=question(10**7 + i))
        assert server.ask("score", scenario=first)["code"] == "unknown_scenario"
        (tmp_path / "done").touch()
        assert answered(client)["result"] == "x"
    wait_until(lambda: len(workers(server)) == 3)


def test_a_scenario_whose_process_cannot_be_copied_is_still_there(server: Server) -> None:
    handle = server.ask("load", scenario=question())["scenario"]
    session = server.ask("session", scenario=handle)["session"]
    server.ask("barren", scenario=handle)
    status, reply = server.post(trace(handle))
    assert (status, reply["error"]["code"]) == (200, "died")
    assert "step_ps" in server.ask("propose", session=session, unit=0, device=0)


def test_a_scenario_whose_process_died_is_not_listed_and_loaded_anew(server: Server) -> None:
    handle = server.ask("load", scenario=question())["scenario"]
    (home,) = psutil.Process(server.process.pid).children()[0].children()
    home.kill()
    wait_until(lambda: server.ask("stats")["scenarios"] == [])
    assert server.ask("score", scenario=handle)["code"] == "unknown_scenario"
    assert server.ask("load", scenario=question())["scenario"] == handle
    assert "seconds" in server.ask("score", scenario=handle)


def test_a_server_that_can_load_nothing_any_more_ends() -> None:
    server = Server(["-m", "simdev", "serve", "--http"])
    server.ask("load", scenario=question())
    (root,) = psutil.Process(server.process.pid).children()
    root.kill()
    wait_until(lambda: not alive(root))
    assert server.ask("load", scenario=question(10**7))["code"] == "died"
    _, error = server.process.communicate(timeout=HANGS)
    assert server.process.returncode == 2
    assert error == "the first process of the server died, perhaps out of memory\n"
    assert not server.token_file.exists()


def test_the_port_is_of_the_front_alone(server: Server) -> None:
    server.ask("load", scenario=question())
    assert len(workers(server)) == 2
    assert not any(worker.net_connections() for worker in workers(server))


def test_sigterm_to_all_processes_lets_requests_under_way_finish(tmp_path: Path) -> None:
    program = stuck(HANGS).replace("head=3", f"head=3, drain={HANGS}")
    with running("-c", program) as server:
        handle = server.ask("load", scenario=question())["scenario"]
        with under_way(server, trace(handle, str(tmp_path / "done")), 1) as (client,):
            wait_until(lambda: len(workers(server)) == 3)
            for process in (*workers(server), psutil.Process(server.process.pid)):
                process.send_signal(signal.SIGTERM)
            (tmp_path / "done").touch()
            assert answered(client)["result"] == "x"
        assert server.process.communicate(timeout=HANGS) == ("", "")


def test_what_the_end_of_the_server_cuts_short_is_told(server: Server) -> None:
    handle = server.ask("load", scenario=question())["scenario"]
    with under_way(server, trace(handle), 1) as (client,):
        wait_until(lambda: len(workers(server)) == 3)
        server.process.terminate()
        assert client.recv(12) == b"HTTP/1.1 503"
        server.process.communicate(timeout=HANGS)


@pytest.mark.parametrize("more", [b"POST / HTTP/1.1\r\n", b"{HEAD}Content-Length: 2\r\n\r\n{}"])
def test_a_client_that_sent_more_is_still_seen_to_leave(server: Server, more: bytes) -> None:
    handle = server.ask("load", scenario=question())["scenario"]
    with under_way(server, trace(handle), 1) as (client,):
        wait_until(lambda: len(workers(server)) == 3)
        client.sendall(more.replace(b"{HEAD}", b"POST / HTTP/1.1\r\nHost: x\r\n"))
    wait_until(lambda: len(workers(server)) == 2)


def test_a_client_that_does_not_read_is_cut_off(server: Server) -> None:
    handle = server.ask("load", scenario=question())["scenario"]
    process = psutil.Process(server.process.pid)
    with under_way(server, trace(handle, "large"), 1):
        wait_until(lambda: process.memory_info().rss > LARGE)
        wait_until(lambda: len(process.net_connections()) == 1)  # that on which it listens
    assert len(server.ask("trace", scenario=handle, strategy="large")) == LARGE


def test_first_requests_at_once_make_one_process() -> None:
    command = [sys.executable, "-m", "simdev", "explore", "alexnet-2x-gpu-staged", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().strip().partition("#")
        server: Any = object.__new__(Server)
        server.process, server.token = process, token
        server.port = int(address.rstrip("/").rpartition(":")[2])
        with under_way(server, line("knobs"), 6) as clients:
            assert all("result" in answered(client) for client in clients)
        assert len(workers(server)) == 2
        process.terminate()
        assert process.wait(HANGS) == 0


def test_a_pipe_or_a_link_among_private_files_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    os.mkfifo(tmp_path / "p-fifo")
    (tmp_path / "other").write_text("of another")
    (tmp_path / "p-link").symlink_to(tmp_path / "other")
    with private_file("text", "p-") as place:
        assert Path(place).read_text() == "text"
    assert sorted(os.listdir(tmp_path)) == ["other", "p-fifo", "p-link"]
    with pytest.raises(FileNotFoundError), private_file("text", "p-"):
        raise FileNotFoundError
