"""A server whose traces last as long as a test wants, and its processes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import psutil

from clients import Server
from worlds.server import line

LARGE = 40_000_000
"""Bytes of the answer to a trace of the strategy "large": more than the pipe between two processes
buffers.
"""
STUCK = """
import os, signal, sys
from simdev.commands.server import METHODS, Limits, ServerState
from simdev.commands.server.http import Patience, serve

def trace(state, scenario, strategy=None):
    state.admit(1.0)
    if strategy == "deaf":  # to alarms, as a compiled loop is
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    while strategy not in ("dead", "large") and not os.path.exists(strategy or ""):
        pass
    if strategy == "dead":
        signal.raise_signal(signal.SIGKILL)
    return "x" * (LARGE if strategy == "large" else 1)

def barren(state, scenario):
    def fork():
        raise BlockingIOError
    os.fork = fork  # from here on this process can make no other

METHODS["barren"] = barren

METHODS["trace"] = trace
state = ServerState(Limits(seconds=SECONDS, scenarios=2))
serve(state, 0, sys.stdout, Patience(requests=9, head=3))
"""
"""The program of a server whose traces last for ever, or until the file that they name exists."""


def stuck(seconds: float) -> str:
    return STUCK.replace("SECONDS", f"{seconds}").replace("LARGE", str(LARGE))


def trace(handle: str, strategy: str | None = None) -> bytes:
    return line("trace", 7, scenario=handle, strategy=strategy)


def workers(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


@contextlib.contextmanager
def under_way(server: Server, body: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Opens ``count`` connections that have sent a request and wait for the reply."""
    with contextlib.ExitStack() as stack:
        head = b"{HEAD}Content-Length: %d\r\n\r\n" % len(body)
        yield [stack.enter_context(server.raw(head + body)) for _ in range(count)]


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
