"""SavedPolicy: the weights that a learner has learned, kept in a safetensors file.

A file has no code in it; beside the weights it notes which method, graph and settings they belong
to. learners.py and run.py check a policy before a learner begins with it; each learner of
``simdev/learn`` makes its own. A new field is also an entry of ``_NOTED``, and a new FORMAT, since
older files lack it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..files.reading import PathLike, label
from ..files.writing import replacing
from ..ground.errors import InputError, install_line, reason_of, within
from ..ground.version import __version__
from ..oracle import Oracle

FORMAT = 1  # of the files
KEY = "simdev"  # the metadata key of a file's notes on its weights
Setting = int | float | str
# The notes of a file on its weights, as JSON: their names and types.
_NOTED: dict[str, type] = {
    "method": str, "features": int, "devices": int, "groups": int, "graph": str, "settings": dict,
    "simdev": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SavedPolicy:
    """The weights of a policy (arrays by name), and the question that they belong to.

    - ``method``: the name of the learner; ``settings``: the settings that it ran with.
    - ``features``: the version of the graph's features that it reads; 0 where it reads none.
    - ``devices``, ``groups``: their numbers in the question on which it was learned.
    - ``graph``: the graph whose groups it is tied to (``tied_to``); "" where it can place any
      graph.
    - ``simdev``: the version of simdev that learned it.
    """

    method: str
    features: int
    devices: int
    groups: int
    graph: str
    settings: Mapping[str, Setting]
    weights: Mapping[str, NDArray[Any]]
    simdev: str = __version__

    def save(self, path: PathLike) -> None:
        """Write a file, whole or not at all. Raises InputError where it cannot be written."""
        notes = {name: getattr(self, name) for name in _NOTED} | {"settings": dict(self.settings)}
        # All notes under one key: several keys would be written in an order that changes by run.
        text = {KEY: json.dumps({"format": FORMAT, **notes}, sort_keys=True)}
        weights = {name: np.asarray(array, order="C") for name, array in self.weights.items()}
        data: bytes = _safetensors().save(weights, text)
        try:
            with replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(data)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write: {reason_of(error)}", label(path)) from None


class Learned(Protocol):
    """The policy that a learner leaves with its trial, so that an interrupt loses nothing."""

    def saved(self) -> SavedPolicy:
        """The policy as it is now."""


def load_policy(path: PathLike) -> SavedPolicy:
    """Read a file that ``SavedPolicy.save`` wrote. Raises InputError for any other file."""
    read = _safetensors().load
    with within(label(path)):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (OSError, ValueError) as error:
            raise InputError(reason_of(error)) from None
        except (MemoryError, OverflowError):
            raise InputError("no policy: too large to be read into memory") from None
        try:
            weights = read(data)
            size = int.from_bytes(data[:8], "little")
            notes = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][KEY])
        except (
            Exception
        ):  # SafetensorError has no base of its own, and a number type may be unknown
            raise InputError("no policy: must be a file that --save-policy wrote") from None
        return SavedPolicy(**_checked(notes), weights=weights)


def _checked(notes: Any) -> dict[str, Any]:
    """The notes of a file on its weights. Raises InputError where they are not of this FORMAT."""
    version = notes.get("format") if isinstance(notes, dict) else None
    if version != FORMAT:
        raise InputError(f"a policy of format {version!r}; this simdev reads {FORMAT}")
    del notes["format"]
    wrong = [name for name, kind in _NOTED.items() if not isinstance(notes.get(name), kind)]
    wrong += [name for name in notes if name not in _NOTED]
    if wrong:
        raise InputError(f"no policy: {wrong[0]} is not told as it must be")
    return dict(notes)


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise InputError(f"policies are kept by safetensors: {install_line('torch')}") from None
    return safetensors.numpy


def tied_to(oracle: Oracle) -> str:
    """A name for the groups of a graph: the graph's name, and a digest of the names of each group's
    ops.

    Times and sizes are not in the digest: a model at another batch size has the same name.
    """
    names = [[oracle.graph.ops[i].name for i in members] for members in oracle.groups]
    digest = blake2b(json.dumps(names).encode(), digest_size=8).hexdigest()
    return f"{oracle.graph.name} {digest}"


def require_method(policy: SavedPolicy, method: str) -> None:
    """Raises InputError for the policy of another method."""
    if policy.method != method:
        raise InputError(f'was learned by "{policy.method}", not by "{method}"')


def require_policy(policy: SavedPolicy, method: str, features: int, oracle: Oracle) -> None:
    """Check that a policy can place the groups of ``oracle``.

    Raises InputError, in one line, for a policy of another method, of another version of features,
    for another number of devices, or tied to other groups.
    """
    require_method(policy, method)
    devices, here = len(oracle.cluster.devices), tied_to(oracle)
    if policy.features not in (0, features):
        raise InputError(
            f"reads features of version {policy.features}; this simdev makes version {features}"
        )
    if policy.devices != devices:
        raise InputError(f"places on {policy.devices} devices; there are {devices}")
    if policy.graph not in ("", here):
        raise InputError(
            f'is tied to the {policy.groups} groups of "{policy.graph}"; these are the '
            f'{len(oracle.groups)} of "{here}"'
        )
