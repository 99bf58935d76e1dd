"""Names of ops as graphs of training steps write them: the phase before, the scope, the step of an
unrolled op.

Nothing but searches, mates and placements of blocks reads them, where an op says nothing better.
"""

from __future__ import annotations

import re

PREFIXES = {"forward": "", "backward": "grad/", "update": "update/"}
"""What stands before the name of a forward op in those that are derived from it, by phase."""

_ROOTS = (*PREFIXES.values(), "gradients/")  # the last is TensorFlow's
# Steps stand inside of names, too: "lstm@3/matmul" is one of the ops of a step.
_STEP = re.compile(r"@[0-9]+")


def forward_name(name: str) -> str:
    """The name without what tells its phase: "a/b" of "grad/a/b"."""
    for root in _ROOTS:
        name = name.removeprefix(root)
    return name


def scope_of(name: str) -> str:
    """The path in which an op stands, that of its forward op: "a/b" of "grad/a/b/matmul"."""
    return forward_name(name).rpartition("/")[0]


def module_pattern(module: str) -> re.Pattern[str]:
    """What matches the names of all ops of a module, of every phase and step: those of "blocks.2"
    (or "blocks/2") are "blocks/2/linear", "grad/blocks/2/matmul" and "update/blocks/2/weight".
    """
    roots = "|".join(re.escape(root) for root in _ROOTS if root)
    steps = [re.escape(part) + f"(?:{_STEP.pattern})?" for part in re.split("[./]", module)]
    return re.compile(f"/?(?:{roots})*{'[./]'.join(steps)}[./]")


def part_of(name: str) -> str:
    """Which part of a split op it is: "2" of "conv/conv2d#2", "" of an op that is whole."""
    return name.rpartition("#")[2] if "#" in name else ""


def unrolled(name: str) -> str:
    """The name without the steps of unrolled ops: "lstm/matmul" of "lstm@3/matmul"."""
    return _STEP.sub("", name) if "@" in name else name
