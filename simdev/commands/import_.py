"""``simdev import FILE -o scenario.json``: a scenario, a profile, a cluster or tables from a
foreign format.

``formats`` recognises and reads the formats, ``measure`` the programs and traces of PyTorch. A new
format is a row of FORMATS there, which the help prints.
"""

from __future__ import annotations

import io
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, printable, refuse, within
from .options import DONE, flag, named_number
from .outputs import JSON, output_files, progress_bar, tell
from .traces import files_of, traced

if TYPE_CHECKING:
    from ..formats import Source

LINES = (".jsonl", ".jsonl.gz")
HELP = "make a scenario, a profile, a cluster or tables of collectives of a foreign file"
DESCRIPTION = (
    "Make a scenario (or a part of one) of a foreign file. What was left out, changed or assumed "
    "is told on stderr and kept in the provenance, with the file's name and SHA-256."
)
OPTIONS = (
    (
        "files",
        "FILE",
        "the file (may be gzipped; - is stdin); of traces one a rank, or the folder of all",
        {"nargs": "+"},
    ),
    ("-o --output", "OUT", "what to write (.json, .json.gz, .jsonl)", {"required": True}),
    ("--format", "NAME", "one of those below (default: told from the file)"),
    ("--name", "NAME", "of the graph (default: of the file)"),
)
GROUPS = {
    "the machine, of formats that tell none": (
        ("--cluster", "NAME", "a preset (simdev clusters) or a file"),
        ("--device", "KIND", "kind of the devices (v100, h100-sxm, epyc-1core, ..)"),
        ("--devices", "N", "how many (default 1; of a PipeDream profile 4)"),
        ("--bandwidth", "RATE", "between any two (PipeDream: 1 GB/s); PCIe of a topology"),
        ("--memory", "SIZE", "of each, or unlimited (default: of the kind's datasheet)"),
    ),
    "more": (
        ("--profile", "FILE", "a profile for the scenario (again for more)", {"action": "append"}),
        ("--dim", "NAME=N", "size of a symbolic dimension of an ONNX model", {"action": "append"}),
        ("--optimizer", "NAME", "sgd-momentum or adam: the whole step of a .pt2 with a loss"),
        ("--warm-up", "N", "steps of a trace left out (default 1 of three or more)"),
    ),
}


def epilog() -> str:
    """The table of formats, with the kind of file that each becomes."""
    from ..formats import table_of_formats

    head = "formats, told from what the file holds, and what they become:"
    return f"{head}\n{table_of_formats()}\n\ndocs/how-to/importers.md tells how each is read."


EPILOG = epilog  # called where the help is printed: readers of formats take time to load


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..files import write_text

    inputs = [(file, "the file to import") for file in args.files if file != "-"]
    with output_files(args, {"output": (*JSON, *LINES)}, inputs) as out:
        with progress_bar("import", bar_format="{desc} {elapsed}"):
            imported, format_, text = _imported(args)
        write_text(out["output"], text)
    tell(*imported.notes)
    print(printable(f"{args.output}: {imported.summary}, {format_}"))
    return DONE


def _imported(args: Namespace) -> tuple[Any, str, str]:
    """(the imported value, the format of the files, the text to write). Raises InputError."""
    from ..files.reading import label
    from ..formats import (
        TORCH_FORMATS,
        Machine,
        import_file,
        imported_text,
        open_source,
        recognise,
    )  # fmt: skip

    paths = [path for file in args.files for path in files_of(file)]
    sources = [open_source(path) for path in paths]
    source, first = sources[0], label(paths[0])
    name = args.name or ("stdin" if args.files[0] == "-" else _title(args.files[0]))
    # The format decides which options and which ending fit, so it is found before anything is read.
    with within(first):
        format_ = args.format or recognise(source)
    _check_options(args, format_)
    if format_ == "kineto" and args.output.lower().endswith(LINES):
        if len(sources) > 1:
            raise InputError("--output: a profile is made of the trace of a single rank")
        with within(first):
            trace = _trace(args, source)
        return trace, format_, trace.text
    if format_ == "kineto":
        machine = Machine(args.cluster, args.device, args.devices, args.bandwidth, args.memory)
        imported: Any = traced(sources, name, machine, args.warm_up)
    elif format_ in TORCH_FORMATS and len(sources) == 1:
        with within(first):
            imported = _of_program(args, source, name)
    else:
        dims = dict(named_number("--dim", text) for text in args.dim or ())
        imported = import_file(
            sources, format_, name, args.devices, args.bandwidth, args.memory,
            cluster=args.cluster, device=args.device, dims=dims,
        )  # fmt: skip
    if args.profile:
        imported = _with_profiles(imported, args.profile)
    # Paths of profiles in a scenario are relative to its own folder.
    return imported, format_, imported_text(imported, os.path.dirname(args.output))


def _of_program(args: Namespace, source: Source, name: str) -> Any:
    """A program of PyTorch as a scenario."""
    from ..formats import Machine, graph_scenario, provenance_of
    from ..measure import import_program

    file = source.path if source.data is None else io.BytesIO(source.data)
    made = import_program(file, optimizer=args.optimizer, name=name)
    machine = Machine(args.cluster, args.device, args.devices, args.bandwidth, args.memory)
    scenario = graph_scenario(
        made.graph, machine, "torch-export", made.notes, timed=bool(args.profile)
    )
    return replace(scenario, provenance=provenance_of([source], "torch-export"))


def _trace(args: Namespace, source: Source) -> Any:
    """A trace of PyTorch as a profile."""
    from ..formats import provenance_of
    from ..measure import trace_profile

    refuse(
        f"--{name}: a trace becomes a profile, which knows no machine (a .json holds its step)"
        for name in ("cluster", "devices", "bandwidth", "memory")
        if getattr(args, name) is not None
    )
    provenance = provenance_of([source], "kineto")
    return trace_profile(source.text(), args.device, args.warm_up, provenance)


def _check_options(args: Namespace, format_: str) -> None:
    """Raises InputError for options that do not apply to the format."""
    owners = {"optimizer": "torch-export", "warm_up": "kineto", "dim": "onnx"}
    refuse(
        f"{flag(name)}: is for files of {owner}"
        for name, owner in owners.items()
        if getattr(args, name) is not None and owner != format_
    )
    endings = (*JSON, *LINES) if format_ == "kineto" else JSON
    if not args.output.lower().endswith(endings) and not args.output.startswith("/dev/"):
        raise InputError(f"--output: {args.output}: the name must end in {' or '.join(endings)}")


def _with_profiles(imported: Any, paths: Sequence[str]) -> Any:
    """The scenario with profiles for the times of its ops. Raises InputError."""
    from ..files import read_profile
    from ..formats import Imported

    if not isinstance(imported, Imported):
        raise InputError(f"--profile: a file of {imported.source} is no scenario that could use it")
    # Each profile is read once, so that no scenario names an unreadable profile.
    for path in paths:
        read_profile(path)
    return replace(imported, profiles=tuple(paths))


def _title(path: str) -> str:
    """The title of a file: its name without endings."""
    name = os.path.basename(path).partition(".")[0]
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    # All of PipeDream's profiles are called graph.txt; their folders have the models' names.
    return folder if name == "graph" and folder else name
