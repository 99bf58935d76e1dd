"""Broken clusters."""

from __future__ import annotations

import json
from typing import Any

from .case import Bad, bad_of


def bad(name: str, text: str, *lines: str) -> Bad:
    return bad_of("cluster", name, text, lines)


def cluster(
    devices: str = '{"name": "gpu:0"}, {"name": "gpu:1"}', links: str = "", more: str = ""
) -> str:
    return f'{{"version": 1, "devices": [{devices}], "links": [{links}]{more}}}'


def short(devices: str, link: str) -> str:
    return f'{{"version": 1, "devices": [{devices}], "links": {{"all_to_all": {link}}}}}'


def link(**changes: Any) -> str:
    return json.dumps({"ends": ["gpu:0", "gpu:1"], "bandwidth": "5.7 GB/s"} | changes)


CLUSTERS = (
    bad("no_devices", '{"version": 1}', "devices: missing"),
    bad("no_device", '{"version": 1, "devices": []}', "devices: at least one is needed"),
    bad(
        "device_twice",
        cluster('{"name": "gpu:0"}, {"name": "gpu:0"}'),
        'devices[1].name: "gpu:0" is already the name of devices[0]',
    ),
    bad(
        "memory_in_bits",
        cluster('{"name": "gpu:0", "memory": "8 Gbit"}'),
        'devices[0].memory: has the unknown unit "Gbit" in "8 Gbit"; write it like "80 GiB"',
    ),
    bad(
        "negative_memory",
        cluster('{"name": "gpu:0", "memory": -8}'),
        "devices[0].memory: must not be negative, got -8",
    ),
    bad(
        "gap_in_bytes",
        cluster('{"name": "gpu:0", "gap": "5 MB"}'),
        'devices[0].gap: has the unknown unit "MB" in "5 MB"; write it like "5 us"',
    ),
    bad(
        "chunk_without_staging",
        cluster('{"name": "gpu:0", "chunk": "4 MB"}'),
        "devices[0].chunk: only a staging device cuts transfers into chunks",
    ),
    bad(
        "empty_chunk",
        cluster('{"name": "gpu:0", "staging": true, "chunk": 0}'),
        "devices[0].chunk: must be > 0, got 0",
    ),
    bad(
        "staging_one",
        cluster('{"name": "gpu:0", "staging": 1}'),
        "devices[0].staging: must be true or false, got 1",
    ),
    bad(
        "host_of_no_mode",
        cluster(more=', "host": {"mode": "lazy", "ahead": 0, "threads": "core"}'),
        'host.mode: must be one of eager, graph, none, got "lazy"',
        'host.threads: must be one of device, node, got "core"',
        "host.ahead: must be a whole number > 0, got 0",
    ),
    bad(
        "host_of_a_device",
        cluster('{"name": "gpu:0", "host": {"mode": "cuda", "ahead": -1}}'),
        'devices[0].host.mode: must be one of eager, graph, none, got "cuda"',
        "devices[0].host.ahead: must be a whole number > 0, got -1",
    ),
    bad(
        "host_launch_in_bytes",
        cluster(more=', "host": {"launch": "5 MB", "ahed": 3, "ahead": "3"}'),
        'host.ahead: must be a whole number, got "3"',
        'host.launch: has the unknown unit "MB" in "5 MB"; write it like "5 us"',
        'host.ahed: unknown key; did you mean "ahead"?',
    ),
    bad(
        "host_as_a_text",
        cluster(more=', "host": "eager"'),
        'host: must be an object, got "eager"',
    ),
    bad(
        "device_named_like_a_thread",
        cluster('{"name": "thread gpu:0"}'),
        'devices[0].name: "thread gpu:0" reads as a queue; it may not start with send , recv , '
        "channel , link , lane , thread , stream ",
    ),
    bad(
        "device_named_like_the_thread_of_a_node",
        cluster(
            '{"name": "node 0", "host": {}}, {"name": "a", "host": {"threads": "node"}}, '
            '{"name": "node 1", "host": {}}, {"name": "node 0 ", "host": {"threads": "node"}}'
        ),
        'devices[0].name: "node 0" reads as the thread of that node',
    ),
    bad(
        "preset_with_a_host_of_no_mode",
        '{"preset": "dgx-h100", "host": {"mode": "lazy"}, "version": 1}',
        'host.mode: must be one of eager, graph, none, got "lazy"',
    ),
    bad(
        "unknown_queues",
        cluster(more=', "queues": "serial"'),
        'queues: must be one of parallel, device, half-duplex, egress, link, fair, got "serial"',
    ),
    bad(
        "unknown_transfer",
        cluster(more=', "transfer": "always"'),
        'transfer: must be one of once-per-device, per-consumer, multicast, got "always"',
    ),
    bad(
        "link_to_nowhere",
        cluster(links=link(ends=["gpu:0", "gpu:7"])),
        'links[0].ends[1]: no device named "gpu:7"',
    ),
    bad(
        "link_to_itself",
        cluster(links=link(ends=["gpu:0", "gpu:0"])),
        'links[0].ends: "gpu:0" is linked to itself',
    ),
    bad(
        "link_twice",
        cluster(links=link() + ", " + link(ends=["gpu:1", "gpu:0"])),
        'links[1]: "gpu:1" and "gpu:0" are already linked by links[0]',
    ),
    bad(
        "three_ends",
        cluster(links=link(ends=["gpu:0", "gpu:1", "gpu:0"])),
        "links[0].ends: must hold 2 entries, got 3",
    ),
    bad(
        "no_bandwidth", cluster(links='{"ends": ["gpu:0", "gpu:1"]}'), "links[0].bandwidth: missing"
    ),
    bad(
        "zero_bandwidth", cluster(links=link(bandwidth=0)), "links[0].bandwidth: must be > 0, got 0"
    ),
    bad(
        "negative_bandwidth",
        cluster(links=link(bandwidth="-1 GB/s")),
        "links[0].bandwidth: must be > 0, got -1 GB/s",
    ),
    bad(
        "bandwidth_without_second",
        cluster(links=link(bandwidth="5.7 GB")),
        'links[0].bandwidth: has the unknown unit "GB" in "5.7 GB"; write it like "300 GB/s"',
    ),
    bad(
        "bandwidth_a_list",
        cluster(links=link(bandwidth=[1])),
        "links[0].bandwidth: must be a number or a text with a unit, got a list",
    ),
    bad(
        "negative_latency",
        cluster(links=link(latency="-1 us")),
        "links[0].latency: must not be negative, got -1 us",
    ),
    bad(
        "unknown_duplex",
        cluster(links=link(duplex="both")),
        'links[0].duplex: must be one of full, half, simplex, got "both"',
    ),
    bad(
        "hold_latency_text",
        cluster(links=link(hold_latency="yes")),
        'links[0].hold_latency: must be true or false, got "yes"',
    ),
    bad(
        "links_a_text",
        '{"version": 1, "devices": [{"name": "gpu:0"}], "links": "all_to_all"}',
        'links: must be a list, got "all_to_all"',
    ),
    bad(
        "misspelt_short_form",
        '{"version": 1, "devices": [{"name": "gpu:0"}], "links": {"all_to_al": {}}}',
        "links.all_to_all: missing",
        'links.all_to_al: unknown key; did you mean "all_to_all"?',
    ),
    bad(
        "short_form_without_bandwidth",
        '{"version": 1, "devices": [{"name": "gpu:0"}], "links": {"all_to_all": {"latency": 1}}}',
        "links.all_to_all.bandwidth: missing",
    ),
    bad(
        "short_form_simplex",
        short('{"name": "gpu:0"}', '{"bandwidth": 1, "duplex": "simplex"}'),
        'links.all_to_all.duplex: must be one of full, half, got "simplex"',
    ),
    bad(
        "short_form_of_thousands",
        short(", ".join(f'{{"name": "d{i}"}}' for i in range(1500)), '{"bandwidth": 1}'),
        "links.all_to_all: joins 1500 devices by 1124250 links; at most 1000000 are allowed",
    ),
    bad(
        "switch_that_computes_beside_copies",
        '{"version": 1, "devices": [{"name": "a"}, {"name": "s", "kind": "switch", '
        '"beside_copies": 1.1}]}',
        "devices[1].beside_copies: a switch computes nothing beside its copies",
    ),
)
