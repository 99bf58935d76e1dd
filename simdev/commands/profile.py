"""``simdev profile``: measure the operators of a PyTorch training step on this machine, or examine
profiles.

``measure`` does all measuring; options are passed to its ``profile_batches``, ``profile_grid``,
``compare`` or doctor.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..ground.errors import InputError, printable, steered
from ..ground.units import format_bandwidth, format_seconds
from .options import DONE, FAILED_CHECK, INTERRUPTED, named_number, whole_numbers
from .outputs import tell

HELP = "measure the operators of a PyTorch training step, or check profiles"
DESCRIPTION = (
    "Captures the forward, backward and update of a PyTorch model as a graph, measures each "
    "distinct operator on this machine, and writes DIR/graphs/MODEL-bBATCH.json and "
    'DIR/MODEL.DEVICEKIND.jsonl. "simdev profile doctor FILE ..." looks for times in profiles '
    "that cannot be true."
)
OPTIONS = (
    (
        "model",
        "MODEL",
        "a name of --list, or path/to/file.py:function returning (module, inputs, loss), or "
        "(module, inputs) where the module returns its loss; "
        "or: doctor",
        {"nargs": "?"},
    ),
    ("files", "FILE", "profiles that the doctor looks at", {"nargs": "*"}),
    ("--list", "", "list the models that are ready to be measured"),
    (
        "--links",
        "OUT",
        "measure transfers between two local processes and write a cluster of 4 cores",
    ),
    (
        "--device",
        "",
        "what to measure (default cpu)",
        {"action": "store", "choices": ("cpu", "cuda"), "default": "cpu"},
    ),
    (
        "--batch",
        "N,...",
        "examples in a batch (default: the model's own); several sizes share one profile, in which "
        "operators that are equal are measured once",
    ),
    (
        "--size",
        "NAME=N",
        "another size of the model (length=128)",
        {"action": "append", "default": []},
    ),
    ("--optimizer", "NAME", "sgd-momentum or adam (default: the model's own)"),
    (
        "--precision",
        "NAME",
        "float32, tf32 (in products and convolutions, on CUDA), bfloat16 or autocast to it "
        "(default: as the model's code says)",
    ),
    ("--seconds", "S", "time to measure for (default 240)", {"default": 240.0}),
    (
        "--compare",
        "",
        "simulate the step from its operators and the host's cost, compare with the measured one "
        "(the host of another batch, where there are several), and write the scenario of it",
    ),
    ("-o --output", "DIR", "where to write (default profiles)", {"default": "profiles"}),
    (
        "--grid",
        "CLASS",
        "measure random shapes of op classes, by comma: gemm, conv, attention, norm, softmax, "
        "elementwise, or all of them; or copies of memory by size",
    ),
    ("--points", "N", "random shapes of each class of the grid"),
    (
        "--dtype",
        "NAME",
        "dtype of the grid (default float32); float8_e4m3fn: products, on CUDA devices that can",
        {"default": "float32"},
    ),
    # argparse gives words after an option to no positional argument, so the option takes the files
    # that follow it.
    (
        "--strict",
        "FILE",
        "doctor: exit code 3 where there is a warning (of these files too)",
        {"nargs": "*"},
    ),
)


NOT_TRIED = (
    "no error: this very step told what its host costs; another batch (--batch 8,16) tries that"
)


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    if args.model == "doctor":
        return _doctor([*args.files, *(args.strict or [])], args.strict is not None)
    if args.files:
        raise InputError(f'unknown argument "{args.files[0]}": one MODEL at a time')
    if args.strict is not None:
        raise InputError("--strict: goes with the doctor")
    try:
        return _measure(args)
    except OSError as error:
        raise InputError(error.strerror or str(error), error.filename) from None


def _doctor(files: Sequence[str], strict: bool) -> int:
    from ..measure.doctor import examine

    if not files:
        raise InputError("doctor: name the profiles to look at")
    warnings = examine(files)
    for warning in warnings:
        print(printable(str(warning)))
    if not warnings:
        print(f"{len(files)} profile{'s' * (len(files) > 1)}, nothing to warn of")
    return FAILED_CHECK if strict and warnings else DONE


def _measure(args: Namespace) -> int:
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
        return _model(args)
    if not (args.list or args.links or args.grid):
        raise InputError("MODEL: missing; --list shows the models that are ready")
    return DONE


def _model(args: Namespace) -> int:
    from ..measure import profile_batches

    sizes = dict(named_number("--size", text) for text in args.size)
    batches = whole_numbers("--batch", args.batch)
    with _bar(args.model) as progress:
        graphs, profile = profile_batches(
            args.model, batches, args.device, args.seconds, args.output, progress,
            args.optimizer, sizes=sizes, precision=args.precision,
        )  # fmt: skip
    print(*(printable(str(path)) for path in (*graphs, profile)), sep="\n")
    if not _is_whole(profile):
        return INTERRUPTED
    if args.compare:
        for graph in graphs:
            _compare(profile, graph)
    return DONE


def _is_whole(profile: Path) -> bool:
    """Whether the run was complete; prints on stderr which operators have no row."""
    from ..files.profile import read_profile

    header = read_profile(profile).header["header"]
    missing = header["unmeasured"]
    if header["method"].get("interrupted"):
        tell(f"interrupted: {len(missing)} operators have no row")
        return False
    if missing:
        reasons = (f"  {reason}" for reason in missing)
        tell(f"{len(missing)} operators could not be measured:", *reasons)
    return True


def _compare(profile: Path, graph: Path) -> None:
    from ..measure.compare import advice, compare, write_scenario
    from ..nouns.graph import PHASES

    result = compare(profile, graph)
    print(printable(str(write_scenario(profile, graph))))
    if result.host is not None:
        parts = ", ".join(f"{name} {format_seconds(result.host[name])}" for name in PHASES)
        print(
            f"operators alone {format_seconds(result.simulated_s)} ({result.error:+.1%}), "
            f"the host's cost: {parts}"
        )
    batch = "" if result.batch is None else f", batch {result.batch}"
    simulated = result.with_host_s if result.held_out_s is None else result.held_out_s
    tried = "" if result.held_out_s is None else f" with the host of batch {result.tried}"
    error = NOT_TRIED if result.host_error is None else f"error {result.host_error:+.1%}"
    print(
        f"{result.model}{batch}, one {result.device}: "
        f"simulated {format_seconds(simulated)}{tried}, "
        f"measured {format_seconds(result.measured_s)}, {error}",
        end=" (too noisy to be trusted)\n" if result.too_noisy else "\n",
    )
    for line in advice(result):
        print(f"  {line}")


def _grid(args: Namespace) -> None:
    from ..measure import profile_grid

    classes = [] if args.grid == "all" else args.grid.split(",")
    with _bar(f"grid {args.grid}") as progress:
        path = profile_grid(
            classes, args.device, args.seconds, args.output, args.points, args.dtype,
            progress=progress,
        )  # fmt: skip
        print(printable(str(path)))


def _links(path: str) -> None:
    from ..measure import write_measured_cluster

    fit = write_measured_cluster(path)
    print(
        f"{printable(path)}: {format_bandwidth(fit.bandwidth)}, "
        f"latency {format_seconds(fit.latency_s)}, "
        f"mean error of the fit {fit.mean_error:.1%}"
    )


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr, which updates rarely where that is no terminal."""
    from tqdm import tqdm

    interval = 0.5 if sys.stderr.isatty() else 30.0
    # With a delay nothing is drawn before the first op is measured, so that an error stands alone.
    with tqdm(
        desc=printable(title), unit="op", file=steered(sys.stderr), mininterval=interval,
        delay=1e-3, total=1,
    ) as bar:  # fmt: skip

        def progress(done: int, total: int, op: str) -> None:
            bar.total = total
            bar.set_postfix_str(printable(op), refresh=done == 0)
            bar.update(done - bar.n)

        yield progress
