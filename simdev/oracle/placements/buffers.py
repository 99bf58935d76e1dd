"""Exact peaks of memory of a placement: the buffers that lowering would make, from a record."""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable
from ...nouns.taskgraph import Ints
from ..cost import TOO_LONG
from ..peaks import NONE, Events, add_peaks, buffer, clear, open_events
from .problem import PER_CONSUMER, PlacementProblem, Record
from .sizes import Sizes, open_sizes
from .step import open_problem, open_record


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


@jit
def fill_peaks(
    problem: Ints,
    sizes: Ints,
    record: Ints,
    events: Ints,
    devices: Ints,
    peaks: Ints,
    step_ps: int,
) -> int:
    """Write the peak bytes of every device to ``peaks``, of a placement whose run was recorded, and
    took ``step_ps``; returns that, or TOO_LONG.
    """
    p, z, r, v = open_problem(problem), open_sizes(sizes), open_record(record), open_events(events)
    placement, peak = bare(devices), bare(peaks)
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
