"""Compiles every kernel of the package into the cache on disk, before the tests run.

    python tests/compile_kernels.py

Otherwise parallel test processes would compile the same kernels several times.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

from numba import float64, int64
from numba.core.dispatcher import Dispatcher

from simdev.ground.jit import KERNELS

PACKAGES = [f"simdev.{name.replace('/', '.')}" for name in KERNELS if not name.endswith(".py")]


def kernels() -> list[Dispatcher]:
    """All kernels of the package, each from the module that defines it."""
    modules = [
        import_module(module.name)
        for package in PACKAGES
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}.")
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Dispatcher) and value.__module__ == module.__name__
    ]


def compile_into_cache(kernel: Dispatcher) -> None:
    """Compiles a kernel for the types of its calls: numbers and columns by its annotations, where a
    named tuple stands for a column of addresses.
    """
    types = {"int": int64, "Floats": float64[::1]}
    parameters = inspect.signature(kernel.py_func).parameters.values()
    kernel.compile(tuple(types.get(one.annotation, int64[::1]) for one in parameters))


if __name__ == "__main__":
    for one in kernels():
        compile_into_cache(one)
