"""Large models by their names, or by the config.json that stands beside their released weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeGuard

from ..errors import within
from ..models.large import Transformer, from_config, large_model, resized
from .reading import label, read_json


def is_config(name: Any) -> TypeGuard[str]:
    """Whether a model's name is the path of a config.json."""
    return isinstance(name, str) and name.endswith((".json", ".json.gz")) and "\0" not in name


def config_path(graph: Any, folder: str) -> str | None:
    """Where the config.json lies that a graph names as its model; None where it names none."""
    name = graph.get("model") if isinstance(graph, Mapping) else None
    return os.path.normpath(os.path.join(folder, name)) if is_config(name) else None


def read_sizes(value: Mapping[str, Any], folder: str = "") -> Transformer:
    """A large model by its name or by its config.json, with sizes of one's own: {"model":
    "llama3-70b", "length": 4096}.

    Raises InputError with every problem of the file, or of the sizes.
    """
    path = config_path(value, folder)
    if path is None:
        return large_model(value["model"], **sizes_of(value))
    with within(label(path)):
        model = from_config(read_json(path))
    return resized(model, **sizes_of(value))


def sizes_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a graph says of its model beside the name."""
    return {str(key): size for key, size in value.items() if key != "model"}
