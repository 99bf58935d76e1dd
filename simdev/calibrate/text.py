"""A Calibration as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ..report.table import NUMBER, TEXT, Table, shorten, table_text
from ..units import format_bandwidth, format_seconds
from .calibration import Calibration, Quality
from .parameter import Parameter

RESIDUALS_SHOWN = 10
NAMES_SHOWN = 3


def calibration_text(calibration: Calibration) -> str:
    """The parameters, how well they tell the trace, the largest residuals, and what was left
    out.
    """
    tables = [
        _parameter_table(calibration),
        _quality_table(calibration),
        _residual_table(calibration),
    ]
    parts = [_headline(calibration), *(table_text(table) for table in tables if table.rows)]
    return "\n\n".join([*parts, *_notes(calibration)])


def _headline(calibration: Calibration) -> str:
    steps = calibration.steps_s
    mean = sum(steps) / len(steps)
    several = f", mean of {len(steps)} steps" if len(steps) > 1 else ""
    return (
        f"Measured step {format_seconds(mean)}{several}; simulated "
        f"{format_seconds(calibration.before_s)} before, "
        f"{format_seconds(calibration.fitted_s)} as fitted ({_off(calibration.fitted_s, mean)})"
    )


def _off(value: float, measured: float) -> str:
    return f"{value / measured - 1:+.2%}" if measured else "no length"


def _number(quantity: str, value: Fraction | float) -> str:
    if quantity == "efficiency":
        return f"{float(value):.4g}"
    return (
        format_bandwidth(float(value)) if quantity == "bandwidth" else format_seconds(float(value))
    )


def _parameter_table(calibration: Calibration) -> Table:
    body = tuple(_parameter_row(one) for one in calibration.parameters if one.fitted)
    numbers = dict.fromkeys(("before", "fitted", "std. error", "spans"), NUMBER)
    return Table("Fitted", {"quantity": TEXT, "of": TEXT} | numbers, body, shown=len(body))


def _parameter_row(one: Parameter) -> tuple[str, ...]:
    error = "" if one.error is None else _number(one.quantity, one.error)
    values = (_number(one.quantity, value) for value in (one.before, one.value))
    return one.quantity, shorten(one.of, 40), *values, error, f"{one.count:,}"


def _quality_table(calibration: Calibration) -> Table:
    body = tuple(_quality_row(one) for one in calibration.qualities)
    numbers = (
        "count",
        "RMS before",
        "RMS fitted",
        "relative before",
        "relative fitted",
        "R2",
    )
    columns = {"durations of": TEXT} | dict.fromkeys(numbers, NUMBER)
    return Table("Residuals", columns, body)


def _quality_row(one: Quality) -> tuple[str, ...]:
    r2 = one.r2[1]
    return (
        f"{one.kind}s",
        f"{one.count:,}",
        *map(format_seconds, one.rms),
        *(f"{value:.2%}" for value in one.relative),
        "" if r2 is None else f"{r2:.4f}",
    )


def _residual_table(calibration: Calibration) -> Table:
    largest = sorted(calibration.residuals, key=lambda one: -abs(one.seconds))[:RESIDUALS_SHOWN]
    body = tuple(
        (
            shorten(one.task, 40),
            format_seconds(one.measured),
            format_seconds(one.fitted),
            format_seconds(one.seconds),
            _off(one.fitted, one.measured),
        )
        for one in largest
        if one.seconds
    )
    numbers = dict.fromkeys(("measured", "fitted", "residual", "off"), NUMBER)
    return Table("The largest of them", {"task": TEXT} | numbers, body)


def _notes(calibration: Calibration) -> Iterator[str]:
    for one in calibration.parameters:
        if not one.fitted:
            yield (
                f"{one.quantity} of {one.of} (stays {_number(one.quantity, one.value)}): "
                f"{one.note}."
            )
    if calibration.overlap:
        yield (
            f"{calibration.overlap:.1%} of the spans begin before the one before them "
            "on their queue has ended: where "
            "waits are told apart, ends of spans are start + duration as fitted."
        )
    lists = (
        ("Names in the trace that are no task", calibration.strangers),
        ("Tasks that the trace lacks", calibration.absent),
        (
            "Tasks that the trace holds more or less often than the others, left out",
            calibration.uneven,
        ),
    )
    for told, names in lists:
        if names:
            shown = ", ".join(shorten(name) for name in names[:NAMES_SHOWN])
            yield f"{told}: {len(names):,} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
