"""``simdev train METHOD --family NAME -o OUT``: one policy for many graphs, of a family or of a
folder.

``learn.train`` does it; a learner is a row of ``learn/methods.py``, and its settings are in
``learn/settings.py``.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..ground.errors import printable
from .options import DONE, flag, with_flags
from .outputs import json_text, output_files, printed_first, progress_bar

if TYPE_CHECKING:
    from ..learn import Trained

HELP = "train a learner on a family of graphs, for a policy that places others"
DESCRIPTION = (
    "Train one policy of a learner on the graphs of a family, or on those of a folder, in turn. "
    "simdev search SCENARIO --method METHOD --policy OUT then begins with it. Ctrl-C ends with the "
    "policy as it is."
)
OPTIONS = (
    ("method", "METHOD", "see docs/how-to/learning.md; a wrong name lists them"),
    (
        "--family",
        "NAME",
        "the graphs to train on: a family (a wrong name lists them), or a folder of scenarios",
        {"required": True},
    ),
    ("-o --output", "OUT", "write the policy (.safetensors)", {"required": True}),
    (
        "--budget",
        "N",
        "placements to evaluate at most, of all graphs (default 1,000 each)",
    ),
    ("--seconds", "S", "time to train at most"),
    ("--seed", "N", "of what is random (default 0)", {"default": 0}),
    ("--settings", "LIST", "published, NAME=VALUE (comma-separated)"),
    ("--policy", "FILE", "a saved policy to begin with"),
    ("-j --jobs", "N", "processes at once, -1 on all cores (default 1)"),
    ("--json", "", "print provenance and graphs as JSON"),
)
FLAGS = {name: flag(name) for name in ("family", "budget", "seconds", "seed", "settings", "policy")}
FLAGS |= {"n_jobs": "--jobs", "questions": "--family"}


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    inputs = () if args.policy is None else ((args.policy, "the policy of --policy"),)
    with output_files(args, {"output": (".safetensors",)}, inputs) as out:
        with with_flags(FLAGS):
            trained = _trained(args)
        with printed_first(_json(trained) if args.json else _text(trained, args.output)):
            trained.policy.save(out["output"])
    return DONE


def _json(trained: Trained) -> str:
    graphs = list(map(asdict, trained.graphs))
    return json_text({**trained.provenance, "graphs": graphs})


def _trained(args: Namespace) -> Trained:
    from ..learn import train

    with progress_bar("train", total=args.budget, unit="ev") as bar:
        return train(
            args.method, args.family, args.budget, args.seed, args.seconds, None,
            lambda count: bar.update(count - bar.n), args.settings, args.policy, args.jobs,
        )  # fmt: skip


def _text(trained: Trained, path: str) -> str:
    from .searched import ENDS

    run, policy = trained.provenance, trained.policy
    sizes = [graph.groups for graph in trained.graphs]
    return "\n".join(
        [
            f"{run['method']}: {len(sizes)} graphs of {min(sizes)} to {max(sizes)} groups",
            f"{run['evaluations']:,} evaluations, {run['cpu_seconds']:.2f} CPU seconds; "
            f"{ENDS[run['ended']]}; seed {run['seed']}",
            f"{printable(path)} places any graph on {policy.devices} devices",
        ]
    )
