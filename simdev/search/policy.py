"""SavedPolicy: what a learner learned, kept in a file of weights only (safetensors).

A file has no code in it, and says beside its weights what they are of. learners.py and run.py
check a policy before a learner begins with it; each learner of ``simdev/learn`` makes its own. A
new field is also an entry of ``_NOTED``, and a new FORMAT, since older files lack it.
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
KEY = "simdev"  # under which a file says what its weights are of
Setting = int | float | str
# What a file says of its weights, as JSON.
_NOTED: dict[str, type] = {
    "method": str, "features": int, "devices": int, "groups": int, "graph": str, "settings": dict,
    "simdev": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SavedPolicy:
    """The weights of a policy (arrays by name), and where they belong.

    - ``method``: the name of the learner; ``settings``: what it was run with.
    - ``features``: the version of the graph's features that it reads; 0 where it reads none.
    - ``devices``, ``groups``: how many the question had on which it was learned.
    - ``graph``: the groups that it is tied to, as ``tied_to`` names them; "" where it can place any
      graph.
    - ``simdev``: the version that learned it.
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
        """Write a file, whole or not at all. Raises InputError where that cannot be."""
        notes = {name: getattr(self, name) for name in _NOTED} | {"settings": dict(self.settings)}
        # All under one name: several would be written in an order that changes from run to run.
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
    """Read what ``SavedPolicy.save`` wrote. Raises InputError for anything else."""
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
    """The notes of a file on its weights, checked. Raises InputError."""
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
    """The name that tells the groups of a graph from others: the graph's, and a digest of the names
    of the ops of each group.

    Times and sizes are not in it: the same model at another batch size is the same graph here.
    """
    names = [[oracle.graph.ops[i].name for i in members] for members in oracle.groups]
    digest = blake2b(json.dumps(names).encode(), digest_size=8).hexdigest()
    return f"{oracle.graph.name} {digest}"


def require_method(policy: SavedPolicy, method: str) -> None:
    """Raises InputError for the policy of another method."""
    if policy.method != method:
        raise InputError(f'was learned by "{policy.method}", not by "{method}"')


def require_policy(policy: SavedPolicy, method: str, features: int, oracle: Oracle) -> None:
    """Raises InputError, in one line, for the policy of another method, of other features, for
    another number of devices, or tied to other groups than those of ``oracle``.
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
