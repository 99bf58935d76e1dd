"""``simdev family NAME -o DIR``: the graphs of a family as scenarios.

``learn/families.py`` draws the families.
"""

from __future__ import annotations

import argparse

from ..ground.errors import InputError, printable
from .options import DONE
from .outputs import writing

HELP = "write the graphs of a family as scenarios, some to train on and others held out"
DESCRIPTION = (
    "Write a family of graphs as scenarios into DIR/train and DIR/held-out, always the same ones. "
    "simdev train METHOD --family DIR/train trains on the former; simdev search places the latter."
)
OPTIONS = (
    ("name", "NAME", "see docs/how-to/learning.md; a wrong name lists them"),
    ("-o --output", "DIR", "the folder to write, new or empty", {"required": True}),
    ("--seed", "N", "of what is drawn (default 0: what --family NAME trains on)", {"default": 0}),
)


def run(args: argparse.Namespace) -> int:
    """Run the verb; returns the exit code. Raises InputError."""
    from ..learn import family, write_family

    if args.seed < 0:
        raise InputError(f"--seed: must be at least 0, got {args.seed}")
    drawn = family(args.name, args.seed)
    with writing(args.output):
        write_family(drawn, args.output)
    counts = f"{len(drawn.seen)} scenarios to train on, {len(drawn.unseen)} held out"
    print(printable(f"{args.output}: {counts}"))
    return DONE
