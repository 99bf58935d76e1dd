"""ONNX models: shapes from the package's own inference, operators in the kinds of simdev."""

from __future__ import annotations

from .building import model_graph, model_scenario
from .model import Model, is_model, parse_model, read_model

__all__ = ["Model", "is_model", "model_graph", "model_scenario", "parse_model", "read_model"]
