"""What the ops and tensors of a graph weigh on a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import opener
from ...lowering import Prepared
from ...nouns.structure import hands_out_parameters
from ...nouns.taskgraph import Ints

NONE = -1


class Sizes(NamedTuple):
    """Bytes: of each op throughout, of each op while it runs, of each tensor at its producer, and
    of its copies.

    A tensor and its views are one group (NONE: a tensor without views); its last one that is read
    stands for the buffer of all. ``holder`` is the op that lets a tensor go that nothing reads any
    more (NONE: its last reader). ``reserved`` is by device, held whatever runs there.
    """

    persistent: Ints
    running: Ints
    held: Ints
    group: Ints
    sent: Ints
    holder: Ints
    reserved: Ints


open_sizes = opener(Sizes)


def sizes_of(prepared: Prepared) -> Sizes:
    """What the ops and tensors of a graph weigh."""
    ops, reads, rounded = prepared.graph.ops, prepared.reads, prepared.memory.rounded
    pairs = list(zip(reads.producer.tolist(), reads.output.tolist(), strict=True))
    # A view is its tensor's buffer; a control input (output -1) is a buffer of no bytes.
    bases = [
        (p, k) if k < 0 or (view := ops[p].outputs[k].view_of) is None else (p, view)
        for p, k in pairs
    ]
    last = {base: row for row, base in enumerate(bases)}
    viewed = dict.fromkeys(base for base, pair in zip(bases, pairs, strict=True) if base != pair)
    rows = {base: row for row, base in enumerate(viewed)}
    shared = [hands_out_parameters(op) for op in ops]
    # What nobody reads is freed when its op finishes: it counts as what the op needs to run.
    running = [
        rounded(op.workspace_bytes)
        + sum(
            rounded(tensor.bytes)
            for k, tensor in enumerate(op.outputs)
            if not shared[i] and tensor.view_of is None and (i, k) not in last
        )
        for i, op in enumerate(ops)
    ]
    held = np.zeros(len(bases), np.int64)
    for (p, k), row in last.items():
        held[row] = rounded(ops[p].outputs[k].bytes) if k >= 0 and not shared[p] else 0
    columns = (
        [sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes))) for op in ops],
        running,
        held,
        [rows.get(base, NONE) for base in bases],
        list(map(rounded, reads.bytes.tolist())),
        [prepared.holders.get(pair, NONE) for pair in pairs],
        list(map(sum, prepared.reserves)),
    )
    return Sizes(*(np.array(column, np.int64) for column in columns))
