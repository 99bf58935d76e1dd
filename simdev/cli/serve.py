"""``simdev serve``: the oracle as a process, on stdin and stdout or by HTTP on the loopback."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import InputError
from .codes import DONE

LARGEST = {
    "max_bytes": 256 * 2**20,
    "max_batch": 10**6,
    "max_scenarios": 10**4,
    "max_sessions": 10**5,
}


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "serve",
        help="answer requests for step times: JSON lines on stdin and stdout, or HTTP",
        description="Answers one JSON request a line, until stdin ends: load, score, batch, trace, "
        "session, propose, "
        "accept, reject, stats, ping, shutdown (docs/serve.md).",
        allow_abbrev=False,
    )
    found.add_argument(
        "--http",
        action="store_true",
        help="serve POST requests on 127.0.0.1 instead; prints the URL",
    )
    found.add_argument(
        "--port", type=int, default=0, metavar="N", help="with --http (default: any that is free)"
    )
    found.add_argument(
        "--root",
        metavar="DIR",
        help="load files of this folder only (with --http by default: this one)",
    )
    found.add_argument(
        "--max-bytes", type=int, default=8 * 2**20, metavar="N", help="of a request (default 8 MiB)"
    )
    found.add_argument(
        "--max-batch",
        type=int,
        default=10_000,
        metavar="N",
        help="strategies at once (default 10000)",
    )
    found.add_argument(
        "--max-scenarios", type=int, default=8, metavar="N", help="loaded at once (default 8)"
    )
    found.add_argument(
        "--max-sessions", type=int, default=64, metavar="N", help="open at once (default 64)"
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    _check(args)
    from contextlib import redirect_stdout

    from ..serve import Limits, State

    limits = Limits(
        request_bytes=args.max_bytes,
        batch=args.max_batch,
        scenarios=args.max_scenarios,
        sessions=args.max_sessions,
    )
    root = "." if args.http and args.root is None else args.root
    state, out = State(limits, root), sys.stdout
    with redirect_stdout(sys.stderr):  # stdout is the protocol's
        if args.http:
            from ..serve.http import serve as serve_http

            serve_http(state, args.port, out)
        elif sys.stdin is not None:
            from ..serve.stdio import serve

            serve(state, sys.stdin.buffer, out.buffer)
    return DONE


def _check(args: argparse.Namespace) -> None:
    problems = [
        f"--{name.replace('_', '-')}: must be from 1 to {most}, got {getattr(args, name)}"
        for name, most in LARGEST.items()
        if not 1 <= getattr(args, name) <= most
    ]
    if not 0 <= args.port < 2**16:
        problems.append(f"--port: must be from 0 to 65535, got {args.port}")
    if args.port and not args.http:
        problems.append("--port: goes with --http")
    if problems:
        raise InputError(problems)
