"""Makes profiles, and graphs of steps, from traces of ``torch.profiler`` (Kineto, in Chrome's trace
format).
"""

from __future__ import annotations

from .ranks import RankSteps, trace_ranks
from .reading import TraceProfile, import_trace, trace_profile
from .step import TraceStep, trace_step

__all__ = [
    "RankSteps", "TraceProfile", "TraceStep", "import_trace", "trace_profile", "trace_ranks",
    "trace_step",
]  # fmt: skip
