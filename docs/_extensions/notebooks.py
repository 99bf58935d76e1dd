"""Which notebooks the build executes: those of less than a minute whose answers are the same
anywhere. A note says of the others that they are shown as committed.

Answers are kept in build/notebooks, by what simdev was when they were given.
``SIMDEV_GALLERY=keep`` executes none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from gallery import gallery
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = ("01", "04", "06", "10", "11")
NOTE = """```{note}
Shown with the answers that it was committed with: it takes minutes, or measures the machine that
it runs on. The tests execute it with smaller questions, `make slow` as it stands.
```"""


def names() -> list[str]:
    """The documents of the notebooks that are not executed."""
    documents = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return [path.stem for path in documents if not path.name.startswith(EXECUTED)]


def decide(app: Sphinx, config: Config) -> None:
    """Before MyST-NB reads its settings."""
    config.nb_execution_excludepatterns = [f"notebooks/{name}.ipynb" for name in names()]
    config.nb_execution_cache_path = str(ROOT / "build" / "notebooks" / gallery()["of_simdev"]())
    if os.environ.get("SIMDEV_GALLERY") == "keep":
        config.nb_execution_mode = "off"


def add_note(app: Sphinx, document: str, text: list[str]) -> None:
    """Below the title of what is not executed."""
    if document.removeprefix("notebooks/") in names():
        notebook = json.loads(text[0])
        cell = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": NOTE}
        notebook["cells"].insert(1, cell)
        text[0] = json.dumps(notebook)


def setup(app: Sphinx) -> dict[str, bool]:
    """Decides what is executed before the build, and notes the rest."""
    app.connect("config-inited", decide, priority=400)
    app.connect("source-read", add_note)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
