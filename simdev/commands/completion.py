"""``simdev completion SHELL``: the script that lets a shell complete verbs, options, files and
names.

An argument that takes a name has a row in NAMES, an argument that takes a file a metavar of FILES;
all else comes from the parsers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from .options import DONE

SHELLS = ("bash", "zsh", "tcsh")
HELP = "print a script that completes the command line"
DESCRIPTION = (
    "Prints the script that lets a shell complete verbs, options, files and the names of examples, "
    "clusters, models, methods and families."
)
EPILOG = """where it goes:
  bash  simdev completion bash > ~/.local/share/bash-completion/completions/simdev
        (without the package bash-completion: source that file in ~/.bashrc)
  zsh   simdev completion zsh > ~/.zfunc/_simdev, with fpath+=~/.zfunc before compinit in ~/.zshrc
  tcsh  simdev completion tcsh > ~/.simdev.tcsh, with source ~/.simdev.tcsh in ~/.tcshrc
"""
OPTIONS = (("shell", "SHELL", ", ".join(SHELLS), {"choices": SHELLS}),)

FILES = frozenset({"A", "B", "FILE", "GRID", "OUT", "RUN", "SCENARIO", "TRACE"})
"""Metavars of arguments that are files."""
Completer = dict[str, Any]  # the value that shtab wants as ``complete`` of an action


@dataclass(frozen=True, slots=True)
class Names:
    """Names that an argument takes: their noun, the "module:name" of the collection or function
    that has them, and whether the argument also takes the path of a file.
    """

    noun: str
    source: str
    or_file: bool = False

    def now(self) -> Iterable[str]:
        """The names, as they are at this moment."""
        module, _, name = self.source.partition(":")
        names: Any = getattr(import_module(module), name)
        return cast("Iterable[str]", names() if callable(names) else names)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code."""
    import shtab

    commands: argparse.ArgumentParser = args.commands
    for verb, action in _actions(commands):
        completer = _completer(verb, action)
        if completer is not None:
            action.complete = completer  # type: ignore[attr-defined]
    print(shtab.complete(commands, args.shell))
    return DONE


def _actions(commands: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """The arguments of every verb that take a value."""
    for action in commands._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, command in action.choices.items():
                yield from ((verb, each) for each in command._actions if each.nargs != 0)


def _completer(verb: str, action: argparse.Action) -> Completer | None:
    import shtab

    metavar = str(action.metavar)
    if metavar == "DIR":
        return dict(shtab.DIRECTORY)
    names = NAMES.get((verb, action.dest)) or NAMES.get(("", action.dest))
    if names is None or metavar == "OUT":
        return dict(shtab.FILE) if metavar in FILES else None
    return _words(names)


def _words(names: Names) -> Completer:
    """The completer of names, and of files where the argument also takes a file."""
    words = " ".join(names.now())
    # The ending "_file" tells the script of bash that some answers are files.
    bash, zsh = f"_simdev_{names.noun}{'_file' * names.or_file}", f"_simdev_{names.noun}"
    files = "compgen -f -- $1\n  " * names.or_file
    return {
        "bash": bash,
        "zsh": zsh,
        "tcsh": "f" if names.or_file else f"({words})",
        "preamble": {
            "bash": f'{bash}() {{\n  {files}compgen -W "{words}" -- $1\n}}',
            "zsh": f"{zsh}() {{\n  {'_files' * names.or_file}\n  compadd -- {words}\n}}",
        },
    }


SCENARIOS = Names("scenarios", "simdev.files.examples:scenario_names", True)
CLUSTERS = Names("clusters", "simdev.files:preset_names", True)
METHODS = Names("methods", "simdev.search.methods:METHODS")
LARGE = Names("models", "simdev.nouns.models.large:LARGE", True)
FAMILIES = Names("families", "simdev.learn.families:FAMILIES", True)
SCHEDULES = Names("schedules", "simdev.nouns.schedules:NAMES")
# Models that can be measured are left out, since listing them needs PyTorch.
NAMES = {
    **{(verb, "file"): SCENARIOS for verb in ("simulate", "search", "report", "calibrate")},
    ("sweep", "files"): SCENARIOS,
    ("compare", "first"): SCENARIOS,
    ("compare", "second"): SCENARIOS,
    ("explore", "scenario"): SCENARIOS,
    ("examples", "names"): Names("examples", "simdev.commands.examples:example_paths"),
    ("", "cluster"): CLUSTERS,
    ("clusters", "name"): CLUSTERS,
    ("search", "method"): METHODS,
    ("search", "warm"): METHODS,
    ("train", "method"): METHODS,
    ("simulate", "model"): LARGE,
    ("plan", "model"): LARGE,
    ("train", "family"): FAMILIES,
    ("simulate", "schedule"): SCHEDULES,
    ("pipeline", "schedule"): SCHEDULES,
    ("family", "name"): Names("family", "simdev.learn.families:FAMILIES"),
}
"""The names that an argument takes, by (verb, argument); the verb "" means any."""
