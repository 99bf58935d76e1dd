"""``simdev simulate --model NAME --cluster NAME --dp 4 --tp 8 ...``: the step of a large model, in one line."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .codes import DONE, FAILED_CHECK, INFEASIBLE
from .traces import is_faulty, outputs, shown_name, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..analysis.training import TrainingReport

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
    group.add_argument("--length", type=int, metavar="N", help="words of a sample (default: the model's)")
    for name, text in COUNTS.items():
        group.add_argument(_option(name), type=int, metavar="N", help=text)
    for name, text in TEXTS.items():
        group.add_argument(_option(name), metavar="TEXT", help=text)
    group.add_argument("--csv", metavar="FILE", help="a schedule of your own, a line a rank, as PyTorch writes it")
    for name, text in SWITCHES.items():
        group.add_argument(_option(name), dest=name, action="store_false", default=None, help=text)
    found.set_defaults(usage_error=found.error)
    group.add_argument("--no-symmetry", action="store_true", help="simulate all devices, alike or not")


def _option(name: str) -> str:
    return "--" + ("no_" * (name in SWITCHES) + name).replace("_", "-")


def is_meant(args: argparse.Namespace, source: Any) -> bool:
    """Whether the command is about a large model; ``source`` is the scenario's path, or its object from stdin.

    Exits with the usage where it is about nothing. Raises InputError where options contradict one another.
    """
    from ..files.training import has_pipeline

    if args.model is None:
        if args.file is None:
            args.usage_error("FILE is needed, or --model with --cluster")
        given = [_option(name) for name in OPTIONS if getattr(args, name) is not None]
        given += ["--no-symmetry"] * args.no_symmetry
        is_pipeline = has_pipeline(source)
        if given and not (is_pipeline and given == ["--no-symmetry"]):
            raise InputError(f"{given[0]}: goes with --model; a scenario file tells it itself")
        return is_pipeline
    if args.file is not None:
        raise InputError(f"--model: {args.file} is the scenario; give one of them")
    if args.cluster is None:
        raise InputError("--cluster: is needed with --model; `simdev clusters` lists the presets")
    return True


def run(args: argparse.Namespace, source: Any) -> int:
    """Simulate, report, write. Raises SimdevError."""
    if args.strict:
        raise InputError("--strict: the layers of a large model are always estimated, from its devices' datasheets")
    with outputs(args) as places:
        report = _report(args, source)
        code = DONE if report.feasible else INFEASIBLE
        if args.check and is_faulty(report.trace):
            code = FAILED_CHECK
        write(report.trace, places, lambda: _figure(report))
    print(json.dumps(report.to_json(), indent=1, allow_nan=False) if args.json else report)
    return code


def _report(args: argparse.Namespace, source: Any) -> TrainingReport:
    """The answer; what is wrong is told of the option or of the place in the file."""
    from dataclasses import replace

    from ..scenario import load_training, run_training

    try:
        scenario = load_training(_object(args) if args.file is None else source)
        if args.engine is not None:
            scenario = replace(scenario, engine=args.engine)
        if args.no_symmetry:
            scenario = replace(scenario, symmetry=False)
    except InputError as error:
        if args.file is None:
            raise InputError([_as_option(problem) for problem in error.problems], error.file) from None
        raise error.within("<stdin>") if args.file == "-" else error from None
    try:
        return run_training(scenario)
    except InputError as error:
        if args.file is None:
            raise InputError([_as_option(problem) for problem in error.problems]) from None
        raise InputError([_in_pipeline(problem) for problem in error.problems], shown_name(args.file)) from None


def _object(args: argparse.Namespace) -> dict[str, Any]:
    """The scenario that the options describe."""
    pipeline = {name: getattr(args, name) for name in (*COUNTS, *TEXTS, *SWITCHES) if getattr(args, name) is not None}
    if "offload" in pipeline:
        pipeline["offload"] = [one.strip() for one in pipeline["offload"].split(",")]
    if args.csv is not None:
        pipeline["table"] = args.csv
    cluster = args.cluster if args.nodes is None else {"preset": args.cluster, "nodes": args.nodes}
    graph = {"model": args.model} | ({} if args.length is None else {"length": args.length})
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}}


def _in_pipeline(problem: str) -> str:
    """``tp: ...`` as ``strategy.pipeline.tp: ...``."""
    from ..strategy.parallelism import Parallelism

    return f"strategy.pipeline.{problem}" if hasattr(Parallelism, problem.partition(":")[0]) else problem


def _as_option(problem: str) -> str:
    """``strategy.pipeline.tp: ...`` as ``--tp: ...``."""
    path, _, reason = problem.partition(":")
    name = path.removeprefix("strategy.pipeline.").removeprefix("graph.").removeprefix("cluster.").partition("[")[0]
    name = {"table": "csv", "preset": "cluster"}.get(name, name)
    return f"{_option(name)}:{reason}" if name in (*OPTIONS, "model") else problem


def _figure(report: TrainingReport) -> Figure:
    from ..plot.training import training_figure

    return training_figure(report)
