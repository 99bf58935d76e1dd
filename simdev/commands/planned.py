"""What the planners of the papers make of a model's graph, for ``simdev plan``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, printable
from ..ground.units import format_number
from .options import DONE, INFEASIBLE
from .outputs import progress_bar

if TYPE_CHECKING:
    import pandas as pd

COST = "cost_per_million_samples"


def plans_graph(args: argparse.Namespace) -> bool:
    """Whether a graph is to be planned: it was said so, or the model is nothing else."""
    from ..search.plan.graphs import is_graph_alone

    return bool(args.graph) or is_graph_alone(args.model)


def run(args: argparse.Namespace, nodes: Sequence[int] | None) -> pd.DataFrame:
    """The table of all methods. Raises InputError."""
    from ..search.plan.graphs import SECONDS, plan_graph

    if args.set:
        raise InputError(f"--set: goes with a model by its sizes; {args.model} is a graph here")
    if nodes is not None and len(nodes) > 1:
        raise InputError("--nodes: a graph is planned on one cluster; give one number")
    parts: dict[str, Any] = {} if args.price is None else {"options": {"price": args.price}}

    def watch(methods: Sequence[str]) -> Sequence[str]:
        bar: Sequence[str] = progress_bar("plan", iterable=methods)
        return bar

    seconds = SECONDS if args.seconds is None else args.seconds
    count = None if nodes is None else nodes[0]
    return plan_graph(
        args.model, args.cluster, args.global_batch, count, args.length, seconds=seconds,
        watch=watch, **parts,
    )  # fmt: skip


def code_of(frame: pd.DataFrame) -> int:
    """The exit code: whether anything fits."""
    return DONE if any(fits is True for fits in frame["feasible"]) else INFEASIBLE


def answer_of(frame: pd.DataFrame) -> dict[str, Any]:
    """The object that ``--json`` prints: rows, with None in place of figures that are missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return {"plans": rows}


def lines(frame: pd.DataFrame) -> Iterator[str]:
    """A line a method, for a terminal."""
    from ..report.table import BYTES, NUMBER, TEXT, TIME, Table, table_text

    columns = {"method": TEXT, "step": TIME, "samples/s": TEXT, "memory": BYTES, "fits": TEXT}
    has_price = bool(frame[COST].notna().any())
    columns |= {"$/M samples": TEXT} if has_price else {}
    columns |= {"devices": NUMBER, "evaluations": NUMBER, "seconds": NUMBER, "note": TEXT}
    rows = [tuple(_cells(row, has_price)) for row in frame.to_dict("records")]
    title = "By what is trained a second, at the same global batch"
    yield table_text(Table(title, columns, tuple(rows), shown=len(rows)), width=None)


def _cells(row: Mapping[Any, Any], has_price: bool) -> Iterator[Any]:
    is_there = row["feasible"] is True or row["feasible"] is False
    yield row["method"]
    yield int(row["step_time_ps"]) if is_there else None
    rate = row["samples_per_s"]
    yield format_number(rate) if is_there else "-"
    yield int(row["peak_bytes"]) if is_there else None
    yield {True: "yes", False: "NO"}.get(row["feasible"], "-")
    if has_price:
        yield f"{row[COST]:.4g}" if is_there else "-"
    yield f"{row['devices']:,.0f}" if is_there else "-"
    yield f"{row['evaluations']:,.0f}" if is_there else "-"
    yield f"{row['seconds']:.1f}" if row["seconds"] == row["seconds"] else "-"
    yield printable(row["note"])
