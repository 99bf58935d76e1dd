"""``simdev profile``: measure the operators of a PyTorch training step on this machine, or look at
profiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from .codes import DONE, FAILED_CHECK


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    parser = verbs.add_parser(
        "profile",
        help="measure the operators of a PyTorch training step, or check profiles",
        description="Captures the forward, backward and update of a PyTorch model as a graph, "
        "measures each distinct "
        "operator on this machine, and writes DIR/graphs/MODEL-bBATCH.json and "
        "DIR/MODEL.DEVICEKIND.jsonl. "
        '"simdev profile doctor FILE ..." looks for times in profiles that cannot be true.',
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=(
            "a name of --list, or path/to/file.py:function returning (module, inputs, "
            "loss); or: doctor"
        ),
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="profiles that the doctor looks at"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the models that are ready to be measured"
    )
    parser.add_argument(
        "--links",
        metavar="FILE",
        help="measure transfers between two local processes and write a cluster of 4 cores",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="what to measure (default cpu)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="examples in a batch (default: the model's own)"
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="another size of the model (length=128)",
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="sgd-momentum or adam (default: the model's own)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=240.0,
        metavar="S",
        help="time to measure for (default 240)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="simulate the step from its operators and compare with the measured one",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="profiles",
        metavar="DIR",
        help="where to write (default profiles)",
    )
    _add_others(parser)
    parser.set_defaults(run=run)


def _add_others(parser: argparse.ArgumentParser) -> None:
    """Options of the grid and of the doctor."""
    parser.add_argument(
        "--grid",
        metavar="CLASS",
        help="measure random shapes of op classes, by comma: gemm, conv, attention, norm, "
        "softmax, elementwise, or all "
        "of them; or copies of memory by size",
    )
    parser.add_argument(
        "--points", type=int, metavar="N", help="random shapes of each class of the grid"
    )
    parser.add_argument(
        "--dtype", default="float32", metavar="NAME", help="dtype of the grid (default float32)"
    )
    # argparse gives no positional argument to what stands behind an option, so this one takes the
    # files that follow it.
    parser.add_argument(
        "--strict",
        nargs="*",
        metavar="FILE",
        help="doctor: exit code 3 where there is a warning (of these files too)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    if args.model == "doctor":
        return _doctor([*args.files, *(args.strict or [])], args.strict is not None)
    if args.files:
        raise InputError(f'unknown argument "{args.files[0]}": one MODEL at a time')
    if args.strict is not None:
        raise InputError("--strict: goes with the doctor")
    try:
        _run(args)
    except OSError as error:
        raise InputError(error.strerror or str(error), error.filename) from None
    return DONE


def _doctor(files: Sequence[str], strict: bool) -> int:
    from ..measure.doctor import examine

    if not files:
        raise InputError("doctor: name the profiles to look at")
    warnings = examine(files)
    for warning in warnings:
        print(warning)
    if not warnings:
        print(f"{len(files)} profile{'s' * (len(files) > 1)}, nothing to warn of")
    return FAILED_CHECK if strict and warnings else DONE


def _run(args: argparse.Namespace) -> None:
    from ..measure import model_names

    if args.list:
        for name, batch, optimizer in model_names():
            print(f"{name}  batch {batch}, {optimizer}")
    if args.links:
        _links(args.links)
    if not 0 < args.seconds < 1e6:
        raise InputError(f"--seconds: must be positive and below a million, got {args.seconds}")
    if args.grid:
        _grid(args)
    if args.model is not None:
        _model(args)
    elif not (args.list or args.links or args.grid):
        raise InputError("MODEL: missing; --list shows the models that are ready")


def _model(args: argparse.Namespace) -> None:
    from ..measure import profile_model

    sizes = dict(_size(text) for text in args.size)
    with _bar(args.model) as progress:
        graph, profile = profile_model(
            args.model,
            args.device,
            args.batch,
            args.seconds,
            args.output,
            progress,
            args.optimizer,
            sizes=sizes,
        )
    print(graph, profile, sep="\n")
    if args.compare:
        from ..measure.compare import compare
        from ..units import format_seconds

        found = compare(profile, graph)
        batch = "" if found.batch is None else f", batch {found.batch}"
        print(
            f"{found.model}{batch}, one {found.device}: simulated "
            f"{format_seconds(found.simulated_s)}, "
            f"measured {format_seconds(found.measured_s)}, error {found.error:+.1%}"
            + (" (too noisy to be trusted)" if found.too_noisy else "")
        )


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not (name.isidentifier() and value.isascii() and value.isdecimal()):
        raise InputError(f'--size: must be written NAME=N, with a whole number, got "{text}"')
    return name, int(value)


def _grid(args: argparse.Namespace) -> None:
    from ..measure import profile_grid

    classes = [] if args.grid == "all" else args.grid.split(",")
    with _bar(f"grid {args.grid}") as progress:
        print(
            profile_grid(
                classes,
                args.device,
                args.seconds,
                args.output,
                args.points,
                args.dtype,
                progress=progress,
            )
        )


def _links(path: str) -> None:
    from ..measure.links import write_measured_cluster
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
            # Not before the first op is measured, so that a refused question leaves nothing but its
            # error.
            bar = tqdm(desc=title, total=total, unit="op", file=sys.stderr, mininterval=interval)
        bar.set_postfix_str(what, refresh=False)
        bar.update(done - bar.n)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.close()
