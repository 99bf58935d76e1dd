"""The gallery's pictures, made where they are missing or not of today.

``SIMDEV_GALLERY=keep`` keeps those that are there.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

MAKE = Path(__file__).resolve().parents[1] / "gallery" / "make.py"
logger = logging.getLogger(__name__)


def make_pictures(app: Sphinx) -> None:
    """Make what has to be made, before the pages are read."""
    gallery = runpy.run_path(str(MAKE))
    keeps = os.environ.get("SIMDEV_GALLERY") == "keep"
    for name in gallery["stale"]():
        if not (keeps and (gallery["PICTURES"] / f"{name}.png").is_file()):
            logger.info("picture %s: %.1f CPU s", name, gallery["make"](name))


def setup(app: Sphinx) -> dict[str, bool]:
    """Makes the pictures when a build begins."""
    app.connect("builder-inited", make_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
