"""``simdev serve``: the oracle as a process, on stdin and stdout or by HTTP on the loopback.

``server`` has the protocol and its carriers; a limit is a field of ``server.state.Limits``, an
option and a row of LARGEST here.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

from ..ground.errors import refuse
from .options import DONE, flag, port_problems

HELP = "answer requests for step times: JSON lines on stdin and stdout, or HTTP"
DESCRIPTION = (
    "Answers one JSON request a line, until stdin ends: load, score, batch, trace, session, "
    "propose, accept, reject, stats, ping, shutdown (docs/how-to/serve.md)."
)
OPTIONS = (
    ("--http", "", "serve POST requests on 127.0.0.1 instead; prints the URL"),
    ("--port", "N", "with --http (default: any that is free)", {"default": 0}),
    ("--root", "DIR", "load files of this folder only (with --http by default: this one)"),
    ("--max-bytes", "N", "of a request (default 8 MiB)", {"default": 8 * 2**20}),
    ("--max-batch", "N", "strategies at once (default 10000)", {"default": 10_000}),
    ("--max-scenarios", "N", "loaded at once (default 8)", {"default": 8}),
    ("--max-sessions", "N", "open at once (default 64), by HTTP of a scenario", {"default": 64}),
    ("--max-seconds", "N", "of work on a request (default 30)", {"default": 30}),
)
LARGEST = {
    "max_bytes": 256 * 2**20,
    "max_batch": 10**6,
    "max_scenarios": 256,  # each is a process, by HTTP
    "max_sessions": 10**5,
    "max_seconds": 3600,
}


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    refuse(_problems(args))
    from contextlib import redirect_stdout

    from .server import Limits, ServerState

    limits = Limits(
        request_bytes=args.max_bytes,
        batch=args.max_batch,
        scenarios=args.max_scenarios,
        sessions=args.max_sessions,
        seconds=args.max_seconds,
    )
    root = "." if args.http and args.root is None else args.root
    state, out = ServerState(limits, root), sys.stdout
    # stdout belongs to the protocol: output of libraries must not get between two replies.
    with redirect_stdout(sys.stderr):
        if args.http:
            from .server.http import serve as serve_http

            serve_http(state, args.port, out)
        elif sys.stdin is not None:
            from .server.stdio import serve

            serve(state, sys.stdin.buffer, out.buffer)
    return DONE


def _problems(args: Namespace) -> Iterator[str]:
    for name, most in LARGEST.items():
        value = getattr(args, name)
        if not 1 <= value <= most:
            yield f"{flag(name)}: must be from 1 to {most}, got {value}"
    yield from port_problems(args.port)
    if args.port and not args.http:
        yield "--port: goes with --http"
