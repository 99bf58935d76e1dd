"""Which format a file has, and the reader for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..files.reading import PathLike, label, read_text
from ..units import Number
from .dnn_partitioning import parse_workload, workload_scenario
from .imported import Imported
from .pipedream import layers_scenario, parse_layers

Options = Mapping[str, Any]


def _pipedream(text: str, options: Options) -> Imported:
    return layers_scenario(parse_layers(text), **options)


def _workload(text: str, options: Options) -> Imported:
    wrong = [f"--{name}: the file tells it itself" for name in ("devices", "bandwidth", "memory") if name in options]
    if wrong:
        raise InputError(wrong)
    return workload_scenario(parse_workload(text), **options)


FORMATS: Mapping[str, Callable[[str, Options], Imported]] = {"pipedream": _pipedream, "dnn-partitioning": _workload}


def import_file(
    path: PathLike,
    format: str | None = None,
    name: str | None = None,
    devices: int | None = None,
    bandwidth: Number | None = None,
    memory: Number | None = None,
) -> Imported:
    """Read a file of one of FORMATS (None: told from what it holds). ``name`` is the graph's.

    ``devices``, ``bandwidth`` (between any two) and ``memory`` (of each) are of formats that do not tell the machine.
    Raises InputError.
    """
    text = read_text(path)
    told = {"name": name, "devices": devices, "bandwidth": bandwidth, "memory": memory}
    options = {key: value for key, value in told.items() if value is not None}
    try:
        chosen = _guess(text) if format is None else format
        if chosen not in FORMATS:
            raise InputError(f'format: must be one of {", ".join(FORMATS)}, got "{format}"')
        return FORMATS[chosen](text, options)
    except InputError as error:
        raise error.within(label(path)) from None


def _guess(text: str) -> str:
    if text.lstrip().startswith("{"):
        return "dnn-partitioning"
    if " -- " in text:
        return "pipedream"
    raise InputError(f"neither a file of {' nor of '.join(FORMATS)}: tell it by --format")
