"""Requests that take long: they hold nobody up, end at the deadline and with their clients."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

from clients import ROOT, Server, answered, library, placements, question, running, written
from simdev.commands.server import Limits, ServerState
from stuck import alive, stuck, trace, under_way, workers
from waiting import HANGS, wait_until
from worlds.server import ask, line


def test_eight_endless_requests_hold_nobody_up_and_leave_with_their_clients() -> None:
    with running("-c", stuck(HANGS)) as server:
        document, some = question(), placements(5)
        oracle, handle = library(document), server.ask("load", scenario=document)["scenario"]
        with under_way(server, trace(handle), 8):
            wait_until(lambda: len(workers(server)) > 3)  # the root, the home, copies of it
            assert "simdev" in server.ask("ping")
            assert server.ask("stats")["scenarios"][0]["scenario"] == handle
            scores = [server.ask("score", scenario=handle, strategy=entry) for entry in some]
            assert scores == [written(oracle(entry)) for entry in some]
            with under_way(server, trace(handle), 1):
                # all nine places are taken, and the front itself answers none the less
                wait_until(lambda: server.post(line("score", scenario=handle))[0] == 503)
                assert "simdev" in server.ask("ping")
        wait_until(lambda: len(workers(server)) == 2)
        assert server.ask("stats")["scenarios"][0]["evaluations"] == 5
        assert "seconds" in server.ask("score", scenario=handle)


def test_a_deadline_is_told_and_ends_the_worker() -> None:
    with running("-c", stuck(4.0)) as server:
        handle = server.ask("load", scenario=question())["scenario"]
        session = server.ask("session", scenario=handle)["session"]
        for strategy in (None, "deaf"):
            status, reply = server.post(trace(handle, strategy))
            assert (status, reply["id"], reply["error"]["code"]) == (504, 7, "too_late")
            assert reply["error"]["message"] == "not done within 4 s"
            wait_until(lambda: len(workers(server)) == 2)
        status, reply = server.post(trace(handle, "dead"))
        assert (status, reply["error"]["code"]) == (200, "died")
        assert "step_ps" in server.ask("propose", session=session, unit=0, device=0)


def test_a_turn_that_does_not_come_is_told() -> None:
    with running("-c", stuck(4.0)) as server:
        handle = server.ask("load", scenario=question())["scenario"]
        with under_way(server, trace(handle, "deaf"), 6) as waiting:
            codes = [answered(each)["error"]["code"] for each in waiting]
        assert set(codes) == {"too_late", "busy"}


def test_scenarios_that_make_room_take_their_process_along() -> None:
    with running("-c", stuck(HANGS)) as server:
        first, *others = [
            server.ask("load", scenario=question(10**7 + i))["scenario"] for i in range(3)
        ]
        wait_until(lambda: len(workers(server)) == 3)
        assert server.ask("score", scenario=first)["code"] == "unknown_scenario"
        again = server.ask("load", scenario=question(10**7 + 2))
        assert again["scenario"] == others[1]
        listed = [row["scenario"] for row in server.ask("stats")["scenarios"]]
        assert listed == others
        wait_until(lambda: len(workers(server)) == 3)


def test_nothing_is_left_of_a_killed_server() -> None:
    server = Server(["-c", stuck(HANGS)])
    handle = server.ask("load", scenario=question())["scenario"]
    with under_way(server, trace(handle), 2):
        wait_until(lambda: len(workers(server)) == 4)
        left = workers(server)
        server.process.kill()
        server.process.communicate()
        wait_until(lambda: not any(map(alive, left)))
    assert server.token_file.exists()
    with running("-c", stuck(HANGS)) as other:
        assert other.token_file.exists()
        assert not server.token_file.exists()
        with running("-c", stuck(HANGS)):
            assert other.token_file.exists()
    assert not list(Path(gettempdir()).glob(f"{server.token_file.name}*"))


def test_what_takes_too_long_by_a_guess_is_refused() -> None:
    state = ServerState()
    handle = ask(state, "load", scenario=question())["scenario"]
    state.limits = Limits(seconds=0.002)
    error = ask(state, "trace", scenario=handle)
    assert error["code"] == "too_large"
    assert error["message"].startswith("by a guess it takes 8")
    assert error["message"].endswith("; the limit is 4 ms")


def test_sigterm_ends_what_is_under_way() -> None:
    with running("-c", stuck(HANGS)) as server:
        handle = server.ask("load", scenario=question())["scenario"]
        with under_way(server, trace(handle), 2):
            wait_until(lambda: len(workers(server)) == 4)
            left = workers(server)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.communicate(timeout=HANGS)[1] == ""
        assert server.process.returncode == 0
        wait_until(lambda: not any(map(alive, left)))


def test_stdio_keeps_the_deadline() -> None:
    program = stuck(HANGS).partition("\nstate = ")[0]
    program += """
from simdev.commands.server.stdio import serve

def shorten(state):
    state.limits = Limits(seconds=0.5)

METHODS["shorten"] = shorten
serve(ServerState(), sys.stdin.buffer, sys.stdout.buffer)
"""
    handle = ask(ServerState(), "load", scenario=question())["scenario"]
    score = line("score", scenario=handle)
    requests = [line("load", scenario=question()), score, line("shorten"), trace(handle), score]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=b"\n".join(requests),
        capture_output=True,
        cwd=ROOT,
        timeout=HANGS,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    _, first, _, late, second = map(json.loads, done.stdout.splitlines())
    assert late["error"]["code"] == "too_late"
    assert second == first
