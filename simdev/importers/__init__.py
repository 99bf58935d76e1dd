"""Readers of the field's public formats: each makes a graph, a cluster and a placement to begin with."""

from __future__ import annotations

from .dnn_partitioning import Workload, read_workload, workload_scenario
from .imported import Imported, write_imported
from .opening import FORMATS, import_file
from .pipedream import Layer, Layers, layers_scenario, read_layers

__all__ = [
    "FORMATS",
    "Imported",
    "Layer",
    "Layers",
    "Workload",
    "import_file",
    "layers_scenario",
    "read_layers",
    "read_workload",
    "workload_scenario",
    "write_imported",
]
