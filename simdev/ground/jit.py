"""Compilation of kernels by Numba, with a cache on disk that depends on all their sources.

Numba's own disk cache looks only at the file of the outermost function: after an edit to a callee
in another file the old machine code would still run. So the cache lives in a folder named after a
hash of the sources of all kernels. The folder lies in ``NUMBA_CACHE_DIR`` where that is set,
else beside the package, else (an installation that cannot be written) in the user's cache folder.
Where none can be written, kernels are compiled anew in each process.

The compiled engine, the kernels of the oracle and ``simdev/search/kernels`` are made by ``jit`` and
``jitable``. A folder in which kernels are added has to be named in ``KERNELS``, else an edit to it
would run old machine code; ``tests/compile_kernels.py`` compiles the same folders.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_type_hints

import numba
import numpy as np
from numba.core import event
from numba.core.caching import FunctionCache
from numba.extending import intrinsic, register_jitable
from numba.misc.appdirs import AppDirs
from numpy.typing import NDArray

from . import PACKAGE
from .errors import printable, steered

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", bound=tuple[Any, ...])
Ints = NDArray[np.int64]
types: Any = numba.types  # untyped
# The folders and modules of compiled code and of all functions that it calls.
KERNELS = (
    "ground/jit.py",
    "execution/engine",
    "execution/goodput.py",
    "lowering",
    "oracle",
    "search/kernels",
)


def jitable(*functions: F) -> F:
    """Let compiled kernels call these plain functions, which stay plain; returns the first.

    Kernels pass their columns around as named tuples. Without ``forceinline`` every call would pass
    a hundred words, and with Numba's memory runtime (``_nrt``) every column would be
    reference-counted at every use: together 2.7 times slower, measured on the oracle's kernel. So
    kernels allocate nothing and take no slices.
    """
    for function in functions:
        register_jitable(_nrt=False, forceinline=True)(function)
    return functions[0]


def jit(function: F) -> F:
    """A compiled kernel, cached on disk, that releases the GIL."""
    folder = cache_folder()
    settings: Any = numba.config
    compiler: Any = numba.njit  # its types do not know _nrt
    kernel = compiler(nogil=True, _nrt=False)(function)
    before, settings.CACHE_DIR = settings.CACHE_DIR, folder
    try:
        if folder is not None:
            kernel._cache = _Cache(function)  # type: ignore[no-untyped-call]
    finally:
        settings.CACHE_DIR = before
    return cast(F, kernel)


class _Cache(FunctionCache):
    """Numba's cache, which ignores errors of a folder that is gone or full."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(OSError):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


class _Announcement(event.Listener):
    """A listener that says once on a terminal why a first call takes seconds."""

    def __init__(self) -> None:
        self.made = False

    def on_start(self, begun: Any) -> None:
        module = begun.data["dispatcher"].py_func.__module__
        if self.made or not module.startswith(f"{PACKAGE.name}.") or not _on_terminal():
            return
        self.made = True
        folder = cache_folder()
        kept = f"once: {folder} keeps them" if folder else "set NUMBA_CACHE_DIR to keep them"
        # The line may hold a progress bar.
        steered(sys.stderr).write(f"\r\x1b[Ksimdev compiles its kernels ({printable(kept)})\n")
        sys.stderr.flush()

    def on_end(self, ended: Any) -> None:
        pass


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


event.register("numba:compile", _Announcement())  # type: ignore[no-untyped-call]


# Columns for kernels. A kernel takes a table of words (scalars, and addresses of columns) and opens
# it as a named tuple of scalars and bare pointers. A tuple of thirty arrays would cost 4 us a call
# to unbox; and an array tries each index for being negative (to count from the end), which made the
# oracle's kernel a third slower. Pointers have no length.


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A named tuple of integers and contiguous columns, which it keeps alive, and its ``words``:
    the argument of a kernel.
    """

    columns: T
    words: Ints

    @classmethod
    def of(cls, columns: T) -> Table[T]:
        """The table of a named tuple. Raises TypeError for a column that is not contiguous or has
        another type than its field.
        """
        for (name, kind), value in zip(_fields(type(columns)).items(), columns, strict=True):
            if kind is not types.int64 and (
                value.dtype != np.dtype(kind.dtype.name) or not value.flags.c_contiguous
            ):
                raise TypeError(
                    f"{type(columns).__name__}.{name}: wants contiguous {kind.dtype}, got "
                    f"{value.dtype}"
                )
        words = [
            value.ctypes.data if isinstance(value, np.ndarray) else int(value) for value in columns
        ]
        return cls(columns, np.array(words, np.int64))


@cache
def _fields(shape: type[tuple[Any, ...]]) -> dict[str, Any]:
    """The compiled type of each field of a named tuple."""
    kinds = {
        Ints: types.CPointer(types.int64),
        NDArray[np.uint8]: types.CPointer(types.uint8),
        NDArray[np.float64]: types.CPointer(types.float64),
        int: types.int64,
    }
    return {name: kinds[hint] for name, hint in get_type_hints(shape).items()}


def opener(shape: type[T]) -> Callable[[Ints], T]:
    """The function by which kernels open the words of a ``Table`` as its named tuple. An integer in
    place of the words opens as None, so that a kernel can be compiled with and without a table.
    """
    kinds = list(_fields(shape).values())
    opened: Any = types.NamedTuple(kinds, shape)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        values = []
        for at, kind in enumerate(kinds):
            word = builder.load(builder.gep(data, [context.get_constant(types.intp, at)]))
            pointer = isinstance(kind, types.CPointer)
            values.append(builder.inttoptr(word, context.get_value_type(kind)) if pointer else word)
        return context.make_tuple(builder, signature.return_type, values)

    @intrinsic
    def open_table(typing: Any, words: Any) -> Any:
        if isinstance(words, types.Integer):
            return types.none(words), lambda context, *_: context.get_dummy_value()
        return opened(words), generate

    return cast(Callable[[Ints], T], open_table)


@intrinsic
def _bare(typing: Any, column: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(column.dtype)(column), generate


bare = cast(Callable[[Ints], Ints], _bare)
"""For kernels: the bare pointer to the first element of an array."""


@intrinsic
def _lowest(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, 1))

    return types.int64(bits), generate


lowest = cast(Callable[[int], int], _lowest)
"""For kernels: the number of the lowest bit that is set; the argument must not be 0."""


@cache
def cache_folder() -> str | None:
    """The cache folder for the present sources, or None where none can be written."""
    digest = hashlib.sha256()
    sources = [
        source
        for name in KERNELS
        for source in (*sorted(PACKAGE.glob(name)), *sorted(PACKAGE.glob(f"{name}/**/*.py")))
        if source.is_file()
    ]
    if not sources:  # in a zip, say: old machine code could not be recognised
        return None
    for source in sources:
        digest.update(source.read_bytes())
    for parent in _parents(PACKAGE):
        folder = parent / f"kernels-{digest.hexdigest()[:16]}"
        with suppress(OSError):
            if not folder.exists():
                for old in parent.glob("kernels-*"):
                    shutil.rmtree(old, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "writable").touch()
            return str(folder)
    return None


def _parents(package: Path) -> Iterator[Path]:
    """Folders that may hold the cache folder, best first. Installations may share some of them."""
    installation = hashlib.sha256(str(package.resolve()).encode()).hexdigest()[:16]
    given: str = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if given:
        yield Path(given, "simdev", installation)
    yield package / "__pycache__"
    folders: Any = AppDirs  # untyped
    user = Path(folders("simdev", appauthor=False).user_cache_dir)
    if user.is_absolute():  # else there is no home
        yield user / installation
