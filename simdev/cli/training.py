"""``simdev simulate --model NAME --cluster NAME --dp 4 --tp 8 ...``: the scenario of a large model,
in one line.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import DeadlockError, InputError

COUNTS = {
    "dp": "replicas (data parallelism)",
    "tp": "parts of every matrix (tensor parallelism)",
    "pp": "ranks of the pipeline",
    "ep": "parts of the experts, within the replicas",
    "microbatches": "microbatches of a replica and step",
    "microbatch": "samples of a microbatch",
    "chunks": "stages a rank, of interleaved schedules",
    "zero": "0 to 3: what the replicas share out (default 1, the optimizer state)",
    "prefetch": "layers whose parameters or activations are fetched ahead (default 1)",
}
TEXTS = {
    "schedule": "of the pipeline (default 1F1B)",
    "recompute": "none, selective or full",
    "offload": "activations, optimizer or both, with a comma, to host memory",
    "host_bandwidth": 'of PCIe to host memory, like "51 GB/s"',
}
SWITCHES = {
    "overlap": "reduce gradients after the backward, not beside it",
    "flash": "attention keeps its scores",
    "sequence_parallel": "do not split the sequence among the parts of tp",
}
OPTIONS = (*COUNTS, *TEXTS, *SWITCHES, "cluster", "nodes", "length", "csv")


def add_arguments(found: argparse.ArgumentParser) -> None:
    """The options of a large model's step."""
    group = found.add_argument_group("a large model instead of a scenario file")
    group.add_argument("--model", metavar="NAME", help="like llama3-70b; see docs/large-models.md")
    group.add_argument("--cluster", metavar="NAME", help="a preset or a file")
    group.add_argument("--nodes", type=int, metavar="N", help="machines, of a preset")
    group.add_argument(
        "--length", type=int, metavar="N", help="words of a sample (default: the model's)"
    )
    for name, text in COUNTS.items():
        group.add_argument(_option(name), type=int, metavar="N", help=text)
    for name, text in TEXTS.items():
        group.add_argument(_option(name), metavar="TEXT", help=text)
    group.add_argument(
        "--csv", metavar="FILE", help="a schedule of your own, a line a rank, as PyTorch writes it"
    )
    for name, text in SWITCHES.items():
        group.add_argument(_option(name), dest=name, action="store_false", default=None, help=text)
    found.set_defaults(usage_error=found.error)
    group.add_argument(
        "--no-symmetry", action="store_true", help="simulate all devices, alike or not"
    )


def _option(name: str) -> str:
    return "--" + ("no_" * (name in SWITCHES) + name).replace("_", "-")


def document(args: argparse.Namespace) -> dict[str, Any] | None:
    """The scenario that the options describe, None where a file does.

    Exits with the usage where there is neither. Raises InputError where options contradict one
    another.
    """
    if args.model is None:
        if args.file is None:
            args.usage_error("FILE is needed, or --model with --cluster")
        given = [_option(name) for name in OPTIONS if getattr(args, name) is not None]
        if given:
            raise InputError(f"{given[0]}: goes with --model; a scenario file tells it itself")
        return None
    if args.file is not None:
        raise InputError(f"--model: {args.file} is the scenario; give one of them")
    if args.cluster is None:
        raise InputError("--cluster: is needed with --model; `simdev clusters` lists the presets")
    pipeline = {
        name: getattr(args, name)
        for name in (*COUNTS, *TEXTS, *SWITCHES)
        if getattr(args, name) is not None
    }
    if "offload" in pipeline:
        pipeline["offload"] = [one.strip() for one in pipeline["offload"].split(",")]
    if args.csv is not None:
        pipeline["table"] = args.csv
    cluster = args.cluster if args.nodes is None else {"preset": args.cluster, "nodes": args.nodes}
    graph = {"model": args.model} | ({} if args.length is None else {"length": args.length})
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}


def told_by_options(
    args: argparse.Namespace, error: InputError | DeadlockError
) -> InputError | None:
    """What is wrong, told of the options that describe the scenario; None where a file describes
    it.
    """
    if args.model is None or not isinstance(error, InputError):
        return None
    return type(error)([_as_option(problem) for problem in error.problems], error.file)


def _as_option(problem: str) -> str:
    """``strategy.pipeline.tp: ...`` as ``--tp: ...``."""
    path, _, reason = problem.partition(":")
    name = (
        path.removeprefix("strategy.pipeline.")
        .removeprefix("graph.")
        .removeprefix("cluster.")
        .partition("[")[0]
    )
    name = {"table": "csv", "preset": "cluster"}.get(name, name)
    return f"{_option(name)}:{reason}" if name in (*OPTIONS, "model") else problem
