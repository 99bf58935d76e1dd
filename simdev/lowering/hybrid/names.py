"""Names of tasks and buffers, made when somebody asks: a large step has millions of both."""

from __future__ import annotations

from ...models.large.roles import NO_LAYER, PIPELINE, ROLES
from ...taskgraph import BUFFER_KINDS, PERSISTENT, Ints, Lazy
from .program import Program


def task_names(
    program: Program, columns: dict[str, Ints], row: Ints, devices: tuple[str, ...], source: Ints
) -> Lazy:
    """``2F7/layer_13/forward gpu:4``: action, layer, what it is for (numbered, where several are),
    and first device.
    """

    def name(task: int) -> str:
        return f"{row_name(program, columns, int(row[task]))} {devices[source[task]]}"

    return Lazy(len(row), name)


def row_name(program: Program, columns: dict[str, Ints], row: int) -> str:
    """The name of a row, without the device."""
    action, layer, role = (
        int(columns["action"][row]),
        int(columns["layer"][row]),
        int(columns["role"][row]),
    )
    parts = [str(program.schedule.actions[action])] if action >= 0 else []
    if role != PIPELINE:
        parts.append(f"layer_{layer}" if layer != NO_LAYER else "ends")
    # Those before it in the action (or behind the last action) that are for the same thing are
    # counted.
    number, at = 0, row - 1
    while (
        at >= 0 and columns["action"][at] == action and columns["rank"][at] == columns["rank"][row]
    ):
        number += int(columns["role"][at] == role and columns["layer"][at] == layer)
        at -= 1
    parts.append(ROLES[role].replace(" ", "_") + (f"_{number}" if number else ""))
    return "/".join(parts)


def buffer_names(
    program: Program, kind: Ints, filler: Ints, rank: Ints, devices: tuple[str, ...], copies: int
) -> Lazy:
    """``activations of 2F7/layer_13/forward on gpu:4``."""
    columns: dict[str, Ints] = {}

    def name(buffer: int) -> str:
        row, g = divmod(buffer, copies)
        if not columns:
            columns.update(program.columns())
        what, device = BUFFER_KINDS[int(kind[row])], devices[int(rank[row]) * copies + g]
        if filler[row] == PERSISTENT:
            return f"{what} on {device}"
        return f"{what} {row} of {row_name(program, columns, int(filler[row]))} on {device}"

    return Lazy(len(kind) * copies, name)


__all__ = ["buffer_names", "row_name", "task_names"]
