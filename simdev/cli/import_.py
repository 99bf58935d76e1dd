"""``simdev import FILE -o scenario.json``: a scenario, a profile, a cluster or tables from a
foreign format.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError, printable
from .codes import DONE

if TYPE_CHECKING:
    from ..importers import Source

ENDINGS = {"kineto": (".jsonl", ".jsonl.gz")}
"""How the names of outputs end, by format; all others are JSON."""

OTHERS = (".json", ".json.gz")
FORMATS = """formats, told from what the file holds, and what they become:
  pipedream         PipeDream's profiles (graph.txt)                    scenario
  dnn-partitioning  workloads of dnn-partitioning (JSON)                scenario
  onnx              ONNX models (.onnx)                                 scenario
  torch-export      programs of torch.export (.pt2)                     scenario
  networkx          node-link JSON, GraphML                             scenario
  chakra            MLCommons Chakra traces, one file a rank (.et)      scenario
  kineto            traces of torch.profiler (record_shapes=True)       profile (.jsonl)
  nvidia-smi-topo   output of nvidia-smi topo -m                        cluster
  nccl-tests        output of nccl-tests                                tables of collectives

docs/importers.md tells how each is read."""


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "import",
        help="make a scenario, a profile, a cluster or tables of collectives of a foreign file",
        description="Make a scenario (or a part of one) of a foreign file. What was left out, "
        "changed or assumed is "
        "told on stderr and kept in the provenance, with the file's name and SHA-256.",
        epilog=FORMATS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="the file (may be gzipped; - is stdin); of a Chakra trace one a rank",
    )
    found.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="what to write (.json, .json.gz, .jsonl)",
    )
    found.add_argument(
        "--format", metavar="NAME", help="one of those below (default: told from the file)"
    )
    found.add_argument("--name", help="of the graph (default: of the file)")
    machine = found.add_argument_group("the machine, of formats that tell none")
    machine.add_argument("--cluster", metavar="NAME", help="a preset (simdev clusters) or a file")
    machine.add_argument(
        "--device", metavar="KIND", help="kind of the devices (v100, h100-sxm, epyc-1core, ..)"
    )
    machine.add_argument(
        "--devices", type=int, metavar="N", help="how many (default 1; of a PipeDream profile 4)"
    )
    machine.add_argument(
        "--bandwidth",
        metavar="RATE",
        help="between any two (PipeDream: 1 GB/s); PCIe of a topology",
    )
    machine.add_argument(
        "--memory",
        metavar="SIZE",
        help="of each (default: of the kind's datasheet, else unlimited)",
    )
    more = found.add_argument_group("more")
    more.add_argument(
        "--profile",
        metavar="FILE",
        action="append",
        help="a profile for the scenario (again for more)",
    )
    more.add_argument(
        "--dim",
        metavar="NAME=N",
        action="append",
        help="size of a symbolic dimension of an ONNX model",
    )
    more.add_argument(
        "--optimizer",
        metavar="NAME",
        help="sgd-momentum or adam: the whole step of a .pt2 with a loss",
    )
    more.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="steps of a trace left out (default 1 of three or more)",
    )
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    for file in args.files:
        if file != "-" and os.path.realpath(args.output) == os.path.realpath(file):
            raise InputError(f"--output: {args.output} is the file to import too")
    known = [ending for endings in (OTHERS, *ENDINGS.values()) for ending in endings]
    _require_ending(args.output, known)
    found, format_, write = _read(args)
    try:
        write(args.output)
    except InputError:
        raise  # what cannot be written is told with its path already
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"--output: cannot write {args.output}: {reason[:1].lower()}{reason[1:]}"
        ) from None
    for note in found.notes:
        print(printable(note), file=sys.stderr)
    print(printable(f"{args.output}: {found.summary}, {format_}"))
    return DONE


def _require_ending(path: str, endings: Sequence[str]) -> None:
    if not path.lower().endswith(tuple(endings)) and not path.startswith("/dev/"):
        raise InputError(f"--output: {path}: the name must end in {' or '.join(endings)}")


def _read(args: argparse.Namespace) -> tuple[Any, str, Callable[[str], None]]:
    """(what was made of the files, their format, how to write it). Raises InputError."""
    from ..files.reading import label
    from ..importers import (
        TORCH_FORMATS,
        Imported,
        import_file,
        open_source,
        recognise,
        write_imported,
    )

    sources = [open_source(path) for path in args.files]
    first = label(sources[0].path)
    name = args.name or ("stdin" if args.files[0] == "-" else _title(args.files[0]))
    try:
        format_ = args.format or recognise(sources[0])
    except InputError as error:
        raise error.within(first) from None
    _refuse_options(args, format_)
    _require_ending(args.output, ENDINGS.get(format_, OTHERS))
    if format_ in TORCH_FORMATS and len(sources) == 1:
        try:
            return (_trace if format_ == "kineto" else _program)(args, sources[0], name)
        except InputError as error:
            raise error.within(first) from None
    found = import_file(
        sources, format_, name, args.devices, args.bandwidth, args.memory,
        cluster=args.cluster, device=args.device, dims=_dims(args.dim or ()),
    )  # fmt: skip
    if args.profile:
        if not isinstance(found, Imported):
            raise InputError(
                f"--profile: a file of {found.source} is no scenario that could use it"
            )
        found = replace(found, profiles=_profiles(args.profile))
    return found, format_, lambda out: write_imported(found, out)


def _program(
    args: argparse.Namespace, source: Source, name: str
) -> tuple[Any, str, Callable[[str], None]]:
    """A program of PyTorch as a scenario."""
    from ..importers import Machine, graph_scenario, provenance_of, write_imported
    from ..measure import import_program

    machine = Machine(args.cluster, args.device, args.devices, args.bandwidth, args.memory)
    file = source.path if source.data is None else io.BytesIO(source.data)
    program = import_program(file, optimizer=args.optimizer, name=name)
    found = replace(
        graph_scenario(
            program.graph, machine, "torch-export", program.notes, timed=bool(args.profile)
        ),
        provenance=provenance_of([source], "torch-export"),
        profiles=_profiles(args.profile or ()),
    )
    return found, "torch-export", lambda out: write_imported(found, out)


def _trace(
    args: argparse.Namespace, source: Source, name: str
) -> tuple[Any, str, Callable[[str], None]]:
    """A trace of PyTorch as a profile."""
    from ..files import write_text
    from ..importers import provenance_of
    from ..measure.traces import trace_profile

    wrong = [f"--{one}: a trace becomes a profile, which knows no machine"
             for one in ("cluster", "devices", "bandwidth", "memory") if getattr(args,
             one) is not None]  # fmt: skip
    if wrong:
        raise InputError(wrong)
    found = trace_profile(
        source.text(), args.device, args.warm_up, provenance_of([source], "kineto")
    )
    return found, "kineto", lambda out: write_text(out, found.text)


def _refuse_options(args: argparse.Namespace, format_: str) -> None:
    """Raises InputError for options that mean nothing to the format."""
    owners = {"optimizer": "torch-export", "warm_up": "kineto", "dim": "onnx"}
    given = [name for name in owners if getattr(args, name) is not None and owners[name] != format_]
    if given:
        raise InputError(
            [f"--{name.replace('_', '-')}: is for files of {owners[name]}" for name in given]
        )


def _profiles(paths: Sequence[str]) -> tuple[str, ...]:
    """The profiles, each read once, so that a scenario never names one that cannot be.

    Raises InputError.
    """
    from ..files import read_profile

    for path in paths:
        read_profile(path)
    return tuple(paths)


def _dims(told: Sequence[str]) -> dict[str, int]:
    """Sizes of dimensions from ``NAME=N``. Raises InputError."""
    found = {}
    for one in told:
        name, _, value = one.rpartition("=")
        if not name or not value.isdigit():
            raise InputError(f'--dim: must be NAME=N ("batch=8"), got "{one}"')
        found[name] = int(value)
    return found


def _title(path: str) -> str:
    """The name of a file without endings; of a ``graph.txt``, that of its folder."""
    name = os.path.basename(path).partition(".")[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return folder if name == "graph" and folder else name
