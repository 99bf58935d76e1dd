"""Measuring the operators of PyTorch training steps, and reading what PyTorch wrote itself.

``profile_model`` is the front door: it captures a step as a graph, measures its operators and the
step itself, and writes both files. ``import_program`` makes a graph of an exported program,
``import_trace`` a profile of a profiler's trace. PyTorch is imported when something is measured or
read, not before.
"""

from .exported import Program, import_program
from .front import model_names, profile_grid, profile_model
from .traces import TraceProfile, import_trace

__all__ = [
    "Program",
    "TraceProfile",
    "import_program",
    "import_trace",
    "model_names",
    "profile_grid",
    "profile_model",
]
