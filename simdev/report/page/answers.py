"""Pages of answers that other verbs wrote as JSON: plans of ``simdev plan``, a search or a
comparison of ``simdev search``.

``simdev report`` and ``simdev plan --output`` use this module. The keys that it reads are written
in ``search/plan/outcome.py``, ``search/result.py`` and ``search/comparison/comparison.py``; the
scripts ``page/assets/ranked.js`` and ``curves.js`` draw its data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...ground.errors import InputError
from ...ground.units import PS_PER_SECOND, format_bytes, format_seconds
from ...nouns.strategy import degrees_over_one
from ..measures.published import LayoutError, PublishedError
from ..measures.section import Facts
from ..measures.uncertainty import how_sure
from ..results import kind_of
from ..table import (
    BYTES,
    COUNT,
    NUMBER,
    ONE_DEVICE,
    PRESENT,
    TEXT,
    TIME,
    Json,
    Ranking,
    Table,
    ranking,
)
from .step import tables_json

Entry = Mapping[str, Any]  # an object in the JSON of a verb
SHARES = ("mfu", "bubble", "exposed_communication", "beats_best", "first_in_draws")
TEXTS = (
    "plan", "method", "schedule", "recompute", "context", "why", "note", "feasible", "offload",
    "recompute_modules", "peak_dtype", "op_times",
)  # fmt: skip
LEFT_OUT = ("scenario", "step_time_ps", "front")
NAME = "plan"
AHEAD = (
    NAME, "devices", "schedule", "step_time_s", "step_p10_s", "step_p90_s", "beats_best",
    "peak_bytes", "why", "tokens_per_s",
    "samples_per_s", "mfu", "peak_dtype", "bubble", "exposed_communication", "note",
)  # fmt: skip


def answers_data(value: Any, source: str) -> Json | None:
    """The data of a page from the JSON of plans, a search or a comparison; None for other JSON.
    ``source`` is the name of its file, without the folder.

    Raises InputError where keys are missing or of another type.
    """
    if not isinstance(value, Mapping):
        return None
    makers: Mapping[str, Callable[[Any, str], Json]] = {
        "plans": plans_data, "methods": search_data, "curve": search_data,
    }  # fmt: skip
    for field, make in makers.items():
        if isinstance(value.get(field), (list, Mapping)) and "tasks" not in value:
            try:
                return make(_floats(value), os.path.basename(source))
            except KeyError as error:
                raise InputError(f"{field}: is not what simdev wrote: no {error}", source) from None
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                raise InputError(f"{field}: is not what simdev wrote", source) from None
    return None


def _floats(value: Any) -> Any:
    """JSON with floats in place of the exact numbers that files are read with."""
    if isinstance(value, Mapping):
        return {name: _floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_floats(part) for part in value]
    if isinstance(value, (Decimal, float)) and not math.isfinite(number := float(value)):
        raise ValueError(f"{value} is too large")
    return number if isinstance(value, (Decimal, float)) else value


def plans_data(value: Entry, source: str) -> Json:
    """The data of the page of plans, from the JSON of ``simdev plan``."""
    rows, counts = value["plans"], value.get("counts")
    names = [name for row in rows for name in row if name not in LEFT_OUT]
    columns: dict[str, list[Any]] = {NAME: [_name(row) for row in rows]}
    columns |= {name: [_cell(row.get(name), name) for row in rows] for name in dict.fromkeys(names)}
    columns = {name: columns[name] for name in sorted(columns, key=_place)}
    columns = {name: values for name, values in columns.items() if _says_something(name, values)}
    usable = [row.get("feasible", True) is True for row in rows]
    ranks = ranking(columns, usable, [0] * len(rows))
    return {
        "page": "plans",
        "title": _plans_title(rows, columns, ranks),
        "source": source,
        "fits": bool(ranks.order),
        "headline": _plans_headline(rows, counts, ranks),
        "facts": list(_plans_facts(counts)),
        "notes": list(_plans_notes(rows, counts or {}, columns, ranks)),
        **ranks.page(
            {name: (_kind(name), values) for name, values in columns.items()},
            {"x": "peak_bytes", "y": "step_time_s", "colour": _colour(columns)},
            "plan", "Plans that fit, the best first", "Without an answer that fits",
        ),
        "sheets": tables_json([_left_out(counts)] if counts else []),
    }  # fmt: skip


def _name(row: Entry) -> str:
    """A plan in a few words: its degrees above 1, or the method that made it."""
    if "method" in row:
        return str(row["method"])
    return ", ".join(degrees_over_one(row)) or "one device"


def _cell(value: Any, name: str) -> Any:
    if isinstance(value, float) and _kind(name) == TIME:
        return value * PS_PER_SECOND
    return value if isinstance(value, (str, bool, int, float)) or value is None else str(value)


def _kind(name: str) -> str:
    return TEXT if name in TEXTS else kind_of(name, SHARES)


def _says_something(name: str, values: Sequence[Any]) -> bool:
    """Whether a column differs between rows, or is a figure."""
    if name == "method" or all(value is None for value in values):
        return False
    figures = ("step_time_s", "step_p10_s", "step_p90_s", "peak_bytes", *SHARES)
    return name == NAME or name in figures or len(set(map(str, values))) > 1


def _place(name: str) -> int:
    """The place of a column: AHEAD first, then degrees and options."""
    return AHEAD.index(name) if name in AHEAD else len(AHEAD)


def _colour(columns: Entry) -> str:
    """The column that colours the points: the first of the choices that the table has."""
    choices = ("devices", "pp", "tp", "schedule", NAME)
    return next((name for name in choices if name in columns), "")


def _plans_title(rows: Sequence[Entry], columns: Entry, ranks: Ranking) -> str:
    written = (row["scenario"] for row in rows if row.get("scenario"))
    scenario: Mapping[str, Any] = next(written, {})
    question = "Plans"
    if scenario:
        graph, cluster = scenario.get("graph", {}), scenario.get("cluster", {})
        model = graph.get("model", "a graph") if isinstance(graph, Mapping) else graph
        machine = cluster.get("preset") if isinstance(cluster, Mapping) else cluster
        pipeline = (scenario.get("strategy") or {}).get("pipeline") or {}
        samples = 1
        for name in ("dp", "microbatches", "microbatch"):
            samples *= pipeline.get(name, 1)
        # Files are named without their folders.
        model, machine = (name and os.path.basename(name) for name in (model, machine))
        batch = f", {samples:,} samples a step" if pipeline else ""
        question = f"{model} on {machine or 'a cluster'}{batch}"
    if not ranks.order:
        return f"{question}: no plan fits"
    best = ranks.order[0]
    seconds = columns["step_time_s"][best] / PS_PER_SECOND
    schedule = f", {rows[best]['schedule']}" if rows[best].get("pp", 1) > 1 else ""
    return f"{question}: {columns[NAME][best]}{schedule}, {format_seconds(seconds)}"


def _plans_headline(rows: Sequence[Any], counts: Entry | None, ranks: Ranking) -> str:
    if counts is None:
        return f"{len(rows):,} methods, {len(ranks.order):,} with a plan that fits"
    if not ranks.order:
        least = counts.get("least_bytes")
        return "No plan fits" + (f"; each needs {format_bytes(least)} or more" if least else "")
    proved = ": none is faster, as proved" if counts.get("proved_best") else ""
    return f"The best of {counts['plans']:,} plans under this model{proved}"


def _plans_facts(counts: Entry | None) -> Facts:
    if counts is not None:
        yield "legal plans", f"{counts['plans']:,}"
        yield "proved not to fit", f"{counts['does_not_fit']:,}"
        yield "proved slower", f"{counts['slower']:,}"
        yield "simulated", f"{counts['simulated']:,}"
        yield "of them do not fit", f"{counts['simulated_does_not_fit']:,}"
        yield "took", format_seconds(counts["seconds"])


def _why(rows: Sequence[Entry], columns: Entry, ranks: Ranking) -> Iterator[str]:
    """Sentences on the number of plans as fast as the first, and why the runner-up is slower."""
    reasons = [str(rows[i].get("why") or "") for i in ranks.order]
    alike = sum(reason.startswith("as fast") for reason in reasons)
    if alike:
        yield f"{alike:,} of the plans below are as fast as the first."
    slower = [i for i, why in zip(ranks.order, reasons, strict=True) if why.startswith("+")]
    # A difference that rounds to 0 has no reason worth a sentence.
    slower = [i for i in slower if not rows[i]["why"].startswith("+0.0%")]
    if slower:
        loss = rows[slower[0]]["why"].lstrip("+")
        yield f"The runner-up, {columns[NAME][slower[0]]}, takes longer by {loss}."


def _plans_notes(
    rows: Sequence[Entry], counts: Entry, columns: Entry, ranks: Ranking
) -> Iterator[str]:
    """Notes on the error of the model, the plans not shown, the runner-up, and refused plans."""
    # Files of earlier versions have the error of models of similar size, in other keys.
    if "matched" in (counts.get("published") or {}):
        yield str(PublishedError(**counts["published"]))
    if folded := sum(row.get("folded", 0) for row in rows):
        yield (
            f"{folded:,} more plans are within 1 % of one that is shown, which is the simplest of "
            "them."
        )
    tied = sum(row.get("tied") is True for row in rows) - 1
    if "draws" in counts:
        beats = [row["beats_best"] for row in rows]
        yield how_sure(beats, rows[0]["first_in_draws"], counts["draws"]["kendall_tau"])
    elif tied > 0 and "layouts" in counts:
        error = LayoutError(**counts["layouts"])
        yield f"{tied:,} more tie with the first: they are slower by no more than {error}."
    yield from _why(rows, columns, ranks)
    if refused := sum(counts.get("refused", {}).values()):
        yield f"{refused:,} plans could not be simulated, and could be faster: see the reasons."


def _left_out(counts: Entry) -> Table:
    """The combinations that are not shown as plans, by reason."""
    kinds = {"illegal": counts.get("illegal", {}), "refused": counts.get("refused", {})}
    rows = [
        (kind, reason, count)
        for kind, reasons in kinds.items()
        for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])
    ]
    rows.append(("proved not to fit", "a bound of its memory", counts["does_not_fit"]))
    rows.append(("proved slower", "a bound of its time", counts["slower"]))
    shown = tuple(row for row in rows if row[2])
    columns = {"combinations": TEXT, "reason": TEXT, "count": COUNT}
    return Table("Impossible or worse, by reason", columns, shown)


def search_data(value: Entry, source: str) -> Json:
    """The data of the page of a search or a comparison, from the JSON of ``simdev search``."""
    methods = [_alone(value)] if "curve" in value else value["methods"]
    answered = [method for method in methods if method["step_ms"] is not None]
    answered.sort(key=lambda method: (not method["fits"], method["step_ms"]))
    beside = {ONE_DEVICE: value.get("single_step_time_s"),
              PRESENT: value.get("present_step_time_s")}  # fmt: skip
    axes = ("evaluations", "cpu_seconds")
    curves = {
        axis: [
            {"method": method["method"], **method["curves"][axis]}
            for method in answered
            if axis in method["curves"]
        ]
        for axis in axes
    }
    return {
        "page": "search",
        "title": _search_title(answered),
        "source": source,
        "fits": any(method["fits"] for method in answered),
        "headline": _search_headline(answered, beside),
        "facts": [(name, format_seconds(seconds)) for name, seconds in beside.items() if seconds],
        "notes": ["This comparison was interrupted."] if value.get("interrupted") else [],
        "curves": curves,
        "beside": [[name, seconds] for name, seconds in beside.items() if seconds],
        "sheets": tables_json([_ended(methods, beside[ONE_DEVICE]), *_reached(methods)]),
    }


def _alone(value: Entry) -> Json:
    """A single search in the form of a method of a comparison."""
    curve, step = value["curve"], value["step_time_s"]
    steps = [
        seconds if not excess else None
        for seconds, excess in zip(curve["step_time_s"], curve["memory_excess_bytes"], strict=True)
    ]
    bands = dict.fromkeys(("lower_s", "median_s", "upper_s"), steps)
    return {
        "method": value["method"], "step_ms": step * 1e3, "fits": value["feasible"],
        "peak_bytes": max(value["peak_bytes"], default=0), "placing_s": value["cpu_seconds"],
        "evaluations": value["evaluations"], "seeds": 1, "reason": "", "above": "",
        "lower_ms": step * 1e3, "upper_ms": step * 1e3, "reached": [],
        "curves": {
            "evaluations": {"at": curve["evaluation"], **bands},
            "cpu_seconds": {"at": curve["cpu_seconds"], **bands},
        },
    }  # fmt: skip


def _search_title(answered: Sequence[Entry]) -> str:
    question = "Which method finds the shortest step"
    if not answered:
        return f"{question}: none has an answer"
    best = answered[0]
    time = format_seconds(best["step_ms"] / 1e3)
    if len(answered) == 1:
        return f"A search by {best['method']}: {time}, {'fits' if best['fits'] else 'does not fit'}"
    return f"{question}: {best['method']}, {time}"


def _search_headline(answered: Sequence[Entry], beside: Mapping[str, float | None]) -> str:
    if not answered:
        return "No method has an answer"
    seconds = answered[0]["step_ms"] / 1e3
    parts = [
        f"{other / seconds:.2f} times as fast as {name}" for name, other in beside.items() if other
    ]
    return f"{answered[0]['method']}: {', '.join(parts) or format_seconds(seconds)}"


def _ended(methods: Sequence[Entry], single: float | None) -> Table:
    """The final answer of each method, the best first; medians over its seeds."""

    def row(method: Entry) -> tuple[Any, ...]:
        steps = [None if ms is None else ms * 1e9 for ms in
                 (method["step_ms"], method["lower_ms"], method["upper_ms"])]  # fmt: skip
        notes = ["" if method["fits"] else "does not fit", method["reason"]]
        notes += [f"above {method['above']}" if method["above"] else ""]
        gain = single * PS_PER_SECOND / steps[0] if single and steps[0] else None
        figures = (method["peak_bytes"], method["evaluations"], method["placing_s"])
        note = ", ".join(filter(None, notes))
        return (method["method"], *steps, gain, *figures, method["seeds"], note)

    ranked = sorted(methods, key=lambda m: (m["step_ms"] is None, not m["fits"], m["step_ms"] or 0))
    columns = {
        "method": TEXT, "step": TIME, "lower quartile": TIME, "upper quartile": TIME,
        f"times {ONE_DEVICE}": NUMBER, "peak": BYTES, "evaluations": NUMBER, "CPU s": NUMBER,
        "seeds": NUMBER, "note": TEXT,
    }  # fmt: skip
    return Table("What each method ended with", columns, tuple(map(row, ranked)))


def _reached(methods: Sequence[Entry]) -> Iterator[Table]:
    rows = tuple(
        (mark["method"], mark["mark"], float(mark["mark_s"]) * PS_PER_SECOND, mark["evaluations"],
         mark["cpu_seconds"], f"{mark['reached']} of {mark['seeds']}")
        for method in methods
        for mark in method["reached"]
    )  # fmt: skip
    columns = {"method": TEXT, "mark": TEXT, "its step": TIME, "evaluations": NUMBER,
               "CPU s": NUMBER, "seeds that did": TEXT}  # fmt: skip
    yield Table("When each method reached the marks", columns, rows)
