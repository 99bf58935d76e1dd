"""Profiles from the traces of ``torch.profiler`` (Kineto, in Chrome's trace format)."""

from __future__ import annotations

from .reading import TraceProfile, import_trace, trace_profile

__all__ = ["TraceProfile", "import_trace", "trace_profile"]
