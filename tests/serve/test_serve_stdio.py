"""The server on stdin and stdout, and what its memory does over many calls."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients import (
    HAS_PROC,
    HOSTILE,
    ROOT,
    library,
    placements,
    question,
    running,
    written,
)
from simdev.commands import main
from simdev.commands.server import ServerState
from waiting import HANGS
from worlds.server import ask, line


def served(text: bytes, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "simdev", "serve", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, cwd=ROOT, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(entry) for entry in done.stdout.splitlines()]


def test_stdio_answers_each_line_in_order() -> None:
    document = question()
    handle = ask(ServerState(), "load", scenario=document)["scenario"]
    some = placements(20)
    requests = [line("load", "first", scenario=document)]
    requests += [line("score", i, scenario=handle, strategy=entry) for i, entry in enumerate(some)]
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
        written(library(document)(entry)) for entry in some
    ]
    codes = [reply["error"]["code"] for reply in replies if "error" in reply]
    assert codes == ["malformed", "too_large", "too_large", "malformed"]


def test_stdio_stops_when_asked_and_survives_what_is_hostile() -> None:
    hostile = [entry for entry in HOSTILE if entry.strip()]
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


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def resident_of_all(process: int) -> int:
    """Bytes of memory that a process and its workers hold."""
    workers = psutil.Process(process).children(recursive=True)
    return resident(process) + sum(resident(worker.pid) for worker in workers)


def stdio_growth(calls: int) -> tuple[int, int, float]:
    """Resident bytes after half of so many mixed calls and after all, each answer checked, and the
    calls a second.
    """
    document = question()
    oracle, some = library(document), placements(2000)
    expected = [written(oracle(entry)) for entry in some]
    others = [line("load", scenario=question(10**6 + i)) for i in range(11)]
    with subprocess.Popen(
        [sys.executable, "-m", "simdev", "serve"], stdin=-1, stdout=-1, cwd=ROOT
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018

        def talk(*requests: bytes) -> list[Any]:
            process.stdin.write(b"".join(entry + b"\n" for entry in requests))  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return [json.loads(process.stdout.readline()) for _ in requests]  # type: ignore[union-attr]

        handle = talk(line("load", scenario=document))[0]["result"]["scenario"]
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
            if turn == calls // 100:
                before = resident(process.pid)
            at = turn % len(parts)
            replies = talk(*parts[at])
            assert [entry["result"] for entry in replies[::5]] == [
                expected[(50 * at + i) % 2000] for i in range(0, 50, 5)
            ]
        return before, resident(process.pid), calls / (time.monotonic() - started)


@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_calls() -> None:
    before, after, rate = stdio_growth(8_000)
    print(
        f"stdio, 8,000 calls: {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_two_hundred_thousand_calls() -> None:
    before, after, rate = stdio_growth(200_000)
    print(
        f"stdio, the last 100,000 of 200,000 calls: {before / 2**20:.1f} MiB -> "
        f"{after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_memory_does_not_grow_over_two_hundred_thousand_http_calls() -> None:
    document, clients = question(), 16
    oracle = library(document)
    some = placements(2000)
    expected = [written(oracle(entry)) for entry in some]
    with running("-m", "simdev", "serve", "--http") as server:
        handle = server.ask("load", scenario=document)["scenario"]
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
                    cost = server.ask(
                        "score", connection, scenario=handle, strategy=some[i % len(some)]
                    )
                    good += cost == expected[i % len(some)]
            connection.close()
            return good

        with ThreadPoolExecutor(clients) as pool:
            assert sum(pool.map(client, [(i * 100, 6250) for i in range(clients)])) == 100_000
            before, started = resident_of_all(server.process.pid), time.monotonic()
            assert sum(pool.map(client, [(i * 100, 6250) for i in range(clients)])) == 100_000
            after, rate = resident_of_all(server.process.pid), 1e5 / (time.monotonic() - started)
    print(
        f"http, the last 100,000 of 200,000 calls: {before / 2**20:.1f} MiB -> "
        f"{after / 2**20:.1f} MiB, "
        f"{rate:.0f} calls a second"
    )
    assert after < 1.05 * before
