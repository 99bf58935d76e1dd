"""``simdev examples``: the scenarios and notebooks that ship; ``simdev examples NAME -o DIR``
copies one with every file that it needs.

``files/examples.py`` has the place of examples. The question and the time of each are in its file
(``provenance``), so a new example needs no row here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ground.errors import InputError, printable, reason_of, refuse
from .options import DONE, JSON_OPTION
from .outputs import files_of, json_text

HELP = "list the scenarios and notebooks that ship; copy one with its files"
DESCRIPTION = (
    "Lists the examples: what each shows, on which devices, and how long simdev simulate takes (on "
    "a core of an AMD EPYC, without the extra fast). With NAME copies those examples and every "
    "file that they need, each into the folder that the repository has it in. A scenario needs no "
    "copy to run: simdev simulate NAME."
)
OPTIONS = (
    ("names", "NAME", "an example to copy", {"nargs": "*"}),
    ("-o --output", "DIR", "where to copy to (default: here)"),
    ("--all", "", "copy all of them, with all profiles"),
    ("--force", "", "replace files that differ from the example's"),
    JSON_OPTION,
)

NOTEBOOK = ".ipynb"
# Paths of files in a notebook, relative to its folder; a part may be a variable of a loop
# ("{...}").
_NAMED = re.compile(r"\.\./((?:scenarios|profiles)/(?:[\w./-]|\{[^}]*\})+)")
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Example:
    """The description of an example; ``devices`` are counted by kind (empty for a notebook)."""

    name: str
    path: Path
    shows: str
    devices: dict[str, int]
    takes: str | None

    def to_json(self) -> dict[str, Any]:
        """The fields of the example for JSON."""
        kind = "notebook" if self.path.suffix == NOTEBOOK else "scenario"
        facts = {"shows": self.shows, "devices": self.devices, "takes": self.takes}
        return {"name": self.name, "kind": kind, **facts, "path": str(self.path)}


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    if not args.names and not args.all:
        for name in ("output", "force"):
            if getattr(args, name):
                raise InputError(f"--{name}: goes with NAME or --all")
        examples = [_described(path) for path in example_paths().values()]
        objects = [example.to_json() for example in examples]
        print(json_text(objects, ascii_only=False) if args.json else _listed(examples))
        return DONE
    paths = _chosen(args.names, args.all)
    folder = Path(args.output or ".")
    copied, kept = _copy(_needed(paths, args.all), folder, args.force)
    if args.json:
        examples = [_described(path) for path in paths]
        places = {example.name: str(folder / _inside(example.path)) for example in examples}
        print(json_text({"examples": places, "copied": copied, "kept": kept}, ascii_only=False))
    else:
        print(_summary(paths, folder, len(copied), len(kept)))
    return DONE


def example_paths() -> dict[str, Path]:
    """The examples by name: scenarios, then notebooks."""
    from ..files.examples import examples_folder

    top = examples_folder()
    scenarios = sorted((top / "scenarios").glob("*.json"))
    return {
        path.stem: path for path in [*scenarios, *sorted((top / "notebooks").glob(f"*{NOTEBOOK}"))]
    }


def _inside(path: Path) -> Path:
    """The path from the folder of all examples."""
    from ..files.examples import examples_folder

    return path.relative_to(examples_folder())


def _chosen(names: Sequence[str], everything: bool) -> list[Path]:
    from ..files.reading import meant

    paths = example_paths()
    if everything and names:
        raise InputError("--all: copies every example; leave out NAME")
    otherwise = '"simdev examples" lists them'
    refuse(
        f'no example "{name}"; {meant(name, tuple(paths), otherwise)}'
        for name in names
        if name not in paths
    )
    return list(paths.values()) if everything else [paths[name] for name in names]


def _needed(paths: Iterable[Path], everything: bool) -> list[Path]:
    """The files of these examples, each once, or all that ship."""
    from ..files.examples import FOLDERS, examples_folder

    if not everything:
        return list(dict.fromkeys(file for path in paths for file in (path, *_files(path))))
    top = examples_folder()
    files = sorted(path for name in FOLDERS for path in (top / name).rglob("*") if path.is_file())
    # In a clone an editor may have left files of its own beside them.
    return [path for path in files if not any(part[0] in "._" for part in _inside(path).parts)]


def _files(path: Path) -> Iterator[Path]:
    """The files that a scenario names, or a notebook and the scenarios that it opens."""
    if path.suffix != NOTEBOOK:
        yield from (Path(os.path.normpath(file)) for file in files_of(str(path)))
        return
    for name in _NAMED.findall(path.read_text(encoding="utf-8")):
        for file in sorted(path.parent.parent.glob(re.sub(r"\{[^}]*\}", "*", name).rstrip("."))):
            if file.is_dir():
                yield from sorted(file.rglob("*.*"))
            else:
                is_scenario = file.parent.name == "scenarios"
                yield from (file, *_files(file)) if is_scenario else (file,)


def _copy(files: Sequence[Path], folder: Path, force: bool) -> tuple[list[str], list[str]]:
    """Copy files into the folder; returns the new places, and the places that already held their
    file.

    Either all files are copied or none, unless the process is killed between two renames. Raises
    InputError, before anything is copied, where a place holds another file.
    """
    from ..files.writing import parents, replacing

    places = {folder / _inside(file): file for file in files}
    kept = [place for place, file in places.items() if _is_equal(place, file)]
    others = [place for place in places if os.path.lexists(place) and place not in kept]
    if not force:
        refuse(f"{place}: is there already and differs; --force replaces it" for place in others)
    new = [place for place in places if place not in kept]
    place = folder
    try:
        with ExitStack() as stack:
            for place in new:
                stack.enter_context(parents(place))
                temporary = stack.enter_context(replacing(place, keeps_link=False))
                shutil.copyfile(places[place], temporary)
    except OSError as error:
        raise InputError(f"--output: cannot write {place}: {reason_of(error)}") from None
    return [str(place) for place in new], [str(place) for place in kept]


def _is_equal(place: Path, file: Path) -> bool:
    return place.is_file() and place.read_bytes() == file.read_bytes()


def _described(path: Path) -> Example:
    value = json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == NOTEBOOK:
        title = "".join(value["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
        # The title's number is cut off, for the name of the file has it too.
        shows = title.removeprefix(path.stem.partition("-")[0]).strip()
        return Example(path.stem, path, shows, {}, value["metadata"].get("simdev", {}).get("takes"))
    origin = value["provenance"]
    devices = _devices(value["cluster"], path.parent)
    return Example(path.stem, path, origin["question"], devices, origin.get("takes"))


def _devices(cluster: Any, folder: Path) -> dict[str, int]:
    """The devices of a scenario's cluster, counted by their kinds."""
    from ..files import preset_names, read_cluster, read_preset

    if isinstance(cluster, str):
        is_preset = cluster in preset_names()
        machine = read_preset(cluster) if is_preset else read_cluster(folder / cluster)
    else:
        machine = read_cluster(cluster)
    return dict(Counter(device.kind for device in machine.devices if device.runs_ops))


def _listed(examples: Iterable[Example]) -> str:
    """The list of examples, with two lines each: name, devices and time; the question it shows."""
    lines = []
    for example in examples:
        machine = " + ".join(f"{count:,} {kind}" for kind, count in example.devices.items())
        takes = f"takes {example.takes}" if example.takes else ""
        facts = ", ".join(filter(None, (machine or "notebook", takes)))
        lines += [f"{example.name}  ({facts})", f"{_INDENT}{example.shows}"]
    return "\n".join(map(printable, lines))


def _summary(paths: Sequence[Path], folder: Path, copied: int, kept: int) -> str:
    present = f", {kept} there already" if kept else ""
    lines = [f"{folder}: {copied} file{'s' * (copied != 1)} copied{present}"]
    for path in paths[:1]:
        command = "jupyter lab" if path.suffix == NOTEBOOK else "simdev simulate"
        lines.append(f"try: {command} {shlex.quote(str(folder / _inside(path)))}")
    return "\n".join(map(printable, lines))
