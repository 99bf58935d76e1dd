"""Readers of the field's public formats: scenarios, clusters and tables of collectives with their
provenance.
"""

from __future__ import annotations

from .chakra import parse_trace, traces_scenario
from .dnn_partitioning import Workload, read_workload, workload_scenario
from .imported import (
    AnyImported,
    Imported,
    ImportedCluster,
    ImportedTables,
    imported_text,
    write_imported,
)
from .machine import Machine
from .nccl import log_tables, parse_log
from .networks import network_scenario, parse_network
from .onnx import model_graph, model_scenario, parse_model, read_model
from .opening import FORMATS, TORCH_FORMATS, graph_scenario, import_file, provenance_of, recognise
from .pipedream import Layer, Layers, layers_scenario, read_layers
from .source import Source, open_source
from .topology import parse_topology, topology_cluster

__all__ = [
    "FORMATS",
    "TORCH_FORMATS",
    "AnyImported",
    "Imported",
    "ImportedCluster",
    "ImportedTables",
    "Layer",
    "Layers",
    "Machine",
    "Source",
    "Workload",
    "graph_scenario",
    "import_file",
    "imported_text",
    "layers_scenario",
    "log_tables",
    "model_graph",
    "model_scenario",
    "network_scenario",
    "open_source",
    "parse_log",
    "parse_model",
    "parse_network",
    "parse_topology",
    "parse_trace",
    "provenance_of",
    "read_layers",
    "read_model",
    "read_workload",
    "recognise",
    "topology_cluster",
    "traces_scenario",
    "workload_scenario",
    "write_imported",
]
