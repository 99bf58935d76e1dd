"""``simdev import FILE -o scenario.json``: a scenario from a foreign format."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from ..errors import InputError
from .codes import DONE

ENDINGS = (".json", ".json.gz")


def add_parser(verbs: Any) -> None:
    """Add this verb to the parser's subparsers."""
    found = verbs.add_parser(
        "import",
        help="make a scenario of a PipeDream profile (graph.txt) or a dnn-partitioning workload (JSON)",
        description="Make a scenario of a foreign file. What was left out or changed is told on stderr and kept in the "
        "scenario's provenance.",
        allow_abbrev=False,
    )
    found.add_argument("file", metavar="FILE", help="the file (may be gzipped; - is stdin)")
    found.add_argument("-o", "--output", metavar="OUT", required=True, help="the scenario (.json, .json.gz)")
    found.add_argument("--format", metavar="NAME", help="pipedream or dnn-partitioning (default: told from the file)")
    found.add_argument("--name", help="of the graph (default: of the file)")
    found.add_argument("--devices", type=int, metavar="N", help="of a PipeDream profile (default 4)")
    found.add_argument(
        "--bandwidth", metavar="RATE", help="of a PipeDream profile (default 1 GB/s, as PipeDream has it)"
    )
    found.add_argument("--memory", metavar="SIZE", help="of each device, of a PipeDream profile (default: unlimited)")
    found.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..importers import import_file, write_imported

    if not args.output.lower().endswith(ENDINGS) and not args.output.startswith("/dev/"):
        raise InputError(f"--output: {args.output}: the name must end in {' or '.join(ENDINGS)}")
    if args.file != "-" and os.path.realpath(args.output) == os.path.realpath(args.file):
        raise InputError(f"--output: {args.output} is the file to import too")
    name = args.name or ("stdin" if args.file == "-" else _title(args.file))
    found = import_file(args.file, args.format, name, args.devices, args.bandwidth, args.memory)
    try:
        write_imported(found, args.output)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--output: cannot write {args.output}: {reason[:1].lower()}{reason[1:]}") from None
    for note in found.notes:
        print(note, file=sys.stderr)
    print(f"{args.output}: {len(found.graph.ops)} ops, {len(found.cluster.devices)} devices, {found.source}")
    return DONE


def _title(path: str) -> str:
    """The name of a file without endings; of a ``graph.txt``, that of its folder."""
    name = os.path.basename(path).partition(".")[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    return folder if name == "graph" and folder else name
