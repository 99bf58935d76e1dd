"""Reading of Chakra's messages: protobuf, each after its length, or the JSON of Chakra's tools.

The schema is built here from the field numbers of mlcommons/chakra,
``schema/protobuf/et_def.proto``, so traces need no package but protobuf's. Times are whole
microseconds: shorter times are 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

from ..files.reading import parse_json
from ..ground.errors import InputError, collecting, prefixed, refuse
from ..ground.units import parse_whole, written
from .imported import Source, require

TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE",
    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE",
    "CHECKPOINT_NODE",
)  # fmt: skip
VALUES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
"""Types of an attribute's value, in the order of their field numbers: 3 and 4 (a list) for the
first, and so on.
"""
NODE = {
    "id": (1, "uint64"),
    "name": (2, "string"),
    # An enum, read as its number, so that types of later versions do not vanish.
    "type": (3, "int32"),
    "ctrl_deps": (4, "repeated uint64"),
    "data_deps": (5, "repeated uint64"),
    "duration_micros": (7, "uint64"),
    "attr": (10, "repeated .chakra.Attribute"),
}
"""The fields of a node that are read, with their numbers and types."""
FEEDER = {"Id": "id", "Name": "name", "NodeType": "type", "runtime": "duration_micros"}
JSONIZER = {"dataDeps": "data_deps", "ctrlDeps": "ctrl_deps", "durationMicros": "duration_micros"}
"""Names of fields in the JSON of Chakra's tools, and in the message."""

MICROSECOND = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a trace: its time in seconds, the ids of the nodes that it waits for, its
    attributes.
    """

    id: int
    name: str
    type: str
    waits: tuple[int, ...]
    seconds: Fraction
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one rank, in the order of its file."""

    file: str
    nodes: tuple[Node, ...]


def is_trace(source: Source) -> bool:
    """Whether a file that is no text begins as a trace: a message with a version or attributes,
    then a node.
    """
    try:
        first, rest = _message(source.head, 0)
    except InputError:
        return False
    # The tags of fields 1 and 2 with values of bytes.
    return len(first) > 1 and first[0] in (0x0A, 0x12) and rest < len(source.head)


def parse_trace(source: Source) -> Trace:
    """The trace of a file. Raises InputError with every problem."""
    objects = _of_json(source.text()) if source.is_text else _of_protobuf(source.content())
    nodes: list[Node] = []
    problems: list[str] = []
    rows: dict[int, int] = {}
    for i, fields in enumerate(objects):
        with collecting(problems, f"nodes[{i}]."):
            node = _node(fields)
            nodes.append(node)
            if rows.setdefault(node.id, i) != i:
                raise InputError(f"id: {node.id} is already that of nodes[{rows[node.id]}]")
    for i, node in enumerate(nodes):
        unknown = [number for number in node.waits if number not in rows]
        problems += [f"nodes[{i}]: no node with the id {number}" for number in unknown]
    if not nodes and not problems:
        problems.append("no nodes: not a Chakra trace")
    refuse(problems)
    return Trace(source.name, tuple(nodes))


def _node(fields: Mapping[str, Any]) -> Node:
    """A node by the fields of the protobuf message. Raises InputError."""
    kind = fields.get("type", TYPES[0])
    if isinstance(kind, int) and 0 <= kind < len(TYPES):
        kind = TYPES[kind]
    if kind not in TYPES[1:]:
        raise InputError(f"type: must be one of {', '.join(TYPES[1:])}, got {written(kind)}")
    waits = [
        whole(name, number)
        for name in ("data_deps", "ctrl_deps")
        for number in _list(name, fields.get(name, ()))
    ]
    return Node(
        whole("id", fields.get("id", 0)),
        str(fields.get("name", "")),
        kind,
        tuple(dict.fromkeys(waits)),
        whole("duration_micros", fields.get("duration_micros", 0)) * MICROSECOND,
        fields.get("attrs", {}),
    )


def whole(name: str, value: Any) -> int:
    """A whole number >= 0, which may be a text: JSON of protobuf writes 64-bit numbers as texts.
    Raises InputError.
    """
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse_whole(value)
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{name}: must be a whole number >= 0, got {written(value)}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name}: must be a list, got {written(value)}")
    return list(value)


def _of_protobuf(data: bytes) -> Iterator[dict[str, Any]]:
    """The nodes of a file of messages; the first message describes the trace itself."""
    require("google.protobuf", "chakra", "a Chakra trace")
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    message = _schema()
    _, position = _message(data, 0)
    while position < len(data):
        start = position
        body, position = _message(data, position)
        try:
            node = message.FromString(body)
        except DecodeError:
            raise InputError(f"byte {start}: not a message of a Chakra node") from None
        fields = {name: getattr(node, name) for name in NODE}
        fields |= {name: list(fields[name]) for name in ("data_deps", "ctrl_deps")}
        yield fields | {"attrs": {attribute.name: _value(attribute) for attribute in node.attr}}


