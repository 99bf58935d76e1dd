"""The one place that knows how kernels are compiled: Numba, cached on disk, with a cache that knows its sources.

Numba's own disk cache looks at the file of the outermost function only: after an edit to a callee in another file the
old machine code would go on running. So the cache lives in a folder named after a hash of the sources of all kernels,
beside the package; where that cannot be written, kernels are compiled anew in each process.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., object])
KERNELS = ("jit.py", "engine", "lowering", "oracle")  # where compiled code, and what it calls, may stand


def jitable(*functions: F) -> F:
    """Let compiled kernels call these plain functions, which stay plain; the first is handed back.

    Kernels pass their columns around as named tuples. Without ``forceinline`` every call would pass a hundred words,
    and with Numba's memory runtime (``_nrt``) every column would be reference-counted at every use: together 2.7 times
    slower, measured on the oracle's kernel. So kernels allocate nothing and take no slices.
    """
    for function in functions:
        register_jitable(_nrt=False, forceinline=True)(function)
    return functions[0]


def jit(function: F) -> F:
    """A compiled kernel, cached on disk, that releases the GIL."""
    folder = _cache_folder()
    settings: Any = numba.config
    compiler: Any = numba.njit  # its types do not know _nrt
    before, settings.CACHE_DIR = settings.CACHE_DIR, folder or ""
    try:
        return cast(F, compiler(cache=bool(folder), nogil=True, _nrt=False)(function))
    finally:
        settings.CACHE_DIR = before


@cache
def _cache_folder() -> str | None:
    """The folder for these very sources, or None where it cannot be written."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for name in KERNELS:
        for source in sorted(package.glob(name)) + sorted(package.glob(f"{name}/**/*.py")):
            if source.is_file():
                digest.update(source.read_bytes())
    folder = package / "__pycache__" / f"kernels-{digest.hexdigest()[:16]}"
    try:
        if not folder.exists():
            for old in folder.parent.glob("kernels-*"):
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "writable"
        probe.touch()
    except OSError:
        return None
    return str(folder)
