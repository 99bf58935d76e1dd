"""Large models by their names, or by the config.json that stands beside their released weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..ground.errors import InputError, within
from ..nouns.models.large import LARGE, Transformer, from_config, large_model, resized
from .named import config_path
from .reading import label, read_json


def read_sizes(value: Mapping[str, Any], folder: str = "") -> Transformer:
    """A large model by its name or by its config.json, with sizes of one's own: {"model":
    "llama3-70b", "length": 4096}.

    Raises InputError with every problem of the file, or of the sizes.
    """
    path = config_path(value, folder)
    if path is None:
        _refuse_folder(value["model"], folder)
        return large_model(value["model"], **sizes_of(value))
    with within(label(path)):
        model = from_config(read_json(path))
    return resized(model, **sizes_of(value))


def _refuse_folder(name: Any, folder: str) -> None:
    """A release is often named by the folder of its weights."""
    is_path = isinstance(name, str) and name not in LARGE and "\0" not in name
    if is_path and os.path.isdir(os.path.join(folder, name)):
        file = os.path.join(name, "config.json")
        raise InputError(f'model: "{name}" is a folder; name the file in it, like {file}')


def sizes_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a graph says of its model beside the name."""
    return {str(key): size for key, size in value.items() if key != "model"}
