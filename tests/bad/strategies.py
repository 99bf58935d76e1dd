"""Broken strategies."""

from __future__ import annotations

from .case import Bad, bad_of


def bad(name: str, text: str, *lines: str) -> Bad:
    return bad_of("strategy", name, text, lines)


STRATEGIES = (
    bad("a_list", '["gpu:0"]', "must be an object (a strategy or a placement), got a list"),
    bad(
        "version_zero",
        '{"version": 0, "placement": {}}',
        "version: must be 1, the only one that this simdev reads; got 0",
    ),
    bad(
        "device_a_number",
        '{"version": 1, "placement": {"a": 0}}',
        'placement["a"]: must be text, got 0',
    ),
    bad("bare_with_a_number", '{"a": "gpu:0", "b": 1}', 'placement["b"]: must be text, got 1'),
    bad(
        "misspelt_key",
        '{"version": 1, "placment": {}}',
        'placment: unknown key; did you mean "placement"?',
    ),
    bad(
        "pipeline_a_text",
        '{"pipeline": "1F1B"}',
        'pipeline: must be an object, got "1F1B"; write {"pp": 4, "microbatches": 16}',
    ),
    bad(
        "partition",
        (
            '{"version": 1, "placement": {}, "partition": {"a": "x"}, "sync": {"a": 1}, '
            '"pipeline": {"stages": 2}}'
        ),
        'partition["a"]: must be an object, got "x"',
        "sync.policy: missing",
        "sync.a: unknown key",
        "pipeline.stages: must be a list, got 2",
    ),
    bad(
        "unknown_policy",
        '{"version": 1, "placement": {}, "order": "lifo"}',
        'order.policy: must be one of fifo, program, priority, fixed, got "lifo"',
    ),
    bad(
        "order_a_list",
        '{"version": 1, "placement": {}, "order": ["a", "b"]}',
        "order: must be the name of a policy or an object, got a list",
    ),
    bad(
        "order_without_policy",
        '{"version": 1, "placement": {}, "order": {"priority": {"a": 1}}}',
        "order.policy: missing",
    ),
    bad(
        "priority_a_text",
        (
            '{"version": 1, "placement": {}, "order": {"policy": "priority", "priority": '
            '{"a": "high"}}}'
        ),
        'order.priority["a"]: must be a whole number from -2^53 to 2^53, got "high"',
    ),
    bad(
        "priority_half",
        '{"version": 1, "placement": {}, "order": {"policy": "priority", "priority": {"a": 0.5}}}',
        'order.priority["a"]: must be a whole number from -2^53 to 2^53, got 0.5',
    ),
    bad(
        "priority_beyond_all",
        (
            '{"version": 1, "placement": {}, "order": {"policy": "priority", "priority": '
            '{"a": 1000000000000000000000}}}'
        ),
        (
            'order.priority["a"]: must be a whole number from -2^53 to 2^53, got '
            "1000000000000000000000"
        ),
    ),
    bad(
        "priority_under_fifo",
        '{"version": 1, "placement": {}, "order": {"policy": "fifo", "priority": {"a": 1}}}',
        'order.priority: goes with the policy "priority", not with "fifo"',
    ),
    bad(
        "sequence_under_priority",
        (
            '{"version": 1, "placement": {}, "order": {"policy": "priority", "sequence": '
            '{"gpu:0": ["a"]}}}'
        ),
        'order.sequence: goes with the policy "fixed", not with "priority"',
    ),
    bad(
        "sequence_a_text",
        '{"version": 1, "placement": {}, "order": {"policy": "fixed", "sequence": {"gpu:0": "a"}}}',
        'order.sequence["gpu:0"]: must be a list, got "a"',
    ),
)
