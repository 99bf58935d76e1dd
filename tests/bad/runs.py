"""Broken runs, made by edits of a valid run; an edit is a path and a new value."""

from __future__ import annotations

import copy
import json
from typing import Any

from .case import Bad, bad_of

DELETE = object()
Edit = tuple[str, Any]


def bad(name: str, *parts: Edit | str) -> tuple[str, tuple[Edit, ...], tuple[str, ...]]:
    edits = tuple(part for part in parts if isinstance(part, tuple))
    return name, edits, tuple(part for part in parts if isinstance(part, str))


def edited(run: Any, edits: tuple[Edit, ...]) -> Any:
    """A copy of a run with every edit applied; the empty path replaces the whole run."""
    run = copy.deepcopy(run)
    for path, value in edits:
        if not path:
            return value
        *front, last = path.split(".")
        part = run
        for key in front:
            part = part[int(key) if isinstance(part, list) else key]
        if value is DELETE:
            del part[last]
        else:
            part[int(last) if isinstance(part, list) else last] = value
    return run


def broken_runs(valid: Any) -> tuple[Bad, ...]:
    """Every broken run, made from a run of two ops on two devices."""
    return tuple(
        bad_of("run", name, json.dumps(edited(valid, edits)), lines) for name, edits, lines in RUNS
    )


