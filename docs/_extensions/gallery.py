"""The gallery's pictures, made where they are missing or not of today.

``SIMDEV_GALLERY=keep`` keeps those that are there.
"""

from __future__ import annotations

import os
import runpy
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

MAKE = Path(__file__).resolve().parents[1] / "gallery" / "make.py"
logger = logging.getLogger(__name__)


@cache
def gallery() -> dict[str, Any]:
    """The names of the program that makes pictures."""
    return runpy.run_path(str(MAKE))


def make(name: str) -> float:
    """Make a picture; return the CPU seconds that it took."""
    seconds: float = gallery()["make"](name)
    return seconds


def make_pictures(app: Sphinx) -> None:
    """Make what has to be made, before the pages are read; a process a core."""
    keeps = os.environ.get("SIMDEV_GALLERY") == "keep"
    pictures = gallery()["PICTURES"]
    names = [
        name
        for name in gallery()["stale"]()
        if not (keeps and (pictures / f"{name}.png").is_file())
    ]
    with ProcessPoolExecutor() as pool:
        for name, seconds in zip(names, pool.map(make, names), strict=True):
            logger.info("picture %s: %.1f CPU s", name, seconds)


def setup(app: Sphinx) -> dict[str, bool]:
    """Makes the pictures when a build begins."""
    app.connect("builder-inited", make_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
