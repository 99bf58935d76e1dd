"""Broken graphs, and broken JSON of any kind."""

from __future__ import annotations

from .case import Bad, bad_of


def bad(name: str, text: str, *lines: str) -> Bad:
    return bad_of("graph", name, text, lines)


def graph(*ops: str) -> str:
    return f'{{"version": 1, "ops": [{", ".join(ops)}]}}'


GRAPHS = (
    bad("empty_file", "", "empty"),
    bad("blank_file", " \n\t", "empty"),
    bad("not_json", "ops: []", "line 1, column 1: not JSON: expecting value"),
    bad("cut_off", '{"version": 1, "ops": [', "line 1, column 24: not JSON: expecting value"),
    bad("two_values", '{"version": 1, "ops": []} {}', "line 1, column 27: not JSON: extra data"),
    bad(
        "single_quotes",
        "{'version': 1}",
        "line 1, column 2: not JSON: expecting property name enclosed in double quotes",
    ),
    bad(
        "python_constant",
        '{"version": 1, "ops": [], "name": None}',
        "line 1, column 35: not JSON: expecting value",
    ),
    bad(
        "unterminated_text",
        '{"version": 1, "name": "x',
        "line 1, column 24: not JSON: unterminated string",
    ),
    bad(
        "control_character",
        '{"version": 1, "name": "a\nb", "ops": []}',
        "line 1, column 26: not JSON: invalid control character",
    ),
    bad("nan", graph('{"name": "a", "time": NaN}'), "ops[0].time: NaN is not a number in JSON"),
    bad(
        "infinities",
        graph('{"name": "a", "time": Infinity, "param_bytes": -Infinity}'),
        "ops[0].time: Infinity is not a number in JSON",
        "ops[0].param_bytes: -Infinity is not a number in JSON",
    ),
    bad(
        "nan_in_attributes",
        graph('{"name": "a", "attrs": {"eps": [1, NaN]}}'),
        'ops[0].attrs["eps"][1]: NaN is not a number in JSON',
    ),
    bad(
        "host_time_negative",
        graph('{"name": "a", "host_time": "-1 us", "launches": -1}'),
        "ops[0].host_time: must not be negative, got -1 us",
    ),
    bad(
        "host_time_of_a_kind",
        graph('{"name": "a", "host_time": {"gpu": "5 MB"}, "blocks_host": 1, "launches": 1.5}'),
        'ops[0].host_time["gpu"]: has the unknown unit "MB" in "5 MB"; write it like "5 us"',
        "ops[0].launches: must be a whole number, got 1.5",
        "ops[0].blocks_host: must be true or false, got 1",
    ),
    bad(
        "host_fields_null",
        graph('{"name": "a", "host_time": null, "blocks_host": null, "launches": null}'),
        "ops[0].host_time: must be a number or a text with a unit, got null",
        "ops[0].launches: must be a whole number, got null",
        "ops[0].blocks_host: must be true or false, got null",
    ),
    bad(
        "launches_negative",
        graph('{"name": "a", "launches": -1}'),
        "ops[0].launches: must be a whole number, got -1",
    ),
    bad(
        "overflowing_number",
        graph('{"name": "a", "time": 1e999}'),
        "ops[0].time: out of range: 1e999",
    ),
    bad(
        "absurd_exponent",
        graph('{"name": "a", "time": 1e-99999999999999999999}'),
        "ops[0].time: out of range: 1e-99999999999999999999",
    ),
    bad(
        "endless_integer",
        graph('{"name": "a", "param_bytes": %s}' % ("9" * 5000)),
        "ops[0].param_bytes: a number of more than 400 digits",
    ),
    bad(
        "endless_decimal",
        graph('{"name": "a", "time": 0.%s}' % ("9" * 500)),
        "ops[0].time: a number of more than 400 digits",
    ),
    bad(
        "key_twice",
        '{"version": 1, "ops": [{"name": "a", "time": 1, "time": 2}], "ops": []}',
        'the key "ops" stands twice',
    ),
    bad(
        "key_twice_inside",
        graph('{"name": "a", "time": 1, "time": 2}'),
        'ops[0]: the key "time" stands twice',
    ),
    bad(
        "too_deep",
        graph('{"name": "a", "attrs": {"x": ' + "[" * 80 + "]" * 80 + "}}"),
        "nested more than 64 levels deep",
    ),
    bad("far_too_deep", "[" * 100000, "nested more than 64 levels deep"),
    bad(
        "half_a_character",
        graph('{"name": "a\\ud800"}'),
        "ops[0].name: holds half a character (a lone surrogate)",
    ),
    bad(
        "half_a_character_in_a_key",
        graph('{"name": "a", "attrs": {"\\udc00": 1}}'),
        "ops[0].attrs: a key holds half a character (a lone surrogate)",
    ),
    bad("a_list", "[]", "must be an object (a graph), got a list"),
    bad("a_text", '"graph"', 'must be an object (a graph), got "graph"'),
    bad("no_version", '{"ops": []}', 'version: missing; write "version": 1'),
    bad(
        "version_two",
        '{"version": 2, "operators": []}',
        "version: must be 1, the only one that this simdev reads; got 2",
    ),
    bad(
        "version_text",
        '{"version": "1", "ops": []}',
        'version: must be 1, the only one that this simdev reads; got "1"',
    ),
    bad(
        "version_true",
        '{"version": true, "ops": []}',
        "version: must be 1, the only one that this simdev reads; got true",
    ),
    bad("no_ops", '{"version": 1, "name": "g"}', "ops: missing"),
    bad("ops_an_object", '{"version": 1, "ops": {"a": {}}}', "ops: must be a list, got an object"),
    bad("op_without_name", graph('{"kind": "matmul"}'), "ops[0].name: missing"),
    bad("name_a_number", graph('{"name": 7}'), "ops[0].name: must be text, got 7"),
    bad(
        "empty_name",
        graph('{"name": ""}'),
        "ops[0].name: must be 1 to 256 printable characters, got ''",
    ),
    bad(
        "long_name",
        graph('{"name": "%s"}' % ("a" * 300)),
        (
            "ops[0].name: must be 1 to 256 printable characters, got "
            "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
        ),
    ),
    bad(
        "unprintable_name",
        graph('{"name": "a\\u001b[31m"}'),
        "ops[0].name: must be 1 to 256 printable characters, got 'a\\x1b[31m'",
    ),
    bad(
        "name_like_a_tensor",
        graph('{"name": "a:0"}'),
        (
            'ops[0].name: "a:0" reads as a tensor or a control input: it may not end in '
            '":0" or start with "^"'
        ),
    ),
    bad(
        "name_like_a_control_input",
        graph('{"name": "^a"}'),
        (
            'ops[0].name: "^a" reads as a tensor or a control input: it may not end in '
            '":0" or start with "^"'
        ),
    ),
    bad(
        "name_twice",
        graph('{"name": "a"}', '{"name": "b"}', '{"name": "a"}'),
        'ops[2].name: "a" is already the name of ops[0]',
    ),
    bad(
        "misspelt_key",
        graph('{"name": "a", "ouputs": []}'),
        'ops[0].ouputs: unknown key; did you mean "outputs"?',
    ),
    bad("unknown_key", graph('{"name": "a", "zzz": 1}'), "ops[0].zzz: unknown key"),
    bad(
        "dangling_input",
        graph('{"name": "a", "inputs": ["conv_9"]}'),
        'ops[0].inputs[0]: no op named "conv_9"',
    ),
    bad(
        "missing_output",
        graph('{"name": "a", "outputs": [{"bytes": 1}]}', '{"name": "b", "inputs": ["a:1"]}'),
        'ops[1].inputs[0]: op "a" has 1 outputs, none with index 1',
    ),
    bad(
        "input_without_outputs",
        graph('{"name": "a"}', '{"name": "b", "inputs": ["a"]}'),
        'ops[1].inputs[0]: op "a" has 0 outputs, none with index 0',
    ),
    bad(
        "dangling_control_input",
        graph('{"name": "a", "control_inputs": ["b"]}'),
        'ops[0].control_inputs[0]: no op named "b"',
    ),
    bad(
        "input_a_number",
        graph('{"name": "a", "inputs": [0]}'),
        "ops[0].inputs[0]: must be text, got 0",
    ),
    bad(
        "reads_itself",
        graph('{"name": "a", "inputs": ["a"], "outputs": [{"bytes": 1}]}'),
        "ops: cycle: a -> a",
    ),
    bad(
        "cycle",
        graph(
            '{"name": "a", "control_inputs": ["c"]}',
            '{"name": "b", "control_inputs": ["a"]}',
            '{"name": "c", "control_inputs": ["b"]}',
        ),
        "ops: cycle: b -> c -> a -> b",
    ),
    bad(
        "negative_bytes",
        graph('{"name": "a", "outputs": [{"bytes": -1}]}'),
        "ops[0].outputs[0].bytes: must be a whole number of bytes from 0 to 2^60, got -1",
    ),
    bad(
        "half_a_byte",
        graph('{"name": "a", "param_bytes": 0.5}'),
        "ops[0].param_bytes: must be a whole number of bytes, got 0.5",
    ),
    bad(
        "true_bytes",
        graph('{"name": "a", "param_bytes": true}'),
        "ops[0].param_bytes: must be a number or a text with a unit, got true",
    ),
    bad(
        "too_many_bytes",
        graph('{"name": "a", "grad_bytes": 1152921504606846977}'),
        (
            "ops[0].grad_bytes: must be a whole number of bytes from 0 to 2^60, got "
            "1152921504606846977"
        ),
    ),
    bad(
        "unknown_unit",
        graph('{"name": "a", "workspace_bytes": "4 kiB"}'),
        'ops[0].workspace_bytes: has the unknown unit "kiB" in "4 kiB"; write it like "80 GiB"',
    ),
    bad(
        "tensor_without_bytes",
        graph('{"name": "a", "outputs": [{"shape": [2]}]}'),
        "ops[0].outputs[0].bytes: missing",
    ),
    bad(
        "negative_extent",
        graph('{"name": "a", "outputs": [{"bytes": 1, "shape": [2, -1]}]}'),
        "ops[0].outputs[0].shape: must hold whole numbers >= 0, got [2, -1]",
    ),
    bad(
        "extent_a_text",
        graph('{"name": "a", "outputs": [{"bytes": 1, "shape": ["N"]}]}'),
        'ops[0].outputs[0].shape[0]: must be a whole number, got "N"',
    ),
    bad(
        "unknown_phase",
        graph('{"name": "a", "phase": "fwd"}'),
        'ops[0].phase: must be one of forward, backward, update, got "fwd"',
    ),
    bad(
        "negative_time",
        graph('{"name": "a", "time": -1e-6}'),
        "ops[0].time: must not be negative, got -0.000001",
    ),
    bad(
        "time_true",
        graph('{"name": "a", "time": true}'),
        "ops[0].time: must be a number or a text with a unit, got true",
    ),
    bad(
        "time_without_number",
        graph('{"name": "a", "time": "us"}'),
        'ops[0].time: must be a number or a string like "5 us", got "us"',
    ),
    bad(
        "time_beyond_all",
        graph('{"name": "a", "time": "1e9 s"}'),
        "ops[0].time: is larger than 53 days: 1e9 s",
    ),
    bad(
        "time_by_device",
        graph('{"name": "a", "time": {"gpu": "12 us", "cpu": "fast", "my tpu": -1}}'),
        'ops[0].time["cpu"]: must be a number or a string like "5 us", got "fast"',
        'ops[0].time["my tpu"]: must not be negative, got -1',
    ),
    bad(
        "attributes_a_list",
        graph('{"name": "a", "attrs": []}'),
        "ops[0].attrs: must be an object, got a list",
    ),
    bad(
        "several_at_once",
        graph('{"name": "a", "time": "x", "kind": 1}', "7", '{"name": "b", "inputs": "a"}'),
        "ops[0].kind: must be text, got 1",
        'ops[0].time: must be a number or a string like "5 us", got "x"',
        "ops[1]: must be an object, got 7",
        'ops[2].inputs: must be a list, got "a"',
    ),
)