RUNS = (
    bad(
        "nothing",
        ("", {}),
        'version: missing; write "version": 1',
        "engine: missing",
        "devices: missing",
        "links: missing",
        "resources: missing",
        "tasks: missing",
        "buffers: missing",
        "spans: missing",
    ),
    bad("no_version", ("version", DELETE), 'version: missing; write "version": 1'),
    bad(
        "version_two",
        ("version", 2),
        "version: must be 1, the only one that this simdev reads; got 2",
    ),
    bad("no_tasks", ("tasks", DELETE), "tasks: missing"),
    bad("missing_column", ("tasks.lag_ps", DELETE), "tasks.lag_ps: missing"),
    bad("unknown_column", ("tasks.lag", []), 'tasks.lag: unknown key; did you mean "lag_ps"?'),
    bad("key_that_is_known_elsewhere", ("name", "r"), "name: unknown key"),
    bad(
        "short_column", ("tasks.duration_ps", [1]), "tasks.duration_ps: must hold 3 entries, got 1"
    ),
    bad("ids_out_of_order", ("tasks.id", [1, 0, 2]), "tasks.id: must count 0, 1, 2, ..."),
    bad(
        "span_missing",
        ("spans.id", [0, 1]),
        ("spans.start_ps", [0, 0]),
        ("spans.finish_ps", [0, 0]),
        "spans.id: must hold 3 entries, got 2",
        "spans.start_ps: must hold 3 entries, got 2",
        "spans.finish_ps: must hold 3 entries, got 2",
        "spans.id: must name every task once",
    ),
    bad("span_twice", ("spans.id", [0, 1, 1]), "spans.id: must name every task once"),
    bad(
        "half_a_picosecond",
        ("spans.start_ps.1", 0.5),
        "spans.start_ps[1]: must be a whole number, got 0.5",
    ),
    bad(
        "start_true",
        ("spans.start_ps.0", True),
        "spans.start_ps[0]: must be a whole number, got true",
    ),
    bad(
        "start_beyond_all",
        ("spans.start_ps.0", 2**63),
        (
            "spans.start_ps[0]: must be from -4611686018427387904 to 4611686018427387904, "
            "got 9223372036854775808"
        ),
    ),
    bad(
        "negative_duration",
        ("tasks.duration_ps.1", -1),
        "tasks.duration_ps[1]: must be from 0 to 4611686018427387904, got -1",
    ),
    bad(
        "duration_beyond_all",
        ("tasks.duration_ps.0", 2**62),
        ("tasks.duration_ps.1", 2**62),
        "tasks: all times together exceed 53 days",
    ),
    bad(
        "unknown_resource",
        ("tasks.resources.0", [99]),
        "tasks.resources[0][0]: must be from 0 to 3, got 99",
    ),
    bad(
        "unknown_successor",
        ("tasks.successors.0", [99, -1]),
        "tasks.successors[0][0]: must be from 0 to 2, got 99",
        "tasks.successors[0][1]: must be from 0 to 2, got -1",
    ),
    bad("task_of_no_op", ("tasks.op.1", 7), "tasks.op[1]: must be from -1 to 2, got 7"),
    bad("unknown_link", ("tasks.links.2", [0]), "tasks.links[2][0]: there is none to name, got 0"),
    bad("unknown_source", ("tasks.source.0", 2), "tasks.source[0]: must be from 0 to 1, got 2"),
    bad(
        "no_devices",
        ("devices.name", []),
        ("devices.capacity_bytes", []),
        "tasks.source[0]: there is none to name, got 0",
        "tasks.source[1]: there is none to name, got 1",
        "tasks.source[2]: there is none to name, got 0",
        "tasks.destination[0]: there is none to name, got 0",
        "tasks.destination[1]: there is none to name, got 1",
        "tasks.destination[2]: there is none to name, got 1",
        "resources.device[0]: must be from -1 to -1, got 0",
        "resources.device[1]: must be from -1 to -1, got 1",
        "resources.device[2]: must be from -1 to -1, got 0",
        "resources.device[3]: must be from -1 to -1, got 1",
        "buffers.device[0]: there is none to name, got 0",
        "buffers.device[1]: there is none to name, got 1",
    ),
    bad("device_twice", ("devices.name", ["gpu:0", "gpu:0"]), "devices.name: a name stands twice"),
    bad(
        "negative_capacity",
        ("devices.capacity_bytes.0", -5),
        "devices.capacity_bytes[0]: must be from 0 to 1152921504606846976, got -5",
    ),
    bad(
        "unknown_policy",
        ("resources.policy.0", "lifo"),
        'resources.policy[0]: must be one of fifo, priority, fixed, got "lifo"',
    ),
    bad(
        "task_twice_in_a_sequence",
        ("resources.policy.0", "fixed"),
        ("resources.sequence.0", [0, 0]),
        'resources["gpu:0"]: a task stands twice in the sequence',
    ),
    bad(
        "unknown_kind_of_buffer",
        ("buffers.kind.0", "stuff"),
        "buffers.kind[0]: must be one of parameters, gradients, optimizer state, "
        "activations, received copies, "
        'workspace, staging, context, communication, got "stuff"',
    ),
    bad(
        "unknown_filler",
        ("buffers.filler.0", -2),
        "buffers.filler[0]: must be from -1 to 2, got -2",
    ),
    bad(
        "unknown_reader",
        ("buffers.readers.0", [7]),
        "buffers.readers[0][0]: must be from 0 to 2, got 7",
    ),
    bad(
        "buffer_beyond_all",
        ("buffers.bytes.0", 2**61),
        "buffers.bytes[0]: must be from 0 to 1152921504606846976, got 2305843009213693952",
    ),
    bad(
        "unprintable_name",
        ("tasks.name.0", "a\x07"),
        'tasks.name[0]: must be printable text, got "a\\u0007"',
    ),
    bad(
        "bandwidth_zero",
        ("links", {"name": ["l"], "bandwidth": [0]}),
        "links.bandwidth[0]: must be bytes per second, from 0 to 2^60, got 0",
    ),
    bad(
        "bandwidth_a_text",
        ("links", {"name": ["l"], "bandwidth": ["1 GB/s"]}),
        'links.bandwidth[0]: must be bytes per second, from 0 to 2^60, got "1 GB/s"',
    ),
    bad(
        "claim_a_text", ("step_time_ps", "long"), 'step_time_ps: must be a whole number, got "long"'
    ),
    bad("memory_a_list", ("memory", []), "memory: must be an object, got a list"),
    bad(
        "memory_without_peak",
        ("memory.gpu:0.peak_bytes", DELETE),
        'memory["gpu:0"].peak_bytes: missing',
    ),
)