def _value(attribute: Any) -> Any:
    chosen = attribute.WhichOneof("value")
    if chosen is None:
        return None
    value = getattr(attribute, chosen)
    return list(value.values) if chosen.endswith("_list") else value


def _message(data: bytes, position: int) -> tuple[bytes, int]:
    """The message at a position, after its length (a varint), and the position of the next.

    Raises InputError.
    """
    # Written out here: protobuf reads messages after their lengths only since 5.29.
    length, shift, start, byte = 0, 0, position, 0x80
    while byte >= 0x80:
        if position >= len(data) or shift > 28:
            raise InputError(f"byte {start}: no length of a message")
        byte = data[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
    if position + length > len(data):
        left = len(data) - position
        raise InputError(
            f"byte {start}: a message of {length} bytes, but the file ends after {left}"
        )
    return data[position : position + length], position + length


@cache
def _schema() -> Any:
    """The class of a node's messages."""
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(
        name="chakra.proto", package="chakra", syntax="proto3"
    )
    attribute = file.message_type.add(name="Attribute")
    attribute.oneof_decl.add(name="value")
    _add(attribute, "name", 1, "string")
    for i, kind in enumerate(VALUES):
        holder = file.message_type.add(name=f"{kind.capitalize()}List")
        _add(holder, "values", 1, f"repeated {kind}")
        _add(attribute, f"{kind}_val", 3 + 2 * i, kind).oneof_index = 0
        _add(attribute, f"{kind}_list", 4 + 2 * i, f".chakra.{holder.name}").oneof_index = 0
    node = file.message_type.add(name="Node")
    for name, (number, kind) in NODE.items():
        _add(node, name, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("chakra.Node"))


def _add(message: Any, name: str, number: int, kind: str) -> Any:
    """Adds a field of a scalar type or of a message (".package.Name"), repeated or not."""
    *repeated, kind = kind.split()
    entry = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if kind.startswith("."):
        entry.type, entry.type_name = entry.TYPE_MESSAGE, kind
    else:
        entry.type = getattr(entry, f"TYPE_{kind.upper()}")
    return entry


def _of_json(text: str) -> Iterator[dict[str, Any]]:
    """The nodes of the JSON that Chakra's jsonizer writes (one object after another) or that its
    feeder reads.
    """
    for value in _values(text):
        if not isinstance(value, dict):
            raise InputError(f"must hold objects, got {written(value)[:40]}")
        if "workload_graph" in value:
            nodes = _list("workload_graph", value["workload_graph"])
            wrong = [
                f"workload_graph[{i}]: must be an object"
                for i, node in enumerate(nodes)
                if type(node) is not dict
            ]
            refuse(wrong)
            yield from map(_of_feeder, nodes)
        elif "type" in value or "id" in value:
            yield _of_jsonizer(value)


def _of_feeder(node: Mapping[str, Any]) -> dict[str, Any]:
    names = FEEDER | {"data_deps": "data_deps", "ctrl_deps": "ctrl_deps"}
    fields = {names[key]: value for key, value in node.items() if key in names}
    return fields | {"attrs": {key: value for key, value in node.items() if key not in names}}


def _of_jsonizer(node: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node in protobuf's own JSON: camel-case names, 64-bit numbers as texts."""
    attrs = {}
    for i, attribute in enumerate(_list("attr", node.get("attr", ()))):
        if not isinstance(attribute, dict):
            raise InputError(f"attr[{i}]: must be an object")
        # The key is the type: {"name": "comm_size", "int64Val": "8"}.
        texts = ("name", "docString", "doc_string")
        kind, value = next(((k, v) for k, v in attribute.items() if k not in texts), ("", None))
        if isinstance(value, dict):
            value = value.get("values", [])
        if "int" in kind and isinstance(value, str):
            value = whole(f"attr[{i}]", value)
        attrs[str(attribute.get("name"))] = value
    left_out = ("attr", "inputs", "outputs")
    fields = {JSONIZER.get(key, key): node[key] for key in node if key not in left_out}
    return fields | {"attrs": attrs}


def _values(text: str) -> Iterator[Any]:
    """The JSON values of a text, one after another."""
    decoder, position = json.JSONDecoder(parse_int=str), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            _, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            end = len(text)  # the reader below reports the fault
        line = text.count("\n", 0, position) + 1
        with prefixed(f"from line {line}: "):
            value = parse_json(text[position:end])
        yield value
        position = end
