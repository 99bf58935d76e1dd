"""Measuring the operators of PyTorch training steps.

``profile_model`` is the front door: it captures a step as a graph, measures its operators and the step itself, and
writes both files. PyTorch is imported when something is measured, not before.
"""

from .front import model_names, profile_grid, profile_model

__all__ = ["model_names", "profile_grid", "profile_model"]
