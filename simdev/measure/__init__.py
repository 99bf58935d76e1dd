"""Measures the operators of PyTorch training steps, and reads programs and traces of PyTorch.

``profile_model`` captures a step as a graph, measures its operators and the step itself, and
writes both files. ``import_program`` makes a graph of an exported program. ``import_trace`` makes a
profile of a profiler's trace, ``trace_step`` the graph of the traced step. ``capture_ranks``
captures a distributed script. PyTorch is imported when one of these names is first used; where it
is not installed, that use raises InputError.
"""

from __future__ import annotations

from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from ..ground.errors import InputError, install_line

if TYPE_CHECKING:
    from .profiles import model_names, profile, profile_batches, profile_grid, profile_model
    from .programs import Program, import_program
    from .ranks import capture_ranks
    from .ranks.scripts import step_ends
    from .ranks.settings import parse_setting
    from .traces import (
        RankSteps,
        TraceProfile,
        TraceStep,
        import_trace,
        trace_profile,
        trace_ranks,
        trace_step,
    )  # fmt: skip
    from .transfers import write_measured_cluster

_HOMES = {
    "Program": "programs",
    "RankSteps": "traces",
    "TraceProfile": "traces",
    "TraceStep": "traces",
    "capture_ranks": "ranks",
    "import_program": "programs",
    "import_trace": "traces",
    "model_names": "profiles",
    "profile": "profiles",
    "parse_setting": "ranks.settings",
    "profile_batches": "profiles",
    "profile_grid": "profiles",
    "profile_model": "profiles",
    "step_ends": "ranks.scripts",
    "trace_profile": "traces",
    "trace_ranks": "traces",
    "trace_step": "traces",
    "write_measured_cluster": "transfers",
}
__all__ = [
    "Program",
    "RankSteps",
    "TraceProfile",
    "TraceStep",
    "capture_ranks",
    "import_program",
    "import_trace",
    "model_names",
    "parse_setting",
    "profile",
    "profile_batches",
    "profile_grid",
    "profile_model",
    "step_ends",
    "trace_profile",
    "trace_ranks",
    "trace_step",
    "write_measured_cluster",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if util.find_spec("torch") is None:
        raise InputError(f"measuring needs PyTorch: {install_line('torch')}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
