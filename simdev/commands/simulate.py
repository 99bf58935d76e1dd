"""``simdev simulate SCENARIO``: the step time of a scenario, and whether it fits; ``--model NAME
--cluster NAME --dp 4 --tp 8 ...``: the scenario of a large model, in one line.

An option of a large model is a field of its pipeline (``nouns/strategy``, Parallelism) and a row of
COUNTS, TEXTS, SWITCHES or OFF_SWITCHES here; the sections of the report are printed as they come.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..ground.errors import DeadlockError, InputError
from .options import (
    CHECK_OPTION,
    DATASHEET_HELP,
    DONE,
    DRAW_OPTIONS,
    ENGINE_CHOICE,
    FAILED_CHECK,
    GANTT_OPTION,
    INFEASIBLE,
    LIMIT_OPTION,
    OF_LIMIT,
    PRICE_OPTION,
    REPORT_OPTION,
    SAVE_OPTION,
    SCENARIO_HELP,
    by_flags,
    cluster_value,
    flag,
    require_drawn,
    require_limit,
    with_flags,
)
from .outputs import (
    JSON,
    PICTURES,
    drawing,
    files_of,
    is_faulty,
    json_text,
    output_files,
    printed_first,
    progress_bar,
    write_trace,
)

if TYPE_CHECKING:
    from ..execution.scenario import Scenario

# In the order in which they are checked and written.
OUTPUTS = {"gantt": PICTURES, "trace": JSON, "save": JSON}
HELP = "simulate a scenario: step time, utilization, memory, critical path"
DESCRIPTION = "Simulate one training step. Exits 1 where the step does not fit into memory."
OPTIONS = (
    ("file", "SCENARIO", SCENARIO_HELP, {"nargs": "?"}),
    ("--engine", "", "default: what the scenario says", ENGINE_CHOICE),
    GANTT_OPTION,
    ("--trace", "OUT", "write a trace for Perfetto (.json or .json.gz)"),
    SAVE_OPTION,
    *DRAW_OPTIONS,
    REPORT_OPTION,
    CHECK_OPTION,
    ("--strict", "", "refuse op times that are estimates and name the ops"),
    ("--no-symmetry", "", "simulate all devices, alike or not"),
    PRICE_OPTION,
    LIMIT_OPTION,
)

# Options that are fields of ``strategy.pipeline`` in a scenario, by the type of their value.
COUNTS = {
    "dp": "replicas (data parallelism)",
    "tp": "parts of every matrix (tensor parallelism)",
    "pp": "ranks of the pipeline",
    "ep": "parts of the experts, within the replicas",
    "etp": "parts of every expert's matrices (default: tp); else ep is within dp x cp x tp",
    "cp": "parts of every sample's tokens (context parallelism)",
    "microbatches": "microbatches of a replica and step",
    "microbatch": "samples of a microbatch",
    "global_batch": "samples of a step, instead of microbatches, which follow from it",
    "chunks": "stages a rank, of interleaved schedules",
    "zero": "0 to 3: what the replicas share out (default 1, the optimizer state)",
    "dp_replicate": "groups of replicas, within each of which these share out (HSDP; default 1)",
    "prefetch": "layers whose parameters or activations are fetched ahead (default 1)",
    "in_flight": "buckets that ZeRO 2 and 3 reduce beside the backward (default 1)",
    "bucket": "most parameters of such a bucket (default 500,000,000; else a layer)",
    "recompute_layers": "how many of each stage full makes again (default all)",
    "offload_layers": "activations of how many of each stage are offloaded (default all)",
    "reduce_bytes": "of a gradient between replicas (default: 2 with ZeRO 2 and 3, else 4)",
}
TEXTS = {
    "schedule": "of the pipeline (default 1F1B)",
    "context": "how parts exchange keys and values: all_gather or ring",
    "recompute": "none, selective or full",
    "recompute_modules": "what selective makes again, with commas (default core_attn)",
    "token_dispatcher": "alltoall, deepep or hybridep (default: by the model's software)",
    "cuda_graphs": "none, partial or full: what is replayed (default: by the model's software)",
    "offload": "activations, optimizer or both, with a comma, to host memory",
    "host_bandwidth": 'of PCIe to host memory, like "51 GB/s"',
    "slowdown": "of computing and collectives beside each other (default 1: none)",
    "message_latency": 'of every collective and transfer beside the cluster\'s, like "10 us"',
}
# Fields that are true by default (flash by the model); each text is the help of its ``--no-``
# option.
SWITCHES = {
    "overlap": "reduce gradients after the backward, not beside it",
    "flash": "attention keeps its scores (default of models published before 2023)",
    "sequence_parallel": "do not split the sequence among the parts of tp",
    "tensor_overlap": "gather inputs again before the gradients of products, not beside them",
    "reshard_after_forward": "ZeRO 3 gathers parameters once for forward and backward",
}
OFF_SWITCHES = {
    "tp_comm_overlap": "collectives of a split sequence go on beside products of tp",
    "ep_comm_overlap": "tokens are sent to experts beside computing of another microbatch",
    "scatter_gather": "parts of tp send their share to the next rank, which gathers it",
}
PIPELINE = (*COUNTS, *TEXTS, *SWITCHES, *OFF_SWITCHES)
FLAGS = {"engine": "--engine", "price": "--price", "costs": "--strict"}
"""The option that sets a field of a scenario."""
ONLY_WITH_MODEL = (*PIPELINE, "cluster", "nodes", "gpus", "length", "csv", "datasheet")


def _option(name: str) -> str:
    return flag("no_" * (name in SWITCHES) + name)


GROUPS = {
    "a large model instead of a scenario file": (
        ("--model", "NAME", "like llama3-70b, or the config.json of a release"),
        ("--cluster", "NAME", "a preset or a file"),
        ("--nodes", "N", "machines, of a preset"),
        ("--gpus", "N", "so many GPUs of a preset's machines, on the fewest without --nodes"),
        ("--length", "N", "tokens of a sample (default: the model's)"),
        *((_option(name), "N", text) for name, text in COUNTS.items()),
        *((_option(name), "TEXT", text) for name, text in TEXTS.items()),
        ("--csv", "FILE", "a schedule of your own, a line a rank, as PyTorch writes it"),
        ("--datasheet", "", DATASHEET_HELP, {"action": "store_true", "default": None}),
        *(
            (_option(name), "", text, {"dest": name, "action": "store_false", "default": None})
            for name, text in SWITCHES.items()
        ),
        (
            "--flash",
            "",
            "attention is one op that keeps no scores (default of later models)",
            {"action": "store_true", "default": None},
        ),
        *(
            (_option(name), "", text, {"action": "store_true", "default": None})
            for name, text in OFF_SWITCHES.items()
        ),
    )
}


def run(args: Namespace) -> int:
    """Run the verb; returns the exit code. Raises SimdevError."""
    from ..files.examples import scenario_path

    if args.file is not None:
        args.file = scenario_path(args.file)
    with output_files(args, OUTPUTS, _inputs(args)) as out:
        from ..report import analyze, drawn
        from ..report.figures import report_figure
        from ..report.measures.spread import Alike

        with progress_bar("load", total=4) as bar:

            def begin(part: str) -> None:
                bar.set_description(part, refresh=False)
                bar.update()

            scenario = _scenario(args)
            begin("simulate")
            try:
                outcome = drawn(scenario, None, args.draws, args.seed, drawing)
            except (DeadlockError, InputError) as error:
                raise _by_options(args, error) from None
            begin("analyze")
            report = analyze(outcome)
            code = DONE if report.feasible else INFEASIBLE
            if args.check:
                begin("check")
                code = FAILED_CHECK if is_faulty(report.trace) else code
        alike = report.get(Alike)
        notes = () if alike is None else tuple(alike.notes())
        answer = json_text(report.to_json()) if args.json else report
        with printed_first(answer):
            write_trace(report.trace, out, lambda: report_figure(report), notes)
    return code


def _inputs(args: Namespace) -> Iterator[tuple[str, str]]:
    """(path, description) of the files that no output may replace."""
    source = args.file or ""
    yield source, f"the scenario {source}"
    for path in filter(os.path.isfile, filter(None, (args.model, args.cluster, args.csv))):
        yield path, f"the input {path}"
    yield from ((path, f"a file of the scenario {source}") for path in files_of(source))


def _scenario(args: Namespace) -> Scenario:
    """The scenario of the file or of the options. Raises InputError."""
    from dataclasses import replace

    from ..execution.scenario import load_scenario, of_every_device

    require_limit(args.limit)
    require_drawn(args)
    try:
        document = _document(args) or (_stdin() if args.file == "-" else args.file)
        scenario = load_scenario(document, args.limit)
    except InputError as error:
        raise _by_options(args, error, is_named=args.file != "-") from None
    changes: dict[str, Any] = {"engine": args.engine, "price": args.price}
    changes = {name: value for name, value in changes.items() if value is not None}
    if args.strict:
        changes["costs"] = replace(scenario.costs, strict=True)
    if args.no_symmetry:
        changes["symmetry"] = False
    with with_flags(FLAGS):
        scenario = replace(scenario, **changes)
    return of_every_device(scenario) if args.check or args.save else scenario


def _stdin() -> dict[str, Any]:
    """The scenario on stdin as an object, which ``load_scenario`` takes. Raises InputError."""
    from ..files.reading import label, read_json, shown

    value = read_json("-")
    if not isinstance(value, dict):
        raise InputError(f"must be an object (a scenario), got {shown(value)}", label("-"))
    return value


def _document(args: Namespace) -> dict[str, Any] | None:
    """The scenario that the options describe, None where a file does.

    Exits with the usage where there is neither. Raises InputError where options contradict one
    another.
    """
    if args.model is None:
        if args.file is None:
            args.usage_error("SCENARIO is needed, or --model with --cluster")
        given = [_option(name) for name in ONLY_WITH_MODEL if getattr(args, name) is not None]
        if given:
            reason = "a scenario file tells it itself, and `simdev sweep --set` changes it"
            raise InputError(f"{given[0]}: goes with --model; {reason}")
        return None
    if args.file is not None:
        raise InputError(f"--model: {args.file} is the scenario; give one of them")
    if args.cluster is None:
        raise InputError("--cluster: is needed with --model; `simdev clusters` lists the presets")
    pipeline = {name: getattr(args, name) for name in PIPELINE if getattr(args, name) is not None}
    for name in {"offload", "recompute_modules"} & pipeline.keys():
        pipeline[name] = [part.strip() for part in pipeline[name].split(",")]
    if args.csv is not None:
        pipeline["table"] = args.csv
    cluster = cluster_value(args.cluster, args.nodes, args.gpus)
    graph = {"model": args.model} | ({} if args.length is None else {"length": args.length})
    rows: dict[str, Any] = {"profile": []} if args.datasheet else {}
    return {"graph": graph, "cluster": cluster, "strategy": {"pipeline": pipeline}} | rows


def _by_options(
    args: Namespace, error: InputError | DeadlockError, is_named: bool = False
) -> InputError | DeadlockError:
    """The error with the option, or the file, that its problems are about, unless the reader has
    named the file already (``is_named``).
    """
    if isinstance(error, InputError):
        if args.limit is not None and error.problems[0].startswith(tuple(OF_LIMIT)):
            # The limit was written on the command line: the file has no part in it.
            return by_flags(InputError(error.problems), OF_LIMIT)
        if args.model is not None:
            return type(error)([_as_option(problem) for problem in error.problems], error.file)
    return error if is_named else error.within("<stdin>" if args.file == "-" else args.file or "")


def _as_option(problem: str) -> str:
    """``strategy.pipeline.tp: ...`` as ``--tp: ...``."""
    path, _, reason = problem.partition(":")
    name = path
    for prefix in ("strategy.pipeline.", "graph.", "cluster.", "options."):
        name = name.removeprefix(prefix)
    name = name.partition("[")[0]
    name = {"table": "csv", "preset": "cluster"}.get(name, name)
    is_option = name in (*ONLY_WITH_MODEL, "model", "limit")
    return f"{_option(name)}:{reason}" if is_option else problem
