"""The engine's version: what an answer hangs on beside the scenario."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from ..version import __version__

PACKAGE = Path(__file__).parent.parent
# What reads or draws answers but takes no part in them. A module that is not named here counts:
# better too much.
APART = frozenset(
    {
        "calibrate",
        "check",
        "cli",
        "export",
        "importers",
        "oracle",
        "plot",
        "measure",
        "report",
        "search",
        "serve",
    }
)


@cache
def engine_version() -> str:
    """The version of simdev and a hash of the sources and tables that make an answer:
    ``0.1.0+1f0a9c3e``.

    An edit to a source changes it, so that no result of the code before is taken for one of the
    code after.
    """
    digest = hashlib.sha256()
    for source in sorted([*PACKAGE.rglob("*.py"), *(PACKAGE / "presets").rglob("*.json")]):
        place = source.relative_to(PACKAGE)
        if place.parts[0].removesuffix(".py") not in APART:
            digest.update(f"{place.as_posix()}\0".encode() + source.read_bytes() + b"\0")
    return f"{__version__}+{digest.hexdigest()[:8]}"
