"""dnn-partitioning (Tarnawski et al., NeurIPS 2020): splits of the least largest load."""

from __future__ import annotations

from .blocks import Blocks, blocks_of
from .contiguous import Split, contiguous, splits
from .latency import filled, latency, latency_program, least
from .placers import dnn_contiguous, dnn_ip, dnn_latency
from .problem import Problem, problem_of
from .program import integer_program

__all__ = [
    "Blocks",
    "Problem",
    "Split",
    "blocks_of",
    "contiguous",
    "dnn_contiguous",
    "dnn_ip",
    "dnn_latency",
    "filled",
    "integer_program",
    "latency",
    "latency_program",
    "least",
    "problem_of",
    "splits",
]
