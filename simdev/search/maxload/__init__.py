"""dnn-partitioning (Tarnawski et al., NeurIPS 2020): splits of the least largest load."""

from __future__ import annotations

from .blocks import Blocks, blocks_of
from .contiguous import Split, contiguous
from .placers import dnn_contiguous, dnn_ip
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
    "integer_program",
    "problem_of",
]
