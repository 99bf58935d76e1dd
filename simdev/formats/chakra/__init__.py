"""Execution traces of MLCommons Chakra: one file a rank, as protobuf messages or as JSON."""

from __future__ import annotations

from .messages import Node, Trace, is_trace, parse_trace
from .steps import traces_scenario

__all__ = ["Node", "Trace", "is_trace", "parse_trace", "traces_scenario"]
