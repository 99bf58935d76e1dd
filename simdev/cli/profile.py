"""``simdev profile``: capture a PyTorch training step and measure its operators on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .codes import DONE


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    parser = verbs.add_parser(
        "profile",
        help="measure the operators of a PyTorch training step",
        description="Captures the forward, backward and update of a PyTorch model as a graph, measures each distinct "
        "operator on this machine, and writes DIR/graphs/MODEL-bBATCH.json and DIR/MODEL.DEVICEKIND.jsonl.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a name of --list, or path/to/file.py:function returning (module, inputs, loss)",
    )
    parser.add_argument("--list", action="store_true", help="list the models that are ready to be measured")
    parser.add_argument(
        "--links", metavar="FILE", help="measure transfers between two local processes and write a cluster of 4 cores"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure (default cpu)")
    parser.add_argument("--batch", type=int, metavar="N", help="examples in a batch (default: the model's own)")
    parser.add_argument("--optimizer", metavar="NAME", help="sgd-momentum or adam (default: the model's own)")
    parser.add_argument("--seconds", type=float, default=240.0, metavar="S", help="time to measure for (default 240)")
    parser.add_argument("-o", "--output", default="profiles", metavar="DIR", help="where to write (default profiles)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    try:
        _run(args)
    except OSError as error:
        raise InputError(error.strerror or str(error), error.filename) from None
    return DONE


def _run(args: argparse.Namespace) -> None:
    from ..profiling import model_names, profile_model

    if args.list:
        for name, batch, optimizer in model_names():
            print(f"{name}  batch {batch}, {optimizer}")
    if args.links:
        _links(args.links)
    if args.model is None:
        if not (args.list or args.links):
            raise InputError("MODEL: missing; --list shows the models that are ready")
        return
    if not 0 < args.seconds < 1e6:
        raise InputError(f"--seconds: must be positive and below a million, got {args.seconds}")
    with _bar(args.model) as progress:
        written = profile_model(
            args.model, args.device, args.batch, args.seconds, args.output, progress, args.optimizer
        )
    print(*written, sep="\n")


def _links(path: str) -> None:
    from ..profiling.links import write_measured_cluster
    from ..units import format_bandwidth, format_seconds

    fit = write_measured_cluster(path)
    print(
        f"{path}: {format_bandwidth(fit.bandwidth)}, latency {format_seconds(fit.latency_s)}, "
        f"mean error of the fit {fit.mean_error:.1%}"
    )


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr; where that is no terminal, it speaks rarely."""
    from tqdm import tqdm

    interval = 0.5 if sys.stderr.isatty() else 30.0
    bar: Any = None

    def progress(done: int, total: int, what: str) -> None:
        nonlocal bar
        if bar is None:
            # Not before the first op is measured, so that a refused question leaves nothing but its error.
            bar = tqdm(desc=title, total=total, unit="op", file=sys.stderr, mininterval=interval)
        bar.set_postfix_str(what, refresh=False)
        bar.update(done - bar.n)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.close()
