"""Readers of the field's public formats: scenarios, clusters and tables of collectives with their
provenance.
"""

from __future__ import annotations

from .chakra import parse_trace, traces_scenario
from .dnn_partitioning import parse_workload, workload_scenario
from .imported import (
    AnyImported,
    Imported,
    ImportedCluster,
    ImportedTables,
    imported_text,
    write_imported,
)
from .machine import Machine, graph_scenario
from .nccl import log_tables, parse_log
from .networks import network_scenario, parse_network
from .onnx import model_graph, model_scenario, parse_model, read_model
from .opening import FORMATS, TORCH_FORMATS, import_file, provenance_of, recognise
from .pipedream import layers_scenario, parse_layers
from .source import Source, open_source
from .topology import parse_topology, topology_cluster

__all__ = [
    "FORMATS",
    "TORCH_FORMATS",
    "AnyImported",
    "Imported",
    "ImportedCluster",
    "ImportedTables",
    "Machine",
    "Source",
    "graph_scenario",
    "import_file",
    "imported_text",
    "layers_scenario",
    "log_tables",
    "model_graph",
    "model_scenario",
    "network_scenario",
    "open_source",
    "parse_layers",
    "parse_log",
    "parse_model",
    "parse_network",
    "parse_topology",
    "parse_trace",
    "parse_workload",
    "provenance_of",
    "read_model",
    "recognise",
    "topology_cluster",
    "traces_scenario",
    "workload_scenario",
    "write_imported",
]
