"""Step time and memory of a placement: the buffers that lowering would make, from a record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...jit import bare, jit, jitable, opener
from ...lowering import Prepared
from ...structure import hands_out_parameters
from ...taskgraph import Ints
from ..cost import TOO_LONG
from ..peaks import NONE, Events, add_peaks, buffer, clear, open_events
from .bounds import open_bounds
from .hosts import open_hosts
from .problem import PER_CONSUMER, PlacementProblem, Record
from .step import open_problem, open_record, open_work, run_limited


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


@jitable
def tensor_buffers(
    p: PlacementProblem, r: Record, z: Sizes, v: Events, placement: Ints, op: int, tensor: int
) -> None:
    """The buffer of a tensor at its producer, and its copies (whose rows are those of the first
    read).
    """
    end = v.end
    source, freed, count = placement[op], r.finish[op], 0
    row, copies = p.ops + tensor, p.ops + p.tensors
    for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        consumer = p.consumer[e]
        device, finish = placement[consumer], r.finish[consumer]
        if device == source:
            freed = max(freed, finish)
            continue
        freed = max(freed, r.received[e])
        if p.mode == PER_CONSUMER:
            buffer(v, copies + e, device, z.sent[tensor], r.sent[e], finish)
        elif end[device] == NONE:
            v.reads[count], count = e, count + 1
            end[device] = finish
        else:
            end[device] = max(end[device], finish)
    if z.holder[tensor] != NONE:
        freed = max(freed, r.finish[z.holder[tensor]])
    group = z.group[tensor]
    if group != NONE:
        freed = max(freed, v.until[group])
        v.until[group] = freed if z.held[tensor] == 0 else NONE
    buffer(v, row, source, z.held[tensor], r.start[op], freed)
    for k in range(count):
        e = v.reads[k]
        device = placement[p.consumer[e]]
        buffer(v, copies + e, device, z.sent[tensor], r.sent[e], end[device])
        end[device] = NONE


@jitable
def peaks_of(
    p: PlacementProblem,
    z: Sizes,
    r: Record,
    v: Events,
    placement: Ints,
    step_ps: int,
    peak: Ints,
) -> int:
    """Write the peak bytes of every device to ``peak``; returns the step time in ps, or what went
    wrong.
    """
    if step_ps < 0:
        return step_ps
    if not clear(v, p.devices, step_ps):
        return TOO_LONG
    for device in range(p.devices):
        peak[device] = z.reserved[device]
    for op in range(p.ops):
        peak[placement[op]] += z.persistent[op]
        buffer(v, op, placement[op], z.running[op], r.start[op], r.finish[op])
        for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
            tensor_buffers(p, r, z, v, placement, op, tensor)
    add_peaks(v, p.devices, peak)
    return step_ps


@jit
def cost(
    problem: Ints,
    sizes: Ints,
    work: Ints,
    record: Ints,
    bounds: Ints,
    events: Ints,
    devices: Ints,
    peaks: Ints,
    limit: int,
) -> int:
    """The step time in ps of a placement, or FAULT, TOO_LONG or WORSE: it reaches the instant
    ``limit`` (see ``limit_instant``). Writes the peak bytes of every device to ``peaks``.
    """
    p, r, placement = open_problem(problem), open_record(record), bare(devices)
    z, v, least = open_sizes(sizes), open_events(events), open_bounds(bounds)
    step_ps = run_limited(p, open_work(work), r, None, least, placement, limit)
    return peaks_of(p, z, r, v, placement, step_ps, bare(peaks))


@jit
def cost_hosted(
    problem: Ints,
    sizes: Ints,
    work: Ints,
    record: Ints,
    hosts: Ints,
    bounds: Ints,
    events: Ints,
    devices: Ints,
    peaks: Ints,
    limit: int,
) -> int:
    """``cost`` on a cluster with hosts."""
    p, r, placement = open_problem(problem), open_record(record), bare(devices)
    z, v, least = open_sizes(sizes), open_events(events), open_bounds(bounds)
    step_ps = run_limited(p, open_work(work), r, open_hosts(hosts), least, placement, limit)
    return peaks_of(p, z, r, v, placement, step_ps, bare(peaks))
