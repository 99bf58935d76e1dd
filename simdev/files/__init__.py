"""Files: JSON in and out. Every value is checked, and all errors are reported at once, each with
its file and path.

Nothing else of simdev reads these formats, which docs/reference/formats.md describes. ``measure``
and ``simdev plan`` write scenarios and profiles by themselves: a renamed key is changed there too.
Numbers are decimals as written. A new field is a field of its noun: ``shape.keys_of`` takes it
over, and its meaning is a line in the docstring of its shape here.
"""

from __future__ import annotations

from .cluster import preset_names, read_cluster, read_preset, write_cluster
from .collectives import read_collectives
from .device import device_names, device_presets, read_device
from .graph import read_graph, write_graph
from .profile import read_profile, write_profile
from .run import SavedRun, read_run, write_run
from .scenario import ScenarioFiles, read_grid, read_scenario
from .strategy import read_flexflow_strategy, read_strategy, strategy_object, write_strategy
from .writing import replacing, write_text

__all__ = [
    "SavedRun",
    "ScenarioFiles",
    "device_names",
    "device_presets",
    "preset_names",
    "read_cluster",
    "read_collectives",
    "read_device",
    "read_flexflow_strategy",
    "read_graph",
    "read_grid",
    "read_preset",
    "read_profile",
    "read_run",
    "read_scenario",
    "read_strategy",
    "replacing",
    "strategy_object",
    "write_cluster",
    "write_graph",
    "write_profile",
    "write_run",
    "write_strategy",
    "write_text",
]
