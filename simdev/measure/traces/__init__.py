"""Profiles, and graphs of steps, from the traces of ``torch.profiler`` (Kineto, in Chrome's trace
format).
"""

from __future__ import annotations

from .reading import TraceProfile, import_trace, trace_profile
from .step import TraceStep, trace_step

__all__ = ["TraceProfile", "TraceStep", "import_trace", "trace_profile", "trace_step"]
