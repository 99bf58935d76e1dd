"""Which nodes of which ranks are one collective, and which receive what which others send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from .messages import Node, Trace, whole

COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all",
    "reduce_scatter", "reduce_scatter", "barrier",
)  # fmt: skip
"""By the number of ``comm_type`` (et_def.proto, CollectiveCommType)."""

Ranked = tuple[int, Node]
"""A node and the rank whose trace has it."""


class Meetings:
    """``of``: (rank, node id) of a collective -> its nodes on all its ranks; ``sender``: (rank,
    node id) of a receive -> that of its send; ``problems``: where traces do not fit together.
    """

    def __init__(self, ranks: Sequence[Trace]) -> None:
        self.of: dict[tuple[int, int], list[Ranked]] = {}
        self.sender: dict[tuple[int, int], tuple[int, int]] = {}
        self.problems = [*self._collectives(ranks), *self._pairs(ranks)]

    def _collectives(self, ranks: Sequence[Trace]) -> Iterator[str]:
        """The k-th collective of a group on each of its ranks is the same one."""
        groups: defaultdict[str, defaultdict[int, list[Node]]]
        groups = defaultdict(lambda: defaultdict(list))
        for rank, trace in enumerate(ranks):
            for node in filter(is_collective, trace.nodes):
                groups[_group(node)][rank].append(node)
        for group, members in groups.items():
            counts = {rank: len(nodes) for rank, nodes in members.items()}
            few, many = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            if not group and len(members) < len(ranks):
                silent = next(rank for rank in range(len(ranks)) if rank not in members)
                yield f"rank {silent}: takes no part in the collectives of all ranks"
            elif counts[few] < counts[many]:
                title = f'of the group "{group}"' if group else "of all ranks"
                yield (
                    f"rank {few}: {counts[few]} collectives {title}, but {counts[many]} on rank "
                    f"{many}"
                )
            else:
                for nodes in zip(*members.values(), strict=True):
                    meeting = list(zip(members, nodes, strict=True))
                    self.of |= {(rank, node.id): meeting for rank, node in meeting}
                    yield from _meeting_problems(meeting)

    def _pairs(self, ranks: Sequence[Trace]) -> Iterator[str]:
        """The k-th send from one rank to another under a tag belongs to the k-th receive of it."""
        # Sends and receives by (source, destination, tag).
        channels: defaultdict[tuple[int, int, int], tuple[list[Any], list[Any]]]
        channels = defaultdict(lambda: ([], []))
        for rank, trace in enumerate(ranks):
            for node in trace.nodes:
                tag = count_of(node, "comm_tag", 0)
                if node.type == "COMM_SEND_NODE":
                    sends, _ = channels[rank, count_of(node, "comm_dst", -1), tag]
                    sends.append((rank, node.id))
                elif node.type == "COMM_RECV_NODE":
                    _, receives = channels[count_of(node, "comm_src", -1), rank, tag]
                    receives.append((rank, node.id))
        for (source, end, tag), (sends, receives) in channels.items():
            if len(sends) != len(receives):
                yield (
                    f"{len(sends)} sends from rank {source} to {end} with tag {tag}, "
                    f"{len(receives)} receives"
                )
            self.sender |= dict(zip(receives, sends, strict=False))


def is_host(node: Node) -> bool:
    """Whether a node runs on the CPU of its rank."""
    return bool(node.attrs.get("is_cpu_op")) and node.type in ("COMP_NODE", "COMM_COLL_NODE")


def is_collective(node: Node) -> bool:
    """Whether a node communicates; the host's call of a collective only launches it."""
    return node.type == "COMM_COLL_NODE" and not (is_host(node) and "comm_size" not in node.attrs)


def _meeting_problems(meeting: Sequence[Ranked]) -> Iterator[str]:
    (first, root), *others = meeting
    kind, size = call(root)
    if kind is None:
        yield f"rank {first}, node {root.id}: comm_type: must be from 0 to {len(COLLECTIVES) - 1}"
    for rank, node in others:
        if call(node) != (kind, size):
            other, bytes_ = call(node)
            yield (
                f"rank {rank}, node {node.id}: {other} of {bytes_} bytes, but {kind} of {size} "
                f"bytes on rank {first}"
            )


def call(node: Node) -> tuple[str | None, int]:
    """A collective's kind (None: unknown) and size in bytes."""
    kind = node.attrs.get("comm_type", 0)
    is_known = isinstance(kind, int) and 0 <= kind < len(COLLECTIVES)
    return (COLLECTIVES[kind] if is_known else None), count_of(node, "comm_size", 0)


def _group(node: Node) -> str:
    """The name of a collective's group; "" is that of all ranks."""
    ranks = node.attrs.get("ranks")
    if isinstance(ranks, list) and ranks:
        return ",".join(map(str, ranks))
    return str(node.attrs.get("pg_name") or node.attrs.get("comm_group") or "")


def count_of(node: Node, name: str, default: int | None = None) -> int:
    """A whole number of a node's attributes. Raises InputError where it is missing or is none."""
    value: Any = node.attrs.get(name, default)
    # A default may be a number that no trace can have.
    return default if value == default and default is not None else whole(name, value)
