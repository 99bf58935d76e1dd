"""Makes the pictures of the gallery: ``python docs/gallery/make.py [NAME ...]`` (default: all).

A picture is what ``NAME.py`` beside this file saves, drawn in the look of ``gallery.mplstyle``. The
documentation's build makes those anew of which the script, the look or simdev itself changed since.
"""

from __future__ import annotations

import hashlib
import runpy
import sys
import time
from collections.abc import Iterable
from contextlib import chdir
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PICTURES = HERE / "pictures"
STYLE = HERE / "gallery.mplstyle"


def names() -> list[str]:
    """The pictures that have a script."""
    return sorted(path.stem for path in HERE.glob("*.py") if path != Path(__file__).resolve())


def stale() -> list[str]:
    """The pictures that are missing, or were made by something else than what stands here now."""
    return [name for name in names() if _made_of(name) != _digest(name)]


def make(name: str) -> float:
    """Run a script in the folder of pictures; return the CPU seconds that it took."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    PICTURES.mkdir(exist_ok=True)
    began = time.process_time()
    with plt.style.context([str(STYLE)]), chdir(PICTURES):
        runpy.run_path(str(HERE / f"{name}.py"))
    plt.close("all")
    (PICTURES / f"{name}.made").write_text(_digest(name))
    return time.process_time() - began


def _made_of(name: str) -> str:
    picture, made = PICTURES / f"{name}.png", PICTURES / f"{name}.made"
    return made.read_text() if picture.is_file() and made.is_file() else ""


def _digest(name: str) -> str:
    return _hash((HERE / f"{name}.py", STYLE)) + of_simdev()


@cache
def of_simdev() -> str:
    """Of simdev's sources and presets, whose changes may change any picture."""
    folders = ("simdev", "scenarios", "profiles")
    return _hash(
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in (".py", ".json", ".jsonl", ".gz")
    )


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for chosen in sys.argv[1:] or names():
        sys.stdout.write(f"{chosen}: {make(chosen):.1f} CPU s\n")
        sys.stdout.flush()
