"""Small files of other tools: a networkx graph, Chakra's messages, a topology, a log."""

from __future__ import annotations

import networkx as nx

from simdev.costs.collectives import bus_factor

COMP, SEND, RECV, COLL = 4, 5, 6, 7


ALL_REDUCE, REDUCE, ALL_GATHER, GATHER, SCATTER = 0, 1, 2, 3, 4


BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 5, 6, 7, 9


def network() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("a", time_us=12, op_type="matmul", layer=3)
    graph.add_node("b", time="2 ms", param_bytes=10, colocate="pair")
    graph.add_node("c", duration=0.001, phase="backward", colocate="pair", weight=0.5)
    graph.add_edge("a", "b", bytes=100)
    graph.add_edge("a", "c", size="1 kB")
    graph.add_edge("b", "c")
    return graph


def varint(value: int) -> bytes:
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def field(number: int, value: object) -> bytes:
    """A field of a protobuf message, encoded by hand from the format's definition."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(
    number: int,
    kind: int,
    waits: tuple[int, ...] = (),
    us: int = 0,
    name: str = "",
    **attrs: object,
) -> bytes:
    body = field(1, number) + field(2, name or f"n{number}") + field(3, kind)
    body += b"".join(field(5, other) for other in waits)
    # The start and the inputs, which simdev does not read.
    body += field(6, 5) + field(7, us) + field(8, field(1, "[]"))
    for key, value in attrs.items():
        if isinstance(value, bool):
            typed = field(27, int(value))
        elif isinstance(value, int):
            typed = field(9, value)
        elif isinstance(value, list):
            typed = field(10, field(1, b"".join(map(varint, value))))  # packed
        else:
            typed = field(29, value)
        body += field(10, field(1, key) + typed)
    return body


def write(path, *nodes: bytes) -> str:
    messages = (field(1, "0.0.4"), *nodes)
    path.write_bytes(b"".join(varint(len(message)) + message for message in messages))
    return str(path)


def matrix(
    kinds: list[list[str]],
    places: list[str],
    extra: tuple[str, ...] = (),
    titles: str = "CPU Affinity",
) -> str:
    """An output of ``nvidia-smi topo -m``: columns by tabs, X on the diagonal, a legend; the first
    columns are GPUs.
    """
    gpus = len(kinds) - len(extra)
    names = [f"GPU{i}" for i in range(gpus)] + list(extra)
    lines = ["\t\x1b[4m" + "\t".join([*names, titles]) + "\x1b[0m"]
    for i, name in enumerate(names):
        row = [" X " if i == j else kinds[i][j] for j in range(len(names))]
        lines.append("\t".join([name, *row, places[i] if i < len(places) else ""]))
    return "\n".join(
        [
            *lines,
            "",
            "Legend:",
            "",
            "  X    = Self",
            "  NV#  = Connection traversing a bonded set of # NVLinks",
        ]
    )


def alike(count: int, kind: str) -> list[list[str]]:
    return [[kind] * count for _ in range(count)]


def log(
    name="all_reduce",
    ranks=8,
    latency=20.0,
    bus=200.0,
    redop="sum",
    root="-1",
    title=True,
    listed=True,
    tag="",
):
    """An output of nccl-tests whose times lie on a line: ``latency`` in us, ``bus`` in GB/s."""
    collective = {"alltoall": "all_to_all"}.get(name, name)
    factor = float(bus_factor(collective, ranks))
    lines = [f"$ ./build/{name}_perf -b 8 -e 1G -f 2 -g {ranks}"] if title else []
    lines += [
        f"# nThread 1 nGpus {ranks} minBytes 8 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    if listed:
        lines += [
            f"#  Rank {r:2d} Group  0 Pid 371 on host device {r} [0x0f] GPU" for r in range(ranks)
        ]
    lines += [
        "#                                          out-of-place                       in-place",
        (
            "#  size   count   type   redop    root     time   algbw   busbw #wrong     "
            "time   algbw   busbw #wrong"
        ),
        (
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s) "
            "           (us)  (GB/s)  (GB/s)"
        ),
    ]
    for power in range(3, 31):
        size = 2**power
        time = latency + size * factor / bus / 1e3
        row = f"{time:8.2f} {size / time / 1e3:7.2f} {factor * size / time / 1e3:7.2f}"
        lines.append(
            f"{size:12d} {size // 4:12d}     float {redop:>7} {root:>7} {row}      0 {row}    N/A"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.0"]
    return "\n".join(tag + line for line in lines) + "\n"
